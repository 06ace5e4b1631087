"""The roofs that a data sheet does not draw, measured: special functions, and reads from shared memory.

Each kernel does one thing again and again in registers or shared memory, and stores one result a thread at the end.
"""

import torch
import triton
import triton.language as tl

from helpers.instruments.timing import Timing, benchmark_together

PROGRAMS, BLOCK, WARPS = 132 * 64, 1024, 8
STEPS = 512  # of exponentials on each number
ROUNDS = 512  # of reads by each thread
READ = 16  # bytes a thread and round
THREADS = 256  # a block that reads shared memory

# Exponentials; bytes read.
COUNTS = {"special functions": PROGRAMS * BLOCK * STEPS, "shared memory": PROGRAMS * THREADS * ROUNDS * READ}

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
        y = tl.exp2(y)  # each needs the one before; other warps fill the time between
    tl.store(y_ptr + offset, y)


def measure() -> dict[str, Timing]:
    """What is counted -> the GPU's time for as many of it as COUNTS says."""
    y = torch.empty(PROGRAMS * BLOCK, device="cuda")
    out = torch.empty(PROGRAMS * THREADS * 4, device="cuda")
    shared_reads = torch.cuda._compile_kernel(SHARED, "shared_reads")
    return benchmark_together(
        {
            "special functions": lambda: exponentials_kernel[(PROGRAMS,)](y, STEPS=STEPS, BLOCK=BLOCK, num_warps=WARPS),
            "shared memory": lambda: shared_reads(grid=(PROGRAMS, 1, 1), block=(THREADS, 1, 1), args=[out, ROUNDS]),
        },
        runs=20,
    )
