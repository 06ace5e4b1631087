"""Split rows of any width and alignment into segments that threads access 16 bytes at a time.

A Triton block has a power-of-two size, and a 16-byte access needs 16-byte alignment. Many rows have neither: a row of
10000 columns leaves 39 % of a block of 16384 idle, and a 16-bit row of 1025 columns may start at an address aligned to
2 bytes, which forces 2-byte accesses. So a row is held in up to three blocks:

    HEAD   a power of two of its aligned 16-byte vectors, in elements
    TAIL   the remaining vectors, in a smaller power of two, at most half of HEAD
    edge   if UNALIGNED: the elements before the first aligned vector and after the last, fewer than two vectors

                      |  :       :       :       :       :  |    `:` multiples of 16 bytes
                      edge HEAD -------------------> TAIL edge

Kernels take SEGMENTS = (HEAD, TAIL, VECTOR, UNALIGNED), with VECTOR in elements. A row is a tuple of (rows, columns)
blocks: row_max and row_sum reduce it, tl.static_range iterates over it. Kernels that hold a row in another way take
VECTOR and UNALIGNED alone, and use elements_before, edge and in_edge.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import cdiv, next_power_of_2
from kernels.philox import kept_at, kept_eights

VECTOR_BYTES = 16


@cache
def _vectors(cols: int, itemsize: int, beyond: int, *strides: int) -> tuple[int, bool]:
    vector = VECTOR_BYTES // itemsize
    misalignments = {stride % vector for stride in strides}
    if beyond or len(misalignments) > 1 or cols < 2 * vector:
        return 1, False
    return vector, misalignments != {0} or cols % vector != 0


def row_vectors(*tensors: torch.Tensor) -> tuple[int, bool]:
    """Return VECTOR and UNALIGNED for rows read together: (rows, cols), one dtype, columns side by side.

    VECTOR is 1 where rows of two of the tensors start at different places within a vector, or are shorter than two.
    """
    first, addresses, strides = tensors[0], 0, []
    for each in tensors:
        addresses |= each.data_ptr()  # together a multiple of 16 where each is one; 0 of a tensor without data
        strides.append(each.stride(0))
    return _vectors(first.shape[-1], first.itemsize, addresses % VECTOR_BYTES, *strides)


@cache
def segment_blocks(cols: int) -> tuple[int, int]:
    """Return HEAD and TAIL for rows of `cols` columns: one block if that is more than three quarters full, else two."""
    block = next_power_of_2(cols)
    head = block // 2
    tail = max(next_power_of_2(cols - head), head // 8) if block > 512 else block
    return (head, tail) if tail < head else (block, 0)


def row_segments(*tensors: torch.Tensor) -> tuple[int, int, int, bool]:
    """Return SEGMENTS for rows read together, as row_vectors takes them."""
    vector, unaligned = row_vectors(*tensors)
    return *segment_blocks(tensors[0].shape[-1] // vector * vector), vector, unaligned


@cache
def row_launch(rows: int, cols: int, tensors: int = 1) -> tuple[int, dict]:
    """Choose the number of programs, BLOCK_ROWS and num_warps for rows that fit in registers.

    Rows of up to 512 columns share a program. Each thread holds 24 to 48 elements, counting all `tensors` read at once,
    so that several programs fit on an SM and some load while others compute. With few, narrow rows that fill their
    blocks, a thread holds 8; with two tensors, at most 4 such rows share a program.
    """
    held = sum(segment_blocks(cols))
    block_rows = max(1, 1024 // next_power_of_2(held))
    if tensors > 1 and rows < 4096 and cols == held <= 512:
        block_rows = min(4, block_rows)
        return cdiv(rows, block_rows), {"BLOCK_ROWS": block_rows, "num_warps": max(2, block_rows * held // 256)}
    warps = 4 if rows < 4096 and cols == held <= 256 else next_power_of_2(cdiv(block_rows * held * tensors, 1536))
    return cdiv(rows, block_rows), {"BLOCK_ROWS": block_rows, "num_warps": min(32, warps)}


def is_small_problem(rows: int, segments: tuple[int, int, int, bool]) -> bool:
    """Return whether the SMs hold all rows at once, so that each waits for its own loads and nothing else.

    A program of such rows has 4 warps of 8 elements per thread, and loads vectors of columns together with the rows.
    """
    return rows < 4096 and segments[0] <= 256 and not segments[3]


def align_programs(programs: int, rows: int, block_rows: int, segments: tuple[int, int, int, bool]) -> int:
    """Round `programs` so that all rows of a program are misaligned alike: a multiple of VECTOR if UNALIGNED."""
    apart = segments[2] if segments[3] else 1
    return apart * max(1, cdiv(programs, apart) if programs * block_rows >= rows else programs // apart)


@triton.jit
def at_vector(element, VECTOR: tl.constexpr):
    """Round down to a multiple of VECTOR, in a form in which the compiler recognises one."""
    return element // VECTOR * VECTOR


@triton.jit
def elements_before(start, VECTOR: tl.constexpr, UNALIGNED: tl.constexpr):
    """Return a row's misalignment: its elements before the first aligned vector, 0 unless UNALIGNED.

    start: of the row, in elements from a 16-byte boundary; (BLOCK_ROWS, 1), int64, or one number.
    """
    misalignment = 0
    if UNALIGNED:
        misalignment = ((VECTOR - start % VECTOR) % VECTOR).to(tl.int32)
    return misalignment


@triton.jit
def edge(misalignment, cols, VECTOR: tl.constexpr):
    """Return the columns of a row's edge, before its first aligned vector and after its last: (1, 2 VECTOR).

    misalignment: from elements_before, one number, or (BLOCK_ROWS, 1), then columns are (BLOCK_ROWS, 2 VECTOR).
    """
    place = tl.arange(0, 2 * VECTOR)[None, :]
    return tl.where(place < misalignment, place, cols - 2 * VECTOR + place)


@triton.jit
def in_edge(misalignment, whole, cols, VECTOR: tl.constexpr):
    """Return which positions of an edge have an element; `whole` elements are in aligned vectors."""
    place = tl.arange(0, 2 * VECTOR)[None, :]
    return (place < misalignment) | (cols - 2 * VECTOR + place >= misalignment + whole)


@triton.jit
def rows_alike(BLOCK_ROWS: tl.constexpr, SEGMENTS: tl.constexpr, AXIS: tl.constexpr = 0):
    """Return a program's first row, in int64, and the distance between its rows, at which all are misaligned alike.

    AXIS: of the grid, along which programs share rows.
    Then a vector of columns, such as a weight, is loaded once for all, and sums over rows stay at their columns.
    """
    APART: tl.constexpr = SEGMENTS[2] if SEGMENTS[3] else 1
    program = tl.program_id(AXIS).to(tl.int64)
    return program // APART * (APART * BLOCK_ROWS) + program % APART, APART


@triton.jit
def rows_from(first, BLOCK_ROWS: tl.constexpr, APART: tl.constexpr = 1):
    """Return row numbers from `first` (int64) on, (BLOCK_ROWS, 1) or one number, in int64.

    Of program i the first row is tl.program_id(0).to(tl.int64) * BLOCK_ROWS: in int32 it overflows beyond 2^31 rows.
    """
    tl.static_assert(first.dtype == tl.int64, "cast the program's number to int64 before multiplying it")
    row = first
    if BLOCK_ROWS > 1:
        row = row + APART * tl.arange(0, BLOCK_ROWS)[:, None]
    return row


@triton.jit
def segment_masks(misalignment, cols, SEGMENTS: tl.constexpr, chunk=0):
    """Return which positions of each segment have a column of the row.

    chunk: for a row read in several, how many elements of whole vectors came before; the edge is in the first.
    """
    VECTOR: tl.constexpr = SEGMENTS[2]
    whole = at_vector(cols - misalignment, VECTOR) - chunk  # a mask of whole vectors leaves them whole
    inside = (tl.arange(0, SEGMENTS[0])[None, :] < whole,)
    if SEGMENTS[1]:
        inside = inside + (SEGMENTS[0] + tl.arange(0, SEGMENTS[1])[None, :] < whole,)
    if SEGMENTS[3]:
        inside = inside + (in_edge(misalignment, whole, cols, VECTOR) & (chunk == 0),)
    return inside


@triton.jit
def segment_columns(misalignment, cols, SEGMENTS: tl.constexpr):
    """Return the column of each position of each segment."""
    VECTOR: tl.constexpr = SEGMENTS[2]
    column = (misalignment + tl.arange(0, SEGMENTS[0])[None, :],)
    if SEGMENTS[1]:
        column = column + (misalignment + SEGMENTS[0] + tl.arange(0, SEGMENTS[1])[None, :],)
    if SEGMENTS[3]:
        column = column + (edge(misalignment, cols, VECTOR),)
    return column


@triton.jit
def segment_pointers(ptr, start, misalignment, cols, SEGMENTS: tl.constexpr):
    """Return pointers to the elements of the rows that start at `start`."""
    HEAD: tl.constexpr = SEGMENTS[0]
    VECTOR: tl.constexpr = SEGMENTS[2]
    first = ptr + at_vector(start + misalignment, VECTOR)
    at = (first + tl.arange(0, HEAD)[None, :],)
    if SEGMENTS[1]:
        at = at + (first + HEAD + tl.arange(0, SEGMENTS[1])[None, :],)
    if SEGMENTS[3]:
        at = at + (ptr + start + edge(misalignment, cols, VECTOR),)
    return at


@triton.jit
def column_pointers(ptr, misalignment, cols, SEGMENTS: tl.constexpr):
    """Return pointers to a vector's elements, (cols,), at the columns of a row: the first plus constants, which need no
    registers."""
    VECTOR: tl.constexpr = SEGMENTS[2]
    first = ptr + misalignment
    at = (first + tl.arange(0, SEGMENTS[0])[None, :],)
    if SEGMENTS[1]:
        at = at + (first + SEGMENTS[0] + tl.arange(0, SEGMENTS[1])[None, :],)
    if SEGMENTS[3]:
        at = at + (ptr + edge(misalignment, cols, VECTOR),)
    return at


@triton.jit
def load_segments(at, inside, here, other):
    """Load what the pointers `at` point to; `other` where `here` (a row) or `inside` (a column) is false."""
    x = ()
    for i in tl.static_range(len(at)):
        x = x + (tl.load(at[i], mask=here & inside[i], other=other),)
    return x


@triton.jit
def load_columns(at, inside):
    """Load a vector of columns, such as a weight; in its own dtype, so that it waits in few registers."""
    x = ()
    for i in tl.static_range(len(at)):
        x = x + (tl.load(at[i], mask=inside[i], other=0.0),)
    return x


@triton.jit
def row_max(x):
    """Return the largest element of each row, (BLOCK_ROWS, 1), or of the only one, a number."""
    AXIS: tl.constexpr = None if x[0].shape[0] == 1 else 1  # a number has no layout to be converted to
    top = tl.max(x[0], axis=AXIS, keep_dims=AXIS is not None)
    for i in tl.static_range(1, len(x)):
        top = tl.maximum(top, tl.max(x[i], axis=AXIS, keep_dims=AXIS is not None))
    return top


@triton.jit
def row_sum(x):
    """Return the sum of each row, (BLOCK_ROWS, 1), or of the only one, a number."""
    AXIS: tl.constexpr = None if x[0].shape[0] == 1 else 1
    total = tl.sum(x[0], axis=AXIS, keep_dims=AXIS is not None)
    for i in tl.static_range(1, len(x)):
        total += tl.sum(x[i], axis=AXIS, keep_dims=AXIS is not None)
    return total


@triton.jit
def kept_segments(
    seed, row, misalignment, cols, p, BLOCK_ROWS: tl.constexpr, SEGMENTS: tl.constexpr, FOURS: tl.constexpr
):  # fmt: skip
    """Return which elements of each segment dropout with probability p keeps; FOURS: kernels/philox.py."""
    VECTOR: tl.constexpr = SEGMENTS[2]
    within = (row * cols % 4).to(tl.int32)
    first = tl.zeros((BLOCK_ROWS, 1), tl.int32) + misalignment
    keep = (kept_eights(seed, row, first + 8 * tl.arange(0, SEGMENTS[0] // 8)[None, :], within, p, FOURS),)
    if SEGMENTS[1]:
        first += SEGMENTS[0]
        keep = keep + (kept_eights(seed, row, first + 8 * tl.arange(0, SEGMENTS[1] // 8)[None, :], within, p, FOURS),)
    if SEGMENTS[3]:
        keep = keep + (kept_at(seed, row, within + edge(misalignment, cols, VECTOR), p, BLOCK_ROWS, 2 * VECTOR),)
    return keep
