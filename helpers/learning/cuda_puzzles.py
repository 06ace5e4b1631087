"""Micro-puzzles in CUDA C++: fix a kernel of a few lines; the executor runs it and watches its accesses."""

import torch

from helpers.instruments import cuda_kernel, measure
from helpers.learning.display_text import Unquoted
from helpers.learning.puzzles import wrong_elements


def cuda_puzzle(
    source: str, name: str, blocks: int, threads: int, *inputs: torch.Tensor, wanted: torch.Tensor
) -> Unquoted:
    """Compile a kernel, launch it once on the inputs and `out`, and report whether it is right.

    It is right without memory errors, races or uninitialised reads, if `out`, poisoned with NaN, ends up as `wanted`.

    Args:
        source: CUDA C++ with the kernel.
        name: the kernel's name; its parameters are the pointers of the inputs and of `out`.
        blocks, threads: the launch, one-dimensional.
        inputs: a few dozen elements each.
        wanted: the right result, of a floating-point dtype.

    Returns:
        Text that begins with "Solved" or "Not yet".
    """
    try:
        kernel = cuda_kernel(source, name)
    except ValueError as error:
        return Unquoted(f"Not yet: {error}")
    out = torch.full_like(wanted, torch.nan)
    traffic = measure(kernel[blocks, threads], *inputs, out)
    if traffic.hazards:
        return Unquoted(f"Not yet: {traffic.hazards[0]}")
    wrong = wrong_elements(out, wanted)
    if wrong:
        first = min(wrong)
        found, right = out.flatten()[first].item(), wanted.flatten()[first].item()
        count = f"{len(wrong)} of {out.numel()} elements {'is' if len(wrong) == 1 else 'are'} wrong"
        return Unquoted(f"Not yet: {count}; element {first} is {found:.6g}; it should be {right:.6g}")
    return Unquoted("Solved: right values, no race, nothing out of bounds")
