"""What a notebook's explorer offers, a web page's offers too."""

from pathlib import Path

import ipywidgets as widgets
import pytest
from test_narrow_explorers import EXPLORERS

from helpers.figures import OccupancyExplorer
from helpers.figures.frame.explorer import Explorer
from helpers.figures.frame.interactive_export import FEW, export_interactive

SAMPLE = {"attention tiles", "banks", "hierarchy"}  # in `make test`: the others take up to two minutes


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in SAMPLE else [pytest.mark.long]) for each in EXPLORERS]
)
def test_a_page_has_every_control_that_the_notebook_has(name):
    explorer = EXPLORERS[name]()
    exported = export_interactive(explorer)
    assert [each["name"] for each in exported["sliders"]] == [each.description for each in explorer._sliders]
    own = [
        each
        for each in explorer._choices
        if not isinstance(each, widgets.Text) and each.description not in explorer._kernel_only
    ]
    page = {each["name"]: len(each["labels"]) for each in exported["choices"] if len(each["labels"]) > 1}
    assert list(page) == [each.description for each in own]
    for each in own:
        if each.description in FEW:
            assert page[each.description] > 1
        else:
            assert page[each.description] == (2 if isinstance(each, widgets.Checkbox) else len(each.options))


def test_a_choice_that_finds_no_room_is_refused(monkeypatch):
    monkeypatch.setattr("helpers.figures.frame.interactive_export.MAX", 1)
    with pytest.raises(ValueError, match="no room for all choices of BanksExplorer"):
        export_interactive(EXPLORERS["banks"]())


def test_only_the_rooflines_boxes_need_a_kernel():
    assert [each.__name__ for each in Explorer.__subclasses__() if each._kernel_only] == ["RooflineExplorer"]


FIGURES = Path(__file__).parents[2] / "source" / "site" / "figures.js"


@pytest.fixture
def page_of(chromium):
    """A bare page on which the site's script shows an exported figure."""
    page = chromium.new_page(viewport={"width": 1024, "height": 900})

    def shown(explorer):
        exported = export_interactive(explorer)
        script = str(explorer._stage._esm).replace("export default", "window.stage =")
        page.set_content("<div class='live' data-figure='it'></div>")
        page.evaluate(f"() => {{ {script} }}")
        page.evaluate(
            "given => { window.fusionLive = {it: given}; window.fusionStages = {[given.stage]: stage.render}; }",
            exported,
        )
        page.add_script_tag(path=FIGURES)
        page.wait_for_selector(".fusion-moving svg")
        return page

    yield shown
    page.close()


def test_a_page_folds_the_controls_that_the_notebook_folds(page_of):
    explorer = OccupancyExplorer("H100", threads=128, registers=128, first="registers")
    shown, folded = explorer._box.children[:2]
    assert [each.description for each in shown.children] == ["registers"]
    assert isinstance(folded, widgets.Accordion)
    assert folded.selected_index is None
    assert folded.titles == ("More controls",)
    assert [each.description for row in folded.children[0].children for each in row.children] == [
        "threads", "shared memory", "GPU",
    ]  # fmt: skip

    page = page_of(explorer)
    labels = page.locator(".controls label")
    assert [each.is_visible() for each in labels.all()] == [True, False, False, False]
    page.get_by_text("More controls").click()
    assert [each.is_visible() for each in labels.all()] == [True] * 4
    status = page.locator("[role=status]")
    assert "128 threads, 128 registers" in status.text_content()
    page.locator("input[type=range]").nth(1).fill("7")
    assert "256 threads, 128 registers" in status.text_content()
    page.locator("select").select_option("T4")
    page.wait_for_function("document.querySelector('[role=status]').textContent.includes('T4')")


def test_nothing_is_folded_unless_it_was_asked_for(page_of):
    page = page_of(OccupancyExplorer())
    assert page.locator("details").count() == 0
    assert page.locator(".controls label").count() == 4
