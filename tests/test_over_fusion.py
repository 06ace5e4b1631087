"""Lesson 07's chain and its gradient against autograd in double precision; add+GELU at other block sizes."""

import pytest
import torch

from benchmarks.experiments.lesson_03 import add_gelu_in_blocks
from benchmarks.experiments.lesson_07 import COLUMNS, chain_gradient, chain_gradient_kernel
from helpers.instruments import compile_for
from helpers.instruments.traffic import measure
from kernels.interpreter import runtime

device = "cuda" if runtime.has_gpu() else "cpu"


def by_autograd(x, grad_y, steps):
    y = x = x.double().requires_grad_()
    for _ in range(steps):
        y = torch.nn.functional.silu(torch.nn.functional.rms_norm(y, (COLUMNS,), eps=1e-6))
    return torch.autograd.grad(y, x, grad_y.double())[0]


@pytest.mark.parametrize(("steps", "pieces"), [(1, 1), (2, 2), (5, 1), (5, 2), (7, 3), (24, 1)])
def test_gradient_of_the_chain(steps, pieces):
    torch.manual_seed(steps)
    x, grad_y = torch.randn(2, 3, COLUMNS, device=device)
    expected = by_autograd(x, grad_y, steps)
    error = (chain_gradient(x, grad_y, steps, pieces) - expected).abs().max() / expected.abs().max()
    assert error < 2e-6 * steps


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_each_cut_costs_a_forward_launch_and_a_round_trip(pieces):
    x, grad_y = torch.randn(2, 2, COLUMNS)
    traffic = measure(chain_gradient, x, grad_y, 6, pieces)
    assert traffic.launches == 2 * pieces - 1
    assert traffic.bytes_total == (12 * pieces + 8 * (pieces - 1)) * x.numel()
    assert not traffic.hazards


def test_gpus_fit_as_many_blocks_of_a_chain_except_where_warp_slots_run_out():
    row = torch.empty(1, COLUMNS, device="meta")

    def blocks(gpu, steps):
        options = {"COLUMNS": COLUMNS, "STEPS": steps}
        return compile_for(chain_gradient_kernel, row, row, row, device=gpu, **options).occupancy().blocks

    for steps, fit in ((4, 5), (10, 2)):
        assert [blocks(gpu, steps) for gpu in ("T4", "A100", "RTX 4090", "H100")] == 4 * [fit]
    assert [(blocks("T4", steps), blocks("H100", steps)) for steps in (1, 2)] == [(8, 12), (8, 9)]


@pytest.mark.parametrize(("block", "warps"), [(256, 8), (2048, 2)])
def test_add_gelu_at_other_block_sizes(block, warps):
    a, b = torch.randn(2, 5000, device=device)
    expected = torch.nn.functional.gelu(a.double() + b.double(), approximate="tanh")
    torch.testing.assert_close(add_gelu_in_blocks(a, b, block, warps).double(), expected, atol=2e-6, rtol=2e-6)
