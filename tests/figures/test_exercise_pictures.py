"""Each exercise opens with its own picture, which shows and describes what it should."""

import re
from xml.etree import ElementTree

import pytest

from helpers.figures.exercise_pictures import BOLD, EDGE, LETTER, PICTURES, picture
from tests.lab_browser import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def test_each_exercise_shows_its_own_picture():
    sources = sorted((ROOT / "source/exercises").glob("*.py"))
    assert [re.match(r"\d+b?", path.stem)[0] for path in sources] == sorted(PICTURES)
    for path in sources:
        number = re.match(r"\d+b?", path.stem)[0]
        assert path.read_text(encoding="utf-8").count(f'\npicture("{number}")\n') == 1, path.name


@pytest.mark.parametrize("number", PICTURES)
def test_all_of_a_picture_is_inside_it_and_its_text_in_its_boxes(number):
    drawn = picture(number)
    root = ElementTree.fromstring(drawn.svg)
    left, top, width, height = map(float, root.get("viewBox").split())
    inside = (left, top, left + width, top + height)
    boxes = []
    for each in root.iter(f"{SVG}rect"):
        x, y, wide, high = (float(each.get(name)) for name in ("x", "y", "width", "height"))
        assert inside[0] <= x < x + wide <= inside[2], (number, x, wide)
        assert inside[1] <= y < y + high <= inside[3], (number, y, high)
        boxes.append((x, y, wide, high))
    for each in root.iter(f"{SVG}text"):
        letter = BOLD if each.get("font-weight") else LETTER
        x, y, long = float(each.get("x")), float(each.get("y")) - 5, len(each.text) * letter
        start = x - long * {"middle": 0.5, "end": 1}.get(each.get("text-anchor"), 0)
        assert inside[0] <= start < start + long <= inside[2] + EDGE, (number, each.text)
        if each.get("fill") in ("white", "black"):  # written on a colour
            around = [(bx, wide) for bx, by, wide, high in boxes if by < y < by + high]
            assert any(bx - 2 <= start < start + long <= bx + wide + 2 for bx, wide in around), (number, each.text)


@pytest.mark.parametrize("number", PICTURES)
def test_a_picture_is_described(number):
    drawn = picture(number)
    title, _, told = repr(drawn).partition(". ")
    assert len(told) > 40
    shown = drawn._repr_mimebundle_()["text/html"]
    assert re.fullmatch(r'<figure><img [^>]*src="data:image/svg\+xml;base64,[^"]+" alt="[^"]+"></figure>', shown)
    written = " ".join(each.text for each in ElementTree.fromstring(drawn.svg).iter(f"{SVG}text"))
    assert title in written


def test_dropouts_picture_follows_the_rule_that_a_variant_changes():
    assert "kept are 20, 21, 23, 24, 25, 27, 28." in repr(picture("04"))
    assert "kept are 21, 22, 23, 24, 26, 27, 28, 29." in repr(picture("04", keep="u < 1 - p"))
