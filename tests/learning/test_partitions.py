"""Exercise 13's graphs, rules and costs: against all partitions there are, and against the analyser on real PyTorch."""

import graphlib
import json
import math
import re
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.instruments.fusion import analyser
from helpers.instruments.fusion.small_graph import RULES, illegal_reason, in_order, kernel_cost
from helpers.learning import transformer_layer
from helpers.learning.checks import cases, numbers, partitions
from helpers.learning.checks.partition_search import best_partition, joined, time_of
from helpers.learning.checks.small_graphs import APART, CYCLE, GREEDY, IN_PLACE, LATE, PAIR, at_the_limit, drawn_graphs
from helpers.learning.outcome import FAIL, PASS

FEATURES = (*RULES, GREEDY, APART, PAIR, CYCLE, LATE, IN_PLACE)


def operation(name, kind, reads, writes, elsewhere=(), rows=4096, columns=8192, flops=0):
    size = {"rows": rows, "columns": columns}
    return {"name": name, "kind": kind, **size, "reads": reads, "elsewhere": list(elsewhere), "writes": writes} | {
        "flops": flops
    }


def graph_of(*operations, results, itemsize=2, **others):
    tensors = {
        tensor: itemsize * each["rows"] * each["columns"]
        for each in operations
        for tensor in (*each["reads"], *each["writes"])
    }
    return {"tensors": tensors | others, "operations": list(operations), "results": results}


def every_partition(names):
    """All set partitions."""
    if not names:
        yield []
        return
    for rest in every_partition(names[1:]):
        yield [[names[0]], *rest]
        for number, group in enumerate(rest):
            yield [*rest[:number], [names[0], *group], *rest[number + 1 :]]


def can_run(graph, groups):
    """Whether a partition has no cycle, by Python's own graphlib."""
    of = {name: number for number, group in enumerate(groups) for name in group}
    sorter = graphlib.TopologicalSorter({number: set() for number in range(len(groups))})
    for place, later in enumerate(graph["operations"]):
        for earlier in graph["operations"][:place]:
            after = {*earlier["writes"]} & {*later["reads"], *later["writes"]} or {*earlier["reads"]} & {
                *later["writes"]
            }
            if after and of[earlier["name"]] != of[later["name"]]:
                sorter.add(of[later["name"]], of[earlier["name"]])
    try:
        return bool(list(sorter.static_order()))
    except graphlib.CycleError:
        return False


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)])
def test_the_best_partition_is_the_best_of_all(feature, seed):
    (graph,) = drawn_graphs(seed, feature)
    names = [each["name"] for each in graph["operations"]]
    legal = [
        time_of(graph, groups)
        for groups in every_partition(names)
        if not any(illegal_reason(graph, group) for group in groups) and can_run(graph, groups)
    ]
    assert math.isclose(time_of(graph, best_partition(graph)), min(legal))


@given(st.integers(0, 10**6), st.sampled_from(FEATURES), st.randoms())
def test_partitions_that_can_run_are_those_without_a_cycle(seed, feature, draw):
    (graph,) = drawn_graphs(seed % 7, feature)
    groups = [[] for _ in range(3)]
    for each in graph["operations"]:
        draw.choice(groups).append(each["name"])
    groups = [group for group in groups if group]
    assert (len(in_order(graph, groups)) == len(groups)) == can_run(graph, groups)


def test_a_drawn_graph_is_what_was_asked_for_and_of_the_draw(monkeypatch):
    for feature in FEATURES:
        (graph,) = drawn_graphs(5, feature)
        assert json.loads(json.dumps(graph)) == graph
        best = time_of(graph, best_partition(graph))
        if feature == GREEDY:
            assert time_of(graph, joined(graph)) > best
        if feature == APART:
            assert time_of(graph, joined(graph, whatever=True)) > best
    first = drawn_graphs(5, *FEATURES)
    monkeypatch.setattr(cases, "draw", 12345)
    assert all(one != other for one, other in zip(first, drawn_graphs(5, *FEATURES), strict=True))


def test_the_limit_of_registers_is_met_and_passed_by_one():
    found = [kernel_cost(graph, [each["name"] for each in graph["operations"]]) for graph in at_the_limit()]
    assert [cost["registers"] for cost in found] == [255, 256]


# The same by the analyser, of tensors that no L2 holds: what it moves, how long it takes.

X, Y = (torch.empty(4096, 8192, dtype=torch.bfloat16, device="meta") for _ in range(2))
SQUARE = torch.empty(8192, 8192, dtype=torch.bfloat16, device="meta")


