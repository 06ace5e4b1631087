"""The sweep without a GPU: its points, its processes, its output, and how that is recorded."""

import json
import math
import time
from collections import Counter
from dataclasses import replace

import pytest
import torch
from triton.runtime.jit import JITFunction

import kernels
from benchmarks import bare_launch
from benchmarks.sweep import run as sweep
from benchmarks.sweep.points import POINTS, SERVING, VOCABULARY_KERNELS, WIDTHS, build, rows_for
from benchmarks.tried import SWEPT
from helpers.figures.performance.sweep_chart import sweep_chart
from helpers.instruments import fingerprints
from helpers.instruments.resources import compile_for
from helpers.instruments.sweep_records import BARE, RecordedSweep, best_peer, is_earlier, plain_ratio, recorded_sweep
from kernels import CATALOGUE
from kernels.interpreter import runtime
from kernels.rowwise.softmax import softmax_kernel


def test_row_wise_kernels_are_timed_at_forty_widths_and_norms_at_those_up_to_32768_columns():
    assert len(set(WIDTHS)) == 40
    assert (min(WIDTHS), max(WIDTHS)) == (64, 262144)
    assert len(set(POINTS)) == len(POINTS)
    seen = Counter((point.kernel, point.direction, point.regime) for point in POINTS if point.dtype == "bf16")
    for name, op in CATALOGUE.items():
        for direction in ("forward", "backward"):
            widths = [width for width in WIDTHS if width <= 32768 or name in VOCABULARY_KERNELS]
            wanted = len(widths) if direction == "forward" or op.backward_work else 0
            if name in SERVING:
                wanted = 0 if direction == "backward" else sum(map(len, SERVING[name].values()))
                assert sum(n for (kernel, way, _), n in seen.items() if (kernel, way) == (name, direction)) == wanted
            elif op.group == "rowwise":
                assert seen[name, direction, "256 MB"] == seen[name, direction, "2048 rows"] == wanted, name
            elif op.group == "elementwise":
                assert seen[name, direction, "elements"] == 5, name
    sizes = [rows_for("256 MB", width, dtype) * width * dtype.itemsize for width in WIDTHS for dtype in op.dtypes]
    assert max(abs(size / 2**28 - 1) for size in sizes) < 1e-3


@pytest.mark.parametrize("kernel", SERVING)
def test_what_a_decode_step_consists_of_can_be_timed(kernel):
    point = sweep.tiny(next(point for point in POINTS if point.kernel == kernel))
    calls, work = build(point, "cpu")
    assert set(calls) == {"fused", "plain", "eager"}
    assert work.bytes > 0
    for call in calls.values():
        call()


@pytest.mark.skipif(runtime.has_gpu(), reason="on a GPU, `fusion bench --sweep` takes real sizes")
def test_points_are_measured_and_a_process_that_ends_is_a_line(tmp_path):
    lines = tmp_path / "lines.jsonl"
    chosen = [sweep.tiny(point) for point in POINTS if point.kernel == "softmax"][:2]
    runner = sweep.Sweep([replace(chosen[0], call=True), chosen[1]], lines, time.monotonic() + 600, only=[])
    process = sweep.Process(0, runner.log)
    assert process.answer(time.monotonic() + 180) == {"ready": "no GPU"}
    process.tell(ceilings=True)
    assert process.answer(time.monotonic() + 180) == {}
    runner.go_on([process], calls=True)
    assert runner.left == chosen[1:]
    process.end()
    runner.round([(process, chosen[1])])
    first, second = map(json.loads, lines.read_text().splitlines())
    assert set(first["gpu"]) == {"fused", "eager"}  # and not "plain": where kernels are interpreted, ours is plain
    (softmax,) = fingerprints.fingerprints("kernels.rowwise.softmax.softmax_kernel").values()
    assert first["kernels"] == {"fused": [softmax], "plain": [softmax]}
    assert all(0 < low <= mid <= high for mid, low, high in first["gpu"].values())
    assert (first["direction"], second["direction"]) == ("forward", "backward")
    assert second["failed"] == "the process ended"
    assert (runner.done, runner.failed) == (2, 1)


