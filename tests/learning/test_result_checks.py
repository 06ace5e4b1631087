"""What the checks say of results that are tuples, integers or 16-bit sums; their arithmetic against PyTorch's."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.learning import (
    check_passes,
    check_values,
    large_mean_cases,
    norm_cases,
    topk_cases,
)
from helpers.learning.checks.cases import Case
from helpers.learning.checks.matmul import half_ulp
from helpers.learning.checks.values import nearly
from helpers.learning.outcome import FAIL, PASS

CASE = [Case("", (torch.randn(4), torch.randn(4)), "the formula")]


def both(a, b):
    return a + b, a - b


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda a, b: a + b, "got Tensor, expected a tuple of 2 tensors"),
        (lambda a, b: (a + b,), "got a tuple of Tensor, expected a tuple of 2 tensors"),
        (lambda a, b: [a + b, a - b], "got list, expected a tuple"),
        (lambda a, b: (a + b, None), "got a tuple of Tensor, NoneType, expected"),
        (lambda a, b: (a + b, (a - b).double()), "result 2 of 2's dtype is torch.float64, expected torch.float32"),
        (lambda a, b: (a + b, b - a), "result 2 of 2: 4 of 4 elements wrong\nfirst wrong index 0"),
    ],
)
def test_each_of_several_results_is_compared(answer, told):
    assert check_values(both, both, CASE, name="values").state == PASS
    said = check_values(answer, both, CASE, name="values")
    assert said.state == FAIL
    assert told in said.message


def parts(a, b):
    return a + b, a[:2]


def test_results_in_another_order_are_not_told_as_wrongly_allocated():
    said = check_values(lambda a, b: parts(a, b)[::-1], parts, CASE, name="values")
    assert said.message.startswith(
        "shape (4,), float32: the results are in another order than expected: (4,) in float32"
    )
    assert said.look_at == "the order of what your function returns"


def three(a, b):
    return a + b, a - b, a * b


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda a, b: (b, a - b, a * b), "result 1 of 3: .*\n.*\nright: result 2, result 3"),
        (lambda a, b: (b, b, a * b), "result 1 of 3: .*\n.*\nalso wrong: result 2; right: result 3"),
        (lambda a, b: (a + b, a, b), "result 2 of 3: .*\n.*\nalso wrong: result 3; right: result 1"),
        (lambda a, b: (a, a, a), "result 1 of 3: .*\n.*\nalso wrong: result 2, result 3"),
    ],
)
def test_every_wrong_result_is_named(answer, told):
    assert re.search(told, check_values(answer, three, CASE, name="values").message)


# On one element, the answer agrees with both; on four, with "a" or with neither.
FORMULAS = {"a": lambda a, b: a, "the smaller": lambda a, b: a.minimum(b)}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda a, b: a.clone(), "these are the values of a, not of the formula asked for"),
        (lambda a, b: torch.where(a > 4, 2 * b, a), "first wrong index 0: got 1, expected 3\n0 of 4 cases pass"),
    ],
)
def test_a_formula_is_named_only_if_it_explains_most_failures(answer, told):
    ones, more = torch.ones(1), torch.tensor([1.0, 5.0, 2.0, 9.0])
    given = [(ones, 2 * ones), *((more + each, more.flip(0)) for each in range(3))]
    cases = [Case("", inputs, "the formula") for inputs in given]
    said = check_values(answer, lambda a, b: a + b, cases, unlike=FORMULAS, name="values")
    assert said.state == FAIL
    assert told in said.message
    assert ("the values of" in said.message) == ("the values of" in told)


NAN, INF = torch.nan, torch.inf


@pytest.mark.parametrize(
    ("got", "usual", "near"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.009, 1.98], [1.0, 2.0], True),  # within 1 %
        ([1.02, 2.0], [1.0, 2.0], False),
        ([-1.0, 2.0], [1.0, 2.0], False),
        ([5e-4, 2.0], [0.0, 2.0], True),  # 0, beside ordinary numbers
        ([2e-3, 2.0], [0.0, 2.0], False),
        ([5e-4, 5e3], [0.0, 5e3], True),  # no more than that beside large ones
        ([2.0, 5e3], [0.0, 5e3], False),
        ([5e-9, 1e-8], [0.0, 1e-8], False),  # and in proportion to small ones
        ([5e-12, 1e-8], [0.0, 1e-8], True),
        ([2e-8, 1e-8], [1e-8, 1e-8], False),
        ([NAN, 1.0], [NAN, 1.0], True),
        ([NAN, 1.0], [0.0, 1.0], False),
        ([0.0, 1.0], [NAN, 1.0], False),
        ([INF, 1.0], [INF, 1.0], True),
        ([-INF, 1.0], [INF, 1.0], False),
        ([3e38, 1.0], [INF, 1.0], False),
        ([NAN, NAN], [NAN, NAN], True),  # no finite number to measure by
        ([NAN, 0.0], [NAN, NAN], False),
        ([], [], True),
    ],
)
def test_nearly_means_all_values_within_a_percent_and_those_near_0_in_proportion(got, usual, near):
    assert nearly(torch.tensor(got), torch.tensor(usual)) is near
    assert nearly(torch.tensor(got).double(), torch.tensor(usual)) is near  # whatever the dtypes


def test_values_that_hardly_differ_are_not_taken_for_exchanged_ones():
    """A rounding error in equal values: transposed, they would be as near."""
    level = torch.full((8, 4), 0.25)
    said = check_values(lambda a: level + 1e-4, lambda a: level, [Case("", (level,), "the sums")], name="values")
    assert str(said).endswith("Look at the sums.")


def test_integers_must_be_equal():
    def order(a, b):
        return a.argsort()

    assert check_values(order, order, CASE, name="values").state == PASS
    assert check_values(lambda a, b: a.argsort(descending=True), order, CASE, name="values").state == FAIL


def test_codes_may_be_one_off_in_few_places():
    codes = torch.arange(-100, 100).to(torch.int8)
    case = [Case("", (torch.randn(4),), "the rounding")]

    def off(places: int, by: int = 1) -> str:
        wrong = codes + by * (torch.arange(200) < places).to(torch.int8)
        return check_values(lambda _: wrong, lambda _: codes, case, name="values").state

    assert [off(0), off(2), off(3), off(200), off(1, by=2)] == [PASS, PASS, FAIL, FAIL, FAIL]


def test_what_inputs_have_lost_is_forgiven_and_no_more():
    def norm(x, weight, bias, eps):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def off(by: float):
        return lambda x, weight, bias, eps: norm(x, weight, bias, eps) + by * weight

    cases = large_mean_cases(2, seed=0)
    # An ulp of 10^4 is 0.001, of a deviation of 2 a two-thousandth.
    assert check_values(off(2e-4), norm, cases, name="mean").state == PASS
    assert check_values(off(1e-2), norm, cases, name="mean").state == FAIL
    assert check_values(off(2e-4), norm, norm_cases(1, 2, seed=0)[:4], name="values").state == FAIL


def test_the_cases_of_a_large_mean_have_names_of_their_own():
    labels = [case.label for case in large_mean_cases(2, seed=0)]
    assert len(set(labels)) == len(labels)


def test_a_result_rounded_twice_is_sent_to_its_roundings():
    """A weight applied to a stored norm has been converted to float32 as well: that isn't what is missing."""

    def norm(x, weight, bias, eps):
        return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], eps=eps)

    def weighted(x, weight, bias, eps):
        return (norm(x, weight, bias, eps) * weight + bias).to(x.dtype)

    def twice(x, weight, bias, eps):
        return (norm(x, weight, bias, eps).to(x.dtype) * weight + bias).to(x.dtype)

    cases = [case for case in norm_cases(1, 2, seed=5, one_rounding=True) if case.label in ("", "float16")]
    outcome = check_values(twice, weighted, cases, name="values")
    assert outcome.state == FAIL
    assert "float16: load, convert to float32" in str(outcome)
    assert "nothing is rounded before" in str(outcome)


