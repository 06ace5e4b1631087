"""Two runs as curves: what the chart says of them, and what it refuses."""

import pytest

from helpers.figures import loss_chart
from helpers.instruments import recorded


def test_it_says_where_the_loss_goes_and_how_far_apart_the_two_are():
    chart = loss_chart({0: 4.0, 1: 2.0, 2: 1.0}, {0: 4.0, 1: 2.0 + 2**-10, 2: 1.0}, 0.5, "a machine")
    assert repr(chart) == (
        "Fused or not, the loss falls from 4.00 to 1.00; no step's two differ by more than 1e-03. "
        "3 steps on a machine; no model's mean can be below 0.50."
    )
    upper, lower = chart.figure.axes
    assert [line.get_ydata()[1] for line in upper.lines[:2]] == [2.0, 2.0 + 2**-10]
    assert list(lower.lines[0].get_xdata()) == [0, 1, 2]


def test_the_recorded_minute_fits_on_the_picture():
    minute = recorded("cpu").experiment("training")
    figure = loss_chart(minute["unfused"], minute["fused"], 0.69, recorded("cpu").label).figure
    figure.draw_without_rendering()
    for text in (*figure.texts, *figure.axes[0].texts, figure.axes[1].xaxis.label):
        box = text.get_window_extent()
        assert box.x0 >= 0, text.get_text()
        assert box.x1 <= figure.bbox.width, text.get_text()


@pytest.mark.parametrize("fused", [{}, {0: 1.0, 1: 0.5}])
def test_runs_of_other_steps_are_refused_in_one_line(fused):
    with pytest.raises(ValueError, match="two runs of the same steps, got 1 and") as error:
        loss_chart({0: 1.0}, fused, 0.5, "a machine")
    assert "\n" not in str(error.value)
