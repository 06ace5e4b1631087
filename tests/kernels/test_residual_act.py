"""What is residual_act's own: its bytes, its registration, its errors, and on a GPU its largest sizes."""

import pytest
import torch

from helpers.instruments.saved_tensors import saved_for_backward
from helpers.instruments.traffic import measure
from kernels import residual_act
from kernels.activations import ACTIVATIONS
from kernels.elementwise.residual_act import residual_act_op, residual_act_reference
from kernels.interpreter import runtime

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")


def pair(*shape, device, dtype=torch.float32, grad=False):
    return tuple(torch.randn(shape, device=device, dtype=dtype).requires_grad_(grad) for _ in range(2))


def test_the_bytes_of_the_docstring(device):
    x, residual = pair(1025, device=device, dtype=torch.bfloat16)
    unfused, fused = measure(residual_act_reference, x, residual), measure(residual_act, x, residual)
    assert (unfused.launches, unfused.bytes_total) == (2, 10 * 1025)
    assert (fused.launches, fused.bytes_total) == (1, 6 * 1025)
    x, residual, bits = x.requires_grad_(), residual.requires_grad_(), 129
    for act, written, moved in (("relu", 2 * 1025 + bits, 4 * 1025 + bits), ("silu", 4 * 1025, 6 * 1025)):
        training = measure(residual_act, x, residual, act)
        assert (training.launches, training.bytes_read, training.bytes_written) == (1, 4 * 1025, written)
        grad_y = torch.randn_like(training.result)
        backward = measure(lambda y=training.result, g=grad_y: torch.autograd.grad(y, (x, residual), g))
        assert (backward.launches, backward.unique_total) == (1, moved)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_every_activation_and_its_gradient(device, act, poisoned):
    x, residual = pair(1025, device=device, dtype=torch.float64, grad=True)
    y, expected = residual_act(x, residual, act), residual_act_reference(x, residual, act)
    torch.testing.assert_close(y, expected)
    weight = torch.randn_like(y)
    for ours, theirs in zip(*(torch.autograd.grad(z, (x, residual), weight) for z in (y, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_gradients_stay_finite_where_powers_overflow(device, act):
    x = torch.tensor([1e30, -1e30, 200, -200], device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(residual_act(x, torch.zeros_like(x), act).sum(), x)
    assert gradient.tolist() == [1, 0, 1, 0]


def test_the_fast_gelu_is_exact_to_the_last_place(device):
    """One polynomial for all of fp32, checked from end to end, the tail relatively too."""
    x = torch.linspace(-6, 6, 20001, device=device)
    exact = residual_act_reference(x.double(), torch.zeros_like(x).double(), "gelu")
    ours = (residual_act(x, torch.zeros_like(x), "gelu") - exact).abs()
    assert ours.amax() <= 2**-21  # a unit in the last place of values from 4 to 8
    # The tail is an exponential of up to -18 in fp32: its argument is rounded to 2^-20, that much of the result.
    assert (ours / exact.abs().clamp_min(1e-30)).amax() < 2e-6


def test_relu_chooses_where_a_product_would_make_nan(device):
    x = torch.tensor([-1.0, 1.0, torch.nan], device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(residual_act(x, torch.zeros_like(x)), x, torch.full_like(x, torch.inf))
    assert gradient.tolist() == [0, torch.inf, torch.inf]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_relu_passes_the_gradient_where_pytorchs_does(device, dtype):
    """One bit an element, eight in a byte: every place in a byte, the last one cut short, and the special numbers."""
    numbers = torch.finfo(dtype)
    least = numbers.tiny * numbers.eps  # the smallest above 0
    special = [0.0, -0.0, torch.nan, torch.inf, -torch.inf, least, -least, numbers.max, numbers.min]
    for elements in (1, 7, 8, 9, 1003, 1025):
        x = torch.randn(elements, device=device).to(dtype)
        x[-9:] = torch.tensor(special, dtype=dtype)[:elements]
        x.requires_grad_()
        zeros, grad_y = torch.zeros_like(x), torch.randn_like(x)
        (ours,) = torch.autograd.grad(residual_act(x, zeros), x, grad_y)
        (theirs,) = torch.autograd.grad(residual_act_reference(x, zeros), x, grad_y)
        assert torch.equal(ours, theirs)


def test_with_relu_a_bit_an_element_is_kept_and_the_result_is_free_to_change(device):
    x, residual = pair(3, 171, device=device, grad=True)
    kept = saved_for_backward(residual_act, x, residual)
    assert (kept.arguments, kept.made) == ({}, {"uint8 of (65,)": 65})
    y = kept.result
    grad_y = torch.randn_like(y)
    (expected,) = torch.autograd.grad(residual_act_reference(x, residual), x, grad_y)
    with torch.no_grad():
        y.fill_(torch.nan)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(y, x, grad_y, retain_graph=True)
        assert torch.equal(gradient, expected)


def test_one_input_may_need_no_gradient(device):
    x, residual = pair(5, device=device)
    residual.requires_grad_()
    residual_act(x, residual).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(residual.grad, (x + residual > 0).float())


def test_registration(device):
    torch.library.opcheck(residual_act_op.forward_op, (*pair(9, device=device), "relu"))
    for act in ("relu", "silu"):
        torch.library.opcheck(residual_act_op.training_op, (*pair(9, device=device, grad=True), act))


def test_under_autocast_two_dtypes_meet_in_the_wider(device):
    x, residual = pair(9, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = residual_act(x.bfloat16(), residual)
    torch.testing.assert_close(y, residual_act_reference(x.bfloat16().float(), residual))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda a: (a, 1.0), TypeError, "residual_act takes tensors, got residual of type float: use torch.tensor"),
        (
            lambda a: (a, a.half()),
            TypeError,
            "one dtype, got x of torch.float32 and residual of torch.float16: convert",
        ),
        (lambda a: (a.int(), a.int()), TypeError, r"got x of torch.int32: convert it with .to\(dtype\)"),
        (lambda a: (a, a, "tanh"), ValueError, "act of relu, gelu, gelu_tanh, silu, got 'tanh': choose one of them"),
        (lambda a: (a, a[:2]), ValueError, r"one shape, got x of \(3,\) and residual of \(2,\): expand"),
        (lambda a: (a, a.to("meta")), ValueError, r"one device, got x on \w+(:\d)? and residual on meta: move"),
    ],
)
def test_bad_input_is_one_clear_line(device, arguments, error, message):
    with pytest.raises(error, match=message) as raised:
        residual_act(*arguments(torch.randn(3, device=device)))
    assert "\n" not in str(raised.value)


@gpu_only
def test_offsets_past_two_to_the_31():
    elements = 2**31 + 1025
    x, residual = torch.ones(2, elements, dtype=torch.bfloat16, device="cuda").unbind()
    x[-1], residual[-1] = 3, -5
    expected = residual_act_reference(x[-2:], residual[-2:])
    y = residual_act(x, residual)
    assert torch.equal(y[-2:], expected)
    assert bool((y[:-1] == expected[0]).all())
    y = residual_act(x.requires_grad_(), residual)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert gradient[-2:].tolist() == [1, 0]
    assert bool((gradient[:-1] == 1).all())
