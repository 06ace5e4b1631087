"""The lessons' experiments time what they claim to: values against PyTorch's, reads and writes by the meter."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from lesson_code import lesson_defines
from torch.nn import functional

from benchmarks import training
from benchmarks.experiments import experiments, lesson_09, lesson_11, lesson_14, lesson_18, nested, timed
from benchmarks.experiments.lesson_04 import with_dice
from benchmarks.experiments.lesson_06 import PARTS, VERSIONS, K, split_loss
from helpers.instruments import compile_for, measure, recorded
from helpers.learning import kept_elements

ROOT = Path(__file__).resolve().parent.parent
RECORDS = [recorded("h200"), recorded(lesson_18.RECORD.removesuffix(".json"))]


def test_the_experiments_are_those_that_are_recorded():
    assert experiments().keys() == {name for each in RECORDS for name in each.experiments}


def test_calls_are_timed_at_each_size_and_a_key_of_several_parts_nests():
    asked = []

    def calls(size):
        asked.append(size)
        return {("one", 1): lambda: None, ("one", 2): lambda: None, ("two", 1): lambda: None}

    found = timed(calls, (8, 16), clocks=("gpu", "call"), runs=3)()
    assert asked == list(found) == [8, 16]
    for clock in ("gpu", "call"):
        assert {way: list(times) for way, times in found[8][clock].items()} == {"one": [1, 2], "two": [1]}
    assert list(timed(lambda: {"it": lambda: None}, runs=3)()) == ["it"]
    assert nested({(1, 2, 3): "a", (1, 2, 4): "b"}) == {1: {2: {3: "a", 4: "b"}}}


@pytest.mark.parametrize("lesson", sorted((ROOT / "source" / "lessons").glob("*.py")), ids=lambda path: path.stem)
def test_a_lesson_shows_the_label_of_each_experiment_that_it_reads(lesson):
    """The label names its runs, and an earlier version of a kernel where that was timed."""
    text = lesson.read_text(encoding="utf-8")
    read = set(re.findall(r'(?:h[12]00|recorded\("h200"\))\.experiment\(\s*"(\w+)"', text))
    labelled = {name for names in re.findall(r"label_of\(([^)]*)\)", text) for name in re.findall(r"[\"'](\w+)", names)}
    assert read - labelled == set()
    known = {name: each for each in RECORDS for name in each.experiments}
    rows = {row["kernel"] for each in RECORDS for row in each.rows}
    assert labelled <= known.keys() | rows
    assert all(each.label_of(name) for name, each in known.items() if name in labelled)


@pytest.mark.parametrize(("each", "rate"), [(0, 0.0), (1, 0.1), (4, 0.1)])
def test_dice_drop_what_they_should_and_scale_the_rest(each, rate):
    x, residual = torch.randn(2, 8, 1000)
    bias = torch.randn(1000)
    change = with_dice(each, x, bias, residual) - residual
    kept = change != 0
    assert (~kept).float().mean().item() == pytest.approx(rate, abs=0.015)
    scale = 1 / (1 - rate)
    torch.testing.assert_close(change[kept], (scale * (x + bias))[kept], rtol=1e-4, atol=1e-5)
    if each == 1:
        assert torch.equal(kept, kept_elements(3141, 8000, 0.1).view(8, 1000))


@pytest.mark.parametrize("parts", PARTS)
def test_a_split_row_has_the_loss_of_the_whole(parts):
    x, labels = torch.randn(3, 10_000), torch.randint(10_000, (3,))
    found = measure(split_loss, x, labels, parts)
    torch.testing.assert_close(found.result, functional.cross_entropy(x, labels, reduction="none"))
    assert found.launches == 2
    assert not found.hazards


@pytest.mark.parametrize(("name", "trips"), list(zip(VERSIONS, (5, 2, 1), strict=True)))
def test_each_way_to_the_top_k_makes_the_trips_it_is_named_for(name, trips):
    x = torch.randn(3, 5000)
    x[0, 7] = x[0, 3] = 9  # of equal scores the lower column is first
    found = measure(VERSIONS[name], x)
    values, indices = found.result
    expected = x.sort(dim=-1, descending=True, stable=True).indices[:, :K]
    assert torch.equal(indices, expected)
    torch.testing.assert_close(values, torch.softmax(x, -1).gather(1, expected))
    assert found.bytes_total / x.nbytes == pytest.approx(trips, rel=0.05)


@pytest.mark.parametrize(("name", "numbers"), [*lesson_14.WAYS.values(), *((c, 32) for c in lesson_14.CAPS.values())])
def test_each_way_of_cuda_adds_and_applies_gelu_in_one_trip(name, numbers):
    a, b = torch.randn(2, 2**14)
    found = measure(lesson_14.add_gelu_by, name, numbers, a, b, 256)
    expected = functional.gelu(a.double() + b.double(), approximate="tanh")
    torch.testing.assert_close(found.result.double(), expected, rtol=1e-5, atol=1e-6)
    assert found.bytes_total == 12 * a.numel()
    assert not found.hazards


@pytest.mark.parametrize(("width", "conflicts"), [(32, 4 * 32 * 31), (33, 0)])
def test_a_tile_of_33_columns_transposes_without_conflict(width, conflicts):
    x = torch.randn(64, 64)
    found = measure(lesson_14.transposed, x, width)
    assert torch.equal(found.result, x.T)
    assert found.bank_conflicts == conflicts
    assert not found.hazards


@pytest.mark.parametrize("source", ["ADD_GELU", "EIGHT", "TRANSPOSE"])
def test_what_was_timed_in_cuda_is_what_lesson_14_shows(source):
    lesson = Path(__file__).resolve().parents[1] / "source/lessons/14_cuda.py"
    assert getattr(lesson_14, source) in lesson.read_text(encoding="utf-8")


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 0), (3, 2)])
def test_the_lessons_convolution_is_pytorchs_with_batch_norm_and_relu(order, stride, padding):
    x, w = torch.randn(2, 5, 9, 7).half().contiguous(memory_format=order), (torch.randn(6, 5, 3, 3) / 7).half()
    (gamma, beta, mean), var = torch.randn(3, 6), torch.rand(6) + 0.5
    last = w.permute(0, 2, 3, 1).contiguous()
    scale, shift = lesson_09.folded(gamma, beta, mean, var)
    found = measure(lesson_09.conv_bn_relu, x, last, scale, shift, stride, padding)
    s = functional.conv2d(x.double(), w.double(), stride=stride, padding=padding)
    vectors = (each.double() for each in (mean, var, gamma, beta))
    expected = torch.relu(functional.batch_norm(s, *vectors, eps=lesson_09.EPS))
    torch.testing.assert_close(found.result.double(), expected, rtol=2e-3, atol=2e-3)
    assert found.launches == 1
    assert not found.hazards


@pytest.mark.parametrize("name", ["window", "products", "conv_bn_relu_kernel"])
def test_the_convolution_that_was_timed_is_the_one_that_lesson_09_shows(name):
    assert lesson_defines("09_convolution", getattr(lesson_09, name).fn)


@triton.jit
def relu_kernel(x_ptr, y_ptr, KEEPS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 32))
    y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) if KEEPS else tl.maximum(x, 0.0)
    tl.store(y_ptr + tl.arange(0, 32), y)


@pytest.mark.parametrize(("keeps", "instruction"), [(False, "max.f32"), (True, "max.NaN.f32")])
def test_a_maximum_drops_nan_unless_it_propagates_it_as_lesson_09_says(keeps, instruction):
    row = torch.empty(32, device="meta")
    made = compile_for(relu_kernel, row, row, device="H100", KEEPS=keeps)
    assert f"{instruction} " in " ".join(made.ptx.split()) + " "
    x, y = torch.full((32,), torch.nan), torch.empty(32)
    relu_kernel[(1,)](x, y, KEEPS=keeps)
    assert bool(y.isnan().all()) == keeps


@pytest.mark.parametrize("way", lesson_11.WAYS)
def test_each_way_to_add_up_gives_the_gradients_of_rms_norm(way):
    x, grad_y = torch.randn(2, 300, 65)
    leaves = x.double().requires_grad_(), torch.randn(65, dtype=torch.float64, requires_grad=True)
    y = functional.rms_norm(leaves[0], (65,), leaves[1], 1e-6)
    expected = torch.autograd.grad(y, leaves, grad_y.double())
    found = lesson_11.backward(way, grad_y, x, leaves[1].detach().float())
    for mine, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("tokens", "vocabulary", "chunk"), [(1, 7, 4), (10, 50, 3), (64, 1025, 64), (5, 20_000, 5)])
def test_a_loss_in_chunks_has_the_loss_and_gradients_of_the_whole(tokens, vocabulary, chunk):
    hidden, weight = (torch.randn(size, 8, requires_grad=True) for size in (tokens, vocabulary))
    labels = torch.randint(vocabulary, (tokens,))

    def loss_and_gradients(loss, *leaves):
        value = loss(*leaves, labels)
        return value, *torch.autograd.grad(3 * value, leaves)

    def whole(hidden, weight, labels):
        return functional.cross_entropy(hidden @ weight.T, labels)

    exact = loss_and_gradients(whole, *(each.detach().double().requires_grad_() for each in (hidden, weight)))
    usual = loss_and_gradients(whole, hidden, weight)
    found = loss_and_gradients(partial(lesson_11.linear_loss, chunk=chunk), hidden, weight)
    for mine, pytorch, truth in zip(found, usual, exact, strict=True):
        own, largest = (pytorch - truth).abs().max(), truth.abs().max().clamp(min=1)
        assert (mine - truth).abs().max() <= 2 * own + 2**-23 * largest


def test_the_tokens_follow_the_one_before_the_last():
    text = next(training.batches(training.SMALL, "cpu"))
    assert torch.equal(text, next(training.batches(training.SMALL, "cpu")))
    pairs = {(int(a), int(b)) for row in text for a, b in zip(row[:-2], row[2:], strict=True)}
    assert max(sum(first == token for first, _ in pairs) for token in range(32)) <= training.BRANCHES


def test_fused_training_is_the_training_written_out_and_what_was_recorded():
    runs = [
        training.train(training.prepared(parts, training.SMALL), training.SMALL, 3)
        for parts in (training.UNFUSED, training.FUSED)
    ]
    assert runs[0] == pytest.approx(runs[1], abs=1e-5)
    minute = recorded("cpu").experiment("training")
    assert [minute["fused"][step] for step in range(3)] == pytest.approx(runs[1], abs=1e-4)
