"""RMSNorm of rows, or of x + residual, that are shared by a cluster of programs: kernels/rowwise/clusters.py."""

import torch
import triton
import triton.language as tl

from kernels.rowwise.clusters import launch_of, load, parts_of, store, total_of_all, words_of
from kernels.rowwise.packed import halves, zero_after


@triton.jit
def rms_norm_cluster_kernel(
    x_ptr,  # (rows, cols), rows and their stride whole vectors of 16 bytes, unit column stride, 16 bits an element
    residual_ptr,  # the same, x's dtype, or None where nothing is added to x
    weight_ptr,  # (cols,), 16 bits an element
    y_ptr,  # (rows, cols), contiguous, x's dtype
    sum_ptr,  # (rows, cols), contiguous, x's dtype: x + residual, or None
    rstd_ptr,  # (rows,), fp32: 1 / sqrt(mean square + eps), or None where no backward pass will ask for it
    parts_ptr,  # (rows, CTAS), fp32
    words,
    x_row_stride,
    residual_row_stride,
    eps,
    SHAPE: tl.constexpr,
):
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    CTAS: tl.constexpr = SHAPE[0]
    row = tl.program_id(0).to(tl.int64)
    parts_ptr += row * CTAS
    x = load(words_of(x_ptr, row, x_row_stride), words, 0, SHAPE, "evict_first")
    if residual_ptr is not None:
        residual = load(words_of(residual_ptr, row, residual_row_stride), words, 0, SHAPE, "evict_first")
    squares = tl.zeros((CTAS,), tl.float32)
    s = ()
    for i in tl.static_range(len(x)):
        low, high = halves(x[i], 0, DTYPE)
        if residual_ptr is not None:
            more_low, more_high = halves(residual[i], 0, DTYPE)
            low, high = low + more_low, high + more_high
            s = s + ((low, high),)
            store(words_of(sum_ptr, row, 2 * words), words, i, low, high, DTYPE, SHAPE)
        squares += tl.sum(low * low + high * high, axis=1)
    rstd = tl.rsqrt(total_of_all(parts_ptr, squares) / (2 * words) + eps)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd)
    zero = zero_after(rstd, words)
    weight = load(words_of(weight_ptr, 0, 0), words, 0, SHAPE, "evict_last")
    for i in tl.static_range(len(x)):
        if residual_ptr is not None:
            low, high = s[i]
        else:
            low, high = halves(x[i], zero, DTYPE)
        weight_low, weight_high = halves(weight[i], 0, weight_ptr.dtype.element_ty)
        low, high = low * rstd * weight_low, high * rstd * weight_high
        store(words_of(y_ptr, row, 2 * words), words, i, low, high, DTYPE, SHAPE)


def forward(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    y: torch.Tensor,
    total: torch.Tensor | None,
    rstd: torch.Tensor | None,
    eps: float,
) -> None:
    """Write y, and where they are given x + residual into total and 1 / sqrt(mean square + eps) into rstd.

    All are (rows, cols), which clusters.take took; weight is (cols,), 16 bits an element, aligned to 16 bytes.
    """
    (rows, cols), chosen = x.shape, launch_of(x.shape[-1], sums=residual is not None)
    parts = parts_of(rows, chosen, 1, x.device)
    strides = x.stride(0), 0 if residual is None else residual.stride(0)
    tensors = x, residual, weight, y, total, rstd, parts
    rms_norm_cluster_kernel[(rows,)](*tensors, cols // 2, *strides, eps, **chosen)
