"""Row numbers beyond 2^31: no number that such a launch computes overflows 32 bits, and its programs reach all rows."""

import pytest
import torch

from helpers.instruments.dry_run import dry_run_scope
from helpers.learning.checks.offsets import find_stray, grow, launches_on, noted
from kernels import CATALOGUE

ROWS = 2**31 + 4096
# These have a program per row, and a grid at most 2^31 - 1 of them.
PER_ROW = ("sample", "softmax_topk")
ROWWISE = [name for name, op in CATALOGUE.items() if op.group == "rowwise" and name not in PER_ROW]


def stray_in(fn, inputs_of):
    """What goes wrong in the launches of `fn` on so many rows: as an exercise's answer is checked, on tensors of the
    CPU, for the operators that these functions are know others by their shapes alone."""
    few, more = inputs_of(1024), inputs_of(2048)
    share = (ROWS - 1024) / 1024
    launches = []
    with dry_run_scope(132) as stage, noted(launches, lambda *_, **__: None):
        large = [grow(*pair, share) for pair in zip(few, more, strict=True)]
        result = fn(*(stage.without_data(x) if isinstance(x, torch.Tensor) else x for x in large))
    assert launches
    return find_stray(launches_on(fn, more), launches, result)


@pytest.mark.parametrize("name", ROWWISE)
def test_row_numbers_past_two_to_the_31(name):
    op = CATALOGUE[name]
    assert stray_in(op.fused, lambda rows: op.inputs(rows, 1, dtype=torch.bfloat16)) is None


@pytest.mark.parametrize("tier", ["plain", "tuned"], indirect=True)
@pytest.mark.parametrize("name", ["softmax", pytest.param("softmax_dropout", marks=pytest.mark.long), "cross_entropy"])
def test_row_numbers_of_gradients(tier, name):
    op = CATALOGUE[name]

    def backward(x, *rest):
        y = op.fused(x.requires_grad_(), *rest)
        return torch.autograd.grad(y, x, torch.ones_like(y))

    assert stray_in(backward, lambda rows: op.inputs(rows, 1, dtype=torch.bfloat16)) is None
