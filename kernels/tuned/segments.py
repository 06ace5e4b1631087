"""Split rows of any width and alignment into 16-byte vectors and an edge, so that threads access 16 bytes at a time.

A 16-byte access needs 16-byte alignment. A 16-bit row of 1025 columns may start at an address aligned to only 2 bytes,
so the compiler has to use 2-byte accesses. A kernel therefore splits such a row into

    aligned 16-byte vectors, and
    edge   if UNALIGNED: the elements before the first aligned vector and after the last, fewer than two vectors

                      |  :       :       :       :       :  |    `:` multiples of 16 bytes
                      edge vectors ----------------------> edge

Kernels take VECTOR (in elements) and UNALIGNED.
"""

from functools import cache

import torch
import triton
import triton.language as tl

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

    VECTOR is 1 if two of the tensors have rows that start at different offsets within a vector, or if rows are shorter
    than two vectors.
    """
    first, addresses, strides = tensors[0], 0, []
    for each in tensors:
        addresses |= each.data_ptr()  # a multiple of 16 if all are; 0 for a tensor without data
        strides.append(each.stride(0))
    return _vectors(first.shape[-1], first.itemsize, addresses % VECTOR_BYTES, *strides)


@triton.jit
def at_vector(element, VECTOR: tl.constexpr):
    """Round down to a multiple of VECTOR, in a form that the compiler recognises as one."""
    return element // VECTOR * VECTOR


@triton.jit
def elements_before(start, VECTOR: tl.constexpr, UNALIGNED: tl.constexpr):
    """Return a row's misalignment: its elements before the first aligned vector, 0 unless UNALIGNED.

    start: the row's offset, in elements from a 16-byte boundary; (BLOCK_ROWS, 1), int64, or one number.
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
