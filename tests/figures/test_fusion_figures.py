"""Lesson 13's explorers against the analyser and the record."""

import itertools
import re

import pytest
import torch
from torch.nn import functional

from benchmarks.fusion_proof import compare, homes_of_all, plan_of, record
from helpers.figures.fusion.fusion_decision import (
    KINDS,
    NO,
    OPERATIONS,
    ROWS,
    SHARES,
    YES,
    FusionDecisionExplorer,
    decide,
)
from helpers.figures.fusion.fusion_groups import FusionGroupsExplorer, TwoPartitions, rows_of
from helpers.figures.fusion.score_explorer import STEPS, FusionScoreExplorer
from helpers.figures.fusion.simulator import fusion_simulator
from helpers.figures.launches.launch_trace import Trace, TraceExplorer, short
from helpers.instruments import DEVICES
from helpers.instruments.fusion import analyse
from helpers.instruments.fusion.analyser import costs_of
from helpers.instruments.fusion.legality import NotLegalError
from helpers.instruments.fusion.plan import WEIGHTS


def empty(*shape):
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def gated(x, gamma, beta, gate, up, down):
    y = functional.layer_norm(x, x.shape[-1:], gamma, beta)
    hidden = functional.silu(functional.linear(y, gate)) * functional.linear(y, up)
    return x + functional.linear(hidden, down)


GATED = gated, (empty(8192, 2048), empty(2048), empty(2048), empty(5632, 2048), empty(5632, 2048), empty(2048, 5632))
SIBLINGS = lambda x: (torch.relu(x), torch.sigmoid(x), torch.tanh(x)), (empty(8192, 8192),)


def overwritten(x):
    kept, turned = torch.sigmoid(x), torch.relu(x.t())
    x.mul_(kept)
    return kept, turned


def partitions(places):
    """Every way to put the places into groups."""
    if not places:
        yield []
        return
    first, *rest = places
    for size in range(len(rest) + 1):
        for mates in itertools.combinations(rest, size):
            left = [place for place in rest if place not in mates]
            for others in partitions(left):
                yield [sum(1 << place for place in (first, *mates)), *others]


def runs(costs, groups):
    """Whether some order does each group after all that it waits for, by trying them all."""
    before = dict.fromkeys(groups, 0)
    for mask in groups:
        for node in costs.nodes:
            if mask >> node.index & 1:
                before[mask] |= node.before
    return any(
        all(not before[mask] & ~(sum(order[:place]) | mask) for place, mask in enumerate(order))
        for order in itertools.permutations(groups)
    )


def joined(mask, pairs):
    """Whether the pairs lead from each of the places to all others."""
    found = mask & -mask
    for _ in range(mask.bit_count()):
        for pair in pairs:
            if pair & found and pair & mask == pair:
                found |= pair
    return found == mask


@pytest.mark.parametrize("graph", [GATED, SIBLINGS, (overwritten, (empty(4096, 4096),))])
def test_the_simulator_reaches_every_legal_partition_and_no_other(graph):
    function, inputs = graph
    simulation = fusion_simulator(function, *inputs).simulation
    costs, legal = costs_of(function, *inputs), set()
    pairs = [1 << each.first | 1 << each.second for each in simulation.handles]
    for groups in partitions(list(range(len(costs.nodes)))):
        if not all(joined(mask, pairs) for mask in groups):
            continue
        try:
            for mask in groups:
                costs.of(mask)
        except NotLegalError:
            continue
        if runs(costs, groups):
            legal.add(tuple(sorted(groups)))
    assert set(simulation.moves) == legal
    times = {groups: sum(costs.of(mask).time for mask in groups) for groups in legal}
    assert simulation.totals(simulation.best)["time"] == pytest.approx(min(times.values()))


def test_the_simulators_totals_are_the_analysers():
    function, inputs = GATED
    explorer, plan = fusion_simulator(function, *inputs), analyse(function, *inputs)
    assert explorer.simulation.eager["time"] == pytest.approx(plan.time_unfused)
    assert explorer.simulation.eager["bytes"] == plan.bytes_unfused
    explorer.best()
    assert sorted(explorer.groups) == sorted(group.operations for group in plan.groups)
    totals = explorer.simulation.totals(explorer.simulation.best)
    assert totals == pytest.approx(
        {"bytes": plan.bytes_fused, "launches": plan.launches_fused, "time": plan.time_fused}
    )
    assert explorer.predicted == pytest.approx(plan.time_fused)
    assert "the best possible" in explorer.text


