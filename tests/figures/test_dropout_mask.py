"""The masks drawn are those given, and a difference from the first stands out."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from helpers.figures.training.dropout_mask import Draw, mask_chart
from helpers.style import WRONG

COUNTERS = np.arange(12).reshape(2, 6)
KEPT = COUNTERS % 3 != 0


def boxes(axes):
    return [(box.get_facecolor()[3] > 0, to_hex(box.get_edgecolor()).upper() == WRONG) for box in axes.patches]


def test_boxes_borders_and_text():
    other = KEPT.copy()
    other[1, 2] ^= True
    draws = {"rows": Draw(COUNTERS, COUNTERS // 6, KEPT), "fours": Draw(COUNTERS % 4, COUNTERS // 4, other)}
    chart = mask_chart(draws, "One differs")
    rows, fours = chart.figure.axes
    assert boxes(rows) == [(kept, False) for kept in KEPT.flat]
    assert boxes(fours) == [(kept, number == 8) for number, kept in enumerate(other.flat)]
    assert [text.get_text() for text in fours.texts] == [str(each) for each in (COUNTERS % 4).flat]
    assert len(rows.lines) == 2 * (6 + 2) + 6  # around each row: 6 above, 6 between, 6 below, 2 sides each
    assert repr(chart) == "One differs. rows: 4 of 12 dropped; fours: 5 of 12 dropped, 1 unlike the first"
    figure = chart.figure
    figure.draw_without_rendering()
    for text in figure.texts:
        box = text.get_window_extent()
        assert min(box.x0, box.y0, figure.bbox.width - box.x1, figure.bbox.height - box.y1) >= 0


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"they must be one \(rows, columns\)"):
        Draw(COUNTERS, COUNTERS, KEPT[:1])
    one = Draw(COUNTERS, COUNTERS, KEPT)
    with pytest.raises(ValueError, match="cannot be compared"):
        mask_chart({"one": one, "two": Draw(COUNTERS[:1], COUNTERS[:1], KEPT[:1])}, "title")


@pytest.mark.parametrize(("other", "told"), [(KEPT, False), (~KEPT, True)])
def test_an_edge_that_means_something_is_explained(other, told):
    chart = mask_chart({"one": Draw(COUNTERS, COUNTERS, KEPT), "two": Draw(COUNTERS, COUNTERS, other)}, "title")
    assert any("edge: differs from the first mask" in text.get_text() for text in chart.figure.texts) == told
