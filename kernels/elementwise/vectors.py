"""A launch over elements as whole vectors of 16 bytes, and the few elements after the last of them.

A thread moves 16 bytes at once where one mask serves them all, and of `offset < elements` the compiler knows that only
where 16 divides `elements`. Where it does not, the launch is RAGGED: blocks end at the last multiple of 16, which whole
vectors of any dtype divide, and one more program takes the rest, so that no block waits for it.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import cdiv, multiprocessors

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
    """Launch a kernel with the settings `chosen` over the elements of contiguous tensors; the first is not None.

    Few elements have smaller blocks, down to 512: more SMs have a part of them, and a thread has less to compute.
    """
    elements = tensors[0].numel()
    if elements:
        ragged, block = is_ragged(elements), chosen["BLOCK"]
        while block > 512 and elements < 4 * multiprocessors(tensors[0]) * block:
            block //= 2
        programs = cdiv(elements - elements % MULTIPLE.value, block) + ragged
        with torch.cuda.device_of(tensors[0]):
            kernel[(programs,)](*tensors, elements, RAGGED=ragged, **chosen | {"BLOCK": block})
