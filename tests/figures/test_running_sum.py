"""Online softmax's picture: its sums against PyTorch's in double precision, its frames against the axes."""

import itertools
import re

import pytest
import torch

from helpers.figures.rowwise.running_sum import (
    BLOCK,
    COLUMNS,
    READ_BLOCKS,
    SLOPES,
    RunningSum,
    RunningSumExplorer,
    running_sum_axes,
)

STATES = [RunningSum(slope, blocks) for blocks in READ_BLOCKS for slope in SLOPES]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_the_sum_is_that_of_the_columns_read(state):
    read = torch.tensor(state.scores, dtype=torch.float64)[: state.blocks * BLOCK]
    assert state.maximum == read.max().item()
    expected = torch.exp(read.logsumexp(0) - read.max()).item()
    assert state.total == pytest.approx(expected, rel=1e-12)
    if state.before:  # the kernel's own step gives the same
        own = torch.exp(read[-BLOCK:] - read.max()).sum().item()
        assert state.before.total * state.factor + own == pytest.approx(expected, rel=1e-12)
    assert max(state.heights) == 1


def test_each_frame_shows_its_position():
    explorer = RunningSumExplorer()
    figure, above, _ = running_sum_axes()
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(STATES)
    for index, (state, frame) in enumerate(zip(STATES, frames, strict=True)):
        explorer.blocks.index, explorer.slope.index = divmod(index, len(SLOPES))
        assert frame["text"] == explorer.text == state.text
        dots = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', frame["svg"])
        assert len(dots) == COLUMNS
        for column, (x, y) in enumerate(dots):
            expected = above.transData.transform((column, state.scores[column]))
            assert (float(x), figure.bbox.height - float(y)) == pytest.approx(tuple(expected), abs=0.11)
        assert frame["svg"].count("stroke-dasharray") == (2 if state.before else 0)


def test_every_score_and_bar_is_inside_its_panel():
    _, above, below = running_sum_axes()
    for state in STATES:
        assert above.get_ylim()[0] < min(state.scores) <= max(state.scores) < above.get_ylim()[1]
        assert 0 < min(state.heights) <= max(state.heights) < below.get_ylim()[1]


def test_the_finding_says_what_happens():
    explorer = RunningSumExplorer(blocks=1, slope=1.0)
    assert explorer.text.startswith("Block 1: 4 columns under the running max 0.78. ")
    explorer.blocks.value = 3
    assert "the max rises to 1.77, and all earlier columns shrink to 0.72 of their height" in explorer.text
    assert explorer.text.endswith("the running sum is 4.23 x 0.72 + 3.05 = 6.11.")
    explorer.slope.value = -1.0
    assert "the max stays at 0.47, and the earlier columns keep their height" in explorer.text
    data, _ = explorer._repr_mimebundle_()
    assert data["text/plain"] == explorer.text
    assert data["image/png"]


def test_what_lesson_06_says_is_to_be_found():
    never = [slope for slope in SLOPES if all(RunningSum(slope, blocks).factor == 1 for blocks in READ_BLOCKS[1:])]
    assert never == [-1.0, -0.5]
    totals = [RunningSum(1.0, blocks).total for blocks in READ_BLOCKS]
    assert any(later < earlier for earlier, later in itertools.pairwise(totals)), "the sum can fall"


def test_an_explorer_off_its_sliders_is_refused():
    with pytest.raises(ValueError, match="no 7"):
        RunningSumExplorer(blocks=7)
    with pytest.raises(ValueError, match="no 3"):
        RunningSumExplorer(slope=3)