def chain(x, y):
    return torch.softmax(torch.relu(x + y), dim=1)


def siblings(x, y):
    return torch.relu(x), torch.sigmoid(x) * y


def product(x, y):
    return torch.relu(x @ y)


PLAIN = {
    chain: graph_of(
        operation("add", "elementwise", ["x", "y"], ["s"]),
        operation("relu", "elementwise", ["s"], ["t"]),
        operation("softmax", "rows", ["t"], ["z"]),
        results=["z"],
    ),
    siblings: graph_of(
        operation("relu", "elementwise", ["x"], ["a"]),
        operation("sigmoid", "elementwise", ["x"], ["b"]),
        operation("mul", "elementwise", ["b", "y"], ["c"]),
        results=["a", "c"],
    ),
    product: graph_of(
        operation("mm", "matmul", ["x", "y"], ["s"], ["x", "y"], flops=2 * 4096 * 8192 * 8192),
        operation("relu", "elementwise", ["s"], ["z"]),
        results=["z"],
        y=2 * 8192 * 8192,
    ),
}


@pytest.mark.parametrize("function", PLAIN, ids=lambda function: function.__name__)
def test_a_kernel_costs_what_the_analyser_says(function):
    graph = PLAIN[function]
    costs = analyser.costs_of(function, X, SQUARE if function is product else Y)
    names = [each["name"] for each in graph["operations"]]
    assert len(costs.nodes) == len(names)
    for mask in range(3, 1 << len(names)):
        group = [name for place, name in enumerate(names) if mask >> place & 1]
        stored = costs.legality.stored(mask, costs.all)
        if len(group) == 1 or not costs.legality.is_legal(mask, stored):
            continue
        assert not illegal_reason(graph, group)
        theirs, ours = costs.of(mask), kernel_cost(graph, group)
        assert ours["bytes"] == theirs.work.bytes
        assert ours["live"] == theirs.live
        assert ours["registers"] == theirs.registers
        if theirs.bound == "memory":
            assert math.isclose(ours["time"], theirs.time, rel_tol=0.02)  # the analyser knows what L2 still holds
        if theirs.bound == "tensor cores":  # the analyser counts whole waves of tiles: up to a wave in ten more
            assert ours["time"] <= theirs.time * 1.001
            assert theirs.time <= 1.1 * ours["time"]


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ([("a", "elementwise", ["x"], ["s"]), ("b", "elementwise", ["s"], ["t"])], ""),
        ([("a", "elementwise", ["x"], ["s"]), ("b", "opaque", ["s"], ["t"])], "b is opaque, a kernel of its own"),
        ([("a", "elementwise", ["x"], ["s"]), ("b", "elementwise", ["s"], ["x"])], ""),
        ([("a", "elementwise", ["x"], ["s"]), ("b", "elementwise", ["s"], ["t"], ["s"])], "a writes s, which b reads"),
        ([("a", "elementwise", ["x"], ["s"], ["x"]), ("b", "elementwise", ["x"], ["x"])], "b overwrites x, which a"),
        ([("a", "matmul", ["x", "w"], ["s"], ["x", "w"]), ("b", "elementwise", ["s"], ["x"])], "b overwrites x"),
        (
            [("a", "matmul", ["x", "w"], ["s"], ["x", "w"]), ("b", "rows", ["s"], ["t"])],
            "a tile of a holds no whole row",
        ),
        ([("a", "elementwise", ["x"], ["s"]), ("b", "elementwise", ["y"], ["t"])], "b shares no tensor"),
        ([("a", "elementwise", ["x"], ["s"]), ("b", "elementwise", ["x"], ["t"])], ""),
    ],
)
def test_why_two_operations_are_no_kernel(operations, why):
    graph = graph_of(*(operation(*each) for each in operations), results=["t"])
    found = illegal_reason(graph, ["a", "b"])
    assert found.startswith(why) if why else not found


# What is told


SMALL = PLAIN[chain]


