"""What a stride costs: as many numbers, further and further apart, read once; next to nothing is written."""

from functools import partial

import torch
import triton
import triton.language as tl

from helpers.instruments.timing import Timing, benchmark_together

NUMBERS = 2**24  # read by each call, whatever the stride
STRIDES = (1, 2, 4, 8, 16, 32, 64)  # fp32 numbers
BLOCK = 1024


@triton.jit
def strided_sum_kernel(x_ptr, sums_ptr, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)  # the last element lies 2**30 on: with longer inputs int32 would end
    element = program * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums_ptr + program, tl.sum(tl.load(x_ptr + element * STRIDE), axis=0))


def strided_sums(x: torch.Tensor, numbers: int, stride: int) -> torch.Tensor:
    """The sums of each 1024 of `numbers` fp32 numbers of contiguous x, `stride` apart."""
    sums = torch.empty(numbers // BLOCK, device=x.device)
    strided_sum_kernel[(numbers // BLOCK,)](x, sums, STRIDE=stride, BLOCK=BLOCK)
    return sums


def measure() -> dict[int, Timing]:
    """Stride -> time on the GPU of reading 2**24 numbers that far apart."""
    x = torch.randn(NUMBERS * STRIDES[-1], device="cuda")
    return benchmark_together({stride: partial(strided_sums, x, NUMBERS, stride) for stride in STRIDES}, runs=30)
