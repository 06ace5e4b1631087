"""Does a memory-bound kernel need a high occupancy? add+GELU at block sizes that fill an SM more and less, timed.

A larger block on the same threads gives each thread more loads in flight and more registers, so fewer blocks fit.
"""

import torch
import triton

from helpers.instruments.timing import Timing, benchmark_together
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

ELEMENTS = 2**27  # 512 MB in fp32: far beyond any L2
BLOCKS = (256, 512, 1024, 2048, 4096, 8192, 16384)
WARPS = (2, 4, 8)


def add_gelu_with(a: torch.Tensor, b: torch.Tensor, block: int, num_warps: int) -> torch.Tensor:
    """gelu(a + b) of two contiguous fp32 tensors, launched with another block size and number of warps."""
    y = torch.empty_like(a)
    chosen = settings(a.dtype) | {"BLOCK": block, "num_warps": num_warps}
    add_gelu_kernel[(triton.cdiv(a.numel(), block),)](a, b, y, None, a.numel(), **chosen)
    return y


def measure(elements: int = ELEMENTS) -> dict[str, Timing]:
    """ "BLOCK x num_warps", such as "1024x4" -> time on the GPU, all in one run."""
    a, b = torch.randn(2, elements, device="cuda")
    return benchmark_together(
        {
            f"{block}x{warps}": lambda block=block, warps=warps: add_gelu_with(a, b, block, warps)
            for block in BLOCKS
            for warps in WARPS
        },
        runs=20,
    )
