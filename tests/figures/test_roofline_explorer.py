"""What the explorer says is true of what it shows, and what it shows is there without a kernel."""

import dataclasses
import json
import re

import pytest
from matplotlib.figure import Figure

from helpers import style
from helpers.figures.performance.roofline_chart import (
    COLUMNS,
    ROWS,
    SHOWN,
    STEPS,
    RooflineExplorer,
    roofline_axes,
    roofline_scene,
    roofline_step,
)
from helpers.instruments.devices import DEVICES
from helpers.instruments.operations import ITEMSIZE, OPERATIONS, cost
from helpers.instruments.recordings import recorded
from helpers.instruments.roofline import Roofline

EVERY = [(name, dtype) for name, device in DEVICES.items() for dtype in device.peak_flops if dtype != "fp4"]


@pytest.fixture(scope="module")
def explorer():
    return RooflineExplorer()


def frame(explorer):
    return explorer._stage.data["frames"][explorer.rows.index * len(COLUMNS) + explorer.columns.index]


def test_the_text_by_hand(explorer):
    # softmax: 2 * 4096^2 * 2 B fused against 8 N + 4 R elements unfused; LayerNorm: 12 N + 8 R + 2 C against 2 N + 2 C.
    # attention, with S scores: 4 N + 6 S elements unfused against 4 * 4096 N operations fused.
    assert explorer.text == (
        "A100, fp16, shape (4096, 4096): ridge at 153 FLOP/byte. Memory-bound: ReLU, add+GELU, LayerNorm, softmax. "
        "Compute-bound: matmul+bias+ReLU, attention. "
        "At best, fusing makes attention 7.25 times faster, matmul+bias+ReLU 1.15 times."
    )
    layer_norm = roofline_scene(DEVICES["A100"], "fp16", 4096, 4096, ["LayerNorm"])
    n, r = 4096**2, 4096
    gain = (12 * n + 10 * r) / (2 * n + 2 * r)
    assert layer_norm.title == f"At best, fusing makes LayerNorm {gain:.2f} times faster"


@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_titles_and_points_are_true_of_every_device(name, dtype):
    for rows, columns in ((1, 1), (127, 1025), (65536, 16384)):
        scene = roofline_scene(DEVICES[name], dtype, rows, columns, OPERATIONS)
        gains = {o: unfused.time / fused.time for o, (unfused, fused) in scene.costs.items() if fused is not unfused}
        most, least = max(gains.values()), min(gains.values())
        assert re.search(rf"fusing makes (\S+) {most:.2f} times faster", scene.title)
        assert (f"{least:.2f} times" if least >= 1.005 else "no faster") in scene.title
        both = Roofline(DEVICES[name], "fp32").peak  # CUDA cores do an epilogue while tensor cores multiply
        for point in scene.points:
            slope = DEVICES[name].memory_bandwidth * point.intensity
            peak = max(roof.peak for roof in scene.rooflines)
            assert point.performance <= min(slope, peak + both) * (1 + 1e-9)


def test_a_known_l2_bandwidth_adds_its_slope(monkeypatch, explorer):
    monkeypatch.setitem(DEVICES, "A100", dataclasses.replace(DEVICES["A100"], l2_bandwidth=4078e9))
    assert ">L2, 4.08 TB/s<" in RooflineExplorer()._stage.still
    assert ">L2, " not in explorer._stage.still


def test_special_functions_and_shared_memory_have_roofs_and_triton_no_tensor_cores_on_a_t4(explorer):
    assert ">special functions, 2.44 TFLOP/s<" in explorer._stage.still  # 108 SMs x 16 x 1.41 GHz
    assert ">shared memory, 19.5 TB/s<" in explorer._stage.still  # 108 SMs x 128 B x 1.41 GHz
    assert "not from Triton" not in explorer._stage.still
    t4 = RooflineExplorer(device="T4")
    assert ">fp16 on tensor cores, not from Triton, 65 TFLOP/s<" in t4._stage.still
    assert t4.text.endswith(
        "Triton has no tensor cores before compute capability 8.0: its products run on CUDA cores here."
    )
    assert "no tensor cores" not in RooflineExplorer(device="T4", dtype="fp32").text


def test_what_was_measured_is_drawn_and_said(explorer):
    run = recorded("h200")
    bandwidth, rate = f"{run.copy_bandwidth / 1e12:.2f} TB/s", f"{run.matrix_rate / 1e12:.0f} TFLOP/s"
    h200 = RooflineExplorer(device="H200", dtype="bf16")
    assert f">measured, {rate}<" in h200._stage.still
    assert h200.text.endswith(f"Measured: {bandwidth}, {rate}.")
    assert "measured" not in RooflineExplorer(device="H200", dtype="fp8")._stage.still
    assert "measured" not in explorer._stage.still, "of an A100"


def test_titles_fit_the_chart():
    names = sorted(OPERATIONS, key=len)[-2:]
    longest = f"At best, fusing makes {names[1]} 10.15 times faster, {names[0]} 1.15 times"
    figure = Figure(figsize=style.STYLE["figure.figsize"], dpi=72)
    width = figure.text(0, 0, longest, size=style.TITLE_SIZE, weight="bold").get_window_extent().width
    assert width < 0.915 * figure.bbox.width


