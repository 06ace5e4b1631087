"""The benchmark command without a GPU, and its report on rows measured on one."""

import json

import pytest

from benchmarks import run
from benchmarks.calls import least_time
from benchmarks.targets import MISSED, TARGETS, Target
from benchmarks.tried import TRIED
from helpers.instruments.fingerprints import fingerprints
from helpers.instruments.recordings import recorded
from helpers.instruments.timing import Timing
from kernels import CATALOGUE
from kernels.interpreter import runtime
from kernels.op import Work
from kernels.rowwise.softmax import softmax_kernel


def row(kernel: str, shape: tuple[int, ...], provider: str, microseconds: float) -> dict:
    median = microseconds * 1e-6
    return {
        "kernel": kernel,
        "shape": list(shape),
        "dtype": "bfloat16",
        "provider": provider,
        "least_bytes": 1e6,
        "flops": 1e9,
        "ceiling": "copy",
        "least_seconds": 1e-6,
        "gpu": {"median": median, "low": median, "high": median, "runs": 3},
        "call": None,
    }


def test_rows_under_target_come_first_then_those_behind_a_peer(monkeypatch):
    shape = (32768, 1024)
    monkeypatch.setitem(TRIED, "softmax", "wider tiles")
    assert TARGETS["softmax", shape] == Target(share=0.86)
    rows = [row("softmax", shape, "fused", 1.2), row("softmax", shape, "eager", 1.0)]
    rows += [row("l2_norm", shape, "fused", 1.1), row("l2_norm", shape, "eager", 1.08)]
    assert run.shortfalls(rows) == [
        "under its target: softmax 32768x1024 bfloat16: 83.3% of the ceiling, not 86%",
        "    tried: wider tiles",
        "behind eager: softmax 32768x1024 bfloat16: 1.20 times its time",
        "    tried: wider tiles",
    ]
    assert run.shortfalls(rows[2:]) == []


def test_targets_in_flops_and_against_a_peer(monkeypatch):
    shape = (8192, 8192)
    monkeypatch.setattr(run, "TRIED", {})
    monkeypatch.setitem(TARGETS, ("softmax", shape), Target(flops_per_second=1.2e15, ahead={"cuBLAS": 0.9}))
    rows = [row("softmax", shape, "fused", 1.0), row("softmax", shape, "eager", 2.0)]
    assert run.shortfalls([*rows, row("softmax", shape, "cuBLAS", 0.89)]) == [
        "under its target: softmax 8192x8192 bfloat16: 1000 TFLOP/s, not 1200",
        "under its target: softmax 8192x8192 bfloat16: 0.89 times as fast as cuBLAS, not 0.9",
        "behind cuBLAS: softmax 8192x8192 bfloat16: 1.12 times its time",
    ]
    monkeypatch.setitem(TARGETS, ("softmax", shape), Target(flops_per_second=1e15, ahead={"cuBLAS": 0.9}))
    behind = ["behind cuBLAS: softmax 8192x8192 bfloat16: 1.10 times its time"]  # whatever the target allows
    assert run.shortfalls([*rows, row("softmax", shape, "cuBLAS", 0.91)]) == behind
    assert run.shortfalls([*rows, row("softmax", shape, "cuBLAS", 0.98)]) == []


def test_another_operation_is_nobody_to_be_behind(monkeypatch):
    shape = (4096, 4096, 4096)
    monkeypatch.setattr(run, "TARGETS", {})
    for name, peer in (("linear_act", "cuBLAS alone"), ("ffn", "cuBLAS alone"), ("cross_entropy backward", "Liger")):
        assert run.shortfalls([row(name, shape, "fused", 2.0), row(name, shape, peer, 1.0)]) == []
    assert run.shortfalls([row("cross_entropy", shape, "fused", 2.0), row("cross_entropy", shape, "Liger", 1.0)])


def test_calls_of_short_work_are_compared_with_the_best_peer(monkeypatch):
    shape = (128, 8192)
    monkeypatch.setattr(run, "TRIED", {})
    rows = [row("softmax", shape, "fused", 1.0), row("softmax", shape, "torch.compile", 1.0)]
    for one, microseconds in zip(rows, (10.4, 10.0), strict=True):
        one["call"] = {"median": microseconds * 1e-6}
    assert run.shortfalls(rows) == ["a call behind torch.compile: softmax 128x8192 bfloat16: 1.04 times its time"]
    rows[0]["call"] = {"median": 10.2e-6}
    assert run.shortfalls(rows) == []


def test_the_ceiling_is_what_bounds_the_work():
    limits = {"copy_bytes_per_second": 4e12, "read_bytes_per_second": 5e12, "write_bytes_per_second": 6e12}
    limits["bf16_matrix_flops_per_second"] = 700e12
    assert least_time(Work(1, 2e12, 2e12), limits) == ("copy", 1.0)
    assert least_time(Work(1, 5e12, 0), limits) == ("read", 1.0)
    assert least_time(Work(1, 0, 6e12), limits) == ("write", 1.0)
    assert least_time(Work(1400e12, 2e12, 2e12), limits) == ("matrix", 2.0)


def test_every_target_is_of_a_kernel_and_a_shape_that_is_measured():
    for name, shape in TARGETS:
        op = CATALOGUE[name.removesuffix(" backward")]
        assert shape in op.gpu_shapes, f"{name} is not measured at {shape}"
        assert op.backward_work is not None or not name.endswith(" backward")


