"""Norms of rows beyond 32768 columns, too wide for registers: layer_norm, and that of x + residual."""

import torch
import triton
import triton.language as tl

from kernels.activations import activate
from kernels.arguments import as_rows, given
from kernels.rowwise.pieces import arithmetic
from kernels.rowwise.wide_rows import (
    load_tiles,
    places,
    read_row,
    scaled,
    settings,
    store_tiles,
)
from kernels.vectors import at_vector, elements_before, vectors_of_rows


@triton.jit
def activated(z, ACT: tl.constexpr, DTYPE: tl.constexpr):
    y = z
    if ACT is not None:
        y = ()
        for i in tl.static_range(len(z)):
            y = y + (activate(z[i], ACT, DTYPE),)
    return y


@triton.jit
def norm_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    residual_ptr,  # the same, x's dtype, or None where nothing is added to x
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,), or None
    y_ptr,  # (rows, cols), contiguous, x's dtype
    sum_ptr,  # (rows, cols), contiguous, x's dtype: x + residual, or None
    rstd_ptr,  # (rows,), in COMPUTE: 1 / sqrt(variance + eps), or None where no backward pass will ask for it
    cols,
    x_row_stride,
    residual_row_stride,
    eps,
    VECTOR: tl.constexpr,  # of rows: kernels/vectors.py
    RAGGED: tl.constexpr,
    LANES: tl.constexpr,  # of tiles: kernels/rowwise/wide_rows.py
    GROUP: tl.constexpr,
    KEPT: tl.constexpr,
    CENTRED: tl.constexpr,  # the mean is subtracted: layer_norm
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * x_row_stride, VECTOR, RAGGED)
    x_ptr += at_vector(row * x_row_stride + lead, VECTOR)
    y_ptr += at_vector(row * cols + lead, VECTOR)
    weight_ptr += lead
    if bias_ptr is not None:
        bias_ptr += lead
    if residual_ptr is not None:
        residual_ptr += at_vector(row * residual_row_stride + lead, VECTOR)
        sum_ptr += at_vector(row * cols + lead, VECTOR)
    mean, variance, end, last, inside, kept = read_row(
        *(x_ptr, residual_ptr, sum_ptr, lead, cols, VECTOR, RAGGED, LANES, GROUP, KEPT, CENTRED, COMPUTE)
    )
    rstd = tl.rsqrt(variance + eps)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd)
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    y = scaled(kept, mean, rstd, weight_ptr, bias_ptr, last, inside, COMPUTE)
    store_tiles(y_ptr, last, inside, activated(y, ACT, DTYPE))
    for back in tl.range(GROUP * LANES, end + GROUP * LANES, GROUP * LANES):
        at = places(end - back, GROUP, LANES, VECTOR)
        x = load_tiles(x_ptr, residual_ptr, at, None, "evict_first", COMPUTE)
        z = scaled(x, mean, rstd, weight_ptr, bias_ptr, at, None, COMPUTE)
        store_tiles(y_ptr, at, None, activated(z, ACT, DTYPE))


def forward(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    y: torch.Tensor,
    total: torch.Tensor | None,
    rstd: torch.Tensor | None,
    eps: float,
    centred: bool,
    act: str | None = None,
) -> None:
    """Write y and, where they are given, x + residual into total and each row's 1 / sqrt(variance + eps) into rstd."""
    rows, cols = x.shape
    of_rows = given(residual=residual, y=y, total=total).values()
    vector, ragged = vectors_of_rows(x, *map(as_rows, of_rows))
    tensors = 1 if residual is None else 2
    strides = x.stride(0), 0 if residual is None else residual.stride(0)
    constants = {"VECTOR": vector, "RAGGED": ragged, "CENTRED": centred, "ACT": act, "COMPUTE": arithmetic(x.dtype)}
    chosen = settings(cols, x.dtype, ragged, tensors)
    norm_wide_kernel[(rows,)](x, residual, weight, bias, y, total, rstd, cols, *strides, eps, **constants, **chosen)