@given(st.floats(-60000, 60000, allow_subnormal=False), st.sampled_from([torch.float16, torch.bfloat16]))
def test_half_an_ulp_is_half_the_way_to_the_next_number(value, dtype):
    nearest = torch.tensor(value, dtype=dtype)
    exact = nearest.double()
    above = torch.nextafter(nearest.abs(), torch.tensor(torch.inf, dtype=dtype)).double()
    if exact.abs() >= torch.finfo(dtype).tiny:
        assert half_ulp(exact, dtype) == (above - exact.abs()) / 2
    assert (torch.tensor(value, dtype=torch.float64) - exact).abs() <= half_ulp(torch.tensor(value).double(), dtype)


def test_rows_for_the_k_largest_have_ties_and_gaps():
    for case in topk_cases(seed=0):
        x = case.inputs[0].double()
        apart = x.sort(dim=-1).values.diff(dim=-1)
        assert ((apart == 0) | (apart >= 1 / 16) | apart.isnan()).all(), case.label


def test_what_is_read_and_written_more_than_once_is_told():
    a, b = CASE[0].inputs

    def said(answer):
        return check_passes(answer, (a, b), reads=(1, 1), name="traffic")

    assert said(lambda a, b: a + b).state == PASS
    assert said(both).message.startswith("2 launches (add, sub), 1 needed")
    assert said(lambda a, b: a + 1).message.startswith("b is read to 0%")
    assert said(lambda a, b: a.add_(b)).message.startswith("result is not written whole")