def test_the_record_misses_the_targets_that_are_listed_as_missed_and_no_other():
    assert run.missed_targets(recorded("h200").rows) == MISSED
    assert {kernel for kernel, _ in MISSED} <= TRIED.keys()


def test_a_target_missed_in_another_record_is_noticed():
    """Ours at a thousand times its time, and at a tenth."""
    rows = recorded("h200").rows
    for factor, missed in ((1000, TARGETS.keys()), (0.1, set())):
        other = [row | {"gpu": row["gpu"] | {"median": row["gpu"]["median"] * factor}} for row in rows]
        timed = [new if new["provider"] == "fused" else row for new, row in zip(other, rows, strict=True)]
        assert run.missed_targets(timed) == missed


@pytest.mark.skipif(runtime.has_gpu(), reason="this is what happens without a GPU")
def test_whatever_falls_short_in_the_record_says_what_was_tried():
    rows = recorded("h200").rows
    of_kernel = {kernel: [row for row in rows if row["kernel"] == kernel] for kernel in {row["kernel"] for row in rows}}
    assert {kernel for kernel, its in of_kernel.items() if run.shortfalls(its)} == set(TRIED)


def test_rows_kept_from_an_earlier_run_keep_its_date_versions_and_ceilings(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    path = tmp_path / "h200.json"
    time = Timing(1e-6, 1e-6, 1e-6, 3)
    older, newer = ({"date": day, "versions": {}, "ceilings": {}} for day in ("2026-01-01", "2026-02-02"))
    old = [row("softmax", (8, 8), "fused", 2.0), row("l2_norm", (8, 8), "fused", 2.0)]
    timed = {"times": {"it": time}, "kernels": ["a fingerprint"]}
    run.record(path, older, old, {"kept": timed, "again": timed})
    run.record(path, newer, [row("softmax", (8, 8), "fused", 1.0)], {})
    run.record(path, newer, [], {"again": timed})
    content = json.loads(path.read_text())
    assert content["runs"] == [older, newer]
    assert {one["kernel"]: (one["run"], one["gpu"]["median"]) for one in content["rows"]} == {
        "l2_norm": (0, 2e-6),
        "softmax": (1, 1e-6),
    }
    assert {name: one["run"] for name, one in content["experiments"].items()} == {"kept": 0, "again": 1}
    assert content["experiments"]["again"]["kernels"] == ["a fingerprint"]


def test_times_of_ours_alone_leave_all_other_rows_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    path = tmp_path / "h200.json"
    older = {"date": "2026-01-01", "versions": {}, "ceilings": {}, "kernels": {"kernels.somewhere": "same"}}
    of = {name: row(name, (8, 8), "fused", 2.0) for name in ("softmax", "l2_norm")}
    run.record(path, older, [*of.values(), row("softmax", (8, 8), "eager", 3.0)], {})
    alone = [row("softmax", (8, 8), "fused", 1.9) | {"kernels": ["same"]}, row("softmax", (8, 8), "plain", 3.0)]
    alone.append(row("l2_norm", (8, 8), "fused", 1.8) | {"kernels": ["another"]})
    for _ in range(2):
        run.record(path, older | {"date": "2026-02-02"}, alone, {}, only=["fused", "plain"])
    rows = json.loads(path.read_text())["rows"]
    assert [(one["kernel"], one["provider"], one["gpu"]["median"], one["run"]) for one in rows] == [
        ("softmax", "fused", 2e-6, 0),
        ("softmax", "plain", 3e-6, 1),
        ("l2_norm", "fused", 1.8e-6, 1),  # of another kernel than before
        ("softmax", "eager", 3e-6, 0),
    ]
    assert [one.get("kernels") for one in rows] == [["same"], None, ["another"], None]
    assert run.shortfalls(rows) == []


def test_the_kernels_of_an_experiment_are_those_launched_in_it(monkeypatch):
    kernel, other = softmax_kernel, CATALOGUE["l2_norm"].kernel
    monkeypatch.setattr(other, "device_caches", {0: ({"a kind": "compiled"}, {}, None, None, None)})

    def experiment() -> dict:
        assert not other.device_caches
        kernel.device_caches[0] = ({"a kind": "compiled"}, {}, None, None, None)
        return {"it": 1.0}

    monkeypatch.setattr(kernel, "device_caches", {})
    (found,) = fingerprints("kernels.rowwise.softmax.softmax_kernel").values()
    assert run.measured(experiment) == {"times": {"it": 1.0}, "kernels": [found]}


def test_every_recorded_row_was_judged_at_a_ceiling_of_its_own_run():
    h200 = recorded("h200")
    for one in h200.rows:
        ceilings = h200.runs[one["run"]]["ceilings"]
        kind = "bf16_matrix_flops_per_second" if one["ceiling"] == "matrix" else f"{one['ceiling']}_bytes_per_second"
        amount = one["flops" if one["ceiling"] == "matrix" else "least_bytes"]
        assert one["least_seconds"] == pytest.approx(amount / ceilings[kind], rel=1e-9)


def test_without_a_gpu_it_runs_small_and_says_so(capsys):
    assert run.main(["add_gelu"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("No GPU: kernels are interpreted, sizes are small")
    assert "add_gelu backward" in printed


def test_an_unknown_kernel():
    with pytest.raises(ValueError, match="no kernel named add_gelo: the catalogue has add_gelu, "):
        run.main(["add_gelo"])
