"""Choose blocks for rows of any width, and the number of rows and warps per program.

The size of a Triton block is a power of two; the width of most rows is not. With 10000 columns, 39 % of a block of
16384 would be idle. So a row is split into two blocks: HEAD, a power of two that every row fills, and TAIL, at most as
large, for the rest. TAIL is never 0, so kernels need no branch:

    10000 columns = HEAD 8192, which needs no column mask, + TAIL 2048, masked
     4096 columns = HEAD 4096, + TAIL 1, masked: see row_settings
"""

import math
from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import cdiv, next_power_of_2

MAX_COLUMNS = 32768  # widest row that one program keeps in registers; wider rows are read in chunks
CHUNK = 8192  # elements of a chunk of such a row


@triton.jit
def row_sum(x0, x1):
    """Return the sum of each row's HEAD x0 and TAIL x1, (BLOCK_ROWS, 1)."""
    # If TAIL is not much smaller, threads first add what they hold of both; then warps exchange only one sum.
    if x0.shape[0] == 1 and x0.shape[1] <= 4 * x1.shape[1]:
        x1 += tl.sum(tl.reshape(x0, (1, x0.shape[1] // x1.shape[1], x1.shape[1])), axis=1)
        return tl.sum(x1, axis=1, keep_dims=True)
    return tl.sum(x0, axis=1, keep_dims=True) + tl.sum(x1, axis=1, keep_dims=True)


def compute_dtype(dtype: torch.dtype) -> tl.dtype:
    """Return the dtype of the arithmetic on elements of `dtype`: fp32, or fp64 for fp64."""
    return tl.float64 if dtype == torch.float64 else tl.float32


@cache
def row_blocks(cols: int) -> tuple[int, int]:
    """Return HEAD and TAIL for rows of `cols` columns, at least 1. Every row has HEAD elements; TAIL is at least 1.

    Rows of more than MAX_COLUMNS have HEAD = TAIL = CHUNK: the kernel loops over the rest of the row in TAILs.
    """
    if cols > MAX_COLUMNS:
        return CHUNK, CHUNK
    head = max(1, next_power_of_2(cols) // 2)
    return head, next_power_of_2(max(1, cols - head))


def alignment(*lengths: int) -> int:
    """Return a kernel's ALIGN: the largest power of two that divides all lengths, or 1 if that is 16 or more.

    Triton itself only checks whether an argument is divisible by 16, nothing smaller. In bf16, each row of 1000 columns
    starts at a multiple of 16 bytes. Unless it knows that 8 divides 1000, the compiler loads single elements.
    """
    divisor = math.gcd(16, *lengths)
    return 1 if divisor == 16 else divisor


def aligned(cols: int, itemsize: int) -> bool:
    """Return whether each row of a contiguous matrix starts at a multiple of 16 bytes, which allows 16-byte loads."""
    return cols * itemsize % 16 == 0


def row_settings(cols: int, dtype: torch.dtype, tensors: int = 1, strides: tuple[int, ...] = ()) -> dict:
    """Return HEAD, TAIL, BLOCK_ROWS, COMPUTE, ALIGN and num_warps for rows of `cols` columns.

    A thread holds 24 to 48 elements, or 32 to 64 of long rows, counting all `tensors` read together. Several programs
    then fit on an SM, and some load while others compute. Rows of up to 512 columns share a program. Rows that aren't
    aligned are loaded element by element, which takes more registers. `strides`, for ALIGN, are the row strides of
    tensors that may be non-contiguous.
    """
    head, tail = row_blocks(cols)
    wide_loads = aligned(cols, dtype.itemsize)
    block_rows = max(1, (1024 if wide_loads else 512) // next_power_of_2(head + tail))
    elements, whole = block_rows * (head + tail) * tensors, cols <= MAX_COLUMNS
    warps = next_power_of_2(cdiv(elements, 2048 if whole and wide_loads and elements >= 16384 else 1536))
    if whole and block_rows == 1 and cols == next_power_of_2(cols):
        head, tail = cols, 1  # up to 11 % faster as one full block than as two; nothing is left for TAIL
    return {
        "HEAD": head,
        "TAIL": tail,
        "BLOCK_ROWS": block_rows,
        "COMPUTE": compute_dtype(dtype),
        "ALIGN": alignment(cols, *strides),
        "num_warps": min(32, warps),
    }


def norm_settings(cols: int, dtype: torch.dtype, *strides: int) -> dict:
    """Return row_settings, and WIDE: whether the row is read again in chunks, as more than registers hold."""
    return {"WIDE": cols > MAX_COLUMNS, **row_settings(cols, dtype, strides=strides)}
