"""What is layer_norm_act's own: four activations, their gradients, and its module."""

import pytest
import torch
from accuracy import assert_as_accurate, doubled

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
    theirs = layer_norm_act_reference(*inputs, act)
    assert_as_accurate(layer_norm_act(*inputs, act), theirs, layer_norm_act_reference(*doubled(inputs), act))


@pytest.mark.parametrize(("cols", "stride", "offset"), [(8193, 8193, 1), (9001, 9100, 3), (16384, 16384, 0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_that_fill_the_registers(cols, stride, offset, dtype, device, poisoned):
    """Odd strides and odd starts too; a mean far from zero, a NaN and an infinity in rows of their own."""
    x = torch.randn(5 * stride + offset, device=device).to(dtype)[offset:].view(5, stride)[:, :cols]
    x[0] += 100
    x[1, cols - 1], x[2, 0] = float("nan"), float("inf")
    weight, bias = torch.randn(2, cols, device=device).to(dtype)
    ours = layer_norm_act(x, weight, bias, "silu")
    theirs = layer_norm_act_reference(x, weight, bias, "silu")
    assert ours[1:3].isnan().all()
    assert_as_accurate(ours, theirs, layer_norm_act_reference(x.double(), weight.double(), bias.double(), "silu"))


@pytest.mark.parametrize(
    "act", ["gelu", *(pytest.param(act, marks=pytest.mark.long) for act in ACTIVATIONS if act != "gelu")]
)
def test_gradcheck(act, device):
    inputs = leaves(3, 7, device=device, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *inputs: layer_norm_act(*inputs, act), inputs)


@ACTS
@pytest.mark.parametrize("cols", [65, 9000])
def test_gradients(act, cols, device, poisoned):
    inputs = leaves(3, cols, device=device)
    grad_y = torch.randn(3, cols, device=device)
    ours = torch.autograd.grad(layer_norm_act(*inputs, act), inputs, grad_y)
    theirs = torch.autograd.grad(layer_norm_act_reference(*inputs, act), inputs, grad_y)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    exact = torch.autograd.grad(layer_norm_act_reference(*doubles, act), doubles, grad_y.double())
    assert_as_accurate(ours, theirs, exact)


def test_module(device):
    x = torch.randn(3, 33, device=device)
    module = LayerNormAct(33, act="silu", device=device)
    assert torch.equal(module(x), layer_norm_act(x, module.weight, module.bias, "silu"))
    module(x).sum().backward()
    assert module.weight.grad.isfinite().all()


def test_another_activation(device):
    inputs = [x.detach() for x in leaves(2, 9, device=device)]
    message = "layer_norm_act takes act of relu, gelu, gelu_tanh, silu, got 'tanh': choose one of them"
    with pytest.raises(ValueError, match=message):
        layer_norm_act(*inputs, "tanh")
    with pytest.raises(ValueError, match="LayerNormAct takes act"):
        LayerNormAct(9, act="tanh")
