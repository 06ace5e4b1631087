"""Lesson 14: CUDA by hand.

add+GELU and a transpose in CUDA C++ as lesson 14 writes them: wide loads, registers capped, bank conflicts.
"""

from functools import partial

import torch

from helpers.instruments.cuda.kernel import cuda_kernel
from helpers.instruments.devices import this_device
from helpers.instruments.timing import Timing, benchmark_together
from kernels.elementwise.add_gelu import add_gelu_kernel, settings

ADD_GELU = r"""
__device__ float gelu(float s) {
  float twice_u = 1.5957691216057308f * (s + 0.044715f * s * s * s);
  return s * __fdividef(1.0f, 1.0f + __expf(-twice_u));
}
__device__ float4 gelu(float4 s) { return {gelu(s.x), gelu(s.y), gelu(s.z), gelu(s.w)}; }
__device__ float4 operator+(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

template <typename T>
__global__ void add_gelu(const T* a, const T* b, T* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = gelu(a[i] + b[i]);
}
"""

EIGHT = r"""
__device__ void eight(const float4* a, const float4* b, float4* y) {
  int i = blockIdx.x * blockDim.x * 8 + threadIdx.x;
  float4 s[8], t[8];
  for (int k = 0; k < 8; k++) {
    s[k] = a[i + k * blockDim.x];
    t[k] = b[i + k * blockDim.x];
  }
  for (int k = 0; k < 8; k++) y[i + k * blockDim.x] = gelu(s[k] + t[k]);
}
template <typename T>
__global__ void as_it_is(const T* a, const T* b, T* y) { eight(a, b, y); }

template <int BLOCKS>
__global__ void __launch_bounds__(256, BLOCKS)
bounded(const float4* a, const float4* b, float4* y) { eight(a, b, y); }

template <int REGISTERS>
__global__ void __maxnreg__(REGISTERS)
capped(const float4* a, const float4* b, float4* y) { eight(a, b, y); }
"""

TRANSPOSE = r"""
template <int WIDTH>
__global__ void transpose(const float* x, float* y, int n) {
  __shared__ float tile[32][WIDTH];
  int row = blockIdx.y * 32, column = blockIdx.x * 32;
  tile[threadIdx.y][threadIdx.x] = x[(row + threadIdx.y) * n + column + threadIdx.x];
  __syncthreads();
  y[(column + threadIdx.y) * n + row + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
"""

THREADS = (128, 256, 512, 1024)  # a block
SIZES = (2**20, 3052 * 2**15)  # elements: whole blocks of every way; the second is near the 100 million of the claim
# What to call it -> the kernel, the numbers a thread.
WAYS = {
    "one number": ("add_gelu<float>", 1),
    "float4": ("add_gelu<float4>", 4),
    "eight float4": ("as_it_is<float4>", 32),
}
# The same for eight float4 a thread in blocks of 256.
CAPS = {
    "as it is": "as_it_is<float4>",
    "bounds, 5 blocks": "bounded<5>",
    "bounds, 6 blocks": "bounded<6>",
    "bounds, 8 blocks": "bounded<8>",
    "maxnreg 24": "capped<24>",
}
MATRIX = 8192  # rows and columns of what is transposed
TILES = {"tile[32][32]": 32, "tile[32][33]": 33}


def add_gelu_by(name: str, numbers: int, a: torch.Tensor, b: torch.Tensor, threads: int) -> torch.Tensor:
    """gelu(a + b) of two contiguous fp32 tensors by a kernel of WAYS or CAPS; whole blocks only."""
    y = torch.empty_like(a)
    kernel = cuda_kernel(ADD_GELU + EIGHT, name, device=this_device() if a.is_cuda else "H200")
    bound = (a.numel() // min(numbers, 4),) if name.startswith("add_gelu") else ()
    kernel[a.numel() // (threads * numbers), threads](a, b, y, *bound)
    return y


def add_gelu_by_triton(a: torch.Tensor, b: torch.Tensor, threads: int) -> torch.Tensor:
    """The same by the course's Triton kernel, four numbers a thread."""
    y = torch.empty_like(a)
    chosen = settings(a.dtype) | {"BLOCK": 4 * threads, "num_warps": threads // 32}
    add_gelu_kernel[(a.numel() // chosen["BLOCK"],)](a, b, y, None, a.numel(), **chosen)
    return y


def transposed(x: torch.Tensor, width: int) -> torch.Tensor:
    """The transpose of a square fp32 matrix of whole 32 x 32 tiles, each `width` columns wide in shared memory."""
    y = torch.empty_like(x)
    kernel = cuda_kernel(TRANSPOSE, f"transpose<{width}>", device=this_device() if x.is_cuda else "H200")
    kernel[(len(x) // 32, len(x) // 32), (32, 32)](x, y, len(x))
    return y


def measure() -> dict[int, dict[int, dict[str, Timing]]]:
    """Elements -> threads a block -> way -> time on the GPU."""
    found = {}
    for elements in SIZES:
        a, b = torch.randn(2, elements, device="cuda")
        calls = {
            (threads, way): partial(add_gelu_by, name, numbers, a, b, threads)
            for threads in THREADS
            for way, (name, numbers) in WAYS.items()
        }
        calls |= {(threads, "Triton"): partial(add_gelu_by_triton, a, b, threads) for threads in THREADS}
        timings = benchmark_together(calls, runs=30)
        found[elements] = {threads: {way: timings[threads, way] for way in (*WAYS, "Triton")} for threads in THREADS}
    return found


def measure_caps() -> dict[str, Timing]:
    """Cap -> time on the GPU of add+GELU of the larger size, eight float4 a thread, 256 threads a block."""
    a, b = torch.randn(2, SIZES[-1], device="cuda")
    return benchmark_together({cap: partial(add_gelu_by, name, 32, a, b, 256) for cap, name in CAPS.items()}, runs=30)


def measure_transpose() -> dict[str, Timing]:
    """Tile -> time on the GPU of transposing 8192 x 8192 fp32 numbers; and of copying them."""
    x = torch.randn(MATRIX, MATRIX, device="cuda")
    y = torch.empty_like(x)
    calls = {tile: partial(transposed, x, width) for tile, width in TILES.items()}
    return benchmark_together(calls | {"copy": lambda: y.copy_(x)}, runs=30)


EXPERIMENTS = {
    "cuda_four_ways": measure,
    "cuda_caps": measure_caps,
    "cuda_transpose": measure_transpose,
}