def test_edges_fuse_and_unfuse_and_refuse_with_the_analysers_reason():
    function, inputs = GATED
    explorer, plan = fusion_simulator(function, *inputs), analyse(function, *inputs)
    reasons = {(edge.producer, edge.consumer): edge.reason for edge in plan.edges if not edge.legal}
    assert explorer.toggle("native_layer_norm", "mm") == reasons["native_layer_norm", "mm"]
    assert explorer.toggle("silu", "mul") is None
    assert ("silu", "mul") in explorer.groups
    assert "\n" not in explorer.toggle("native_layer_norm", "add")
    assert explorer.toggle("silu", "mul") is None
    assert explorer.text.endswith("Fused: nothing.")
    explorer.best()
    explorer.apart()
    assert explorer.text.endswith("Fused: nothing.")
    with pytest.raises(ValueError, match="no edge from 'mul' to 'mm'"):
        explorer.toggle("mul", "mm")


def test_an_edge_that_others_hold_is_not_cut_alone():
    explorer = fusion_simulator(lambda x: (x + 1) * torch.relu(x + 1).exp(), empty(4096, 4096))
    explorer.best()
    edges = [(edge.first, edge.second) for edge in explorer.simulation.handles]
    names = explorer.simulation.names
    if len(explorer.groups) == 1 and len(edges) > len(names) - 1:
        assert "other edges hold" in explorer.toggle(names[edges[0][0]], names[edges[0][1]])


def test_every_partition_of_the_page_is_what_python_shows():
    explorer = fusion_simulator(GATED[0], *GATED[1])
    data = explorer._stage.data["partitions"]
    assert len(data) == len(explorer.simulation.moves)
    for number, groups in enumerate(explorer.simulation.moves):
        explorer._stage.first = number
        assert data[number]["text"] == explorer.text == repr(explorer.chart())
        moves = explorer.simulation.moves[groups]
        assert [isinstance(move, str) for move in data[number]["moves"]] == [isinstance(move, str) for move in moves]


def test_what_is_too_large_is_refused_in_one_line():
    with pytest.raises(ValueError, match="20 operations: the simulator shows"):
        fusion_simulator(lambda x: [torch.relu(x + step) for step in range(10)], empty(64, 64))


def test_the_simulator_by_click_and_by_key(chromium):
    """The page's own script, without JupyterLab: the same module, a model that keeps what is set."""
    explorer = fusion_simulator(GATED[0], *GATED[1])
    page = chromium.new_page()
    page.set_content("<div id=here></div>")
    page.evaluate(
        """async ([source, data, first]) => {
          const module = await import(URL.createObjectURL(new Blob([source], {type: "text/javascript"})));
          const state = {data, first}, heard = {};
          window.state = state;
          const model = {get: (name) => state[name], save_changes: () => 0,
            on: (names, call) => { for (const name of names.split(" ")) heard[name] = call; },
            set: (name, value) => { state[name] = value; heard["change:" + name]?.(); }};
          module.default.render({model, el: document.getElementById("here")});
        }""",
        [explorer._stage._esm, explorer._stage.data, explorer._stage.first],
    )
    names, handles = explorer.simulation.names, explorer.simulation.handles
    edge = {(names[each.first], names[each.second]): number for number, each in enumerate(handles)}

    def said():
        return page.locator("[role=status]").inner_text()

    def switch(pair):
        return page.locator(".fusion-edge").nth(edge[pair])

    switch(("silu", "mul")).locator("text").click()
    assert switch(("silu", "mul")).get_attribute("aria-checked") == "true"
    explorer.toggle("silu", "mul")
    assert said() == explorer.text
    assert page.evaluate("state.first") == explorer._stage.first

    switch(("native_layer_norm", "mm")).locator("text").click()
    assert said().startswith("Refused: ")
    assert said().endswith(explorer.text)

    switch(("silu", "mul")).focus()
    page.keyboard.press("Enter")
    assert said().endswith("Fused: nothing.")
    page.keyboard.press("End")
    explorer.best()
    assert said() == explorer.text
    page.keyboard.press("Home")
    assert said().endswith("Fused: nothing.")
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "mm_1 to mul"
    assert page.locator("table tr").count() == 1 + len(names) - 1


