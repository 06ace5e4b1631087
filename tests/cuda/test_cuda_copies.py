"""cp.async is complete when it is waited for: pipelines that wait are silent, a missing or wrong wait is named."""

import re

import pytest
import torch

from helpers.instruments import cuda_kernel, measure
from helpers.instruments.cuda.ptx import plain_name

HEAD = """#include <cuda_pipeline.h>
__global__ void k(const float* x, float* y) {
  __shared__ alignas(16) float tile[2][64];
  int t = threadIdx.x;
"""
COPY = "__pipeline_memcpy_async(&tile[0][t], &x[t], 4);\n"


def ran(statements, threads=64):
    x, y = torch.arange(1.0, 257), torch.full((256,), -1.0)
    kernel = cuda_kernel(HEAD + statements + "}", "k")
    return x, y, measure(kernel[1, threads], x, y)


DOUBLE_BUFFERED = """
  __pipeline_memcpy_async(&tile[0][t], &x[t], 4);
  __pipeline_commit();
  for (int k = 0; k < 4; k++) {
    if (k < 3) __pipeline_memcpy_async(&tile[(k + 1) %% 2][t], &x[64 * (k + 1) + t], 4);
    __pipeline_commit();
    __pipeline_wait_prior(%s);
    %s
    y[64 * k + t] = tile[k %% 2][t ^ 32];
    __syncthreads();
  }
"""


def test_a_double_buffered_loop_is_silent_and_right():
    x, y, traffic = ran(DOUBLE_BUFFERED % (1, "__syncthreads();"))
    assert traffic.hazards == ()
    at = torch.arange(256)
    assert torch.equal(y, x[at ^ 32])
    assert (traffic.bytes_read, traffic.bytes_written) == (1024, 1024)
    assert (traffic.shared_requests, traffic.bank_conflicts) == (16, 0)


def test_a_wait_that_leaves_the_needed_group_unfinished():
    _, _, traffic = ran(DOUBLE_BUFFERED % (2, "__syncthreads();"))
    read, copied_over = sorted(traffic.hazards, key=lambda hazard: -hazard.line)
    assert (read.kind, read.line) == ("unfinished copy", 13)
    assert (copied_over.kind, copied_over.line) == ("unfinished copy", 9)
    assert "by thread (32, 0, 0) is unfinished when byte 128 is read" in str(read)
    assert "may leave the thread's newest 2 groups unfinished, and this copy is in one of them: wait with 1" in str(
        read
    )


def test_a_wait_without_a_barrier_is_a_race_for_the_other_thread():
    _, _, traffic = ran(DOUBLE_BUFFERED % (1, ""))
    assert {hazard.kind for hazard in traffic.hazards} == {"race"}
    assert 13 in {hazard.line for hazard in traffic.hazards}


