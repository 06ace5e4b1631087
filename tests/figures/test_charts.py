"""Colours that read on white and on black, labels that do not overlap, marks where the numbers say."""

import dataclasses
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import rgb_to_hsv, to_hex, to_rgb
from matplotlib.text import Annotation, Text
from PIL import Image

from helpers import style
from helpers.figures.frame.chart import label_width, page_position, plain, si
from helpers.figures.memory.tensor_traffic import traffic_chart
from helpers.figures.occupancy.occupancy_curves import occupancy_chart
from helpers.figures.occupancy.waves import waves_chart
from helpers.figures.performance.roofline_chart import (
    LABEL_HEIGHT,
    Point,
    place_labels,
    roofline_axes,
    roofline_chart,
    roofline_scene,
)
from helpers.figures.performance.timing_chart import timing_chart
from helpers.figures.training.dropout_mask import Draw, mask_chart
from helpers.instruments.devices import DEVICES
from helpers.instruments.occupancy_calculator import occupancy
from helpers.instruments.roofline import Roofline, levels
from helpers.instruments.timing import Timing
from helpers.instruments.traffic import measure

COURSE = Path(__file__).resolve().parents[2]
PAGES = {"light": "#ffffff", "dark": "#111111"}  # JupyterLab's two themes
POINTS = [
    Point("softmax", 0.3, 6e11, "unfused"),
    Point("softmax", 1.25, 2.5e12, "fused"),
    Point("ReLU", 0.25, 5e11),
]


def roof(name="A100", dtype="fp16"):
    return Roofline(DEVICES[name], dtype)