def test_the_flowchart_is_the_analysers_word():
    """By hand, from analyse() of the same operations."""
    plan = analyse(lambda x: torch.sigmoid(torch.sigmoid(torch.sigmoid(x))), empty(8192, 4096))
    assert len(plan.groups) == 1
    found = decide("elementwise", 8192, 3, 0.5, "by a CUDA graph", "H200")
    gain = 1 / (0.5 + 0.5 * plan.time_fused / plan.time_unfused) - 1
    assert [yes for yes, _ in found.answers] == [True] * 5
    assert f"the step is {100 * gain:.3g} % faster" in found.answers[3][1]
    assert f"about {plan.groups[0].registers} of 255" in found.answers[1][1]
    assert found.outcome == YES


@pytest.mark.parametrize(
    ("position", "outcome"),
    [
        (("a matmul, then a norm", 8192, 4, 0.5, "by a CUDA graph", "H200"), NO[0]),
        (("many values at once", 8192, 32, 0.5, "by a CUDA graph", "H200"), NO[1]),
        (("elementwise", 16, 4, 0.5, "from Python", "H200"), NO[2]),
        (("elementwise", 8192, 4, 0.01, "from Python", "H200"), NO[3]),
        (("a matmul, then elementwise", 8192, 8, 0.5, "from Python", "H200"), NO[4]),
        (("a norm, then elementwise", 8192, 4, 0.5, "from Python", "H200"), YES),
    ],
)
def test_every_end_of_the_flowchart_is_reached(position, outcome):
    assert decide(*position).outcome == outcome


def test_every_frame_of_the_flowchart_is_that_of_its_sliders():
    explorer = FusionDecisionExplorer(kind="a matmul, then a norm", rows=1, device="A100")
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(ROWS) * len(OPERATIONS) * len(SHARES)
    for rows, operations, share in ((1, 2, 0.01), (1024, 8, 0.5), (65536, 32, 0.9)):
        explorer.rows.value, explorer.operations.value, explorer.share.value = rows, operations, share
        place = (ROWS.index(rows) * len(OPERATIONS) + OPERATIONS.index(operations)) * len(SHARES) + SHARES.index(share)
        assert frames[place]["text"] == explorer.text == repr(explorer.chart())
        assert explorer.decision.outcome in frames[place]["svg"]


@pytest.fixture(scope="module")
def block():
    return plan_of("gpt2_block", epilogues=True)


def test_the_score_weighs_as_it_says(block):
    for group in block.groups:
        for part, weight in WEIGHTS.items():
            assert group.score.weighing(part, weight) == pytest.approx(group.score.total)
            assert group.score.weighing(part, 1) == pytest.approx(getattr(group.score, part))
        parts = {"bandwidth": 0.0, **{name: WEIGHTS[name] / 0.6 for name in list(WEIGHTS)[1:]}}
        alone = sum(weight * getattr(group.score, name) for name, weight in parts.items())
        assert group.score.weighing("bandwidth", 0) == pytest.approx(alone)


def test_every_frame_of_the_score_is_that_of_its_slider(block):
    explorer = FusionScoreExplorer(block, "bandwidth")
    for weight in (0.0, 0.4, 1.0):
        explorer.weight.value = weight
        frame = explorer._stage.data["frames"][STEPS.index(weight)]
        assert frame["text"] == explorer.text == repr(explorer.chart())
    explorer.part.value = "upkeep"
    assert explorer.text.startswith("Upkeep weighing 1.00")


def beside(name):
    plan, found = plan_of(name), compare(name)
    homes = homes_of_all(plan, record()["graphs"][name])
    return TwoPartitions(plan, homes, (*found.analyser_alone, *found.inductor_alone), found.edges)


