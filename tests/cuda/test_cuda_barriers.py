"""Barriers of the grid (cooperative groups) and in shared memory (cuda::barrier): right uses run silently."""

import pytest
import torch

from helpers.instruments import cuda_kernel, measure

GRID = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void turns(float* x, float* y, int n, int rounds) {
  auto grid = cg::this_grid();
  for (int k = 0; k < rounds; k++) {
    for (int i = grid.thread_rank(); i < n; i += grid.size()) y[i] = x[(i + 1) % n] + 1;
    SYNC;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) x[i] = y[i];
    SYNC;
  }
}
extern "C" __global__ void uneven(float* x) {
  auto grid = cg::this_grid();
  __shared__ float s[64];
  if (blockIdx.x % 2) {
    for (int k = 0; k < 5; k++) { s[threadIdx.x] = k; __syncthreads(); x[blockIdx.x] = s[63 - threadIdx.x];
      __syncthreads(); }
  }
  SYNC;
  if (grid.thread_rank() == 0) for (int b = 1; b < gridDim.x; b++) x[0] += x[b];
}"""


@pytest.mark.parametrize(("blocks", "rounds"), [(4, 3), (200, 1)])
def test_a_grid_synchronises(blocks, rounds):
    x, y = torch.arange(256.0 * blocks), torch.empty(256 * blocks)
    expected = x.roll(-rounds) + rounds
    kernel = cuda_kernel(GRID.replace("SYNC", "grid.sync()"), "turns")
    traffic = measure(kernel[blocks, 256], x, y, x.numel(), rounds)
    assert torch.equal(x, expected)
    assert traffic.hazards == ()
    assert (traffic.bytes_read, traffic.bytes_written) == (2 * rounds * x.nbytes,) * 2


def test_without_its_barrier_the_grid_races():
    x, y = torch.arange(1024.0), torch.empty(1024)
    found = measure(cuda_kernel(GRID.replace("SYNC", "__syncthreads()"), "turns")[4, 256], x, y, 1024, 2).hazards
    assert {hazard.kind for hazard in found} == {"race"}


def test_blocks_may_come_to_the_grids_barrier_late():
    x = torch.zeros(8)
    traffic = measure(cuda_kernel(GRID.replace("SYNC", "grid.sync()"), "uneven")[8, 64], x)
    assert traffic.hazards == ()
    assert x.tolist() == [16, 4, 0, 4, 0, 4, 0, 4]


def test_more_blocks_than_run_at_once_are_refused():
    kernel = cuda_kernel(GRID.replace("SYNC", "grid.sync()"), "turns")
    most = 132 * kernel[1, 256].resources.occupancy().blocks
    refused = rf"all blocks must run at once: H100 holds {most:,} of them \(\d+ on each of 132 SMs\), got {most + 1:,}"
    with pytest.raises(ValueError, match=refused):
        kernel[most + 1, 256](torch.zeros(4), torch.zeros(4), 4, 1)


def test_a_block_that_spins_does_not_hold_up_a_complete_barrier():
    source = """__global__ void k(volatile int* flag, int* y) {
      if (blockIdx.x == 0) {
        if (threadIdx.x == 0) while (!*flag) {}
      } else {
        for (int k = 0; k < 3; k++) __syncthreads();
        if (threadIdx.x == 0) *flag = 1;
      }
      y[blockIdx.x * blockDim.x + threadIdx.x] = 1;
    }"""
    y = torch.zeros(128, dtype=torch.int32)
    cuda_kernel(source, "k")[2, 64](torch.zeros(1, dtype=torch.int32), y)
    assert y.all()


HEAD = """
#include <cuda/barrier>
using Barrier = cuda::barrier<cuda::thread_scope_block>;
__global__ void k(const float* x, float* y) {
  __shared__ Barrier full, empty;
  __shared__ alignas(16) float s[2][64];
  int t = threadIdx.x;
  if (t == 0) { init(&full, blockDim.x); init(&empty, blockDim.x); }
  __syncthreads();
"""
SOUND = {
    "arrive and wait": "s[0][t] = x[t]; full.arrive_and_wait(); y[t] = s[0][t ^ 32];",
    "in two halves": "s[0][t] = x[t]; auto token = full.arrive(); float v = x[t ^ 32] * 0; full.wait(std::move(token));"
    " y[t] = s[0][t ^ 32] + v;",
    "many phases": "for (int k = 0; k < 5; k++) { s[k % 2][t] = x[t]; full.arrive_and_wait();"
    " y[t] = s[k % 2][t ^ 32]; }",
    "a copy": "cuda::memcpy_async(&s[0][t], &x[t], sizeof(float), full); full.arrive_and_wait(); y[t] = s[0][t ^ 32];",
    "two stages of copies": """
      cuda::memcpy_async(&s[0][t], &x[t], sizeof(float), full);
      auto first = full.arrive();
      cuda::memcpy_async(&s[1][t], &x[t], sizeof(float), empty);
      auto second = empty.arrive();
      full.wait(std::move(first));
      y[t] = s[0][t ^ 32];
      empty.wait(std::move(second));
      y[t] += s[1][t ^ 32] - s[0][t ^ 32];""",
    "warps that produce and warps that consume": """
      if (t < 32) {
        for (int k = 0; k < 2; k++) {
          s[0][t] = x[32 + t]; s[0][32 + t] = x[t];
          (void)full.arrive();
          empty.arrive_and_wait();
        }
      } else {
        for (int k = 0; k < 2; k++) {
          full.arrive_and_wait();
          y[t] = s[0][t]; y[t - 32] = s[0][t - 32];
          (void)empty.arrive();
        }
      }""",
}


def ran(statements):
    x, y = torch.randn(64), torch.empty(64)
    return x, y, measure(cuda_kernel(HEAD + statements + "}", "k")[1, 64], x, y)


@pytest.mark.parametrize("name", SOUND)
def test_barriers_of_shared_memory(name):
    x, y, traffic = ran(SOUND[name])
    assert traffic.hazards == ()
    assert torch.equal(y, x[torch.arange(64) ^ 32])


FAULTY = {
    "arrived without waiting": ("s[0][t] = x[t]; (void)full.arrive(); y[t] = s[0][t ^ 32];", "race"),
    "a copy that nobody waits for": (
        "cuda::memcpy_async(&s[0][t], &x[t], sizeof(float), full); (void)full.arrive(); y[t] = s[0][t];",
        "unfinished copy",
    ),
    "a copy at the other barrier": (
        "cuda::memcpy_async(&s[0][t], &x[t], sizeof(float), full); (void)full.arrive(); empty.arrive_and_wait();"
        " y[t] = s[0][t ^ 32];", "unfinished copy",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTY)
def test_a_wait_that_is_missing_is_found(name):
    statements, kind = FAULTY[name]
    assert {hazard.kind for hazard in ran(statements)[2].hazards} == {kind}


def test_an_initialisation_that_others_may_not_have_seen_is_a_race():
    source = (HEAD + "y[t] = 1; full.arrive_and_wait(); }").replace("__syncthreads();", "")
    found = measure(cuda_kernel(source, "k")[1, 64], torch.zeros(64), torch.zeros(64)).hazards
    assert "race" in {hazard.kind for hazard in found}


def test_waiting_for_a_parity_and_dropping_out():
    source = """__global__ void k(int* y) {
      __shared__ unsigned long long bar;
      unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
      if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at), "r"(64));
      __syncthreads();
      if (threadIdx.x >= 32) {
        asm volatile("{ .reg .b64 s; mbarrier.arrive_drop.shared.b64 s, [%0]; }" :: "r"(at) : "memory");
        return;
      }
      for (int phase = 0; phase < 3; phase++) {
        unsigned done = 0;
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at) : "memory");
        while (!done) {
          asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                       : "=r"(done) : "r"(at), "r"(phase & 1) : "memory");
        }
        y[threadIdx.x] += 1;
      }
    }"""
    y = torch.zeros(32, dtype=torch.int32)
    assert measure(cuda_kernel(source, "k")[1, 64], y).hazards == ()
    assert (y == 3).all()
