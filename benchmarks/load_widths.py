"""What 16-byte loads and stores are worth: add+GELU compiled with and without the hint that its pointers are aligned.

Both versions read and write the same aligned tensors; without the hint the compiler must move 4 bytes at a time.
"""

from functools import partial

import torch
import triton

from helpers.instruments.timing import Timing, benchmark_together
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

SIZES = (2**20, 10_000_000, 100_000_000)
POINTERS = ("a_ptr", "b_ptr", "y_ptr")

narrow_kernel = triton.jit(do_not_specialize_on_alignment=POINTERS)(add_gelu_kernel.fn)
VERSIONS = {"16 bytes": add_gelu_kernel, "4 bytes": narrow_kernel}


def add_gelu_with(kernel, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """gelu(a + b) of two contiguous fp32 tensors, by one of the VERSIONS."""
    y = torch.empty_like(a)
    chosen = settings(a.dtype)
    kernel[(triton.cdiv(a.numel(), chosen["BLOCK"]),)](a, b, y, None, a.numel(), **chosen)
    return y


def measure() -> dict[int, dict[str, Timing]]:
    """Elements -> version -> time on the GPU."""
    found = {}
    for elements in SIZES:
        a, b = torch.randn(2, elements, device="cuda")
        found[elements] = benchmark_together(
            {name: partial(add_gelu_with, kernel, a, b) for name, kernel in VERSIONS.items()}
        )
    return found
