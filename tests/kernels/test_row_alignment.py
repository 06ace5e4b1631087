"""Rows whose length is no multiple of 16: Triton notices no smaller divisor, so kernels are told it (ALIGN)."""

import pytest
import torch

from helpers.instruments import compile_for
from kernels import CATALOGUE, variant
from kernels.rowwise.blocks import alignment, row_settings

PLAIN = ("rms_norm", "l2_norm", "layer_norm", "layer_norm_int8", "residual_rms_norm", "residual_layer_norm", "softmax")


def test_alignment_is_the_largest_power_of_2_that_divides_all_unless_triton_notices():
    assert [alignment(n) for n in (1, 6, 1000, 1004, 1025, 4096, 0)] == [1, 2, 8, 4, 1, 1, 1]
    assert alignment(1000, 1004) == 4
    assert alignment(4096, 4104) == 8
    assert alignment(4096, 4097) == row_settings(4096, torch.bfloat16, strides=(4097,))["ALIGN"] == 1


@pytest.mark.parametrize("name", [*PLAIN, "softmax_dropout"])
@pytest.mark.parametrize(("cols", "dtype"), [(1000, torch.bfloat16), (1004, torch.float32)])
def test_rows_that_begin_at_16_bytes_are_loaded_16_bytes_at_a_time(name, cols, dtype):
    op = CATALOGUE[name]
    arguments, options = op.compile_arguments(2048, cols, dtype=dtype)
    told = compile_for(op.kernel, *arguments, device="H100", **options).instructions
    untold = compile_for(op.kernel, *arguments, device="H100", **{**options, "ALIGN": 1}).instructions
    assert told["LDG.128"] > 0
    # Untold, almost every load is of one element; the first element of each row is loaded by itself in either.
    loads = [sum(n for key, n in found.items() if key.startswith("LDG")) for found in (told, untold)]
    assert loads[0] * 2 < loads[1]


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("stride", [24, 25, 28, 40])
def test_rows_may_be_less_aligned_than_they_are_long(name, stride, device):
    """24 columns of a wider matrix: a kernel told that 8 divides a stride of 25 would read other rows."""
    op = CATALOGUE[name]
    inputs = [x.to(device) for x in op.inputs(6, 24, dtype=torch.float32)]
    spread = [x.new_empty(6, stride)[:, :24].copy_(x) if x.dim() == 2 else x for x in inputs]
    with variant("plain"):
        found, expected = op.fused(*spread), op.fused(*inputs)
    # Compiled for other loads, a sum has another order: a code of int8 may differ by one.
    for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 if one.is_floating_point() else 1)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax"])
@pytest.mark.parametrize("stride", [25, 28])
def test_gradients_of_such_rows(name, stride, device):
    op = CATALOGUE[name]
    x, *rest = [x.to(device) for x in op.inputs(6, 24, dtype=torch.float32)]
    grad_y = torch.randn(6, 24, device=device)

    def gradient(x, grad_y):
        leaf = x.detach().requires_grad_()
        with variant("plain"):
            return torch.autograd.grad(op.fused(leaf, *rest), leaf, grad_y)[0]

    spread = [x.new_empty(6, stride)[:, :24].copy_(each) for each in (x, grad_y)]
    torch.testing.assert_close(gradient(*spread), gradient(x, grad_y), rtol=1e-4, atol=1e-5)
