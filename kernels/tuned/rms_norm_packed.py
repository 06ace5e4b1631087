"""RMSNorm of rows of 10241 to 32768 columns of 16 bits, held in registers two elements to each, as they were loaded.

The plain kernel holds a row in fp32, in twice as many registers, which leaves none for another row's loads. It serves
more rows than the GPU has SMs, which begin and end at multiples of 16 bytes. On an H200, bf16, us (plain): 10923 x
12288 133 (140), 4681 x 28672 134 (153), 4096 x 32768 135 (146).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_rows, cdiv, multiprocessors
from kernels.op import like
from kernels.rowwise.rms_norm import one_per_row
from kernels.tuned.packed import halves, join_halves, opaque_zero
from kernels.tuned.segments import VECTOR_BYTES, row_vectors
from kernels.variants import tuned

MIN_COLUMNS, MAX_COLUMNS = 10241, 32768
LANES, WARPS = 2048, 16  # words of a tile: 16 bytes per thread
GAIN = "1.05x at 10923 x 12288, 1.14x at 4681 x 28672, 1.08x at 4096 x 32768 (H200, bf16)"


@triton.jit
def rms_norm_packed_kernel(
    x_ptr,  # (rows, cols), rows and their stride whole vectors of 16 bytes, unit column stride, 16 bits per element
    weight_ptr,  # (cols,), 16 bits per element
    y_ptr,  # (rows, cols), contiguous, x's dtype
    rstd_ptr,  # (rows,), fp32, or None without a backward pass
    words,  # of a row, two elements each
    x_row_stride,  # in elements
    eps,
    LANES: tl.constexpr,  # words of a tile
    HELD: tl.constexpr,  # tiles of a row
    FULL: tl.constexpr,  # of them, those that are full in every row
):
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr.to(tl.pointer_type(tl.int32)) + row * x_row_stride // 8 * 4
    y_row = y_ptr.to(tl.pointer_type(tl.int32)) + row * (2 * words) // 8 * 4
    weight_row = weight_ptr.to(tl.pointer_type(tl.int32))
    whole = words // 4 * 4  # as it is, so that the compiler sees whole vectors
    lane = tl.max_contiguous(tl.multiple_of(tl.arange(0, LANES), 4), 4)
    squares = tl.zeros((LANES,), tl.float32)
    x = ()
    for i in tl.static_range(HELD):
        at = i * LANES + lane
        x = x + (tl.load(x_row + at, mask=None if i < FULL else at < whole, other=None if i < FULL else 0),)
        low, high = halves(x[i], 0, DTYPE)
        squares += low * low + high * high
    rstd = tl.rsqrt(tl.sum(squares) / (2 * words) + eps)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd)
    zero = opaque_zero(rstd, words)
    for i in tl.static_range(HELD):
        at = i * LANES + lane
        weight = tl.load(weight_row + at, mask=None if i < FULL else at < whole)
        weight_low, weight_high = halves(weight, 0, weight_ptr.dtype.element_ty)
        low, high = halves(x[i], zero, DTYPE)
        y = join_halves(low * rstd * weight_low, high * rstd * weight_high, DTYPE)
        tl.store(y_row + at, y, mask=None if i < FULL else at < whole)


def _takes(x: Tensor, weight: Tensor, eps: float) -> bool:
    """Return whether rows are whole vectors of 16-bit elements, the weight's too, and more than the GPU has SMs.

    16384 columns fill one block of the plain kernel, which is as fast.
    """
    cols = x.shape[-1]
    if not (MIN_COLUMNS <= cols <= MAX_COLUMNS and cols != 16384 and x.itemsize == weight.itemsize == 2):
        return False
    rows = as_rows(x)
    aligned = row_vectors(rows) == (VECTOR_BYTES // 2, False) and weight.data_ptr() % VECTOR_BYTES == 0
    return aligned and rows.shape[0] > multiprocessors(x)


def _launch(x: Tensor, weight: Tensor, rstd: Tensor | None, eps: float) -> Tensor:
    y, x = like(x), as_rows(x)
    rows, cols = x.shape
    tiles = {"LANES": LANES, "HELD": cdiv(cols, 2 * LANES), "FULL": cols // (2 * LANES)}
    with torch.cuda.device_of(x):
        rms_norm_packed_kernel[(rows,)](
            *(x, weight.contiguous(), y, rstd, cols // 2, x.stride(0), eps), **tiles, num_warps=WARPS, maxnreg=64
        )
    return y


@tuned("rms_norm", "forward", takes=_takes, gain=GAIN)
def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return y."""
    return _launch(x, weight, None, eps)


@tuned("rms_norm", "training", takes=_takes, gain=GAIN)
def training(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return y and 1 / rms of each row."""
    rstd = one_per_row(x)
    return _launch(x, weight, rstd, eps), rstd
