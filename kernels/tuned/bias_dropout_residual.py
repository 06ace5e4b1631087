"""bias_dropout_residual for contiguous rows whose columns are not a multiple of 16, such as 50257 or 5000.

The plain kernels access such rows one element at a time, because the compiler cannot see the 16-byte vectors in them.
For odd widths they also evaluate Philox once per element. Here threads move whole vectors: a row is split into its
aligned vectors and an edge, the elements before the first vector and after the last, fewer than two vectors in all
(segments.py). With 16- and 32-bit elements each vector starts at a group of four elements that share one evaluation of
Philox, so only the edge pays for one evaluation per element. In the backward pass a program's rows are a multiple of
VECTOR rows apart, so their vectors start at the same column. One more program per group of rows takes the edges.

On an H200 in bf16, forward and backward of 2039 x 50257 take 146 us each.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, cdiv, multiprocessors, next_power_of_2
from kernels.op import like
from kernels.philox import kept, kept_at, scale_of_kept
from kernels.rowwise.sums import sums_of_programs
from kernels.tuned.segments import at_vector, edge, elements_before, in_edge, row_vectors
from kernels.variants import tuned

GAIN = "backward pass 2.8x at 2039 x 50257 (H100, bf16); the forward pass was not timed against the plain one"


@triton.jit
def residual_of_dropped(x_at, bias_at, residual_at, y_at, inside, keep, scale):
    x = tl.load(x_at, mask=inside).to(tl.float32)
    residual = tl.load(residual_at, mask=inside).to(tl.float32)
    bias = tl.load(bias_at, mask=inside).to(tl.float32)
    y = residual + (x + bias) * tl.where(keep, scale, 0.0)
    tl.store(y_at, y.to(y_at.dtype.element_ty), mask=inside)


@triton.jit
def unaligned_kernel(
    x_ptr,  # (rows, cols), contiguous
    bias_ptr,  # (cols,), contiguous, any floating-point dtype
    residual_ptr,  # as x
    y_ptr,  # as x
    seed_ptr,  # (1,) int64
    cols,
    p,
    scale,  # 1 / (1 - p)
    blocks_in_row,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,  # elements of a vector
):
    # int64 before the multiplication: row * cols passes 2**31 on large tensors.
    program = tl.program_id(0).to(tl.int64)
    row, first = program // blocks_in_row, program % blocks_in_row * BLOCK
    start = row * cols
    before = elements_before(start, VECTOR, True)
    whole = at_vector(cols - before, VECTOR)
    seed = tl.load(seed_ptr)
    place = tl.arange(0, BLOCK)[None, :]
    at = at_vector(start + before + first, VECTOR) + place
    keep = kept(seed, row, before + first, p, 1, BLOCK)
    inside = place < whole - first
    bias_at = bias_ptr + before + first + place
    residual_of_dropped(x_ptr + at, bias_at, residual_ptr + at, y_ptr + at, inside, keep, scale)
    if first == 0:
        col = edge(before, cols, VECTOR)
        residual_of_dropped(
            x_ptr + start + col,
            bias_ptr + col,
            residual_ptr + start + col,
            y_ptr + start + col,
            in_edge(before, whole, cols, VECTOR),
            kept_at(seed, row, start % 4 + col, p, 1, 2 * VECTOR),
            scale,
        )


@triton.jit
def columns_of_rows(
    col,  # (1, BLOCK_COLS)
    keep_from,  # the first of col, which starts a four in each row; None if each element needs its own evaluation
    in_row,
    first_row,
    grad_y_ptr,
    grad_x_ptr,
    sums_ptr,
    seed,
    rows,
    cols,
    p,
    scale,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Write grad_x at these columns of every num_programs(1)-th row starting at first_row, and store its sums."""
    step = tl.num_programs(1)
    sums = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    for first in range(first_row, rows, step * BLOCK_ROWS):
        row = tl.arange(0, BLOCK_ROWS)[:, None].to(tl.int64) * step + first
        inside = (row < rows) & in_row
        if keep_from is not None:
            keep = kept(seed, row, keep_from, p, BLOCK_ROWS, BLOCK_COLS)
            at = at_vector(row * cols + keep_from, VECTOR) + (col - keep_from)
        else:
            keep = kept_at(seed, row, row * cols % 4 + col, p, BLOCK_ROWS, BLOCK_COLS)
            at = row * cols + col
        grad_x = tl.load(grad_y_ptr + at, mask=inside, other=0.0).to(tl.float32) * tl.where(keep, scale, 0.0)
        tl.store(grad_x_ptr + at, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        sums += tl.where(inside, grad_x, 0.0)
    total = tl.sum(sums, axis=0, keep_dims=True).to(sums_ptr.dtype.element_ty)
    tl.store(sums_ptr + tl.program_id(1).to(tl.int64) * cols + col, total, mask=in_row)


@triton.jit
def unaligned_backward_kernel(
    grad_y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    sums_ptr,  # (programs along the rows, cols): sums of the bias's gradient
    seed_ptr,  # (1,) int64
    rows,
    cols,
    p,
    scale,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    VECTOR: tl.constexpr,  # divides the programs along the rows
):
    first_row = tl.program_id(1)
    before = elements_before(first_row.to(tl.int64) * cols, VECTOR, True)
    whole = at_vector(cols - before, VECTOR)
    seed = tl.load(seed_ptr)
    if tl.program_id(0) < tl.num_programs(0) - 1:
        first = tl.program_id(0) * BLOCK_COLS
        place = tl.arange(0, BLOCK_COLS)[None, :]
        columns_of_rows(
            before + first + place, before + first, place < whole - first, first_row,
            grad_y_ptr, grad_x_ptr, sums_ptr, seed, rows, cols, p, scale, BLOCK_ROWS, BLOCK_COLS, VECTOR,
        )  # fmt: skip
    else:
        columns_of_rows(
            edge(before, cols, VECTOR), None, in_edge(before, whole, cols, VECTOR), first_row,
            grad_y_ptr, grad_x_ptr, sums_ptr, seed, rows, cols, p, scale, 4 * BLOCK_ROWS, 2 * VECTOR, VECTOR,
        )  # fmt: skip


def _have_hidden_vectors(*tensors: torch.Tensor) -> bool:
    """Return whether rows contain 16-byte vectors that the compiler cannot see, at the same columns in all tensors."""
    first = tensors[0]
    if first.shape[-1] % 16 == 0 or first.itemsize > 4 or not all(x.is_contiguous() for x in tensors):
        return False
    return first.numel() > 0 and row_vectors(*(as_rows(x) for x in tensors))[0] > 1


@cache
def settings(cols: int, vector: int) -> tuple[int, dict]:
    """Return the forward's number of blocks per row, its constexprs and its launch options."""
    whole = cols // vector * vector
    block = min(4096, max(16, next_power_of_2(whole)))
    while block > 512 and 8 * cdiv(whole, block) * block > 9 * whole:
        block //= 2
    return cdiv(whole, block), {"BLOCK": block, "VECTOR": vector, "num_warps": max(1, block // 512)}


def _compile_arguments(*shape: int, dtype: torch.dtype):
    x = torch.empty(shape, dtype=dtype, device="meta")
    if not _have_hidden_vectors(x):
        return None
    blocks, chosen = settings(shape[-1], 16 // dtype.itemsize)
    seed = torch.empty((), dtype=torch.int64, device="meta")
    return unaligned_kernel, (x, x, x, x, seed, shape[-1], 0.1, scale_of_kept(0.1), blocks), chosen


@tuned(
    "bias_dropout_residual",
    "forward",
    takes=lambda x, bias, residual, seed, p: _have_hidden_vectors(x, residual),
    gain=GAIN,
    compile_arguments=_compile_arguments,
)
def _forward(x, bias, residual, seed, p):
    y = torch.empty_like(x)
    cols = x.shape[-1]
    blocks, chosen = settings(cols, 16 // x.itemsize)
    with torch.cuda.device_of(x):
        unaligned_kernel[(x.numel() // cols * blocks,)](
            x, bias.contiguous(), residual, y, seed, cols, float(p), scale_of_kept(p), blocks, **chosen
        )
    return y


@cache
def backward_settings(rows: int, cols: int, vector: int, sms: int) -> tuple[tuple[int, int], dict]:
    """Return the backward's grid, along columns and rows, and its constexprs. All programs run at once and fill the
    GPU."""
    block_rows, block_cols, warps = 4, 256, 2
    blocks = cdiv(cols // vector * vector, block_cols) + 1
    programs = min(cdiv(rows, block_rows), max(1, 24 // warps * sms // blocks))
    chosen = {"BLOCK_ROWS": block_rows, "BLOCK_COLS": block_cols, "VECTOR": vector, "num_warps": warps}
    return (blocks, cdiv(programs, vector) * vector), chosen


@tuned(
    "bias_dropout_residual",
    "backward",
    takes=lambda grad_y, seed, p, bias_dtype: _have_hidden_vectors(grad_y),
    gain=GAIN,
)
def _backward(grad_y, seed, p, bias_dtype):
    grad_x, cols = like(grad_y), grad_y.shape[-1]
    rows = grad_y.numel() // cols
    grid, chosen = backward_settings(rows, cols, 16 // grad_y.itemsize, multiprocessors(grad_y))
    sums = torch.empty(grid[1], cols, dtype=torch.float32, device=grad_y.device)
    with torch.cuda.device_of(grad_y):
        unaligned_backward_kernel[grid](grad_y, grad_x, sums, seed, rows, cols, float(p), scale_of_kept(p), **chosen)
        (grad_bias,) = sums_of_programs((sums,), (torch.empty(cols, dtype=bias_dtype, device=grad_y.device),))
    return grad_x, grad_bias