def contrast(colour, page):
    """WCAG 2.1's contrast ratio."""

    def luminance(c):
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(c)]
        return np.dot([0.2126, 0.7152, 0.0722], linear)

    lighter, darker = sorted((luminance(colour), luminance(page)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.fixture(scope="module")
def every_chart():
    x, y = torch.randn(2, 1000)
    unfused = measure(lambda: torch.nn.functional.gelu(x + y))
    fused = measure(lambda: x + y)
    kernels = [occupancy((9, 0), threads=256, registers=70), occupancy((8, 0), threads=512, registers=40)]
    kernels += [occupancy((7, 0), threads=32), occupancy((9, 0), threads=128, dynamic_shared_memory=232_448)]
    kernels += [occupancy((9, 0), threads=1024, registers=255), occupancy((8, 6), threads=100, shared_memory=2177)]
    slow = Timing(7.7e-6, 7.6e-6, 7.9e-6, 30)
    quick = Timing(5.2e-6, 5.0e-6, 5.3e-6, 30)
    where = "NVIDIA GeForce RTX 5090 Laptop GPU, PyTorch 2.13.0+cu130, Triton 3.7.1, 2026-11-21"
    numbers = np.arange(12).reshape(2, 6)
    with_l2 = dataclasses.replace(DEVICES["A100"], l2_bandwidth=4078e9)
    charts_drawn = [
        roofline_chart([roof(), roof(dtype="fp32")], POINTS, "title", "text"),
        roofline_chart(levels(with_l2, "fp16").values(), POINTS, "title", "text"),
        traffic_chart({"unfused": unfused, "fused": fused}),
        traffic_chart({"fused": fused}, "title"),
        timing_chart({"eager": slow, "fused": quick, "torch.compile, max-autotune": quick}, where),
        timing_chart({"one": quick}, where),
        *(waves_chart(kernels[0].waves(grid, 132)) for grid in (1, 396, 3000, 10**9)),
        *map(occupancy_chart, kernels),
        mask_chart(
            {"one": Draw(numbers, numbers // 6, numbers > 3), "two": Draw(numbers, 0 * numbers, numbers > 4)}, "title"
        ),
    ]
    for chart in charts_drawn:
        chart.figure.draw_without_rendering()
    return charts_drawn


def texts_of(chart):
    outside = set()
    for axes in chart.figure.axes:
        for axis, (least, most) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, sorted(axes.get_ylim()))):
            ticks = axis.get_major_ticks()  # matplotlib keeps ticks beyond the ends, and does not draw them
            outside |= {tick.label1 for tick in ticks if not least <= tick.get_loc() <= most}
    texts = chart.figure.findobj(Text)
    return [text for text in texts if text.get_text() and text.get_visible() and text not in outside]


@pytest.mark.parametrize("page", PAGES.values(), ids=list(PAGES))
def test_everything_drawn_reads_on_both_pages(every_chart, page):
    for chart in every_chart:
        bars = [bar for axes in chart.figure.axes for bar in axes.patches]
        for text in texts_of(chart):
            if text.get_color() in ("black", "white"):  # written on a bar
                x, y = text.get_window_extent().get_points().mean(axis=0)
                (bar,) = [bar for bar in bars if bar.get_window_extent().contains(x, y)]
                assert contrast(text.get_color(), bar.get_facecolor()[:3]) >= 4.5
            else:  # grey text is drawn near-black, inverted on a dark page; live, it takes the page's colour
                assert to_hex(text.get_color()) in (style.TEXT, style.LIMIT)
        for line in [line for axes in chart.figure.axes for line in axes.lines]:
            colour = line.get_color() if line.get_marker() in ("None", None, "") else line.get_markeredgecolor()
            assert contrast(colour, page) >= 3
        assert all(contrast(bar.get_edgecolor()[:3], page) >= 3 for bar in bars)


def test_every_text_lies_on_the_picture_and_none_on_another(every_chart):
    for chart in every_chart:
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts_of(chart)]
        width, height = chart.figure.bbox.size
        for text, box in boxes:
            assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.5, text
        for (one, box), (other, another) in itertools.combinations(boxes, 2):
            overlap = (
                min(box.x1, another.x1) - max(box.x0, another.x0),
                min(box.y1, another.y1) - max(box.y0, another.y0),
            )
            assert min(overlap) < 1, f"{one!r} and {other!r} overlap"


def test_every_chart_has_a_finding_and_a_line_of_text(every_chart):
    for chart in every_chart[2:]:
        title = chart.figure.texts[0].get_text()
        assert chart.text.startswith(title)
        assert len(chart.text) > len(title)
        assert "\n" not in chart.text


def inverted(colour) -> list[float]:
    """What `invert(1) hue-rotate(180deg)` makes of a colour (W3C, Filter Effects, 'Filter Functions')."""
    red, green, blue = (1 - part for part in to_rgb(colour))
    luminance = 0.213 * red + 0.715 * green + 0.072 * blue
    return [min(1, max(0, 2 * luminance - part)) for part in (red, green, blue)]


def test_inverting_swaps_black_and_white_and_keeps_hues():
    assert inverted("white") == pytest.approx([0, 0, 0])
    assert inverted("black") == pytest.approx([1, 1, 1])
    for colour in (style.UNFUSED, style.FUSED, style.GREEN, style.WRONG):
        assert rgb_to_hsv(inverted(colour))[0] == pytest.approx(rgb_to_hsv(to_rgb(colour))[0], abs=0.08)


@pytest.mark.parametrize("file", ["helpers/jupyterlab/custom.css", "source/site/site.css"])
def test_text_of_a_still_has_full_contrast_on_a_light_and_on_a_dark_page(file):
    css = (COURSE / file).read_text()
    rules = re.findall(r"^(.*)figure img { filter: (.+?); }", css, re.MULTILINE)
    if "var(--still)" in css:  # a variable that is the filter on dark pages, and none on light ones
        assert rules == [("", "var(--still)")]
        rules = [
            (line, value) for line, value in re.findall(r"^(.*?)--still: (.+?);", css, re.MULTILINE) if value != "none"
        ]
        inverted_as = re.search(r"--inverted: (.+?);", css)[1]
        rules = [(line, value.replace("var(--inverted)", inverted_as)) for line, value in rules]
    assert rules
    for selector, rule in rules:
        assert "dark" in selector or 'light="false"' in selector
        assert rule == "invert(1) hue-rotate(180deg)"
    assert contrast(style.STILL_TEXT, PAGES["light"]) > 14
    assert contrast(inverted(style.STILL_TEXT), PAGES["dark"]) > 14


def test_a_still_has_dark_text_and_the_live_figure_keeps_its_own():
    chart = roofline_chart(roof(), POINTS, "title", "text")
    chart.figure.draw_without_rendering()
    before = [text.get_color() for text in texts_of(chart)]
    picture = Image.open(io.BytesIO(chart.png())).convert("RGBA")
    darkest = min(sum(colour[:3]) for _, colour in picture.getcolors(1 << 24) if colour[3] > 200)
    assert darkest < 3 * 0x30
    assert [text.get_color() for text in texts_of(chart)] == before
    assert not any(text.get_path_effects() for text in texts_of(chart))


def test_the_contrast_check_finds_colours_that_do_not_read():
    assert contrast("black", PAGES["dark"]) < 1.2
    assert contrast(style.UNFUSED, PAGES["light"]) < 3  # why its marks have an edge
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    best = max(min(contrast(str(grey / 255), page) for page in PAGES.values()) for grey in range(256))
    assert 4.3 < best < 4.5


def colours_of_the_key(picture: Image.Image) -> set[str]:
    """Which colours of unfused and fused stand in it, up to one step of 255: a picture's palette rounds them."""
    there = {colour[:3] for _, colour in picture.getcolors(1 << 24)}
    key = {name: [round(255 * v) for v in to_rgb(name)] for name in (style.UNFUSED, style.FUSED)}
    return {
        name for name, c in key.items() if any(max(abs(a - b) for a, b in zip(c, o, strict=True)) <= 1 for o in there)
    }


@pytest.mark.parametrize("page", PAGES.values(), ids=list(PAGES))
def test_the_picture_is_transparent_and_shows_both_colours(page):
    picture = Image.open(io.BytesIO(roofline_chart(roof(), POINTS, "title", "text").png())).convert("RGBA")
    assert picture.getpixel((2, 2))[3] == 0
    shown = Image.new("RGBA", picture.size, page)
    shown.alpha_composite(picture)
    assert colours_of_the_key(shown) == {style.UNFUSED, style.FUSED}


def test_the_key_stands_in_the_corner_of_the_picture():
    for points, shown in ((POINTS, {style.UNFUSED, style.FUSED}), ([Point("measured", 1.0, 1e12)], set())):
        picture = Image.open(io.BytesIO(roofline_chart(roof(), points, "title", "text").png())).convert("RGBA")
        corner = picture.crop((0, 0, picture.width // 4, picture.height // 5))
        assert colours_of_the_key(corner) == shown


def test_a_chart_is_a_picture_and_a_line():
    chart = roofline_chart(roof(), POINTS, "title", "one line")
    data, metadata = chart._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png", "text/html"}
    assert 'alt="one line"' in data["text/html"]
    assert data["text/plain"] == repr(chart) == "one line"
    assert metadata["image/png"]["alt"] == "one line"


@pytest.mark.parametrize("name", DEVICES)
def test_page_position_is_matplotlibs_own_transform(name):
    figure, axes, _ = roofline_axes([roof(name)] if name == "A100" else [roof(name, "fp32")])
    position = page_position(axes)
    for x, y in [(0.02, 1e11), (153, 3.12e14), (1e5, 7e12)]:
        expected = axes.transData.transform((x, y))
        assert position(x, y) == pytest.approx((expected[0], figure.bbox.height - expected[1]))


def test_roofs_are_drawn_where_the_model_says():
    _, axes, labels = roofline_axes([roof(), roof(dtype="fp32")])
    slope, top, low, ridge = axes.lines[:4]
    assert slope.get_ydata()[0] / slope.get_xdata()[0] == pytest.approx(2039e9)
    assert set(top.get_ydata()) == {312e12}
    assert set(low.get_ydata()) == {19.5e12}
    assert ridge.get_xdata()[0] == pytest.approx(312e12 / 2039e9)
    assert {"ridge, 153", "memory, 2.04 TB/s", "fp16 on tensor cores, 312 TFLOP/s"} <= {label.text for label in labels}


def test_a_hierarchical_roofline_has_a_slope_for_each_level():
    device = dataclasses.replace(DEVICES["A100"], l2_bandwidth=4078e9)  # twice its memory's: no claim about an A100
    l2, dram = Roofline(device, "fp16", "L2"), Roofline(device, "fp16")
    _, axes, labels = roofline_axes([l2, dram, Roofline(device, "fp32")])
    slopes = [line for line in axes.lines if line.get_xdata()[0] == 0.015]
    assert [line.get_ydata()[0] / 0.015 for line in slopes] == pytest.approx([2039e9, 4078e9])
    assert [(line.get_xdata()[1], line.get_ydata()[1]) for line in slopes] == [
        pytest.approx((dram.ridge, 312e12)),
        pytest.approx((l2.ridge, 312e12)),
    ]
    assert {"memory, 2.04 TB/s", "L2, 4.08 TB/s", "ridge, 153"} <= {label.text for label in labels}
    assert overlaps(labels) == []


def overlaps(labels):
    boxes = [(label.left, label.y, label_width(label.text)) for label in labels]
    return [
        (a, b)
        for a, b in itertools.combinations(boxes, 2)
        if a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and abs(a[1] - b[1]) < LABEL_HEIGHT - 0.001
    ]


intensities = st.floats(0.05, 1e5)


@given(st.lists(st.tuples(intensities, st.sampled_from(["unfused", "fused", "single"])), max_size=18))
def test_labels_never_overlap(points):
    _, axes, obstacles = roofline_axes([roof()])
    marks = [Point("conv+BN+ReLU", x, roof().attainable(x), kind) for x, kind in points]
    placed = place_labels(marks, page_position(axes), (axes.bbox.x0, axes.bbox.x1), obstacles)
    assert len(placed) == len(points)
    assert overlaps(placed + obstacles) == overlaps(obstacles)


def test_label_widths_are_not_underestimated():
    figure = roofline_chart([roof(), roof(dtype="fp32")], POINTS, "title", "text").figure
    figure.draw_without_rendering()
    for text in figure.findobj(Annotation):
        if text.get_text():
            assert text.get_window_extent().width <= label_width(text.get_text()) * 1.05 + 2


def test_points_off_a_logarithmic_axis_are_refused():
    with pytest.raises(ValueError, match="choose from unfused, fused, single"):
        Point("x", 1, 1, "other")
    for intensity in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite numbers above 0"):
            Point("x", intensity, 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3.35e12, "3.35 TB/s"), (2039e9, "2.04 TB/s"), (999.6e9, "1 TB/s"), (300e9, "300 GB/s"), (0, "0 B/s")],
)
def test_si(value, expected):
    assert si(value, "B/s") == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (0.125, "0.125"), (1.5, "1.5"), (152.9, "153"), (12345, "12,300"), (100, "100")]
)
def test_plain(value, expected):
    assert plain(value) == expected


