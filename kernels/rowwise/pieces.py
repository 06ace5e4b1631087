"""Rows of any width, a power of two or not, from any address: in pieces, so that threads move 16 bytes at a time.

A block has a power of two of elements, and an access of 16 bytes begins at a multiple of 16. Most rows are neither: one
of 10000 columns leaves 39 % of a block of 16384 idle, and a row of 1025 in 16 bits begins at an address that divides by
two alone, where threads would move two bytes at a time. So a row is held in up to three blocks:

    HEAD   a power of two of its whole vectors of 16 bytes, and
    TAIL   the rest of them, in a smaller power of two, where that is at most half of HEAD
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

from kernels.arguments import cdiv, next_power_of_2
from kernels.philox import kept_at, kept_eights
from kernels.vectors import at_vector, inside_rim, rim, vectors_of_rows


@cache
def blocks(cols: int) -> tuple[int, int]:
    """HEAD and TAIL for rows of `cols` columns: one block where that is more than three quarters full, else two."""
    block = next_power_of_2(cols)
    head = block // 2
    tail = max(next_power_of_2(cols - head), head // 8) if block > 512 else block
    return (head, tail) if tail < head else (block, 0)


def pieces_of(*tensors: torch.Tensor) -> tuple[int, int, int, bool]:
    """PIECES for rows that a kernel goes through together, as vectors_of_rows takes them."""
    vector, ragged = vectors_of_rows(*tensors)
    return *blocks(tensors[0].shape[-1] // vector * vector), vector, ragged


def arithmetic(dtype: torch.dtype) -> tl.dtype:
    """COMPUTE: fp32, fp64 for fp64."""
    return tl.float64 if dtype == torch.float64 else tl.float32


@cache
def row_launch(rows: int, cols: int, tensors: int = 1) -> tuple[int, dict]:
    """How many programs, and their BLOCK_ROWS and num_warps, for rows that registers hold.

    Rows of up to 512 columns share a program. A thread has 24 to 48 elements, of as many `tensors` as are read at a
    time: an SM holds several programs, and some load while others compute. Of few and narrow rows that fill their
    blocks it has 8; if they are of two tensors, at most 4 share a program.
    """
    held = sum(blocks(cols))
    block_rows = max(1, 1024 // next_power_of_2(held))
    if tensors > 1 and rows < 4096 and cols == held <= 512:
        block_rows = min(4, block_rows)
        return cdiv(rows, block_rows), {"BLOCK_ROWS": block_rows, "num_warps": max(2, block_rows * held // 256)}
    warps = 4 if rows < 4096 and cols == held <= 256 else next_power_of_2(cdiv(block_rows * held * tensors, 1536))
    return cdiv(rows, block_rows), {"BLOCK_ROWS": block_rows, "num_warps": min(32, warps)}


def few_and_narrow(rows: int, pieces: tuple[int, int, int, bool]) -> bool:
    """Whether the SMs have all rows at once, which wait for their loads and for nothing else.

    So a program of such rows has 4 warps of 8 elements a thread, and asks for vectors of columns with the rows.
    """
    return rows < 4096 and pieces[0] <= 256 and not pieces[3]


def in_step(programs: int, rows: int, block_rows: int, pieces: tuple[int, int, int, bool]) -> int:
    """`programs`, such that every row of a program has one lead: RAGGED, a multiple of VECTOR. See rows_alike."""
    apart = pieces[2] if pieces[3] else 1
    return apart * max(1, cdiv(programs, apart) if programs * block_rows >= rows else programs // apart)


@triton.jit
def rows_alike(BLOCK_ROWS: tl.constexpr, PIECES: tl.constexpr, AXIS: tl.constexpr = 0):
    """The first row of a program, and how far apart the rows of its block are: so far that all have one lead.

    AXIS: of the grid, along which programs share rows.
    Then a vector of columns, as a weight, is loaded once for all of them, and sums over rows stay at their columns.
    """
    APART: tl.constexpr = PIECES[2] if PIECES[3] else 1
    program = tl.program_id(AXIS)
    return program // APART * (APART * BLOCK_ROWS) + program % APART, APART


@triton.jit
def rows_from(first, BLOCK_ROWS: tl.constexpr, APART: tl.constexpr = 1):
    """Row numbers, (BLOCK_ROWS, 1) or one number, in int64: row * stride passes 2**31 on large tensors."""
    row = tl.cast(first, tl.int64)
    if BLOCK_ROWS > 1:
        row = row + APART * tl.arange(0, BLOCK_ROWS)[:, None]
    return row


@triton.jit
def columns_inside(lead, cols, PIECES: tl.constexpr, chunk=0):
    """Which lanes of each piece have a column of the row.

    chunk: where a row is seen in several, how many elements of whole vectors came before; the rim is in the first.
    """
    VECTOR: tl.constexpr = PIECES[2]
    whole = at_vector(cols - lead, VECTOR) - chunk  # a mask of whole vectors leaves them whole
    inside = (tl.arange(0, PIECES[0])[None, :] < whole,)
    if PIECES[1]:
        inside = inside + (PIECES[0] + tl.arange(0, PIECES[1])[None, :] < whole,)
    if PIECES[3]:
        inside = inside + (inside_rim(lead, whole, cols, VECTOR) & (chunk == 0),)
    return inside


@triton.jit
def columns(lead, cols, PIECES: tl.constexpr):
    """The column of each lane of each piece."""
    VECTOR: tl.constexpr = PIECES[2]
    column = (lead + tl.arange(0, PIECES[0])[None, :],)
    if PIECES[1]:
        column = column + (lead + PIECES[0] + tl.arange(0, PIECES[1])[None, :],)
    if PIECES[3]:
        column = column + (rim(lead, cols, VECTOR),)
    return column


@triton.jit
def pointers(ptr, start, lead, cols, PIECES: tl.constexpr):
    """Pointers to the elements of the rows that begin at `start`."""
    HEAD: tl.constexpr = PIECES[0]
    VECTOR: tl.constexpr = PIECES[2]
    first = ptr + at_vector(start + lead, VECTOR)
    at = (first + tl.arange(0, HEAD)[None, :],)
    if PIECES[1]:
        at = at + (first + HEAD + tl.arange(0, PIECES[1])[None, :],)
    if PIECES[3]:
        at = at + (ptr + start + rim(lead, cols, VECTOR),)
    return at


@triton.jit
def along(ptr, lead, cols, PIECES: tl.constexpr):
    """Pointers to a vector's elements, (cols,), at the columns of a row; of the first, so that others are it plus a
    constant, and need no registers."""
    VECTOR: tl.constexpr = PIECES[2]
    first = ptr + lead
    at = (first + tl.arange(0, PIECES[0])[None, :],)
    if PIECES[1]:
        at = at + (first + PIECES[0] + tl.arange(0, PIECES[1])[None, :],)
    if PIECES[3]:
        at = at + (ptr + rim(lead, cols, VECTOR),)
    return at


@triton.jit
def load_pieces(at, inside, here, other):
    """What stands at the pointers `at`; `other` where `here` (a row) or `inside` (a column) is false."""
    x = ()
    for i in tl.static_range(len(at)):
        x = x + (tl.load(at[i], mask=here & inside[i], other=other),)
    return x


@triton.jit
def load_columns(at, inside):
    """A vector of columns, as a weight, `along` a row; in its own dtype, so that it waits in few registers."""
    x = ()
    for i in tl.static_range(len(at)):
        x = x + (tl.load(at[i], mask=inside[i], other=0.0),)
    return x


@triton.jit
def row_max(x):
    """The largest element of each row, (BLOCK_ROWS, 1), or of the only one, a number."""
    AXIS: tl.constexpr = None if x[0].shape[0] == 1 else 1  # a number has no layout to be brought into
    top = tl.max(x[0], axis=AXIS, keep_dims=AXIS is not None)
    for i in tl.static_range(1, len(x)):
        top = tl.maximum(top, tl.max(x[i], axis=AXIS, keep_dims=AXIS is not None))
    return top


@triton.jit
def row_sum(x):
    """The sum of each row, (BLOCK_ROWS, 1), or of the only one, a number."""
    AXIS: tl.constexpr = None if x[0].shape[0] == 1 else 1
    total = tl.sum(x[0], axis=AXIS, keep_dims=AXIS is not None)
    for i in tl.static_range(1, len(x)):
        total += tl.sum(x[i], axis=AXIS, keep_dims=AXIS is not None)
    return total


@triton.jit
def kept_pieces(
    seed, row, lead, cols, p, BLOCK_ROWS: tl.constexpr, PIECES: tl.constexpr, FOURS: tl.constexpr
):  # fmt: skip
    """Which elements of each piece survive dropout with probability p, and FOURS: kernels/philox.py."""
    VECTOR: tl.constexpr = PIECES[2]
    within = (row * cols % 4).to(tl.int32)
    first = tl.zeros((BLOCK_ROWS, 1), tl.int32) + lead
    keep = (kept_eights(seed, row, first + 8 * tl.arange(0, PIECES[0] // 8)[None, :], within, p, FOURS),)
    if PIECES[1]:
        first += PIECES[0]
        keep = keep + (kept_eights(seed, row, first + 8 * tl.arange(0, PIECES[1] // 8)[None, :], within, p, FOURS),)
    if PIECES[3]:
        keep = keep + (kept_at(seed, row, within + rim(lead, cols, VECTOR), p, BLOCK_ROWS, 2 * VECTOR),)
    return keep