def line(kernel: str, microseconds: float | None, **more) -> dict:
    point = {"kernel": kernel, "direction": "forward", "shape": [2048, 1000], "dtype": "bf16", "regime": "2048 rows"}
    if microseconds is None:
        return point | {"failed": "it took too long"} | more
    times = {"fused": [microseconds] * 3}
    timed = {"ceiling": "copy", "least": 1.0, "gpu": times, "calls": {}, "refused": {}}
    return point | timed | {"kernels": {"fused": ["now"], "plain": ["now"]}} | more


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


def test_times_of_ours_alone_leave_the_peers_where_they_are(tmp_path):
    run = {"date": "2026-11-22", "versions": {"torch": "2.11"}, "ceilings": {"copy_bytes_per_second": 4e12}}
    run["kernels"] = {"kernels.softmax": "now"}
    every = line("softmax", 2.0, gpu={"fused": [2.0] * 3, "plain": [3.0] * 3, "QuACK": [2.5] * 3})
    same = {"fused": ["now"], "plain": ["plain"]}
    alone = line("softmax", 1.9, gpu={"fused": [1.9] * 3, "plain": [2.9] * 3}, only=["fused", "plain"], kernels=same)
    other = line("l2_norm", 1.0, only=["fused", "plain"], refused={"plain": "ValueError: no"})
    for name, day, those in (("1", "2026-11-22", [every]), ("2", "2026-11-23", [alone, other])):
        text = "\n".join(map(json.dumps, [{"run": run | {"date": day}, "gpu": "NVIDIA H200"}, *those]))
        (tmp_path / f"{name}.jsonl").write_text(text)
        path = sweep.record([tmp_path / f"{name}.jsonl"], tmp_path)
    l2_norm, softmax = json.loads(path.read_text())["points"]
    assert (softmax["run"], softmax["gpu"]) == (0, {"fused": [2.0] * 3, "QuACK": [2.5] * 3})
    assert (softmax["ours"]["run"], softmax["ours"]["gpu"]) == (1, {"fused": [1.9] * 3, "plain": [2.9] * 3})
    assert plain_ratio(softmax) == pytest.approx(2.9 / 1.9)
    assert (l2_norm["run"], l2_norm["ours"]["refused"]) == (1, "ValueError: no")
    assert math.isnan(plain_ratio(l2_norm))


def point(shape: list[int], fused: float, peer: float, least: float = 1.0, **more) -> dict:
    """A softmax forward, times in microseconds."""
    times = {"fused": [fused] * 3, "QuACK": [peer] * 3, "eager": [2 * peer] * 3}
    found = {"kernel": "softmax", "direction": "forward", "shape": shape, "dtype": "bf16", "regime": "2048 rows"}
    found |= {"ceiling": "copy", "least": least, "gpu": times, "calls": {}, "refused": {}, "run": 0}
    return found | {"kernels": [], "ours": {"run": 0, "kernels": [], "gpu": {"fused": [fused] * 3}}} | more


RUN = {"date": "2026-11-22", "versions": {"torch": "2.11.0", "triton": "3.6.0"}, "ceilings": {}}
SWEEP = RecordedSweep(
    "NVIDIA H200",
    [RUN],
    [
        point([2048, 1000], 2.0, 2.5),
        point([2048, 1024], 1.25, 1.0, calls={"fused": [30.0] * 3, "eager": [10.0] * 3}),
        point([2048, 1025], 1.3, 1.3, refused={"QuACK": "ValueError: no"}),
        line("softmax", None, shape=[2048, 2048], run=0),
    ],
)


