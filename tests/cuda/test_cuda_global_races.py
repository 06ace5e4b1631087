"""Global memory watched for races: planted ones are found, the patterns of NVIDIA's samples are not taken for any."""

import pytest
import torch

from helpers.instruments import cuda_kernel, measure

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
    "a flag that is volatile": """
      volatile unsigned int* flag = &arrived;
      if (!i) { out[0] = x[0]; __threadfence(); *flag = 1; }
      if (!threadIdx.x) { while (!*flag) {} __threadfence(); out[8 + blockIdx.x] = out[0]; }""",
}


def hazards(statements, blocks=4):
    source = f"""{HEAD}
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
