"""RMSNorm of rows of 10241 to 32768 columns of 16 bits, held in registers two elements to each, as they were loaded.

In fp32 a row takes twice the room, which is then not there for another row's loads. On an H200, bf16, us (in fp32):
10923 x 12288 take 132 (142), 7282 x 18432 133 (145), 4681 x 28672 134 (145), 4096 x 32768 135 (141).
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import cdiv
from kernels.rowwise.packed import halves, joined, zero_after
from kernels.vectors import VECTOR_BYTES

NARROWEST, WIDEST = 10240, 32768  # columns: more than the one, at most the other
LANES, WARPS = 2048, 16  # words of a tile: 16 bytes a thread


@triton.jit
def rms_norm_packed_kernel(
    x_ptr,  # (rows, cols), rows and their stride whole vectors of 16 bytes, unit column stride, 16 bits an element
    weight_ptr,  # (cols,), 16 bits an element
    y_ptr,  # (rows, cols), contiguous, x's dtype
    rstd_ptr,  # (rows,), fp32, or None where no backward pass will ask for it
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
    zero = zero_after(rstd, words)
    for i in tl.static_range(HELD):
        at = i * LANES + lane
        weight = tl.load(weight_row + at, mask=None if i < FULL else at < whole)
        weight_low, weight_high = halves(weight, 0, weight_ptr.dtype.element_ty)
        low, high = halves(x[i], zero, DTYPE)
        y = joined(low * rstd * weight_low, high * rstd * weight_high, DTYPE)
        tl.store(y_row + at, y, mask=None if i < FULL else at < whole)


def take(x: torch.Tensor, weight: torch.Tensor, pieces: tuple, sms: int) -> bool:
    """Whether rows of x, (rows, cols), are held so: whole vectors of 16-bit elements, the weight's too, more rows than
    SMs. Of 16384 columns, which fill one block, they are no faster. `pieces`: kernels/rowwise/pieces.py."""
    rows, cols = x.shape
    whole = pieces[2:] == (VECTOR_BYTES // 2, False) and weight.itemsize == 2 and weight.data_ptr() % VECTOR_BYTES == 0
    return whole and rows > sms and NARROWEST < cols <= WIDEST and cols != 16384


def forward(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, rstd: torch.Tensor | None, eps: float) -> None:
    """Write y, and where it is given 1 / rms of each row into rstd."""
    rows, cols = x.shape
    tiles = {"LANES": LANES, "HELD": cdiv(cols, 2 * LANES), "FULL": cols // (2 * LANES)}
    rms_norm_packed_kernel[(rows,)](
        *(x, weight, y, rstd, cols // 2, x.stride(0), eps), **tiles, num_warps=WARPS, maxnreg=64
    )