def test_what_is_behind_a_peer_or_falls_between_powers_of_two_is_named():
    assert SWEEP.behind() == [
        "behind QuACK: softmax 2048x1024 bf16: 1.25 times its time",
        "a call behind eager: softmax 2048x1024 bf16: 3.00 times its time",
    ]
    assert SWEEP.fallen() == ["between: softmax 2048x1000 bf16: 50% of its ceiling, 80% at 1024 columns"]
    assert SWEEP.failures() == ["not measured: softmax 2048x2048 bf16: it took too long"]
    odd = RecordedSweep("NVIDIA H200", [RUN], [point([2048, 1024], 1.25, 1.0), point([2048, 1025], 2.5, 3.0)])
    assert odd.fallen() == [
        "between: softmax 2048x1025 bf16: 40% of its ceiling, 80% at 1024 columns; rows not aligned to 16 bytes"
    ]
    assert SWEEP.behind(["l2_norm"]) == SWEEP.fallen(["l2_norm"]) == []
    with pytest.raises(ValueError, match="the sweep has no 'l2_norm': choose from softmax"):
        SWEEP.of("l2_norm")


def test_who_does_another_work_is_no_peer_and_who_waits_is_marked():
    of = {"kernel": "cross_entropy", "direction": "backward", "waits": ["Liger"]}
    times = {"fused": [2.0] * 3, "eager": [4.0] * 3, "Liger": [1.0] * 3}
    found = RecordedSweep("NVIDIA H200", [RUN], [point([2048, 1000], 2.0, 1.0, **of, gpu=times)])
    assert best_peer(found.points[0]) == "eager"
    assert best_peer(found.points[0] | {"direction": "forward"}) == "Liger"
    _, clocks, _, row = found.table("cross_entropy").splitlines()
    assert "1.0 us, 100% (waits)" in row
    assert clocks.endswith("(waits): the time includes the host waiting for the GPU")


def test_the_tables_hold_every_point():
    lines = SWEEP.table("softmax").splitlines()
    assert lines[0].startswith("softmax, NVIDIA H200, PyTorch 2.11.0, Triton 3.6.0, 2026-11-22")
    assert [row.split() for row in lines[3:6]] == [
        "forward 2048 rows 2048 x 1000 bf16 1.0 us 2.0 us, 50% 2.5 us, 40% 5.0 us, 20% 0.80 x QuACK".split(),
        (
            "forward 2048 rows 2048 x 1024 bf16 1.0 us 1.2 us, 80% 1.0 us, 100% 2.0 us, 50% 1.25 x QuACK"
            " 30.0 us, eager 10.0 us"
        ).split(),
        "forward 2048 rows 2048 x 1025 bf16 1.0 us 1.3 us, 77% 1.3 us, 77% 2.6 us, 38% 1.00 x QuACK".split(),
    ]
    assert lines[6].split() == "forward 2048 rows 2048 x 2048 bf16 it took too long".split()
    *_, low, peers, _, row, _ = SWEEP.summary().splitlines()
    assert low.startswith("A point has dropped if its share of the ceiling is below 0.9")
    assert peers == "peers of softmax: eager, QuACK"
    assert row.split() == ["softmax", "forward", "3", "2", "1.00", "1.25", "1"]
    assert sweep.report(SWEEP, []).splitlines()[-1] == SWEEP.failures()[0]
    (row,) = SWEEP.calls(["softmax"]).splitlines()[4:]
    assert row.split() == "softmax 2048x1024 bf16 eager 1.2 us 2.0 us 30.0 us 10.0 us".split()


def test_a_point_shows_an_earlier_kernel_where_its_own_is_not_there_any_more(monkeypatch):
    monkeypatch.setattr(fingerprints, "fingerprints", lambda: {"kernels.moved": "here", "kernels.plain": "plain"})
    beside = {"run": 0, "kernels": ["plain before"], "gpu": {"fused": [2.0] * 3, "plain": [3.0] * 3}}
    points = [
        point([8, 1], 2.0, 2.5, kernels=["here", "plain"], ours=beside),
        point([8, 2], 2.0, 2.5, kernels=["here", "gone"]),
        line("softmax", 2.0, shape=[8, 3], run=0, kernels=None),
        line("softmax", None, shape=[8, 4], run=0),
    ]
    assert list(map(is_earlier, points)) == [False, True, True, False]
    found = RecordedSweep("NVIDIA H200", [RUN], points)
    for text in (found.summary(), found.table("softmax")):
        assert "2 of 4 points show an earlier version of our kernel" in text.splitlines()
        assert "1 of 4 points show an earlier version of the plain kernel" in text.splitlines()
    assert "earlier" not in SWEEP.summary()


