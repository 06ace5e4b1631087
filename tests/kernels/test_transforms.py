"""Every kernel under what PyTorch does to functions and tensors: traced, transformed, without data, with a sign that is
not in memory. Right, or refused in one line."""

import pytest
import torch
from accuracy import as_tuple, is_float
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import kernels
from kernels import CATALOGUE, launch_cache
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


class Subclass(torch.Tensor):
    """A tensor class of a user's own."""


def dual(function, x):
    with forward_ad.dual_level():
        return function(forward_ad.make_dual(x, torch.ones_like(x)))


def dual_subclass(function, x):
    with forward_ad.dual_level():
        return function(forward_ad.make_dual(x, torch.ones_like(x)).as_subclass(Subclass))


def counted(function, x):
    with FlopCounterMode(display=False):
        return torch.func.jvp(function, (x,), (torch.ones_like(x),))


def compiled(transform):
    """Dynamo wraps the refusal in many lines of its own."""

    def run(function, x):
        try:
            return torch.compile(lambda x: transform(function, x), backend="aot_eager")(x)
        except Exception as error:
            raise RuntimeError(next(line for line in str(error).splitlines() if "kernels." in line)) from None

    return run


def batched_gradients(function, x):
    x = x.clone().requires_grad_()
    y = as_tuple(function(x))[0]
    return torch.autograd.grad(y, x, torch.ones(2, *y.shape), is_grads_batched=True)


def jvp(function, x):
    return torch.func.jvp(function, (x,), (torch.ones_like(x),))


LOST = {
    "dual numbers": (dual, "forward-mode"),
    "dual numbers of a subclass": (dual_subclass, "forward-mode"),
    "jvp": (jvp, "forward-mode"),
    "jvp in a dispatch mode": (counted, "forward-mode"),
    "jvp traced": (lambda function, x: make_fx(lambda x: jvp(function, x))(x), "forward-mode"),
    "linearize": (lambda function, x: torch.func.linearize(function, x)[1](torch.ones_like(x)), "forward-mode"),
    "vmap": (lambda function, x: torch.func.vmap(function)(torch.stack([x, x])), "vmap"),
    "vmap traced": (lambda function, x: make_fx(torch.func.vmap(function))(torch.stack([x, x])), "vmap"),
    "batched gradients": (batched_gradients, "batched gradients"),
}
COMPILED = {
    "jvp": (compiled(jvp), "forward-mode"),
    "vmap": (compiled(lambda function, x: torch.func.vmap(function)(torch.stack([x, x]))), "vmap"),
}


@OPS
@pytest.mark.parametrize("how", LOST)
def test_what_would_be_lost_is_refused(op, inputs, how):
    """A tangent that PyTorch would drop, or a batch of which a kernel would see one sample."""
    if how == "batched gradients" and not op.backward_work:
        pytest.skip("has no backward pass")
    transform, word = LOST[how]
    with pytest.raises(RuntimeError) as raised:
        transform(lambda x: op.fused(x, *inputs[1:]), inputs[0])
    one_line(raised, word, "kernels.", ".reference")


@pytest.mark.parametrize("name", ["softmax", "l2_norm"])
@pytest.mark.parametrize("how", COMPILED)
def test_what_would_be_lost_is_refused_in_compiled_graphs(name, how, device):
    transform, word = COMPILED[how]
    with pytest.raises(RuntimeError) as raised:
        transform(CATALOGUE[name].fused, torch.randn(3, 5, device=device))
    one_line(raised, word, f"kernels.{name}.reference")


@OPS
def test_a_functional_gradient_is_right_or_refused(op, inputs):
    def of_first(x):
        return as_tuple(op.fused(x, *inputs[1:]))[0].sum()

    if op.backward_work:
        torch.testing.assert_close(
            torch.func.grad(of_first)(inputs[0]),
            torch.autograd.grad(of_first(inputs[0].requires_grad_()), inputs[0])[0],
        )
    else:
        with pytest.raises(RuntimeError) as raised:
            torch.func.grad(of_first)(inputs[0])
        one_line(raised, f"{op.name} has no backward pass")


def test_the_reference_that_messages_name_is_there():
    for name, op in CATALOGUE.items():
        assert getattr(kernels, name).reference is op.reference


def test_nested_tensors_and_sparse_vectors_are_refused_in_words(device):
    x = torch.randn(3, 5, device=device)
    with pytest.raises(TypeError, match=r"^softmax takes dense tensors, got x nested: use \.to_padded_tensor"):
        kernels.softmax(torch.nested.nested_tensor([x, x]))
    with pytest.raises(TypeError, match=r"^layer_norm takes dense tensors, got weight in layout sparse_coo: use"):
        kernels.layer_norm(x, torch.ones(5, device=device).to_sparse())


def test_a_tensor_as_an_option_is_shown_in_one_line(device):
    q = torch.randn(1, 1, 4, 16, device=device)
    with pytest.raises(TypeError, match=r"^flash_attention takes causal as bool, got a tensor of shape \(4, 4\): pass"):
        kernels.flash_attention(q, q, q, torch.ones(4, 4, device=device) > 0)


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
    monkeypatch.setattr(launch_cache, "enabled", False)  # there is no GPU to ask
    with pytest.raises(ValueError, match=r"^softmax runs on the GPU here, got tensors on cpu: move them with \.cuda"):
        CATALOGUE["softmax"].fused(torch.ones(3))
