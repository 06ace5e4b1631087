"""Every exercise's right answers pass, and each of its wrong answers is rejected by the check meant for it."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import answers
import pytest
from answers import Answer
from replaying import asked_here

from helpers.grading.exercise import exercises_in
from helpers.grading.judge import all_same
from helpers.grading.replay import server
from helpers.grading.replay.call_record import record_call
from helpers.grading.replay.tensors import inputs_from_json
from helpers.learning import check_command
from helpers.learning.checks import cases
from helpers.learning.outcome import ERROR, FAIL, MIME, NOT_ATTEMPTED, PASS

ROOT = Path(__file__).parents[2]
WRONG = [answer for answer in answers.all_answers() if answer.wrong]
RIGHT = [answer for answer in answers.all_answers() if not answer.wrong]


@pytest.fixture(autouse=True)
def inputs_of_learners(monkeypatch):
    monkeypatch.setattr(cases, "draw", 0)


def answered(answer: Answer, folder: Path) -> server.RunExercise:
    """The solution's cells, run in this process with the answer in them: a kernel would take seconds."""
    exercise = exercises_in(only=answer.exercise)[answer.exercise]
    assert answer.cells.keys() <= set(exercise.asked), f"{answer} answers what {exercise.name} does not ask"
    cells = [cell | {"source": answer.cells.get(cell["id"], cell["source"])} for cell in exercise.cells]
    folder.mkdir(exist_ok=True)
    return server.RunExercise(cells, 0, folder)


# In `make test` one for each check, and that check alone.
REJECTED = {(answer.exercise, answer.rejected_by): answer for answer in reversed(WRONG)}
MARKED_WRONG = [pytest.param(each, marks=[] if each in REJECTED.values() else [pytest.mark.long]) for each in WRONG]


@pytest.mark.parametrize("answer", MARKED_WRONG, ids=str)
def test_a_wrong_answer_is_rejected_by_the_check_meant_for_it(answer, tmp_path):
    outcome = answered(answer, tmp_path).run_check(answer.rejected_by, {}, tmp_path)
    assert outcome.state == FAIL, outcome
    assert re.search(answer.told, str(outcome)), outcome
    assert not answer.never_told or not re.search(answer.never_told, str(outcome)), outcome


# In `make test` those whose check takes milliseconds, and one of each exercise's kernels.
TWENTY = [answer for answer in WRONG if answer.exercise in ("17_flash_decoding", "18_short_kernels")]
QUICK = {"counts", "fused", "arrange", "time", "budget", "traffic", "large"}
MARKED_TWENTY = [pytest.param(each, marks=[] if each.rejected_by in QUICK else [pytest.mark.long]) for each in TWENTY]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("answer", MARKED_TWENTY, ids=str)
def test_a_wrong_answer_is_rejected_by_name_on_twenty_draws(answer, tmp_path):
    exercise = answered(answer, tmp_path)
    for exercise.seed in range(20):
        outcome = exercise.run_check(answer.rejected_by, {}, tmp_path)
        assert outcome.state == FAIL, (exercise.seed, outcome)
        assert re.search(answer.told, str(outcome)), (exercise.seed, outcome)


@pytest.mark.long
@pytest.mark.parametrize("answer", WRONG, ids=str)
def test_a_wrong_answer_is_no_error_in_the_checks_before(answer, tmp_path):
    exercise = answered(answer, tmp_path)
    for name in exercise.checks:
        if name == answer.rejected_by:
            break
        outcome = exercise.run_check(name, {}, tmp_path)
        assert outcome.state != ERROR, outcome


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The solution of an exercise and what its checks call, by its name; each is run once."""

    @functools.cache
    def made(name: str, checks: tuple[str, ...]) -> tuple[server.RunExercise, dict[str, list[dict]]]:
        folder = tmp_path_factory.mktemp(name)
        exercise = server.RunExercise(exercises_in(only=name)[name].cells, 0, folder)
        exercise.checks = {check: exercise.checks[check] for check in checks}
        return exercise, exercise.calls(folder)

    return made


# In `make test` the first of three exercises: values alone, values with their traffic, the checks of a backward pass.
FIRST = {answer.exercise: answer for answer in reversed(RIGHT)}
SAMPLE = [FIRST[name] for name in ("01_roofline", "05b_residual_rms_norm")]
MARKED = [pytest.param(each, (), marks=[] if each in SAMPLE else [pytest.mark.long], id=str(each)) for each in RIGHT]
BACKWARD = pytest.param(FIRST["04_bias_dropout_residual"], ("gradient", "same-mask"), id="gradient")


@pytest.mark.parametrize(("answer", "checks"), [*MARKED, BACKWARD])
def test_a_right_answer_passes_as_it_is_and_as_it_is_replayed(answer, checks, model, tmp_path):
    """In these checks; in all of its exercise's where none is named."""
    exercise = answered(answer, tmp_path / "own")
    checks = checks or tuple(exercise.checks)
    for name in checks:
        outcome = exercise.run_check(name, {}, tmp_path / "own")
        assert outcome.state == PASS, outcome
    solution, called = model(answer.exercise, checks)
    for name, calls in called.items():
        records = []
        for call in calls:
            records.append({})
            given = inputs_from_json(call)
            record_call(exercise.namespace[call["function"]], given, records[-1], call["few"], name=name)
        request = {"check": name, "answers": answer.cells, "calls": records}
        reply = server.judged(solution, request, tmp_path, asked_here())
        assert reply["state"] == PASS, reply
        assert all_same(reply["values"], [call["values"] for call in calls])


