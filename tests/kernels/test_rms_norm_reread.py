"""Gradients of RMSNorm of wide rows in 16 bits, each read again from the SM's L1 cache."""

import pytest
import torch
from accuracy import assert_as_accurate, doubled, with_gradients

from kernels import variant
from kernels.rowwise.residual_rms_norm import residual_rms_norm, residual_rms_norm_reference
from kernels.rowwise.rms_norm import rms_norm, rms_norm_reference
from kernels.tuned import rms_norm_few_rows, rms_norm_reread


@pytest.fixture
def small(monkeypatch):
    """Two programs, tiles of 256 columns, and rows that registers do not hold from 300 columns on."""
    monkeypatch.setattr(rms_norm_reread, "TILE", 256)
    monkeypatch.setattr(rms_norm_reread, "NUM_WARPS", 4)
    monkeypatch.setattr(rms_norm_reread, "fits_registers", lambda cols, itemsize: cols <= 300)
    for module in (rms_norm_reread, rms_norm_few_rows):
        monkeypatch.setattr(module, "multiprocessors", lambda x: 2)


@pytest.mark.parametrize("cols", [512, 1000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients(small, device, cols, dtype, poisoned, monkeypatch):
    launched = []
    settings = rms_norm_reread.settings
    monkeypatch.setattr(rms_norm_reread, "settings", lambda cols: launched.append(cols) or settings(cols))
    x, residual, grad_y, grad_sum = torch.randn(4, 7, cols + 8, device=device)[..., 8:].to(dtype)
    weight = torch.randn(cols, device=device).to(dtype)
    leaves = x * torch.arange(1, 8, device=device, dtype=dtype)[:, None], weight
    with variant("tuned"):
        ours = with_gradients(rms_norm, leaves, grad_y)
    theirs = with_gradients(rms_norm_reference, leaves, grad_y)
    assert_as_accurate(ours, theirs, with_gradients(rms_norm_reference, doubled(leaves), grad_y.double()))
    leaves, both = (x, residual, weight), torch.stack((grad_y, grad_sum))
    with variant("tuned"):
        ours = with_gradients(lambda *given: torch.stack(residual_rms_norm(*given)), leaves, both)
    theirs, exact = (
        with_gradients(lambda *given: torch.stack(residual_rms_norm_reference(*given)), inputs, grad)
        for inputs, grad in ((leaves, both), (doubled(leaves), both.double()))
    )
    assert_as_accurate(ours, theirs, exact)
    assert launched == [cols, cols]