def test_nothing_to_fuse_and_nothing_chosen_are_said():
    scene = roofline_scene(DEVICES["A100"], "fp16", 1, 1, ["ReLU", "vector add"])
    assert scene.title == "Nothing here to fuse: each operation is one launch"
    assert roofline_scene(DEVICES["A100"], "fp16", 1, 1, []).title == "No operation is chosen"


def test_every_frame_is_that_of_its_sliders(explorer):
    assert len(explorer._stage.data["frames"]) == len(ROWS) * len(COLUMNS)
    for rows, columns in ((1, 1), (127, 1025), (65536, 16384)):
        explorer.rows.value, explorer.columns.value = rows, columns
        assert frame(explorer)["text"] == explorer.text
        assert f"shape ({rows}, {columns})" in explorer.text
    explorer.rows.value = explorer.columns.value = 4096


def test_marks_stand_where_the_axes_put_them(explorer):
    scene = roofline_scene(DEVICES["A100"], "fp16", 4096, 4096, SHOWN)
    figure, axes, _ = roofline_axes(scene.rooflines)
    circles = re.findall(r'<circle cx="([0-9.]+)" cy="([0-9.]+)"', frame(explorer)["svg"])
    unfused = [point for point in scene.points if point.kind == "unfused"]
    assert len(circles) == len(unfused) >= 4
    for (x, y), point in zip(circles, unfused, strict=True):
        expected = axes.transData.transform((point.intensity, point.performance))
        assert (float(x), figure.bbox.height - float(y)) == pytest.approx(tuple(expected), abs=0.06)


def test_the_key_stands_where_there_is_something_to_tell_apart():
    for operations, key in ((["ReLU", "softmax"], True), (["ReLU", "vector add"], False), ([], False)):
        still = RooflineExplorer(operations=operations)._stage.still
        assert [f">{kind}<" in still for kind in ("unfused", "fused")] == [key, key]


def test_choices_redraw_and_a_missing_peak_is_said(explorer):
    explorer.device.value, explorer.dtype.value = "H100", "fp8"
    assert (
        "ridge at 591 FLOP/byte" in explorer.text == frame(explorer)["text"] or frame(explorer)["text"] in explorer.text
    )
    explorer.operations["softmax"].value = False
    assert "softmax" not in explorer.text
    assert "softmax" not in frame(explorer)["svg"]
    explorer.device.value = "V100"
    assert explorer.text == frame(explorer)["text"] == "V100 has no fp8 peak: choose from fp32, fp16"
    assert frame(explorer)["svg"] == explorer._stage.still == ""
    explorer.operations["softmax"].value = True
    explorer.dtype.value, explorer.device.value = "fp16", "A100"
    assert "softmax" in explorer.text


def test_the_still_part_takes_the_pages_colours_and_touches_nothing_else(explorer):
    still = explorer._stage.still
    assert "currentColor" in still
    assert style.TEXT not in still
    assert "<style" not in still
    assert "http" not in still.replace("http://www.w3.org", "")
    assert RooflineExplorer()._stage.still == still  # the same drawing, the same bytes


def test_a_saved_notebook_keeps_a_picture_and_the_text(explorer):
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/html", "text/plain"}
    assert data["text/plain"] == explorer.text == metadata["image/png"]["alt"]
    assert explorer.chart().text == explorer.text


def test_frames_stay_small_enough_to_send(explorer):
    assert len(json.dumps(explorer._stage.data["frames"])) < 1.5e6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "H1000"}, "unknown device"),
        ({"device": "V100", "dtype": "bf16"}, "V100 has no bf16 peak"),
        ({"operations": ["gelu"]}, "unknown operation 'gelu'"),
        ({"rows": 5}, "the rows slider has no 5"),
        ({"columns": 0}, "the columns slider has no 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        RooflineExplorer(**arguments)
    assert "\n" not in str(error.value)


def test_a_scene_of_no_rows_is_refused():
    with pytest.raises(ValueError, match="0 rows of 4"):
        roofline_scene(DEVICES["A100"], "fp16", 0, 4, ["ReLU"])


def test_itemsizes_cover_the_catalogue():
    assert {dtype for _, dtype in EVERY} == set(ITEMSIZE)
    assert isinstance(RooflineExplorer(rows=1), RooflineExplorer)


def test_the_first_step_has_one_roof_and_one_mark():
    explorer = RooflineExplorer(show="memory roof")
    assert "ridge" not in explorer._stage.still
    assert "TFLOP/s<" not in explorer._stage.still
    scene = explorer._scene(4096, 4096)
    [point] = scene.points
    unfused = cost(OPERATIONS["add+GELU"](4096, 4096, 2).unfused, DEVICES["A100"], "fp16")
    assert point.intensity == unfused.work.intensity
    assert point.performance == pytest.approx(2039e9 * point.intensity)
    assert all(box.layout.display == "none" for box in explorer.operations.values())


def test_each_step_adds_something_and_the_last_has_everything():
    explorer = RooflineExplorer(show="memory roof")
    stills, counts = [], []
    for step in STEPS:
        explorer.show.value = step
        stills.append(explorer._stage.still)
        counts.append(len(explorer._scene(4096, 4096).points))
    assert counts == [1, 2, 2, 11]  # fusing: one operation, unfused and fused
    assert len(set(stills)) == 4
    assert "1.67 times faster" in roofline_step("fusing", DEVICES["A100"], "fp16", 4096, 4096).title
    assert all(box.layout.display == "" for box in explorer.operations.values())


def test_a_step_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="the roofline has no step 'first': choose from memory roof"):
        RooflineExplorer(show="first")
