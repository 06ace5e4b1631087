"""The analyser on what people really train and serve, written out in plain PyTorch: what it does not know, it names."""

import contextlib
import copy
import functools
import hashlib
import io
import math
import re
import sys
import time
import types

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from helpers.cli import main
from helpers.instruments.devices import DEVICES
from helpers.instruments.fusion import analyse, capture


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def operators(model, *inputs, **options) -> list[str]:
    graph, _ = capture(model, *inputs, **options)
    return [node.target.overloadpacket.__name__ for node in graph.graph.nodes if hasattr(node.target, "overloadpacket")]


def named(plan, operator: str):
    return next(each for each in plan.operations if each.target.split(".")[1] == operator)


# Models


class GroupedAttention(nn.Module):
    """Attention of Llama: fewer heads of keys and values than of queries."""

    def __init__(self, heads=8, groups=2, dim=64):
        super().__init__()
        self.heads, self.groups, self.dim = heads, groups, dim
        self.qkv = nn.Linear(heads * dim, (heads + 2 * groups) * dim, bias=False)
        self.out = nn.Linear(heads * dim, heads * dim, bias=False)

    def forward(self, x):
        sizes = [self.heads * self.dim, self.groups * self.dim, self.groups * self.dim]
        q, k, v = (each.unflatten(-1, (-1, self.dim)).transpose(1, 2) for each in self.qkv(x).split(sizes, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """A mixture of experts as Mixtral has it: sorted by expert, one grouped product."""

    def __init__(self, width=64, inner=128, experts=4, best=2):
        super().__init__()
        self.router, self.best = nn.Linear(width, experts, bias=False), best
        self.up = nn.Parameter(torch.empty(experts, width, inner))
        self.down = nn.Parameter(torch.empty(experts, inner, width))

    def forward(self, x):
        weights, which = self.router(x).softmax(-1).topk(self.best, -1)
        order = which.flatten().argsort()
        ends = torch.zeros(len(self.up), dtype=torch.int32).scatter_add_(
            0, which.flatten(), torch.ones(which.numel(), dtype=torch.int32)
        )
        ends = ends.cumsum(0, dtype=torch.int32)
        rows = x[order // self.best]
        inner = functional.silu(torch._grouped_mm(rows, self.up, offs=ends))
        made = torch._grouped_mm(inner, self.down, offs=ends) * weights.flatten()[order][:, None]
        return x + torch.zeros_like(x).index_add_(0, order // self.best, made)


def scan(x, dt, log_a, b, c):
    """Mamba's recurrence, step by step: x (T, D), dt (T, D), log_a (D, N), b and c (T, N)."""
    h, found = torch.zeros_like(log_a), []
    for t in range(len(x)):
        h = torch.exp(-dt[t][:, None] * torch.exp(log_a)) * h + (dt[t] * x[t])[:, None] * b[t]
        found.append(h @ c[t])
    return torch.stack(found)


def bucket(distance, buckets=32, most=128):
    """T5's relative positions: near ones exactly, far ones by their logarithm."""
    half = buckets // 2
    found = (distance > 0).long() * half
    distance = distance.abs()
    exact = half // 2
    far = exact + (torch.log(distance.float() / exact) / math.log(most / exact) * (half - exact)).long()
    return found + torch.where(distance < exact, distance, far.clamp(max=half - 1))


def relative_bias(table, length: int):
    place = torch.arange(length)
    return functional.embedding(bucket(place[None] - place[:, None]), table).permute(2, 0, 1)[None]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, layers=3, width=64):
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x, scale=None):
        for layer in self.layers:
            x = layer(x)
        return x if scale is None else x * scale


def training_step(optimizer=torch.optim.AdamW, width=32, **options):
    """(step, model, its optimizer, batch): a step as people write it, with all that it needs closed over."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.GELU(), nn.Linear(width, width))
    optimizer = optimizer(model.parameters(), lr=1e-2, **options)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, model, optimizer, (torch.randn(8, width), torch.randn(8, width))


# As a GPU runs it


def test_grouped_attention_costs_what_its_products_cost():
    batch, heads, groups, length, dim = 4, 32, 8, 2048, 128
    q, k = meta(batch, heads, length, dim), meta(batch, groups, length, dim)

    def grouped(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    plan = analyse(grouped, q, k, k.clone(), device="H100")
    (attention,) = (each for each in plan.operations if each.launches)
    assert attention.kind == "attention"
    assert attention.work.flops == 4 * batch * heads * length**2 * dim // 2  # half is masked
    sums = batch * heads * length * 4  # of each row, in fp32
    assert attention.work.bytes_read == 2 * (q.numel() + 2 * k.numel())
    assert sums <= attention.work.bytes_written - 2 * q.numel() <= sums + 64
    assert attention.time > attention.work.flops / DEVICES["H100"].peak_flops["bf16"]
    assert not plan.unsure
    # The memory-efficient kernel takes no fewer heads of keys: in fp32 PyTorch writes it out.
    written_out = operators(grouped, q.float(), k.float(), k.float())
    assert written_out.count("bmm") == 2
    assert not any("attention" in name for name in written_out)


def test_a_block_with_grouped_attention_is_one_of_products_and_attention():
    plan = analyse(GroupedAttention().to("meta", torch.bfloat16), meta(2, 512, 512))
    kinds = [each.kind for each in plan.operations if each.launches]
    assert kinds.count("attention") == 1
    assert not any("_for_cpu" in each.target or "mkldnn" in each.target for each in plan.operations)
    assert not plan.unsure


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer_is_counted_in_full_and_named_as_unsure(layer, gates):
    steps, batch, width, hidden = 20, 64, 256, 512
    plan = analyse(layer(width, hidden), torch.randn(steps, batch, width))
    rnn = named(plan, "cudnn_rnn")
    assert rnn.work.flops == 2 * steps * batch * gates * hidden * (width + hidden)
    assert rnn.work.bytes_written >= 4 * steps * batch * hidden
    assert plan.unsure_share > 0.9
    lines = repr(plan).splitlines()
    assert re.match(r"unsure: 9\d% of eager's time", lines[1])
    assert f"cuDNN's {layer.__name__}" in lines[2]
    assert all(rnn.name not in group.operations or group.kind == "eager" for group in plan.groups)


def test_a_recurrent_layer_of_two_directions_trains():
    plan = analyse(nn.LSTM(16, 32, 2, bidirectional=True, batch_first=True), torch.randn(4, 7, 16), backward=True)
    forward, backward = named(plan, "cudnn_rnn"), named(plan, "cudnn_rnn_backward")
    first, second = 2 * 4 * 32 * (16 + 32), 2 * 4 * 32 * (64 + 32)
    assert forward.work.flops == 2 * 4 * 7 * (first + second)
    assert backward.work.flops == 2 * forward.work.flops


@pytest.mark.parametrize(("cell", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3)])
def test_a_recurrent_cell_is_two_products_and_one_kernel(cell, gates):
    plan = analyse(cell(16, 32), torch.randn(8, 16))
    products = [each for each in plan.operations if each.kind == "matmul"]
    assert sum(each.work.flops for each in products) == 2 * 8 * gates * 32 * (16 + 32)
    assert len([each for each in plan.operations if "fused" in each.target]) == 1
    assert not plan.unsure


def test_flex_attention_is_attention_of_which_the_mask_is_not_known():
    q = torch.randn(2, 4, 128, 64, dtype=torch.bfloat16)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    for call in (flex_attention, torch.compile(flex_attention)):
        plan = analyse(lambda q, call=call: call(q, q, q, block_mask=mask), q)
        assert named(plan, "_scaled_dot_product_flash_attention").work.flops == 4 * 2 * 4 * 128**2 * 64
        assert any("flex_attention" in reason for reason in plan.unsure)


def test_what_only_a_cpu_has_is_named_and_not_priced():
    def on_a_cpu(q):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0].relu()

    plan = analyse(on_a_cpu, torch.randn(2, 4, 128, 64))
    (reason,) = plan.unsure
    assert "aten._scaled_dot_product_flash_attention_for_cpu" in reason
    assert named(plan, "_scaled_dot_product_flash_attention_for_cpu").time == 0
    assert "(not timed)" in repr(plan)
    assert plan.launches_unfused == 1


def test_operators_of_which_nothing_is_known_are_named_with_their_share():
    plan = analyse(lambda x: torch.linalg.qr(x)[0].relu(), torch.randn(512, 512))
    assert any("linalg_qr" in reason for reason in plan.unsure)
    assert 0.4 < plan.unsure_share <= 1
    assert not analyse(lambda x: x.amax(-1) + x.softmax(-1).sum(), torch.randn(64, 64)).unsure


def test_a_custom_operator_is_named():
    @torch.library.custom_op("fusion_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    plan = analyse(lambda x: twice(x) + 1, torch.randn(64))
    assert ["fusion_tests.twice" in reason for reason in plan.unsure] == [True]


def test_autocast_is_cudas():
    def mixed(x, w, g):
        with torch.autocast("cuda", torch.bfloat16):
            y = functional.relu(functional.linear(x, w))
            return functional.layer_norm(y, (16,), g), y.softmax(-1), y * 2

    graph, _ = capture(mixed, torch.randn(8, 16), torch.randn(16, 16), torch.randn(16))
    dtypes = {}
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        value = value[0] if isinstance(value, list | tuple) and value else value
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            dtypes.setdefault(getattr(node.target, "overloadpacket", node.target).__name__, value.dtype)
    assert (dtypes["mm"], dtypes["relu"], dtypes["mul"]) == (torch.bfloat16,) * 3
    assert (dtypes["native_layer_norm"], dtypes["_softmax"]) == (torch.float32,) * 2
    half = capture(lambda x: torch.autocast("cuda")(torch.mm)(x, x), torch.randn(8, 8))[0]
    assert next(n for n in half.graph.nodes if "mm" in n.name).meta["val"].dtype == torch.float16


def test_a_device_that_is_not_here_is_no_obstacle():
    def moves(x):
        return x.cuda() + x.to("cuda") * torch.arange(4, device="cuda:0") + torch.ones(4, device=x.device)

    assert operators(moves, torch.randn(4)).count("add") == 2


def test_a_convolution_in_the_wrong_layout_is_unsure_and_one_in_channels_last_is_not():
    conv, x = nn.Conv2d(8, 16, 3).half(), torch.randn(2, 8, 16, 16).half()
    plan = analyse(conv, x)
    assert ["channels_last" in reason for reason in plan.unsure] == [True]
    last = conv.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    assert not analyse(*last).unsure


@pytest.mark.parametrize(("groups", "named"), [(1, False), (8, True), (64, False)])
def test_a_convolution_in_groups_is_unsure_and_a_depthwise_one_is_not(groups, named):
    conv = nn.Conv2d(64, 64, 3, groups=groups, device="meta", dtype=torch.bfloat16)
    last = (each.to(memory_format=torch.channels_last) for each in (conv, meta(2, 64, 32, 32)))
    assert any("in groups" in reason for reason in analyse(*last, device="H100").unsure) == named


# The model stays as it was


def digest(*objects) -> str:
    """Of every value that torch.save writes, bit for bit."""
    file = io.BytesIO()
    torch.save(objects, file)
    file.seek(0)
    parts = []

    def enter(value):
        if isinstance(value, torch.Tensor):
            assert type(value) in (torch.Tensor, nn.Parameter)
            parts.append(
                f"{value.dtype}{tuple(value.shape)}{value.requires_grad}".encode() + value.detach().numpy().tobytes()
            )
        elif isinstance(value, dict):
            for key, each in value.items():
                parts.append(repr(key).encode())
                enter(each)
        elif isinstance(value, list | tuple):
            for each in value:
                enter(each)
        else:
            parts.append(repr(value).encode())

    enter(torch.load(file, weights_only=False))
    return hashlib.sha256(b"|".join(parts)).hexdigest()


def state(model, optimizer) -> str:
    gradients = [None if each.grad is None else each.grad for each in model.parameters()]
    return digest(model.state_dict(), optimizer.state_dict(), gradients)


OPTIMIZERS = [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 2])
def test_a_training_step_leaves_everything_as_it_was(optimizer, steps):
    step, model, made, batch = training_step(optimizer)
    twin, other, its, same = training_step(optimizer)
    for _ in range(steps):
        step(*batch)
        twin(*same)
    before, parameters = state(model, made), [id(each) for each in model.parameters()]
    random = torch.get_rng_state()
    analyse(step, *batch)
    assert state(model, made) == before
    assert [id(each) for each in model.parameters()] == parameters
    assert torch.equal(torch.get_rng_state(), random)
    for _ in range(2):  # and it goes on as one that was never analysed
        assert torch.equal(step(*batch), twin(*same))
    assert state(model, made) == state(other, its)


class Trainer:
    """What a step needs in attributes, as frameworks have it."""

    def __init__(self):
        self.step, self.model, self.optimizer, self.batch = training_step()
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.average, self.losses, self.seen = copy.deepcopy(self.model), [], 0

    def train(self, x, y):
        self.losses.append(self.step(x, y))
        self.schedule.step()
        with torch.no_grad():
            for mine, theirs in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)
        self.seen += 1


def test_what_hangs_on_objects_is_left_as_it_was():
    trainer = Trainer()
    trainer.train(*trainer.batch)

    def all_of_it():
        others = trainer.average.state_dict(), trainer.losses, trainer.seen, trainer.schedule.state_dict()
        return digest(trainer.model.state_dict(), trainer.optimizer.state_dict(), *others)

    before = all_of_it()
    for call in (trainer.train, lambda x, y: trainer.train(x, y), functools.partial(Trainer.train, trainer)):
        plan = analyse(call, *trainer.batch)
        assert any("lerp" in each.target for each in plan.operations)
        assert all_of_it() == before


COUNTED = {"weight": nn.Parameter(torch.ones(4, 4)), "calls": torch.zeros(1)}


def counts(x):
    COUNTED["calls"].add_(1)
    COUNTED["last"] = x @ COUNTED["weight"]
    return COUNTED["last"]


def test_globals_are_left_as_they_were():
    assert "add_" in operators(counts, torch.randn(2, 4))
    assert sorted(COUNTED) == ["calls", "weight"]
    assert COUNTED["calls"].item() == 0


def test_a_module_that_changes_itself_is_left_as_it_was():
    class Caches(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.memory, self.calls = [], 0

        def forward(self, x):
            self.calls += 1
            self.memory.append(x)
            self.last = x
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            return x - self.mean

    module = Caches()
    plan = analyse(module, torch.randn(8, 4))
    assert (module.memory, module.calls) == ([], 0)
    assert not hasattr(module, "last")
    assert type(module.mean) is torch.Tensor
    assert plan.bytes_fused >= 2 * 8 * 4 * 4 + 2 * 4 * 4  # the new mean is written


def test_writing_to_what_cannot_be_found_is_refused():
    hidden = torch.ones(4)
    several = iter([hidden])
    with pytest.raises(
        ValueError, match=r"mul_ writes to a tensor of shape \(4,\) that the analyser cannot find"
    ) as no:
        analyse(lambda x: next(several).mul_(2) + x, torch.randn(4))
    assert "\n" not in str(no.value)
    assert torch.equal(hidden, torch.ones(4))


def test_an_error_leaves_it_as_it_was_too():
    step, model, optimizer, batch = training_step()
    before = state(model, optimizer)
    with pytest.raises(ValueError, match="values are not known"):
        analyse(lambda x, y: step(x, y).item(), *batch)
    assert state(model, optimizer) == before


# Bytes


def test_adamw_moves_what_it_must_by_hand():
    step, model, _, batch = training_step(width=1024)
    plan = analyse(step, *batch)
    numbers = sum(each.numel() for each in model.parameters())
    update = next(group for group in plan.groups if "_foreach_addcdiv_" in group.operations)
    assert update.work.bytes_read == 4 * 4 * numbers  # weights, gradients, two moments
    assert update.work.bytes_written == 3 * 4 * numbers
    assert not any("_foreach_add_.Scalar" in each.target and each.work.bytes < 100 for each in plan.operations)


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_an_optimizer_runs_the_kernels_that_cuda_has_by_default(options):
    step, *_, batch = training_step(**options)
    names = operators(step, *batch)
    assert ("_fused_adamw_" in names) == ("fused" in options)
    assert ("_foreach_lerp_" in names) == bool(options.get("foreach"))
    default, *_, batch = training_step()
    assert ("_foreach_lerp_" in operators(default, *batch)) is True


def test_long_lists_take_several_launches():
    """By PyTorch's MultiTensorApply.cuh: 110 tensors, or 320 blocks of 65536 elements, a launch."""

    def many(*tensors):
        torch._foreach_mul_(list(tensors), 2.0)

    def launches(count, size):
        return analyse(many, *(meta(size) for _ in range(count))).launches_unfused

    assert launches(110, 10) == 1
    assert launches(111, 10) == 2
    assert launches(1, 320 * 65536) == 1
    assert launches(1, 321 * 65536) == 2
    assert launches(3, 200 * 65536) == 2


def test_t5s_bias_is_made_from_nothing_but_its_table():
    """21 launches make positions that one more looks up: fused, they read the table and write the bias."""
    plan = analyse(lambda table: relative_bias(table, 512), torch.randn(32, 8))
    assert len(plan.groups) == 1
    assert plan.groups[0].work.bytes_read == 32 * 8 * 4
    assert plan.bytes_fused == 32 * 8 * 4 + 8 * 512 * 512 * 4


@pytest.mark.parametrize("known", [True, False])
def test_positions_that_another_kernel_makes_are_written_and_read(known):
    """Whether or not their values can be worked out."""
    at = torch.randint(0, 99, (1024, 1024)) if known else torch.empty(1024, 1024, dtype=torch.int64, device="meta")

    def looked_up(at, table):
        places = (at.float() / 2).long()
        return functional.embedding(places, table), places

    plan = analyse(looked_up, at, torch.randn(99, 32))
    positions, table = 1024 * 1024 * 8, 99 * 32 * 4
    assert named(plan, "embedding").work.bytes_read == pytest.approx(positions + table, abs=table)
    apart = analyse(
        lambda at, table: functional.embedding(at.float().long().sort(-1)[0], table), at, torch.randn(99, 32)
    )
    lookup = next(group for group in apart.groups if "embedding" in group.operations)
    assert lookup.work.bytes_read == pytest.approx(positions + table, abs=table)
    assert all(group.work.bytes_written for group in apart.groups)


def experts():
    return Experts().to("meta", torch.bfloat16), (meta(32, 64),)


def step_of(optimizer, **options):
    step, *_, batch = training_step(optimizer, **options)
    return step, batch


MODELS = {
    "grouped attention": lambda: (GroupedAttention().to("meta", torch.bfloat16), (meta(2, 128, 512),)),
    "experts": experts,
    "scan": lambda: (scan, tuple(torch.randn(*shape) for shape in ((12, 8), (12, 8), (8, 4), (12, 4), (12, 4)))),
    "t5 bias": lambda: (lambda table: relative_bias(table, 64), (torch.randn(32, 8),)),
    "lstm": lambda: (nn.LSTM(16, 32), (torch.randn(5, 4, 16),)),
    "tower": lambda: (Tower(), (torch.randn(16, 64),)),
    "adamw": lambda: step_of(torch.optim.AdamW),
    "momentum": lambda: step_of(torch.optim.SGD, momentum=0.9),
    "dead code": lambda: (lambda x: (x + 1, torch.ones_like(x), x * 2)[0], (torch.randn(8, 8),)),
    "in place": lambda: (lambda x, y: x[:, 0].copy_(y).add_(1), (torch.randn(8, 8), torch.randn(8))),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_kernel_moves_nothing(name):
    model, inputs = MODELS[name]()
    plan = analyse(model, *inputs)
    assert all(group.work.bytes_written for group in plan.groups)
    assert all(group.work.bytes_written for group in plan.today.groups)
    assert all(each.work.bytes_written for each in plan.operations if each.launches)
    names = sorted(name for group in plan.groups for name in group.operations)
    assert names == sorted(each.name for each in plan.operations if each.launches)


def test_a_grouped_product_counts_each_row_once():
    model, inputs = experts()
    plan = analyse(model, *inputs)
    products = [each for each in plan.operations if each.target.startswith("aten._grouped_mm")]
    assert [each.work.flops for each in products] == [2 * 64 * 64 * 128] * 2
    assert [each.launches for each in products] == [1, 1]


# The report


def test_equal_layers_are_one_row_with_their_modules_and_lines():
    plan = analyse(Tower(layers=6).to("meta", torch.bfloat16), meta(4096, 64))
    rows = plan.report().rows()
    text = repr(plan)
    assert sum(len(each) for each in plan.report().folded()) == len(plan.report().groups())
    assert len(rows) < len(plan.report().groups()) / 2
    assert any(re.match(r"[4-6] x addmm gelu", row[0]) for row in rows)
    assert "layers.*" in text
    assert "test_fusion_real_models.py:" in text
    assert "`return x + self.down(functional.gelu(self.up(self.norm(x))))`" in text
    shares = [float(row[5].rstrip("%")) for row in rows]
    assert 0 < sum(shares) <= 101


def test_the_backward_pass_is_that_of_its_module():
    plan = analyse(Tower(layers=2), torch.randn(8, 64), backward=True)
    back = [each for each in plan.operations if each.backward and each.target.startswith("aten.gelu_backward")]
    assert [each.module for each in back] == ["layers.1", "layers.0"]
    assert all(each.line and each.line[0] == __file__ for each in back)


def test_both_headlines_are_there():
    plan = analyse(Tower(layers=2).to("meta", torch.bfloat16), meta(8192, 64))
    first, second, *_ = plan.report().headlines()
    today = analyse(Tower(layers=2).to("meta", torch.bfloat16), meta(8192, 64), epilogues=False)
    assert f"{plan.launches_unfused} launches become {plan.launches_fused}" in first
    assert f"{today.launches_fused} launches" in second
    assert plan.today.time_fused == today.time_fused > plan.time_fused
    assert today.today is today


def test_the_report_says_what_libraries_do_already():
    net = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    text = repr(analyse(net, torch.randn(4, 8, 32, 32)))
    assert "torch.nn.utils.fuse_conv_bn_eval" in text
    assert "cuDNN's fused convolution" in text
    training = repr(analyse(net.train(), torch.randn(4, 8, 32, 32)))
    assert "fuse_conv_bn_eval" not in training
    text = repr(analyse(nn.Sequential(nn.Linear(512, 512), nn.GELU()).bfloat16(), meta(4096, 512)))
    assert "cuBLASLt's epilogue" in text


def test_keyword_arguments_and_compiled_modules():
    tower = Tower(layers=1)
    plain = analyse(tower, torch.randn(8, 64), keywords={"scale": 2.0})
    assert plain.operations[-1].target.startswith("aten.mul")
    compiled = analyse(torch.compile(tower), torch.randn(8, 64), keywords={"scale": 2.0})
    assert [each.target for each in compiled.operations] == [each.target for each in plain.operations]
    inner = Tower(layers=1)
    inner.layers[0] = torch.compile(inner.layers[0])
    assert operators(inner, torch.randn(8, 64)) == operators(Tower(layers=1), torch.randn(8, 64))
    assert operators(torch.compile(torch.relu), torch.randn(4)) == ["relu"]


def branches(x):
    if x.sum() > 0:
        return x
    return -x


@pytest.mark.parametrize(
    ("model", "why", "line"),
    [
        (branches, "a branch on its value", "if x.sum() > 0:"),
        (lambda x: x * x.max().item(), "is taken out of a tensor", "x.max().item()"),
        (lambda x: x[x > 0], "the shape of a result depends on values", "x[x > 0]"),
        (lambda x: torch.nonzero(x), "the shape of a result depends on values", "torch.nonzero(x)"),
        (lambda x: x + x.numpy().sum(), "numpy", "x.numpy()"),
        (lambda x: x @ x.undefined, "undefined", "x.undefined"),
    ],
)
def test_an_error_is_one_line_that_names_the_line_of_source(model, why, line):
    with pytest.raises(ValueError, match="cannot be traced") as error:
        analyse(model, torch.randn(4, 4))
    said = str(error.value)
    assert why in said
    assert "test_fusion_real_models.py:" in said
    assert line in said
    assert "\n" not in said


FILE = """
import torch
class Net(torch.nn.Module):
    def forward(self, x, scale=1.0, shift=0.0):
        return torch.relu(x * scale) + shift
def keywords():
    return torch.compile(Net()), {"x": torch.randn(4, 8), "scale": 2.0}
def third():
    return Net(), torch.randn(4, 8), {"scale": 2.0, "shift": torch.ones(8)}
def wrong():
    return Net(), torch.randn(4, 8), [2.0]
def branching():
    return lambda x: x if x.sum() > 0 else -x, torch.randn(4)
"""


def test_the_command_takes_keyword_arguments_and_names_the_line_at_fault(tmp_path, capsys):
    (tmp_path / "nets.py").write_text(FILE)
    for function in ("keywords", "third"):
        assert main(["analyse", f"{tmp_path / 'nets.py'}:{function}"]) == 0
        assert "launches become 1" in capsys.readouterr().out
    for function, said in (("wrong", "(model, inputs, keywords)"), ("branching", "nets.py:13, <lambda>")):
        assert main(["analyse", f"{tmp_path / 'nets.py'}:{function}"]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


# What a GPU does not do as it looks


def test_results_without_elements_launch_nothing():
    plan = analyse(nn.Linear(8, 4, device="meta"), meta(0, 8), device="H100")
    assert (plan.launches_unfused, plan.launches_fused, plan.time_unfused) == (0, 0, 0)


def test_a_product_in_eight_bits_is_priced_at_their_rate():
    def product(a, b, scale):
        return torch._scaled_mm(a, b.t(), scale, scale, out_dtype=torch.bfloat16)

    eight = meta(8192, 8192, dtype=torch.float8_e4m3fn)
    plan = analyse(product, eight, eight, meta(dtype=torch.float32), device="H100")
    assert 2 * 8192**3 / 1979e12 < plan.time_unfused < 2 * 2 * 8192**3 / 1979e12


def test_a_mask_with_fewer_key_heads_and_sums_at_positions_are_named_as_unsure():
    q, k, mask = meta(2, 32, 64, 64), meta(2, 8, 64, 64), meta(1, 1, 64, 64)

    def grouped(q, k, mask):
        return functional.scaled_dot_product_attention(q, k, k, mask, enable_gqa=True)

    assert "fewer key heads" in next(iter(analyse(grouped, q, k, mask).unsure))
    positions = torch.zeros(4, dtype=torch.long)
    for accumulate in (False, True):
        plan = analyse(lambda x, v, a=accumulate: x.index_put((positions,), v, a), meta(8, 4), meta(4, 4))
        assert bool(plan.unsure) == accumulate


class Masked(nn.Module):
    """Attention that leaves out a mask of ones, as transformers does when it runs."""

    def forward(self, x, mask, length=8):
        place = torch.arange(length)
        padded = not mask.all() or bool((place.diff() != 1).any())
        keep = mask[:, None, None, :].bool() if padded else None
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=keep, is_causal=keep is None)


def test_a_branch_on_known_integers_is_taken_as_eager_pytorch_takes_it():
    x, ones = meta(2, 4, 8, 64), torch.ones(2, 8, dtype=torch.int64)
    zeros = ones.clone()
    zeros[1, 5:] = 0
    flash, efficient = (f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient"))
    assert flash in operators(Masked(), x, ones)
    assert efficient in operators(Masked(), x, zeros)
    with torch.inference_mode():
        assert flash in operators(Masked(), x, ones)
    with pytest.raises(ValueError, match=r"the values are not known; .*`padded = not mask.all\(\)"):
        analyse(Masked(), x, ones.to("meta"))


@pytest.mark.parametrize(("kind", "padded", "way"), [("causal", 1, "with a mask"), ("bidirectional", 0, "in fp32")])
def test_a_mask_that_only_torch_compile_builds_is_priced_and_named(monkeypatch, kind, padded, way):
    """As in transformers: its mask functions skip a mask in eager mode."""
    name = f"_ignore_{kind}_mask_sdpa"
    masking = types.ModuleType("transformers.masking_utils")
    setattr(masking, name, lambda padding, **_: padding is None or bool(padding.all()))
    monkeypatch.setitem(sys.modules, masking.__name__, masking)
    x, ones = meta(8, 12, 512, 64), torch.ones(8, 512, dtype=torch.int64) if padded else None

    def attention(x, ask):
        skipped = ask and getattr(masking, name)(ones)
        y = functional.scaled_dot_product_attention(x, x, x, is_causal=kind == "causal")
        return functional.gelu(y) if skipped or not ask else None

    plain, skipping = (analyse(attention, x, ask, device="H100") for ask in (False, True))
    assert not plain.unsure
    ((reason, (operation,)),) = skipping.unsure.items()
    assert "torch.compile builds" in reason
    assert way in reason
    assert operation.operator == "_scaled_dot_product_flash_attention"
    assert operation.time == next(each.time for each in plain.operations if each.kind == "attention")
    assert skipping.unsure_share == pytest.approx(operation.time / skipping.time_unfused)
    assert skipping.today.time_fused > 1.5 * plain.today.time_fused
    groups = [group for group in skipping.today.groups if group.operations == (operation.name,)]
    assert [group.launches for group in groups] == [3 if padded else 7]


@pytest.mark.parametrize("change", ["ones[0, 0] = 0", "ones.view(-1)[:1].zero_()", "ones *= 0"])
def test_a_write_to_known_integers_makes_them_unknown(change):
    def model(x, ones):
        exec(change)
        return x + 1 if ones.all() else x

    given = torch.ones(2, 8, dtype=torch.int64)
    with pytest.raises(ValueError, match="the values are not known"):
        analyse(model, meta(4, 4), given)
    assert given.all()


def test_a_comparison_that_runs_kernels_is_refused_rather_than_left_out():
    with pytest.raises(ValueError, match="whether two tensors are equal depends on their values"):
        analyse(lambda x, ones: x + 1 if torch.equal(ones, ones) else x, meta(4, 4), torch.ones(8, dtype=torch.int64))


def test_random_and_uninitialised_integers_are_not_known():
    for make in (lambda: torch.randint(0, 2, (8,)), lambda: torch.empty(8, dtype=torch.int64)):
        with pytest.raises(ValueError, match="the values are not known"):
            analyse(lambda x, make=make: x + 1 if make().any() else x, meta(4, 4))


def launched(model, *inputs, device="H100") -> list[str]:
    with torch.no_grad():
        plan = analyse(model, *inputs, device=device)
    return [each.target.split(".")[1] for each in plan.operations for _ in range(each.launches)]


FLASH, EFFICIENT, CUDNN = (f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn"))


@pytest.mark.parametrize(
    ("backends", "ordered", "kernels"),
    [
        ((), False, [FLASH] * 3),  # cuDNN's, with its two fills
        ((SDPBackend.FLASH_ATTENTION,), False, [FLASH]),
        ((SDPBackend.EFFICIENT_ATTENTION,), False, [EFFICIENT]),
        ((SDPBackend.CUDNN_ATTENTION,), False, [CUDNN] * 3),
        ((SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION), False, [FLASH] * 3),
        ((SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION), True, [FLASH]),
        ((SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION), True, [CUDNN] * 3),
    ],
)
def test_attention_is_the_kernel_that_sdpa_kernel_leaves(backends, ordered, kernels):
    def model(q):
        with sdpa_kernel(list(backends), set_priority=ordered) if backends else contextlib.nullcontext():
            return functional.scaled_dot_product_attention(q, q, q)

    assert launched(model, meta(2, 8, 128, 64)) == kernels
    assert len(launched(model, meta(2, 8, 128, 64), device="A100")) == 1


def test_attention_by_products_alone_and_by_no_kernel_at_all():
    def model(q, backend, mask=None):
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, q, q, mask)

    q = meta(2, 8, 128, 64)
    assert launched(model, q, SDPBackend.MATH).count("bmm") == 2
    with pytest.raises(ValueError, match="none of the attention kernels that sdpa_kernel allows supports this call"):
        analyse(model, q, SDPBackend.FLASH_ATTENTION, meta(128, 128))


ENCODER = {"d_model": 64, "nhead": 4, "dim_feedforward": 256, "activation": "gelu", "batch_first": True}


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_takes_pytorchs_fast_path_without_gradients(norm_first):
    """qkv, attention, its product, residual, norm, product with GELU, product, residual, norm."""
    layer = nn.TransformerEncoderLayer(**ENCODER, norm_first=norm_first, device="meta", dtype=torch.bfloat16).eval()
    x, padding = meta(2, 16, 64), torch.zeros(2, 16, dtype=torch.bool)
    made = launched(layer, x, device="A100")
    assert sorted(made) == sorted(["addmm"] * 3 + [FLASH, "_addmm_activation"] + ["add_", "native_layer_norm"] * 2)
    assert "fast path" in next(iter(analyse_without_gradients(layer, x).unsure))
    masked = launched(lambda x: layer(x, src_key_padding_mask=padding), x)
    assert [masked.count(each) for each in ("_masked_softmax", "_transform_bias_rescale_qkv", "bmm")] == [1, 1, 2]
    assert "gelu" in [each.target.split(".")[1] for each in analyse(layer, x).operations]  # with gradients


def analyse_without_gradients(*given):
    with torch.no_grad():
        return analyse(*given, device="H100")


def test_the_fast_path_computes_what_the_layer_computes():
    layer = nn.TransformerEncoderLayer(**{**ENCODER, "activation": "relu"}).eval()
    x, padding = torch.randn(2, 16, 64), torch.zeros(2, 16, dtype=torch.bool)
    padding[1, 9:] = True
    with torch.no_grad():
        graph, tensors = capture(layer, x, keywords={"src_key_padding_mask": padding})
        for node in graph.graph.nodes:
            if getattr(node.target, "namespace", "") == "as_on_a_gpu":
                node.target = getattr(torch.ops.aten, node.target.overloadpacket.__name__).default
        graph.recompile()
        torch.testing.assert_close(graph(*tensors)[0], layer(x, src_key_padding_mask=padding), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("around", [False, True])
def test_autocast_casts_a_weight_once_however_often_it_is_used(around):
    linear, x = nn.Linear(64, 64, bias=False), torch.randn(8, 64)

    def model(x):
        with torch.autocast("cuda", torch.bfloat16) if not around else contextlib.nullcontext():
            return linear(linear(x))

    with torch.autocast("cpu", torch.bfloat16) if around else contextlib.nullcontext():
        assert operators(model, x).count("_to_copy") == 2  # of x and of the weight
        assert operators(model, x).count("_to_copy") == 2
        assert torch.is_autocast_cache_enabled()


def test_gradients_are_clipped_by_the_kernels_for_lists_that_a_gpu_has():
    parameters = [nn.Parameter(torch.randn(64, 64)) for _ in range(30)]
    for each in parameters:
        each.grad = torch.ones_like(each)
    made = operators(lambda: nn.utils.clip_grad_norm_(parameters, 1.0))
    assert (made.count("_foreach_norm"), made.count("_foreach_mul_"), made.count("linalg_vector_norm")) == (1, 1, 1)


def test_weights_are_averaged_by_the_kernels_for_lists_that_a_gpu_has():
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(5)))
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    averaged.n_averaged += 1
    assert operators(lambda: averaged.update_parameters(model)).count("_foreach_lerp_") == 1


def test_a_fused_optimizer_writes_no_gradient():
    parameter = nn.Parameter(torch.randn(64, 64))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.Adam([parameter], fused=True)
    adam = named(analyse(lambda: optimizer.step()), "_fused_adam_")
    assert (adam.work.bytes_read, adam.work.bytes_written) == pytest.approx((4 * 64**2 * 4, 3 * 64**2 * 4), abs=8)


@pytest.mark.parametrize(
    ("function", "made_of", "reason"),
    [
        (
            lambda x: torch.cond(x.sum() > 0, torch.relu, torch.neg, (x,)),
            torch.ones,
            "cond chooses between functions by values",
        ),
        (lambda x: x + 1, lambda n: torch.nested.nested_tensor([torch.ones(n), torch.ones(3)]), "pass a padded tensor"),
        (
            lambda x: x.dequantize(),
            lambda n: torch.quantize_per_tensor(torch.ones(n), 0.1, 0, torch.qint8),
            "kernels for CPUs",
        ),
    ],
    ids=["cond", "nested", "quantised"],
)
def test_what_has_no_shapes_or_branches_on_values_is_refused_in_a_line_of_the_users(function, made_of, reason):
    with pytest.raises(ValueError, match=reason) as error:
        analyse(function, made_of(4), device="H100")
    assert "\n" not in str(error.value)
    assert "object at 0x" not in str(error.value)


def test_products_in_eight_bit_integers_are_counted():
    x = meta(4096, 4096, dtype=torch.int8)
    plan = analyse(lambda x: torch._int_mm(x, x), x, device="H100")
    assert [each.work.flops for each in plan.operations] == [2 * 4096**3]
    assert 2 * 4096**3 / 1979e12 < plan.time_unfused < 2 * 2 * 4096**3 / 1979e12


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda x: x.int() @ x.int(), "PyTorch has no matmul of torch.int32 on a GPU"),
        (lambda x: torch.lgamma(x) + 1, "sums up a series or iterates"),
        (lambda x: x.cumsum(-1) * 2, "scans and its atomics take longer"),
        (lambda x: x.scatter_reduce(0, x.long(), x, "amax"), "scans and its atomics take longer"),
        (lambda x: x.sort(-1)[0] * 2, "one throughput for all row lengths"),
    ],
)
def test_operators_of_unknown_pace_are_named(call, reason):
    plan = analyse(call, torch.zeros(64, 64), device="H100")
    assert any(reason in each for each in plan.unsure)
    assert plan.unsure_share > 0


