"""What is layer_norm_int8's own: its rounding, its scales, and rows that have none."""

import pytest
import torch

from kernels import layer_norm_int8
from kernels.rowwise.layer_norm_int8 import layer_norm_int8_op


def affine(cols, device):
    return torch.ones(cols, device=device), torch.zeros(cols, device=device)


@pytest.mark.parametrize("shape", [(5, 7), (21, 64), (2, 1000), (1, 20000)])
def test_what_is_lost_is_half_a_step(shape, device, poisoned):
    x = torch.randn(shape, device=device) * 5 + 3
    q, scale = layer_norm_int8(x, *affine(shape[-1], device))
    y = torch.nn.functional.layer_norm(x.double(), shape[-1:])
    assert (q.abs().amax(dim=-1) == 127).all()
    # Half a step, and what fp32 loses of a value of up to 127 steps: below a ten-thousandth of one.
    assert ((q * scale.double() - y).abs() <= scale * 0.5001).all()
    truncated = (y / scale).to(torch.int8)  # the wrong rounding
    assert not ((truncated * scale.double() - y).abs() <= scale * 0.5001).all()


def test_ties_go_to_even(device):
    # Mean 0 and variance 1 to begin with, so y is x times the weight: 127 in steps of a half.
    x = torch.tensor([[1.0, -1.0, 1.0, -1.0]], device=device)
    weight = torch.tensor([127.0, 2.5, 3.5, 0.5], device=device)
    q, scale = layer_norm_int8(x, weight, torch.zeros_like(weight), eps=0.0)
    assert scale.item() == 1
    assert q.tolist() == [[127, -2, 4, 0]]


def test_rows_without_a_scale(device):
    x = torch.randn(4, 8, device=device)
    x[0], x[1, 3], x[2, 4] = 7.0, torch.nan, torch.inf
    q, scale = layer_norm_int8(x, *affine(8, device))
    assert (q[0] == 0).all()
    assert 0 < scale[0] < 1e-13
    assert scale[1:3].isnan().all()
    assert scale[3].isfinite()
    weight, bias = affine(8, device)
    weight[2] = torch.nan
    assert layer_norm_int8(x, weight, bias)[1].isnan().all()


def test_no_column(device):
    with pytest.raises(ValueError, match="takes rows of at least one column, got none: an empty row has no scale"):
        layer_norm_int8(torch.ones(3, 0, device=device), *affine(0, device))


def test_registration(device):
    torch.library.opcheck(layer_norm_int8_op.forward_op, (torch.randn(3, 9, device=device), *affine(9, device), 1e-5))
