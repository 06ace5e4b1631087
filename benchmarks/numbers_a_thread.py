"""What wide loads are worth under the claim's own conditions: one number a thread against four, at the same threads.

One number a thread is what a CUDA kernel without `float4` does. The version between them has four numbers a thread in
loads of 4 bytes (the compiler is not told that the pointers are aligned): as much is asked for as with one wide load.
"""

from functools import partial

import torch
import triton

from benchmarks.load_widths import VERSIONS
from helpers.instruments.timing import Timing, benchmark_together
from kernels.elementwise.add_gelu import settings

SIZES = (2**20, 100_000_000)
THREADS = (128, 256, 512, 1024)  # a program
# name -> (numbers a thread, which kernel of load_widths)
KINDS = {"one number": (1, "16 bytes"), "four loads": (4, "4 bytes"), "one wide load": (4, "16 bytes")}


def add_gelu_with(a: torch.Tensor, b: torch.Tensor, threads: int, kind: str) -> torch.Tensor:
    """gelu(a + b) of two contiguous fp32 tensors, by one of KINDS."""
    numbers, version = KINDS[kind]
    y = torch.empty_like(a)
    chosen = settings(a.dtype) | {"BLOCK": numbers * threads, "num_warps": threads // 32}
    VERSIONS[version][(triton.cdiv(a.numel(), chosen["BLOCK"]),)](a, b, y, None, a.numel(), **chosen)
    return y


def measure() -> dict[int, dict[int, dict[str, Timing]]]:
    """Elements -> threads a program -> kind -> time on the GPU."""
    found = {}
    for elements in SIZES:
        a, b = torch.randn(2, elements, device="cuda")
        calls = {(threads, kind): partial(add_gelu_with, a, b, threads, kind) for threads in THREADS for kind in KINDS}
        timings = benchmark_together(calls, runs=30)
        found[elements] = {threads: {kind: timings[threads, kind] for kind in KINDS} for threads in THREADS}
    return found
