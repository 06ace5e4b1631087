"""residual_layer_norm of rows beyond 32768 columns, which one program cannot hold in registers.

They are read twice, in chunks, the second time from L2 while it holds them.
"""

import triton
import triton.language as tl

from kernels.rowwise.normalise import with_chunk


@triton.jit
def residual_layer_norm_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    residual_ptr,  # the same, x's dtype
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    sum_ptr,  # (rows, cols), contiguous, x's dtype: x + residual, the next layer's residual
    cols,
    x_row_stride,
    residual_row_stride,
    eps,
    BLOCK_COLS: tl.constexpr,  # a power of two: a row is read in chunks of it
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    mean = tl.zeros((1,), dtype=COMPUTE)
    squares = tl.zeros((1,), dtype=COMPUTE)  # the sum of (s - mean)^2 over what was seen
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        residual = tl.load(residual_ptr + row * residual_row_stride + col, mask=col < cols, other=0.0).to(COMPUTE)
        mean, squares = with_chunk(mean, squares, x + residual, start, cols, EXACT=False)
    rstd = tl.rsqrt(squares / cols + eps)
    for start in range(0, cols, BLOCK_COLS):
        col = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=col < cols).to(COMPUTE)
        residual = tl.load(residual_ptr + row * residual_row_stride + col, mask=col < cols).to(COMPUTE)
        s = x + residual
        tl.store(sum_ptr + row * cols + col, s.to(sum_ptr.dtype.element_ty), mask=col < cols)
        weight = tl.load(weight_ptr + col, mask=col < cols).to(COMPUTE)
        bias = tl.load(bias_ptr + col, mask=col < cols).to(COMPUTE)
        y = (s - mean) * rstd * weight + bias
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)
