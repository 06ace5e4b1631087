"""A chain of elementwise operations on a GPU, eager and fused: over its length, and over the size of its tensor.

Each operation reads one tensor and writes one, so eager moves 2N tensors for N operations and fused moves 2.
"""

import torch
import triton
import triton.language as tl

from helpers.instruments.timing import Timing, benchmark_together

LENGTHS = tuple(range(1, 9))
ELEMENTS = 2**28  # for the lengths: 1 GB in fp32, far beyond any L2
SIZES = tuple(2**power for power in range(10, 29, 2))
OPERATIONS = 4  # for the sizes


@triton.jit
def scale_kernel(x_ptr, y_ptr, elements, OPERATIONS: tl.constexpr, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < elements
    y = tl.load(x_ptr + offset, mask=inside)
    for _ in tl.static_range(OPERATIONS):
        y = y * 0.9
    tl.store(y_ptr + offset, y, mask=inside)


def fused(x: torch.Tensor, operations: int) -> torch.Tensor:
    """A contiguous fp32 tensor times 0.9, `operations` times, in one launch."""
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), OPERATIONS=operations, BLOCK=1024, num_warps=4)
    return y


def eager(x: torch.Tensor, operations: int) -> torch.Tensor:
    """The same in as many launches as operations."""
    for _ in range(operations):
        x = x * 0.9
    return x


def measure_lengths(elements: int = ELEMENTS) -> dict[int, dict[str, Timing]]:
    """Operations -> version -> time on the GPU, all in one run."""
    x = torch.rand(elements, device="cuda")
    versions = {
        (length, name): lambda function=function, length=length: function(x, length)
        for length in LENGTHS
        for name, function in (("eager", eager), ("fused", fused))
    }
    times = benchmark_together(versions, runs=20)
    return {length: {name: times[length, name] for name in ("eager", "fused")} for length in LENGTHS}


def measure_sizes(operations: int = OPERATIONS) -> dict[int, dict[str, dict[str, Timing]]]:
    """Elements -> "gpu" or "call" -> version -> time: the GPU's own, and of one call in a row of calls."""
    found = {}
    for elements in SIZES:
        x = torch.rand(elements, device="cuda")
        versions = {"eager": lambda x=x: eager(x, operations), "fused": lambda x=x: fused(x, operations)}
        found[elements] = {
            "gpu": benchmark_together(versions, runs=20),
            "call": benchmark_together(versions, runs=20, launches=True),
        }
    return found
