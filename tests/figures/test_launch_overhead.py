"""The launch model against a queue simulated call by call, and against what was recorded; its charts and explorer."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image

from helpers import style
from helpers.figures.launches.launch_overhead import (
    ELEMENTS,
    LAUNCHED,
    OPERATIONS,
    LaunchExplorer,
    chain_time,
    launch_axes,
    launch_chart,
    launch_costs,
    launch_scene,
    timeline,
)
from helpers.instruments.devices import DEVICES
from helpers.instruments.recordings import recorded

MICROSECOND = 1e-6


def pace(calls, launches, host, kernel):
    """Seconds a call takes at last, if a CPU launches and a GPU runs kernels of `kernel` seconds in order."""
    cpu = gpu = 0.0
    ends = []
    for _ in range(calls):
        for _ in range(launches):
            cpu += host
            gpu = max(gpu, cpu) + kernel
        ends.append(gpu)
    return (ends[-1] - ends[calls // 2]) / (calls - calls // 2 - 1)


@given(
    launches=st.integers(1, 9),
    nbytes=st.integers(0, 10**10),
    host=st.floats(0, 1e-4),
    start=st.floats(1e-7, 1e-5),
)
def test_a_long_row_of_calls_takes_the_models_pace(launches, nbytes, host, start):
    time = chain_time(launches, nbytes, 2e12, host, start)
    kernel = start + nbytes / launches / 2e12
    assert time.total == pytest.approx(pace(60, launches, host, kernel), rel=1e-6)
    assert time.gpu == pytest.approx(launches * kernel)


def test_adding_both_is_not_the_pace():
    time = chain_time(1, 12_000_000, 4e12, 10 * MICROSECOND, MICROSECOND)
    assert time.cpu + time.gpu > 1.3 * pace(60, 1, 10 * MICROSECOND, 4 * MICROSECOND)


def test_the_model_holds_for_recorded_calls_it_was_not_made_from():
    run = recorded("h200")
    costs = launch_costs(run)
    sizes = run.experiment("chain_sizes")
    for elements, found in sizes.items():
        for version, launches, host in (("eager", 4, costs.operator), ("fused", 1, costs.triton)):
            time = chain_time(launches, launches * 8 * elements, run.copy_bandwidth, host, costs.start)
            # Within a tenth of what nine runs in ten took: the CPU's share of a call varies by more than that.
            call = found["call"][version]
            assert 0.9 * call.low <= time.total <= 1.1 * call.high


def test_what_takes_most_is_named():
    assert chain_time(4, 1000, 1e12, 6e-6, 2e-6).bound == "launching"
    assert chain_time(4, 1000, 1e12, 0, 2e-6).bound == "launching"
    assert chain_time(4, 10**9, 1e12, 6e-6, 2e-6).bound == "memory"


@pytest.mark.parametrize(("launches", "bandwidth"), [(0, 1e12), (1, 0)])
def test_a_chain_without_launches_or_memory_is_refused(launches, bandwidth):
    with pytest.raises(ValueError, match="both must be positive"):
        chain_time(launches, 8, bandwidth, 1e-6, 1e-6)


def test_a_timeline_keeps_its_order():
    time = chain_time(3, 3 * 4_000_000, 1e12, 5e-6, 1e-6)
    launched, ran = timeline(time)
    assert launched == [pytest.approx(span) for span in ((0, 5e-6), (5e-6, 10e-6), (10e-6, 15e-6))]
    assert ran == [pytest.approx(span) for span in ((5e-6, 10e-6), (10e-6, 15e-6), (15e-6, 20e-6))]
    waits = timeline(chain_time(2, 2_000_000, 1e12, 5e-6, 1e-6))[1]
    assert waits == [pytest.approx(span) for span in ((5e-6, 7e-6), (10e-6, 12e-6))]
    ahead = timeline(chain_time(2, 20_000_000, 1e12, 5e-6, 1e-6))[1]
    assert ahead == [pytest.approx(span) for span in ((5e-6, 16e-6), (16e-6, 27e-6))]


def contrast(colour, page):
    def luminance(c):
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(c)]
        return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    lighter, darker = sorted((luminance(colour), luminance(page)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.fixture(scope="module")
def explorer():
    return LaunchExplorer()


@pytest.fixture(scope="module")
def pictures(explorer):
    return [explorer.chart()]


@pytest.mark.parametrize("page", ["#ffffff", "#111111"], ids=["light", "dark"])
def test_text_reads_on_both_pages_and_stays_on_them(pictures, page):
    for chart in pictures:
        chart.figure.draw_without_rendering()
        texts = [text for text in chart.figure.findobj(Text) if text.get_text() and text.get_visible()]
        assert all(contrast(text.get_color(), page) >= 4.3 for text in texts)
        drawn, (width, height) = chart.figure.get_tightbbox(), chart.figure.get_size_inches()
        assert 0 <= drawn.x0 < drawn.x1 <= width
        assert 0 <= drawn.y0 < drawn.y1 <= height
        assert Image.open(io.BytesIO(chart.png())).convert("RGBA").getpixel((2, 2))[3] == 0


def frame(explorer):
    return explorer._stage.data["frames"][explorer.elements.index * len(OPERATIONS) + explorer.operations.index]


def test_the_explorers_text_by_hand():
    costs = launch_costs(recorded("h200"))
    by_graph = launch_scene(DEVICES["A100"], "fp16", "by a CUDA graph", 10**9, 8)
    moved = 2 * 2 * 10**9 / 2.039e12
    gain = (8 * costs.start + 8 * moved) / (costs.start + moved)
    assert by_graph.title == f"Fusing 8 operations makes the call {gain:.2f} times faster"
    assert "8 launches, 15.7 ms, mostly memory; fused, 1 launch, 1.96 ms, mostly memory" in by_graph.text
    slower = launch_scene(DEVICES["H200"], "fp32", LAUNCHED[0], 1000, 1)
    loss = costs.triton / costs.operator
    assert slower.title == f"Fusing a single operation makes the call {loss:.2f} times slower"
    assert launch_scene(DEVICES["H200"], "fp32", LAUNCHED[1], 1000, 1).title.endswith("gains nothing")


def test_every_frame_is_that_of_its_sliders(explorer):
    assert len(explorer._stage.data["frames"]) == len(ELEMENTS) * len(OPERATIONS)
    for elements, operations in ((ELEMENTS[0], 1), (50_000, 8), (ELEMENTS[-1], 3)):
        explorer.elements.value, explorer.operations.value = elements, operations
        assert frame(explorer)["text"] == explorer.text == repr(explorer.chart())
        assert f"{elements:,} numbers: unfused, {operations} launch" in explorer.text
    explorer.elements.value, explorer.operations.value = 1_000_000, 4


def test_choices_redraw(explorer):
    explorer.device.value, explorer.dtype.value, explorer.launched.value = "T4", "fp16", LAUNCHED[2]
    assert frame(explorer)["text"] == explorer.text
    assert explorer.text.startswith("T4, fp16, launched by a CUDA graph")
    explorer.device.value, explorer.dtype.value, explorer.launched.value = "H200", "fp32", LAUNCHED[0]


def test_marks_stand_where_the_axes_put_them(explorer):
    figure, axes = launch_axes()
    scene = launch_scene(DEVICES["H200"], "fp32", LAUNCHED[0], 1_000_000, 4)
    x, y = axes.transData.transform((1_000_000, scene.curves[0].marked.total))
    found = re.search(r'<circle cx="([0-9.]+)" cy="([0-9.]+)"', frame(explorer)["svg"])
    assert (float(found[1]), figure.bbox.height - float(found[2])) == pytest.approx((x, y), abs=0.06)
    line = launch_chart(scene.curves, 1_000_000, "title", "text").figure.axes[0].lines[1]
    assert line.get_color() == style.UNFUSED
    assert line.get_ydata()[0] == scene.curves[0].seconds[0]


HIGH, DEEP = 9, 3  # points of a label over and under its baseline


@pytest.mark.parametrize("launched", LAUNCHED)
def test_no_line_and_no_axis_strikes_a_label(launched):
    figure, axes = launch_axes()
    bottom = figure.bbox.height - axes.bbox.y0
    for each in LaunchExplorer("T4", "fp32", launched)._stage.data["frames"]:
        labels = re.findall(r'<text x="[0-9.]+" y="([0-9.]+)"( dominant-baseline="hanging")? paint-order', each["svg"])
        one, other = (float(y) + (HIGH if hangs else 0) for y, hangs in labels)
        assert max(one, other) + DEEP < bottom, "a label lies on the axis"
        assert abs(one - other) >= HIGH + DEEP, "one label lies on the other"
        # What is painted last, with an edge in the page's colour, lies over every line.
        assert "<path" not in each["svg"][each["svg"].index("paint-order") :]


def test_a_saved_notebook_keeps_a_picture_and_the_text(explorer):
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/html", "text/plain"}
    assert data["text/plain"] == explorer.text == metadata["image/png"]["alt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "H1000"}, "unknown device"),
        ({"dtype": "fp8"}, "'fp8' launched"),
        ({"launched": "by hand"}, "launched 'by hand'"),
        ({"elements": 5}, "the numbers slider has no 5"),
        ({"operations": 9}, "the operations slider has no 9"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        LaunchExplorer(**arguments)
    assert "\n" not in str(error.value)


def test_a_scene_of_no_operations_is_refused():
    with pytest.raises(ValueError, match="0 operations on 4 elements"):
        launch_scene(DEVICES["H200"], "fp32", LAUNCHED[0], 4, 0)
