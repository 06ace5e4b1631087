"""softmax of rows beyond 16384 columns, and their gradients: what no program can hold and still leave room for another.

Forward: a row is read twice, once for its maximum and sum, which one pass finds together (kernels/online_softmax.py),
and once more, from its end back to its start, to write y. What was read last is still in the L1 cache, so that memory
sees little of the second read: by an H200's counters 16 % of it at 65536 columns. Two rows of 131072 would be four
times the cache: there one is read at a time and its last 32768 columns stay in registers.

On an H200, bf16, against the better of eager PyTorch and torch.compile: 1.7 times as fast at 32768 columns, 1.9 at
65536, 1.8 at 131072; backward 1.0, 1.5 and 1.2 times. The columns kept give 83 per cent of copy bandwidth, 75 without.
"""

import torch
import triton
import triton.language as tl

from kernels.online_softmax import LOG2_E, absorb, combine


@triton.jit
def softmax_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    cols,
    x_row_stride,
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane
    KEEPS_LAST: tl.constexpr,  # whether the last chunk stays in registers, packed, and is not read again
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row_stride
    y_ptr += row * cols
    CHUNK: tl.constexpr = LANES * EACH
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    last = (tl.cdiv(cols, CHUNK) - 1) * CHUNK
    end = last if KEEPS_LAST else last + CHUNK  # of what is read twice
    peak = tl.full((LANES,), -float("inf"), COMPUTE)
    total = tl.zeros((LANES,), COMPUTE)
    for start in tl.range(0, end, CHUNK):
        col = start + place
        x = tl.load(x_ptr + col, mask=col < cols, other=-float("inf"), eviction_policy="evict_last").to(COMPUTE)
        peak, total = absorb(peak, total, x)
    if KEEPS_LAST:
        col = last + place
        kept = tl.load(x_ptr + col, mask=col < cols, other=-float("inf"), eviction_policy="evict_first")
        peak, total = absorb(peak, total, kept.to(COMPUTE))
    top, total = combine(peak, total)
    shift = tl.log2(total)  # dividing by the total is subtracting its logarithm, and costs no operation more
    if KEEPS_LAST:
        y = tl.exp2((kept.to(COMPUTE) - top) * LOG2_E - shift)
        tl.store(
            y_ptr + last + place, y.to(y_ptr.dtype.element_ty), mask=last + place < cols, eviction_policy="evict_first"
        )
    for back in tl.range(0, end, CHUNK):
        col = end - CHUNK - back + place
        x = tl.load(x_ptr + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        y = tl.exp2((x - top) * LOG2_E - shift)
        # What is written should not drive out of the L1 cache what is still to be read again.
        tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=col < cols, eviction_policy="evict_first")


@triton.jit
def softmax_backward_wide_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    cols: tl.constexpr,  # known to the compiler: where BLOCK_COLS divides it, masks go
    grad_y_row_stride,
    BLOCK_COLS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    grad_y_ptr += row * grad_y_row_stride
    y_ptr += row * cols
    mean = tl.zeros((1,), COMPUTE)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        grad_y = tl.load(grad_y_ptr + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        y = tl.load(y_ptr + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        mean += tl.sum(grad_y * y, axis=0, keep_dims=True)
    last = (tl.cdiv(cols, BLOCK_COLS) - 1) * BLOCK_COLS
    for back in range(0, cols, BLOCK_COLS):
        col = last - back + tl.arange(0, BLOCK_COLS)
        grad_y = tl.load(grad_y_ptr + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        y = tl.load(y_ptr + col, mask=col < cols, eviction_policy="evict_first").to(COMPUTE)
        grad_x = y * (grad_y - mean)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=col < cols)


def settings(cols: int, dtype: torch.dtype) -> dict:
    """Of the forward: two rows of 32 warps a multiprocessor, as much as its L1 cache can have again."""
    keeps_last = cols > 65536 and dtype.itemsize == 2
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    return {
        "LANES": 1024,
        "EACH": 32 if keeps_last else 16,
        "KEEPS_LAST": keeps_last,
        "COMPUTE": compute,
        "num_warps": 32,
    }


def backward_settings(cols: int, dtype: torch.dtype) -> dict:
    """Of the backward: a row of 32768 needs no masks, which leaves registers for 32 warps; chunks of it need 16."""
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    return {"BLOCK_COLS": 32768, "COMPUTE": compute, "num_warps": 32 if cols <= 32768 else 16}


def forward(x: torch.Tensor, y: torch.Tensor) -> None:
    """Write y; x is (rows, cols), columns side by side."""
    rows, cols = x.shape
    softmax_wide_kernel[(rows,)](x, y, cols, x.stride(0), **settings(cols, x.dtype))


def backward(grad_y: torch.Tensor, y: torch.Tensor, grad_x: torch.Tensor) -> None:
    """Write grad_x; grad_y is (rows, cols), columns side by side."""
    rows, cols = grad_y.shape
    softmax_backward_wide_kernel[(rows,)](grad_y, y, grad_x, cols, grad_y.stride(0), **backward_settings(cols, y.dtype))
