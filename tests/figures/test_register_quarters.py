"""The registers of an SM by quarters: blocks as the occupancy calculator counts them, each box where it belongs."""

import re
from collections import Counter

import pytest

from helpers.figures.occupancy.register_quarters import (
    QUARTER,
    REGISTER_COUNTS,
    THREADS,
    RegisterQuarters,
    RegisterQuartersExplorer,
    quarters_axes,
)
from helpers.instruments import DEVICES, occupancy

STATES = [RegisterQuarters(threads, registers) for threads in THREADS for registers in REGISTER_COUNTS]


def test_every_warp_of_every_block_is_in_one_quarter():
    for state in STATES:
        found = occupancy(DEVICES["H100"].compute_capability, threads=state.threads, registers=state.registers)
        placed = Counter(block for blocks in state.quarters for block in blocks)
        assert placed == dict.fromkeys(range(found.blocks), state.threads // 32)
        assert state.of_a_warp == -(-state.registers // 8) * 8 * 32  # registers per thread in eights
        assert all(0 <= left <= QUARTER for left in state.left)
        assert sum(state.left) == 4 * QUARTER - found.warps * state.of_a_warp


def test_where_registers_limit_no_further_block_fits_into_the_quarters():
    for state in STATES:
        if state.found.limiters == ("registers",):
            room = sum(left // state.of_a_warp for left in state.left)
            assert room < state.warps, state


def test_each_frame_shows_its_position():
    explorer = RegisterQuartersExplorer()
    _, axes = quarters_axes()
    (left, _), (right, _) = axes.transData.transform([(0, 0), (QUARTER, 0)])
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(STATES)
    for index, (state, frame) in enumerate(zip(STATES, frames, strict=True)):
        explorer.threads.index, explorer.registers.index = divmod(index, len(REGISTER_COUNTS))
        assert frame["text"] == explorer.text == state.text
        boxes = re.findall(r"M([\d.]+) [\d.]+h([\d.]+)V", frame["svg"])
        assert len(boxes) == state.found.warps + sum(each > 0 for each in state.left)
        widths = sum(float(width) for _, width in boxes)
        assert widths == pytest.approx(4 * (right - left), rel=0.01)  # warps and leftovers fill the SM


def test_what_lesson_07_says_is_to_be_found():
    odd, even = RegisterQuarters(96, 40), RegisterQuarters(128, 40)
    assert (odd.found.blocks, odd.left) == (16, [1024] * 4)
    assert odd.finding == "16 blocks fit: the leftovers add up to one more, but are spread over four quarters"
    assert even.finding == "12 blocks fit, limited by registers"
    assert RegisterQuarters(512, 48).left == [4096] * 4  # two warps more per quarter, a block needs four
    assert RegisterQuarters(512, 40).found.blocks == 3


def test_what_does_not_fit_is_said():
    assert RegisterQuarters(512, 255).finding == "No block fits: it needs 131,072 registers, and the SM has 65,536"
    assert RegisterQuarters(32, 24).finding == "32 blocks fit, limited by blocks"
    assert RegisterQuarters(256, 255).finding == "1 block fits, limited by registers"


def test_a_still_picture_and_its_text():
    explorer = RegisterQuartersExplorer(threads=96, registers=40)
    data, _ = explorer._repr_mimebundle_()
    assert data["text/plain"] == explorer.text
    assert "65,536 / 3,840 = 17.07" in explorer.text
    assert data["image/png"]


def test_an_explorer_off_its_sliders_is_refused():
    with pytest.raises(ValueError, match="no 41"):
        RegisterQuartersExplorer(registers=41)
    with pytest.raises(ValueError, match="no 33"):
        RegisterQuartersExplorer(threads=33)
