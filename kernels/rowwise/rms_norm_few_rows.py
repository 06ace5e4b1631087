"""The backward pass of rms_norm for at most MOST_ROWS rows, and no more than the GPU has SMs, of up to 16384 columns.

There time goes to launches. One launch holds the programs for the rows' gradients and those for the sums over rows,
which need nothing from each other: 20 B/element in fp32 asked for, of which L2 serves what was read before. On an H200,
bf16, 128 rows of 8192 take 6.5 us, torch.compile's launches 10.2; in two launches of our own they took 9.0 to 10.3.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.sizes import cdiv, next_power_of_2

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
    WHOLE_ROW: tl.constexpr,  # a power of two, at least cols
    BLOCK_ROWS: tl.constexpr,  # a power of two, at least rows
    BLOCK_COLS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    # The first programs own a row each, the others some columns of all rows; none waits for another.
    program = tl.program_id(0).to(tl.int64)
    if program < rows:
        col = tl.arange(0, WHOLE_ROW)
        x = tl.load(x_ptr + program * x_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + program * grad_y_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        rstd = tl.load(rstd_ptr + program)
        pull = tl.sum(grad_y * weight * x, axis=0) / cols * rstd * rstd
        grad_x = rstd * (grad_y * weight - x * pull)
        if grad_sum_ptr is not None:
            grad_x += tl.load(grad_sum_ptr + program * cols + col, mask=col < cols, other=0.0).to(COMPUTE)
        tl.store(grad_x_ptr + program * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=col < cols)
    else:
        rows_of_tile = tl.arange(0, BLOCK_ROWS)[:, None].to(tl.int64)
        cols_of_tile = (program - rows) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
        inside = (rows_of_tile < rows) & (cols_of_tile < cols)
        xs = tl.load(x_ptr + rows_of_tile * x_row_stride + cols_of_tile, mask=inside, other=0.0).to(COMPUTE)
        grads = tl.load(grad_y_ptr + rows_of_tile * grad_y_row_stride + cols_of_tile, mask=inside, other=0.0)
        rstds = tl.load(rstd_ptr + rows_of_tile, mask=rows_of_tile < rows, other=0.0)
        total = tl.sum(grads.to(COMPUTE) * (xs * rstds), axis=0, keep_dims=True)
        tl.store(grad_weight_ptr + cols_of_tile, total.to(grad_weight_ptr.dtype.element_ty), mask=cols_of_tile < cols)


@cache
def settings(cols: int, dtype: torch.dtype) -> dict:
    """Launch settings for rows of `cols` elements: a row in the registers of 8 warps, the widest in those of 16."""
    whole_row = next_power_of_2(cols)
    return {
        "WHOLE_ROW": whole_row,
        "BLOCK_ROWS": MOST_ROWS,
        "BLOCK_COLS": 64,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": 8 if whole_row <= 8192 else 16,
    }


def backward(grad_y, x, weight, rstd, grad_sum: torch.Tensor | None, grad_x) -> torch.Tensor:
    """Write grad_x, (rows, cols), and return the gradient of weight; columns of grad_y and x are side by side."""
    rows, cols = x.shape
    grad_weight = torch.empty_like(weight)
    chosen = settings(cols, x.dtype)
    rms_norm_few_rows_backward_kernel[(rows + cdiv(cols, chosen["BLOCK_COLS"]),)](
        grad_y, x, weight, rstd, grad_sum, grad_x, grad_weight, rows, cols, grad_y.stride(0), x.stride(0), **chosen
    )
    return grad_weight
