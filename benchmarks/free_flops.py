"""How much arithmetic hides behind memory traffic: one multiply-add after another on each element, timed.

The kernel reads and writes each element once however many steps it takes, so its intensity grows with the steps alone:
2 FLOP a step over 8 bytes an element in fp32.
"""

import torch
import triton
import triton.language as tl

from helpers.instruments.timing import Timing, benchmark_together

ELEMENTS = 2**28  # 1 GB in fp32: far beyond any L2
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@triton.jit
def chain_kernel(x_ptr, y_ptr, elements, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < elements
    x = tl.load(x_ptr + offset, mask=inside)
    y = x
    for _ in tl.static_range(STEPS):
        y = y * x + x  # one fused multiply-add, which needs the one before
    tl.store(y_ptr + offset, y, mask=inside)


def chain(x: torch.Tensor, steps: int) -> torch.Tensor:
    """`steps` multiply-adds on each element of a contiguous fp32 tensor, in one launch."""
    y = torch.empty_like(x)
    chain_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), STEPS=steps, BLOCK=1024, num_warps=4)
    return y


def measure(elements: int = ELEMENTS) -> dict[int, Timing]:
    """Steps -> time on the GPU, all in one run."""
    x = torch.rand(elements, device="cuda") / 2
    return benchmark_together({steps: lambda steps=steps: chain(x, steps) for steps in STEPS}, runs=20)