def test_every_point_is_inside_the_axes():
    """A kernel that waits for its launch does far fewer FLOP/s than any roof, and some do no arithmetic to speak of."""
    points = [Point("launch-bound", 0.25, 2e8), Point("a sum of bits", 1e-4, 1e9), Point("primes", 1e7, 1e17)]
    axes = roofline_chart(roof(), points, "title", "text").figure.axes[0]
    for point in points:
        assert axes.get_xlim()[0] < point.intensity < axes.get_xlim()[1]
        assert axes.get_ylim()[0] < point.performance < axes.get_ylim()[1]
    usual = roofline_chart(roof(), POINTS, "title", "text").figure.axes[0]
    assert usual.get_xlim() == (0.015, 2e5)


def test_a_roofline_chart_is_of_one_device():
    with pytest.raises(ValueError, match="shows one device, got A100 and H100"):
        roofline_chart([roof(), roof("H100")], POINTS, "title", "text")
    with pytest.raises(ValueError, match="shows one device, got no roofline"):
        roofline_chart([], POINTS, "title", "text")
    with pytest.raises(ValueError, match="x is at 1 FLOP/byte"):
        Point("x", "1", 1)
    with pytest.raises(ValueError, match="an element in fp4 is a fraction of a byte: choose from fp32"):
        roofline_scene(DEVICES["B200"], "fp4", 16, 16, ["ReLU"])


def test_any_text_is_drawn_as_it_is():
    chart = roofline_chart(roof(), [Point("$x^2$ \\foo", 1, 1e12)], "from $5 to $\\foo$ & <b>", "größe 中文")
    chart._repr_mimebundle_()
    assert "from $5 to $\\foo$ & <b>" in [text.get_text() for text in texts_of(chart)]
    assert label_width("中文") == label_width("four")


def test_numbers_that_are_none_are_shown_as_such():
    assert (plain(float("nan")), plain(float("inf")), si(float("inf"), "B/s")) == ("nan", "inf", "inf B/s")
