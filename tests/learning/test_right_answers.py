"""Right answers to exercises 10 to 16 in other styles pass every check: two of them here, all in the long run."""

import contextlib
import io

import mistakes
import model_draws
import pytest
from right_answers_10_to_16 import RIGHT

from helpers.grading.replay import server
from helpers.learning.checks import cases
from helpers.learning.outcome import PASS
from kernels.interpreter import runtime

ALL = [(exercise, name) for exercise, found in RIGHT.items() for name in found]
SAMPLE = [("14_cuda_softmax", "shuffle down"), ("16_help_the_compiler", "square root")]


@pytest.fixture(autouse=True)
def inputs_of_learners(monkeypatch):
    monkeypatch.setattr(cases, "draw", 0)


def refused(exercise: str, changes: dict[str, str], folder) -> dict[str, str]:
    """What each check says that does not pass, where the changes are made in the model answer."""
    with contextlib.redirect_stdout(io.StringIO()):
        run = server.RunExercise(mistakes.changed(exercise, changes), 0, folder)
        found = {check: run.run_check(check, {}, folder) for check in run.checks}
    return {check: str(outcome) for check, outcome in found.items() if outcome.state != PASS}


@pytest.mark.parametrize(("exercise", "name"), SAMPLE)
def test_a_right_answer_in_another_style_passes(exercise, name, tmp_path):
    assert refused(exercise, RIGHT[exercise][name], tmp_path) == {}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("exercise", "name"), ALL)
def test_every_right_answer_passes(exercise, name, tmp_path):
    assert refused(exercise, RIGHT[exercise][name], tmp_path) == {}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_walk_in_small_blocks_passes_on_a_slow_machine_each_time(monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "MAX_SECONDS", 0.0)
    exercise, answer = "17_flash_decoding", "right_flat_and_packed"  # 70,000 keys, 16 at once
    with contextlib.redirect_stdout(io.StringIO()):
        run = server.RunExercise(model_draws.right_answers(exercise)[answer], 0, tmp_path)
        outcomes = [run.run_check("values", {}, tmp_path) for _ in range(2)]
    assert [str(each) for each in outcomes if each.state != PASS] == []


@pytest.mark.parametrize(("exercise", "name"), ALL)
def test_every_text_to_be_replaced_stands_in_the_model_answer(exercise, name):
    assert mistakes.not_in_the_model(exercise, RIGHT[exercise][name]) == []
