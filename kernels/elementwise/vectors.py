"""Launch an elementwise kernel so that threads move 16 bytes per access, whatever the number of elements.

A thread moves 16 bytes at once only if one mask covers them all, and the compiler knows that `offset < end` does so
only if 16 divides `end`. For other sizes a launch sets HAS_TAIL: blocks end at the last multiple of 16 elements, which
is a whole number of 16-byte vectors in any dtype, and one more program takes the tail, so that no block waits for it.
"""

import torch
import triton.language as tl

from kernels.arguments import cdiv, multiprocessors

MULTIPLE = tl.constexpr(16)  # elements: 16 bytes if each has one


def has_tail(elements: int) -> bool:
    """Return whether blocks that end at a multiple of 16 leave some of `elements` over."""
    return elements % MULTIPLE.value != 0


def launch(kernel, settings: dict, *tensors: torch.Tensor | None) -> None:
    """Launch `kernel` over the elements of contiguous tensors; the first is not None.

    Blocks are halved, down to 512 elements, while they leave SMs idle.
    """
    elements, block = tensors[0].numel(), settings["BLOCK"]
    if elements == 0:
        return
    while block > 512 and elements < 4 * multiprocessors(tensors[0]) * block:
        block //= 2
    tail = has_tail(elements)
    programs = cdiv(elements - elements % MULTIPLE.value, block) + tail
    with torch.cuda.device_of(tensors[0]):
        kernel[(programs,)](*tensors, elements, HAS_TAIL=tail, **settings | {"BLOCK": block})
