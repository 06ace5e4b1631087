"""What is swiglu's own: its bytes, its registration, its errors, and on a GPU its largest sizes."""

import pytest
import torch

from helpers.instruments.traffic import measure
from kernels import swiglu
from kernels.elementwise.swiglu import swiglu_op, swiglu_reference
from kernels.interpreter import runtime

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")


def pair(*shape, device, dtype=torch.float32, grad=False):
    return tuple(torch.randn(shape, device=device, dtype=dtype).requires_grad_(grad) for _ in range(2))


def test_the_bytes_of_the_docstring(device):
    gate, up = pair(1025, device=device, dtype=torch.bfloat16)
    unfused, fused = measure(swiglu_reference, gate, up), measure(swiglu, gate, up)
    assert (unfused.launches, unfused.bytes_total) == (2, 10 * 1025)
    assert (fused.launches, fused.bytes_total) == (1, 6 * 1025)
    y = swiglu(gate.requires_grad_(), up.requires_grad_())
    grad_y = torch.randn_like(y)
    backward = measure(lambda: torch.autograd.grad(y, (gate, up), grad_y))
    assert (backward.launches, backward.bytes_total) == (1, 10 * 1025)


def test_the_two_halves_of_one_projection(device):
    gate, up = torch.randn(5, 2 * 127, device=device).chunk(2, dim=-1)
    torch.testing.assert_close(swiglu(gate, up), swiglu_reference(gate, up))


def test_a_shut_gate_has_a_finite_gradient(device):
    gate = torch.tensor([-1e30, -200.0, 200.0, 1e30], device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(swiglu(gate, torch.ones_like(gate)).sum(), gate)
    assert gradient.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("most", [1, 5, 20])
def test_a_gate_in_fp32_is_as_accurate_as_pytorchs(most, device):
    """Where a gate is nearly open, one from the square of a reciprocal root is 2.3 to 2.7 times as far off."""
    gate = torch.linspace(-most, most, 4096, device=device).requires_grad_()
    errors = []
    for function in (swiglu, swiglu_reference):
        y = function(gate, torch.ones_like(gate))
        (gradient,) = torch.autograd.grad(y.sum(), gate)
        wide = gate.detach().double().requires_grad_()
        exact = torch.nn.functional.silu(wide)
        (exact_gradient,) = torch.autograd.grad(exact.sum(), wide)
        errors.append([(y - exact).abs().max().item(), (gradient - exact_gradient).abs().max().item()])
    (ours, our_gradient), (theirs, their_gradient) = errors
    assert ours <= 2 * theirs
    assert our_gradient <= 2 * their_gradient


def test_one_input_may_need_no_gradient(device):
    gate, up = pair(5, device=device)
    up.requires_grad_()
    swiglu(gate, up).sum().backward()
    assert gate.grad is None
    torch.testing.assert_close(up.grad, torch.nn.functional.silu(gate))


def test_registration(device):
    torch.library.opcheck(swiglu_op.training_op, pair(9, device=device, grad=True))


def test_under_autocast_two_dtypes_meet_in_the_wider(device):
    gate, up = pair(9, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = swiglu(gate.bfloat16(), up)
    torch.testing.assert_close(y, swiglu_reference(gate.bfloat16().float(), up))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda a: (a, 1.0), TypeError, "swiglu takes tensors, got up of type float: use torch.tensor"),
        (lambda a: (a, a.half()), TypeError, "one dtype, got gate of torch.float32 and up of torch.float16: convert"),
        (lambda a: (a.int(), a.int()), TypeError, r"got gate of torch.int32: convert it with .to\(dtype\)"),
        (lambda a: (a, a[:2]), ValueError, r"one shape, got gate of \(3,\) and up of \(2,\): expand"),
        (lambda a: (a, a.to("meta")), ValueError, r"one device, got gate on \w+(:\d)? and up on meta: move"),
    ],
)
def test_bad_input_is_one_clear_line(device, arguments, error, message):
    with pytest.raises(error, match=message) as raised:
        swiglu(*arguments(torch.randn(3, device=device)))
    assert "\n" not in str(raised.value)


@gpu_only
def test_offsets_past_two_to_the_31():
    elements = 2**31 + 1025
    gate, up = torch.ones(2, elements, dtype=torch.bfloat16, device="cuda").unbind()
    gate[-1], up[-1] = 3, -5
    y = swiglu(gate, up)
    expected = swiglu_reference(gate[-2:], up[-2:])
    assert torch.equal(y[-2:], expected)
    assert bool((y[:-1] == expected[0]).all())
