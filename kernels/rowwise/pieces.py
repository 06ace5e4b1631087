"""Rows of any width, a power of two or not, from any address: in pieces, so that threads move 16 bytes at a time.

A block has a power of two of elements, and an access of 16 bytes begins at a multiple of 16. Most rows are neither: one
of 10000 columns leaves 39 % of a block of 16384 idle, and a row of 1025 in 16 bits begins at an address that divides by
two alone, where threads would move two bytes at a time. So a row is held in up to three blocks:

    HEAD   a power of two of its whole vectors of 16 bytes, and
    TAIL   the rest of them, in a smaller power of two, where that is less than half of HEAD
    rim    where rows are RAGGED: the elements before the first whole vector and after the last, fewer than two vectors

                      |  :       :       :       :       :  |    `:` multiples of 16 bytes
                      rim  HEAD -------------------> TAIL  rim

A kernel takes PIECES, a tuple of HEAD, TAIL, VECTOR (elements of a vector) and RAGGED. A row is a tuple of blocks, each
(rows, columns): row_max and row_sum reduce it, tl.static_range goes through it.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.sizes import cdiv, next_power_of_2

VECTOR_BYTES = 16  # the widest access of one thread


@cache
def blocks(cols: int) -> tuple[int, int]:
    """HEAD and TAIL for rows of `cols` columns: one block where that is more than three quarters full, else two."""
    block = next_power_of_2(cols)
    head = block // 2
    tail = max(next_power_of_2(cols - head), head // 8) if block > 512 else block
    return (head, tail) if tail < head else (block, 0)


@cache
def _vectors(cols: int, itemsize: int, pointers: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, bool]:
    vector = VECTOR_BYTES // itemsize
    leads = {stride % vector for stride in strides}
    if any(pointers) or len(leads) > 1 or cols < 2 * vector:
        return 1, False
    return vector, leads != {0} or cols % vector != 0


def pieces_of(*tensors: torch.Tensor) -> tuple[int, int, int, bool]:
    """PIECES for rows that a kernel goes through together: (rows, cols), one dtype, columns side by side.

    VECTOR is 1 where rows of two of the tensors begin at different places within a vector, or are shorter than two.
    """
    cols, itemsize = tensors[0].shape[-1], tensors[0].itemsize
    pointers = tuple(0 if each.is_meta else each.data_ptr() % VECTOR_BYTES for each in tensors)
    return *blocks(cols), *_vectors(cols, itemsize, pointers, tuple(each.stride(0) for each in tensors))


def arithmetic(dtype: torch.dtype) -> tl.dtype:
    """COMPUTE: fp32, fp64 for fp64."""
    return tl.float64 if dtype == torch.float64 else tl.float32


@cache
def row_launch(rows: int, cols: int, dtype: torch.dtype, sms: int, tensors: int = 1) -> tuple[int, dict]:
    """How many programs, and their BLOCK_ROWS, STAGES and num_warps, for rows that registers hold.

    About 32 elements a thread: an SM holds several programs, and some load while others compute. Where it would hold
    fewer than three, a program walks over rows, and the next ones are brought into shared memory meanwhile.

    Args:
        tensors: how many rows are read and held at a time.
    """
    held = sum(blocks(cols))
    block_rows = max(1, 2048 // next_power_of_2(held))
    warps = min(32, max(2, next_power_of_2(tensors * held // 1536)))
    if held <= 8192 // tensors:
        return cdiv(rows, block_rows), {"BLOCK_ROWS": block_rows, "STAGES": 1, "num_warps": warps}
    room = 224 * 2**10 // (held * dtype.itemsize * tensors)  # rows in the shared memory of an SM
    per_sm = 2 if room >= 4 else 1
    return min(rows, per_sm * sms), {"BLOCK_ROWS": 1, "STAGES": min(3, room // per_sm), "num_warps": 16}


@triton.jit
def elements_before(start, VECTOR: tl.constexpr, RAGGED: tl.constexpr):
    """How many elements of a row lie before its first whole vector, 0 unless RAGGED.

    start: of the row, in elements from an address that divides by 16; (BLOCK_ROWS, 1), int64, or one number.
    """
    lead = 0
    if RAGGED:
        lead = ((VECTOR - start % VECTOR) % VECTOR).to(tl.int32)
    return lead


@triton.jit
def places(lead, cols, PIECES: tl.constexpr):
    """The column of each element of a row and whether there is one, a tuple of blocks each."""
    HEAD: tl.constexpr = PIECES[0]
    VECTOR: tl.constexpr = PIECES[2]
    # Written so that the compiler sees a multiple of VECTOR: a mask of whole vectors leaves them whole.
    whole = (cols - lead) // VECTOR * VECTOR
    place = tl.arange(0, HEAD)[None, :]
    columns = (lead + place,)
    inside = (place < whole,)
    if PIECES[1]:
        place = HEAD + tl.arange(0, PIECES[1])[None, :]
        columns = columns + (lead + place,)
        inside = inside + (place < whole,)
    if PIECES[3]:
        place = tl.arange(0, 2 * VECTOR)[None, :]
        column = tl.where(place < lead, place, cols - 2 * VECTOR + place)
        columns = columns + (column,)
        inside = inside + ((place < lead) | (column >= lead + whole),)
    return columns, inside


@triton.jit
def pointers(ptr, start, lead, cols, PIECES: tl.constexpr):
    """Pointers to the elements of the rows that begin at `start`."""
    HEAD: tl.constexpr = PIECES[0]
    VECTOR: tl.constexpr = PIECES[2]
    first = ptr + (start + lead) // VECTOR * VECTOR  # exact: a multiple of VECTOR that the compiler sees as one
    at = (first + tl.arange(0, HEAD)[None, :],)
    if PIECES[1]:
        at = at + (first + HEAD + tl.arange(0, PIECES[1])[None, :],)
    if PIECES[3]:
        place = tl.arange(0, 2 * VECTOR)[None, :]
        at = at + (ptr + start + tl.where(place < lead, place, cols - 2 * VECTOR + place),)
    return at


@triton.jit
def load_pieces(at, inside, here, other, COMPUTE: tl.constexpr):
    """What stands at the pointers `at`, in COMPUTE; `other` where `here` (a row) or `inside` (a column) is false."""
    x = ()
    for i in tl.static_range(len(at)):
        x = x + (tl.load(at[i], mask=here & inside[i], other=other).to(COMPUTE),)
    return x


@triton.jit
def row_max(x):
    """The largest element of each row, (BLOCK_ROWS, 1)."""
    top = tl.max(x[0], axis=1, keep_dims=True)
    for i in tl.static_range(1, len(x)):
        top = tl.maximum(top, tl.max(x[i], axis=1, keep_dims=True))
    return top


@triton.jit
def row_sum(x):
    """The sum of each row, (BLOCK_ROWS, 1)."""
    total = tl.sum(x[0], axis=1, keep_dims=True)
    for i in tl.static_range(1, len(x)):
        total += tl.sum(x[i], axis=1, keep_dims=True)
    return total
