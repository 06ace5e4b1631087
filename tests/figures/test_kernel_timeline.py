"""The timeline drawn: a bar where the trace has a kernel, gaps shaded, what a search finds marked."""

import pytest

from helpers.figures import KernelTimelineExplorer
from helpers.figures.launches.kernel_timeline import GPU, HIGH, HOST, LEFT, RIGHT, timeline_scene
from helpers.instruments import read_trace
from helpers.style import FAINT, FUSED, LIMIT, UNFUSED

PRODUCT, BYTES = "nvjet_sm90_tst_64x64_64x13_4x2_h_bz_bias_TNT", "void at::native::vectorized_elementwise_kernel<4>"


def trace(*rows):
    """(name, start, duration) in microseconds, each launched 5 us before."""
    events = []
    for number, (name, start, duration) in enumerate(rows):
        same = {"ph": "X", "args": {"correlation": number}}
        events.append(same | {"cat": "kernel", "name": name, "ts": start, "dur": duration})
        events.append(same | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start - 5, "dur": 2})
    return {"traceEvents": events}


THREE = read_trace(trace((PRODUCT, 10, 20), (BYTES, 50, 10), (PRODUCT, 60, 30)))


def test_bars_lie_where_the_trace_has_them():
    scene = timeline_scene("eager", THREE, 1, "elementwise", THREE.wall)
    lane = [box for box in scene.boxes if box.y == GPU]
    scale = (RIGHT - LEFT) / 100  # points a microsecond: the axis goes from the first launch, at 5, for 100 us
    places = {round((box.x - LEFT) / scale + 5): (round(box.width / scale), box.colour) for box in lane}
    assert places == {10: (20, FUSED), 30: (20, FAINT), 50: (10, UNFUSED), 60: (30, FUSED)}
    assert len([box for box in scene.boxes if box.y == HOST]) == 3
    plain = timeline_scene("eager", THREE, 1, "", 1e-4).boxes
    assert [box.colour for box in plain if box.y == GPU].count(LIMIT) == 1
    assert [box.colour for box in plain if box.y == GPU + HIGH] == [LIMIT]
    assert "kernel 2 of 3: " in scene.text
    assert "1 kernels with “elementwise” in their names" in scene.text
    assert scene.title == "eager: 3 kernels, the GPU is busy 75% of 80 µs"


def test_every_frame_is_that_of_its_slider():
    explorer = KernelTimelineExplorer({"eager": THREE, "one": read_trace(trace((BYTES, 10, 5)))})
    frames = explorer._stage.data["frames"]
    assert len(frames) == 3
    for number, frame in enumerate(frames, 1):
        explorer.kernel.value = number
        assert frame["text"] == explorer.text
    explorer.way.value = "one"
    assert explorer.text.startswith("one: 1 kernels")
    explorer.search.value = "<script>"
    assert "<script>" not in explorer._stage.data["frames"][0]["svg"]
    assert explorer.text.endswith("in their names.")


def test_ways_of_about_one_length_share_an_axis():
    quicker = read_trace(trace((BYTES, 10, 20), (PRODUCT, 30, 30)))
    long = read_trace(trace((BYTES, 10, 9000)))
    explorer = KernelTimelineExplorer({"eager": THREE, "quicker": quicker, "long": long})
    first = {}  # way -> points a microsecond
    for way, microseconds in (("eager", 20), ("quicker", 20)):
        explorer.way.value = way
        bar = next(box for box in explorer._scene(1).boxes if box.y == GPU)
        first[way] = bar.width / microseconds
    assert first["eager"] == pytest.approx(first["quicker"])
    assert first["eager"] > 1, "a much longer way does not make the others a line"


def test_a_picture_says_what_it_shows():
    assert "busy 75%" in repr(KernelTimelineExplorer({"eager": THREE}).chart())
    with pytest.raises(ValueError, match="unknown timeline 'x'"):
        KernelTimelineExplorer({"eager": THREE}, "x")