def test_our_older_time_stays_where_its_run_had_the_kernel_and_is_replaced_otherwise():
    runs = [RUN | {"kernels": {"kernels.anywhere": "same"}}, RUN]
    peers = {"gpu": {"fused": [2.0] * 3, "QuACK": [2.5] * 3}, "calls": {"fused": [9.0] * 3, "QuACK": [8.0] * 3}}
    before = line("softmax", 2.0, run=0) | peers | {"kernels": None}
    alone = {
        now: sweep.point_of(line("softmax", 1.9, kernels={"fused": [now], "plain": ["other"]}), 1)
        for now in ("same", "another")
    }
    found = sweep.merged(before, alone["same"], runs)
    assert found == before | {"kernels": ["same"], "ours": alone["same"]["ours"]}
    taken_over = sweep.merged(before | {"kernels": ["plain"]}, alone["same"], runs)  # the run had it, for other points
    assert (taken_over["gpu"]["fused"], taken_over["fused_run"]) == ([1.9] * 3, 1)
    found = sweep.merged(before, alone["another"], runs)
    assert (found["run"], found["fused_run"], found["kernels"]) == (0, 1, ["another"])
    assert found["calls"] == peers["calls"]  # all of the peers' run
    assert found["gpu"] == {"fused": [1.9] * 3, "QuACK": [2.5] * 3}
    assert found["ours"]["kernels"] == ["other"]
    text = RecordedSweep("NVIDIA H200", [RUN, RUN | {"date": "2026-12-01"}], [found]).summary()
    assert "2026-11-22 to 2026-12-01" in text
    assert "1 of 1 points compare our time with peers' times from an earlier run" in text.splitlines()


def test_a_peer_timed_later_joins_the_others_and_is_no_longer_refused():
    runs = [RUN | {"kernels": {"kernels.anywhere": "same"}}, RUN]
    peers = {"gpu": {"fused": [2.0] * 3, "Liger": [2.5] * 3}, "refused": {"QuACK": "ImportError: no module"}}
    before = line("softmax", 2.0, run=0) | peers | {"kernels": None}
    later = line("softmax", 1.9, kernels={"fused": ["same"]})
    later["gpu"] = {"fused": [1.9] * 3, "QuACK": [2.2] * 3}
    later["refused"] = {"max-autotune": "RuntimeError: no"}
    found = sweep.merged(before | {"ours": "with plain"}, sweep.point_of(later, 1), runs, ["fused", "QuACK"])
    assert found["ours"] == "with plain"
    assert found["gpu"] == {"fused": [2.0] * 3, "Liger": [2.5] * 3, "QuACK": [2.2] * 3}
    assert found["refused"] == {"max-autotune": "RuntimeError: no"}


def test_the_plain_kernel_is_shown_beside_ours():
    beside = {"run": 0, "kernels": [], "gpu": {"fused": [1.9] * 3, "plain": [2.85] * 3}}
    found = RecordedSweep("NVIDIA H200", [RUN], [point([2048, 1000], 2.0, 2.5, ours=beside), point([8, 8], 2.0, 2.5)])
    assert "2.9 us, 1.50 x" in found.table("softmax")
    *_, row, every = found.summary().splitlines()
    assert row.split() == ["softmax", "forward", "2", "2", "0.80", "0.80", "1", "1.50"]
    assert every.split() == ["all", "2", "2"]
    assert best_peer(found.points[0]) == "QuACK"


def test_where_no_size_is_beside_a_power_of_two_none_can_have_fallen():
    alone = RecordedSweep("NVIDIA H200", [RUN], [point([1, 64, 64], 2.0, 2.5, kernel="linear_act")])
    *told, _, row, _ = alone.summary().splitlines()
    assert row.split() == ["linear_act", "forward", "1", "1", "0.80", "0.80"]
    assert not any("dropped" in line for line in told)