@pytest.mark.parametrize("source", sorted((ROOT / "source/exercises").glob("*.py")), ids=lambda path: path.stem)
def test_an_exercise_is_whole(source):
    text = source.read_text()
    asked = int(re.search(r"^# # .*\[(\d+) points\]$", text, re.MULTILINE)[1])
    assert sum(map(int, re.findall(r"^# %% .*points=(\d+)", text, re.MULTILINE))) == asked
    kept = answers.answers_in(source.parent / "answers" / source.stem)
    assert sum(answer.wrong for answer in kept) >= 3, "three wrong answers are needed"
    assert sum(not answer.wrong for answer in kept) >= 2, "two right answers are needed"
    checks = re.findall(r'^# %% grade_id="(.+)" points', text, re.MULTILINE)
    rejecting = {answer.rejected_by for answer in kept if answer.wrong}
    hidden = set(re.findall(r'^# %% grade_id="(.+)" points=\d+\n# .*\n# BEGIN HIDDEN', text, re.MULTILINE))
    assert set(checks) - hidden <= rejecting, "a check that rejects no wrong answer"


def test_an_answer_fits_a_page_of_1024_pixels_as_its_exercise_does():
    for answer in answers.all_answers():
        lines = [line for cell in answer.cells.values() for line in cell.splitlines()]
        assert max(map(len, lines)) <= 100, f"{answer} has more than 100 columns"


MODEL = {"kernel": "# Why.\na = 1\n\nb = 2\nb = 2\n", "launcher": "a = 1\nreturn c\n"}


def test_a_change_is_made_in_the_model_answer():
    made = answers.changed(MODEL, "-return c\n+return d\n\n+e = 0\n a = 1\n b = 2\n", "wrong_x")
    assert made == {"kernel": "e = 0\na = 1\nb = 2\nb = 2\n", "launcher": "a = 1\nreturn d\n"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ("-z = 1\n+z = 2", r"wrong_x: \['z = 1'\] must stand in the model answer once, not 0 times"),
        ("-a = 1\n+a = 2", "once, not 2 times"),
        ("-b = 2\n+b = 3", "once, not 2 times"),
        ("-= 2\n+= 3", "once, not 0 times"),  # whole lines alone
        ("-return c\n+return d\n\n-return c\n+return e", r"\['return c'\] is also changed elsewhere"),
        ("+x = 1", "once"),
        ("", "once"),
        ("-return c\n+return d\nwrongly: named", "'wrongly: named' begins with none of"),
    ],
)
def test_a_change_that_does_not_fit_is_told_in_one_line(changes, told):
    with pytest.raises(ValueError, match=told) as error:
        answers.changed(MODEL, changes, "wrong_x")
    assert "\n" not in str(error.value)


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
    name = "01_roofline.ipynb"
    assert check_command.check_notebook(ROOT / "solutions" / name) == 0
    assert "\n  8 of 10 points (2 of them for hidden checks, which only the grading runs)" in capsys.readouterr().out
    assert check_command.check_notebook(ROOT / "exercises" / name) == 1
    stub = capsys.readouterr().out
    assert set(re.findall(r"^  \S+ +(pass|fail|error|not attempted) ", stub, re.MULTILINE)) == {NOT_ATTEMPTED}


# In `make test` one of them, as a class gets it (test_release), and solutions, which have the same cells and answers.
@pytest.mark.long
def test_nbval_runs_stubs_and_says_how_much_is_compared():
    command = [sys.executable, "-m", "pytest", "--nbval", "exercises", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
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
