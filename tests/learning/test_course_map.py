"""The map says what was done, from what is kept beside the notebooks."""

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

from helpers.course_contents import write_map
from helpers.figures.thumbnails import IDEAS, thumbnail
from helpers.learning.course_map import course_map, lessons_of, minutes_in, parts_of
from helpers.learning.progress import course_of, read, record
from helpers.learning.questions import answers_of
from helpers.learning.saved_guesses import KeptGuess, keep

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def course(tmp_path) -> Path:
    for name in ("notebooks/00_welcome", "notebooks/01_roofline", "notebooks/lab_bench", "exercises/01_roofline"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / f"{name}.ipynb", tmp_path / f"{name}.ipynb")
    return tmp_path


def row(course: Path, name: str) -> list[str]:
    [found] = [line for line in course_map(course).splitlines() if f" | [{name}" in line]
    return [cell.strip() for cell in found.strip("|").split("|")[1:]]  # without its drawing


def see(course: Path, lesson: str, guesses: list[float | None], found: float = 100.0) -> None:
    path = course / f"notebooks/{lesson}.ipynb"
    [questions] = [each.questions for each in lessons_of(course) if each.path == path]
    asked = list_of_questions(path)
    assert len(asked) == questions >= len(guesses)
    for question, guess in zip(asked, guesses, strict=False):
        keep(path, question, KeptGuess("", guess, found, "MB"))


def list_of_questions(path: Path) -> list[str]:
    return list(answers_of(read(path)))


def test_before_anything_is_done(course):
    page = course_map(course)
    first, second = lessons_of(course)
    points = "0 of 10 points (2 of them for hidden checks, which only the grading runs)"
    assert f"**Start here: [00 {first.title}](notebooks/00_welcome.ipynb)**" in page
    assert f"0 of 9 questions seen, {points}, about {first.minutes + second.minutes} minutes" in page
    assert row(course, "01 The roofline")[1:] == [
        f"{second.minutes}",
        "□□□□□ 0 of 5",
        "",
        "[01](exercises/01_roofline.ipynb), 30 minutes, 10 points",
    ]
    assert "lab_bench" not in page


def test_what_was_seen_and_how_well_it_was_guessed(course):
    see(course, "00_welcome", [50.0, 200.0, None])  # each twice too few or too many; one made no guess
    page = course_map(course)
    assert "**Go on here: [00 Welcome" in page
    assert "3 of 9 questions seen" in page
    first, second = lessons_of(course)
    left = first.minutes / 4 + second.minutes
    assert f"about {left:.0f} minutes of lessons left. Your guesses: 2 times off, in the geometric mean of 2." in page
    assert row(course, "00 Welcome")[2:4] == ["■■■□□ 3 of 4", "2 times off"]


def test_after_a_lesson_comes_the_next_then_its_exercise_then_nothing(course):
    see(course, "00_welcome", [100.0] * 4)
    assert "**Go on here: [01 The roofline" in course_map(course)
    assert row(course, "00 Welcome")[2:4] == ["■■■■■ 4 of 4", "right"]
    see(course, "01_roofline", [100.0] * 5)
    assert "**Go on here: [exercise 01](exercises/01_roofline.ipynb)**" in course_map(course)
    exercise = course / "exercises/01_roofline.ipynb"
    [(_, found)] = lessons_of(course)[1].exercises
    answers = {cell["id"] for cell in course_of(exercise)["original"] if cell["answer"]}
    sources = {cell["id"]: "".join(cell["source"]) for cell in read(exercise)["cells"] if cell.get("id") in answers}
    record(exercise, dict.fromkeys(found.points, "pass"), sources)
    assert "**Every lesson and every exercise is done.**" in course_map(course)
    assert row(course, "01 The roofline")[-1] == "[01](exercises/01_roofline.ipynb), 30 minutes, 8 of 10 points"


def test_the_map_has_three_parts_and_each_lesson_is_in_one():
    course = Path(__file__).parents[2]
    parts = parts_of(lessons_of(course))
    assert [name for name, *_ in parts] == ["Memory", "Kernels", "Deciding"]
    assert [lesson for *_, own in parts for lesson in own] == lessons_of(course)
    page = course_map(course)
    assert (
        page.index("**Memory.**")
        < page.index(" | [00 Welcome")
        < page.index("**Kernels.**")
        < page.index("**Deciding.**")
    )
    assert "No GPU is needed." in page


def test_each_lesson_has_a_drawing_of_its_own(course):
    """Small, without words, and next to the map."""
    drawn = {number: thumbnail(number) for number in IDEAS}
    assert {lesson.path.stem.partition("_")[0] for lesson in lessons_of(ROOT)} <= set(drawn)
    assert len(set(drawn.values())) == len(drawn)
    for svg in drawn.values():
        assert len(svg) < 2500
        assert not ElementTree.fromstring(svg).findall(".//{http://www.w3.org/2000/svg}text")
    write_map(course)
    named = re.findall(r'<img src="([^"]+)"', (course / "COURSE_MAP.md").read_text())
    assert [(course / each).read_text() for each in named] == [drawn["00"], drawn["01"]]
    assert thumbnail("99") == ""


def test_every_exercise_announces_its_minutes():
    times = {path.stem: minutes_in(path.read_text(encoding="utf-8")) for path in ROOT.glob("source/exercises/*.py")}
    assert len(times) == 20
    assert all(20 <= (time or 0) <= 120 for time in times.values()), times
    assert minutes_in("It takes about 50 minutes.") == 50
    assert minutes_in("It takes a while.") is None


def test_what_the_reader_is_to_do_is_no_answer():
    sources = {
        "ask": 'used = predict_first("slots", unit="%")',
        "step before": "watch(kernel[(3,)], x)",
        "compare": "used.compare(3)",
        "detail": "table()",
        "puzzle": "@triton.jit\ndef a_kernel():\n    pass\n\n\npuzzle(a_kernel, 3, wanted=x)",
        "step": "x = 1\nwatch(kernel[(3,)], x)",
    }
    cells = [nbformat.v4.new_code_cell(source) for source in sources.values()]
    [answers] = answers_of({"cells": cells}).values()
    names = [next(name for name, source in sources.items() if source == cell["source"]) for cell in answers]
    assert names == ["step before", "compare", "detail"]
