"""The fusion analyser against the traffic meter, against an exhaustive search, and on cases worked out by hand."""

import itertools
import math
import re
from collections import Counter
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.nn import functional

from helpers.cli import main
from helpers.figures.fusion.simulator import Simulation, _colours
from helpers.instruments.fusion import analyse, capture, search
from helpers.instruments.fusion.analyser import costs_of
from helpers.instruments.fusion.drawing import kernel_colours
from helpers.instruments.fusion.existing_kernels import KERNELS
from helpers.instruments.fusion.legality import NotLegalError, bits
from helpers.instruments.fusion.plan import WEIGHTS
from helpers.instruments.fusion.plan_report import flips
from helpers.instruments.fusion.search import beam, candidates, exact, joined, partition
from helpers.instruments.traffic import measure
from helpers.style import FUSED, LIMIT, UNFUSED
from kernels import CATALOGUE


def meta(*shape, dtype=torch.bfloat16, grad=False):
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


# Bytes and launches are the meter's


def norm(x, w):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) * 0.125
    masked = scores.masked_fill(torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool(), float("-inf"))
    return masked.softmax(-1) @ v


def in_place(x, y):
    z = x * 2
    z.add_(y)
    z[:, :4] = 0
    x.mul_(0.5)
    return z.t().contiguous(), z[:, ::2] + 1


def language_model(tokens, table, w, labels):
    x = functional.embedding(tokens, table) + functional.embedding(torch.arange(tokens.shape[1]), table)
    return functional.cross_entropy((x @ w).flatten(0, 1), labels.flatten())


def routed(x, weights, w):
    best, which = (x @ weights).softmax(-1).topk(2, -1)
    return torch.einsum("ab,abc->ac", best, w[which]) + x[which[:, 0] % x.shape[0]]


def with_gradients(module, *inputs):
    result = module(*inputs)
    return torch.autograd.grad(result, list(module.parameters()), torch.ones_like(result))


def small_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.GroupNorm(2, 8),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )


def tokens(*shape):
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(1))


METERED = {
    "norm": (norm, (torch.randn(6, 40), torch.randn(40))),
    "layer norm": (
        lambda x, w: functional.gelu(functional.layer_norm(x, (40,), w)),
        (torch.randn(6, 40), torch.randn(40)),
    ),
    "attention": (attention, tuple(torch.randn(2, 3, 8, 16) for _ in range(3))),
    "in place": (in_place, (torch.randn(8, 12), torch.randn(8, 12))),
    "language model": (language_model, (tokens(3, 7), torch.randn(40, 16), torch.randn(16, 40), tokens(3, 7))),
    "halves": (lambda x, w: functional.glu(functional.linear(x, w)), (torch.randn(5, 8), torch.randn(12, 8))),
    "broadcast": (lambda x, y: (x[:, None] * y[None]).sum(1).std(0), (torch.randn(9), torch.randn(7))),
    "integers": (lambda x: (x.cumsum(0) % 7).float().exp2(), (tokens(4, 5),)),
    "small net": (small_net(), (torch.randn(2, 3, 8, 8),)),
    "small net, evaluated": (small_net().eval(), (torch.randn(2, 3, 8, 8),)),
    "dead code": (lambda x: (x + 1, x * 2)[0], (torch.randn(33),)),
    "strided": (lambda x: x.as_strided((3, 4), (1, 2)).relu() + x[::2][:3, None], (torch.randn(12),)),
}


# A GPU saves the statistics that batch norm normalises with in evaluation, too: two of 8 channels in fp32.
SAVED_ON_A_GPU = {"small net, evaluated": 2 * 8 * 4}


def operators_launches(plan) -> int:
    """As the meter counts them: without what a GPU's libraries add."""
    return plan.launches_unfused - sum(each.added_launches for each in plan.operations)


