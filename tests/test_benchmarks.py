"""The benchmark command where there is no GPU, and what it says of rows measured on one."""

import pytest

from benchmarks import run
from benchmarks.targets import TARGETS
from kernels import CATALOGUE, runtime


def row(kernel: str, shape: tuple[int, ...], provider: str, microseconds: float) -> dict:
    median = microseconds * 1e-6
    return {
        "kernel": kernel,
        "shape": list(shape),
        "dtype": "bfloat16",
        "provider": provider,
        "least_bytes": 1e6,
        "ceiling": "copy",
        "ceiling_bytes_per_second": 1e12,  # so that a microsecond is the best
        "gpu": {"median": median, "low": median, "high": median, "runs": 3},
        "call": None,
    }


def test_rows_under_target_come_first_then_those_behind_a_peer():
    shape = (32768, 1024)
    assert TARGETS["softmax", shape] == 0.86
    rows = [row("softmax", shape, "fused", 1.2), row("softmax", shape, "eager", 1.0)]
    rows += [row("l2_norm", shape, "fused", 1.1), row("l2_norm", shape, "eager", 1.08)]
    assert run.shortfalls(rows) == [
        "under its target: softmax 32768x1024 bfloat16: 83.3%, not 86%",
        "behind eager: softmax 32768x1024 bfloat16: 1.20 times its time",
    ]
    assert run.shortfalls(rows[2:]) == []


def test_every_target_is_of_a_kernel_and_a_shape_that_is_measured():
    for name, shape in TARGETS:
        op = CATALOGUE[name.removesuffix(" backward")]
        assert shape in op.gpu_shapes, f"{name} is not measured at {shape}"
        assert op.backward_work is not None or not name.endswith(" backward")


@pytest.mark.skipif(runtime.has_gpu(), reason="this is what happens without a GPU")
def test_without_a_gpu_it_runs_small_and_says_so(capsys):
    assert run.main(["add_gelu"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("No GPU: kernels are interpreted, sizes are small")
    assert "add_gelu backward" in printed


def test_an_unknown_kernel():
    with pytest.raises(ValueError, match="no kernel named add_gelo: the catalogue has add_gelu, "):
        run.main(["add_gelo"])
