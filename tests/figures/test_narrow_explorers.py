"""Explorers on a narrow page: nothing is cut, nothing scrolls sideways, text can be read."""

import itertools
import json

import pytest
from drawn import WIDE_FONT
from test_fusion_figures import GATED, beside, record
from test_step_waterfall import FLOORS, PREDICTED, TIMES

from helpers import figures
from helpers.figures.fusion.fusion_groups import FusionGroupsExplorer
from helpers.figures.fusion.simulator import fusion_simulator
from helpers.figures.launches.launch_trace import TraceExplorer
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
    "groups": lambda: FusionGroupsExplorer({"gpt2_block": beside("gpt2_block")}),
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
    "trace": lambda: TraceExplorer(record()["timeline"]),
    "traffic": figures.TrafficExplorer,
    "variance": VarianceExplorer,
    "warp": figures.WarpExplorer,
    "waterfall": lambda: figures.WaterfallExplorer(TIMES, FLOORS, PREDICTED),
    "wide rows": WideRowsExplorer,
    "windows": figures.WindowsExplorer,
}
LETTERS = 12  # pixels, to 2 %, of all but raised ones
SEEN = """() => [...document.querySelectorAll('.fusion-chart text')].map((text) => {
    const at = text.getBoundingClientRect(), svg = text.closest('svg').getBoundingClientRect();
    const { a, b } = text.getScreenCTM();
    const upright = at.height > at.width && text.textContent.length > 3;
    return {text: text.textContent.trim(), upright, box: [at.left, at.top, at.right, at.bottom],
            size: parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b),
            raised: text.querySelector('tspan') !== null,
            out: Math.max(svg.left - at.left, at.right - svg.right),
            seen: at.width > 0 && getComputedStyle(text).visibility === 'visible' &&
                  at.right > svg.left + 1 && at.left < svg.right - 1 &&
                  at.bottom > svg.top + 1 && at.top < svg.bottom - 1};
}).filter((each) => each.seen)"""


# Numbers below an axis whose letters reach up to their tick, or to the axis where it has none.
STRUCK = """() => [...document.querySelectorAll('.fusion-chart [id^=xtick_] text')].filter((text) => {
    const at = text.getBoundingClientRect(), tick = text.closest('[id^=xtick_]').querySelector('use');
    if (!tick || !text.textContent.trim() || !at.width || getComputedStyle(text).visibility !== 'visible') return false;
    const size = parseFloat(getComputedStyle(text).fontSize) * Math.abs(text.getScreenCTM().d);
    return at.bottom - size < tick.getBoundingClientRect().bottom + 0.5;
}).map((text) => text.textContent)"""


MARKS = """() => [...document.querySelectorAll('.fusion-moving :is(rect, path, circle, polygon)')].filter((mark) => {
    const at = mark.getBoundingClientRect(), svg = mark.closest('svg').getBoundingClientRect();
    return at.width + at.height > 0 && getComputedStyle(mark).visibility === 'visible' &&
           at.right > svg.left && at.left < svg.right && at.bottom > svg.top && at.top < svg.bottom;
}).length"""


def shown(chromium, explorer, width=351):
    """The explorer's stage on a page of 390 pixels, without a kernel."""
    stage = explorer._stage
    names = ("still", "data", "said", "doing", "first", "second", "third")
    page = chromium.new_page(viewport={"width": 390, "height": 900})
    page.set_content(
        f"<style>{WIDE_FONT} {stage._css} svg {{ height: auto }}</style><div style='width: {width}px'></div>"
    )
    values = json.loads(json.dumps({name: getattr(stage, name) for name in names}))
    script = str(stage._esm).replace("export default", "window.stage =")
    page.evaluate(
        f"values => {{ {script}; const model = {{get: name => values[name], on: () => {{}}}};"
        "stage.render({model, el: document.body.lastChild}); }",
        values,
    )
    page.wait_for_selector(".fusion-narrow")
    return page