@pytest.mark.parametrize("name", METERED)
def test_the_unfused_graph_costs_what_the_meter_counts(name):
    function, inputs = METERED[name]
    plan = analyse(function, *inputs)
    counted, saved = measure(function, *[each.clone() for each in inputs]), SAVED_ON_A_GPU.get(name, 0)
    assert (operators_launches(plan), plan.bytes_unfused) == (counted.launches, counted.bytes_total + saved)
    work = [(each.work.bytes_read, each.work.bytes_written) for each in plan.operations]
    assert sum(read for read, _ in work) == counted.bytes_read
    assert sum(written for _, written in work) == counted.bytes_written + saved
    assert plan.launches_fused <= plan.launches_unfused
    assert plan.bytes_fused <= plan.bytes_unfused


@pytest.mark.parametrize("module", [small_net(), nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.LayerNorm(9))])
def test_forward_and_backward_cost_what_the_meter_counts(module):
    x = torch.randn(2, 3, 8, 8) if isinstance(module[0], nn.Conv2d) else torch.randn(5, 6)
    plan, counted = analyse(module, x, backward=True), measure(with_gradients, module, x)
    assert (operators_launches(plan), plan.bytes_unfused) == (counted.launches, counted.bytes_total)


def test_a_backward_pass_has_the_operators_of_aotautograds_joint_graph():
    net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8), nn.Softmax(-1))
    x, parameters = torch.randn(4, 16, requires_grad=True), dict(net.named_parameters())

    def functionally(*given):
        state = dict(zip(parameters, given, strict=False))
        return (torch.func.functional_call(net, state, given[-1:]),)

    joint = aot_export_joint_simple(functionally, [*parameters.values(), x], trace_joint=True, decompositions={})

    def operators(graph):
        names = [node.target.__name__ for node in graph.graph.nodes if hasattr(node.target, "overloadpacket")]
        return Counter(name for name in names if name not in ("detach.default", "view.default", "t.default"))

    ours = operators(capture(net, x, backward=True)[0])
    assert ours - operators(joint) == {"ones_like.default": 1}  # the gradient that comes in; there it is an input
    assert not operators(joint) - ours


# Sizes that a model leaves open


