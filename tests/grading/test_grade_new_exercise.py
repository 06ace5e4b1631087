"""`fusion new-exercise`: it writes a working exercise, whose tests ask for wrong answers."""

import importlib.util
from pathlib import Path

import pytest
import test_exercises

from helpers.cli import main
from helpers.grading import new_exercise
from helpers.grading.replay import server
from helpers.learning.checks import cases
from helpers.learning.outcome import FAIL, NOT_ATTEMPTED, PASS
from helpers.learning.submission_policy.screening import screen

NAME = "98_from_template"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course without exercises."""
    (tmp_path / "source" / "exercises").mkdir(parents=True)
    monkeypatch.setattr(cases, "draw", 0)
    return tmp_path


@pytest.fixture
def build():
    spec = importlib.util.spec_from_file_location("build", test_exercises.ROOT / "source" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def states(cells: list[dict], folder: Path) -> list[str]:
    exercise = server.RunExercise(cells, 0, folder)
    outcomes = [exercise.run_check(check, {}, folder) for check in exercise.checks]
    return [outcome.state for outcome in outcomes if outcome]  # a hidden check shows nothing to a learner


def test_the_new_exercise_works(course, build):
    said = new_exercise.new_exercise(NAME, course)
    assert said.startswith(f"source/exercises/{NAME}.py is a working exercise")
    solution = build.read_source(course / "source" / "exercises" / f"{NAME}.py")
    cells = build.original_of(solution, solution)
    assert states(cells, course) == [PASS] * 3
    assert screen({cell["id"]: cell["source"] for cell in cells if cell["answer"]}, {"reference"}) == []
    assert states(build.original_of(build.exercise_of(solution), solution), course) == [NOT_ATTEMPTED] * 2
    half = [cell | {"source": cell["source"].replace("y.numel(), B", "y.numel() // 2, B")} for cell in cells]
    assert FAIL in states(half, course)


def test_its_tests_fail_until_there_are_three_wrong_answers(course):
    new_exercise.new_exercise(NAME, course)
    source = course / "source" / "exercises" / f"{NAME}.py"
    kept = course / "source" / "exercises" / "answers" / NAME
    diff = ["wrong_a: A.\nrejected by: values\ntold: .\n-a", "wrong_b: B.\nrejected by: traffic\ntold: .\n-b"]
    diff += ["wrong_c: C.\nrejected by: values\ntold: .\n-c", "right_a: D.\n-d"]
    for number in range(len(diff) + 1):
        with pytest.raises(AssertionError, match="wrong" if number < 3 else "right"):
            test_exercises.test_an_exercise_is_whole(source)
        (kept / "changed.diff").write_text("\n\n".join(diff[: number + 1]))
    (kept / "right_b.py").write_text("# In another style.\n")
    test_exercises.test_an_exercise_is_whole(source)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("dropout", "'dropout' is not an exercise's name: write its number and its name, such as 04b_dropout"),
        ("../11_x", "is not an exercise's name"),
        ("03_more", "03 is taken by 03_fused_add_gelu: choose another number"),
    ],
)
def test_what_cannot_be_made_is_told_in_one_line(name, told, capsys):
    assert main(["new-exercise", name]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_a_class_cannot(tmp_path):
    with pytest.raises(ValueError, match="has no source/exercises"):
        new_exercise.new_exercise(NAME, tmp_path)
