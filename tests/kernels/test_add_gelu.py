"""What is add_gelu's own: its gradient, its registration, its errors, and on a GPU its streams, graphs and sizes."""

import pytest
import torch
from accuracy import assert_as_accurate

from helpers.instruments.traffic import measure
from kernels import add_gelu
from kernels.elementwise.add_gelu import (
    add_gelu_op,
    add_gelu_reference,
)
from kernels.interpreter import runtime

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")


def pair(*shape, device, dtype=torch.float32, grad=False):
    return tuple(torch.randn(shape, device=device, dtype=dtype).requires_grad_(grad) for _ in range(2))


def test_gradcheck(device):
    assert torch.autograd.gradcheck(add_gelu, pair(37, device=device, dtype=torch.float64, grad=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradient_is_as_accurate_as_pytorchs(device, dtype, poisoned):
    a, b = pair(1025, device=device, dtype=dtype, grad=True)
    weight = torch.randn_like(a)

    def gradient(function, *inputs):
        return torch.autograd.grad((function(*inputs) * weight.to(inputs[0].dtype)).sum(), inputs)[0]

    exact = gradient(add_gelu_reference, a.detach().double().requires_grad_(), b.detach().double().requires_grad_())
    assert_as_accurate(gradient(add_gelu, a, b), gradient(add_gelu_reference, a, b), exact)


def test_gradient_stays_finite_where_the_cube_overflows(device):
    a = torch.tensor([1e20, -1e20, 3e38, -3e38], device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(add_gelu(a, torch.zeros_like(a)).sum(), a)
    assert gradient.tolist() == [1, 0, 1, 0]


def test_one_input_may_need_no_gradient(device):
    a, b = pair(5, device=device)
    b.requires_grad_()
    add_gelu(a, b).sum().backward()
    assert a.grad is None
    assert b.grad.isfinite().all()


def test_registration(device):
    torch.library.opcheck(add_gelu_op.forward_op, pair(9, device=device))
    torch.library.opcheck(add_gelu_op.training_op, pair(9, device=device, grad=True))
    torch.library.opcheck(add_gelu_op.backward_op, pair(9, device=device))


def test_torch_compile_takes_it_whole(device):
    a, b = pair(300, device=device, grad=True)
    compiled = torch.compile(lambda a, b: add_gelu(a, b) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), add_gelu(a, b) * 2)
    compiled(a, b).sum().backward()
    torch.testing.assert_close(a.grad, torch.autograd.grad((add_gelu(a, b) * 2).sum(), a)[0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda a: (a, 1.0), TypeError, "takes tensors, got b of type float: use torch.tensor"),
        (lambda a: (a, a.half()), TypeError, r"one dtype, got a of torch.float32 and b of torch.float16: convert"),
        (lambda a: (a.int(), a.int()), TypeError, r"got a of torch.int32: convert it with .to\(dtype\)"),
        (lambda a: (a, a[:2]), ValueError, r"one shape, got a of \(3,\) and b of \(2,\): expand"),
        (lambda a: (a, a.to("meta")), ValueError, r"one device, got a on \w+(:\d)? and b on meta: move"),
    ],
)
def test_bad_input_is_one_clear_line(device, arguments, error, message):
    with pytest.raises(error, match=message) as raised:
        add_gelu(*arguments(torch.randn(3, device=device)))
    assert "\n" not in str(raised.value)


@gpu_only
def test_a_cpu_and_a_gpu_tensor():
    with pytest.raises(ValueError, match=r"one device, got a on cpu and b on cuda:0: move one with .to\(device\)"):
        add_gelu(torch.randn(3), torch.randn(3, device="cuda"))
    with pytest.raises(ValueError, match=r"runs on the GPU here, got tensors on cpu: move them with .cuda\(\)"):
        add_gelu(torch.randn(3), torch.randn(3))


@gpu_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_compiled_kernel_and_its_interpreted_self_agree(dtype):
    a, b = pair(1025, device="cuda", dtype=dtype)
    compiled, interpreted = add_gelu(a, b), measure(add_gelu, a, b).result
    # The GPU's approximate exponential errs by some roundings of its argument 2u: that many of the result.
    s = a.double() + b.double()
    roundings = 4 * (1 + (1.5957691216 * (s + 0.044715 * s**3)).abs())
    assert interpreted.is_cuda
    assert (
        (compiled.double() - interpreted.double()).abs() <= roundings * torch.finfo(dtype).eps * compiled.abs()
    ).all()


@gpu_only
def test_another_stream_and_a_graph():
    a, b = pair(1025, device="cuda")
    expected = add_gelu(a, b)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        on_side = add_gelu(a, b)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = add_gelu(a, b)
    replayed.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(on_side, expected)
    assert torch.equal(replayed, expected)


@gpu_only
def test_offsets_past_two_to_the_31():
    elements = 2**31 + 1025
    a, b = torch.ones(2, elements, dtype=torch.bfloat16, device="cuda").unbind()
    a[-1], b[-1] = 3, -5
    y = add_gelu(a, b)
    expected = add_gelu_reference(a[-2:], b[-2:])
    assert torch.equal(y[-2:], expected)
    assert bool((y[:-1] == expected[0]).all())
