"""The activation functions that kernels share: every 16-bit value, and the instructions they take."""

import pytest
import torch
import triton
import triton.language as tl

from helpers.instruments.resources import compile_for
from kernels.activations import ACTIVATIONS, activate

BLOCK = 4096


@triton.jit
def activate_kernel(s_ptr, y_ptr, ACT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = activate(tl.load(s_ptr + at).to(tl.float32), ACT, y_ptr.dtype.element_ty)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty))


def every_value(dtype, device):
    """All 65536 values of a 16-bit dtype, NaN and the infinities among them."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).to(device)


def activated(s, act):
    y = torch.empty_like(s)
    activate_kernel[(s.numel() // BLOCK,)](s, y, ACT=act, BLOCK=BLOCK)
    return y


def units_off(y, s, act):
    """Distance from the exact result in units in the last place of y's dtype, of subnormals where y is one."""
    exact, limits = ACTIVATIONS[act](s.double()), torch.finfo(y.dtype)
    unit = limits.eps * 2 ** exact.abs().clamp(min=limits.tiny).log2().floor()
    return (y.double() - exact).abs() / unit


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_every_16_bit_value(act, dtype, device):
    s = every_value(dtype, device)
    y, theirs = activated(s, act), ACTIVATIONS[act](s)
    special = ~s.isfinite()  # NaN, and infinities that a sum overflowed to: a finite result would hide them
    torch.testing.assert_close(y[special].double(), ACTIVATIONS[act](s[special].double()), equal_nan=True)
    near, finite = s.abs() < 4, s.isfinite()
    assert units_off(y, s, act)[near].max() <= 2 * units_off(theirs, s, act)[near].max()
    assert units_off(y, s, act)[near].max() <= 0.72
    exact = ACTIVATIONS[act](s.double())
    positive = finite & (s >= 4) & (exact <= torch.finfo(dtype).max)
    assert units_off(y, s, act)[positive].max() <= 0.51
    tail = finite & (s <= -4)
    error, allowed = (y.double() - exact)[tail].abs().max(), (theirs.double() - exact)[tail].abs().max()
    assert error <= 2 * allowed + 1e-22


def test_a_coefficient_that_is_off_is_refused(device):
    """The limits are near: a thousandth more, and the law above fails."""
    s = every_value(torch.float16, device)
    near = s.abs() < 4
    y = (activated(s, "gelu_tanh").float() * 1.001).half()
    assert units_off(y, s, "gelu_tanh")[near].max() > 1


@pytest.mark.parametrize(("act", "most"), [("gelu_tanh", 1), ("gelu", 1), ("silu", 2)])
def test_instructions_of_the_special_unit(act, most):
    """What the epilogue of a matmul waits for: a quarter of the lanes that arithmetic has."""
    s = torch.empty(BLOCK, dtype=torch.bfloat16, device="meta")
    resources = compile_for(activate_kernel, s, s, ACT=act, BLOCK=BLOCK)
    assert resources.instructions["MUFU"] == most * BLOCK // 128
