"""softmax_dropout of rows beyond 16384 columns, and their gradients, which held in one program's registers would spill.

A row is read twice, as in softmax_wide.py, and its mask computed at the second read; in the backward pass at both.
Held, the gradient of 32768 columns spills 512 bytes a thread and the forward of 65536 spills 776; here nothing does:
on an H200, bf16, 8192 x 32768 take 486 us, held 524; 4096 x 65536 take 469, held 916.
"""

import torch
import triton
import triton.language as tl

from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.philox import kept


@triton.jit
def softmax_dropout_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    sums_ptr,  # (rows, 2) COMPUTE: maximum, log2 of the sum; or None where no backward pass will ask for them
    seed_ptr,  # (1,) int64
    cols,
    x_row_stride,
    p,
    scale,  # 1 / (1 - p)
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row_stride
    CHUNK: tl.constexpr = LANES * EACH
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    peak = tl.full((LANES,), -float("inf"), COMPUTE)
    total = tl.zeros((LANES,), COMPUTE)
    for start in tl.range(0, cols, CHUNK):
        col = start + place
        x = tl.load(x_ptr + col, mask=col < cols, other=-float("inf"), eviction_policy="evict_last").to(COMPUTE)
        peak, total = absorb(peak, total, x)
    top, total = combine(peak, total)
    if sums_ptr is not None:
        tl.store(sums_ptr + 2 * row, top)
        tl.store(sums_ptr + 2 * row + 1, tl.log2(total))
    seed = tl.load(seed_ptr)
    last = (tl.cdiv(cols, CHUNK) - 1) * CHUNK
    for back in tl.range(0, cols, CHUNK):
        first_col = last - back
        col = first_col + tl.arange(0, CHUNK)[None, :]
        x = tl.load(x_ptr + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        mask = kept(seed, row + tl.zeros((1, 1), tl.int64), first_col, p, 1, CHUNK)
        y = tl.exp2((x - top) * LOG2_E) * tl.where(mask, scale / total, 0.0 / total)
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols, eviction_policy="evict_first")


@triton.jit
def softmax_dropout_backward_wide_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    sums_ptr,  # (rows, 2) COMPUTE
    seed_ptr,  # (1,) int64
    grad_x_ptr,  # (rows, cols), contiguous
    cols,
    grad_y_row_stride,
    x_row_stride,
    p,
    scale,
    BLOCK_COLS: tl.constexpr,  # of a chunk
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    grad_y_ptr += row * grad_y_row_stride
    x_ptr += row * x_row_stride
    top, log_total = tl.load(sums_ptr + 2 * row), tl.load(sums_ptr + 2 * row + 1)
    seed = tl.load(seed_ptr)
    rows = row + tl.zeros((1, 1), tl.int64)
    mean = tl.zeros((1, BLOCK_COLS), COMPUTE)
    for start in tl.range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)[None, :]
        grad_y = tl.load(grad_y_ptr + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        x = tl.load(x_ptr + col, mask=col < cols, other=-float("inf"), eviction_policy="evict_last").to(COMPUTE)
        factor = tl.where(kept(seed, rows, start, p, 1, BLOCK_COLS), scale, 0.0)
        mean += tl.exp2((x - top) * LOG2_E - log_total) * grad_y * factor
    mean = tl.sum(mean)
    last = (tl.cdiv(cols, BLOCK_COLS) - 1) * BLOCK_COLS
    for back in tl.range(0, cols, BLOCK_COLS):
        first_col = last - back
        col = first_col + tl.arange(0, BLOCK_COLS)[None, :]
        grad_y = tl.load(grad_y_ptr + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        x = tl.load(x_ptr + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        factor = tl.where(kept(seed, rows, first_col, p, 1, BLOCK_COLS), scale, 0.0)
        grad_x = tl.exp2((x - top) * LOG2_E - log_total) * (grad_y * factor - mean)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=col < cols)


def settings(dtype: torch.dtype) -> dict:
    """Of the forward: softmax's, with registers left for Philox."""
    return {"LANES": 1024, "EACH": 8, "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32, "num_warps": 32}


def backward_settings(dtype: torch.dtype) -> dict:
    """Of the backward: chunks of 8 elements a thread."""
    return {"BLOCK_COLS": 8192, "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32, "num_warps": 32}


def forward(
    x: torch.Tensor, y: torch.Tensor, sums: torch.Tensor | None, seed: torch.Tensor, p: float, scale: float
) -> None:
    """Write y and, where it is given, sums; x is (rows, cols), columns side by side."""
    rows, cols = x.shape
    softmax_dropout_wide_kernel[(rows,)](x, y, sums, seed, cols, x.stride(0), p, scale, **settings(x.dtype))


def backward(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    sums: torch.Tensor,
    seed: torch.Tensor,
    grad_x: torch.Tensor,
    p: float,
    scale: float,
) -> None:
    """Write grad_x; grad_y and x are (rows, cols), columns side by side."""
    rows, cols = x.shape
    strides = grad_y.stride(0), x.stride(0)
    softmax_dropout_backward_wide_kernel[(rows,)](
        grad_y, x, sums, seed, grad_x, cols, *strides, p, scale, **backward_settings(x.dtype)
    )
