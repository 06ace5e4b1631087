"""What is layer_norm_act's own: four activations, their gradients, and its module."""

import pytest
import torch

from kernels import layer_norm_act
from kernels.activations import ACTIVATIONS
from kernels.rowwise.layer_norm_act import LayerNormAct, layer_norm_act_reference

ACTS = pytest.mark.parametrize("act", ACTIVATIONS)


def leaves(*shape, device, dtype=torch.float32):
    sizes = (shape, shape[-1:], shape[-1:])
    return [torch.randn(size, device=device, dtype=dtype).requires_grad_() for size in sizes]


@ACTS
@pytest.mark.parametrize("cols", [127, 40000])
def test_values(act, cols, device, poisoned):
    inputs = [x.detach() for x in leaves(2, cols, device=device)]
    exact = layer_norm_act_reference(*[x.double() for x in inputs], act)
    torch.testing.assert_close(layer_norm_act(*inputs, act).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("cols", "stride", "offset"), [(8193, 8193, 1), (9001, 9100, 3), (16384, 16384, 0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_that_stay_in_l1(cols, stride, offset, dtype, device, poisoned):
    """Odd strides and odd starts too; a mean far from zero, a NaN and an infinity in rows of their own."""
    rows = 5 if device == "cpu" else 300  # more than multiprocessors, or another kernel runs
    x = torch.randn(rows * stride + offset, device=device).to(dtype)[offset:].view(rows, stride)[:, :cols]
    x[0] += 100
    x[1, cols - 1], x[2, 0] = float("nan"), float("inf")
    weight, bias = torch.randn(2, cols, device=device).to(dtype)
    ours = layer_norm_act(x, weight, bias, "silu")
    theirs = layer_norm_act_reference(x, weight, bias, "silu")
    exact = layer_norm_act_reference(x.double(), weight.double(), bias.double(), "silu")
    assert ours[1:3].isnan().all()
    whole = [row for row in range(rows) if row not in (1, 2)]
    allowed = 2 * (theirs - exact)[whole].abs().amax() + torch.finfo(dtype).eps * exact[whole].abs().amax()
    assert (ours - exact)[whole].abs().amax() <= allowed


@ACTS
def test_gradcheck(act, device):
    inputs = leaves(3, 7, device=device, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *inputs: layer_norm_act(*inputs, act), inputs)


@ACTS
@pytest.mark.parametrize("cols", [65, 9000])
def test_gradients(act, cols, device, poisoned):
    inputs = leaves(3, cols, device=device)
    grad_y = torch.randn(3, cols, device=device)
    ours = torch.autograd.grad(layer_norm_act(*inputs, act), inputs, grad_y)
    doubles = [x.double() for x in inputs]
    exact = torch.autograd.grad(layer_norm_act_reference(*doubles, act), inputs, grad_y.double())
    for mine, truth in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-4, atol=1e-4)


def test_module(device):
    x = torch.randn(3, 33, device=device)
    module = LayerNormAct(33, act="silu", device=device)
    torch.testing.assert_close(module(x), torch.nn.functional.silu(torch.nn.functional.layer_norm(x, (33,))))
    module(x).sum().backward()
    assert module.weight.grad.isfinite().all()


def test_another_activation(device):
    inputs = [x.detach() for x in leaves(2, 9, device=device)]
    message = "layer_norm_act takes act of relu, gelu, gelu_tanh, silu, got 'tanh': choose one of them"
    with pytest.raises(ValueError, match=message):
        layer_norm_act(*inputs, "tanh")
    with pytest.raises(ValueError, match="LayerNormAct takes act"):
        LayerNormAct(9, act="tanh")
