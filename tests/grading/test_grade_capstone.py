"""Attacks on the capstone earn nothing that is not due: those refused for their text here, the rest in the long run."""

import re

import attacks_capstone as attacks
import pytest

from helpers.grading.exercise import exercises_in
from helpers.grading.grade import opened
from helpers.instruments.diagnosis import bubblewrap
from helpers.learning.submission_policy.screening import needing, screened

EXERCISE = exercises_in(only=attacks.NAME)[attacks.NAME]
ANSWERS = {cell["id"]: cell["source"] for cell in EXERCISE.cells if cell["answer"]}


@pytest.mark.parametrize("name", attacks.NOT_RUN)
def test_an_attack_that_is_seen_in_its_text_is_not_run(name):
    attack = attacks.NOT_RUN[name]
    _, answers = opened(attack.content(), f"{attacks.NAME}.ipynb", EXERCISE)
    found = screened(answers, EXERCISE.cells)
    assert re.search(attack.told, "\n".join(map(str, found.refusals)))
    changed = {answer for answer, source in answers.items() if source != ANSWERS[answer]}
    assert changed & found.refused.keys()
    assert not found.refused.keys() & found.readable.keys()
    assert needing(found.refused, EXERCISE.cells)  # it costs a check


@pytest.mark.parametrize("name", attacks.RUN)
def test_an_attack_changes_lines_that_the_model_answer_has(name):
    assert attacks.RUN[name].content()  # which asks for each of them


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.parametrize("name", attacks.RUN)
def test_an_attack_loses_the_checks_that_it_does_not_meet(name):
    attack, result = attacks.RUN[name], attacks.graded(name, 29)
    lost = {check["check"]: check["message"] for check in result["checks"] if check["state"] != "pass"}
    assert lost.keys() == attack.lost, lost
    assert result["earned"] == result["points"] - sum(EXERCISE.checks[check] for check in lost)
    assert any(re.search(attack.told, message) for message in lost.values()) or not lost, lost
