"""The gradients of residual + dropout(x + bias): x's and the bias's (residual's is y's own).

A program goes through some rows of its columns, writes x's gradient and sums the bias's on the way. Where rows do not
begin at a multiple of 16 bytes, its rows are a multiple of VECTOR rows apart, so that their whole vectors begin at one
column, and one more program takes the columns before the first vector and after the last.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, cdiv, multiprocessors
from kernels.op import like
from kernels.philox import begin_fours, kept, kept_at, scale_of_kept
from kernels.rowwise.sums import sums_of_programs
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
    FOURS: tl.constexpr,
):
    """The columns first_col + place, (1, BLOCK_COLS), where inside_row, in blocks of rows that are row_step apart."""
    grad_y_ptr, grad_y_row_stride, grad_x_ptr, sums_ptr, rows, cols, seed, p, scale = given
    sums = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)
    for first in range(first_row, rows, tl.num_programs(1) * BLOCK_ROWS):
        row = tl.arange(0, BLOCK_ROWS)[:, None].to(tl.int64) * row_step + first
        inside = (row < rows) & inside_row
        start = at_vector(row * grad_y_row_stride + first_col, VECTOR)
        grad_y = tl.load(grad_y_ptr + start + place, mask=inside, other=0.0).to(COMPUTE)
        if FOURS:
            keep = kept(seed, row, first_col, p, BLOCK_ROWS, BLOCK_COLS)
        else:
            keep = kept_at(seed, row, row * cols % 4 + first_col + place, p, BLOCK_ROWS, BLOCK_COLS)
        grad_x = grad_y * tl.where(keep, scale, 0.0)
        start = at_vector(row * cols + first_col, VECTOR)
        tl.store(grad_x_ptr + start + place, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        sums += tl.where(inside, grad_x, 0.0)
    total = tl.sum(sums, axis=0, keep_dims=True).to(sums_ptr.dtype.element_ty)
    tl.store(sums_ptr + tl.program_id(1).to(tl.int64) * cols + first_col + place, total, mask=inside_row)


@triton.jit
def bias_dropout_residual_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    grad_x_ptr,  # (rows, cols), contiguous
    sums_ptr,  # (programs along the rows, cols): sums of the bias's gradient; (cols,) where there is one
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
    FOURS: tl.constexpr = True,
):
    first = tl.program_id(0) * BLOCK_COLS
    seed = tl.load(seed_ptr)
    given = (grad_y_ptr, grad_y_row_stride, grad_x_ptr, sums_ptr, rows, cols, seed, p, scale)
    place = tl.arange(0, BLOCK_COLS)[None, :]
    if RAGGED:
        row, step = tl.program_id(1), tl.num_programs(1)
        lead = elements_before(row.to(tl.int64) * cols, VECTOR, True)
        whole = at_vector(cols - lead, VECTOR)
        if tl.program_id(0) < tl.num_programs(0) - 1:
            inside = place < whole - first
            columns_at(lead + first, place, inside, row, step, given, BLOCK_ROWS, BLOCK_COLS, COMPUTE, VECTOR, FOURS)
        else:
            col, in_rim = rim(lead, cols, VECTOR), inside_rim(lead, whole, cols, VECTOR)
            columns_at(0, col, in_rim, row, step, given, 4 * BLOCK_ROWS, 2 * VECTOR, COMPUTE, 1, False)
    else:
        inside = place < at_vector(cols, VECTOR) - first
        row = tl.program_id(1) * BLOCK_ROWS
        columns_at(first, place, inside, row, 1, given, BLOCK_ROWS, BLOCK_COLS, COMPUTE, VECTOR, FOURS)


def vectors_of(*tensors: torch.Tensor) -> tuple[int, bool, bool]:
    """VECTOR, RAGGED and FOURS; VECTOR is 1 also where 16 divides the sizes: the compiler sees vectors by itself."""
    cols = tensors[0].shape[-1]
    seen = cols % 16 == 0 and all(each.stride(0) % 16 == 0 for each in tensors)
    vector, ragged = (1, False) if seen else vectors_of_rows(*tensors)
    return vector, ragged, begin_fours(cols, vector)


@cache
def launch_of(
    rows: int, cols: int, dtype: torch.dtype, sms: int, vector: int, ragged: bool, fours: bool
) -> tuple[tuple[int, int], dict]:
    """The grid, along columns (of which 65,535 blocks may be too few) and rows, and constexprs and launch options.

    Few rows of whole vectors: a program takes all rows of its columns and nothing is left to sum. Else programs fill
    the GPU once, so that few sums are left. On an H200 in bf16: 16384 x 4096 in 89 us, 2039 x 50257 in 146.
    """
    few_rows = not ragged and rows <= (4 * sms if cdiv(cols, 32) <= sms else sms)
    block_rows, block_cols, warps = 4, 256, 2
    if few_rows:
        block_rows, block_cols, warps = (128, 32, 4) if rows <= 128 else (256, 32, 8)
    blocks = cdiv(cols // vector * vector, block_cols) + ragged
    programs = 1 if few_rows else min(cdiv(rows, block_rows), max(1, 24 // warps * sms // blocks))
    if ragged:
        programs = cdiv(programs, vector) * vector
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    chosen = {"BLOCK_ROWS": block_rows, "BLOCK_COLS": block_cols, "COMPUTE": compute, "num_warps": warps}
    return (blocks, programs), {**chosen, "VECTOR": vector, "RAGGED": ragged, "FOURS": fours}


def gradients(
    grad_y: torch.Tensor, seed: torch.Tensor, p: float, bias_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of x, (rows, cols), and of the bias, (cols,)."""
    grad_x = like(grad_y)
    if grad_y.numel() == 0:
        return grad_x, torch.zeros(grad_y.shape[-1], dtype=bias_dtype, device=grad_y.device)
    grad_y = as_rows(grad_y)
    rows, cols = grad_y.shape
    vectors = vectors_of(grad_y, as_rows(grad_x))
    grid, chosen = launch_of(rows, cols, grad_y.dtype, multiprocessors(grad_y), *vectors)
    grad_bias = torch.empty(cols, dtype=bias_dtype, device=grad_y.device)
    sums = grad_bias
    if grid[1] > 1:
        sums = torch.empty(grid[1], cols, dtype=torch.promote_types(grad_y.dtype, torch.float32), device=grad_y.device)
    with torch.cuda.device_of(grad_y):
        bias_dropout_residual_backward_kernel[grid](
            grad_y, grad_x, sums, seed, rows, cols, grad_y.stride(0), float(p), scale_of_kept(p), **chosen
        )
        if grid[1] > 1:
            (grad_bias,) = sums_of_programs((sums,), (grad_bias,))
    return grad_x, grad_bias
