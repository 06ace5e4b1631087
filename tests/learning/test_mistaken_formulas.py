"""Formulas with a mistake: each differs from its exercise's, and an answer that computes it is told so by name."""

import contextlib
import io

import pytest
import torch

from helpers.grading.exercise import exercises_in
from helpers.grading.replay import server
from helpers.learning import check_gradcheck, dropout_cases, flash_cases, linear_cases, norm_cases, split_cases
from helpers.learning.checks import mistaken_formulas, values
from helpers.learning.checks.gradients import gradient_cases
from helpers.learning.outcome import ERROR, PASS


def linear(x, weight, bias, activation):
    return mistaken_formulas.ACTIVATIONS[activation](torch.nn.functional.linear(x, weight, bias))


def flash(q, k, v, causal):
    return mistaken_formulas._attention(q, k, v, causal)


def backward(grad_y, x, weight, bias, eps):
    return mistaken_formulas._NormBackward(grad_y, x, weight, bias, eps).gradients()


def gated(x, residual, gate, weight, eps):
    s = x + residual
    return torch.nn.functional.rms_norm(s, weight.shape, weight, eps) * torch.nn.functional.silu(gate), s


@pytest.mark.parametrize(
    ("reference", "formulas", "cases"),
    [
        (linear, mistaken_formulas.LINEAR_MISTAKES, linear_cases(0)),
        (flash, mistaken_formulas.FLASH_MISTAKES, flash_cases(0)),
        (backward, mistaken_formulas.BACKWARD_MISTAKES, gradient_cases(0)),
        (mistaken_formulas._split_decode, mistaken_formulas.SPLIT_MISTAKES, split_cases(0)),
        (gated, mistaken_formulas.GATED_NORM_MISTAKES, norm_cases(3, 1, seed=0)),
        (mistaken_formulas._silu_times, mistaken_formulas.SILU_NORM_MISTAKES, norm_cases(2, 1, seed=0)),
    ],
    ids=["linear", "flash", "backward", "splits", "gated norm", "norm and silu"],
)
def test_each_formula_differs_from_its_exercises(reference, formulas, cases):
    assert all(values.would_pass(reference, reference, case) for case in cases)
    for said, formula in formulas.items():
        assert not all(values.would_pass(formula, reference, case) for case in cases), said


def test_a_formula_that_other_cases_refute_is_not_named():
    """Two answers may agree where all is 0: what fails on the cases before is not what an answer computes."""
    cases = [case for case in flash_cases(0) if case.label in ("", "scores that grow")]
    [said] = [each for each in mistaken_formulas.FLASH_MISTAKES if each.startswith("acc never multiplied by f, in")][:1]

    def zero_where_scores_grow(q, k, v, causal):
        return flash(q, k, v, causal) * (0 if k[0, 0, -1].abs().amax() > 4 else 1)

    unlike = {"zeros": lambda q, k, v, causal: torch.zeros_like(q)}
    outcome = values.check_values(zero_where_scores_grow, flash, cases, unlike=unlike, name="values")
    assert outcome.state != PASS
    assert "the values of zeros" not in str(outcome)
    grown = mistaken_formulas.FLASH_MISTAKES[said]
    outcome = values.check_values(grown, flash, cases, unlike=mistaken_formulas.FLASH_MISTAKES, name="values")
    assert f"the values of {said}" in str(outcome)


def test_a_missing_scale_of_dropout_is_named():
    """On a kept element it looks like no dropout at all."""
    formulas, place = mistaken_formulas.DROPOUT_MISTAKES, "the formula with kept elements not divided by 1 - p"
    cases = dropout_cases(
        4, lambda rows, cols, draw: [draw(rows, cols), draw(cols), draw(rows, cols)], ((1, 1),), (0.3,)
    )

    def dropped(x, bias, residual, p, seed):
        return residual + mistaken_formulas._dropout(x + bias, p, seed)

    outcome = values.check_values(formulas[place], dropped, cases, unlike=formulas, name="values")
    assert place in str(outcome)


def test_a_formula_is_not_named_by_nan_alone():
    """Many mistakes return nothing else."""
    unlike = {"NaN": lambda q, k, v, causal: torch.full_like(q, torch.nan)}
    outcome = values.check_values(unlike["NaN"], flash, flash_cases(0)[:1], unlike=unlike, name="values")
    assert outcome.state != PASS
    assert "the values of" not in str(outcome)


def normed(seed: int, eps: float) -> tuple:
    torch.manual_seed(seed)
    shapes = ((3, 5), (3, 5), (5,))
    return *(torch.randn(shape, dtype=torch.float64) for shape in shapes), eps


@pytest.fixture(scope="module")
def capstone(tmp_path_factory):
    with contextlib.redirect_stdout(io.StringIO()):
        cells = exercises_in(only="15_capstone")["15_capstone"].cells
        return server.RunExercise(cells, 0, tmp_path_factory.mktemp("capstone")).namespace


# Draws on which eps = 0.001, which float32 rounds on its way into the kernel, once failed the model answer.
@pytest.mark.parametrize("seed", [20, 70, *(pytest.param(n, marks=pytest.mark.long) for n in range(100, 600))])
def test_gradcheck_passes_the_model_answer_on_every_draw(seed, capstone):
    outcome = check_gradcheck(capstone["backward"], capstone["gated_norm"], normed(seed, 2**-10), name="gradcheck")
    assert outcome.state == PASS, outcome


def test_gradcheck_wants_a_number_that_float32_holds(capstone):
    outcome = check_gradcheck(capstone["backward"], capstone["gated_norm"], normed(0, 1e-3), name="gradcheck")
    assert outcome.state == ERROR
    assert "eps = 0.001 is rounded to float32 on its way into a kernel" in str(outcome)
