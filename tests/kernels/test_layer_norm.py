"""LayerNorm and what is built on it: means far from zero, padding, rows of any width, gradients, modules, bytes."""

import pytest
import torch

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import CATALOGUE
from kernels.rowwise.layer_norm import (
    LayerNorm,
    backward_settings,
    layer_norm,
    layer_norm_backward_kernel,
    layer_norm_backward_op,
    layer_norm_packed_backward_kernel,
    layer_norm_reference,
)

CENTRED = pytest.mark.parametrize("name", ["layer_norm", "residual_layer_norm", "layer_norm_act"])


def first(result) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


def written_out(x, weight, bias, eps=1e-5):
    """LayerNorm step by step, as the docstring has it."""
    centred = x - x.mean(dim=-1, keepdim=True)
    rstd = ((centred * centred).mean(dim=-1, keepdim=True) + eps).rsqrt()
    return centred * rstd * weight + bias


def by_squares(x, weight, bias, eps=1e-5):
    """The wrong LayerNorm: E[x^2] - E[x]^2."""
    mean = x.mean(dim=-1, keepdim=True)
    variance = (x * x).mean(dim=-1, keepdim=True) - mean * mean
    return (x - mean) * (variance + eps).rsqrt() * weight + bias


def counting_padding(x, weight, bias, eps=1e-5):
    """The wrong LayerNorm: lanes past the row's end count as -mean in the variance."""
    cols = x.shape[-1]
    centred = x - x.mean(dim=-1, keepdim=True)
    padding = 2 ** (cols - 1).bit_length() - cols
    variance = ((centred * centred).sum(dim=-1) + padding * x.mean(dim=-1) ** 2)[..., None] / cols
    return centred * (variance + eps).rsqrt() * weight + bias


@pytest.mark.parametrize("shape", [(3, 65), (2, 1000), (1, 40000)])
@CENTRED
def test_a_mean_of_ten_thousand(name, shape, device, poisoned):
    op = CATALOGUE[name]
    inputs = [x + 1e4 * (x.shape == shape) for x in op.inputs(*shape, device=device)]
    exact = first(op.reference(*[x.double() for x in inputs]))
    # x itself has lost 1e4 * 2^-24 of its digits; what is added to that stays of its order.
    assert (first(op.fused(*inputs)) - exact).abs().amax() < 0.01
    if name == "layer_norm":
        for wrong in (by_squares, counting_padding):
            assert not (wrong(*inputs) - exact).abs().amax() <= 0.02


@pytest.mark.parametrize("cols", [1024, 4096])
def test_a_mean_of_16_bits_far_from_zero(cols, device, poisoned):
    """Rows that fill a block are merged from means and variances of threads. One has a first element far from all."""
    x = (16384 + 16 * torch.randint(-1, 2, (3, cols), device=device)).half()
    x[2, 1:], x[2, 0] = torch.randn(cols - 1, device=device), 30000
    weight, bias = torch.ones(cols, device=device).half(), torch.zeros(cols, device=device).half()
    exact = written_out(x.double(), 1.0, 0.0)
    assert (layer_norm(x, weight, bias) - exact).abs().amax() <= torch.finfo(torch.half).eps * exact.abs().amax()
    assert not (by_squares(x.float(), 1.0, 0.0) - exact)[:2].abs().amax() <= 0.02


@CENTRED
def test_a_constant_row_without_eps_is_nan_as_in_pytorch(name, device):
    op = CATALOGUE[name]
    inputs = [torch.full_like(x, 3.0) for x in op.inputs(2, 64, device=device)]
    assert first(op.fused(*inputs, eps=0.0)).isnan().all()
    assert first(op.reference(*inputs, eps=0.0)).isnan().all()
    assert first(op.fused(*inputs)).isfinite().all()


@pytest.mark.parametrize("cols", [8193, 20000])
def test_gradients_of_wide_rows(cols, device, poisoned):
    leaves = [torch.randn(3, cols, device=device), *torch.randn(2, cols, device=device)]
    leaves = [x.requires_grad_() for x in leaves]
    grad_y = torch.randn(3, cols, device=device)
    ours = torch.autograd.grad(layer_norm(*leaves), leaves, grad_y)
    exact = torch.autograd.grad(layer_norm_reference(*[x.double() for x in leaves]), leaves, grad_y.double())
    for mine, truth in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-4, atol=1e-4)


def test_module_takes_pytorchs_state(device):
    x = torch.randn(5, 33, device=device)
    ours, theirs = LayerNorm(33, device=device), torch.nn.LayerNorm(33, device=device)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x), theirs(x))


