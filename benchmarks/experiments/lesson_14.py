"""Lesson 14: CUDA by hand.

add+GELU and a transpose in lesson 14's CUDA C++: wide loads, capped registers, bank conflicts. And two versions of an
L2 norm, one to read and one for speed, launched through the course's `cuda_kernel` and from a load_inline extension.
"""

import tempfile
import time
from functools import partial

import torch

from benchmarks.experiments import timed
from helpers.instruments.cuda.kernel import cuda_kernel
from helpers.instruments.devices import this_device
from helpers.instruments.timing import Timing, benchmark_together
from kernels import l2_norm
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

REDUCE = """
struct Sum { __device__ float operator()(float a, float b) { return a + b; } };
struct Max { __device__ float operator()(float a, float b) { return fmaxf(a, b); } };

template <typename Op>
__device__ float of_block(float v, float* of_warps) {
  Op op;
  for (int far = 16; far > 0; far /= 2) v = op(v, __shfl_xor_sync(0xffffffff, v, far));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
  __syncthreads();  // every warp has stored its value
  v = of_warps[0];
  for (int warp = 1; warp < blockDim.x / 32; warp++) v = op(v, of_warps[warp]);
  __syncthreads();  // all have read: the next reduction may overwrite
  return v;
}"""

L2_TO_LEARN = """
__global__ void l2_to_learn(const float* x, float* y, int columns, float eps) {
  __shared__ float sums[256];
  const float* row = x + (long long)blockIdx.x * columns;
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += row[c] * row[c];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {  // a tree: 128 sums, 64, ..., 1
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  float norm = sqrtf(sums[0]);
  if (norm < eps) norm = eps;
  y += (long long)blockIdx.x * columns;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = row[c] / norm;
}"""

L2_TO_RACE = """
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
l2_to_race(const float4* x, float4* y, int columns, float eps) {
  __shared__ float of_warps[32];
  int fours = columns / 4;  // rows of whole float4, at most 16 * THREADS columns
  x += (long long)blockIdx.x * fours, y += (long long)blockIdx.x * fours;
  float4 v[4];
  float sum = 0;
  for (int k = 0; k < 4; k++) {
    int c = threadIdx.x + k * THREADS;
    v[k] = c < fours ? x[c] : float4{0, 0, 0, 0};
    sum += v[k].x * v[k].x + v[k].y * v[k].y + v[k].z * v[k].z + v[k].w * v[k].w;
  }
  float norm = sqrtf(of_block<Sum>(sum, of_warps));
  float scale = 1 / (norm < eps ? eps : norm);
  for (int k = 0; k < 4; k++) {
    int c = threadIdx.x + k * THREADS;
    if (c < fours) y[c] = {v[k].x * scale, v[k].y * scale, v[k].z * scale, v[k].w * scale};
  }
}"""

L2_HOST = """
torch::Tensor l2_norm(torch::Tensor x, double eps, int64_t stream) {
  auto y = torch::empty_like(x);
  l2_to_race<256><<<x.size(0), 256, 0, (cudaStream_t)stream>>>(
      (const float4*)x.data_ptr<float>(), (float4*)y.data_ptr<float>(), x.size(1), eps);
  return y;
}"""
L2_DECLARED = "torch::Tensor l2_norm(torch::Tensor x, double eps, int64_t stream);"

THREADS = (128, 256, 512, 1024)  # per block
SIZES = (2**20, 3052 * 2**15)  # elements: whole blocks of every way; the second is near the 100 million of the claim
# Name -> the kernel, the numbers per thread.
WAYS = {
    "one number": ("add_gelu<float>", 1),
    "float4": ("add_gelu<float4>", 4),
    "eight float4": ("as_it_is<float4>", 32),
}
# The same for eight float4 per thread in blocks of 256.
CAPS = {
    "as it is": "as_it_is<float4>",
    "bounds, 5 blocks": "bounded<5>",
    "bounds, 6 blocks": "bounded<6>",
    "bounds, 8 blocks": "bounded<8>",
    "maxnreg 24": "capped<24>",
}
RECORD = "h100_80gb_hbm3.json"  # where the L2 norms are recorded, in benchmarks/results
L2_SHAPES = ((32768, 1024), (32768, 4096), (8192, 16384))  # rows, columns; fp32
L2_EPS = 1e-12
MATRIX = 8192  # rows and columns of the transposed matrix
TILES = {"tile[32][32]": 32, "tile[32][33]": 33}


