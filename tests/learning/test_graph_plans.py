"""check_graph_plan: what a graph keeps between tokens, what has to be copied, and what that costs."""

import pytest
import torch

from helpers.learning.checks import cases
from helpers.learning.checks.graph_plans import (
    TOKENS,
    Planned,
    a_step,
    best_plan,
    check_graph_plan,
    in_a_graph,
    in_eager,
    steps_asked,
    tokens_of,
)
from helpers.learning.outcome import ERROR, FAIL, PASS, Outcome, latest

PLAIN = a_step(8, 16, *(False,) * 4)
WHOLE = a_step(8, 16, *(True,) * 4)
BEST = best_plan(WHOLE)


def told(plan, step=WHOLE):
    outcome = check_graph_plan(lambda launches, tensors: plan, [step], name="graph")
    return outcome.state, str(outcome)


def test_the_best_plan_passes_and_is_what_one_would_write_down():
    assert best_plan(PLAIN)["copied"] == ["x", "residual", "gate"]
    assert BEST["copied"] == ["start", "gate", "temperature", "next"]
    assert [len(group) for group in BEST["graphs"]] == [7, 2]
    assert told(BEST)[0] == told(best_plan(PLAIN), PLAIN)[0] == PASS


@pytest.mark.parametrize("left_out", BEST["copied"])
def test_what_is_not_copied_stays_the_first_tokens(left_out):
    plan = BEST | {"copied": [name for name in BEST["copied"] if name != left_out]}
    state, text = told(plan)
    assert state == FAIL
    assert f"the graph still has the {left_out} of token 1" in text
    planned, given = Planned(WHOLE, plan), tokens_of(WHOLE, TOKENS)
    for number, each in enumerate(given):
        planned.receive(each)
        alike = all(torch.allclose(planned.run()[name], value) for name, value in in_eager(WHOLE, each).items())
        assert alike == (number == 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"graphs": [[*BEST["graphs"][0], "picked", *BEST["graphs"][1]]]}, "the CPU reads a value before it launches"),
        ({"graphs": [[*BEST["graphs"][0], *BEST["graphs"][1]]]}, "doesn't run one after the other"),
        ({"graphs": BEST["graphs"][:1]}, "1 graphs and 4 launches from Python; 2 and 2 are enough"),
        ({"graphs": [["gated"], BEST["graphs"][0][1:], BEST["graphs"][1]]}, "3 graphs and 2 launches from Python"),
        ({"copied": [*BEST["copied"], "up_weight"]}, "copies up_weight, but its address stays the same: 16 launches"),
        ({"copied": [*BEST["copied"], "y"]}, "copies y, but its address stays the same"),
        ({"copied": [*BEST["copied"], "bias"]}, "copies bias, but no graph reads it"),
        ({"copied": [*BEST["copied"], "other"]}, "other, which is copied, isn't a tensor of this step"),
        ({"launches": 11}, "predicts 11 launches"),
        ({"bytes": BEST["bytes"] - 4}, "the meter counts"),
        ({"bytes": float(BEST["bytes"])}, "not a whole number"),
        ({"graphs": [*BEST["graphs"], ["gated"]]}, "gated is in graphs 2 times"),
        ({"graphs": [*BEST["graphs"], ["nobody"]]}, "nobody isn't a launch of this step"),
        ({"graphs": [["gated"], []]}, "graphs must be a list of lists of names"),
        ({"copied": None}, "copied a list of names"),
        ({"more": 1}, "not a dictionary with graphs, copied, launches, bytes"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    state, text = told(BEST | change)
    assert state == FAIL
    assert message in text


def test_an_answer_that_raises_is_an_error():
    assert check_graph_plan(lambda launches, tensors: launches[99], [PLAIN], name="graph").state == ERROR


def test_a_graph_writes_where_it_wrote_before_and_reads_what_is_fixed_as_it_is_now():
    """As a GPU's: the second token's results are at the addresses of the first's."""
    step = a_step(8, 16, False, False, False, True)
    planned, (one, two) = Planned(step, best_plan(step)), tokens_of(step, 2)
    planned.receive(one)
    planned.run()
    places = dict(planned.graphs["gated"].made)
    planned.receive(two)
    assert torch.allclose(planned.run()["after"], in_eager(step, two)["after"])
    assert all(planned.graphs["gated"].made[name] is place for name, place in places.items())


def test_steps_differ_by_draw(monkeypatch):
    def names(seed):
        monkeypatch.setattr(cases, "draw", seed)
        return [[each["reads"] for each in step["launches"]] for step in steps_asked(4, 4)]

    assert names(0) == names(0)
    assert names(0) != names(1)


def test_the_cell_that_captures_says_so_where_there_is_no_gpu(monkeypatch):
    monkeypatch.delitem(latest, "values", raising=False)
    assert "have passed, run this cell again" in in_a_graph(None, None)
    for name in ("values", "graph"):
        monkeypatch.setitem(latest, name, Outcome(name, PASS, ""))

    def gated(x, residual, gate, weight, eps):
        s = x + residual
        return s * (s.square().mean() + eps).rsqrt() * weight * gate * gate.sigmoid(), s

    told = in_a_graph(lambda launches, tensors: best_plan({"launches": launches, "tensors": tensors}), gated)
    captured = "captured by torch.cuda.CUDAGraph" if torch.cuda.is_available() else "No GPU here: nothing was captured"
    assert captured in told

    def without_copies(launches, tensors):
        return best_plan({"launches": launches, "tensors": tensors}) | {"copied": []}

    def out_of_order(launches, tensors):
        plan = best_plan({"launches": launches, "tensors": tensors})
        return plan | {"graphs": [[name for group in plan["graphs"] for name in group]]}

    # An answer that has changed since its check passed is told so in a line.
    assert "in token 2, y is not what eager gives" in in_a_graph(without_copies, gated)
    assert "doesn't run one after the other" in in_a_graph(out_of_order, gated)
