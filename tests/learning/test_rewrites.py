"""Exercise 16's check: every wrong pass is rejected by its reason whatever the values are, and right ones pass."""

import re

import answers
import pytest
import torch

from helpers.learning.checks import cases
from helpers.learning.checks.rewrites import (
    check_rewrites,
    gated,
    gated_norm,
    keeps_norm,
    launches_left,
    plain_graph,
    rewrite_cases,
    rewritten,
    traced,
)
from helpers.learning.outcome import FAIL, PASS

EXERCISE = "16_help_the_compiler"
ALL = [answer for answer in answers.all_answers() if answer.exercise == EXERCISE]
OF_THE_PASS = [answer for answer in ALL if answer.rejected_by in ("finds", "leaves")]
SEEDS = [pytest.param(seed, marks=[] if seed == 0 else [pytest.mark.long]) for seed in range(20)]


def pass_of(answer):
    namespace = {}
    exec(answer.cells["pass"], namespace)
    return namespace["find_places"]


def asked(places):
    return rewrite_cases(16, places=places)


@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_passes_are_rejected_by_name_and_right_ones_pass_on_any_values(seed, monkeypatch):
    monkeypatch.setattr(cases, "draw", seed)
    few = slice(None, None, 1 if seed else 3)  # in `make test`, where the seed is 0, every third
    for answer in OF_THE_PASS[few]:
        outcome = check_rewrites(pass_of(answer), asked(answer.rejected_by == "finds"), name=answer.rejected_by)
        assert outcome.state == FAIL, answer
        assert re.search(answer.told, str(outcome)), outcome
    for answer in [each for each in ALL if not each.wrong and "pass" in each.cells][few]:
        for places in (True, False):
            assert check_rewrites(pass_of(answer), asked(places), name="finds").state == PASS, answer


def place_of(result="mul_2"):
    return {"x": "x_1", "up": "up_1", "weight": "weight_1", "eps": 1e-6, "result": result}


def test_a_rewritten_graph_computes_the_same_and_holds_the_kernel_alone():
    x, weight, up = torch.randn(3, 17), torch.randn(17), torch.randn(3, 17)
    left = rewritten(traced(gated, x, weight, up), [place_of()])
    assert launches_left(left) == ["gated_norm"]
    torch.testing.assert_close(left(x, weight, up), gated(x, weight, up))
    exact = gated(x.double(), weight.double(), up.double())
    torch.testing.assert_close(gated_norm(x, up, weight, 1e-6).double(), exact, rtol=1e-5, atol=1e-5)


def test_what_is_read_elsewhere_stays_in_the_graph():
    x, weight, up = torch.randn(3, 17), torch.randn(17), torch.randn(3, 17)
    assert "mul_1" in launches_left(rewritten(traced(keeps_norm, x, weight, up), [place_of()]))


def test_a_graph_as_plain_values_names_readers_and_symbols():
    inputs = torch.randn(3, 17), torch.randn(17), torch.randn(3, 17)
    graph = {node["name"]: node for node in plain_graph(traced(gated, *inputs, dynamic=True))}
    assert graph["x_1"]["users"] == ["pow_1", "mul"]
    assert graph["pow_1"]["args"] == ["x_1", 2]
    assert all(isinstance(size, str) for size in graph["x_1"]["shape"])


@pytest.mark.parametrize(
    ("gives", "told"),
    [
        ([place_of() | {"x": "nowhere"}], "x is 'nowhere', not a node of the graph"),
        ([place_of() | {"eps": "add"}], "eps is 'add', not a number"),
        ([place_of("silu")], "the graph computes something else"),
        ([place_of() | {"up": "mul_2"}], "comes after the result"),
        ([{"x": "x_1"}], "other keys than"),
        ([place_of(), place_of()], "two of the places have one result"),
        ("mul_2", "expected a list of dictionaries"),
    ],
)
def test_what_is_no_place_is_told(gives, told):
    outcome = check_rewrites(lambda graph: gives, rewrite_cases(0, places=True)[:1], name="finds")
    assert outcome.state == FAIL, outcome
    assert told in str(outcome)
