"""softmax of rows shared by a cluster of programs, and its gradients: kernels/rowwise/clusters.py.

Each CTA finds the maximum of its part, and the sum of exponentials under it; a row's are the largest of the maxima, and
the sums brought to it. The gradients need one sum.
"""

import torch
import triton
import triton.language as tl

from kernels.online_softmax import LOG2_E
from kernels.rowwise.clusters import launch_of, load, meet, parts_of, store, tell, told, total_of_all, words_of
from kernels.rowwise.packed import halves, joined, zero_after


@triton.jit
def softmax_cluster_kernel(
    x_ptr,  # (rows, cols), rows and their stride whole vectors of 16 bytes, unit column stride, 16 bits an element
    y_ptr,  # (rows, cols), contiguous, x's dtype
    parts_ptr,  # (rows, 2, CTAS), fp32
    words,  # of a row
    x_row_stride,  # in elements
    SHAPE: tl.constexpr,  # kernels/rowwise/clusters.py
):
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    CTAS: tl.constexpr = SHAPE[0]
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    parts_ptr += row * (2 * CTAS)
    lowest = tl.full((1, 1), -float("inf"), tl.float32)
    x = load(words_of(x_ptr, row, x_row_stride), words, joined(lowest, lowest, DTYPE), SHAPE, "evict_first")
    top = tl.full((CTAS,), -float("inf"), tl.float32)
    for i in tl.static_range(len(x)):
        low, high = halves(x[i], 0, DTYPE)
        top = tl.maximum(top, tl.max(tl.maximum(low, high), axis=1))
    base = tl.where(top == -float("inf"), 0.0, top)  # a part of nothing but -inf would compute -inf - -inf
    zero = zero_after(base, words)[:, None]
    total = tl.zeros((CTAS,), tl.float32)
    for i in tl.static_range(len(x)):
        low, high = halves(x[i], zero, DTYPE)
        low, high = tl.exp2((low - base[:, None]) * LOG2_E), tl.exp2((high - base[:, None]) * LOG2_E)
        total += tl.sum(low + high, axis=1)
    tell(parts_ptr, top)
    tell(parts_ptr + CTAS, total)
    meet()
    tops, totals = told(parts_ptr, CTAS), told(parts_ptr + CTAS, CTAS)
    top = tops[0]
    for i in tl.static_range(1, CTAS):
        top = tl.maximum(top, tops[i])
    total = 0.0
    for i in tl.static_range(CTAS):
        total += totals[i] * tl.exp2((tops[i] - top) * LOG2_E)
    shift = tl.log2(total)
    zero = zero_after(shift, words)
    for i in tl.static_range(len(x)):
        low, high = halves(x[i], zero, DTYPE)
        low, high = tl.exp2((low - top) * LOG2_E - shift), tl.exp2((high - top) * LOG2_E - shift)
        store(words_of(y_ptr, row, 2 * words), words, i, low, high, DTYPE, SHAPE)


@triton.jit
def softmax_backward_cluster_kernel(
    grad_y_ptr,  # (rows, cols), rows and their stride whole vectors of 16 bytes, unit column stride, 16 bits an element
    y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    parts_ptr,  # (rows, CTAS), fp32
    words,
    grad_y_row_stride,
    SHAPE: tl.constexpr,
):
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    CTAS: tl.constexpr = SHAPE[0]
    row = tl.program_id(0).to(tl.int64)
    parts_ptr += row * CTAS
    grad_y = load(words_of(grad_y_ptr, row, grad_y_row_stride), words, 0, SHAPE, "evict_first")
    y = load(words_of(y_ptr, row, 2 * words), words, 0, SHAPE, "evict_first")
    mean = tl.zeros((CTAS,), tl.float32)
    for i in tl.static_range(len(y)):
        low, high = halves(y[i], 0, DTYPE)
        grad_low, grad_high = halves(grad_y[i], 0, DTYPE)
        mean += tl.sum(low * grad_low + high * grad_high, axis=1)
    mean = total_of_all(parts_ptr, mean)
    zero = zero_after(mean, words)
    for i in tl.static_range(len(y)):
        low, high = halves(y[i], zero, DTYPE)
        grad_low, grad_high = halves(grad_y[i], zero, DTYPE)
        low, high = low * (grad_low - mean), high * (grad_high - mean)
        store(words_of(grad_x_ptr, row, 2 * words), words, i, low, high, DTYPE, SHAPE)


def forward(x: torch.Tensor, y: torch.Tensor) -> None:
    """Write y; both are (rows, cols), which clusters.take took."""
    (rows, cols), chosen = x.shape, launch_of(x.shape[-1])
    parts = parts_of(rows, chosen, 2, x.device)
    softmax_cluster_kernel[(rows,)](x, y, parts, cols // 2, x.stride(0), **chosen)


def backward(grad_y: torch.Tensor, y: torch.Tensor, grad_x: torch.Tensor) -> None:
    """Write grad_x; all are (rows, cols), which clusters.take took."""
    (rows, cols), chosen = grad_y.shape, launch_of(grad_y.shape[-1])
    parts = parts_of(rows, chosen, 1, y.device)
    softmax_backward_cluster_kernel[(rows,)](grad_y, y, grad_x, parts, cols // 2, grad_y.stride(0), **chosen)
