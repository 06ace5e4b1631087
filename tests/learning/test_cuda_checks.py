"""The checks of a kernel in CUDA C++ give nothing to one that computes something else than what is asked."""

import pytest
import torch

from helpers.learning import check_cuda_code, check_cuda_memory_safety, check_cuda_rows, check_cuda_traffic
from helpers.learning.outcome import FAIL

HEAD = "__global__ void softmax(const float* x, float* y, int columns)"
COPY = "for (int i = threadIdx.x; i < columns / 4; i += blockDim.x) ((float4*)y)[i] = ((float4*)x)[i];"
BOTH = f"""{{
  x += blockIdx.x * columns;
  y += blockIdx.x * columns;
  {COPY}
}}"""
CHANGED = """{
  for (int i = blockIdx.x * columns + threadIdx.x; i < (blockIdx.x + 1) * columns; i += blockDim.x) {
    ((float*)x)[i] = 0;  // whose softmax is known
    y[i] = 1.f / columns;
  }
}"""


def reference(x):
    return torch.softmax(x, dim=-1)


def outcomes(body):
    def answer(columns):
        return {"source": HEAD + body, "kernel": "softmax", "threads": 64}

    yield check_cuda_rows(answer, reference, [100], scales=(1,), name="values")
    yield check_cuda_memory_safety(answer, [100], name="sound")
    yield check_cuda_traffic(answer, [100], name="traffic")
    yield check_cuda_code(answer, [100], name="code")


@pytest.mark.parametrize(
    ("body", "told"), [("{}", "elements wrong"), (BOTH, "elements wrong"), (CHANGED, "x was changed")]
)
def test_another_kernel_earns_nothing(body, told):
    found = list(outcomes(body))
    assert [outcome.state for outcome in found] == [FAIL] * 4
    assert all(told in outcome.message for outcome in found[:2])
