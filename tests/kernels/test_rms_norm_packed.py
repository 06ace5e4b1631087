"""Rows of RMSNorm held in registers two elements to each."""

import pytest
import torch
from accuracy import assert_as_accurate

from helpers.instruments.resources import compile_for
from kernels.rowwise.rms_norm import rms_norm_reference
from kernels.tuned import rms_norm_packed
from kernels.variants import tuned_for


def rows(cols: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Three rows of a wider tensor, each unlike the one before it."""
    scale = torch.arange(1, 4, device=device)[:, None] + torch.arange(cols, device=device) / cols
    return (torch.randn(3, cols + 8, device=device)[:, 8:] * scale).to(dtype)


@pytest.mark.parametrize("cols", [4096, 12296])  # all tiles full, and the last with one vector
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows(device, cols, dtype, poisoned):
    x, weight = rows(cols, dtype, device), torch.randn(cols, device=device).to(dtype)
    y, rstd = rms_norm_packed.training(x, weight, 1e-6)
    assert torch.equal(y, rms_norm_packed.forward(x, weight, 1e-6))
    native, exact = rms_norm_reference(x, weight), rms_norm_reference(x.double(), weight.double())
    assert_as_accurate(y, native, exact)
    torch.testing.assert_close(rstd, (x.double().square().mean(1) + 1e-6).rsqrt().float())
    with pytest.raises(AssertionError):  # another row's
        assert_as_accurate(y / rstd[:, None] * rstd[[1, 2, 0], None], native, exact)


def test_what_is_not_finite_stays_in_its_row(device, poisoned):
    x, weight = rows(12296, torch.bfloat16, device), torch.ones(12296, dtype=torch.bfloat16, device=device)
    x[0, 5], x[1, -1] = torch.nan, torch.inf
    y = rms_norm_packed.forward(x, weight, 1e-6)
    native = rms_norm_reference(x, weight)
    assert torch.equal(y.isnan(), native.isnan())
    assert (y[1, :-1] == 0).all()
    assert_as_accurate(y[2:], native[2:], rms_norm_reference(x[2:].double(), weight.double()))


def test_which_rows_it_takes(monkeypatch):
    monkeypatch.setattr(rms_norm_packed, "multiprocessors", lambda x: 132)

    def taken(rows: int, cols: int, dtype=torch.bfloat16, weights=torch.bfloat16, offset=0) -> bool:
        x = torch.empty(rows, cols, dtype=dtype, device="meta")
        weight = torch.empty(cols + offset, dtype=weights)[offset:]
        return tuned_for("rms_norm", "forward", (x, weight, 1e-6)) is not None

    assert taken(133, 12288)
    assert taken(2048, 32768)
    assert taken(2048, 10248, torch.float16)
    assert not taken(132, 12288)  # one row per SM: more threads
    assert not taken(2048, 10240)
    assert not taken(2048, 16384)
    assert not taken(2048, 32776)
    assert not taken(2048, 12289)
    assert not taken(2048, 12288, torch.float32)
    assert not taken(2048, 12288, weights=torch.float32)
    assert not taken(2048, 12288, offset=1)


@pytest.mark.parametrize("cols", [12288, pytest.param(32768, marks=pytest.mark.long)])
def test_two_programs_share_an_sm(cols):
    half, tiles = torch.bfloat16, rms_norm_packed.LANES * 2
    compiled = compile_for(
        *(rms_norm_packed.rms_norm_packed_kernel, half, half, half, None, cols // 2, cols, 1e-6),
        device="H100",
        LANES=rms_norm_packed.LANES,
        HELD=cols // tiles,
        FULL=cols // tiles,
        num_warps=rms_norm_packed.WARPS,
        maxnreg=64,
    )
    assert compiled.spill_bytes == 0
    assert compiled.registers <= 64
    assert {"LDG.128", "STG.128"} <= compiled.instructions.keys()
