"""The sweeps as drawn, against the calculator, and the marks on them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.figures.occupancy.occupancy_curves import PANELS, finding, occupancy_chart, sm_bars
from helpers.instruments.occupancy_calculator import LIMITS, occupancy

CAPABILITIES = sorted(LIMITS)


def marks(axes):
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "D"]


def headings(axes):
    return [text.get_text() for text in axes.texts]


def test_the_marks_by_hand():
    # 70 registers let in 3 blocks of 8 warps; 64 let in 4.
    figure = occupancy_chart(occupancy((9, 0), threads=256, registers=70)).figure
    threads, registers, shared = figure.axes
    assert (marks(threads), marks(shared)) == ([(256, 24)], [(0, 24)])
    assert marks(registers) == [(64, 32), (70, 24)]
    assert (headings(threads), headings(registers)) == (["256"], ["70 limits", "64: one more block"])
    assert figure.texts[0].get_text() == "24 of 64 warps of an SM are active, limited by registers"


def test_a_block_that_fits_nowhere_and_one_that_fills_all():
    assert finding(occupancy((9, 0), threads=1024, registers=255)).startswith("0 of 64 warps")
    assert finding(occupancy((8, 6), threads=768)) == "48 of 48 warps of an SM are active, limited by warps"


@settings(max_examples=25)  # each is four panels drawn
@given(
    st.sampled_from(CAPABILITIES),
    st.integers(1, 1024),
    st.integers(0, 255),
    st.integers(0, 4000),
    st.integers(0, 60_000),
)
def test_curves_are_the_sweeps_and_pass_through_the_marks(chip, threads, registers, static, dynamic):
    found = occupancy(chip, threads=threads, registers=registers, shared_memory=static, dynamic_shared_memory=dynamic)
    for resource, axes in zip(PANELS, occupancy_chart(found).figure.axes, strict=True):
        curve = next(line for line in axes.lines if line.get_drawstyle() == "steps-pre")
        drawn = dict(zip(curve.get_xdata(), curve.get_ydata(), strict=True))
        sweep = found.sweep(resource)
        assert [drawn[value] for value in sweep.values] == list(sweep.warps)
        assert all(drawn[x] == y for x, y in marks(axes))
        assert (sweep.at, found.warps) in marks(axes)


def test_the_picture_says_so_when_it_is_read_aloud():
    found = occupancy((9, 0), threads=256, registers=70)
    assert occupancy_chart(found).text == f"{finding(found)}. {found!r}"


@pytest.mark.parametrize("chip", CAPABILITIES)
def test_what_lets_one_more_block_in_is_marked_where_it_does(chip):
    found = occupancy(chip, threads=128, registers=100)
    less = found.one_more_block
    assert list(less) == ["registers"]
    assert found.warps_at("registers", 100 - less["registers"]) >= found.warps + 4
    assert marks(occupancy_chart(found).figure.axes[1])[0][0] == 100 - less["registers"]


def test_the_sm_holds_what_its_blocks_take():
    """By hand: 70 registers are 72 per thread, 2304 per warp; 8 warps take 18432, three blocks 55296 of 65536."""
    bars = {bar.resource: bar for bar in sm_bars(occupancy((9, 0), threads=256, registers=70))}
    assert bars["registers"].used == "55,296 of 65,536"
    assert (bars["threads"].name, bars["threads"].used) == ("warps", "24 of 64")
    assert bars["shared memory"].used == "3 of 228 KB"  # the driver's kilobyte per block
    assert [bar.resource for bar in bars.values() if bar.next_is_too_large] == ["registers"]


def test_a_resource_that_limits_has_no_room_for_the_next_block():
    """But for registers, of which each quarter of an SM has its own: the last may not fit though the sum would."""
    for threads, registers, size in itertools.product((32, 96, 256, 1024), (16, 64, 72, 255), (0, 10_000, 100_000)):
        found = occupancy((9, 0), threads=threads, registers=registers, dynamic_shared_memory=size)
        for bar in sm_bars(found):
            assert bar.block * bar.blocks <= bar.total
            limiter = {"threads": "warps"}.get(bar.resource, bar.resource)
            if limiter in found.limiters and limiter != "registers":
                assert bar.next_is_too_large
