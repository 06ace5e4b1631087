"""A launch over elements as whole vectors of 16 bytes, and the few elements after the last of them.

A thread moves 16 bytes at once where one mask serves them all, and of `offset < elements` the compiler knows that only
where 16 divides `elements`. Where it does not, the launch is RAGGED: blocks end at the last multiple of 16, which whole
vectors of any dtype divide, and one more program takes the rest, so that no block waits for it.

Rows that do not begin at a multiple of 16 bytes have such elements before their first whole vector, too.
"""

import torch
import triton
import triton.language as tl

from kernels.sizes import cdiv

MULTIPLE = tl.constexpr(16)  # elements: 16 bytes where each has one


@triton.jit
def end_of_vectors(elements, RAGGED: tl.constexpr):
    """Where blocks end."""
    end = elements
    if RAGGED:
        end = elements // MULTIPLE * MULTIPLE  # written so that the compiler sees a multiple
    return end


@triton.jit
def takes_rest():
    """Whether the program is the one that takes what is left after the blocks."""
    return tl.program_id(0) == tl.num_programs(0) - 1


def is_ragged(elements: int) -> bool:
    """Whether a launch over so many elements leaves a rest."""
    return elements % MULTIPLE.value != 0


def launch(kernel, chosen: dict, *tensors: torch.Tensor | None) -> None:
    """Launch a kernel with the settings `chosen` over the elements of contiguous tensors; the first is not None."""
    elements = tensors[0].numel()
    if elements:
        ragged = is_ragged(elements)
        programs = cdiv(elements - elements % MULTIPLE.value, chosen["BLOCK"]) + ragged
        with torch.cuda.device_of(tensors[0]):
            kernel[(programs,)](*tensors, elements, RAGGED=ragged, **chosen)


def vectors_of_rows(*tensors: torch.Tensor) -> tuple[int, bool]:
    """VECTOR, the elements of 16 bytes, for (rows, cols) of one dtype, and RAGGED, whether rows begin or end in one.

    VECTOR is 1 where the compiler sees whole vectors by itself, or where there are none that all tensors share.
    """
    cols, vector = tensors[0].shape[-1], 16 // tensors[0].itemsize
    strides = [each.stride(0) for each in tensors]
    if all(size % MULTIPLE.value == 0 for size in (cols, *strides)):
        return 1, False
    alike = len({stride % vector for stride in strides}) == 1
    if not alike or cols < 2 * vector or any(not each.is_meta and each.data_ptr() % 16 for each in tensors):
        return 1, False
    return vector, bool(strides[0] % vector or cols % vector)


@triton.jit
def elements_before(start, VECTOR: tl.constexpr):
    """How many elements of a row that begins at element `start` lie before its first whole vector."""
    return (VECTOR - start % VECTOR) % VECTOR


@triton.jit
def at_vector(element, VECTOR: tl.constexpr):
    """A multiple of VECTOR, written so that the compiler sees one."""
    return element // VECTOR * VECTOR


@triton.jit
def rim(lead, end, cols, VECTOR: tl.constexpr):
    """The columns of a row before its first whole vector and after its last, (1, 2 VECTOR), and whether each is one."""
    place = tl.arange(0, 2 * VECTOR)[None, :]
    col = tl.where(place < lead, place, cols - 2 * VECTOR + place)
    return col, (place < lead) | (col >= end)
