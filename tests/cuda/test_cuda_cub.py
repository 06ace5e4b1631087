"""CUB's primitives of blocks and warps on the executor."""

import pytest
import torch

from helpers.instruments import cuda_kernel, measure

SOURCE = """
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_reduce.cuh>
__global__ void sum(const float* x, float* y) {
  using Reduce = cub::BlockReduce<float, 128>;
  __shared__ typename Reduce::TempStorage scratch;
  float all = Reduce(scratch).Sum(x[threadIdx.x]);
  if (threadIdx.x == 0) y[0] = all;
}
__global__ void scan(const float* x, float* y) {
  using Scan = cub::BlockScan<float, 128>;
  __shared__ typename Scan::TempStorage scratch;
  float v = x[threadIdx.x];
  Scan(scratch).InclusiveSum(v, v);
  y[threadIdx.x] = v;
}
__global__ void warps(const float* x, float* y) {
  using Reduce = cub::WarpReduce<float>;
  __shared__ typename Reduce::TempStorage scratch[4];
  float all = Reduce(scratch[threadIdx.x / 32]).Sum(x[threadIdx.x]);
  if (threadIdx.x % 32 == 0) y[threadIdx.x / 32] = all;
}
__global__ void sorted(const float* x, float* y) {
  using Sort = cub::BlockRadixSort<float, 128, 1>;
  __shared__ typename Sort::TempStorage scratch;
  float v[1] = {x[threadIdx.x]};
  Sort(scratch).SortDescending(v);
  y[threadIdx.x] = v[0];
}
__global__ void moved(const float* x, float* y) {
  using Load = cub::BlockLoad<float, 32, 4, cub::BLOCK_LOAD_TRANSPOSE>;
  using Store = cub::BlockStore<float, 32, 4, cub::BLOCK_STORE_VECTORIZE>;
  __shared__ union { typename Load::TempStorage load; typename Store::TempStorage store; } scratch;
  float v[4];
  Load(scratch.load).Load(x, v);
  for (int j = 0; j < 4; j++) v[j] = 4 * threadIdx.x + j - v[j];
  __syncthreads();
  Store(scratch.store).Store(y, v);
}"""
EXPECTED = {
    "sum": (128, lambda x: x.sum()[None]),
    "scan": (128, lambda x: x.cumsum(0)),
    "warps": (128, lambda x: x.reshape(4, 32).sum(1)),
    "sorted": (128, lambda x: x.sort(descending=True).values),
    "moved": (32, lambda x: torch.arange(128) - x),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_block_primitives(name):
    threads, function = EXPECTED[name]
    x = torch.randint(-20, 20, (128,)).float()
    expected = function(x)
    y = torch.empty(len(expected))
    assert measure(cuda_kernel(SOURCE, name)[1, threads], x, y).hazards == ()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("define", ["#define detail secret", "%:define A", "# define B", "#def\\\nine C"])
def test_no_macro_redirects_what_cub_includes(define):
    with pytest.raises(ValueError, match="a source that includes CUB may not have a #define"):
        cuda_kernel(f"{define}\n{SOURCE}", "sum")
