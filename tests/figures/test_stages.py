"""The pipeline of stages: what waits for what, and the picture of it."""

import pytest

from helpers.figures.matmul.pipeline_stages import pipeline, stages_chart


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_nothing_starts_before_what_it_waits_for(stages):
    found = pipeline(12, stages, load=2.5, multiply=1.0)
    for step, (loads, multiplies) in enumerate(found):
        assert multiplies >= loads + 2.5
        if step:
            assert multiplies >= found[step - 1][1] + 1
        if step >= stages:
            assert loads >= found[step - stages][1] + 1  # its buffer is read until then


@pytest.mark.parametrize(("stages", "each"), [(1, 3.0), (2, 1.5), (3, 1.0), (4, 1.0)])
def test_a_step_takes_its_turn_of_the_slower_of_buffers_and_products(stages, each):
    found = pipeline(120, stages, load=2, multiply=1)
    assert (found[-1][1] - found[59][1]) / 60 == pytest.approx(each)


def test_the_picture_says_what_it_shows_and_stays_within():
    chart = stages_chart()
    assert chart.text.startswith("3 stages take 8 units of time, 1 takes 18. 6 steps")
    box, (width, height) = chart.figure.get_tightbbox(), chart.figure.get_size_inches()
    assert 0 <= box.x0 < box.x1 <= width
    assert 0 <= box.y0 < box.y1 <= height
