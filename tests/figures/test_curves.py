"""Each mark of a curve lies at its numbers, and the names beside the curves do not overlap."""

import pytest
from drawn import assert_texts_lie_apart

from helpers.figures.performance.curves_chart import _apart, curves_chart


def test_curves_hold_what_was_found():
    eager, fused = {1: 0.5, 2: 1.0, 8: 4.0}, {1: 0.5, 2: 0.5, 8: 0.5}
    both = {"eager": eager, "fused": fused}
    chart = curves_chart(both, "the finding", "operations", "time (ms)", limit={"best": {1: 1}})
    first, second, limit = chart.figure.axes[0].lines
    assert dict(zip(*first.get_data(), strict=True)) == eager
    assert dict(zip(*second.get_data(), strict=True)) == fused
    assert (first.get_marker(), second.get_marker(), limit.get_marker()) == ("o", "s", "None")
    assert chart.text == (
        "the finding. Time (ms) over operations: eager: 0.5 at 1, 1 at 2, 4 at 8; fused: 0.5 at 1, 0.5 at 2, 0.5 at 8."
    )


def test_a_limit_has_its_dashes_beside_its_name():
    figure = curves_chart({"fused": {1: 1, 2: 2}}, "title", "x", "y", limit={"best": {1: 3, 2: 4}}).figure
    name = next(text for text in figure.texts if text.get_text() == "best")
    (key,) = (line for line in figure.artists if line.get_linestyle() == "--")
    assert set(key.get_ydata()) == {name.get_position()[1]}
    assert max(key.get_xdata()) < name.get_position()[0]


def test_a_logarithmic_axis_has_ticks_enough_to_read_a_value_by():
    for found in ({1: 1.2, 2: 2.4}, {1: 1.0, 2: 900.0}):
        axes = curves_chart({"fused": found}, "title", "x", "y", log=True).figure.axes[0]
        low, high = axes.get_ylim()
        assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 4


@pytest.mark.parametrize("log", [False, True])
def test_names_of_curves_that_end_together_lie_apart(log):
    same = {name: {1: 2, 64: 3, 512: 5} for name in ("1 piece", "2 pieces", "3 pieces", "4 pieces")}
    figure = curves_chart(same, "title", "operations", "time (us)", log=log).figure
    assert_texts_lie_apart(figure)
    heights = {text.get_position()[1] for text in figure.texts if "piece" in text.get_text()}
    assert len(heights) == 4


def test_what_no_axis_holds_is_refused():
    with pytest.raises(ValueError, match="1 to 5 curves of at least one value each, got 0"):
        curves_chart({}, "title", "x", "y")
    with pytest.raises(ValueError, match="finite numbers above 0"):
        curves_chart({"a": {0: 1}}, "title", "x", "y", log=True)
    with pytest.raises(ValueError, match="finite numbers from 0"):
        curves_chart({"a": {1: float("nan")}}, "title", "x", "y")


def test_an_axis_may_go_without_a_name():
    assert curves_chart({"a": {1: 2}}, "title", "x", "").text == "title.  over x: a: 2 at 1."


def test_names_stand_at_their_lines():
    """Three lines end close together: their names are a line apart, in the lines' order, around the middle one."""
    placed = _apart({"far": 100.0, "b": 22.0, "a": 20.0, "c": 21.0})
    assert placed == {"a": 10.0, "c": 21.0, "b": 32.0, "far": 100.0}
