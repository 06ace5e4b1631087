"""A guess is kept, and set beside what was found."""

import math
import re

import pytest
from bs4 import BeautifulSoup

from helpers.figures.frame.predicted_vs_measured import predicted_vs_measured
from helpers.learning import guesses
from helpers.learning.guesses import Guess, predict_first, predictions
from helpers.learning.saved_guesses import KeptGuess, kept_in, place_of


@pytest.fixture(autouse=True)
def no_predictions(monkeypatch):
    monkeypatch.setattr(guesses, "_predictions", {})


def guessed(text: str, unit: str = "MB") -> Guess:
    prediction = predict_first("bytes", unit)
    prediction._field.typed = text
    return prediction


@pytest.mark.parametrize(
    ("guess", "measured", "line"),
    [
        ("", 20, "bytes: 20 MB; you made no guess"),
        ("20", 20, "bytes: 20 MB, as you said"),
        (" 12,000 ", 12_100, "bytes: 12,100 MB, as you said"),
        ("12", 20, "bytes: 20 MB; you said 12, too low by a factor of 1.67"),
        ("40", 20, "bytes: 20 MB; you said 40, too high by a factor of 2"),
        ("3", 3_446_301, "bytes: 3,446,301 MB; you said 3, too low by a factor of 1,150,000"),
        ("0", 20, "bytes: 20 MB; you said 0"),
        ("1", 0, "bytes: 0 MB; you said 1"),
        ("-3", 20, "bytes: 20 MB; you said -3"),
    ],
)
def test_a_guess_beside_what_was_found(guess, measured, line):
    assert repr(guessed(guess).compare(measured)) == line


def test_a_finding_is_shown_below_and_wrapped():
    shown = repr(guessed("20").compare(20, "Verdict: holds. " + "It is " * 30))
    assert shown.splitlines()[0].endswith("20 MB, as you said")
    assert shown.splitlines()[1].startswith("Verdict: holds. It is")
    assert max(map(len, shown.splitlines())) <= 100


def test_a_guess_that_is_no_number_is_asked_about():
    line = repr(guessed("20,5").compare(20))
    assert line == "bytes: 20 MB; your guess: 20,5: is it 20.5 or 205? Type it without the comma"


def test_a_guess_outlasts_the_kernel(monkeypatch, tmp_path):
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "00_lesson.ipynb"))
    guessed("24/2").compare(20)
    monkeypatch.setattr(guesses, "_predictions", {})
    assert predict_first("bytes", "MB").guess == 12
    assert kept_in(tmp_path / "00_lesson.ipynb") == {"bytes": KeptGuess("24/2", 12, 20, "MB")}


@pytest.mark.parametrize("content", ["", "[]", '{"bytes": 1}', '{"bytes": {"typed": 1}}', "\x00"])
def test_a_store_of_another_form_is_no_store(content, monkeypatch, tmp_path):
    notebook = tmp_path / "00_lesson.ipynb"
    (tmp_path / ".progress").mkdir()
    place_of(notebook).write_text(content)
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook))
    assert predict_first("bytes", "MB").guess is None


def test_outside_jupyters_server_nothing_is_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    guessed("12").compare(20)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("said", "found"), [(12, 20), (20, 20), (1, 5000), (0, 20), (20, 0.3)])
def test_said_and_found_stand_on_one_scale(said, found):
    """The diamond is at what was said, the bar ends at what was found, on the scale whose ticks are drawn."""
    svg = BeautifulSoup(predicted_vs_measured(said, found, "MB"), "html.parser").svg
    ticks = {}
    for path, text in zip(svg.select("path")[:-1], svg.select("text"), strict=False):
        ticks[float(text.text.replace(",", ""))] = float(re.match(r"M([\d.]+)", path["d"])[1])
    (a, at_a), (b, at_b) = list(ticks.items())[-2:]
    linear = 0 in ticks
    ahead = (lambda v: v) if linear else math.log10
    place = lambda v: at_a + (at_b - at_a) * (ahead(v) - ahead(a)) / (ahead(b) - ahead(a))  # noqa: E731
    mark = float(re.match(r"M([\d.]+)", svg.select("path")[-1]["d"])[1])
    end = float(svg.rect["x"]) + float(svg.rect["width"])
    assert mark == pytest.approx(place(said), abs=0.2)
    assert end == pytest.approx(max(place(found), 13), abs=0.2)
    assert svg["aria-label"] == f"you said {said:,}, found {found:,} MB"


@pytest.mark.parametrize(("said", "found"), [(-3, 20), (0, 0), (float("inf"), 1)])
def test_no_scale_holds_these(said, found):
    assert predicted_vs_measured(said, found, "MB") == ""


def test_the_table_as_html_says_how_far_off_each_guess_was():
    guessed("12").compare(20)
    predict_first("a < b", "times")
    table = BeautifulSoup(predictions()._repr_html_(), "html.parser")
    cells = [[cell.text for cell in row.find_all(["th", "td"])] for row in table.select("tbody tr")]
    assert cells == [["bytes", "12", "20", "MB", ""], ["a < b", "-", "-", "times", ""]]
    assert [svg["aria-label"] for svg in table.select("svg")] == ["too low by a factor of 1.67"]


def test_the_same_question_keeps_its_guess_and_the_table_has_all():
    guessed("12").compare(20)
    assert predict_first("bytes", "MB").guess == 12
    predict_first("speed-up of it", "times")
    assert repr(predictions()).splitlines() == [
        "question        you said  found  unit",
        "bytes                 12     20  MB",
        "speed-up of it         -      -  times",
    ]


def test_a_question_shows_as_text_where_no_widget_runs():
    assert predict_first("bytes", "MB")._repr_mimebundle_()["text/plain"] == "bytes: [your guess] MB"