class Open(nn.Module):
    """Two inputs of a size each, with a parameter in common."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x, y):
        return torch.relu(x) * self.weight, torch.sigmoid(y) * self.weight


class Sums(nn.Module):
    def forward(self, x, y):
        return torch.softmax(torch.relu(x + y), dim=-1)


def left_open(model, *names):
    dims = {name: torch.export.Dim(name, min=2, max=1024) for name in names}
    shapes = tuple({0: dims[name]} for name in names)
    return torch.export.export(model, tuple(torch.randn(8, 64) for _ in names), dynamic_shapes=shapes)


def test_as_many_elements_by_chance_are_no_kernel():
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    by_name = {name: group for group in analyse(Open(), x, y).groups for name in group.operations}
    assert by_name["relu"] is by_name["sigmoid"]
    plan = analyse(left_open(Open(), "a", "b"), x, y)
    by_name = {name: group for group in plan.groups for name in group.operations}
    assert by_name["relu"] is by_name["mul"]
    assert by_name["relu"] is not by_name["sigmoid"]
    legality = costs_of(left_open(Open(), "a", "b"), x, y).legality
    with pytest.raises(NotLegalError, match=r"relu works on 64\*s\d+ elements, sigmoid on 64\*s\d+: these can differ"):
        legality.kind(0b1111, 0b1010)


def test_an_edge_between_open_sizes_is_refused_unless_they_are_always_equal():
    class Front(nn.Module):
        def forward(self, x, y):
            return torch.relu(x)[: y.shape[0]] + y

    x, y = torch.randn(8, 64), torch.randn(8, 64)
    plan = analyse(left_open(Front(), "a", "b"), x, y)
    (between,) = plan.edges
    assert (between.producer, between.consumer, between.legal) == ("relu", "add", False)
    assert "these can differ" in between.reason
    assert analyse(Front(), x, y).edges[0].legal


def test_sizes_that_are_always_equal_are_one_size():
    plan = analyse(left_open(Sums(), "a", "a"), torch.randn(32, 64), torch.randn(32, 64))
    assert [group.operations for group in plan.groups] == [("add", "relu", "_softmax")]
    assert plan.bytes_fused == 3 * 32 * 64 * 4  # of the inputs given, not of those exported with


def test_unknown_positions_are_taken_to_differ():
    table, which = torch.randn(50, 8), torch.empty(20, dtype=torch.int64, device="meta")
    plan = analyse(lambda table, which: table[which], table, which)
    known = torch.arange(20)
    assert plan.bytes_unfused == measure(lambda: table[known]).bytes_total


def test_a_model_that_fits_no_memory_is_analysed():
    plan = analyse(lambda x: torch.relu(x) + 1, meta(2**38, dtype=torch.float32))
    assert plan.bytes_unfused == 4 * 2**40
    assert plan.bytes_fused == 2 * 2**40


# The search


def acyclic(costs, groups) -> bool:
    """Whether the kernels can run one after another, each with all it waits for done: taken away one by one."""
    left, done = list(groups), 0
    while left:
        ready = [mask for mask in left if all(not costs.nodes[place].before & ~(done | mask) for place in bits(mask))]
        if not ready:
            return False
        left = [mask for mask in left if mask not in ready]
        for mask in ready:
            done |= mask
    return True


def partitions(places):
    """Every way to divide a list into sets, as bit masks."""
    if not places:
        yield []
        return
    first, *rest = places
    for some in partitions(rest):
        yield [1 << first, *some]
        for number, mask in enumerate(some):
            yield [*some[:number], mask | 1 << first, *some[number + 1 :]]


def exhaustive(costs) -> float:
    best = float("inf")
    for groups in partitions(list(range(len(costs.nodes)))):
        try:
            time = sum(costs.of(mask).time for mask in groups)
        except NotLegalError:
            continue
        if time < best and acyclic(costs, groups):
            best = time
    return best


def total(costs, groups) -> float:
    return sum(costs.of(mask).time for mask in groups)


R, C = 2048, 4096
MAKERS = [
    lambda a, b: a + b,
    lambda a, b: a * torch.sigmoid(b),
    lambda a, b: torch.relu(a),
    lambda a, b: a.float().exp().to(a.dtype),
    lambda a, b: a - a.mean(-1, keepdim=True),
    lambda a, b: a.softmax(-1),
    lambda a, b: a * b.sum(0),
    lambda a, b: a @ torch.empty(C, C, dtype=a.dtype),
    lambda a, b: torch.cat(a.chunk(2, -1)[::-1], -1),
    lambda a, b: a.add_(b) if a is not b else a,
    lambda a, b: functional.dropout(a, 0.1),
    lambda a, b: functional.layer_norm(a, a.shape[-1:]),
]


def program(recipe):
    """A function made of MAKERS: each step takes two of the tensors that are there."""

    def run(x, y):
        values = [x * 1, y * 1]
        for which, one, other in recipe:
            values.append(MAKERS[which](values[one % len(values)], values[other % len(values)]))
        return values[-1], values[len(values) // 2]

    return run


recipes = st.lists(st.tuples(st.integers(0, len(MAKERS) - 1), st.integers(0, 50), st.integers(0, 50)), max_size=9)
short = settings(max_examples=25, suppress_health_check=list(HealthCheck))


@short
@given(recipes.map(lambda recipe: recipe[:3]))
def test_the_exact_search_is_as_good_as_looking_at_every_partition(recipe):
    costs = costs_of(program(recipe), meta(C, C), meta(C, C))
    if len(costs.nodes) > 9:
        return
    groups = exact(costs, candidates(costs))
    assert total(costs, groups) == pytest.approx(exhaustive(costs), rel=1e-9)
    assert acyclic(costs, groups)


def test_the_partition_is_the_same_in_every_python(monkeypatch):
    """From Python 3.12 on `sum` rounds once, in the end: where many partitions take the same time, another went on."""

    def exponentials(*tensors):
        parts = [torch.exp(each) for each in tensors]
        return sum(parts[1:], parts[0])

    costs = costs_of(exponentials, *(meta(8192, 4096, dtype=torch.float32) for _ in range(32)))
    found = partition(costs)
    monkeypatch.setattr(search, "sum", math.fsum, raising=False)
    assert partition(costs) == found


@short
@given(recipes)
def test_a_partition_is_acyclic_covers_each_operation_once_and_costs_no_more_than_none(recipe):
    function, inputs = program(recipe), (meta(R, C), meta(R, C))
    costs = costs_of(function, *inputs)
    searched = [joined(costs, beam(costs)), partition(costs)]
    for groups in searched:
        assert sum(groups) == costs.all
        assert not any(one & other for one, other in itertools.combinations(groups, 2))
        assert acyclic(costs, groups)
        assert total(costs, groups) <= sum(each.time for each in costs.eager) * (1 + 1e-9)
    plan = analyse(function, *inputs)
    names = [name for group in plan.groups for name in group.operations]
    assert sorted(names) == sorted(each.name for each in plan.operations if each.launches)
    assert plan.time_fused <= plan.time_unfused * (1 + 1e-9)
    assert plan.bytes_fused <= plan.bytes_unfused


def test_the_beam_finds_what_the_exact_search_finds_in_a_transformer_block():
    def block(x, w, b):
        h = functional.layer_norm(x + b, (C,), w, b)
        return x + functional.gelu(h @ torch.empty(C, C, dtype=x.dtype)) * torch.sigmoid(h.mean(-1, keepdim=True))

    costs = costs_of(block, meta(R, C), meta(C), meta(C))
    best = total(costs, exact(costs, candidates(costs)))
    assert total(costs, joined(costs, beam(costs))) <= best * 1.001


# Legality


def group_of(plan, name):
    return next(group for group in plan.groups if name in group.operations)


def edge(plan, producer, consumer):
    return next(each for each in plan.edges if (each.producer, each.consumer) == (producer, consumer))


def test_a_norm_and_all_around_it_is_one_kernel_that_moves_each_tensor_once():
    plan = analyse(lambda x, b, w: functional.gelu(norm(x + b, w)), meta(R, C), meta(C), meta(C))
    (group,) = plan.groups
    assert (group.kind, group.launches) == ("rows", 1)
    assert group.work.bytes == 2 * R * C * 2 + 2 * C * 2


def test_what_is_read_elsewhere_is_written_too():
    plan = analyse(lambda x: ((x + 1).relu(), x + 1), meta(R, C))
    assert plan.bytes_fused == 3 * R * C * 2


def test_other_elements_overwritten_in_place_stay_apart():
    def shifted(x):
        y = x * 2
        z = y[:, 1:] + 1
        y[:, :-1].add_(1)
        return y, z

    plan = analyse(shifted, meta(R, C))
    assert group_of(plan, "add") is not group_of(plan, "add_")
    assert not edge(plan, "add", "add_").legal
    assert edge(plan, "add", "add_").ordering
    assert "overwrites" in edge(plan, "add", "add_").reason


@pytest.mark.parametrize(
    "reads_elsewhere",
    [torch.mm, lambda x, w: x.roll(1, 0), lambda x, w: x[torch.arange(63, -1, -1)], lambda x, w: x.T + w],
    ids=["a factor", "shifted", "gathered", "transposed"],
)
def test_what_is_read_elsewhere_is_not_overwritten_in_the_same_kernel(reads_elsewhere):
    """Though what overwrites it reads the result, too: other blocks may not have read their part yet."""

    def function(x, w):
        return x.add_(reads_elsewhere(x, w))

    plan = analyse(function, torch.empty(64, 64, device="meta"), torch.empty(64, 64, device="meta"))
    last = plan.operations[-1].name
    assert [group.operations for group in plan.groups if last in group.operations] == [(last,)]


def test_the_same_elements_overwritten_in_place_are_fused():
    plan = analyse(lambda x: (x * 2).add_(1).relu_(), meta(R, C))
    assert len(plan.groups) == 1
    assert plan.bytes_fused == 2 * R * C * 2


def test_what_the_caller_owns_is_written_when_it_is_changed():
    plan = analyse(lambda x: x.add_(1).relu(), meta(R, C))
    assert plan.bytes_fused == 3 * R * C * 2


def test_random_numbers_are_drawn_once_and_said_to_differ():
    plan = analyse(lambda x: functional.dropout(x, 0.1) + x, meta(R, C))
    assert "random" in edge(plan, "native_dropout", "add").reason
    two = analyse(lambda x: (torch.rand_like(x).exp(), torch.rand_like(x).t() @ x), meta(C, C))
    assert all("rand_like" not in name for group in two.groups for name in group.recomputed)


def test_a_cast_is_done_in_registers():
    plan = analyse(lambda x: (x.float() * 2).to(torch.int8), meta(R, C))
    assert "cast in registers" in edge(plan, "mul", "_to_copy_1").reason
    assert plan.bytes_fused == 3 * R * C


def test_cheap_operations_are_worked_out_again_rather_than_read():
    def two_readers(x):
        wide = x.float()
        return wide.softmax(-1), wide.exp().sum(0)

    plan = analyse(two_readers, meta(R, C))
    assert [group.recomputed for group in plan.groups if group.recomputed] == [("_to_copy",)]
    assert edge(plan, "_to_copy", "exp").legal
    assert {("_to_copy", "_softmax"), ("_to_copy", "exp")} <= plan.fused_edges


def test_rows_of_another_layout_are_not_these_rows():
    plan = analyse(lambda x: x.softmax(-1).t().softmax(-1), meta(C, C))
    assert len(plan.groups) == 2
    assert not plan.edges[0].legal
    assert "layout" in plan.edges[0].reason or "dimensions" in plan.edges[0].reason


def test_a_sum_over_everything_ends_its_kernel():
    plan = analyse(lambda x: x * (x * x).sum().rsqrt(), meta(R, C))
    assert group_of(plan, "mul") is group_of(plan, "sum_1")
    assert group_of(plan, "mul_1") is not group_of(plan, "sum_1")


def test_matrix_products_take_what_follows_and_not_a_second_product():
    def ffn(x, a, b):
        return functional.gelu(x @ a) @ b

    inputs = meta(R, C), meta(C, C), meta(C, C)
    plan = analyse(ffn, *inputs)
    assert group_of(plan, "gelu").operations == ("mm", "gelu")
    apart = analyse(ffn, *inputs, epilogues=False)
    assert [group.operations for group in apart.groups] == [("mm",), ("gelu",), ("mm_1",)]
    assert "library" in edge(apart, "mm", "gelu").reason


def test_rows_do_not_fit_a_tile():
    plan = analyse(lambda x, w: (x @ w).softmax(-1), meta(R, C), meta(C, C))
    assert not plan.edges[0].legal


def test_attention_is_found_unless_its_scores_are_kept():
    q, k, v = (meta(2, 8, 1024, 64) for _ in range(3))

    def by_hand(q, k, v):
        return (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v

    def kept(q, k, v):
        scores = (q @ k.transpose(-1, -2) * 0.125).softmax(-1)
        return scores @ v, scores

    (group,) = analyse(by_hand, q, k, v).groups
    assert group.kind == "attention"
    assert group.work.bytes == 4 * q.numel() * 2
    assert all(group.kind != "attention" for group in analyse(kept, q, k, v).groups)


def test_what_is_scattered_or_gathered_goes_through_memory():
    def scattered(x, which):
        return torch.zeros_like(x).index_add_(0, which, x * 2).relu()

    plan = analyse(scattered, meta(R, C), torch.arange(R))
    assert not edge(plan, "index_add_", "relu").legal
    assert edge(plan, "mul", "index_add_").legal
    picked = analyse(lambda x, which: x.relu()[which] + 1, meta(R, C), torch.arange(R))
    assert not edge(picked, "relu", "index").legal
    assert edge(picked, "index", "add").legal


def test_an_operation_between_two_keeps_them_apart():
    plan = analyse(lambda x, w: x.relu() + (x.relu() @ w), meta(C, C), meta(C, C))
    (apart,) = (each for each in plan.edges if each.consumer == "add" and each.producer == "relu")
    assert apart.legal
    both = analyse(lambda x: (lambda y: y + y.sort(-1)[0])(x * 2), meta(R, C))
    assert "has to run between" in edge(both, "mul", "add").reason


def test_errors_are_one_line():
    for call, kind in (
        (lambda: analyse(3), TypeError),
        (lambda: analyse(torch.relu, meta(4), device="H201"), ValueError),
        (lambda: analyse(lambda x: x[x > 0], meta(4)), ValueError),
        (lambda: analyse(torch.relu, meta(4), backward=True), ValueError),
    ):
        with pytest.raises(kind) as error:
            call()
        assert "\n" not in str(error.value)


# Registers


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (lambda a, b: functional.gelu(a + b), 2),
        (lambda a, b: functional.silu(a) * b, 2),
        (lambda a, b, c, d: ((a + b) * (c - d) + functional.gelu(a) * torch.tanh(d) + b * c, a * d), 4),
        (lambda a: (a.float().exp() + 1).log(), 1),
    ],
)
def test_estimated_registers_are_near_those_of_a_compiled_kernel(function, tensors):
    plan = analyse(function, *(meta(R, C) for _ in range(tensors)))
    (group,) = plan.groups
    compiled = plan.compile(group)
    assert compiled.spill_bytes == 0
    assert abs(group.registers - compiled.registers) <= 12


def test_no_kernel_holds_more_values_than_there_are_registers():
    def wide(*tensors):
        return torch.cat([each * 2 for each in tensors]).relu(), sum(tensors)

    plan = analyse(wide, *(meta(R, C) for _ in range(50)))
    assert all(group.registers <= 255 for group in plan.groups)


def test_what_cannot_be_generated_is_refused():
    rows, sine = analyse(norm, meta(R, C), meta(C)), analyse(lambda x: torch.sin(x) + 1, meta(R, C))
    for plan, said in ((rows, "pointwise"), (sine, "no formula for sin")):
        with pytest.raises(ValueError, match=said):
            plan.compile(plan.groups[0])


# The report


def swiglu(x, up, gate):
    return functional.silu(x @ gate) * (x @ up)


def test_the_report_says_who_does_it_and_what_would_flip_it():
    plan = analyse(lambda x, w: functional.softmax(norm(x, w) * 2, -1).to(torch.int8), meta(R, C), meta(C))
    text = repr(plan.report())
    assert f"{plan.launches_unfused} launches become 1" in text.splitlines()[0]
    assert "torch.compile generates this kernel" in text
    known = repr(analyse(norm, meta(R, C), meta(C)).report())
    assert "kernels.rms_norm; torch.nn.functional.rms_norm" in known
    small = analyse(lambda x: (x + 1) * 2, meta(64, 64))
    assert "a CUDA graph" in repr(small.report())
    assert "a CUDA graph" not in known


def test_kernels_that_the_report_names_are_in_the_catalogue():
    assert {*KERNELS, "flash_attention"} <= set(CATALOGUE)


def test_a_weight_that_flips_a_score_does():
    plan = analyse(swiglu, meta(R, C), meta(C, C), meta(C, C))
    for group in plan.groups:
        for line in flips(group):
            found = re.fullmatch(r"a weight of ([\d.]+) instead of [\d.]+ for (\w+) in the score", line)
            if not found:
                continue
            name, at = found[2], float(found[1])
            rest = sum(weight * getattr(group.score, each) for each, weight in WEIGHTS.items() if each != name)
            score = at * getattr(group.score, name) + (1 - at) * rest / (1 - WEIGHTS[name])
            assert score == pytest.approx(0.5, abs=0.01)


def test_the_page_and_the_picture_are_whole(tmp_path):
    plan = analyse(swiglu, meta(R, C), meta(C, C), meta(C, C))
    plan.report().save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    picture = ElementTree.fromstring(plan.draw().svg)
    boxes = picture.findall(".//{http://www.w3.org/2000/svg}rect")
    assert len(boxes) == plan.launches_unfused
    assert plan.draw().svg in page
    assert re.search(r"<td>[\d.]+&nbsp;MB -&gt; [\d.]+&nbsp;MB</td>", page)  # no line ends before a unit
    assert all(group.operations[0] in plan.draw().text for group in plan.groups)
    deep = analyse(lambda x: [x := torch.sort(x)[0] * 2 for _ in range(120)][-1], meta(64, 64))
    assert len(ElementTree.fromstring(deep.draw().svg).findall(".//{http://www.w3.org/2000/svg}rect")) == len(
        deep.groups
    )


def test_a_plans_text_takes_the_colour_of_its_page():
    """In the grey of a chart's marks it had 4.35:1 on white."""
    drawn = analyse(swiglu, meta(R, C), meta(C, C), meta(C, C)).draw()
    texts = list(ElementTree.fromstring(drawn.svg).iter("{http://www.w3.org/2000/svg}text"))
    assert {text.get("fill") for text in texts} == {"currentColor"}
    assert drawn._repr_html_().startswith("<figure><img ")  # dark there, and inverted on a dark page


