"""softmax of rows beyond 16384 columns, and gradients of rows beyond 64 KB: what leaves no room for another program.

Forward: a row is read twice, once for its maximum and sum, which one pass finds together (kernels/online_softmax.py),
and once more, from its end back to its start, to write y. What was read last is still in the L1 cache, so that memory
sees little of the second read: by an H200's counters 16 % of it at 65536 columns. Two rows of 131072 would be four
times the cache: there one is read at a time and its last 32768 columns stay in registers.

The columns kept give 83 per cent of copy bandwidth at 131072 columns on an H200, 75 without.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows
from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.rowwise.pieces import arithmetic
from kernels.vectors import at_vector, elements_before, inside_rim, rim, vectors_of_rows


@triton.jit
def softmax_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    cols,
    x_row_stride,
    VECTOR: tl.constexpr,  # elements of a vector of 16 bytes, and whether rows begin or end within one:
    RAGGED: tl.constexpr,  # kernels/vectors.py
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane
    KEEPS_LAST: tl.constexpr,  # whether the last chunk stays in registers, packed, and is not read again
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * x_row_stride, VECTOR, RAGGED)
    whole = at_vector(cols - lead, VECTOR)
    x_first = x_ptr + at_vector(row * x_row_stride + lead, VECTOR)
    y_first = y_ptr + at_vector(row * cols + lead, VECTOR)
    CHUNK: tl.constexpr = LANES * EACH
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    last = (tl.cdiv(whole, CHUNK) - 1) * CHUNK
    end = last if KEEPS_LAST else last + CHUNK  # of what is read twice
    peak = tl.full((LANES,), -float("inf"), COMPUTE)
    total = tl.zeros((LANES,), COMPUTE)
    for start in tl.range(0, end, CHUNK):
        at = start + place
        x = tl.load(x_first + at, mask=at < whole, other=-float("inf"), eviction_policy="evict_last").to(COMPUTE)
        peak, total = absorb(peak, total, x)
    if KEEPS_LAST:
        at = last + place
        kept = tl.load(x_first + at, mask=at < whole, other=-float("inf"), eviction_policy="evict_first")
        peak, total = absorb(peak, total, kept.to(COMPUTE))
    top, total = combine(peak, total)
    if RAGGED:
        col, inside = rim(lead, cols, VECTOR), inside_rim(lead, whole, cols, VECTOR)
        x_rim = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=-float("inf")).to(COMPUTE)
        higher = tl.maximum(top, tl.max(x_rim))
        total = tl.where(top == -float("inf"), 0.0, total)  # where the rim alone is finite
        total = total * tl.exp2((top - higher) * LOG2_E) + tl.sum(tl.exp2((x_rim - higher) * LOG2_E))
        top = higher
    shift = tl.log2(total)  # dividing by the total is subtracting its logarithm, and costs no operation more
    if RAGGED:
        y_rim = tl.exp2((x_rim - top) * LOG2_E - shift)
        tl.store(y_ptr + row * cols + col, y_rim.to(y_ptr.dtype.element_ty), mask=inside)
    if KEEPS_LAST:
        y = tl.exp2((kept.to(COMPUTE) - top) * LOG2_E - shift)
        at = last + place
        tl.store(y_first + at, y.to(y_ptr.dtype.element_ty), mask=at < whole, eviction_policy="evict_first")
    for back in tl.range(0, end, CHUNK):
        at = end - CHUNK - back + place
        x = tl.load(x_first + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
        y = tl.exp2((x - top) * LOG2_E - shift)
        # What is written should not drive out of the L1 cache what is still to be read again.
        tl.store(y_first + at, y.to(y_ptr.dtype.element_ty), mask=at < whole, eviction_policy="evict_first")


@triton.jit
def softmax_backward_wide_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    cols,
    grad_y_row_stride,
    VECTOR: tl.constexpr,
    RAGGED: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * cols, VECTOR, RAGGED)
    whole = at_vector(cols - lead, VECTOR)
    grad_y_first = grad_y_ptr + at_vector(row * grad_y_row_stride + lead, VECTOR)
    offset = at_vector(row * cols + lead, VECTOR)
    CHUNK: tl.constexpr = LANES * EACH
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    sums = tl.zeros((LANES,), COMPUTE)
    for start in tl.range(0, whole, CHUNK):
        at = start + place
        grad_y = tl.load(grad_y_first + at, mask=at < whole, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        y = tl.load(y_ptr + offset + at, mask=at < whole, other=0.0, eviction_policy="evict_last").to(COMPUTE)
        sums += tl.sum(grad_y * y, axis=1)
    mean = tl.sum(sums, axis=0)
    if RAGGED:
        col, inside = rim(lead, cols, VECTOR), inside_rim(lead, whole, cols, VECTOR)
        grad_y_rim = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        y_rim = tl.load(y_ptr + row * cols + col, mask=inside, other=0.0).to(COMPUTE)
        mean += tl.sum(grad_y_rim * y_rim)
        grad_x_rim = (y_rim * (grad_y_rim - mean)).to(grad_x_ptr.dtype.element_ty)
        tl.store(grad_x_ptr + row * cols + col, grad_x_rim, mask=inside)
    end = tl.cdiv(whole, CHUNK) * CHUNK
    for back in tl.range(0, end, CHUNK):
        at = end - CHUNK - back + place
        grad_y = tl.load(grad_y_first + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
        y = tl.load(y_ptr + offset + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
        grad_x = (y * (grad_y - mean)).to(grad_x_ptr.dtype.element_ty)
        tl.store(grad_x_ptr + offset + at, grad_x, mask=at < whole, eviction_policy="evict_first")


def settings(cols: int, dtype: torch.dtype) -> dict:
    """Of the forward: as many rows at once on an SM as its L1 cache can have again, and at least 32 warps."""
    lanes, keeps_last = 512 if cols <= 32768 else 1024, cols > 65536 and dtype.itemsize == 2
    return {"LANES": lanes, "EACH": 32 if keeps_last else 16, "KEEPS_LAST": keeps_last, "num_warps": lanes // 32}


def backward_settings(cols: int, dtype: torch.dtype) -> dict:
    """Of the backward."""
    return {"LANES": 1024, "EACH": 32 if dtype.itemsize == 2 else 16, "num_warps": 32}


def forward(x: torch.Tensor, y: torch.Tensor) -> None:
    """Write y; x is (rows, cols), columns side by side."""
    rows, cols = x.shape
    vector, ragged = vectors_of_rows(x, as_rows(y))
    chosen = settings(cols, x.dtype)
    softmax_wide_kernel[(rows,)](x, y, cols, x.stride(0), vector, ragged, COMPUTE=arithmetic(x.dtype), **chosen)


def backward(grad_y: torch.Tensor, y: torch.Tensor, grad_x: torch.Tensor) -> None:
    """Write grad_x; grad_y is (rows, cols), columns side by side."""
    rows, cols = grad_y.shape
    vector, ragged = vectors_of_rows(grad_y, as_rows(y), as_rows(grad_x))
    softmax_backward_wide_kernel[(rows,)](
        *(grad_y, y, grad_x, cols, grad_y.stride(0), vector, ragged),
        COMPUTE=arithmetic(y.dtype),
        **backward_settings(cols, y.dtype),
    )
