"""Rows as whole vectors of 16 bytes, the widest access of one thread, and the few elements before and after them.

An access of 16 bytes begins at a multiple of 16, and a row of any width, as of 1025 columns in 16 bits, begins at an
address that divides by two alone. A kernel takes VECTOR, the elements of a vector, and RAGGED, whether rows begin or
end within one; then their rims, fewer than two vectors of elements, are loaded one by one.
"""

from functools import cache

import torch
import triton
import triton.language as tl

VECTOR_BYTES = 16


@cache
def _vectors(cols: int, itemsize: int, beyond: int, *strides: int) -> tuple[int, bool]:
    vector = VECTOR_BYTES // itemsize
    leads = {stride % vector for stride in strides}
    if beyond or len(leads) > 1 or cols < 2 * vector:
        return 1, False
    return vector, leads != {0} or cols % vector != 0


def vectors_of_rows(*tensors: torch.Tensor) -> tuple[int, bool]:
    """VECTOR and RAGGED for rows that a kernel goes through together: (rows, cols), one dtype, columns side by side.

    VECTOR is 1 where rows of two of the tensors begin at different places within a vector, or are shorter than two.
    """
    first, addresses, strides = tensors[0], 0, []
    for each in tensors:
        addresses |= each.data_ptr()  # together a multiple of 16 where each is one; 0 of a tensor without data
        strides.append(each.stride(0))
    return _vectors(first.shape[-1], first.itemsize, addresses % VECTOR_BYTES, *strides)


@triton.jit
def at_vector(element, VECTOR: tl.constexpr):
    """A multiple of VECTOR, written so that the compiler sees one; of others, the one before."""
    return element // VECTOR * VECTOR


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
def rim(lead, cols, VECTOR: tl.constexpr):
    """The columns of a row's rim, those before its first whole vector and after its last: (1, 2 VECTOR).

    lead: what elements_before found, one number, or (BLOCK_ROWS, 1), then columns are (BLOCK_ROWS, 2 VECTOR).
    """
    place = tl.arange(0, 2 * VECTOR)[None, :]
    return tl.where(place < lead, place, cols - 2 * VECTOR + place)


@triton.jit
def inside_rim(lead, whole, cols, VECTOR: tl.constexpr):
    """Which lanes of a rim have an element; `whole` elements stand in vectors."""
    place = tl.arange(0, 2 * VECTOR)[None, :]
    return (place < lead) | (cols - 2 * VECTOR + place >= lead + whole)
