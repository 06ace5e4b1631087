"""The model answers pass on every draw: a few here, 500 in the long run."""

import contextlib
import functools
import io
import re
from collections.abc import Callable
from pathlib import Path

import model_draws
import pytest

from helpers.grading.exercise import exercises_in
from helpers.grading.replay import server
from helpers.learning.checks import cases
from helpers.learning.outcome import PASS


@pytest.fixture(autouse=True)
def inputs_of_learners(monkeypatch):
    monkeypatch.setattr(cases, "draw", 0)


@pytest.mark.parametrize("exercise", ["07_register_budget", "18_short_kernels"])
def test_a_model_answer_passes_on_a_few_draws(exercise):
    assert model_draws.failures(exercise, range(301, 303)) == []


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("exercise", [each for each in model_draws.EXERCISES if each >= "10"])
def test_a_model_answer_passes_on_500_draws(exercise):
    assert model_draws.failures(exercise, range(500)) == []


def test_a_run_that_is_cut_short_goes_on_where_it_stopped(tmp_path, capsys):
    out = tmp_path / "draws.jsonl"
    only = ["--only", "01", "--model", "--out", str(out), "--draws"]
    assert model_draws.main([*only, "10"]) == 0
    with out.open("a") as file:
        file.write('{"exercise": "01_roof')
    assert model_draws.main([*only, "20"]) == 0
    assert [line["start"] for line in model_draws.lines_in(out)] == [0, 10]
    assert re.search(r"01_roofline +the model answer +20 +0 ", capsys.readouterr().out)


def questions(exercise: str, draw: int, folder: Path) -> dict[str, list[str]]:
    """What each check that asks for plain values asks the answers, with one draw's inputs."""
    with contextlib.redirect_stdout(io.StringIO()):
        run = server.RunExercise(exercises_in(only=exercise)[exercise].cells, draw, folder)
        answers = {name: run.namespace[name] for name in run.functions}
        found = {}
        for check in run.checks.keys() - model_draws.OF_NO_VALUE - {"values", "other-values"}:
            asked, running = found.setdefault(check, []), []
            run.run_check(check, {name: noted(answer, asked, running) for name, answer in answers.items()}, folder)
    return found


def noted(answer: Callable, asked: list[str], running: list[str]) -> Callable:
    """The answer, which adds its calls to `asked`, but not those that a running answer makes."""

    @functools.wraps(answer)
    def call(*given):
        if not running:
            asked.append(f"{answer.__name__}{given}")
        running.append(answer.__name__)
        try:
            return answer(*given)
        finally:
            running.pop()

    return call


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "exercise",
    [
        "01_roofline",
        "02_count_the_bytes",
        "07_register_budget",
        "18_short_kernels",
        pytest.param("13_decide", marks=pytest.mark.long),
    ],
)
def test_only_questions_that_no_draw_changes_are_asked_on_one_draw(exercise, tmp_path):
    first, second = (questions(exercise, draw, tmp_path) for draw in (301, 302))
    assert all(first.values())
    same = {check for check, asked in first.items() if asked == second[check]}
    assert same == model_draws.SAME_QUESTIONS.get(exercise, set()) - model_draws.OF_NO_VALUE


@pytest.mark.parametrize(
    ("exercise", "seed", "check"),
    [
        ("11_fused_backward", 1003, "other-gradients"),
        ("12_layer_norm_int8", 2294, "other-values"),
        pytest.param("11_fused_backward", 1013, "gradients", marks=pytest.mark.long),
        pytest.param("15_capstone", 1035, "gradients", marks=pytest.mark.long),
    ],
)
def test_a_result_may_be_as_far_off_as_roundings_make_it(exercise, seed, check, tmp_path):
    """On these draws right answers were once refused: one draw of roundings happened to do little, or an element was so
    close to 0 that a rounding decided its sign, and with it its code."""
    with contextlib.redirect_stdout(io.StringIO()):
        run = server.RunExercise(exercises_in(only=exercise)[exercise].cells, seed, tmp_path)
        outcome = run.run_check(check, {}, tmp_path)
    assert outcome.state == PASS, str(outcome)


def test_a_small_probability_may_be_as_far_off_as_its_rounded_exponent_makes_it():
    """An exponential to base 2 rounds its exponent once more, which an ulp of the inputs sometimes does not show."""
    assert model_draws.failures("06_softmax_topk", range(2287, 2288), "right_collected", complete=False) == []


@pytest.mark.parametrize(
    ("exercise", "answer", "draw", "sizes", "check"),
    [
        ("03_fused_add_gelu", "right_two_dimensional_grid", 3009, 3000, "values"),
        ("03_fused_add_gelu", "right_two_dimensional_grid", 3425, 3400, "other-values"),
        ("05_layer_norm", "right_welford", 3304, 3300, "other-values"),
        ("16_help_the_compiler", "the model answer", 3030, 3000, "values"),
        ("16_help_the_compiler", "up first", 3182, 3100, "values"),
    ],
)
def test_an_error_is_measured_by_what_was_rounded(exercise, answer, draw, sizes, check, tmp_path):
    """On these draws right answers were once refused: a product nearly cancelled the bias in each of a row's two
    columns, or all sums were so far below 0 that GELU's values were small and only their errors were not, or PyTorch's
    own roundings of a row's only element happened to cancel."""
    with contextlib.redirect_stdout(io.StringIO()):
        run = server.RunExercise(model_draws.right_answers(exercise)[answer], draw, tmp_path, sizes)
        outcome = run.run_check(check, {}, tmp_path)
    assert outcome.state == PASS, str(outcome)