def add_gelu_by(name: str, numbers: int, a: torch.Tensor, b: torch.Tensor, threads: int) -> torch.Tensor:
    """Compute gelu(a + b) of two contiguous fp32 tensors with a kernel of WAYS or CAPS; whole blocks only."""
    y = torch.empty_like(a)
    kernel = cuda_kernel(ADD_GELU + EIGHT, name, device=this_device() if a.is_cuda else "H200")
    bound = (a.numel() // min(numbers, 4),) if name.startswith("add_gelu") else ()
    kernel[a.numel() // (threads * numbers), threads](a, b, y, *bound)
    return y


def add_gelu_by_triton(a: torch.Tensor, b: torch.Tensor, threads: int) -> torch.Tensor:
    """Compute the same with the course's Triton kernel, four numbers per thread."""
    y = torch.empty_like(a)
    chosen = settings(a.dtype) | {"BLOCK": 4 * threads, "num_warps": threads // 32}
    add_gelu_kernel[(a.numel() // chosen["BLOCK"],)](a, b, y, None, a.numel(), **chosen)
    return y


def transposed(x: torch.Tensor, width: int) -> torch.Tensor:
    """Transpose a square fp32 matrix of whole 32 x 32 tiles, each `width` columns wide in shared memory."""
    y = torch.empty_like(x)
    kernel = cuda_kernel(TRANSPOSE, f"transpose<{width}>", device=this_device() if x.is_cuda else "H200")
    kernel[(len(x) // 32, len(x) // 32), (32, 32)](x, y, len(x))
    return y


def l2_to_learn(x: torch.Tensor) -> torch.Tensor:
    """Compute x / max(||x||, eps) for each row of a contiguous fp32 matrix, in blocks of 256 threads; reads x twice."""
    y = torch.empty_like(x)
    kernel = cuda_kernel(L2_TO_LEARN, "l2_to_learn", device=this_device() if x.is_cuda else "H200")
    kernel[len(x), 256](x, y, x.shape[1], L2_EPS)
    return y


def l2_to_race(x: torch.Tensor) -> torch.Tensor:
    """Compute the same, reading x once; columns are a multiple of 4, at most 16384."""
    y, threads = torch.empty_like(x), max(32, 2 ** (x.shape[1] - 1).bit_length() // 16)
    source = REDUCE + L2_TO_RACE
    kernel = cuda_kernel(source, f"l2_to_race<{threads}>", device=this_device() if x.is_cuda else "H200")
    kernel[len(x), threads](x, y, x.shape[1], L2_EPS)
    return y


def l2_norms(shape: str) -> dict:
    """Return way -> a call that normalises fp32 rows, for a shape such as "32768 x 1024"."""
    x = torch.randn(*map(int, shape.split(" x ")), device="cuda")
    ways = {
        "by operator": lambda x: x / (x * x).sum(-1, keepdim=True).sqrt().clamp_min(L2_EPS),
        "F.normalize": torch.nn.functional.normalize,
        "to learn": l2_to_learn,
        "to race": l2_to_race,
        "Triton": l2_norm,
    }
    return {way: partial(function, x) for way, function in ways.items()}


def build_extension(folder: str, **options):
    """Compile the racing L2 norm as an extension of PyTorch, into a folder; `options` of load_inline."""
    from torch.utils.cpp_extension import load_inline

    source = REDUCE + L2_TO_RACE + L2_HOST
    return load_inline(
        name="l2_norm_inline",
        cpp_sources=L2_DECLARED,
        cuda_sources=source,
        functions=["l2_norm"],
        build_directory=folder,
        extra_cuda_cflags=["-Xptxas=-v"],
        **options,
    )


def measure_load_inline() -> dict:
    """Return the build's seconds, the largest error against fp64, and the times of both ways to launch one kernel."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        extension = build_extension(folder)
        seconds = time.perf_counter() - start
        x = torch.randn(32768, 4096, device="cuda")

        def by_extension():
            return extension.l2_norm(x, L2_EPS, torch.cuda.current_stream().cuda_stream)

        exact = torch.nn.functional.normalize(x.double(), eps=L2_EPS)
        error = (by_extension().double() - exact).abs().max().item()
        few = x[:64].contiguous()
        calls = {
            "load_inline": lambda: extension.l2_norm(few, L2_EPS, torch.cuda.current_stream().cuda_stream),
            "cuda_kernel": partial(l2_to_race, few),
        }
        return {
            "build seconds": seconds,
            "largest error": error,
            "gpu": benchmark_together({"load_inline": by_extension, "cuda_kernel": partial(l2_to_race, x)}, runs=20),
            "call": benchmark_together(calls, runs=10, launches=True),
        }


def measure() -> dict[int, dict[int, dict[str, Timing]]]:
    """Return elements -> threads per block -> way -> time on the GPU."""
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
    """Return cap -> GPU time of add+GELU at the larger size, eight float4 per thread, 256 threads per block."""
    a, b = torch.randn(2, SIZES[-1], device="cuda")
    return benchmark_together({cap: partial(add_gelu_by, name, 32, a, b, 256) for cap, name in CAPS.items()}, runs=30)


def measure_transpose() -> dict[str, Timing]:
    """Return tile -> GPU time of transposing 8192 x 8192 fp32 numbers; also of copying them."""
    x = torch.randn(MATRIX, MATRIX, device="cuda")
    y = torch.empty_like(x)
    calls = {tile: partial(transposed, x, width) for tile, width in TILES.items()}
    return benchmark_together(calls | {"copy": lambda: y.copy_(x)}, runs=30)


EXPERIMENTS = {
    "cuda_four_ways": measure,
    "cuda_caps": measure_caps,
    "cuda_transpose": measure_transpose,
    "cuda_l2_norm": timed(l2_norms, [f"{r} x {c}" for r, c in L2_SHAPES], runs=30),
    "cuda_load_inline": measure_load_inline,
}
