"""Mistakes by kind are rejected and told as what they are: a sample here, all on twenty draws in the long run."""

import re

import mistakes
import pytest

from helpers.learning.checks import cases


@pytest.fixture(autouse=True)
def inputs_of_learners(monkeypatch):
    monkeypatch.setattr(cases, "draw", 0)


EXERCISES = sorted({mistake.exercise for mistake in mistakes.MISTAKES})
# The first that is made of a kind: in an early exercise, which is run in no time.
SAMPLE = [next(mistake for mistake in mistakes.MISTAKES if mistake.kind == kind) for kind in mistakes.TOLD]


@pytest.mark.parametrize("mistake", SAMPLE, ids=str)
def test_a_mistake_of_each_kind_is_told(mistake):
    assert not mistakes.complaints(mistake, range(1))


# Draws on which a single element, or rows with ties, once said nothing of the mistake: change -> seed.
LUCKY = {"s * tl.sigmoid(u)": 5, "0.44715": 5, "place * tl.num_programs(0) + row, tl.sum": 0}


@pytest.mark.parametrize("change", LUCKY)
def test_no_lucky_value_hides_a_mistake(change):
    [mistake] = [each for each in mistakes.MISTAKES if change in each.changes.values()]
    assert not mistakes.complaints(mistake, range(LUCKY[change], LUCKY[change] + 1))


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_mistake_is_told_on_twenty_draws(exercise, capsys):
    assert mistakes.main([exercise.split("_")[0]]) == 0, capsys.readouterr().out


def test_every_kind_is_made_in_some_exercise_and_every_change_stands_in_its_answer(tmp_path):
    assert {mistake.kind for mistake in mistakes.MISTAKES} == mistakes.TOLD.keys()
    for mistake in mistakes.MISTAKES:
        assert mistakes.missing(mistake) == set(), mistake
        re.compile(mistake.told)