def test_who_does_another_work_is_not_among_the_peers():
    times = {"fused": [2.0] * 3, "eager": [4.0] * 3, "Liger": [1.0] * 3}
    points = [point([2048, 1000], 2.0, 1.0, kernel="cross_entropy", direction="backward", gpu=times)]
    points += [point([2048, 1000], 2.0, 1.0, kernel=name) for name in ("softmax", "rms_norm")]
    *_, others, ours = [each for each in RecordedSweep("", [RUN], points).summary().splitlines() if "peers of" in each]
    assert [others, ours] == ["peers of cross_entropy: eager", "peers of softmax, rms_norm: eager, QuACK"]


def test_a_peer_whose_slow_runs_are_slower_than_our_quick_ones_is_within_the_spread():
    def behind(slowest):
        times = {"fused": [1.25, 1.2, 1.3], "QuACK": [1.0, 0.9, slowest], "eager": [2.0, 1.0, 3.0]}
        (line,) = RecordedSweep("NVIDIA H200", [RUN], [point([2048, 1024], 1.25, 1.0, gpu=times)]).behind()
        return line

    assert behind(1.2) == "behind QuACK: softmax 2048x1024 bf16: 1.25 times its time, within the spread"
    assert behind(1.19) == "behind QuACK: softmax 2048x1024 bf16: 1.25 times its time"


def test_shapes_of_seven_numbers_say_what_they_count():
    points = [point([1, 8, 2, 64, 32, 16, causal], 2.0, 1.0, kernel="flash_attention") for causal in (True, False)]
    found = RecordedSweep("NVIDIA H200", [RUN], points)
    assert [line.split(": ")[1] for line in found.behind()] == [
        "flash_attention 1x8x2x64x32x16 causal bf16",
        "flash_attention 1x8x2x64x32x16 every pair bf16",
    ]
    _, _, shape, _, causal, _ = found.table("flash_attention").splitlines()
    assert shape == "shape: batch x heads x key heads x queries x keys x width"
    assert "1 x 8 x 2 x 64 x 32 x 16 causal" in causal


def test_a_call_is_held_against_bare_launches_too():
    calls = {"fused": [31.0] * 3, "QuACK": [32.0] * 3, BARE: [20.0] * 3}
    points = [
        point([2048, cols], 2.0, 2.5, calls=calls | {"fused": [ours] * 3}) for cols, ours in ((1000, 31), (64, 29))
    ]
    found = RecordedSweep("NVIDIA H200", [RUN], points)
    assert best_peer(points[0], "calls") == "QuACK"
    assert found.behind() == []
    assert found.over_bare() == ["over 1.5 bare launches: a call of softmax 2048x1000 bf16: 1.55, the GPU's part 0.10"]
    assert sweep.report(found, []).splitlines()[-1] == found.over_bare()[0]
    *_, told, _, first, _ = found.calls().splitlines()
    assert told.endswith("bare launch: timed for forward calls only")
    assert first.split() == "softmax 2048x1000 bf16 QuACK 2.0 us 2.5 us 31.0 us 32.0 us 20.0 us".split()
    assert "29.0 us, QuACK 32.0 us, bare launch 20.0 us" in found.table("softmax")


def test_a_bare_launch_is_of_an_empty_kernel_with_the_same_arguments(monkeypatch):
    x, launched = torch.randn(2, 64, device="cuda" if runtime.has_gpu() else "cpu"), []
    bare = bare_launch.bare_launches(lambda: kernels.softmax(x))
    monkeypatch.setattr(JITFunction, "run", lambda *args, **options: launched.append((args, options)))
    assert not launched
    bare()
    (((empty, *args), options),) = launched
    assert empty.arg_names == softmax_kernel.arg_names
    assert args[0] is x
    assert (args[2:], options.pop("grid"), options.pop("warmup")) == ([2, 64, 64], (1,), False)
    instructions = [compile_for(k, *args, device="H200", **options).instructions for k in (empty, softmax_kernel)]
    assert [any(each.startswith(("LDG", "STG")) for each in found) for found in instructions] == [False, True]


