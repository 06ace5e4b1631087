"""layer_norm_int8 of rows beyond 16384 columns, which one program cannot hold in registers.

They are read three times, in chunks, twice from L2 while it holds them. What both kernels need to quantise is here too.
"""

import triton
import triton.language as tl

from kernels.rowwise.normalise import with_chunk

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
def layer_norm_int8_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    q_ptr,  # (rows, cols), contiguous, int8
    scale_ptr,  # (rows,), fp32
    cols,
    x_row_stride,
    eps,
    BLOCK_COLS: tl.constexpr,  # a power of two: a row is read in chunks of it
):
    row = tl.program_id(0).to(tl.int64)
    mean = tl.zeros((1,), dtype=tl.float32)
    squares = tl.zeros((1,), dtype=tl.float32)  # the sum of (x - mean)^2 over what was seen
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        # The row is wanted once more: it should outlive in L2 what is only written.
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
        x = x.to(tl.float32)
        mean, squares = with_chunk(mean, squares, x, start, cols, x_ptr.dtype.element_ty.primitive_bitwidth == 16)
    rstd = tl.rsqrt(squares / cols + eps)
    largest = tl.full((1,), LEAST, dtype=tl.float32)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * weight + bias
        here = tl.max(bits_of_magnitude(y), axis=0, keep_dims=True).to(tl.float32, bitcast=True)
        largest = tl.maximum(largest, here, propagate_nan=tl.PropagateNan.ALL)
    tl.store(scale_ptr + row + tl.arange(0, 1), largest / 127.0)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, eviction_policy="evict_first").to(tl.float32)
        weight = tl.load(weight_ptr + col, mask=col < cols).to(tl.float32)
        bias = tl.load(bias_ptr + col, mask=col < cols).to(tl.float32)
        y = (x - mean) * rstd * weight + bias
        tl.store(q_ptr + row * cols + col, to_nearest_int8(y * (127.0 / largest)), mask=col < cols)
