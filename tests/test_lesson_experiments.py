"""What the lessons' experiments time is what they say: values against PyTorch's, trips by the meter."""

import inspect
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from benchmarks import convolutions, cuda_four_ways
from benchmarks.dice import with_dice
from benchmarks.split_rows import PARTS, split_loss
from benchmarks.top_k_parts import VERSIONS, K
from helpers.instruments import measure
from helpers.learning import kept_elements


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


@pytest.mark.parametrize(
    ("name", "numbers"), [*cuda_four_ways.WAYS.values(), *((c, 32) for c in cuda_four_ways.CAPS.values())]
)
def test_each_way_of_cuda_adds_and_applies_gelu_in_one_trip(name, numbers):
    a, b = torch.randn(2, 2**14)
    found = measure(cuda_four_ways.add_gelu_by, name, numbers, a, b, 256)
    expected = functional.gelu(a.double() + b.double(), approximate="tanh")
    torch.testing.assert_close(found.result.double(), expected, rtol=1e-5, atol=1e-6)
    assert found.bytes_total == 12 * a.numel()
    assert not found.hazards


@pytest.mark.parametrize(("width", "conflicts"), [(32, 4 * 32 * 31), (33, 0)])
def test_a_tile_of_33_columns_transposes_without_conflict(width, conflicts):
    x = torch.randn(64, 64)
    found = measure(cuda_four_ways.transposed, x, width)
    assert torch.equal(found.result, x.T)
    assert found.bank_conflicts == conflicts
    assert not found.hazards


@pytest.mark.parametrize("source", ["ADD_GELU", "EIGHT", "TRANSPOSE"])
def test_what_was_timed_in_cuda_is_what_lesson_14_shows(source):
    lesson = Path(__file__).resolve().parents[1] / "source/lessons/14_cuda.py"
    assert getattr(cuda_four_ways, source) in lesson.read_text(encoding="utf-8")


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 0), (3, 2)])
def test_the_lessons_convolution_is_pytorchs_with_batch_norm_and_relu(order, stride, padding):
    x, w = torch.randn(2, 5, 9, 7).half().contiguous(memory_format=order), (torch.randn(6, 5, 3, 3) / 7).half()
    (gamma, beta, mean), var = torch.randn(3, 6), torch.rand(6) + 0.5
    last = w.permute(0, 2, 3, 1).contiguous()
    scale, shift = convolutions.folded(gamma, beta, mean, var)
    found = measure(convolutions.conv_bn_relu, x, last, scale, shift, stride, padding)
    s = functional.conv2d(x.double(), w.double(), stride=stride, padding=padding)
    vectors = (each.double() for each in (mean, var, gamma, beta))
    expected = torch.relu(functional.batch_norm(s, *vectors, eps=convolutions.EPS))
    torch.testing.assert_close(found.result.double(), expected, rtol=2e-3, atol=2e-3)
    assert found.launches == 1
    assert not found.hazards


@pytest.mark.parametrize("name", ["window", "products", "conv_bn_relu_kernel"])
def test_the_convolution_that_was_timed_is_the_one_that_lesson_09_shows(name):
    lesson = Path(__file__).resolve().parents[1] / "source/lessons/09_convolution.py"
    assert inspect.getsource(getattr(convolutions, name).fn) in lesson.read_text(encoding="utf-8")
