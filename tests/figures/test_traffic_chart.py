"""Bars as long as the bytes counted by hand."""

import numpy as np
import pytest
import torch
from matplotlib.text import Text

from helpers.figures.memory.tensor_traffic import READ, WRITE, traffic_chart
from helpers.instruments.traffic import measure


@pytest.fixture(scope="module")
def traffics():
    x, y = torch.randn(2, 1000)
    return {"unfused": measure(lambda: torch.relu(x + y)), "fused": measure(lambda: x + y)}


def test_each_bar_is_as_long_as_its_tensors_bytes(traffics):
    axes = traffic_chart(traffics).figure.axes[0]
    bars = [(round(bar.get_y() + bar.get_height() / 2), bar.get_height(), bar.get_width()) for bar in axes.patches]
    # x + y reads 4000 B twice and writes the sum, ReLU reads the sum and writes the result.
    unfused = [(0, READ, 4000)] * 3 + [(0, WRITE, 4000)] * 2
    fused = [(1, READ, 4000)] * 2 + [(1, WRITE, 4000)]
    assert np.array(bars) == pytest.approx(np.array(unfused + fused))


def test_the_axis_has_the_unit_of_its_bars(traffics):
    figure = traffic_chart(traffics).figure
    [axes] = figure.axes
    figure.draw_without_rendering()
    assert any("bytes moved (kB)" in each.get_text() for each in figure.findobj(Text))
    labels = {tick.get_text() for tick in axes.get_xticklabels()}
    assert "20" in labels or "10" in labels, labels
    assert [text.get_text().strip() for text in axes.texts if "kB" in text.get_text()] == ["20 kB", "12 kB"]


def test_the_title_is_worked_out_or_given(traffics):
    assert traffic_chart(traffics).text.startswith("Fusing moves 1.67x fewer bytes: unfused 2 launches")
    other_way = {"unfused": traffics["fused"], "fused": traffics["unfused"]}
    assert traffic_chart(other_way).text.startswith("Fusing moves 1.67x more bytes")
    same = {"unfused": traffics["fused"], "fused": traffics["fused"]}
    assert traffic_chart(same).text.startswith("Fusing moves as many bytes")
    assert traffic_chart({"fused": traffics["fused"]}).text.startswith("The fused version moves 12 kB: fused 1 launch")
    assert traffic_chart(traffics, "A finding").text.startswith("A finding: unfused")


def test_bad_input_is_refused_in_one_line(traffics):
    with pytest.raises(ValueError, match="unknown version 'eager': use 'unfused' or 'fused'"):
        traffic_chart({"eager": traffics["unfused"]})
    with pytest.raises(ValueError, match="the fused version moves no byte"):
        traffic_chart({"fused": measure(lambda: None)})
    with pytest.raises(ValueError, match="got none"):
        traffic_chart({})
