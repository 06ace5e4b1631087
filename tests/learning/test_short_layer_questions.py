"""Exercise 18's numbers: each mistake in them differs from the right ones on the questions asked, and is named."""

import contextlib
import io

import pytest

from helpers.grading.exercise import exercises_in
from helpers.grading.replay import server
from helpers.learning import check_counts, check_numbers
from helpers.learning.checks import short_layer_questions as asked
from helpers.learning.outcome import FAIL, PASS


@pytest.fixture(scope="module")
def exercise(tmp_path_factory):
    with contextlib.redirect_stdout(io.StringIO()):
        cells = exercises_in(only="18_short_kernels")["18_short_kernels"].cells
        return server.RunExercise(cells, 0, tmp_path_factory.mktemp("short")).namespace


CHECKED = {
    "fused": (asked.fused_layer, asked.FUSED_MISTAKES, "sizes", {"parts": ("launches", "bytes"), "within": 0.0}),
    "time": (asked.microseconds, asked.TIME_MISTAKES, "times", {"within": 1e-6}),
    "budget": (asked.most_launches, asked.BUDGET_MISTAKES, "budgets", {"within": 0.0}),
}
MISTAKES = [(check, said) for check, (_, mistakes, *_) in CHECKED.items() for said in mistakes]


@pytest.mark.parametrize(("check", "said"), MISTAKES)
def test_an_answer_with_a_mistake_is_told_which(check, said, exercise):
    right, mistakes, questions, how = CHECKED[check]
    outcome = check_numbers(mistakes[said], right, exercise[questions], unlike=mistakes, **how, name=check)
    assert outcome.state == FAIL
    assert f"with {said}" in str(outcome)


@pytest.mark.parametrize("check", CHECKED)
def test_the_numbers_are_the_model_answers(check, exercise):
    right, mistakes, questions, how = CHECKED[check]
    answer = {"fused": "count_fused", "time": "microseconds", "budget": "most_launches"}[check]
    outcome = check_numbers(exercise[answer], right, exercise[questions], unlike=mistakes, **how, name=check)
    assert outcome.state == PASS, outcome


@pytest.mark.parametrize("said", asked.COUNT_MISTAKES)
def test_a_mistaken_count_is_told_beside_the_meters(said, exercise):
    outcome = check_counts(
        asked.COUNT_MISTAKES[said],
        exercise["short_layer"],
        exercise["layer_inputs"],
        exercise["sizes"],
        parts=("launches", "bytes"),
        unlike=asked.COUNT_MISTAKES,
        name="counts",
    )
    assert outcome.state == FAIL
    assert f"with {said}" in str(outcome)
    assert "The meter saw" in str(outcome)


def test_a_mistake_that_an_earlier_question_refutes_is_not_named():
    """An answer that is right at first and doubled later doesn't always double."""

    def doubled(number):
        return 2 * number

    def answer(number):
        return number if number < 3 else 2 * number

    outcome = check_numbers(
        answer, lambda number: number, [(1,), (2,), (3,)], unlike={"every number doubled": doubled}, name="n"
    )
    assert outcome.state == FAIL
    assert "every number doubled" not in str(outcome)
    outcome = check_numbers(
        doubled, lambda number: number, [(1,), (2,)], unlike={"every number doubled": doubled}, name="n"
    )
    assert "you get that with every number doubled" in str(outcome)
