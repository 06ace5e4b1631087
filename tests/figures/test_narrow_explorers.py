"""Explorers on a narrow page: nothing is cut, nothing scrolls sideways, text can be read."""

import json

import pytest

from helpers import figures
from helpers.figures.rowwise.variance_error import VarianceExplorer
from helpers.figures.rowwise.wide_rows import WideRowsExplorer
from helpers.figures.training.checkpointing import CheckpointingExplorer
from helpers.figures.training.recomputation import RecomputationExplorer

EXPLORERS = {
    "attention lengths": figures.AttentionLengthsExplorer,
    "attention tiles": figures.AttentionTilesExplorer,
    "attention units": figures.AttentionUnitsExplorer,
    "banks": figures.BanksExplorer,
    "checkpointing": CheckpointingExplorer,
    "decision": figures.FusionDecisionExplorer,
    "decoding": figures.DecodeSpeedExplorer,
    "expert weights": figures.ExpertWeightsExplorer,
    "hierarchy": lambda: figures.TileHierarchyExplorer("an instruction"),
    "launches": figures.LaunchExplorer,
    "occupancy": figures.OccupancyExplorer,
    "recomputation": RecomputationExplorer,
    "register quarters": figures.RegisterQuartersExplorer,
    "roofline": figures.RooflineExplorer,
    "running sum": figures.RunningSumExplorer,
    "threads": figures.ThreadsExplorer,
    "tile choice": figures.TileChoiceExplorer,
    "tile order": figures.TileOrderExplorer,
    "traffic": figures.TrafficExplorer,
    "variance": VarianceExplorer,
    "warp": figures.WarpExplorer,
    "wide rows": WideRowsExplorer,
    "windows": figures.WindowsExplorer,
}
SEEN = """() => [...document.querySelectorAll('.fusion-chart text')].map((text) => {
    const at = text.getBoundingClientRect(), svg = text.closest('svg').getBoundingClientRect();
    const { a, b } = text.getScreenCTM();
    const upright = at.height > at.width && text.textContent.length > 3;
    return {text: text.textContent.trim(), upright,
            size: parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b),
            out: Math.max(svg.left - at.left, at.right - svg.right),
            seen: at.width > 0 && at.right > svg.left + 1 && at.left < svg.right - 1 &&
                  at.bottom > svg.top + 1 && at.top < svg.bottom - 1};
}).filter((each) => each.seen)"""


def shown(chromium, explorer):
    """The explorer's stage on a page of 390 pixels, without a kernel."""
    stage = explorer._stage
    names = ("still", "data", "said", "doing", "first", "second", "third")
    page = chromium.new_page(viewport={"width": 390, "height": 900})
    page.set_content(f"<style>{stage._css} svg {{ height: auto }}</style><div style='width: 358px'></div>")
    values = json.loads(json.dumps({name: getattr(stage, name) for name in names}))
    script = str(stage._esm).replace("export default", "window.stage =")
    page.evaluate(
        f"values => {{ {script}; const model = {{get: name => values[name], on: () => {{}}}};"
        "stage.render({model, el: document.body.lastChild}); }",
        values,
    )
    page.wait_for_selector(".fusion-narrow")
    return page


SAMPLE = {"occupancy", "threads"}  # in `make test`: one in parts, one whole
NAMES = [pytest.param(name, marks=[] if name in SAMPLE else [pytest.mark.long]) for name in EXPLORERS]


@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_page_shows_all_of_it(chromium, name):
    page = shown(chromium, EXPLORERS[name]())
    try:
        found = page.evaluate(SEEN)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert [each for each in found if not each["upright"] and each["out"] > 2] == []
        assert [each for each in found if each["size"] < 7.5] == []
        assert page.locator(".fusion-heading").inner_text()
    finally:
        page.close()
