"""Lesson 01: how much arithmetic hides behind memory traffic, and roofs that no data sheet lists.

`chain_kernel` reads and writes each element once, however many steps it takes, so its intensity depends only on the
number of steps: 2 FLOP per step over 8 bytes per element in fp32. The kernels of "roofs" repeat one operation in
registers or shared memory, and store one result per thread at the end.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from benchmarks.experiments import timed

ELEMENTS = 2**28  # 1 GB in fp32: far beyond any L2
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@triton.jit
def chain_kernel(x_ptr, y_ptr, elements, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < elements
    x = tl.load(x_ptr + offset, mask=inside)
    y = x
    for _ in tl.static_range(STEPS):
        y = y * x + x  # one fused multiply-add, which depends on the previous one
    tl.store(y_ptr + offset, y, mask=inside)


def chain(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Run `steps` multiply-adds on each element of a contiguous fp32 tensor, in one launch."""
    y = torch.empty_like(x)
    chain_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), STEPS=steps, BLOCK=1024, num_warps=4)
    return y


def free_flops() -> dict:
    """Return steps -> call."""
    x = torch.rand(ELEMENTS, device="cuda") / 2
    return {steps: partial(chain, x, steps) for steps in STEPS}


PROGRAMS, BLOCK, WARPS = 132 * 64, 1024, 8
EXPONENTIALS = 512  # per number, one after another
ROUNDS = 512  # of reads by each thread
READ = 16  # bytes per thread and round
THREADS = 256  # per block that reads shared memory

# Exponentials; bytes read.
COUNTS = {"special functions": PROGRAMS * BLOCK * EXPONENTIALS, "shared memory": PROGRAMS * THREADS * ROUNDS * READ}

SHARED = """
extern "C" __global__ void shared_reads(float4 *out, int rounds) {
    __shared__ float4 held[1024];
    for (int each = threadIdx.x; each < 1024; each += blockDim.x)
        held[each] = make_float4(each, each + 1, each + 2, each + 3);
    __syncthreads();
    float4 sum = make_float4(0, 0, 0, 0);
    int at = threadIdx.x;
    #pragma unroll 8
    for (int round = 0; round < rounds; ++round) {
        float4 read = held[at];
        at = (at + 32) & 1023;
        sum.x += read.x; sum.y += read.y; sum.z += read.z; sum.w += read.w;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""


@triton.jit
def exponentials_kernel(y_ptr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = -offset.to(tl.float32)
    for _ in range(STEPS):
        y = tl.exp2(y)  # each depends on the previous one; other warps fill the gaps
    tl.store(y_ptr + offset, y)


def roofs() -> dict:
    """Return operation -> call, which runs as many as in COUNTS."""
    y = torch.empty(PROGRAMS * BLOCK, device="cuda")
    out = torch.empty(PROGRAMS * THREADS * 4, device="cuda")
    shared_reads = torch.cuda._compile_kernel(SHARED, "shared_reads")
    options = {"STEPS": EXPONENTIALS, "BLOCK": BLOCK, "num_warps": WARPS}
    return {
        "special functions": lambda: exponentials_kernel[(PROGRAMS,)](y, **options),
        "shared memory": lambda: shared_reads(grid=(PROGRAMS, 1, 1), block=(THREADS, 1, 1), args=[out, ROUNDS]),
    }


EXPERIMENTS = {"free_flops": timed(free_flops, runs=20), "roofs": timed(roofs, runs=20)}
