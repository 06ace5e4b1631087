"""layer_norm_int8 of rows beyond 32768 columns, 16384 where ragged or in 32 bits; and what both need to quantise.

A row is seen three times: for its mean and variance, for its largest element, and to be quantised, as often from its
end to its start as the other way, so that the L1 cache has what comes next. Memory gives it once.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows
from kernels.rowwise.wide_rows import load_tiles, places, read_row, scaled, settings, store_tiles
from kernels.vectors import at_vector, elements_before, vectors_of_rows

LEAST = tl.constexpr(1e-12)  # the scale of a row of zeros is this over 127, so that nothing divides by zero


@triton.jit
def bits_of_magnitude(y):
    # Magnitudes compare as integers as they do as floats, and NaN comes after infinity: tl.max of floats drops it.
    return tl.abs(y).to(tl.int32, bitcast=True)


@triton.jit
def to_nearest_int8(y):
    # 1.5 * 2^23 + y has no bit below 1: the addition rounds y to an integer, ties to even, and leaves it in the low
    # byte. A conversion instruction would take four times an addition's time.
    return (y + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def quantised(y, inverse):
    q = ()
    for i in tl.static_range(len(y)):
        q = q + (to_nearest_int8(y[i] * inverse),)
    return q


@triton.jit
def layer_norm_int8_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    q_ptr,  # (rows, cols), contiguous, int8
    scale_ptr,  # (rows,), fp32
    cols,
    x_row_stride,
    eps,
    VECTOR: tl.constexpr,  # of rows: kernels/vectors.py
    RAGGED: tl.constexpr,
    LANES: tl.constexpr,  # of tiles: kernels/rowwise/wide_rows.py
    GROUP: tl.constexpr,
    KEPT: tl.constexpr,
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * x_row_stride, VECTOR, RAGGED)
    x_ptr += at_vector(row * x_row_stride + lead, VECTOR)
    q_ptr += at_vector(row * cols + lead, VECTOR)
    weight_ptr, bias_ptr = weight_ptr + lead, bias_ptr + lead
    mean, variance, end, last, inside, kept = read_row(
        *(x_ptr, None, None, lead, cols, VECTOR, RAGGED, LANES, GROUP, KEPT, True, tl.float32)
    )
    rstd = tl.rsqrt(variance + eps)
    y = scaled(kept, mean, rstd, weight_ptr, bias_ptr, last, inside, tl.float32)
    most = tl.zeros((LANES,), tl.int32)
    for i in tl.static_range(KEPT):
        most = tl.maximum(most, tl.where(inside[i], bits_of_magnitude(y[i]), 0))
    for back in tl.range(GROUP * LANES, end + GROUP * LANES, GROUP * LANES):
        at = places(end - back, GROUP, LANES, VECTOR)
        x = load_tiles(x_ptr, None, at, None, "evict_last", tl.float32)
        z = scaled(x, mean, rstd, weight_ptr, bias_ptr, at, None, tl.float32)
        for i in tl.static_range(GROUP):
            most = tl.maximum(most, bits_of_magnitude(z[i]))
    largest = tl.max(most, axis=0)
    if RAGGED:
        largest = tl.maximum(largest, tl.max(tl.where(inside[KEPT], bits_of_magnitude(y[KEPT]), 0)))
    largest = tl.maximum(largest.to(tl.float32, bitcast=True), LEAST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(scale_ptr + row, largest / 127.0)
    inverse = 127.0 / largest
    store_tiles(q_ptr, last, inside, quantised(y, inverse))
    for start in tl.range(0, end, GROUP * LANES):
        at = places(start, GROUP, LANES, VECTOR)
        x = load_tiles(x_ptr, None, at, None, "evict_first", tl.float32)
        z = scaled(x, mean, rstd, weight_ptr, bias_ptr, at, None, tl.float32)
        store_tiles(q_ptr, at, None, quantised(z, inverse))


def forward(x, weight, bias, q: torch.Tensor, scale: torch.Tensor, eps: float) -> None:
    """Write q and scale; x is (rows, cols), columns side by side."""
    rows, cols = x.shape
    vector, ragged = vectors_of_rows(x, as_rows(q))
    # 16 elements of a row to a thread, as they are kept in fp32.
    chosen = settings(cols, x.dtype, ragged) | {"GROUP": x.itemsize, "KEPT": x.itemsize}
    layer_norm_int8_wide_kernel[(rows,)](
        x, weight, bias, q, scale, cols, x.stride(0), eps, VECTOR=vector, RAGGED=ragged, **chosen
    )
