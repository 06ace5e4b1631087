"""What autograd keeps, against what its formulas say must be kept."""

import torch
from torch.nn import functional

from helpers.instruments.saved_tensors import saved_for_backward
from kernels import residual_act, swiglu

N = 6 * 127  # elements


def tensors(count):
    return [torch.randn(6, 127, requires_grad=True) for _ in range(count)]


def test_dropout_keeps_its_mask_and_nothing_else():
    kept = saved_for_backward(lambda x, r: r + torch.native_dropout(x, 0.1, True)[0], *tensors(2))
    assert (kept.arguments, kept.made) == ({}, {"bool of (6, 127)": N})
    assert repr(kept) == "kept for the backward pass: 762 B (bool of (6, 127), 762 B)"
    assert kept.result.shape == (6, 127)


def test_a_gate_keeps_its_inputs_and_the_activated_one():
    gate, up = tensors(2)
    kept = saved_for_backward(lambda gate, up: functional.silu(gate) * up, gate, up)
    assert kept.arguments == {"gate": 4 * N, "up": 4 * N}
    assert kept.made == {"float32 of (6, 127)": 4 * N}
    assert kept.total == 12 * N
    assert saved_for_backward(swiglu, gate, up).made == {}


def test_each_storage_counts_once_and_whole():
    x, other = tensors(2)
    assert saved_for_backward(lambda x: x * x, x).total == 4 * N
    assert saved_for_backward(lambda x: x[:, :1].exp(), x).made == {"float32 of (6, 1)": 4 * 6}
    assert saved_for_backward(lambda whole, y: whole[:, :1] * y[:, 1:2], x, other).total == 8 * N
    assert len(saved_for_backward(lambda x: x.exp().sigmoid(), x).made) == 2  # of one shape, told apart
    assert saved_for_backward(residual_act, x, other, "gelu").made == {"float32 of (6, 127)": 4 * N}


def test_nothing_is_kept_where_nobody_asks_for_gradients():
    kept = saved_for_backward(lambda x: x.exp(), torch.randn(5))
    assert kept.total == 0
    assert repr(kept) == "kept for the backward pass: nothing"
