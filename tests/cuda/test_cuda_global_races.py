"""Global memory watched for races: planted ones are found, the patterns of NVIDIA's samples are not taken for any."""

import pytest
import torch

from helpers.instruments import cuda_kernel, measure

# Seven tenths of a second each time that it is compiled, so only where it is used.
GROUPS = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
"""
HEAD = """
__device__ int scratch[1024];
__device__ unsigned int arrived;
__device__ int lock;
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float s[256];
  s[threadIdx.x] = value;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) s[threadIdx.x] += s[threadIdx.x + step];
    __syncthreads();
  }
  return s[0];
}
"""
RACES = {
    "histogram without atomics": "out[(int)x[i] & 7]++;",
    "one sum of all": "*out += x[i];",
    "one value of each block": "if (!threadIdx.x) *out = blockIdx.x;",
    "neighbours in a block": "out[i] = x[i]; out[i] = out[i ^ 64] + 1;",
    "neighbours in a warp": "out[i] = x[i]; out[i] += out[i ^ 1];",
    "neighbours in other blocks": "out[i] = x[i]; out[1024 + i] = out[(i + 256) & 1023];",
    "overwritten while others read": "float left = out[(i + 1) & 1023]; __syncthreads(); out[i] = left + i;",
    "bytes of one word": "((char*)out)[i & 3] = i;",
    "a variable of the module": "scratch[threadIdx.x] = i; __syncthreads(); out[i] = scratch[threadIdx.x ^ 32];",
    "a variable with no barrier": "if (!blockIdx.x) { scratch[threadIdx.x] = i; out[i] = scratch[threadIdx.x ^ 32]; }",
    "set to zero beside the atomics": "if (!i) *out = 5; atomicAdd(out, 1.f);",
    "last block without counting": "float sum = block_sum(x[i]); if (!threadIdx.x) out[blockIdx.x] = sum;"
    "if (blockIdx.x == 3 && !threadIdx.x) out[8] = out[0] + out[1] + out[2] + out[3];",
    "no lock": "if (!threadIdx.x) *out = *out + x[i];",
    "four bytes of another thread's sixteen": "if (i < 256) ((float4*)out)[i] = make_float4(i, i, i, 2);"
    "if (i < 256) out[1024 + i] = out[4 * (i ^ 32) + 3];",
    "last block without a fence": """
      if (!threadIdx.x) {
        out[blockIdx.x] = x[i];
        if (atomicInc(&arrived, gridDim.x) == gridDim.x - 1) out[8] = out[0] + out[1] + out[2] + out[3];
      }""",
    "a fence for the block only": """
      if (!threadIdx.x) {
        out[blockIdx.x] = x[i];
        __threadfence_block();
        if (atomicInc(&arrived, gridDim.x) == gridDim.x - 1) out[8] = out[0] + out[1] + out[2] + out[3];
      }""",
    "atomics of a block's scope": "atomicAdd_block(out, x[i]);",
    "an atomic, then a plain load by others": "atomicAdd(out, x[i]); out[8 + i] = *out;",
    "an atomic of one thread, the load of the same": "if (!threadIdx.x) { atomicAdd(out, x[i]); out[8 + i] = *out; }",
    "atomics of all blocks behind one block's barrier": "if (!threadIdx.x) atomicAdd(out, x[i]); __syncthreads();"
    "out[8 + i] = *out;",
    "a plain load, then atomics of others": "float before = *out; atomicAdd(out, x[i]); out[8 + i] = before;",
    "a plain check before the atomic": "if (x[i] > *out) atomicMax((int*)out, __float_as_int(x[i]));",
    "a volatile store, a plain load": "if (!threadIdx.x) *(volatile float*)out = x[i]; out[8 + i] = *out;",
    "a plain load after a fence, but no flag": "if (!threadIdx.x) { atomicAdd(out, x[i]); __threadfence(); }"
    "out[8 + i] = *out;",
    "a flag that one thread saw": "volatile unsigned int* flag = &arrived;"
    "if (!i) { out[0] = x[0]; __threadfence(); *flag = 1; } if (blockIdx.x == 1 && !threadIdx.x) while (!*flag) {}"
    "if (blockIdx.x == 1) out[8 + i] = out[0];",
    "a barrier of another half": 'out[i] = x[i]; asm volatile("bar.sync %0, 128;" :: "r"(1 + threadIdx.x / 128));'
    "out[1024 + i] = out[i ^ 128];",
    "lanes of another mask": "out[i] = x[i]; __syncwarp(i & 16 ? 0xffff0000 : 0xffff); out[1024 + i] = out[i ^ 16];",
    "read by all blocks, changed by the last": "float m = out[0]; __syncthreads(); if (i == 768) out[0] = m + 1;"
    "out[8 + i] = m;",
    "one of two warps that read is waited for": "if (blockIdx.x) return; if (i >= 32 && i < 96) out[8 + i] = out[0];"
    'if (i < 32 || (i >= 64 && i < 96)) asm volatile("bar.sync 1, 64;" ::: "memory"); if (!i) out[0] = 5;',
    "sixteen bytes": "((float4*)out)[threadIdx.x] = make_float4(i, i, i, i);",
}
SOUND = {
    "a thread an element": "out[i] = x[i]; out[i] += 1;",
    "one thread of all": "if (!i) for (int j = 0; j < 1024; j++) *out += x[j];",
    "barrier between": "out[i] = x[i]; __syncthreads(); out[1024 + i] = out[i ^ 64];",
    "warp barrier between": "out[i] = x[i]; __syncwarp(); out[1024 + i] = out[i ^ 1];",
    "one value of all": "*out = 1;",
    "one value of all, looped": "for (int j = 0; j < 4; j++) if (x[(i + j) & 1023] > 0) *out = 1;",
    "histogram with atomics": "atomicAdd(&out[(int)x[i] & 7], 1.f);",
    "a barrier of its half": 'out[i] = x[i]; asm volatile("bar.sync %0, 128;" :: "r"(1 + threadIdx.x / 128));'
    "out[1024 + i] = out[i ^ 64];",
    "lanes of its mask": "out[i] = x[i]; __syncwarp(i & 16 ? 0xffff0000 : 0xffff); out[1024 + i] = out[i ^ 1];",
    "atomics of a block's scope, a place a block": "atomicAdd_block(&out[blockIdx.x], x[i]);",
    "atomics of a block, loaded behind its barrier": "atomicAdd(&out[blockIdx.x], x[i]); __syncthreads();"
    "out[8 + i] = out[blockIdx.x];",
    "atomics of a warp, loaded behind its barrier": "atomicAdd(&out[i / 32], x[i]); __syncwarp();"
    "out[256 + i] = out[i / 32];",
    "an atomic, then a volatile load": "atomicAdd(out, x[i]); out[8 + i] = *(volatile float*)out;",
    "an atomic, then an atomic load": "atomicAdd(out, x[i]); out[8 + i] = atomicAdd(out, 0.f);",
    "a volatile check before the atomic": "if (x[i] > *(volatile float*)out)"
    "atomicMax((int*)out, __float_as_int(x[i]));",
    "volatile stores and loads of one place": "volatile float* all = out; *all = x[i]; out[8 + i] = *all;",
    "a histogram per block, then one of all": """
      atomicAdd(&out[8 * blockIdx.x + ((int)x[i] & 7)], 1.f);
      __syncthreads();
      if (threadIdx.x < 8) atomicAdd(&out[64 + threadIdx.x], out[8 * blockIdx.x + threadIdx.x]);""",
    "last block loads what all added": """
      __shared__ bool last;
      if (!threadIdx.x) {
        atomicAdd(out, x[i]);
        __threadfence();
        last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
      }
      __syncthreads();
      if (last) out[8 + threadIdx.x] = *out;""",
    "both warps that read are waited for": "if (blockIdx.x) return; if (i >= 32 && i < 96) out[8 + i] = out[0];"
    'if (i < 96) asm volatile("bar.sync 1, 96;" ::: "memory"); if (!i) out[0] = 5;',
    "read by a block, changed behind its barrier": "float m = x[0] + out[256 * blockIdx.x]; __syncthreads();"
    "if (!threadIdx.x) out[256 * blockIdx.x] = m; else out[256 * blockIdx.x + threadIdx.x] = m;",
    "partial sums": "float sum = block_sum(x[i]); if (!threadIdx.x) out[blockIdx.x] = sum;",
    "partial sums and an atomic": "float sum = block_sum(x[i]); if (!threadIdx.x) atomicAdd(out, sum);",
    "grid-stride loop": "for (int j = i; j < 2048; j += 512) if (i < 512) out[j] = x[j & 1023];",
    "bytes of their own": "((char*)out)[i] = i;",
    "sixteen bytes of their own": "if (i < 256) ((float4*)out)[i] = make_float4(i, i, i, i);",
    "last block after a fence": """
      __shared__ bool last;
      float sum = block_sum(x[i]);
      if (!threadIdx.x) {
        out[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(&arrived, gridDim.x) == gridDim.x - 1;
      }
      __syncthreads();
      if (last) {
        float all = block_sum(threadIdx.x < gridDim.x ? out[threadIdx.x] : 0);
        if (!threadIdx.x) { out[0] = all; arrived = 0; }
      }""",
    "spin lock": """
      if (!threadIdx.x) {
        while (atomicCAS(&lock, 0, 1)) {}
        __threadfence();
        *out = *out + x[i];
        __threadfence();
        atomicExch(&lock, 0);
      }""",
    "a lock, then the whole block": """
      if (!threadIdx.x) {
        while (atomicCAS(&lock, 0, 1)) {}
        __threadfence();
        *out += x[i];
        __threadfence();
        atomicExch(&lock, 0);
      }
      __syncthreads();
      out[8 + i] = x[i];""",
    "cooperative groups": """
      auto block = cg::this_thread_block();
      auto warp = cg::tiled_partition<32>(block);
      out[i] = x[i];
      block.sync();
      float sum = out[i ^ 33];
      for (int far = 16; far; far /= 2) sum += warp.shfl_down(sum, far);
      if (warp.thread_rank() == 0) atomicAdd(&out[1024], sum);""",
    "a flag that a lane of each warp saw": """
      volatile unsigned int* flag = &arrived;
      if (!i) { out[0] = x[0]; __threadfence(); *flag = 1; }
      if (blockIdx.x) {
        if (threadIdx.x % 32 == 0) while (!*flag) {}
        __syncwarp();
        out[8 + i] = out[0];
      }""",
    "a flag that one thread saw before a barrier": """
      volatile unsigned int* flag = &arrived;
      if (!i) { out[0] = x[0]; __threadfence(); *flag = 1; }
      if (blockIdx.x) {
        if (!threadIdx.x) while (!*flag) {}
        __syncthreads();
        if (threadIdx.x == 77) atomicAdd(&out[4], 1.f);
        out[8 + i] = out[0];
      }""",
    "a flag that is volatile": """
      volatile unsigned int* flag = &arrived;
      if (!i) { out[0] = x[0]; __threadfence(); *flag = 1; }
      if (!threadIdx.x) { while (!*flag) {} __threadfence(); out[8 + blockIdx.x] = out[0]; }""",
}


def hazards(statements, blocks=4):
    source = f"""{GROUPS if "cg::" in statements else ""}{HEAD}
__global__ void k(const float* x, float* out) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  {statements}
}}"""
    x = torch.arange(256 * blocks).float() % 7 + 1
    return measure(cuda_kernel(source, "k")[blocks, 256], x, torch.zeros(512 * blocks)).hazards


@pytest.mark.parametrize("name", RACES)
def test_planted_race_is_found_and_nothing_else(name):
    found = hazards(RACES[name])
    assert found
    assert {hazard.kind for hazard in found} == {"race"}


@pytest.mark.parametrize("name", SOUND)
def test_sound_pattern_has_no_hazard(name):
    assert hazards(SOUND[name]) == ()


def test_blocks_that_run_apart_on_the_cpu_race_too():
    source = """__global__ void k(float* out) {
      if (blockIdx.x % 299 == 0 && threadIdx.x == 7) out[5] = 1 + blockIdx.x;
    }"""
    (hazard,) = measure(cuda_kernel(source, "k")[300, 256], torch.zeros(8)).hazards
    assert (hazard.kind, hazard.line, hazard.program, hazard.thread) == ("race", 2, (299, 0, 0), (7, 0, 0))
    assert hazard.where == "out[5], with thread (7, 0, 0) of block (0, 0, 0) and nothing that orders the two"


def test_a_dot_product_of_all_blocks_that_the_grid_waits_for_has_no_race():
    source = """#include <cooperative_groups.h>
    __global__ void k(const float* x, float* out, double* dot) {
      auto grid = cooperative_groups::this_grid();
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (!i) *dot = 0;
      grid.sync();
      double mine = x[i] * x[i];
      for (int far = 16; far; far /= 2) mine += __shfl_down_sync(~0u, mine, far);
      if (threadIdx.x % 32 == 0) atomicAdd(dot, mine);
      SYNC
      out[i] = x[i] / *dot;
    }"""
    x, out, dot = torch.ones(1024), torch.zeros(1024), torch.ones(1, dtype=torch.float64)
    with_sync = measure(cuda_kernel(source.replace("SYNC", "grid.sync();"), "k")[4, 256], x, out, dot)
    assert with_sync.hazards == ()
    assert out.eq(1 / 1024).all()
    (hazard,) = measure(cuda_kernel(source.replace("SYNC", "__syncthreads();"), "k")[4, 256], x, out, dot).hazards
    assert (hazard.kind, hazard.source) == ("race", "out[i] = x[i] / *dot;")


SCAN = """
      __shared__ float s[256];
      int t = threadIdx.x, i = blockIdx.x * 256 + t;
      s[t] = x[i];
      __syncthreads();
      for (int step = 1; step < 256; step *= 2) {
        float before = t >= step ? s[t - step] : 0;
        __syncthreads();
        s[t] += before;
        __syncthreads();
      }
      y[i] = s[t];
      if (t == 255) sums[blockIdx.x] = s[t];"""
JOINED = """
      float before = 0;
      for (int block = 0; block < blockIdx.x; block++) before += sums[block];
      y[blockIdx.x * 256 + threadIdx.x] += before;"""


def test_a_scan_in_two_launches_has_no_race():
    source = f"""__global__ void blocks(const float* x, float* y, float* sums) {{ {SCAN} }}
    __global__ void joined(float* y, const float* sums) {{ {JOINED} }}"""

    def scan(x):
        y, sums = torch.empty_like(x), torch.empty(16)
        cuda_kernel(source, "blocks")[16, 256](x, y, sums)
        cuda_kernel(source, "joined")[16, 256](y, sums)
        return y

    x = torch.randint(0, 9, (4096,)).float()
    traffic = measure(scan, x)
    assert torch.equal(traffic.result, x.cumsum(0))
    assert traffic.hazards == ()


@pytest.mark.parametrize(("body", "line"), [(SCAN + JOINED, "block++"), (SCAN.replace("__syncthreads();", ""), "s[t")])
def test_a_scan_in_one_launch_or_without_barriers_races(body, line):
    source = f"__global__ void k(const float* x, float* y, float* sums) {{ {body} }}"
    found = measure(cuda_kernel(source, "k")[16, 256], torch.ones(4096), torch.empty(4096), torch.empty(16)).hazards
    assert any(hazard.kind == "race" and line in hazard.source for hazard in found)
