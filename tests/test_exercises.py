"""Every exercise's right answers pass, and each of its wrong answers is rejected by the check meant for it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

from helpers.grading import check

ROOT = Path(__file__).parents[1]
ANSWERS = sorted((ROOT / "source/exercises/answers").glob("*/*.py"))
WRONG = [path for path in ANSWERS if path.stem.startswith("wrong_")]
RIGHT = [path for path in ANSWERS if path.stem.startswith("right_")]


def answered(answers: Path, folder: Path, built: str) -> Path:
    """A learner's copy of an exercise, or of its solution, with the cells of an answers file in it."""
    exercise = f"{answers.parent.name}.ipynb"
    notebook = json.loads((ROOT / built / exercise).read_text())
    cells = {
        cell.metadata["grade_id"]: cell.source
        for cell in jupytext.read(answers, fmt="py:percent").cells
        if "grade_id" in cell.metadata
    }
    for cell in notebook["cells"]:
        grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id")
        cell["source"] = cells.pop(grade_id, cell["source"])
    assert not cells, f"{answers} answers {', '.join(cells)}, which {exercise} does not ask"
    path = folder / exercise
    path.write_text(json.dumps(notebook))
    return path


def names(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


@pytest.mark.parametrize("answers", WRONG, ids=names)
def test_a_wrong_answer_is_rejected_by_the_check_meant_for_it(answers, tmp_path, capsys):
    meant = dict(re.findall(r"^# (rejected by|told): (.+)$", answers.read_text(), re.MULTILINE))
    assert check.check_notebook(answered(answers, tmp_path, "exercises")) == 1
    report = capsys.readouterr().out
    # What is said of one check: its line, and the lines under it.
    told = re.search(rf"^  {meant['rejected by']} +(fail|error) .*\n((?:      .*\n)*)", report, re.MULTILINE)
    assert told, report
    assert told[1] == "fail"
    assert re.search(meant["told"], told[2]), report
    assert not re.search(r"^  \S+ +error ", report, re.MULTILINE), report


@pytest.mark.parametrize("answers", RIGHT, ids=names)
def test_a_right_answer_passes_hidden_checks_too(answers, tmp_path, capsys):
    assert check.check_notebook(answered(answers, tmp_path, "solutions")) == 0
    assert "kept for the grading" not in capsys.readouterr().out


@pytest.mark.parametrize("source", sorted((ROOT / "source/exercises").glob("*.py")), ids=lambda path: path.stem)
def test_an_exercise_is_whole(source):
    text = source.read_text()
    asked = int(re.search(r"^# # .*\[(\d+) points\]$", text, re.MULTILINE)[1])
    assert sum(map(int, re.findall(r"^# %% .*points=(\d+)", text, re.MULTILINE))) == asked
    kinds = [path.stem.partition("_")[0] for path in ANSWERS if path.parent.name == source.stem]
    assert kinds.count("wrong") >= 3
    assert kinds.count("right") >= 2
    checks = re.findall(r'^# %% grade_id="(.+)" points', text, re.MULTILINE)
    rejecting = set(re.findall(r"^# rejected by: (.+)$", "".join(map(Path.read_text, WRONG)), re.MULTILINE))
    hidden = set(re.findall(r'^# %% grade_id="(.+)" points=\d+\n# .*\n# BEGIN HIDDEN', text, re.MULTILINE))
    assert set(checks) - hidden <= rejecting, "a check that rejects no wrong answer"


@pytest.mark.parametrize("name", [path.name for path in sorted((ROOT / "solutions").glob("*.ipynb"))])
def test_a_solution_earns_all_its_points_and_the_stub_none(name, capsys):
    assert check.check_notebook(ROOT / "solutions" / name) == 0
    solved = capsys.readouterr().out
    assert re.search(r"^  (\d+) of \1 points$", solved, re.MULTILINE), solved
    assert check.check_notebook(ROOT / "exercises" / name) == 1
    stub = capsys.readouterr().out
    states = re.findall(r"^  \S+ +(pass|fail|error|not attempted) ", stub, re.MULTILINE)
    assert states
    assert set(states) == {"not attempted"}


def test_nbval_runs_every_stub_and_says_how_much_is_compared():
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval", "exercises", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 0, run.stdout
    assert re.search(r"\d+ of \d+ code cells are compared, not just run \(\d+%; at least 50% must be\)", run.stdout)


def test_too_little_compared_fails(tmp_path):
    (tmp_path / "conftest.py").write_bytes((ROOT / "conftest.py").read_bytes())
    code = {"cell_type": "code", "metadata": {"tags": ["nbval-ignore-output"]}, "source": "1", "outputs": []}
    cells = [code | {"execution_count": 1, "id": "a"}, code | {"execution_count": None, "metadata": {}, "id": "b"}]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "some.ipynb").write_text(json.dumps(notebook))
    command = [sys.executable, "-m", "pytest", "--nbval", ".", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "0 of 2 code cells are compared, not just run (0%; at least 50% must be)" in run.stdout
    assert run.returncode == 1