def test_fp32_weights_of_16_bit_activations_under_autocast(device):
    module = LayerNorm(33, device=device)
    x = torch.randn(5, 33, device=device, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = module(x)
    y.float().sum().backward()
    assert (y.dtype, x.grad.dtype, module.weight.grad.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    torch.testing.assert_close(module.bias.grad, torch.full((33,), 5.0, device=device))


def test_unfused_bytes_of_the_docstrings():
    """Per element in fp32, but for what is read or written once a row."""
    x, residual, weight, bias = torch.randn(256, 512), torch.randn(256, 512), torch.randn(512), torch.randn(512)

    for function, inputs, launches, expected in (
        (written_out, (x, weight, bias), 9, 48),
        (CATALOGUE["residual_layer_norm"].reference, (x, residual, weight, bias), 2, 20),
        (CATALOGUE["layer_norm_act"].reference, (x, weight, bias), 2, 16),
        (CATALOGUE["layer_norm_int8"].reference, (x, weight, bias), 8, 41),
    ):
        traffic = measure(function, *inputs)
        assert traffic.launches == launches
        assert traffic.bytes_total / x.numel() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("cols", "reads"), [(300, 1), (17000, 2)])
def test_a_backward_pass_reads_rows_once_and_wide_ones_twice(cols, reads):
    grad_y, x, *affine = torch.randn(2, 3, cols).unbind() + torch.randn(2, cols).unbind()
    traffic = measure(lambda: layer_norm_backward_op(grad_y, x, *affine, 1e-5))
    assert traffic.by_tensor["grad_y"].read == traffic.by_tensor["x"].read == reads * x.nbytes
    assert traffic.by_tensor["result[0]"].written == x.nbytes
    assert traffic.hazards == ()


def bf16_rows(rows, cols, stride, offset, device):
    """Rows that start at an odd address where `stride` or `offset` is odd."""
    return torch.randn(rows * stride + offset, device=device).bfloat16()[offset:].view(rows, stride)[:, :cols]


@pytest.mark.parametrize(("cols", "stride", "offset"), [(8194, 8200, 2), (16384, 16384, 0)])
def test_bf16_rows_of_pairs_are_read_once(cols, stride, offset):
    x, grad_y = (bf16_rows(3, cols, stride, offset, "cpu") for _ in range(2))
    weight = torch.randn(cols).bfloat16()
    traffic = measure(lambda: layer_norm_backward_op(grad_y, x, weight, weight, 1e-5))
    # The next row is touched at every 32nd element.
    assert x.nbytes <= traffic.by_tensor["x"].read <= 1.05 * x.nbytes
    assert x.nbytes <= traffic.by_tensor["grad_y"].read <= 1.05 * x.nbytes
    assert traffic.hazards == ()


@pytest.mark.parametrize(
    ("cols", "stride", "offset"),
    [(8194, 8200, 2), (16384, 16384, 0), (9001, 9002, 0), (8194, 8195, 0), (8194, 8194, 1)],
)
def test_bf16_gradients_of_wide_rows(cols, stride, offset, device, poisoned):
    rows = 5 if device == "cpu" else 300  # more than multiprocessors, or the kernels for few rows run
    leaves = [bf16_rows(rows, cols, stride, offset, device), *torch.randn(2, cols, device=device).bfloat16()]
    leaves = [x.detach().requires_grad_() for x in leaves]
    grad_y = bf16_rows(rows, cols, stride, offset, device)
    ours = torch.autograd.grad(layer_norm(*leaves), leaves, grad_y)
    native = torch.autograd.grad(layer_norm_reference(*leaves), leaves, grad_y)
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    exact = torch.autograd.grad(layer_norm_reference(*doubles), doubles, grad_y.double())
    for mine, theirs, truth in zip(ours, native, exact, strict=True):
        allowed = 2 * (theirs - truth).abs().amax() + torch.finfo(torch.bfloat16).eps * truth.abs().amax()
        assert (mine - truth).abs().amax() <= allowed


@pytest.mark.parametrize("gpu", ["A100", "H100"])
@pytest.mark.parametrize("cols", [1024, 4096, 8192])
def test_backward_does_not_spill(cols, gpu):
    x, sums = torch.bfloat16, torch.float32
    shape = (32768, cols, cols, cols, 1e-5)
    room = {"A100": 163 * 2**10, "H100": 227 * 2**10}[gpu]
    chosen = backward_settings(cols, x, room)
    layer = compile_for(layer_norm_backward_kernel, *[x] * 4, *[sums] * 2, *shape, device=gpu, **chosen)
    assert layer.spill_bytes == 0


def test_backward_of_packed_rows_does_not_spill():
    x, sums = torch.bfloat16, torch.float32
    arguments = (*[x] * 4, *[sums] * 2, 32768, *[16384] * 3, 1e-5)
    options = {"BLOCK_COLS": 16384, "num_warps": 16}
    assert compile_for(layer_norm_packed_backward_kernel, *arguments, **options).spill_bytes == 0
