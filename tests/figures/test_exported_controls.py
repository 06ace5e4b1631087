"""What a notebook's explorer offers, a web page's offers too."""

import ipywidgets as widgets
import pytest
from test_narrow_explorers import EXPLORERS

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
