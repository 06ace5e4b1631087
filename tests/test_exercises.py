"""Every exercise's right answers pass, and each of its wrong answers is rejected by the check meant for it."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

from helpers.learning import check
from helpers.grading.exercise import Exercise, exercises_in
from helpers.grading.judge import all_same
from helpers.grading.replay import server
from helpers.grading.replay.record import record_call
from helpers.grading.replay.tensors import inputs_from_json
from helpers.learning.checks import cases
from helpers.learning.outcome import ERROR, FAIL, MIME, NOT_ATTEMPTED, PASS

ROOT = Path(__file__).parents[1]
ANSWERS = sorted((ROOT / "source/exercises/answers").glob("*/*.py"))
WRONG = [path for path in ANSWERS if path.stem.startswith("wrong_")]
RIGHT = [path for path in ANSWERS if path.stem.startswith("right_")]


@pytest.fixture(autouse=True)
def inputs_of_learners(monkeypatch):
    monkeypatch.setattr(cases, "draw", 0)


def answers_in(path: Path) -> dict[str, str]:
    """grade_id -> source, of an answers file."""
    cells = jupytext.read(path, fmt="py:percent").cells
    return {cell.metadata["grade_id"]: cell.source for cell in cells if "grade_id" in cell.metadata}


def answered(path: Path, folder: Path) -> server.RunExercise:
    """The solution's cells, run in this process with the answers of a file in them: a kernel would take seconds."""
    exercise, answers = exercise_of(path), answers_in(path)
    assert answers.keys() <= set(exercise.asked), f"{path} answers what {exercise.name} does not ask"
    cells = [cell | {"source": answers.get(cell["id"], cell["source"])} for cell in exercise.cells]
    folder.mkdir(exist_ok=True)
    return server.RunExercise(cells, 0, folder)


def exercise_of(answers: Path) -> Exercise:
    return exercises_in(only=answers.parent.name)[answers.parent.name]


def names(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.parametrize("path", WRONG, ids=names)
def test_a_wrong_answer_is_rejected_by_the_check_meant_for_it(path, tmp_path):
    meant = dict(re.findall(r"^# (rejected by|told): (.+)$", path.read_text(), re.MULTILINE))
    exercise = answered(path, tmp_path)
    # The checks after the one that is meant would say nothing new, and some compile.
    for name in exercise.checks:
        outcome = exercise.run_check(name, {}, tmp_path)
        assert outcome.state != ERROR, outcome
        if name == meant["rejected by"]:
            break
    assert outcome.state == FAIL, outcome
    assert re.search(meant["told"], str(outcome)), outcome


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The solution of an exercise and what its checks call, by an answers file; each is run once."""

    @functools.cache
    def made(name: str) -> tuple[server.RunExercise, dict[str, list[dict]]]:
        folder = tmp_path_factory.mktemp(name)
        exercise = server.RunExercise(exercises_in(only=name)[name].cells, 0, folder)
        return exercise, exercise.calls(folder)

    return lambda answers: made(answers.parent.name)


@pytest.mark.parametrize("path", RIGHT, ids=names)
def test_a_right_answer_passes_as_it_is_and_as_it_is_replayed(path, model, tmp_path):
    exercise = answered(path, tmp_path / "own")
    for name in exercise.checks:
        outcome = exercise.run_check(name, {}, tmp_path / "own")
        assert outcome.state == PASS, outcome
    solution, called = model(path)
    for name, calls in called.items():
        records = []
        for call in calls:
            records.append({})
            record_call(exercise.namespace[call["function"]], inputs_from_json(call), records[-1], name=name)
        reply = server.judged(solution, {"check": name, "answers": answers_in(path), "calls": records}, tmp_path)
        assert reply["state"] == PASS, reply
        assert all_same(reply["values"], [call["values"] for call in calls])


@pytest.mark.parametrize("source", sorted((ROOT / "source/exercises").glob("*.py")), ids=lambda path: path.stem)
def test_an_exercise_is_whole(source):
    text = source.read_text()
    asked = int(re.search(r"^# # .*\[(\d+) points\]$", text, re.MULTILINE)[1])
    assert sum(map(int, re.findall(r"^# %% .*points=(\d+)", text, re.MULTILINE))) == asked
    kinds = [path.stem.partition("_")[0] for path in ANSWERS if path.parent.name == source.stem]
    assert kinds.count("wrong") >= 3
    assert kinds.count("right") >= 2
    checks = re.findall(r'^# %% grade_id="(.+)" points', text, re.MULTILINE)
    wrong = [path.read_text() for path in WRONG if path.parent.name == source.stem]
    rejecting = set(re.findall(r"^# rejected by: (.+)$", "".join(wrong), re.MULTILINE))
    hidden = set(re.findall(r'^# %% grade_id="(.+)" points=\d+\n# .*\n# BEGIN HIDDEN', text, re.MULTILINE))
    assert set(checks) - hidden <= rejecting, "a check that rejects no wrong answer"


@pytest.mark.parametrize("name", [path.name for path in sorted((ROOT / "solutions").glob("*.ipynb"))])
def test_a_solution_shows_passes_and_the_stub_what_was_not_attempted(name):
    """As they are stored: that they still show this, nbval says, here of the stubs and in `make test` of the rest."""
    for folder, expected in (("solutions", PASS), ("exercises", NOT_ATTEMPTED)):
        shown = [
            output["data"][MIME]["state"]
            for cell in json.loads((ROOT / folder / name).read_text())["cells"]
            for output in cell.get("outputs", [])
            if MIME in output.get("data", {})
        ]
        assert shown
        assert set(shown) == {expected}


def test_the_command_gives_a_solution_all_points_that_it_can_and_the_stub_none(capsys):
    name = "03_fused_add_gelu.ipynb"
    assert check.check_notebook(ROOT / "solutions" / name) == 0
    assert "\n  12 of 12 points; 3 more for hidden checks" in capsys.readouterr().out
    assert check.check_notebook(ROOT / "exercises" / name) == 1
    stub = capsys.readouterr().out
    assert set(re.findall(r"^  \S+ +(pass|fail|error|not attempted) ", stub, re.MULTILINE)) == {NOT_ATTEMPTED}


def test_nbval_runs_every_stub_and_says_how_much_is_compared():
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval", "exercises", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 0, run.stdout
    assert re.search(r"\d+ of \d+ code cells are compared, not just run \(\d+%; at least 60% must be\)", run.stdout)


def test_too_little_compared_fails(tmp_path):
    (tmp_path / "conftest.py").write_bytes((ROOT / "conftest.py").read_bytes())
    code = {"cell_type": "code", "metadata": {"tags": ["nbval-ignore-output"]}, "source": "1", "outputs": []}
    cells = [code | {"execution_count": 1, "id": "a"}, code | {"execution_count": None, "metadata": {}, "id": "b"}]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "some.ipynb").write_text(json.dumps(notebook))
    command = [sys.executable, "-m", "pytest", "--nbval", ".", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "0 of 2 code cells are compared, not just run (0%; at least 60% must be)" in run.stdout
    assert run.returncode == 1
