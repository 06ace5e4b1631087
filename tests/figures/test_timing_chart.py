"""Bars as long as the medians, lines as wide as the spread, a title that the numbers bear out."""

import pytest
from drawn import assert_texts_lie_apart
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from helpers.figures.performance.timing_chart import timing_chart
from helpers.instruments.timing import Timing
from helpers.style import FUSED, LIMIT, UNFUSED

SLOW, QUICK = Timing(8e-6, 7e-6, 9e-6, 30), Timing(4e-6, 3e-6, 5e-6, 30)


def title(chart):
    return chart.figure.texts[0].get_text()


def test_bars_and_spreads_are_drawn_to_scale():
    axes = timing_chart({"eager": SLOW, "fused": QUICK, "torch.compile": SLOW}, "an A100").figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [8e-6, 4e-6, 8e-6]
    assert [tuple(line.get_xdata()) for line in axes.lines] == [(7e-6, 9e-6), (3e-6, 5e-6), (7e-6, 9e-6)]
    assert [to_hex(bar.get_facecolor()).upper() for bar in axes.patches] == [UNFUSED, FUSED, LIMIT.upper()]
    assert axes.get_xlim()[0] == 0


def test_a_slow_run_among_many_does_not_dwarf_the_bars():
    axes = timing_chart({"eager": SLOW, "fused": Timing(4e-6, 3e-6, 4e-4, 30)}, "an A100").figure.axes[0]
    assert max(bar.get_width() for bar in axes.patches) > axes.get_xlim()[1] / 2
    assert [line.get_marker() for line in axes.lines] == ["|", "|", ">"]
    assert [text.get_position()[0] for text in axes.texts] == [8e-6, 4e-6], "a label stands at its bar"


def test_a_long_name_of_a_machine_goes_on_below_and_leaves_the_axis_alone():
    where = "an A100, PyTorch 2.11.0+cu130, Triton 3.6.0, 2026-11-21 to 2026-11-22 (the course installs 2.13.0)"
    figure = timing_chart({"eager": SLOW, "fused": QUICK}, where).figure
    assert_texts_lie_apart(figure)
    below = figure.texts[-1]
    assert below.get_text().split() == f"time per call on {where}".split()
    ticks = [tick.get_window_extent() for tick in figure.axes[0].get_xticklabels()]
    assert below.get_window_extent().y1 < min(tick.y0 for tick in ticks)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"eager": SLOW, "fused": QUICK}, "Fused is 2.00 times faster than eager"),
        ({"unfused": SLOW, "fused": QUICK, "other": SLOW}, "Fused is 2.00 times faster than unfused"),
        ({"unfused": QUICK, "fused": SLOW}, "Fused is 2.00 times slower than unfused"),
        ({"unfused": SLOW, "fused": SLOW}, "Any change from fusing is within the spread of the runs"),
        ({"a": QUICK, "b": SLOW}, "a is 2.00 times faster than b"),
        ({"a": QUICK, "b": QUICK}, "No difference beyond the spread of the runs"),
        ({"a": QUICK}, "a takes 4 µs"),
    ],
)
def test_the_title_is_what_the_numbers_say(times, expected):
    chart = timing_chart(times, "an A100")
    assert title(chart) == expected
    assert chart.text.startswith(f"{expected}, on an A100: ")
    assert all(f"{name} {timing!r}" in chart.text for name, timing in times.items())


times = st.lists(st.floats(1e-9, 10), min_size=3, max_size=3).map(sorted).map(lambda t: Timing(t[1], t[0], t[2], 9))


@given(times, times)
def test_nothing_is_called_faster_whose_runs_overlap(unfused, fused):
    found = title(timing_chart({"unfused": unfused, "fused": fused}, "here"))
    assert ("faster" in found) == (fused.high < unfused.low)
    assert ("slower" in found) == (unfused.high < fused.low)


def test_bad_input_is_refused_in_one_line():
    with pytest.raises(ValueError, match="got no time: pass what benchmark_together returned"):
        timing_chart({}, "here")
    with pytest.raises(ValueError, match="x took 0 s: too fast to time"):
        timing_chart({"x": Timing(0, 0, 0, 3)}, "here")
    with pytest.raises(ValueError, match="x took nan s: too fast to time"):
        timing_chart({"x": Timing(float("nan"), 0, 0, 3)}, "here")
