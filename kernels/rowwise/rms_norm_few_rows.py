"""The backward pass of rms_norm for at most MOST_ROWS rows, and no more than the GPU has SMs, of up to 16384 columns.

There time goes to launches. One launch holds the programs for the rows' gradients and those for the sums over rows,
which need nothing from each other: 20 B/element in fp32 asked for, of which L2 serves what was read before. On an H200,
bf16, 128 rows of 8192 take 6.5 us, torch.compile's launches 10.2; in two launches of our own they took 9.0 to 10.3.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, cdiv, given
from kernels.rowwise.pieces import (
    along,
    arithmetic,
    blocks,
    columns_inside,
    load_columns,
    load_pieces,
    pieces_of,
    pointers,
    row_sum,
)
from kernels.vectors import elements_before

MOST_ROWS = 128  # of which one program holds 64 columns in registers


@triton.jit
def rms_norm_few_rows_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), in COMPUTE: 1 / rms of each row, from the forward
    grad_sum_ptr,  # (rows, cols), contiguous, to be added to grad_x, or None
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (cols,), weight's dtype
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    PIECES: tl.constexpr,  # of a row: kernels/rowwise/pieces.py
    BLOCK_ROWS: tl.constexpr,  # a power of two, at least rows
    BLOCK_COLS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    # The first programs own a row each, the others some columns of all rows; none waits for another.
    program = tl.program_id(0).to(tl.int64)
    if program < rows:
        lead = elements_before(program * x_row_stride, PIECES[2], PIECES[3])
        inside = columns_inside(lead, cols, PIECES)
        x = load_pieces(pointers(x_ptr, program * x_row_stride, lead, cols, PIECES), inside, True, 0.0)
        at = pointers(grad_y_ptr, program * grad_y_row_stride, lead, cols, PIECES)
        grad_y = load_pieces(at, inside, True, 0.0)
        weight = load_columns(along(weight_ptr, lead, cols, PIECES), inside)
        rstd = tl.load(rstd_ptr + program)
        product = ()
        for i in tl.static_range(len(x)):
            product = product + (grad_y[i].to(COMPUTE) * x[i].to(COMPUTE) * weight[i].to(COMPUTE),)
        pull = row_sum(product) / cols * rstd * rstd
        out = pointers(grad_x_ptr, program * cols, lead, cols, PIECES)
        for i in tl.static_range(len(x)):
            grad_x = rstd * (grad_y[i].to(COMPUTE) * weight[i].to(COMPUTE) - x[i].to(COMPUTE) * pull)
            if grad_sum_ptr is not None:
                also = pointers(grad_sum_ptr, program * cols, lead, cols, PIECES)
                grad_x += tl.load(also[i], mask=inside[i], other=0.0).to(COMPUTE)
            tl.store(out[i], grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside[i])
    else:
        tile_rows = tl.arange(0, BLOCK_ROWS)[:, None].to(tl.int64)
        tile_cols = (program - rows) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
        of_tile = (tile_rows < rows) & (tile_cols < cols)
        xs = tl.load(x_ptr + tile_rows * x_row_stride + tile_cols, mask=of_tile, other=0.0).to(COMPUTE)
        grads = tl.load(grad_y_ptr + tile_rows * grad_y_row_stride + tile_cols, mask=of_tile, other=0.0)
        rstds = tl.load(rstd_ptr + tile_rows, mask=tile_rows < rows, other=0.0)
        total = tl.sum(grads.to(COMPUTE) * (xs * rstds), axis=0, keep_dims=True)
        tl.store(grad_weight_ptr + tile_cols, total.to(grad_weight_ptr.dtype.element_ty), mask=tile_cols < cols)


@cache
def launch_of(rows: int, cols: int) -> tuple[int, dict]:
    """How many programs and their settings: a row in the registers of 8 warps, the widest in those of 16."""
    warps = 8 if sum(blocks(cols)) <= 8192 else 16
    return rows + cdiv(cols, 64), {"BLOCK_ROWS": MOST_ROWS, "BLOCK_COLS": 64, "num_warps": warps}


def backward(grad_y, x, weight, rstd, grad_sum: torch.Tensor | None, grad_x) -> torch.Tensor:
    """Write grad_x, (rows, cols), and return the gradient of weight; columns of grad_y and x are side by side."""
    rows, cols = x.shape
    grad_weight = torch.empty_like(weight)
    rows_read = x, grad_y, *map(as_rows, given(grad_sum=grad_sum, grad_x=grad_x).values())
    programs, chosen = launch_of(rows, cols)
    rms_norm_few_rows_backward_kernel[(programs,)](
        *(grad_y, x, weight, rstd, grad_sum, grad_x, grad_weight, rows, cols, grad_y.stride(0), x.stride(0)),
        PIECES=pieces_of(*rows_read),
        COMPUTE=arithmetic(x.dtype),
        **chosen,
    )
    return grad_weight