def crossing(found):
    """Pairs of different texts whose boxes overlap by more than 2 pixels across and 3 down, where no letter need be."""
    texts = [(each["text"], *each["box"]) for each in found]
    return [
        (one, other)
        for (one, *a), (other, *b) in itertools.combinations(texts, 2)
        if one != other and min(a[2], b[2]) - max(a[0], b[0]) > 2 and min(a[3], b[3]) - max(a[1], b[1]) > 3
    ]


def test_texts_that_cross_are_found():
    box = {"a": [0, 0, 30, 12], "b": [27, 3, 60, 15], "c": [0, 10, 30, 22]}
    assert crossing([{"text": text, "box": at} for text, at in box.items()]) == [("a", "b"), ("b", "c")]


SAMPLE = {"occupancy", "roofline", "threads"}  # in `make test`: one in parts, one whose labels part, one whole
NAMES = [pytest.param(name, marks=[] if name in SAMPLE else [pytest.mark.long]) for name in EXPLORERS]


@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_page_shows_all_of_it(chromium, name):
    page = shown(chromium, EXPLORERS[name]())
    try:
        found = page.evaluate(SEEN)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert [each for each in found if not each["upright"] and each["out"] > 2] == []
        assert [each for each in found if each["size"] < 0.98 * LETTERS and not each["raised"]] == []
        assert page.locator(".fusion-heading").inner_text()
        assert page.evaluate(MARKS) >= 1
        assert crossing(found) == []
        assert page.evaluate(STRUCK) == []
    finally:
        page.close()


@pytest.mark.parametrize("share", [0.2, 0.01])
def test_the_ways_of_the_flowchart_join_its_boxes(chromium, share):
    """On a narrow page each line begins at a question and ends at a box, and none leaves the page."""
    page = shown(chromium, figures.FusionDecisionExplorer(share=share))
    try:
        for layer, least in (("div:not(.fusion-moving)", 10), (".fusion-moving", 4)):
            lines, boxes = (
                page.locator(f".fusion-chart > {layer} {tag}").evaluate_all("""all => all.map((each) => {
                    const { left, top, right, bottom } = each.getBoundingClientRect();
                    return [left, top, right, bottom]; })""")
                for tag in ("path", "rect")
            )
            assert len(lines) >= least
            for left, top, right, bottom in lines:
                assert 0 <= left <= right <= 351
                assert any(abs(box[3] - top) < 2 and box[0] < left < box[2] for box in boxes)
                if right - left < 1:
                    assert any(abs(box[1] - bottom) < 2 and box[0] < left < box[2] for box in boxes)
                else:
                    assert any(abs(box[0] - right) < 2 and box[1] < bottom < box[3] for box in boxes)
    finally:
        page.close()


STRIKES = """() => [...document.querySelectorAll('.fusion-moving text:not(.fusion-title)')].filter((text) => {
    const { x, y, width, height } = text.getBBox();
    return [...document.querySelectorAll('.fusion-moving path[fill=none]')].some((path) => {
        const length = path.getTotalLength();
        return Array.from({ length: 400 }, (_, step) => path.getPointAtLength((length * step) / 399)).some((at) =>
            at.x > x && at.x < x + width && at.y > y + 0.25 * height && at.y < y + 0.75 * height);
    });
}).map((text) => text.textContent)"""


@pytest.mark.parametrize("launched", ["from Python, fused in Triton", "by a CUDA graph"])
@pytest.mark.parametrize("operations", [1, 4, 8])
def test_no_line_strikes_a_label_of_the_launches(chromium, operations, launched):
    page = shown(chromium, figures.LaunchExplorer(operations=operations, launched=launched))
    try:
        assert page.locator(".fusion-moving path[fill=none]").count() == 2
        assert page.evaluate(STRIKES) == []
    finally:
        page.close()


