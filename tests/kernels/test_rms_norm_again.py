"""Gradients of RMSNorm of wide rows in 16 bits, each read again from the SM's L1 cache."""

import pytest
import torch
from accuracy import assert_as_accurate, doubled, with_gradients

from kernels.rowwise import rms_norm_again, rms_norm_backward
from kernels.rowwise.residual_rms_norm import residual_rms_norm, residual_rms_norm_reference
from kernels.rowwise.rms_norm import rms_norm, rms_norm_reference


@pytest.fixture
def small(monkeypatch):
    """Two programs, tiles of 256 columns, and rows wide from 300 columns on."""
    monkeypatch.setattr(rms_norm_again, "LANES", 256)
    monkeypatch.setattr(rms_norm_again, "WARPS", 4)
    monkeypatch.setattr(rms_norm_again, "multiprocessors", lambda x: 2)
    monkeypatch.setattr(rms_norm_backward, "WIDEST_BLOCK", 300)


@pytest.mark.parametrize("cols", [512, 1000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients(small, device, cols, dtype, poisoned, monkeypatch):
    called = []
    backward = rms_norm_again.backward
    monkeypatch.setattr(rms_norm_again, "backward", lambda *given: called.append(given) or backward(*given))
    x, residual, grad_y, grad_sum = torch.randn(4, 7, cols + 8, device=device)[..., 8:].to(dtype)
    weight = torch.randn(cols, device=device).to(dtype)
    leaves = x * torch.arange(1, 8, device=device, dtype=dtype)[:, None], weight
    ours, theirs = (with_gradients(function, leaves, grad_y) for function in (rms_norm, rms_norm_reference))
    assert_as_accurate(ours, theirs, with_gradients(rms_norm_reference, doubled(leaves), grad_y.double()))
    leaves, both = (x, residual, weight), torch.stack((grad_y, grad_sum))
    found = [
        with_gradients(lambda *given, function=function: torch.stack(function(*given)), inputs, grad)
        for function, inputs, grad in (
            (residual_rms_norm, leaves, both),
            (residual_rms_norm_reference, leaves, both),
            (residual_rms_norm_reference, doubled(leaves), both.double()),
        )
    ]
    assert_as_accurate(*found)
    assert len(called) == 2