FAULTS = {
    "no wait": (COPY + "__pipeline_commit();\ny[t] = tile[0][t];", 7, r"wait for it first \(__pipeline_wait_prior or"),
    "no wait, but a barrier": (
        COPY + "__pipeline_commit(); __syncthreads();\ny[t] = tile[0][63 - t];",
        7,
        r"by thread \(63, 0, 0\) is unfinished when byte 252 is read: wait",
    ),
    "not committed": (COPY + "__pipeline_wait_prior(0);\ny[t] = tile[0][t];", 7, "commit it"),
    "written over": (COPY + "__pipeline_commit();\ntile[0][t] = 1;\n__pipeline_wait_prior(0);", 7, "byte 0 is written"),
    "copied over": (
        COPY + "__pipeline_commit();\n__pipeline_memcpy_async(&tile[0][t], &x[64 + t], 4);",
        7,
        "into tile in line 5, .* is unfinished",
    ),
    "another thread's, partly waited for": (
        COPY + "__pipeline_commit(); if (t < 32) __pipeline_wait_prior(0); __syncthreads();\ny[t] = tile[0][t ^ 32];",
        7,
        r"by thread \(32, 0, 0\)",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_copy_that_is_not_waited_for_is_named(name):
    statements, line, said = FAULTS[name]
    hazards = ran(statements)[2].hazards
    assert [(hazard.kind, hazard.line) for hazard in hazards] == [("unfinished copy", line)], hazards
    assert re.search(said, str(hazards[0]))


def test_what_a_copy_reads_is_not_to_be_written_before_the_wait():
    source = HEAD.replace("const float* x", "float* x") + COPY + "__pipeline_commit();\n%s\n%s\ny[t] = tile[0][t]; }"
    for first, second, kinds in (
        ("x[t] = -1;", "__pipeline_wait_prior(0);", ["unfinished copy"]),
        ("__pipeline_wait_prior(0);", "x[t] = -1;", []),
        ("x[64 + t] = -1;", "__pipeline_wait_prior(0);", []),
    ):
        x, y = torch.arange(1.0, 257), torch.zeros(256)
        found = measure(cuda_kernel(source % (first, second), "k")[1, 64], x, y).hazards
        assert [hazard.kind for hazard in found] == kinds
        assert all("the source of the cp.async into tile in line 5" in str(hazard) for hazard in found)


def test_what_is_read_before_the_wait_is_the_old_value():
    x, y, _ = ran("tile[0][t] = 7;\n" + COPY + "__pipeline_commit();\ny[t] = tile[0][t];\n__pipeline_wait_prior(0);\n"
                  "y[64 + t] = tile[0][t];")  # fmt: skip
    assert torch.equal(y[:64], torch.full((64,), 7.0))
    assert torch.equal(y[64:128], x[:64])
    # On its own, without a meter, too.
    y.zero_()
    cuda_kernel(HEAD + "tile[0][t] = 7;\n" + COPY + "y[t] = tile[0][t]; }", "k")[1, 64](x, y)
    assert torch.equal(y[:64], torch.full((64,), 7.0))


def test_wait_all_needs_no_commit():
    x, y, traffic = ran(COPY + 'asm volatile("cp.async.wait_all;" ::: "memory");\ny[t] = tile[0][t];')
    assert traffic.hazards == ()
    assert torch.equal(y[:64], x[:64])


def test_a_copy_over_what_others_still_read_is_a_race():
    _, _, traffic = ran(
        "tile[0][t] = 1; __syncthreads();\ny[t] = tile[0][63 - t];\n" + COPY + "__pipeline_commit();\n"
        "__pipeline_wait_prior(0);"
    )
    assert [(hazard.kind, hazard.line) for hazard in traffic.hazards] == [("race", 7)]


def test_sixteen_bytes_and_a_part_of_them():
    statements = """
  if (t < 16) __pipeline_memcpy_async(&tile[0][4 * t], &x[4 * t], 16, 8);
  __pipeline_commit(); __pipeline_wait_prior(0); __syncthreads();
  y[t] = tile[0][t];"""
    x, y, traffic = ran(statements)
    assert traffic.hazards == ()
    assert torch.equal(y[:64], torch.where(torch.arange(64) % 4 < 2, x[:64], 0))


def test_cooperative_groups_and_cuda_pipeline_wait():
    source = """
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
__global__ void groups(const float* x, float* y) {
  auto block = cg::this_thread_block();
  __shared__ alignas(16) float tile[64];
  cg::memcpy_async(block, tile, x, sizeof(tile));
  cg::wait(block);
  y[threadIdx.x] = tile[threadIdx.x ^ 32];
}
__global__ void piped(const float* x, float* y, int wait) {
  __shared__ alignas(16) float tile[64];
  auto pipe = cuda::make_pipeline();
  pipe.producer_acquire();
  cuda::memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], cuda::aligned_size_t<4>(4), pipe);
  pipe.producer_commit();
  if (wait) pipe.consumer_wait();
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x ^ 32];
}"""
    for name, more in (("groups", ()), ("piped", (1,))):
        x, y = torch.randn(64), torch.empty(64)
        traffic = measure(cuda_kernel(source, name)[1, 64], x, y, *more)
        assert traffic.hazards == (), name
        assert torch.equal(y, x[torch.arange(64) ^ 32]), name
    (hazard,) = measure(cuda_kernel(source, "piped")[1, 64], torch.randn(64), torch.empty(64), 0).hazards
    assert hazard.kind == "unfinished copy"


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [("_ZZ1kPKfPfE4tile", "tile"), ("part", "part"), ("_ZZ4loadILi4EEvPKfE1s", "s"), ("_ZZ1kvE3b12_0", "b12")],
)
def test_names_of_the_source(mangled, plain):
    assert plain_name(mangled) == plain
