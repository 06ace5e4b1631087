"""The model of a matmul's tile against the compiler and the meter; the picture and its explorer."""

import re

import pytest
import torch

from benchmarks.experiments.lesson_08 import grouped_kernel, run
from helpers.figures.matmul.tile_choice import OTHERS, STAGES, TILES, WARPS, TileChoiceExplorer, Tiling, asked, ridge
from helpers.instruments import compile_for, measure, occupancy

SETTINGS = "BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"
COMPILED = ((32, 32, 64, 4, 3), (64, 64, 64, 4, 3), (64, 128, 64, 4, 3), (128, 128, 64, 8, 3), (128, 256, 64, 8, 3))


def compiled(tiling: tuple[int, ...]):
    x, bias = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta"), torch.empty(4096, device="meta")
    settings = dict(zip(SETTINGS, tiling, strict=True))
    sizes = 4096, 4096, 4096
    return compile_for(grouped_kernel, x, x, bias, x, *sizes, ACT="gelu", GROUP=8, device="H200", **settings)


@pytest.mark.parametrize("tiling", COMPILED)
def test_registers_and_shared_memory_are_about_the_compilers(tiling):
    found, model = compiled(tiling), Tiling(*tiling)
    assert model.registers == pytest.approx(found.registers, rel=0.2)
    assert model.shared_memory == pytest.approx(found.shared_memory, rel=0.02, abs=1024)
    assert not found.spill_bytes
    assert not model.spills


def test_what_spills_in_the_model_spills_in_the_compiler():
    assert Tiling(128, 256, 64, 4, 3).spills
    assert compiled((128, 256, 64, 4, 3)).spill_bytes > 1000


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (64, 32), (64, 128)])
def test_tiles_ask_for_what_the_meter_counts(rows, columns):
    x, w, bias = torch.randn(128, 96), torch.randn(128, 96), torch.randn(128)
    x, w, bias = x.bfloat16(), w.bfloat16(), bias.bfloat16()
    settings = dict(zip(SETTINGS, (rows, columns, 32, 4, 1), strict=True))
    found = measure(lambda: run(grouped_kernel, x, w, bias, **settings, GROUP=2))
    tiling = Tiling(rows, columns, 32, 4, 1)
    counted = found.by_tensor["x"].read + found.by_tensor["w"].read
    assert counted == asked(tiling, 128, 128, 96)
    assert 2 * 128 * 128 * 96 / counted == pytest.approx(tiling.intensity)


def test_a_block_fills_the_sm_as_the_calculator_says():
    tiling = Tiling(128, 128, 64, 8, 3)
    by_hand = occupancy((9, 0), threads=256, registers=64 + OTHERS, dynamic_shared_memory=3 * 32768)
    assert tiling.occupancy() == by_hand
    assert Tiling(256, 256, 128, 8, 3).occupancy() is None
    assert ridge() == pytest.approx(989.4e12 / (132 * 1.98e9 * 39), rel=0.01)


def test_every_frame_is_that_of_its_sliders():
    explorer = TileChoiceExplorer()
    for tile, warps, stages, step in (((16, 16), 1, 1, 32), ((128, 256), 4, 4, 64), ((256, 256), 16, 6, 128)):
        explorer.step.value, explorer.tile.value = step, tile
        explorer.warps.value, explorer.stages.value = warps, stages
        frames = explorer._stage.data["frames"]
        assert len(frames) == len(TILES) * len(WARPS) * len(STAGES)
        place = (TILES.index(tile) * len(WARPS) + WARPS.index(warps)) * len(STAGES) + STAGES.index(stages)
        assert frames[place]["text"] == explorer.text == repr(explorer.chart())


@pytest.mark.parametrize("tile", TILES)
def test_nothing_leaves_the_picture(tile):
    for warps in WARPS:
        figure = TileChoiceExplorer(tile, warps, 6).chart().figure
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert 0 <= box.x0 < box.x1 <= width
        assert 0 <= box.y0 < box.y1 <= height


def test_the_finding_says_what_is_wrong():
    assert "Does not fit" in TileChoiceExplorer((256, 256), 8, 6).text
    assert "Spills" in TileChoiceExplorer((256, 256), 8, 1).text
    assert "Does not run" in TileChoiceExplorer((256, 256), 16, 1).text
    assert re.search(r"at 66% of their peak", TileChoiceExplorer().text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"tile": (8, 8)}, "tile slider has no"), ({"warps": 3}, "warps slider has no"), ({"step": 48}, "no step of 48")],
)
def test_bad_input_is_refused_in_one_line(arguments, said):
    with pytest.raises(ValueError, match=said) as error:
        TileChoiceExplorer(**arguments)
    assert "\n" not in str(error.value)
