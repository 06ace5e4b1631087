"""What is geglu's own: its bytes, its registration, its errors, and on a GPU its largest sizes."""

import pytest
import torch

from helpers.instruments.traffic import measure
from kernels import geglu
from kernels.elementwise.geglu import geglu_op, geglu_reference
from kernels.interpreter import runtime

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")


def pair(*shape, device, dtype=torch.float32, grad=False):
    return tuple(torch.randn(shape, device=device, dtype=dtype).requires_grad_(grad) for _ in range(2))


def test_the_bytes_of_the_docstring(device):
    gate, up = pair(1025, device=device, dtype=torch.bfloat16)
    unfused, fused = measure(geglu_reference, gate, up), measure(geglu, gate, up)
    assert (unfused.launches, unfused.bytes_total) == (2, 10 * 1025)
    assert (fused.launches, fused.bytes_total) == (1, 6 * 1025)
    y = geglu(gate.requires_grad_(), up.requires_grad_())
    grad_y = torch.randn_like(y)
    backward = measure(lambda: torch.autograd.grad(y, (gate, up), grad_y))
    assert (backward.launches, backward.bytes_total) == (1, 10 * 1025)


def test_the_two_halves_of_one_projection(device):
    gate, up = torch.randn(5, 2 * 127, device=device).chunk(2, dim=-1)
    torch.testing.assert_close(geglu(gate, up), geglu_reference(gate, up))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_gate_shut_or_open_has_a_finite_gradient(device, approximate):
    gate = torch.tensor([-1e30, -200.0, 200.0, 1e30], device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(geglu(gate, torch.ones_like(gate), approximate).sum(), gate)
    assert gradient.tolist() == [0, 0, 1, 1]


def test_the_tanh_form(device):
    gate, up = pair(1025, device=device, dtype=torch.float64, grad=True)
    y, expected = geglu(gate, up, "tanh"), geglu_reference(gate, up, "tanh")
    torch.testing.assert_close(y, expected)
    weight = torch.randn_like(y)
    for ours, theirs in zip(*(torch.autograd.grad(z, (gate, up), weight) for z in (y, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(y, geglu_reference(gate, up), rtol=0, atol=1e-6)


def test_one_input_may_need_no_gradient(device):
    gate, up = pair(5, device=device)
    up.requires_grad_()
    geglu(gate, up).sum().backward()
    assert gate.grad is None
    torch.testing.assert_close(up.grad, torch.nn.functional.gelu(gate))


def test_registration(device):
    torch.library.opcheck(geglu_op.training_op, (*pair(9, device=device, grad=True), "tanh"))


def test_under_autocast_two_dtypes_meet_in_the_wider(device):
    gate, up = pair(9, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = geglu(gate.bfloat16(), up)
    torch.testing.assert_close(y, geglu_reference(gate.bfloat16().float(), up))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda a: (a, 1.0), TypeError, "geglu takes tensors, got up of type float: use torch.tensor"),
        (lambda a: (a, a.half()), TypeError, "one dtype, got gate of torch.float32 and up of torch.float16: convert"),
        (lambda a: (a.int(), a.int()), TypeError, r"got gate of torch.int32: convert it with .to\(dtype\)"),
        (lambda a: (a, a, "erf"), ValueError, "approximate of none or tanh, got 'erf': choose one of them"),
        (lambda a: (a, a[:2]), ValueError, r"one shape, got gate of \(3,\) and up of \(2,\): expand"),
        (lambda a: (a, a.to("meta")), ValueError, r"one device, got gate on \w+(:\d)? and up on meta: move"),
    ],
)
def test_bad_input_is_one_clear_line(device, arguments, error, message):
    with pytest.raises(error, match=message) as raised:
        geglu(*arguments(torch.randn(3, device=device)))
    assert "\n" not in str(raised.value)


@gpu_only
def test_offsets_past_two_to_the_31():
    elements = 2**31 + 1025
    gate, up = torch.ones(2, elements, dtype=torch.bfloat16, device="cuda").unbind()
    gate[-1], up[-1] = 3, -5
    y = geglu(gate, up)
    expected = geglu_reference(gate[-2:], up[-2:])
    assert torch.equal(y[-2:], expected)
    assert bool((y[:-1] == expected[0]).all())