def test_a_plan_is_drawn_in_the_colours_of_the_simulator():
    costs = costs_of(swiglu, meta(R, C), meta(C, C), meta(C, C))
    simulation = Simulation(costs)
    shown = dict(zip(simulation.names, _colours(simulation, simulation.best), strict=True))
    picture = ElementTree.fromstring(analyse(swiglu, meta(R, C), meta(C, C), meta(C, C)).draw().svg)
    space = "{http://www.w3.org/2000/svg}"
    drawn = {
        group.find(f"{space}title").text.partition(":")[0]: group.find(f"{space}rect").get("stroke")
        for group in picture.iter(f"{space}g")
    }
    assert drawn == shown
    assert LIMIT in drawn.values()
    assert FUSED in drawn.values()
    assert kernel_colours([2] * 20).count(UNFUSED) == 0  # the colour of what is not fused


MODEL = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), torch.randn(4, 8)
def alone():
    return torch.nn.ReLU()
"""


def test_the_command_analyses_a_model_that_a_file_builds(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MODEL)
    name = f"{tmp_path / 'mine.py'}:build"
    assert main(["analyse", name, "--device", "A100", "--page", str(tmp_path / "page.html")]) == 0
    assert "launches become" in capsys.readouterr().out
    assert "A100" in (tmp_path / "page.html").read_text()
    for wrong, said in (
        (["analyse", f"{tmp_path / 'mine.py'}:alone"], "(model, inputs)"),
        (["analyse", f"{tmp_path / 'mine.py'}:nothing"], "has no function nothing"),
        (["analyse", f"{tmp_path / 'yours.py'}:build"], "no file"),
        (["analyse", "no.such.module:build"], "cannot be imported"),
        (["analyse", "mine"], "names no function"),
        (["analyse", name, "--device", "H201"], "H201"),
    ):
        assert main(wrong) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_tensors_in_an_object_that_a_model_returns_are_results():
    class Cache:
        def __init__(self, x):
            self.layers = [{"keys": x * 2}]

    plan = analyse(lambda x: (x + 1, Cache(x)), meta(R, C))
    assert plan.bytes_fused == 3 * R * C * 2
