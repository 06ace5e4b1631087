"""Three ways to the variance, against exact fractions and against what rounding theory says; and their explorer."""

import itertools
import math
import re
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from helpers.figures.rowwise.variance_error import (
    COLUMNS,
    LOOKS,
    MEANS,
    TOP,
    WAYS,
    ErrorCurves,
    VarianceExplorer,
    layer_norm_errors,
    mean_and_variance,
    variance_axes,
    variance_chart,
)


def exact_variance(row):
    numbers = [Fraction(float(value)) for value in row]
    mean = sum(numbers) / len(numbers)
    return float(sum((value - mean) ** 2 for value in numbers) / len(numbers))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("columns", [1, 2, 64, 1024])
def test_each_way_gives_the_variance_where_nothing_cancels(way, columns):
    rows = np.random.default_rng(columns).standard_normal((3, columns)).astype(np.float32)
    mean, variance = mean_and_variance(way, rows)
    assert mean.dtype == variance.dtype == np.float32
    for row, found, centre in zip(rows, variance[:, 0], mean[:, 0], strict=True):
        assert found == pytest.approx(exact_variance(row), rel=2e-6, abs=1e-7)
        assert centre == pytest.approx(float(np.mean(row, dtype=np.float64)), abs=1e-6)


def test_two_passes_and_welford_keep_what_one_pass_loses():
    row = (np.random.default_rng(1).standard_normal((1, 1024)) + 10_000).astype(np.float32)
    exact = exact_variance(row[0])
    for way in ("two passes", "Welford"):
        assert mean_and_variance(way, row)[1].item() == pytest.approx(exact, rel=1e-4)
    assert abs(mean_and_variance("one pass", row)[1].item() - exact) > 0.1


def test_one_pass_loses_with_the_square_of_the_mean():
    errors = [layer_norm_errors(mean, 1024, "fp64") for mean in (1e2, 1e4)]
    assert 1e3 < errors[1]["one pass"] / errors[0]["one pass"] < 1e5  # 1e4 expected
    assert 10 < errors[1]["two passes"] / errors[0]["two passes"] < 1e3  # 1e2 expected


def test_sums_of_fp16_overflow():
    assert math.isnan(layer_norm_errors(1000.0, 1024, "fp16")["two passes"])  # 1024 * 1000 is more than 65504


@pytest.mark.parametrize(("way", "columns"), [("three passes", 8), ("Welford", 10)])
def test_what_cannot_be_computed_is_refused(way, columns):
    with pytest.raises(ValueError, match="and a power of two"):
        mean_and_variance(way, np.ones((1, columns), np.float32))


@pytest.mark.parametrize("arithmetic", ["fp16", "fp32", "fp64"])
def test_each_frame_shows_its_position(arithmetic):
    explorer = VarianceExplorer(arithmetic=arithmetic)
    figure, axes = variance_axes(arithmetic)
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(MEANS) * len(COLUMNS)
    for index, frame in enumerate(frames):
        explorer.mean.index, explorer.columns.index = divmod(index, len(COLUMNS))
        assert frame["text"] == explorer.text
        curves = ErrorCurves(explorer.columns.value, arithmetic)
        marks = re.findall(r'translate\(([\d.]+) ([\d.]+)\)"', frame["svg"])
        for way, (x, y) in zip(WAYS, marks, strict=True):
            expected = axes.transData.transform((explorer.mean.value, curves.height(way, explorer.mean.value)))
            assert (float(x), figure.bbox.height - float(y)) == pytest.approx(tuple(expected), abs=0.11)


def test_the_finding_says_what_happens():
    explorer = VarianceExplorer(mean=1.0)
    assert "about equally accurate" in explorer.text
    explorer.mean.value = 100.0
    assert re.search(r"one pass is [\d,.]+ times further off than two", explorer.text)
    explorer.mean.value = 1_000_000.0
    assert "not numbers" in explorer.text
    assert ErrorCurves(1024, "fp32").height("one pass", 1_000_000.0) == TOP
    data, _ = explorer._repr_mimebundle_()
    assert data["text/plain"] == explorer.text
    assert data["image/png"]


@pytest.mark.parametrize("arithmetic", ["fp16", "fp32", "fp64"])
def test_only_what_is_not_a_number_lies_on_the_line_of_those(arithmetic):
    for columns in COLUMNS:
        curves = ErrorCurves(columns, arithmetic)
        for way, mean in itertools.product(WAYS, MEANS):
            assert (curves.height(way, mean) >= TOP) is math.isnan(curves.error(way, mean))


def test_what_lesson_05_says_is_to_be_found():
    one_pass = partial(ErrorCurves(1024, "fp32").error, "one pass")
    assert all(not math.isnan(one_pass(mean)) for mean in MEANS if mean < 10_000)
    assert math.isnan(one_pass(10_000.0))
    assert one_pass(32_000.0) > 1
    assert ErrorCurves(1024, "fp64").error("one pass", 10_000.0) < 1e-6


def test_an_explorer_off_its_sliders_is_refused():
    with pytest.raises(ValueError, match="no 7"):
        VarianceExplorer(mean=7)
    with pytest.raises(ValueError, match="unknown arithmetic 'bf16'"):
        VarianceExplorer(arithmetic="bf16")


def test_a_line_breaks_where_results_are_not_numbers():
    curves = ErrorCurves(1024, "fp32")
    for way in LOOKS:
        shown = [mean for run in curves.runs(way) for mean in run]
        assert sorted(shown + curves.gaps(way)) == list(MEANS)
        assert not any(math.isnan(curves.error(way, mean)) for mean in shown)
    assert curves.gaps("one pass")
    [axes] = variance_chart(curves, 1.0).figure.axes
    lines = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) > 2 and line.get_linestyle() == "-"]
    assert lines
    assert max(max(line) for line in lines) < TOP


@pytest.mark.parametrize("arithmetic", ["fp16", "fp32", "fp64"])
def test_the_label_of_the_axis_is_inside_its_picture(arithmetic):
    figure = variance_chart(ErrorCurves(1024, arithmetic), 1.0).figure
    box = figure.get_tightbbox()
    assert box.x0 >= 0


@pytest.mark.parametrize("arithmetic", ["fp16", "fp32", "fp64"])
def test_the_line_of_what_is_no_number_has_no_number(arithmetic):
    """1e+04 there would be a value."""
    figure, axes = variance_axes(arithmetic)
    figure.draw_without_rendering()
    labels = {tick.get_loc(): tick.label1.get_text() for tick in axes.yaxis.get_major_ticks()}
    assert {text for value, text in labels.items() if value >= 0.9 * TOP} <= {""}
    assert all(text for value, text in labels.items() if value < 0.9 * TOP)