def test_the_analyser_takes_tf32_and_8_bits_as_pytorch_is_set(monkeypatch):
    def product(x):
        return x @ x

    big = torch.empty(4096, 4096, device="meta")
    precise = analyse(product, big, device="H100").time_unfused
    monkeypatch.setattr("helpers.instruments.prediction.takes_tf32", lambda convolution: True)
    assert 4 < precise / analyse(product, big, device="H100").time_unfused < 13
    small = big.to(torch.int8)
    halves = analyse(product, big.bfloat16(), device="H100").time_unfused
    bytes_each = analyse(torch._int_mm, small, small, device="H100").time_unfused
    assert halves / bytes_each == pytest.approx(2, rel=0.1)


def seconds_to_analyse(call, *inputs) -> tuple[int, float]:
    """Return the operators, and the seconds of CPU time that analysing them takes."""
    began = time.process_time()
    with torch.no_grad():
        operators = len(analyse(call, *inputs, device="H100").operations)
    return operators, time.process_time() - began


def test_a_thousand_operations_are_analysed_in_15_seconds_of_one_core():
    def chain(x):
        for _ in range(250):
            x = torch.relu(x * 1.01 + 0.1) - 0.5
        return x

    operators, seconds = seconds_to_analyse(chain, meta(1024, 1024))
    assert operators == 1000
    assert seconds < 15


class LlamaLayer(nn.Module):
    """A layer of Llama-7B without its rotation."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(4096) for _ in range(2))
        self.qkv, self.out = nn.Linear(4096, 3 * 4096, bias=False), nn.Linear(4096, 4096, bias=False)
        self.gate, self.up = (nn.Linear(4096, 11008, bias=False) for _ in range(2))
        self.down = nn.Linear(11008, 4096, bias=False)

    def forward(self, x):
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, 32, 128)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


@pytest.mark.long
def test_llama_7b_is_analysed_in_20_seconds_of_one_core():
    with torch.device("meta"):
        model = nn.Sequential(*[LlamaLayer() for _ in range(32)]).to(torch.bfloat16)
    operators, seconds = seconds_to_analyse(model, meta(1, 2048, 4096))
    assert operators > 32 * 12
    assert seconds < 20
