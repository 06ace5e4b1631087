"""The order of tiles against the kernel's own, what a wave reads against the meter; the picture and its explorer."""

import pytest
import torch

from benchmarks.experiments.lesson_08 import grouped_kernel
from helpers.figures.matmul.tile_order import (
    GROUPS,
    PROGRAMS,
    SIDE,
    WAVES,
    TileOrderExplorer,
    all_stripes,
    place,
    rectangles,
    stripes,
    wave_tiles,
)
from helpers.instruments import measure


@pytest.mark.parametrize(("group", "tiles_m", "tiles_n"), [(1, 4, 3), (2, 5, 3), (4, 6, 4), (8, 3, 5), (16, 16, 2)])
def test_every_tile_is_done_once(group, tiles_m, tiles_n):
    done = [place(tile, tiles_m, tiles_n, group) for tile in range(tiles_m * tiles_n)]
    assert sorted(done) == [(row, column) for row in range(tiles_m) for column in range(tiles_n)]


@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_a_wave_reads_the_stripes_that_the_meter_counts(group):
    side, tile, k, programs = 8, 16, 16, 20
    x, w = torch.randn(2, side * tile, k).bfloat16()
    bias, y = torch.randn(side * tile).bfloat16(), torch.empty(side * tile, side * tile, dtype=torch.bfloat16)
    blocks = {"BLOCK_M": tile, "BLOCK_N": tile, "BLOCK_K": k, "GROUP": group}

    def first_wave():
        sizes = side * tile, side * tile, k
        grouped_kernel[(programs,)](x, w, bias, y, *sizes, ACT="relu", **blocks)

    of_x, of_w = stripes(wave_tiles(0, programs, side, side, group))
    found = measure(first_wave)
    assert found.unique_read - 2 * tile * of_w == (of_x + of_w) * tile * k * 2  # but for the bias


def test_all_waves_read_at_least_everything_once_and_a_square_group_the_least():
    totals = {group: all_stripes(PROGRAMS, SIDE, SIDE, group) for group in GROUPS}
    assert min(totals.values()) >= 2 * SIDE
    assert min(totals, key=totals.get) == 16  # the square root of 264 is 16.2
    assert totals[1] == totals[64]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("wave", [1, 7, WAVES])
def test_rectangles_are_the_tiles(group, wave):
    tiles = wave_tiles(wave - 1, PROGRAMS, SIDE, SIDE, group)
    drawn = [
        (row, column)
        for first, rows, left, columns in rectangles(tiles)
        for row in range(first, first + rows)
        for column in range(left, left + columns)
    ]
    assert sorted(drawn) == sorted(tiles)


def test_every_frame_is_that_of_its_sliders():
    explorer = TileOrderExplorer()
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(GROUPS) * WAVES
    for group, wave in ((1, 1), (16, 5), (64, 16)):
        explorer.group.value, explorer.wave.value = group, wave
        frame = frames[GROUPS.index(group) * WAVES + wave - 1]
        assert frame["text"] == explorer.text == repr(explorer.chart())
        figure = explorer.chart().figure
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert 0 <= box.x0 < box.x1 <= width
        assert 0 <= box.y0 < box.y1 <= height


@pytest.mark.parametrize(("arguments", "name"), [({"group": 3}, "rows per group"), ({"wave": 17}, "wave")])
def test_bad_input_is_refused_in_one_line(arguments, name):
    with pytest.raises(ValueError, match=f"the {name} slider has no") as error:
        TileOrderExplorer(**arguments)
    assert "\n" not in str(error.value)
