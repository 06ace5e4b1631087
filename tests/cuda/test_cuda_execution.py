"""Kernels executed on the CPU against PyTorch in float64."""

import re
import time

import pytest
import torch

from helpers.instruments import cuda_kernel, measure

GELU = """
__device__ float gelu(float v) { return 0.5f * v * (1.f + erff(v * 0.70710678f)); }
__global__ void add_gelu(const float4* x, const float4* y, float4* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 4) {
    float4 a = x[i], b = y[i];
    out[i] = make_float4(gelu(a.x + b.x), gelu(a.y + b.y), gelu(a.z + b.z), gelu(a.w + b.w));
  }
}"""

SOFTMAX = """
extern __shared__ float part[];
template <int WARPS> __device__ float all(float v, bool largest) {
  for (int d = 16; d; d >>= 1) {
    float other = __shfl_xor_sync(~0u, v, d);
    v = largest ? fmaxf(v, other) : v + other;
  }
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = part[0];
  for (int w = 1; w < WARPS; w++) v = largest ? fmaxf(v, part[w]) : v + part[w];
  __syncthreads();
  return v;
}
template <int WARPS> __global__ void softmax(const float* x, float* out, int n) {
  x += (long long)blockIdx.x * n, out += (long long)blockIdx.x * n;
  float top = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, x[i]);
  top = all<WARPS>(top, true);
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(x[i] - top);
  sum = all<WARPS>(sum, false);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = expf(x[i] - top) / sum;
}"""


def close(result, expected, dtype=torch.float32):
    """Within twice the error of rounding the exact answer, times the few operations that lead to it."""
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())


