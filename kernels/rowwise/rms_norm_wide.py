"""rms_norm and residual_rms_norm of rows too wide for one program's registers, and rms_norm's gradients of such rows.

Forward, beyond 32768 columns: a row is read twice, in chunks, the second time from L2 while it holds the row. Backward,
beyond 16384 columns, where the sum over rows for the weight no longer fits beside the row: a first kernel reduces each
row to one number more and a second one reads it again, 20 B/element in fp32. Held in registers, a bf16 row of 65536
spills 1032 bytes a thread, and in the backward pass one of 32768 spills 6508; here nothing does: on an H200, bf16,
4096 x 65536 take 352 us, held 948; with a residual 500, held 1336.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import multiprocessors
from kernels.sizes import cdiv


@triton.jit
def rms_norm_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    residual_ptr,  # the same, x's dtype, or None where nothing is added to x
    weight_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    sum_ptr,  # (rows, cols), contiguous, x's dtype: x + residual, or None
    rstd_ptr,  # (rows,), in COMPUTE, or None where no backward pass will ask for it
    cols,
    x_row_stride,
    residual_row_stride,
    eps,
    BLOCK_COLS: tl.constexpr,  # a power of two: a row is read in chunks of it
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((BLOCK_COLS,), dtype=COMPUTE)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        # The row is wanted once more: it should outlive in L2 what is only written.
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
        x = x.to(COMPUTE)
        if residual_ptr is not None:
            x += tl.load(residual_ptr + row * residual_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / cols + eps)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        if residual_ptr is not None:
            x += tl.load(residual_ptr + row * residual_row_stride + col, mask=col < cols).to(COMPUTE)
            tl.store(sum_ptr + row * cols + col, x.to(sum_ptr.dtype.element_ty), mask=col < cols)
        weight = tl.load(weight_ptr + col, mask=col < cols).to(COMPUTE)
        y = x * rstd * weight
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)


@triton.jit
def rms_norm_row_pulls_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), in COMPUTE: 1 / rms of each row, from the forward
    pull_ptr,  # (rows,), in COMPUTE: rstd^2 mean(grad_y weight x)
    cols,
    grad_y_row_stride,
    x_row_stride,
    BLOCK_COLS: tl.constexpr,  # a power of two: a row is read in chunks of it
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    rstd = tl.load(rstd_ptr + row)
    product = tl.zeros((BLOCK_COLS,), dtype=COMPUTE)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        product += grad_y * weight * x
    tl.store(pull_ptr + row, tl.sum(product, axis=0) / cols * rstd * rstd)


@triton.jit
def rms_norm_wide_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), as above
    pull_ptr,  # (rows,), as above
    grad_sum_ptr,  # (rows, cols), contiguous, to be added to grad_x, or None
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs along the second axis of the grid, cols)
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STAGES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    # One program owns some columns of every row that it walks over, so that their sum fits in registers.
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
    grad_weight = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    step = tl.num_programs(1) * BLOCK_ROWS
    for first in tl.range(tl.program_id(1) * BLOCK_ROWS, rows, step, num_stages=STAGES):
        row = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        pull = tl.load(pull_ptr + row, mask=row < rows, other=0.0)
        grad_weight += grad_y * (x * rstd)
        grad_x = rstd * (grad_y * weight - x * pull)
        if grad_sum_ptr is not None:
            grad_x += tl.load(grad_sum_ptr + row * cols + col, mask=inside, other=0.0).to(COMPUTE)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
    total = tl.sum(grad_weight, axis=0, keep_dims=True)
    tl.store(grad_weight_ptr + tl.program_id(1).to(tl.int64) * cols + col, total, mask=col < cols)


def forward(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    y: torch.Tensor,
    total: torch.Tensor | None,
    rstd: torch.Tensor | None,
    eps: float,
) -> None:
    """Write y and, where they are given, x + residual into total and each row's 1 / rms into rstd."""
    rows, cols = x.shape
    strides = x.stride(0), 0 if residual is None else residual.stride(0)
    compute = tl.float64 if x.dtype == torch.float64 else tl.float32
    rms_norm_wide_kernel[(rows,)](
        x, residual, weight, y, total, rstd, cols, *strides, eps, BLOCK_COLS=16384, COMPUTE=compute, num_warps=16
    )


def backward(grad_y, x, weight, rstd, grad_sum: torch.Tensor | None, grad_x) -> torch.Tensor:
    """Write grad_x, (rows, cols), and return sums, (programs, cols), whose own sum is the gradient of weight."""
    rows, cols = x.shape
    block = {"BLOCK_ROWS": 2, "BLOCK_COLS": 1024}
    tiles = cdiv(cols, block["BLOCK_COLS"])
    programs = min(cdiv(rows, block["BLOCK_ROWS"]), cdiv(4 * multiprocessors(x), tiles))
    pull, sums = torch.empty_like(rstd), torch.empty(programs, cols, dtype=rstd.dtype, device=x.device)
    inputs, strides = (grad_y, x, weight, rstd), (grad_y.stride(0), x.stride(0))
    options = {"COMPUTE": tl.float64 if x.dtype == torch.float64 else tl.float32, "num_warps": 4}
    rms_norm_row_pulls_kernel[(rows,)](*inputs, pull, cols, *strides, BLOCK_COLS=4096, **options)
    rms_norm_wide_backward_kernel[(tiles, programs)](
        *inputs, pull, grad_sum, grad_x, sums, rows, cols, *strides, **block, STAGES=3, **options
    )
    return sums
