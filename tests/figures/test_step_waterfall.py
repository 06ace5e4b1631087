"""The waterfall of a layer's time: its bars by hand, the picture and its explorer."""

import re

import pytest
from drawn import assert_texts_lie_apart

from helpers.figures import WaterfallExplorer
from helpers.figures.launches.step_waterfall import PANEL, micro, waterfall_axes, waterfall_scene
from helpers.instruments import recorded
from helpers.style import FUSED, LIMIT, TEXT, UNFUSED

WAYS = ("eager", "fused", "slower")
TIMES = {
    layer: {
        "call": dict(zip(WAYS, (4 * each, 2 * each, 3 * each), strict=True)),
        "graph": dict.fromkeys(WAYS, each),
    }
    for layer, each in {"small": 10e-6, "large": 200e-6}.items()
}
FLOORS = {"small": 5e-6, "large": 150e-6}
PREDICTED = {layer: {"call": {"eager": 35e-6}, "graph": {}} for layer in TIMES}


def test_a_bar_is_what_is_kept_and_then_what_is_removed_or_added():
    scene = waterfall_scene("small", "call", TIMES["small"]["call"], 5e-6, {"eager": 35e-6}, 40e-6)
    per_us = (PANEL.right - PANEL.left) / 40
    bars = {
        colour: [round(box.width / per_us, 6) for box in scene.boxes if box.colour == colour]
        for colour in (LIMIT, None, UNFUSED)
    }
    assert bars == {LIMIT: [40, 20, 20], None: [20], UNFUSED: [10]}
    marks = {
        colour: {round((box.x + box.width / 2 - PANEL.left) / per_us, 6) for box in scene.boxes if box.colour == colour}
        for colour in (TEXT, FUSED)
    }
    assert marks == {TEXT: {5}, FUSED: {35}}
    assert scene.title == "small, call: fused is the fastest, at 4.0x the minimum for its bytes"
    assert "eager: 40.0 µs, 8.0x its bytes, predicted 35.0 µs; fused: 20.0 µs, 4.0x its bytes;" in scene.text


@pytest.mark.parametrize(("seconds", "shown"), [(9.96e-6, "10.0 µs"), (99.6e-6, "100 µs"), (1e-3, "1000 µs")])
def test_microseconds_have_three_digits_or_one_after_the_point(seconds, shown):
    assert micro(seconds) == shown


def test_every_frame_is_that_of_its_sliders():
    explorer = WaterfallExplorer(TIMES, FLOORS, PREDICTED)
    frames = explorer._stage.data["frames"]
    assert len(frames) == 4
    explorer.layer.value, explorer.clock.value = "large", "call"
    frame, chart = frames[2], explorer.chart()
    assert frame["text"] == explorer.text == repr(chart)
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', frame["svg"])]
    assert widths == pytest.approx([bar.get_width() for bar in chart.figure.axes[0].patches], abs=0.06)


def test_every_text_of_the_record_lies_on_the_picture_and_none_on_another():
    h100 = recorded("h100_80gb_hbm3")
    times = {
        layer: {
            clock: {way: each[clock].median / 8 for way, each in h100.experiment(f"short_kernels_{layer}").items()}
            for clock in ("call", "graph")
        }
        for layer in ("small", "8B")
    }
    none = {layer: {"call": {}, "graph": {}} for layer in times}
    for layer in times:
        for clock in ("call", "graph"):
            shown = WaterfallExplorer(times, {"small": 7.8e-6, "8B": 131e-6}, none, layer, clock).chart()
            assert_texts_lie_apart(shown.figure)
    ways = tuple(times["small"]["call"])
    assert len(waterfall_axes(ways)[1].texts) == len(ways) + 1


def test_a_saved_notebook_keeps_a_picture_and_the_text():
    explorer = WaterfallExplorer(TIMES, FLOORS, PREDICTED)
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/html", "text/plain"}
    assert data["text/plain"] == explorer.text == metadata["image/png"]["alt"]


@pytest.mark.parametrize(("choice", "message"), [({"layer": "9B"}, "layer slider"), ({"clock": "gpu"}, "clock slider")])
def test_bad_input_is_refused_in_one_line(choice, message):
    with pytest.raises(ValueError, match=message) as error:
        WaterfallExplorer(TIMES, FLOORS, PREDICTED, **choice)
    assert "\n" not in str(error.value)
