"""The tiles within a matmul: what Triton compiles for each shape that the figure shows, and the frames."""

import re
from itertools import pairwise

import pytest
import torch
import triton
import triton.language as tl
from drawn import assert_texts_lie_apart

from helpers.figures.frame.explorer import Stage
from helpers.figures.matmul.tile_hierarchy import (
    LEVELS,
    STEP,
    TILES,
    TileHierarchy,
    TileHierarchyExplorer,
    hierarchy_scene,
)
from helpers.instruments import compile_for
from helpers.style import FUSED


@triton.jit
def product_kernel(x_ptr, w_ptr, y_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, col, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        x = tl.load(x_ptr + row[:, None] * K + start + k[None, :])
        w = tl.load(w_ptr + col[:, None] * K + start + k[None, :])
        acc = tl.dot(x, w.T, acc)
    tl.store(y_ptr + row[:, None] * BN + col[None, :], acc)


@pytest.mark.parametrize("tile", TILES)
def test_instructions_are_those_that_triton_compiles(tile):
    """Also how many there are per step: each warp group of the block runs all of them, on its own 64 rows."""
    shown = TileHierarchy(*tile)
    x = torch.empty(4096, 4096, dtype=torch.bfloat16)
    y = torch.empty(4096, 4096)
    shape = {"BM": tile[0], "BN": tile[1], "BK": STEP}
    made = compile_for(product_kernel, x, x, y, 4096, **shape, num_warps=4 * shown.groups, device="H100")
    found = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)", made.ptx)
    assert found == [shown.instruction.split()[1]] * (STEP // 16)
    assert len(found) * shown.flops * shown.groups == 2 * tile[0] * tile[1] * STEP
    sums = re.findall(r"wgmma\.mma_async[^{]*\{([^}]*)\}", made.ptx)[0]
    assert len(sums.split(",")) == shown.sums


def test_each_frame_shows_its_position():
    explorer = TileHierarchyExplorer()
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(LEVELS) * len(TILES)
    for number, frame in enumerate(frames):
        explorer.level.index, explorer.tile.index = divmod(number, len(TILES))
        assert frame["text"] == explorer.text
        chart = explorer.chart()
        assert chart.text == explorer.text
        assert_texts_lie_apart(chart.figure)
    with pytest.raises(ValueError, match="the tile slider has no"):
        TileHierarchyExplorer(tile=(32, 32))


@pytest.mark.parametrize("tile", TILES)
def test_every_level_adds_to_the_picture(tile):
    """A thread's: a box for each of its sums, and the epilogue between them and memory."""
    shown = TileHierarchy(*tile)
    scenes = [hierarchy_scene(shown, level) for level in range(len(LEVELS))]
    for before, after in pairwise(scenes):
        assert set(before.boxes) < set(after.boxes)
        assert set(before.labels) < set(after.labels)
    added = set(scenes[-1].boxes) - set(scenes[-2].boxes)
    sums = [box for box in added if box.colour == FUSED]
    assert len(sums) == shown.sums
    [epilogue, memory] = sorted((box for box in added if box.colour is None), key=lambda box: box.x)
    assert max(box.x + box.width for box in sums) < epilogue.x < epilogue.x + epilogue.width < memory.x


@pytest.mark.parametrize("tile", TILES)
def test_the_tile_that_is_magnified_can_be_seen_and_lines_lead_to_it(tile):
    first, second = (hierarchy_scene(TileHierarchy(*tile), level) for level in (0, 1))
    [filled] = [box for box in first.boxes if box.colour == FUSED]
    assert min(filled.width, filled.height) >= 6
    assert filled.width / filled.height == pytest.approx(tile[1] / tile[0], rel=0.02)
    assert first.links == ()
    magnified = [box for box in second.boxes if box.colour == FUSED and box != filled]
    right = filled.x + filled.width
    for (x0, y0, x1, _), sign in zip(second.links, (-1, 1), strict=True):
        assert (x0, y0) == pytest.approx((right, filled.y + sign * filled.height / 2), abs=0.1)
        assert x1 == pytest.approx(min(box.x for box in magnified))


HEARD = "document.querySelector('[role=status]').getBoundingClientRect().width"


@pytest.mark.parametrize("quiet", [True, False])
def test_a_line_that_the_picture_repeats_is_heard_and_not_seen(chromium, quiet):
    explorer = TileHierarchyExplorer()
    frames = [frame | {"quiet": quiet} for frame in explorer._stage.data["frames"]]
    given = {"still": explorer._stage.still, "data": explorer._stage.data | {"frames": frames}, "said": {"text": ""}}
    page = chromium.new_page()
    page.set_content(f"<style>{Stage._css}</style><div></div>")
    script = str(explorer._stage._esm).replace("export default", "window.stage =")
    page.evaluate(
        f"""given => {{ {script}
        const model = {{ get: name => given[name] ?? 0, on: () => {{}} }};
        stage.render({{ model, el: document.body.lastChild }}); }}""",
        given,
    )
    assert page.get_by_role("status").text_content() == frames[0]["text"]
    assert page.get_by_role("img").get_attribute("aria-label") == frames[0]["text"]
    assert (page.evaluate(HEARD) <= 1) == quiet
