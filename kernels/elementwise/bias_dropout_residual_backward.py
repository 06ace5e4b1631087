"""The gradients of residual + dropout(x + bias): x's and the bias's (residual's is y's own).

A program goes through some rows of its columns, writes x's gradient and sums the bias's on the way. Where rows do not
begin at a multiple of 16 bytes, its rows are a multiple of VECTOR rows apart, so that their whole vectors begin at one
column, and one more program takes the columns before the first vector and after the last.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, multiprocessors
from kernels.philox import kept, kept_at, scale_of_kept
from kernels.sizes import cdiv
from kernels.vectors import at_vector, elements_before, inside_rim, rim, vectors_of_rows


@triton.jit
def columns_at(
    first_col,
    place,
    inside_row,
    first_row,
    row_step,
    given,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    COMPUTE: tl.constexpr,
    VECTOR: tl.constexpr,
    RAGGED: tl.constexpr,
):
    """The columns first_col + place, (1, BLOCK_COLS), where inside_row, in blocks of rows that are row_step apart."""
    grad_y_ptr, grad_y_row_stride, grad_x_ptr, partial_ptr, rows, cols, seed, p, scale = given
    sums = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)
    for first in range(first_row, rows, tl.num_programs(0) * BLOCK_ROWS):
        row = tl.arange(0, BLOCK_ROWS)[:, None].to(tl.int64) * row_step + first
        inside = (row < rows) & inside_row
        start = at_vector(row * grad_y_row_stride + first_col, VECTOR)
        grad_y = tl.load(grad_y_ptr + start + place, mask=inside, other=0.0).to(COMPUTE)
        if RAGGED and VECTOR == 1:
            keep = kept_at(seed, row, place, p, BLOCK_ROWS, BLOCK_COLS)
        else:
            keep = kept(seed, row, first_col, p, BLOCK_ROWS, BLOCK_COLS, RAGGED)
        grad_x = grad_y * tl.where(keep, scale, 0.0)
        start = at_vector(row * cols + first_col, VECTOR)
        tl.store(grad_x_ptr + start + place, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        sums += tl.where(inside, grad_x, 0.0)
    total = tl.sum(sums, axis=0, keep_dims=True).to(partial_ptr.dtype.element_ty)
    tl.store(partial_ptr + tl.program_id(0).to(tl.int64) * cols + first_col + place, total, mask=inside_row)


@triton.jit
def bias_dropout_residual_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    grad_x_ptr,  # (rows, cols), contiguous
    partial_ptr,  # (programs along the rows, cols): parts of the bias's gradient
    seed_ptr,  # (1,) int64
    rows,
    cols,
    grad_y_row_stride,
    p,
    scale,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    COMPUTE: tl.constexpr,
    VECTOR: tl.constexpr = 1,
    RAGGED: tl.constexpr = False,  # then the programs along the rows are a multiple of VECTOR
):
    first = tl.program_id(1) * BLOCK_COLS
    seed = tl.load(seed_ptr)
    given = (grad_y_ptr, grad_y_row_stride, grad_x_ptr, partial_ptr, rows, cols, seed, p, scale)
    place = tl.arange(0, BLOCK_COLS)[None, :]
    if RAGGED:
        row, step = tl.program_id(0), tl.num_programs(0)
        lead = elements_before(row.to(tl.int64) * cols, VECTOR, True)
        whole = at_vector(cols - lead, VECTOR)
        if tl.program_id(1) < tl.num_programs(1) - 1:
            inside = place < whole - first
            columns_at(lead + first, place, inside, row, step, given, BLOCK_ROWS, BLOCK_COLS, COMPUTE, VECTOR, True)
        else:
            col, in_rim = rim(lead, cols, VECTOR), inside_rim(lead, whole, cols, VECTOR)
            columns_at(0, col, in_rim, row, step, given, 4 * BLOCK_ROWS, 2 * VECTOR, COMPUTE, 1, True)
    else:
        inside = place < at_vector(cols, VECTOR) - first
        row = tl.program_id(0) * BLOCK_ROWS
        columns_at(first, place, inside, row, 1, given, BLOCK_ROWS, BLOCK_COLS, COMPUTE, VECTOR, False)


def vectors_of(*tensors: torch.Tensor) -> tuple[int, bool]:
    """VECTOR and RAGGED; VECTOR is 1 also where 16 divides the sizes: the compiler sees whole vectors by itself."""
    seen = all(size % 16 == 0 for each in tensors for size in (each.shape[-1], each.stride(0)))
    return (1, False) if seen else vectors_of_rows(*tensors)


def settings(dtype: torch.dtype, few_rows: bool = False) -> dict:
    """Launch settings. On an H200, 16384 x 4096 in bf16: 82 per cent of copy bandwidth.

    `few_rows`: no more than the GPU has SMs. Then a program takes all rows of its columns and nothing is left to sum:
    128 x 8192 in 5.5 us instead of 15.8.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    if few_rows:
        return {"BLOCK_ROWS": 128, "BLOCK_COLS": 32, "COMPUTE": compute, "num_warps": 4}
    return {"BLOCK_ROWS": 4, "BLOCK_COLS": 512, "COMPUTE": compute, "num_warps": 4}


PROGRAMS_ALONG_ROWS = 264  # two for each multiprocessor of an H200


def gradients(
    grad_y: torch.Tensor, seed: torch.Tensor, p: float, bias_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of x, (rows, cols), and of the bias, (cols,)."""
    grad_x = torch.empty(grad_y.shape, dtype=grad_y.dtype, device=grad_y.device)
    if grad_y.numel() == 0:
        return grad_x, torch.zeros(grad_y.shape[-1], dtype=bias_dtype, device=grad_y.device)
    grad_y = as_rows(grad_y)
    rows, cols = grad_y.shape
    few_rows = rows <= multiprocessors(grad_y)
    chosen = settings(grad_y.dtype, few_rows)
    programs = 1 if few_rows else min(PROGRAMS_ALONG_ROWS, cdiv(rows, chosen["BLOCK_ROWS"]))
    vector, ragged = vectors_of(grad_y, as_rows(grad_x))
    if ragged and programs < vector:
        vector, ragged = 1, False
    elif ragged:
        programs = programs // vector * vector
    chosen |= {"VECTOR": vector, "RAGGED": ragged}
    sums = bias_dtype if few_rows else torch.promote_types(grad_y.dtype, torch.float32)
    partial = torch.empty((programs, cols), dtype=sums, device=grad_y.device)
    grid = (programs, cdiv(cols // vector * vector, chosen["BLOCK_COLS"]) + ragged)
    with torch.cuda.device_of(grad_y):
        bias_dropout_residual_backward_kernel[grid](
            grad_y, grad_x, partial, seed, rows, cols, grad_y.stride(0), float(p), scale_of_kept(p), **chosen
        )
    return grad_x, partial[0] if few_rows else partial.sum(dim=0).to(bias_dtype)