@pytest.mark.parametrize(
    ("gives", "told"),
    [
        ([["add", "relu", "softmax"]], ""),
        ((("softmax", "add", "relu"),), ""),
        ([{"add", "relu", "softmax"}], ""),
        ({frozenset({"add", "relu", "softmax"})}, ""),
        (numbers.listed({frozenset({"add", "relu", "softmax"})}), ""),  # as a submission's arrives
        ({("add", "relu"), ("softmax",)}, "us is possible"),
        ([["add", "relu"], ["softmax"]], "us is possible"),
        ([["add", "relu"]], "leaves out softmax"),
        ([["add", "relu"], ["relu", "softmax"]], "has relu in 2 kernels"),
        ([["add", "add"], ["relu", "softmax"]], "has add in 2 kernels"),
        ([["add", "softmax"], ["relu"]], "softmax shares no tensor with the others"),
        ([["add", "relu", "softmax"], []], "a kernel without operations"),
        ([["add", "relu", "norm"]], "has 'norm', no operation of the graph"),
        (["add", "relu", "softmax"], "return a list of lists of names"),
        ([[1]], "return a list of lists of names"),
        (None, "return a list of lists of names"),
        ("add", "return a list of lists of names"),
    ],
)
def test_a_partition_is_the_best_or_it_is_told_why_not(gives, told):
    outcome = partitions.check_partitions(lambda graph: gives, [SMALL], name="partitions")
    assert outcome.state == (FAIL if told else PASS), outcome
    assert told in str(outcome)


def test_what_has_to_run_between_is_told():
    graph = graph_of(
        operation("a", "elementwise", ["x"], ["s"]),
        operation("sort", "opaque", ["s"], ["t"]),
        operation("b", "elementwise", ["s", "t"], ["u"]),
        results=["u"],
    )
    assert illegal_reason(graph, ["a", "b"]) == "sort has to run between them"
    said = str(partitions.check_legal(lambda graph, group: True, [(graph, ["a", "b"])], name="legal"))
    assert re.search(r"sort: opaque, \d+ x \d+, s -> t \(outside\)", said), said
    assert said.count("(outside)") == 1
    assert "x*" not in said


def test_the_kernel_that_is_missing_is_one_of_several_operations():
    said = str(partitions.check_partitions(lambda graph: [["add", "relu"], ["softmax"]], [SMALL], name="partitions"))
    assert "is possible with the kernel ['add', 'relu', 'softmax']" in said
    # Of a best partition with a single operation first, the kernel of several that an answer lacks is named.
    graph = graph_of(
        operation("sort", "opaque", ["w"], ["t"]),
        operation("a", "elementwise", ["x"], ["s"]),
        operation("b", "elementwise", ["s", "y"], ["u"]),
        results=["t", "u"],
    )
    apart = [["sort"], ["a"], ["b"]]
    said = str(partitions.check_partitions(lambda graph: apart, [graph], name="partitions"))
    assert "is possible with the kernel ['a', 'b']" in said


def test_groups_that_wait_for_each_other_are_told():
    graph = graph_of(
        operation("a", "elementwise", ["x"], ["s"]),
        operation("b", "elementwise", ["s", "y"], ["t"], ["s"]),
        operation("c", "elementwise", ["y"], ["u"]),
        operation("d", "elementwise", ["u", "x"], ["v"], ["u"]),
        results=["t", "v"],
    )
    outcome = partitions.check_partitions(lambda graph: [["a", "d"], ["b", "c"]], [graph], name="partitions")
    assert "kernels wait for each other: [['a', 'd'], ['b', 'c']]" in str(outcome)


def test_an_answer_may_use_up_what_it_is_given():
    def answer(graph):
        graph["operations"].clear()
        return [["add", "relu", "softmax"]]

    assert partitions.check_partitions(answer, [SMALL, SMALL], name="partitions").state == PASS


def test_an_answer_without_an_end_is_stopped(monkeypatch):
    monkeypatch.setattr(partitions, "LIMIT", 0.2)

    def answer(graph):
        while True:
            pass

    began = time.process_time()
    outcome = partitions.check_partitions(answer, [SMALL], name="partitions")
    assert time.process_time() - began < 5
    assert "answer took over 0.2 s" in str(outcome)


@pytest.mark.parametrize("gives", [1, None, "True"])
def test_yes_or_no_is_expected(gives):
    for outcome in (
        partitions.check_legal(lambda graph, group: gives, [(SMALL, ["add"])], name="legal"),
        partitions.check_edges(lambda graph, one, two: gives, [(SMALL, "add", "relu")], name="edges"),
    ):
        assert "return True or False" in str(outcome)


@pytest.mark.parametrize("group", ["add", [], ["norm"]])
def test_a_group_is_names_of_the_graphs_operations(group):
    with pytest.raises(ValueError, match="pass a list of operation names, not"):
        kernel_cost(SMALL, group)


def test_the_layer_is_partitioned_as_transformers_are():
    found = best_partition(transformer_layer(tokens=4096, width=4096))
    assert ["project", "dropout_1", "residual_1"] in found
    assert ["attention"] in found
