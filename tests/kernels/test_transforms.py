"""Every kernel under what PyTorch does to functions and tensors: traced, transformed, without data, with a sign that is
not in memory. Right, or refused in one line."""

import pytest
import torch
from accuracy import as_tuple, is_float
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

import kernels
from kernels import CATALOGUE, launch_cache
from kernels.interpreter import runtime

# rope_cache writes into a cache it is given and has no gradient; its own test is below.
DIFFERENTIABLE = {name: op for name, op in CATALOGUE.items() if name != "rope_cache"}
OPS = pytest.mark.parametrize("op", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)


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


class Wrapper(torch.Tensor):
    """A tensor that holds another, and sees every operator."""

    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, strides=x.stride(), dtype=x.dtype, device=x.device)

    def __init__(self, x):
        self.held = x

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(Wrapper, lambda x: x.held, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapper, function(*args, **kwargs))


class Mode(TorchDispatchMode):
    """A dispatch mode that changes nothing."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def inside(mode, transform):
    def run(function, x):
        with mode():
            return transform(function, x)

    return run


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
    return torch.autograd.grad(y, x, torch.ones(2, *y.shape, device=y.device), is_grads_batched=True)


def jvp(function, x):
    return torch.func.jvp(function, (x,), (torch.ones_like(x),))


def dual_wrapper(function, x):
    with forward_ad.dual_level():
        return function(forward_ad.make_dual(Wrapper(x), Wrapper(torch.ones_like(x))))


def vmap(function, x):
    return torch.func.vmap(function)(torch.stack([x, x]))


def jacobian(function, x, **options):
    return torch.autograd.functional.jacobian(lambda x: as_tuple(function(x))[0], x, vectorize=True, **options)


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
    "dual numbers in a dispatch mode": (inside(Mode, dual), "forward-mode"),
    "dual numbers of a wrapper": (dual_wrapper, "forward-mode"),
    "jvp in a mode of one's own": (inside(Mode, jvp), "forward-mode"),
    "jacfwd": (lambda function, x: torch.func.jacfwd(function)(x), "forward-mode"),
    "jacobian in forward mode": (lambda function, x: jacobian(function, x, strategy="forward-mode"), "forward-mode"),
    "vmap in a dispatch mode": (inside(Mode, vmap), "vmap"),
    "vmap of a counter": (inside(lambda: FlopCounterMode(display=False), vmap), "vmap"),
    "jacobian of a batch": (jacobian, "batched gradients"),
    "batched gradients in a dispatch mode": (inside(Mode, batched_gradients), "batched gradients"),
}
COMPILED = {
    "jvp": (compiled(jvp), "forward-mode"),
    "vmap": (compiled(lambda function, x: torch.func.vmap(function)(torch.stack([x, x]))), "vmap"),
}


@OPS
@pytest.mark.parametrize("how", LOST)
def test_what_would_be_lost_is_refused(op, inputs, how):
    """A tangent that PyTorch would drop, or a batch of which a kernel would see one sample."""
    if LOST[how][1] == "batched gradients" and not op.backward_work:
        pytest.skip("has no backward pass")
    transform, word = LOST[how]
    with pytest.raises(RuntimeError) as raised:
        transform(lambda x: op.fused(x, *inputs[1:]), inputs[0])
    one_line(raised, word, "kernels.", ".reference")


LOST_WITHOUT_GRADIENTS = [each for each in LOST.values() if each[1] != "batched gradients"]


@pytest.mark.parametrize(("transform", "word"), [*LOST_WITHOUT_GRADIENTS, *COMPILED.values()])
def test_what_a_cache_would_lose_is_refused(transform, word, device):
    op = CATALOGUE["rope_cache"]
    inputs = op.inputs(*op.interpreter_shapes[1], dtype=torch.float32, device=device)
    with pytest.raises(RuntimeError) as raised:
        transform(lambda q: op.fused(q, *inputs[1:]), inputs[0])
    one_line(raised, word, "kernels.rope_cache.reference")


@pytest.mark.parametrize("name", ["softmax", "l2_norm"])
@pytest.mark.parametrize("how", COMPILED)
def test_what_would_be_lost_is_refused_in_compiled_graphs(name, how, device):
    transform, word = COMPILED[how]
    with pytest.raises(RuntimeError) as raised:
        transform(CATALOGUE[name].fused, torch.randn(3, 5, device=device))
    one_line(raised, word, f"kernels.{name}.reference")


def squared(function):
    return lambda x: as_tuple(function(x))[0].square().sum()


def twice(function, x, of=lambda x: x):
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(squared(function)(of(x)), x, create_graph=True)
    return torch.autograd.grad(found.square().sum(), x)


def functional_twice(function, x):
    return torch.func.grad(lambda x: torch.func.grad(squared(function))(x).sum())(x)


SECOND = {
    "eager": twice,
    "in a dispatch mode": inside(Mode, twice),
    "of a counter": inside(lambda: FlopCounterMode(display=False), twice),
    "of a subclass": lambda function, x: twice(function, x, lambda x: x.as_subclass(Subclass)),
    "traced": lambda function, x: make_fx(lambda x: twice(function, x))(x),
    "functional": functional_twice,
    "functional in a dispatch mode": inside(Mode, functional_twice),
    "functional, traced": lambda function, x: make_fx(lambda x: functional_twice(function, x))(x),
    "reverse over reverse": lambda function, x: torch.func.jacrev(torch.func.grad(squared(function)))(x),
    "hvp": lambda function, x: torch.autograd.functional.hvp(squared(function), x, torch.ones_like(x)),
}
MIXED = {
    "forward over reverse": lambda function, x: torch.func.hessian(squared(function))(x),
    "linearized": lambda function, x: torch.func.linearize(torch.func.grad(squared(function)), x),
    "jvp of a gradient": lambda function, x: jvp(torch.func.grad(squared(function)), x),
    "jvp of a gradient in a dispatch mode": inside(
        Mode, lambda function, x: jvp(torch.func.grad(squared(function)), x)
    ),
}


@OPS
@pytest.mark.parametrize("how", [*SECOND, *MIXED])
def test_second_derivatives_are_refused(op, inputs, how):
    if not op.backward_work:
        pytest.skip("has no backward pass")
    with pytest.raises(RuntimeError) as raised:
        (SECOND | MIXED)[how](lambda x: op.fused(x, *inputs[1:]), inputs[0])
    one_line(raised, "differentiable once" if how in SECOND else "derivative", "kernels.", ".reference")


FUNCTIONAL = {
    "eager": lambda function, x: torch.func.grad(function)(x),
    "in a dispatch mode": inside(Mode, lambda function, x: torch.func.grad(function)(x)),
    "of a counter": inside(lambda: FlopCounterMode(display=False), lambda function, x: torch.func.grad(function)(x)),
    "traced": lambda function, x: make_fx(torch.func.grad(function))(x)(x),
}


@OPS
@pytest.mark.parametrize("how", FUNCTIONAL)
def test_a_functional_gradient_is_right_or_refused(op, inputs, how):
    of_first = squared(lambda x: op.fused(x, *inputs[1:]))
    if op.backward_work:
        found = FUNCTIONAL[how](of_first, inputs[0])
        torch.testing.assert_close(
            found, torch.autograd.grad(of_first(inputs[0].requires_grad_()), inputs[0])[0], rtol=0, atol=0
        )
    else:
        with pytest.raises(RuntimeError) as raised:
            FUNCTIONAL[how](of_first, inputs[0])
        one_line(raised, f"{op.name} has no backward pass")


def test_a_functional_gradient_under_compile_is_refused(device):
    def gradient(function, x):
        return torch.func.grad(lambda x: function(x).sum())(x)

    with pytest.raises(RuntimeError, match=r"has no torch\.func gradient under torch\.compile: take it with"):
        compiled(gradient)(kernels.softmax, torch.randn(3, 5, device=device))


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
    with pytest.raises(TypeError, match=r"^flash_attention takes causal as bool, got a tensor .*: for a mask"):
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
