"""Lesson 02: a chain of elementwise operations, eager and fused, and one launch taken apart.

In a chain each operation reads one tensor and writes one, so eager moves 2N tensors for N operations and fused moves 2.

A launch is split into the host's part, by the code that launches, and the GPU's part, by the kernel's first access. The
bare launch calls cuLaunchKernel from a loop in C: no Python, no operator, no allocation. An empty kernel waits for no
memory. One that copies 1024 elements waits for L2, or for DRAM if L2 is cold.
"""

import ctypes
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import torch
import triton
import triton.language as tl

from benchmarks.experiments import timed
from helpers.instruments.timing import CALLS_PER_ROW, Timing, benchmark_together

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
    """Multiply a contiguous fp32 tensor by 0.9, `operations` times, in one launch."""
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), OPERATIONS=operations, BLOCK=1024, num_warps=4)
    return y


def eager(x: torch.Tensor, operations: int) -> torch.Tensor:
    """Compute the same in one launch per operation."""
    for _ in range(operations):
        x = x * 0.9
    return x


def chain_lengths() -> dict:
    """Return (operations, version) -> call."""
    x = torch.rand(ELEMENTS, device="cuda")
    return {(n, name): partial(call, x, n) for n in LENGTHS for name, call in (("eager", eager), ("fused", fused))}


def chain_of_4(elements: int) -> dict:
    """Return version -> call, of OPERATIONS operations."""
    x = torch.rand(elements, device="cuda")
    return {"eager": partial(eager, x, OPERATIONS), "fused": partial(fused, x, OPERATIONS)}


RUNS = 50
NUMBERS = 1024

BARE = """
#include <dlfcn.h>
#include <time.h>

typedef int launcher(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                     void **);

/* Seconds a launch, over so many in a row; negative where the driver refused one. */
double seconds_a_launch(void *function, void *stream, int launches) {
    launcher *launch = (launcher *)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
    unsigned long long zero = 0;
    void *arguments[8] = {&zero, &zero, &zero, &zero, &zero, &zero, &zero, &zero}; /* Triton's own: scratch memory */
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int each = 0; each < launches; ++each)
        if (launch(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, 0))
            return -1;
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec + 1e-9 * (end.tv_nsec - start.tv_nsec)) / launches;
}
"""


@triton.jit
def empty_kernel():
    pass


@triton.jit
def copy_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offset = tl.arange(0, BLOCK)
    tl.store(y_ptr + offset, tl.load(x_ptr + offset))


def bare_launcher():
    """Compile and return the C function seconds_a_launch(function, stream, launches)."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "bare.c"), Path(folder, "bare.so")
        source.write_text(BARE)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
        function = ctypes.CDLL(str(library)).seconds_a_launch
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int), ctypes.c_double
    return function


def bare_launch() -> Timing:
    """Return the host's time to launch the empty kernel from C."""
    handle = empty_kernel[(1,)](num_warps=1).function
    seconds_a_launch, stream = bare_launcher(), torch.cuda.current_stream().cuda_stream
    samples = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        samples.append(seconds_a_launch(handle, stream, CALLS_PER_ROW))
    if min(samples) < 0:
        raise RuntimeError("the driver refused a launch of the empty kernel from C")
    low, median, high = torch.tensor(samples, dtype=torch.float64).quantile(torch.tensor([0.1, 0.5, 0.9]).double())
    return Timing(median.item(), low.item(), high.item(), RUNS)


def launches() -> dict[str, dict[str, Timing]]:
    """Time "host" -> launching code -> seconds per call, back to back; "gpu" -> kernel -> the GPU's own time."""
    x = torch.rand(NUMBERS, device="cuda")
    y = torch.empty_like(x)

    def empty():
        empty_kernel[(1,)](num_warps=1)

    def copy():
        copy_kernel[(1,)](x, y, BLOCK=NUMBERS, num_warps=4)

    host = benchmark_together({"operator": lambda: torch.relu(x), "triton": empty}, runs=RUNS, launches=True)
    near = benchmark_together({"empty": empty, "near": copy}, runs=RUNS, cold=False)
    far = benchmark_together({"far": copy}, runs=RUNS)
    return {"host": {"bare": bare_launch()} | host, "gpu": near | far}


EXPERIMENTS = {
    "chain_lengths": timed(chain_lengths, runs=20),
    "chain_sizes": timed(chain_of_4, SIZES, clocks=("gpu", "call"), runs=20),
    "launches": launches,
}
