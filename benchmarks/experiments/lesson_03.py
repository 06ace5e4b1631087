"""Lessons 03 and 03b: add+GELU by block size, by load width and by timing method; what strides cost.

Block sizes: a larger block on the same number of threads gives each thread more loads in flight and more registers, so
fewer blocks fit. Load widths: the same kernel is compiled with and without the hint that its pointers are aligned;
without it the compiler has to move 4 bytes at a time. One element per thread is a CUDA kernel without `float4`. In
between, a thread loads four elements 4 bytes at a time, which requests as many bytes as one wide load.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl

from benchmarks.experiments import timed
from helpers.instruments.timing import Timing, benchmark_together
from kernels import add_gelu
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

ELEMENTS = 2**27  # 512 MB in fp32: far beyond any L2
BLOCKS = (256, 512, 1024, 2048, 4096, 8192, 16384)
WARPS = (2, 4, 8)


def add_gelu_in_blocks(a: torch.Tensor, b: torch.Tensor, block: int, num_warps: int) -> torch.Tensor:
    """Compute gelu(a + b) of two contiguous fp32 tensors with this block size and number of warps."""
    y = torch.empty_like(a)
    chosen = settings(a.dtype) | {"BLOCK": block, "num_warps": num_warps}
    add_gelu_kernel[(triton.cdiv(a.numel(), block),)](a, b, y, None, a.numel(), **chosen)
    return y


def occupancy_sweep() -> dict:
    """Return "BLOCK x num_warps", such as "1024x4" -> call."""
    a, b = torch.randn(2, ELEMENTS, device="cuda")
    return {f"{n}x{warps}": partial(add_gelu_in_blocks, a, b, n, warps) for n in BLOCKS for warps in WARPS}


POINTERS = ("a_ptr", "b_ptr", "y_ptr")
narrow_kernel = triton.jit(do_not_specialize_on_alignment=POINTERS)(add_gelu_kernel.fn)
VERSIONS = {"16 bytes": add_gelu_kernel, "4 bytes": narrow_kernel}


def add_gelu_by(kernel, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute gelu(a + b) of two contiguous fp32 tensors with one of the VERSIONS."""
    y = torch.empty_like(a)
    chosen = settings(a.dtype)
    kernel[(triton.cdiv(a.numel(), chosen["BLOCK"]),)](a, b, y, None, a.numel(), **chosen)
    return y


def load_widths(elements: int) -> dict:
    """Return version -> call."""
    a, b = torch.randn(2, elements, device="cuda")
    return {name: partial(add_gelu_by, kernel, a, b) for name, kernel in VERSIONS.items()}


THREADS = (128, 256, 512, 1024)  # per program
# name -> (numbers per thread, which of VERSIONS)
KINDS = {"one number": (1, "16 bytes"), "four loads": (4, "4 bytes"), "one wide load": (4, "16 bytes")}


def add_gelu_per_thread(a: torch.Tensor, b: torch.Tensor, threads: int, kind: str) -> torch.Tensor:
    """Compute gelu(a + b) of two contiguous fp32 tensors with one of KINDS."""
    numbers, version = KINDS[kind]
    y = torch.empty_like(a)
    chosen = settings(a.dtype) | {"BLOCK": numbers * threads, "num_warps": threads // 32}
    VERSIONS[version][(triton.cdiv(a.numel(), chosen["BLOCK"]),)](a, b, y, None, a.numel(), **chosen)
    return y


def numbers_per_thread(elements: int) -> dict:
    """Return (threads per program, kind) -> call."""
    a, b = torch.randn(2, elements, device="cuda")
    return {(threads, kind): partial(add_gelu_per_thread, a, b, threads, kind) for threads in THREADS for kind in KINDS}


NUMBERS = 2**24  # read by each call, whatever the stride
STRIDES = (1, 2, 4, 8, 16, 32, 64)  # fp32 numbers
BLOCK = 1024


@triton.jit
def strided_sum_kernel(x_ptr, sums_ptr, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)  # the last offset is 2**30: with longer inputs, int32 would overflow
    element = program * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums_ptr + program, tl.sum(tl.load(x_ptr + element * STRIDE), axis=0))


def strided_sums(x: torch.Tensor, numbers: int, stride: int) -> torch.Tensor:
    """Return the sum of every 1024 of `numbers` fp32 numbers of contiguous x, `stride` apart."""
    sums = torch.empty(numbers // BLOCK, device=x.device)
    strided_sum_kernel[(numbers // BLOCK,)](x, sums, STRIDE=stride, BLOCK=BLOCK)
    return sums


def strides() -> dict:
    """Return stride -> a call that reads NUMBERS numbers that far apart."""
    x = torch.randn(NUMBERS * STRIDES[-1], device="cuda")
    return {stride: partial(strided_sums, x, NUMBERS, stride) for stride in STRIDES}


MATRIX_SIZE = 8192
REST, LOAD = 3, 3  # seconds: idle before, and under load until the clocks have settled
FIRST = 5  # calls


def host_clock(function: Callable, wait: bool, runs: int = 30) -> Timing:
    """Return seconds per call by the host's clock, with or without waiting for the GPU to finish."""
    samples = []
    for _ in range(runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        if wait:
            torch.cuda.synchronize()
        samples.append(time.perf_counter() - start)
    return _timing(samples)


def _timing(samples: list[float]) -> Timing:
    deciles = statistics.quantiles(samples, n=10, method="inclusive")
    return Timing(statistics.median(samples), deciles[0], deciles[-1], len(samples))


def product_times() -> dict[str, Timing]:
    """Time a large bf16 matmul: its first calls after a rest, and calls once the GPU has been busy for a while."""
    left, right = torch.randn(2, MATRIX_SIZE, MATRIX_SIZE, device="cuda", dtype=torch.bfloat16)
    left @ right
    torch.cuda.synchronize()
    time.sleep(REST)
    samples, began = [], time.perf_counter()
    while time.perf_counter() - began < LOAD:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(FIRST + 1)]
        events[0].record()
        for event in events[1:]:
            left @ right
            event.record()
        torch.cuda.synchronize()
        samples += [1e-3 * a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return {"first calls": _timing(samples[:FIRST]), "later calls": _timing(samples[-20 * FIRST :])}


def ways_to_time() -> dict:
    """Return elements of add+GELU -> way -> time, and "product" -> condition -> time."""
    found = {}
    for elements in (2**20, 100_000_000):
        a, b = torch.randn(2, elements, device="cuda")

        def call(a=a, b=b):
            return add_gelu(a, b)

        call()
        found[elements] = {
            "host, not waited": host_clock(call, wait=False),
            "host, waited": host_clock(call, wait=True),
            "GPU, L2 warm": benchmark_together({"it": call}, cold=False)["it"],
            "GPU, L2 cold": benchmark_together({"it": call})["it"],
        }
    return found | {"product": product_times()}


EXPERIMENTS = {
    "occupancy_sweep": timed(occupancy_sweep, runs=20),
    "load_widths": timed(load_widths, (2**20, 10_000_000, 100_000_000)),
    "numbers_a_thread": timed(numbers_per_thread, (2**20, 100_000_000), runs=30),
    "strides": timed(strides, runs=30),
    "ways_to_time": ways_to_time,
}