def test_each_kernel_that_is_behind_a_peer_has_its_reason():
    assert set(recorded_sweep().passes_behind()) == SWEPT.keys()
    assert all(len(reason) > 20 for reason in SWEPT.values())


def test_what_is_behind_is_told_with_its_reason(monkeypatch):
    monkeypatch.setitem(sweep.SWEPT, "softmax", "two rows to a program")
    assert sweep.report(SWEEP, []).splitlines()[-5:-2] == [*SWEEP.behind(), "    softmax: two rows to a program"]


def test_the_figure_shows_each_point_and_says_what_it_shows():
    chart = sweep_chart(SWEEP, "softmax")
    (axes,) = chart.figure.axes
    _, peers, odd_peers, ours, odd_ours = axes.lines
    assert dict(zip(*peers.get_data(), strict=True)) == pytest.approx({1000: 40, 1024: 100})
    assert dict(zip(*odd_peers.get_data(), strict=True)) == pytest.approx({1025: 100 / 1.3})
    assert dict(zip(*ours.get_data(), strict=True)) == pytest.approx({1000: 50, 1024: 80})
    assert dict(zip(*odd_ours.get_data(), strict=True)) == pytest.approx({1025: 100 / 1.3})
    assert chart.text == (
        "softmax: at least level with the best peer at 2 of the 3 sizes plotted. Forward, 2048 rows, 1,000 to"
        " 1,025 columns: ours 50 to 80 % of the ceiling (77 to 77 % of it where rows are not aligned), the best peer"
        " 40 to 100 % of the ceiling (77 to 77 % of it where rows are not aligned); ours takes at most 1.25 times the"
        " best peer's time, at 1,024 columns against QuACK."
    )


def test_products_stand_over_what_makes_them_larger():
    shapes = {
        "linear_act": ([1, 4096, 4096], [64, 4096, 4096], [64, 4096, 14336]),
        "conv_bn_act": ([1, 64, 56, 56, 64, 3, 1], [2, 3, 5, 5, 8, 3, 2]),
        "flash_attention": ([1, 8, 8, 512, 512, 128, True], [1, 8, 8, 512, 512, 128, False]),
    }
    points = [
        point(shape, 2.0, 2.5, kernel=kernel, regime="d128") for kernel, those in shapes.items() for shape in those
    ]
    found = RecordedSweep("NVIDIA H200", [RUN], points)
    shown = {
        kernel: {
            axes.get_title("left"): list(axes.lines[3].get_xdata()) for axes in sweep_chart(found, kernel).figure.axes
        }
        for kernel in shapes
    }
    assert shown == {
        "linear_act": {"forward, weights of 4096 x 4096": [1, 64]},
        "conv_bn_act": {"forward, d128": [27, 576]},
        "flash_attention": {"forward, heads of 128, causal": [512], "forward, heads of 128, every pair": [512]},
    }


def test_layers_of_one_depth_stand_side_by_side_each_beside_its_peer():
    shapes = [[pictures, 64, 8, 8, 64, 3, 1] for pictures in (1, 2)]
    points = [point(shape, 2.0, 2.5, kernel="conv_bn_act", regime="3x3") for shape in shapes]
    chart = sweep_chart(RecordedSweep("NVIDIA H200", [RUN], points), "conv_bn_act")
    (axes,) = chart.figure.axes
    first, second = axes.lines[3].get_xdata()
    assert (first, second > 1.05 * first) == (576, True)
    (joins,) = axes.collections
    assert [list(map(tuple, path.vertices)) for path in joins.get_paths()] == [
        [(first, 40), (first, 50)],
        [(second, 40), (second, 50)],
    ]
    assert {mark.get_linestyle() for mark in chart.figure.legends[0].get_lines()[:2]} == {"None"}
    assert "576 to 576 numbers deep" in chart.text
