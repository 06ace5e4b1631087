"""Every kernel under what PyTorch does to functions and tensors: traced, transformed, without data, with a sign that is
not in memory. Right, or refused in one line."""

import pytest
import torch
from accuracy import as_tuple, is_float
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from kernels import CATALOGUE
from kernels.interpreter import runtime

OPS = pytest.mark.parametrize("op", CATALOGUE.values(), ids=CATALOGUE)


@pytest.fixture
def inputs(op, device):
    """Arguments of the second shape: awkward and small."""
    return op.inputs(*op.interpreter_shapes[1], dtype=torch.float32, device=device)


def one_line(raised, *words):
    assert "\n" not in str(raised.value)
    assert all(word in str(raised.value) for word in words), str(raised.value)


@OPS
def test_a_view_that_only_says_that_it_is_negative(op, inputs):
    viewed = [torch._neg_view(x) if is_float(x) else x for x in inputs]
    negated = [-x if is_float(x) else x for x in inputs]
    for ours, expected in zip(as_tuple(op.fused(*viewed)), as_tuple(op.fused(*negated)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


@OPS
def test_a_gradient_that_only_says_that_it_is_negative(op, inputs):
    if not op.backward_work:
        pytest.skip("has no backward pass")
    leaves = [x.requires_grad_() if is_float(x) else x for x in inputs]
    y = as_tuple(op.fused(*leaves))[0]
    weights = torch.randn_like(y)
    wanted = [x for x in leaves if is_float(x)]
    ours = torch.autograd.grad(y, wanted, torch._neg_view(weights), retain_graph=True)
    for mine, expected in zip(ours, torch.autograd.grad(y, wanted, -weights), strict=True):
        torch.testing.assert_close(mine, expected)


@OPS
@pytest.mark.parametrize("mode", ["meta", "fake"])
def test_shapes_of_tensors_without_data(op, inputs, mode):
    expected = as_tuple(op.fused(*inputs))
    if mode == "meta":
        found = op.fused(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in inputs))
    else:
        with FakeTensorMode() as fake:
            found = op.fused(*(fake.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in inputs))
    for y, real in zip(as_tuple(found), expected, strict=True):
        assert (y.shape, y.dtype, y.stride()) == (real.shape, real.dtype, real.stride())


@OPS
def test_a_trace_holds_the_operator(op, inputs):
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    options = inputs[len(tensors) :]
    graph = make_fx(lambda *tensors: op.fused(*tensors, *options), tracing_mode="fake")(*tensors)
    assert "kernel_fusion" in graph.code
    for ours, expected in zip(as_tuple(graph(*tensors)), as_tuple(op.fused(*inputs)), strict=True):
        assert torch.equal(ours, expected)


@OPS
def test_what_would_be_lost_is_refused(op, inputs):
    x = inputs[0]

    def of_first(x):
        return op.fused(x, *inputs[1:])

    with forward_ad.dual_level(), pytest.raises(RuntimeError) as raised:
        of_first(forward_ad.make_dual(x, torch.ones_like(x)))
    one_line(raised, "forward-mode", "_reference")
    with pytest.raises(RuntimeError) as raised:
        torch.func.jvp(of_first, (x,), (torch.ones_like(x),))
    one_line(raised, "forward-mode")
    with pytest.raises(RuntimeError) as raised:
        torch.func.vmap(of_first)(torch.stack([x, x]))
    one_line(raised, "vmap", "_reference")


@OPS
def test_tensors_that_are_not_dense_are_refused(op, inputs):
    with pytest.raises(TypeError) as raised:
        op.fused(inputs[0].to_sparse(), *inputs[1:])
    one_line(raised, "dense", ".to_dense()")


def test_jit_trace_holds_the_operator(device):
    softmax = CATALOGUE["softmax"]
    x = torch.randn(3, 5, device=device)
    traced = torch.jit.trace(softmax.fused, x)
    assert torch.equal(traced(2 * x), softmax.fused(2 * x))


def test_a_tensor_on_the_cpu_is_refused_where_kernels_run_on_a_gpu(monkeypatch):
    monkeypatch.setattr(runtime, "interprets", lambda: False)
    with pytest.raises(ValueError, match=r"^softmax runs on the GPU here, got tensors on cpu: move them with \.cuda"):
        CATALOGUE["softmax"].fused(torch.ones(3))