def test_groups_stand_beside_each_other_as_recorded():
    graph = beside("squeeze_excite")
    rows = {row.name: row for row in rows_of(graph)}
    recorded = {
        frozenset(kernel["operations"])
        for kernel in record()["graphs"]["squeeze_excite"]["kernels"]
        if len(kernel["operations"]) > 1
    }
    together = {}
    for row in rows.values():
        for kernel in row.theirs:
            together.setdefault(kernel, set()).add(row.name)
    assert any({"native_batch_norm", "hardswish", "mean"} <= operations for operations in recorded)
    assert {"native_batch_norm", "hardswish", "mean"} in together.values()
    assert len(rows["hardswish"].theirs) == 2  # worked out with the mean, and again for the product
    # The analyser's groups are Inductor's.
    assert {row.name for row in rows.values() if row.differs} == set()
    differing = {row.name for row in rows_of(beside("column_statistics")) if row.differs}
    assert {"amax", "amin", "sub_1", "add"} <= differing
    explorer = FusionGroupsExplorer({name: beside(name) for name in ("siblings", "squeeze_excite")})
    explorer.graph.value = "squeeze_excite"
    assert explorer._stage.data["frames"][1]["text"] == explorer.text == repr(explorer.chart())


def test_a_trace_is_read_as_it_was_recorded():
    rows = [("host", "cudaLaunchKernel", 0.0, 5.0), ("GPU", "void a::b<int>(x)", 8.0, 2.0), ("GPU", "c", 14.0, 6.0)]
    trace = Trace.of(rows)
    assert (trace.span, trace.busy, trace.total) == (12.0, 8.0, 20.0)
    assert [kernel.gap for kernel in trace.kernels] == [0.0, 4.0]
    assert short("void a::b<int>(x)") == "b"
    explorer = TraceExplorer({"eager": rows, "eager, CUDA graph": rows[:2]})
    explorer.kernel.value = 2
    assert "Kernel 2, c: starts at 14 µs, 4 µs after the one before, and runs for 6 µs" in explorer.text
    frames = explorer._stage.data["frames"]
    assert frames[2]["text"] == explorer.text == repr(explorer.chart())
    explorer.way.value = "eager, CUDA graph"
    assert "Kernel 1, b" in explorer.text
    named = [re.search(r"<text[^>]*>(\d+: \w)</text></svg>$", frame["svg"])[1] for frame in frames]
    assert named == ["1: b", "1: b", "2: c", "1: b"], "the picture names the kernel that it marks"
    assert all('stroke="currentColor"' in frame["svg"] for frame in frames), "seen on bars of any colour"


def test_nothing_leaves_the_pictures(block):
    explorers = [
        fusion_simulator(GATED[0], *GATED[1]),
        FusionScoreExplorer(block),
        FusionGroupsExplorer({"a": beside("siblings")}),
    ]
    explorers += [FusionDecisionExplorer(kind="a matmul, then a norm"), TraceExplorer(record()["timeline"])]
    for explorer in explorers:
        figure = explorer.chart().figure
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert 0 <= box.x0 < box.x1 <= width
        assert 0 <= box.y0 < box.y1 <= height


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FusionDecisionExplorer(kind="sort"), "'sort' launched"),
        (lambda: FusionDecisionExplorer(rows=5), "rows of 4096 slider has no 5"),
        (lambda: FusionScoreExplorer(plan_of("gpt2_block"), "beauty"), "no part 'beauty'"),
        (lambda: FusionGroupsExplorer({"many": beside("mixtral_experts")}), "the picture holds"),
        (lambda: TraceExplorer(record()["timeline"], kernel=99), "kernel slider has no 99"),
    ],
)
def test_bad_input_is_refused_in_one_line(make, said):
    with pytest.raises(ValueError, match=said) as error:
        make()
    assert "\n" not in str(error.value)


def test_kinds_are_what_their_names_say():
    for kind in KINDS:
        found = decide(kind, 1024, 4, 0.5, "by a CUDA graph", "H200")
        assert f"({kind})" in found.text
    assert all(device.sms for device in map(DEVICES.__getitem__, FusionDecisionExplorer(kind=kind).device.options))


def test_each_gpu_offered_for_a_decision_has_an_answer():
    for device in FusionDecisionExplorer().device.options:
        assert decide("a matmul, then a norm", 1024, 4, 0.5, "by a CUDA graph", device).outcome