@pytest.mark.parametrize("n", [4, 1024, 100_000])
def test_add_gelu_of_four_numbers_a_thread(n):
    x, y, out = torch.randn(n), torch.randn(n), torch.full((n,), torch.nan)
    cuda_kernel(GELU, "add_gelu")[-(-n // 1024), 256](x, y, out, n)
    close(out, torch.nn.functional.gelu((x + y).double()))


@pytest.mark.parametrize("n", [1, 31, 1025])
def test_softmax_of_a_row_in_one_block(n):
    x, out = 10 * torch.randn(5, n), torch.full((5, n), torch.nan)
    cuda_kernel(SOFTMAX, "softmax<4>")[5, 128, 16](x, out, n)
    close(out, x.double().softmax(1))


def test_blocks_of_three_dimensions_and_no_whole_warp():
    source = """
    __global__ void k(int* out) {
      int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
    }"""
    out = torch.zeros(2 * 3 * 2, 3 * 5 * 3, dtype=torch.int32)
    cuda_kernel(source, "k")[(2, 3, 2), (3, 5, 3)](out)
    assert torch.equal(out, 1000 * torch.arange(12)[:, None].int() + torch.arange(45).int())


def test_threads_part_and_meet_again():
    source = """
    __global__ void k(const int* x, int* out) {
      int v = x[threadIdx.x], steps = 0;
      while (v != 1) { v = v % 2 ? 3 * v + 1 : v / 2; steps++; }
      out[threadIdx.x] = steps + __popc(__ballot_sync(~0u, steps > 20));
    }"""

    def collatz(v):
        return 0 if v == 1 else 1 + collatz(3 * v + 1 if v % 2 else v // 2)

    out = torch.zeros(64, dtype=torch.int32)
    cuda_kernel(source, "k")[1, 64](torch.arange(1, 65, dtype=torch.int32), out)
    steps = [collatz(v) for v in range(1, 65)]
    long = [sum(step > 20 for step in steps[:32])] * 32 + [sum(step > 20 for step in steps[32:])] * 32
    assert out.tolist() == [step + more for step, more in zip(steps, long, strict=True)]


def test_local_arrays_and_generic_addresses():
    source = """
    __global__ void k(const int* x, int* out, int shift) {
      int local[32];
      __shared__ int shared[32];
      for (int j = 0; j < 32; j++) local[(j + shift) % 32] = x[j];
      shared[threadIdx.x] = local[threadIdx.x];
      __syncthreads();
      const int* p = threadIdx.x % 3 == 0 ? x : threadIdx.x % 3 == 1 ? local : shared;
      out[threadIdx.x] = p[threadIdx.x ^ 1];
    }"""
    x = torch.randperm(32).int()
    out = torch.zeros(32, dtype=torch.int32)
    cuda_kernel(source, "k")[1, 32](x, out, 5)
    turned = x.roll(5)
    at = torch.arange(32)
    assert torch.equal(out, torch.where(at % 3 == 0, x[at ^ 1], turned[at ^ 1]))


def test_atomics_count_every_thread():
    source = """
    __global__ void k(const int* x, int* histogram, float* sum, unsigned* next, int* seen) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      atomicAdd(&histogram[x[i]], 1);
      atomicAdd(sum, 0.5f);
      seen[atomicInc(next, 5000u)] = 1;
      atomicMax(&histogram[7], i);
    }"""
    x = torch.randint(0, 7, (2048,), dtype=torch.int32)
    histogram, seen = torch.zeros(8, dtype=torch.int32), torch.zeros(2048, dtype=torch.int32)
    total, ticket = torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    cuda_kernel(source, "k")[8, 256](x, histogram, total, ticket, seen)
    assert seen.all()
    assert torch.equal(histogram[:7], x.bincount(minlength=7).int())
    assert (histogram[7].item(), total.item()) == (2047, 1024)


def test_an_instruction_that_is_not_covered_is_named_with_its_line():
    source = """__global__ void k(int* x) {
      x[0] = 1;
      asm("fns.b32 %0, %1, 0, 1;" : "=r"(x[0]) : "r"(x[0]));
    }"""
    x = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=r"does not cover fns\.b32, line 3, `asm\(\"fns\.b32 %0"):
        cuda_kernel(source, "k")[1, 32](x)
    assert x.item() == 0


def test_an_atomic_of_a_vector_is_named_with_its_line():
    source = """__global__ void k(float2* x) {
      atomicAdd(x, make_float2(1, 2));
    }"""
    with pytest.raises(NotImplementedError, match=r"does not cover atom.global.add.v2.f32, line 2") as raised:
        cuda_kernel(source, "k")[1, 32](torch.zeros(2))
    assert "\n" not in str(raised.value)


def test_a_lock_within_a_warp_is_handed_on():
    source = """__global__ void k(int* lock, int* count) {
      while (atomicCAS(lock, 0, 1) != 0) {}
      *count += 1;
      __threadfence();
      atomicExch(lock, 0);
    }"""
    lock, count = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    cuda_kernel(source, "k")[1, 8](lock, count)
    assert (lock.item(), count.item()) == (0, 8)


def test_a_failing_assertion_stops_the_kernel():
    source = "#include <cuda_fp16.h>\n__global__ void k(const int* x) { assert(x[threadIdx.x] < 40); }"
    with pytest.raises(RuntimeError, match=r"line 2, `.*< 40\); }`: an assertion fails \(thread \(40, 0, 0\) of block"):
        cuda_kernel(source, "k")[1, 64](torch.arange(64, dtype=torch.int32))


ENDLESS = {
    "a flag": "while (*x == 0) {}",
    "a barrier": "while (*x == 0) __syncthreads();",
    "a lock in shared memory": """
      __shared__ int lock;
      lock = 0;
      __syncthreads();
      while (atomicCAS(&lock, 0, 1)) {}
      *x += 1;""",
    "arithmetic": "float a = *x; while (a < 1) { a = sinf(a) * 0.5f + sqrtf(a); } *x = a;",
    "a step of 0": "for (int i = threadIdx.x; i < 1000; i += *x) x[i] = 0;",
    "shuffles": "while (__shfl_sync(~0u, *x, 0) == 0) __syncwarp();",
    "its own wait": "if (blockIdx.x == 0) while (*x == 0) {} else if (blockIdx.x == 999) *x = 1;",
}


def _endless(name: str, blocks: int) -> float:
    """Run an endless loop to its message; the CPU's seconds that it took."""
    source = f"__global__ void k(volatile int* x) {{ {ENDLESS[name]}\n}}"
    kernel, x = cuda_kernel(source, "k"), torch.zeros(1024, dtype=torch.int32)
    began = time.thread_time()
    with pytest.raises(
        RuntimeError, match=r"k is still running after [\d,]+ steps, now at line \d+, `.*`: does every loop"
    ):
        kernel[blocks, 256](x)
    return time.thread_time() - began


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_loop_ends_with_a_message(name, monkeypatch):
    monkeypatch.setattr("helpers.instruments.cuda.executor.MAX_SECONDS", 0.01)
    monkeypatch.setattr("helpers.instruments.cuda.executor.MANY_STEPS", 200)
    _endless(name, 1000)


@pytest.mark.long
@pytest.mark.parametrize(("name", "blocks"), [("a flag", 1), ("a barrier", 1000), ("arithmetic", 1000)])
def test_an_endless_loop_ends_within_ten_seconds(name, blocks):
    assert _endless(name, blocks) < 10


@pytest.mark.parametrize("index", ["n", "-1", "1 << 30", "-(1LL << 40)"])
def test_out_of_bounds_is_refused_before_memory_is_touched(index):
    store = f"__global__ void k(float* x, long long n) {{ x[{index}] = 1; }}"
    load = f"__global__ void k(float* x, long long n) {{ x[0] = x[{index}]; }}"
    whole = torch.zeros(64)
    for source, kind in ((store, "out-of-bounds store"), (load, "out-of-bounds read")):
        with pytest.raises(RuntimeError, match=f"line 1, `{re.escape(source)}`: {kind}"):
            cuda_kernel(source, "k")[1, 1](whole[16:32], 16)
    assert not whole.any()


def test_misaligned_vectors_are_refused():
    source = "__global__ void k(float* x) { *(float4*)(x + 1) = make_float4(1, 2, 3, 4); }"
    with pytest.raises(RuntimeError, match="misaligned store: an access of 16 bytes at byte 4"):
        cuda_kernel(source, "k")[1, 1](torch.zeros(64))


def test_a_barrier_may_be_the_last_that_a_thread_does():
    y = torch.zeros(64)
    cuda_kernel("__global__ void k(float* y) { y[threadIdx.x] = 1; __syncthreads(); }", "k")[1, 64](y)
    assert y.all()


def test_a_device_variable_keeps_its_value_from_launch_to_launch():
    """So that a counter which nobody sets back is as wrong as on a GPU."""
    source = """
    __device__ unsigned int arrived; __device__ float total[2] = {1.5f, 2};
    __global__ void k(float* out) {
      if (atomicAdd(&arrived, 1) == gridDim.x - 1) out[0] += 1;
      if (blockIdx.x == 0) out[1] = total[1]++;
    }"""
    out = torch.zeros(2)
    for launch in range(3):
        cuda_kernel(source, "k")[4, 1](out)
        assert out.tolist() == [1, 2 + launch]
    measure(cuda_kernel(source, "k")[4, 1], out)
    assert out.tolist() == [1, 5]
    other = torch.zeros(2)
    cuda_kernel(source.replace("1.5f", "2.5f"), "k")[4, 1](other)  # another module
    assert other.tolist() == [1, 2]


def test_variables_that_hold_addresses_of_others():
    source = """
    __device__ int first[4] = {1, 2, 3, 4}, second[4] = {5, 6, 7, 8};
    __device__ int* both[3] = {first, second + 1, nullptr};
    __global__ void k(int* y) { y[threadIdx.x] = both[0][threadIdx.x] + (both[2] ? 99 : both[1][threadIdx.x]); }"""
    y = torch.zeros(3, dtype=torch.int32)
    cuda_kernel(source, "k")[1, 3](y)
    assert y.tolist() == [1 + 6, 2 + 7, 3 + 8]
