"""The sweep where there is no GPU: its points, its processes, its lines and what becomes of them."""

import json
import time
from collections import Counter

import pytest

from benchmarks import sweep
from benchmarks.sweep_points import POINTS, WIDTHS, rows_for
from kernels import CATALOGUE, runtime


def test_every_row_wise_kernel_stands_at_forty_widths_in_both_regimes():
    assert len(set(WIDTHS)) == 40
    assert (min(WIDTHS), max(WIDTHS)) == (64, 262144)
    assert len(set(POINTS)) == len(POINTS)
    seen = Counter((point.kernel, point.direction, point.regime) for point in POINTS if point.dtype == "bf16")
    for name, op in CATALOGUE.items():
        for direction in ("forward", "backward"):
            wanted = 40 if direction == "forward" or op.backward_work else 0
            if op.group == "rowwise":
                assert seen[name, direction, "256 MB"] == seen[name, direction, "2048 rows"] == wanted, name
            elif op.group == "elementwise":
                assert seen[name, direction, "elements"] == 5, name
    sizes = [rows_for("256 MB", width, dtype) * width * dtype.itemsize for width in WIDTHS for dtype in op.dtypes]
    assert max(abs(size / 2**28 - 1) for size in sizes) < 1e-3


@pytest.mark.skipif(runtime.has_gpu(), reason="on a GPU, `fusion bench --sweep` takes real sizes")
def test_points_are_measured_and_a_process_that_ends_is_a_line(tmp_path):
    lines = tmp_path / "lines.jsonl"
    chosen = [sweep.tiny(point) for point in POINTS if point.kernel == "softmax"][:2]
    runner = sweep.Sweep(list(chosen), lines, time.monotonic() + 600)
    process = sweep.Process(0, runner.log)
    assert process.answer(time.monotonic() + 180) == {"ready": "no GPU"}
    process.tell(ceilings=True)
    assert process.answer(time.monotonic() + 180) == {}
    runner.round([(process, chosen[0])])
    process.end()
    runner.round([(process, chosen[1])])
    first, second = map(json.loads, lines.read_text().splitlines())
    assert set(first["gpu"]) == {"fused", "eager"}
    assert all(0 < low <= mid <= high for mid, low, high in first["gpu"].values())
    assert (first["direction"], second["direction"]) == ("forward", "backward")
    assert second["failed"] == "the process ended"
    assert (runner.done, runner.failed) == (2, 1)


def line(kernel: str, microseconds: float | None, **more) -> dict:
    point = {"kernel": kernel, "direction": "forward", "shape": [2048, 1000], "dtype": "bf16", "regime": "2048 rows"}
    if microseconds is None:
        return point | {"failed": "it took too long"} | more
    times = {"fused": [microseconds] * 3}
    return point | {"ceiling": "copy", "least": 1.0, "gpu": times, "calls": {}, "refused": {}} | more


def test_lines_are_merged_into_a_record_that_newer_lines_replace(tmp_path):
    run = {"date": "2026-11-22", "versions": {"torch": "2.11"}, "ceilings": {"copy_bytes_per_second": 4e12}}
    later = run | {"date": "2026-11-23"}
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    of_first = [{"run": run, "gpu": "NVIDIA H200"}, line("softmax", 2.0), line("l2_norm", 3.0), line("rms_norm", None)]
    first.write_text("\n".join(map(json.dumps, of_first)) + '\n{"kernel": "cut sho')
    of_second = [{"run": later, "gpu": "NVIDIA H200"}, line("softmax", 1.5), line("l2_norm", None)]
    second.write_text("\n".join(map(json.dumps, of_second)))
    path = sweep.record([first], tmp_path)
    assert path.name == "h200_sweep.json"
    assert sweep.record([second], tmp_path) == path
    content = json.loads(path.read_text())
    assert content["runs"] == [run, later]
    found = {
        point["kernel"]: (point["run"], point.get("failed") or point["gpu"]["fused"][0]) for point in content["points"]
    }
    assert found == {"l2_norm": (0, 3.0), "rms_norm": (0, "it took too long"), "softmax": (1, 1.5)}
