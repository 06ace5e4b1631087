"""check_arrangement: what a launch may do, what it moves, and the least that a layer needs."""

import pytest
import torch

from helpers.instruments import measure
from helpers.learning.checks import arrangements, cases
from helpers.learning.checks.arrangements import (
    a_layer,
    budget_of,
    check_arrangement,
    cost,
    joined_reason,
    layers_asked,
)
from helpers.learning.outcome import FAIL, PASS

PLAIN = a_layer(4, 8, *(False,) * 4)
WHOLE = a_layer(4, 8, *(True,) * 4)
BEST = [["s"], ["up", "inner"], ["down", "y"]]


def told(gives, layer=PLAIN):
    outcome = check_arrangement(lambda operations, results: gives, [layer], name="arrange")
    return outcome.state, str(outcome)


def test_the_best_arrangement_is_within_the_budget():
    assert told(BEST)[0] == PASS
    assert budget_of(PLAIN) == cost(PLAIN, BEST)
    whole = [["s", "normed", "opened", "gated"], ["up"], ["side", "active", "inner"], ["down"], ["settled", "y"]]
    assert budget_of(WHOLE) == cost(WHOLE, whole)
    assert told(whole, WHOLE)[0] == PASS


def test_one_launch_per_operation_costs_what_the_meter_counts():
    """x + residual, a product, its activation, a product and the residual, in PyTorch with fp32."""

    def layer(x, residual, up, down):
        s = x + residual
        return torch.relu(s @ up.t()) @ down.t() + s

    found = measure(layer, *torch.randn(2, 1, 4), torch.randn(8, 4), torch.randn(4, 8))
    assert cost(PLAIN, [[each["name"]] for each in PLAIN["operations"]]) == (found.launches, found.bytes_total)


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (None, "gives None, not a list of lists of names"),
        ([["s"], []], "not a list of lists of names"),
        ([[1]], "not a list of lists of names"),
        ([["s"], ["up", "inner"], ["down"]], "y is in 0 launches, must be in 1"),
        ([["s", "s"], ["up", "inner"], ["down", "y"]], "s is in 2 launches"),
        ([["t"], *BEST], "t is in 1 launches, must be in 0"),
        ([["up", "inner"], ["s"], ["down", "y"]], "up runs before s, which it reads"),
        ([["s"], ["inner", "up"], ["down", "y"]], "inner runs before up"),
        ([["s"], ["up", "inner", "down", "y"]], "up and down are two products"),
        ([["s"], ["up"], ["inner", "down", "y"]], "down, a product, is not first"),
        ([["s"], ["up"], ["inner"], ["down", "y"]], "4 launches, 480 bytes; the budget is 3 launches, 416 bytes"),
    ],
)
def test_what_is_wrong_is_named(gives, message):
    state, text = told(gives)
    assert state == FAIL
    assert message in text


def test_norms_and_lengths():
    known = {each["name"]: each for each in WHOLE["operations"]}
    assert "settled, a norm, needs a whole row" in joined_reason([known["down"], known["settled"]])
    assert "different lengths" in joined_reason([known["s"], known["active"]])
    assert joined_reason([known["s"], known["normed"]]) == ""


def test_layers_differ_by_draw(monkeypatch):
    monkeypatch.setattr(cases, "draw", 0)
    first = layers_asked(4, 6)
    monkeypatch.setattr(cases, "draw", 1)
    assert first != layers_asked(4, 6)
    assert arrangements.layers_asked(4, 6) == layers_asked(4, 6)
