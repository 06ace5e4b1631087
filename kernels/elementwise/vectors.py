"""Launch an elementwise kernel with 16-byte accesses for any number of elements.

A thread moves 16 bytes at once only if one mask value covers them all. The compiler knows that `offset < end` is such a
mask only if 16 divides `end`. For other sizes the launch sets HAS_TAIL: blocks end at the last multiple of 16 elements,
a whole number of 16-byte vectors in any dtype. One more program handles the tail, so no block waits for it.
"""

import torch
import triton.language as tl

from kernels.arguments import cdiv, multiprocessors

MULTIPLE = tl.constexpr(16)  # elements: 16 bytes at one byte each


def has_tail(elements: int) -> bool:
    """Return whether blocks that end at a multiple of 16 leave a tail of `elements`."""
    return elements % MULTIPLE.value != 0


def launch(kernel, settings: dict, *tensors: torch.Tensor | None) -> None:
    """Launch `kernel` over the elements of contiguous tensors, the first of them not None.

    Blocks are halved, down to 512 elements, while SMs would be idle.
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