BARRED = "attention units", "checkpointing", "decoding", "expert weights", "recomputation"
BARRED += "tile choice", "traffic", "waterfall", "wide rows"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "waterfall" else [pytest.mark.long]) for name in BARRED]
)
def test_bars_on_a_narrow_page_are_high_enough_to_see(chromium, name):
    explorer = EXPLORERS[name]()
    page = shown(chromium, explorer)
    try:
        # A line across a bar is no bar.
        heights = page.locator(".fusion-moving rect").evaluate_all(f"""bars => bars
            .filter((bar) => bar.getBBox().height >= {explorer._bar} - 0.1 && bar.getBBox().width > 3)
            .map((bar) => bar.getBoundingClientRect().height)""")
        assert len(heights) > 2
        assert min(heights) >= 14
    finally:
        page.close()


def test_the_line_below_says_what_the_picture_does_not(chromium):
    for name, line in (("tile choice", "At 4096 x 4096 x 4096 tiles ask L2 for 2.15 GB."), ("tile order", None)):
        explorer = EXPLORERS[name]()
        page = shown(chromium, explorer)
        status = page.locator("[role=status]")
        assert status.text_content().lower().startswith(explorer.text.lower()), "for those who hear the page, all of it"
        assert ("fusion-heard" in (status.get_attribute("class") or "")) == (line is None)
        if line:
            assert status.locator("[aria-hidden]").text_content() == line
            assert status.locator(":scope > .fusion-heard").text_content() == explorer.text
        page.close()


@pytest.mark.parametrize(
    "explorer", [figures.OccupancyExplorer(), figures.OccupancyExplorer("H100", threads=128, registers=32)]
)
@pytest.mark.parametrize("width", [351, 358, 470])
def test_the_sweeps_of_occupancy_use_the_page(chromium, explorer, width):
    """Each is as wide as the page, and all three with the SM above them are no higher than a window of a phone."""
    page = shown(chromium, explorer, width)
    try:
        sweeps = page.locator(".fusion-moving [data-sweep]").evaluate_all(
            "paths => paths.map((path) => path.getBoundingClientRect().width)"
        )
        assert len(sweeps) == 3
        assert min(sweeps) > 0.7 * width
        assert page.locator(".fusion-chart").bounding_box()["height"] < 2.2 * width
        assert crossing(page.evaluate(SEEN)) == []
    finally:
        page.close()


@pytest.mark.long
def test_a_graph_has_a_layout_for_a_phone(chromium):
    page = shown(chromium, fusion_simulator(GATED[0], *GATED[1]))
    try:
        found = page.evaluate(SEEN.replace(".fusion-chart text", "svg text"))
        assert len(found) > 10
        assert [each for each in found if each["size"] < 0.98 * LETTERS] == []
        assert [each for each in found if each["out"] > 2] == []
        assert crossing(found) == []
        room = page.locator(".fusion-box").evaluate_all("""boxes => boxes.map(({ children: [frame, label] }) =>
            frame.getBoundingClientRect().right - label.getBoundingClientRect().right)""")
        assert min(room) > 0
    finally:
        page.close()


@pytest.mark.parametrize("width", [351, 358, 470])
def test_an_sms_bars_leave_room_for_their_names(chromium, width):
    page = shown(chromium, figures.OccupancyExplorer(), width)
    try:
        bars = page.locator(".fusion-moving svg").first.locator("[data-bar]")
        found = bars.evaluate_all("""bars => bars.map((bar) => {
            const number = bar.previousElementSibling, box = bar.nextElementSibling.getBoundingClientRect();
            const [name, value] = [number.previousElementSibling, number].map((text) => text.getBoundingClientRect());
            return {apart: value.left - name.right, above: box.top - Math.max(name.bottom, value.bottom) + 2,
                    inside: box.right - value.right + 1, wide: box.width, high: box.height};
        })""")
        assert len(found) == 3
        assert min(value for each in found for value in each.values()) > 0, found
        assert min(each["wide"] for each in found) > 0.9 * width
        assert min(each["high"] for each in found) >= 14
    finally:
        page.close()
