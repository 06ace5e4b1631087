"""The experiments on loads and strides: right values, and the load widths that each version claims."""

import pytest
import torch

from benchmarks.experiments.lesson_03 import KINDS, THREADS, VERSIONS, add_gelu_per_thread, strided_sums
from helpers.instruments import compile_for, measure
from kernels.elementwise.add_gelu import settings

LOADS = {"one number": {"LDG.32": 2}, "four loads": {"LDG.32": 8}, "one wide load": {"LDG.128": 2}}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_loads_it_is_named_for_and_the_right_values(kind):
    numbers, version = KINDS[kind]
    x = torch.empty(2**20, device="meta")
    for threads in (THREADS[0], THREADS[-1]):
        chosen = settings(torch.float32) | {"BLOCK": numbers * threads, "num_warps": threads // 32}
        made = compile_for(VERSIONS[version], x, x, x, None, x.numel(), device="H200", **chosen)
        assert {name: n for name, n in made.instructions.items() if name.startswith("LDG")} == LOADS[kind]
    a, b = torch.randn(2, 5000)
    right = torch.nn.functional.gelu(a + b, approximate="tanh")
    torch.testing.assert_close(add_gelu_per_thread(a, b, 128, kind), right)


# Each reads element by element, which takes the meter six seconds; in `make test` one that fills sectors and one that
# wastes them.
STRIDES = [
    pytest.param(1, 4 * 64),
    pytest.param(4, 16 * 64, marks=pytest.mark.long),
    pytest.param(8, 32 * 64),
    pytest.param(16, 32 * 64, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("stride", "sectors"), STRIDES)
def test_strided_sums_are_right_and_each_stride_takes_its_sectors(stride, sectors):
    x = torch.randn(2048 * stride)
    traffic = measure(strided_sums, x, 2048, stride)
    torch.testing.assert_close(traffic.result, x[::stride].view(2, 1024).sum(1), atol=1e-4, rtol=1e-5)
    assert traffic.sectors_read == sectors
