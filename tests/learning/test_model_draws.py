"""The model answers of exercises 10 to 18 pass on every draw: a few here, 500 in the long run."""

import model_draws
import pytest

from helpers.learning.checks import cases


@pytest.fixture(autouse=True)
def inputs_of_learners(monkeypatch):
    monkeypatch.setattr(cases, "draw", 0)


@pytest.mark.parametrize("exercise", ["14_cuda_softmax", "16_help_the_compiler"])
def test_a_model_answer_passes_on_a_few_draws(exercise):
    assert model_draws.failures(exercise, range(301, 303)) == []


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("exercise", model_draws.EXERCISES)
def test_a_model_answer_passes_on_500_draws(exercise):
    assert model_draws.failures(exercise, range(500)) == []
