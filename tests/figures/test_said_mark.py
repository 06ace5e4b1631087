"""A guess lies where the chart's own axis has that value."""

import re

import pytest

from helpers.figures.frame.chart import Chart, bar_axes
from helpers.figures.frame.guess_mark import GuessMark, MarkedChart, guess_mark_svg
from helpers.figures.launches.launch_overhead import LaunchExplorer
from helpers.figures.occupancy.occupancy_curves import occupancy_chart
from helpers.figures.performance.curves_chart import curves_chart
from helpers.instruments.occupancy_calculator import occupancy
from helpers.learning.guesses import Guess


def tick(axis, value: float) -> tuple[float, float]:
    """The middle of the tick that matplotlib draws at that value, in points, y upwards."""
    axis.figure.draw_without_rendering()
    place = next(each for each in axis.get_major_ticks() if each.get_loc() == pytest.approx(value))
    box = place.gridline.get_window_extent()
    return (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2


def diamond(svg: str) -> tuple[float, float]:
    """The middle of the mark, in points, y downwards."""
    x, top = map(float, re.search(r'<path d="M([\d.]+) ([\d.]+)l5 5', svg).groups())
    return x, top + 5


def test_on_a_linear_axis():
    figure = curves_chart({"moved": {0: 0, 20: 2, 40: 4}}, "title", "MB", "y").figure
    x, _ = diamond(guess_mark_svg(figure, GuessMark("you said 20 MB", "x", 20)))
    assert x == pytest.approx(tick(figure.axes[0].xaxis, 20)[0], abs=0.1)


def test_on_a_logarithmic_axis_of_an_explorer_also_after_another_choice():
    explorer = LaunchExplorer()
    explorer.mark(GuessMark("you said 1,000,000 numbers", "x", 1e6))
    figure = explorer.chart().figure
    for _ in range(2):
        x, _ = diamond(explorer._stage.said["svg"])
        assert x == pytest.approx(tick(figure.axes[0].xaxis, 1e6)[0], abs=0.1)
        assert explorer._stage.said["text"] == "You said 1,000,000 numbers."
        explorer.device.value = "T4"
    explorer.mark(None)
    assert explorer._stage.said == {"svg": "", "text": ""}


def test_a_guess_about_one_bar_stays_on_it():
    figure, axes = bar_axes(["unfused", "fused"], 20, "title", "MB")
    for row in range(2):
        svg = guess_mark_svg(figure, GuessMark("you said 12 MB", "x", 12, row=row))
        bottom, top = map(float, re.search(r'<path d="M[\d.]+ ([\d.]+)V([\d.]+)"', svg).groups())
        places = [axes.transData.inverted().transform((0, figure.bbox.height - y))[1] for y in (top, bottom)]
        assert row - 0.6 < places[0] < row < places[1] < row + 0.5
        _, words = map(float, re.search(r'<text x="([\d.]+)" y="([\d.]+)"', svg).groups())
        assert top - 5 < words < bottom
    with pytest.raises(ValueError, match="a bar's guess is on axis 'x'"):
        GuessMark("you said 12 MB", "y", 12, row=0)


def test_a_mark_speaks_the_axis_unit(monkeypatch):
    monkeypatch.setattr(Guess, "guess", 16.0)
    guess = Guess("bytes for each number", "B")
    figure, _ = bar_axes(["unfused", "fused"], 20e6, "title", "MB")
    marked = guess.on(Chart(figure, "text"), "x", lambda b: b * 1e6, row=1, says=lambda b: f"{b / 1e6:g} MB")
    assert "you said 16 B: 16 MB</text>" in marked._bundle()[0]["text/html"]


def test_a_guess_of_zero_times_as_fast_lies_nowhere(monkeypatch):
    figure, _ = bar_axes(["unfused", "fused"], 20, "title", "MB")
    for said, marked in ((0.0, False), (2.0, True)):
        monkeypatch.setattr(Guess, "guess", said)
        shown = Guess("times fewer bytes", "times").on(Chart(figure, "text"), "x", lambda times: 20 / times, row=1)
        assert ("you said" in shown._bundle()[0]["text/html"]) == marked


def test_on_the_second_panel_upwards():
    figure = occupancy_chart(occupancy((9, 0), threads=512, registers=41)).figure
    _, y = diamond(guess_mark_svg(figure, GuessMark("you said 3 blocks", "y", 48, panel=1)))
    assert figure.bbox.height - y == pytest.approx(tick(figure.axes[1].yaxis, 48)[1], abs=0.1)


@pytest.mark.parametrize(("value", "words"), [(500, "you said it ▸"), (-1, "◂ you said it")])
def test_beyond_an_axis_it_stands_at_its_end(value, words):
    figure = curves_chart({"moved": {0: 0, 40: 4}}, "title", "MB", "y").figure
    svg = guess_mark_svg(figure, GuessMark("you said it", "x", value))
    axes = figure.axes[0]
    assert diamond(svg)[0] == pytest.approx(axes.bbox.x1 if value > 0 else axes.bbox.x0, abs=0.1)
    assert f">{words}</text>" in svg


def test_a_chart_is_itself_until_something_is_said_and_after_it_is_taken_back():
    chart = curves_chart({"moved": {0: 0, 40: 4}}, "title", "MB", "y")
    marked = MarkedChart(chart)
    assert marked._bundle() == chart._repr_mimebundle_()
    marked.mark(GuessMark("you said 1 < 2", "x", 1))
    page = marked._bundle()[0]["text/html"]
    assert page.count("you said 1 &lt; 2</text>") == 1
    assert page.endswith("<figcaption>You said 1 &lt; 2.</figcaption></figure>")
    marked.mark(None)
    assert marked._bundle() == chart._repr_mimebundle_()
    assert repr(marked) == chart.text


def test_another_axis_is_refused():
    with pytest.raises(ValueError, match="on axis 'z': use 'x' or 'y'"):
        GuessMark("you said 1", "z", 1)
