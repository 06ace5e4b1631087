"""Elementwise kernels at sizes that vectors of 16 bytes do not divide: their values, their bounds, their accesses."""

from functools import partial

import pytest
import torch
from accuracy import assert_as_accurate

from helpers.instruments.resources import compile_for
from kernels import CATALOGUE
from kernels.elementwise import add_gelu, geglu, residual_act, swiglu, vectors

NAMES = ("add_gelu", "residual_act", "swiglu", "geglu")
# How a tensor of n elements lies in memory.
LAYOUTS = {
    "whole": lambda n, **options: torch.randn(n, **options),
    "one element on": lambda n, **options: torch.randn(n + 1, **options)[1:],
    "every other": lambda n, **options: torch.randn(2 * n, **options)[::2],
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("elements", "layout"),
    [
        *((elements, "whole") for elements in (1, 15, 16, 17, 1023, 1025, 2063)),
        *((elements, layout) for elements in (17, 1025) for layout in ("one element on", "every other")),
    ],
)
def test_values_and_gradients_to_the_last_element(device, poisoned, name, elements, layout):
    op = CATALOGUE[name]
    inputs = [LAYOUTS[layout](elements, device=device, dtype=torch.bfloat16).requires_grad_() for _ in range(2)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    weight = torch.randn(elements, device=device, dtype=torch.bfloat16)
    ours, theirs, exact = op.fused(*inputs), op.reference(*inputs), op.reference(*wide)
    assert_as_accurate(ours, theirs, exact)
    assert_as_accurate(
        torch.autograd.grad(ours, inputs, weight),
        torch.autograd.grad(theirs, inputs, weight),
        torch.autograd.grad(exact, wide, weight.double()),
    )


@pytest.mark.parametrize("elements", [3, 16, 1027, 1039])
def test_nothing_is_read_or_written_past_the_end(device, elements):
    gate, up, y = torch.full((3, 1072), torch.nan, device=device)
    gate[:elements], up[:elements] = 1.0, 2.0
    vectors.launch(swiglu.swiglu_kernel, swiglu.settings(y.dtype), *(each[:elements] for each in (gate, up, y)))
    right = torch.full_like(y, torch.nan)
    right[:elements] = torch.nn.functional.silu(torch.tensor(1.0)) * 2
    torch.testing.assert_close(y, right, equal_nan=True)


@pytest.mark.parametrize("elements", [1_000_003, 1_000_008])
@pytest.mark.parametrize(
    ("kernel", "settings", "reads", "writes"),
    [
        pytest.param(swiglu.swiglu_kernel, swiglu.settings, 2, 1),
        pytest.param(swiglu.swiglu_backward_kernel, swiglu.settings, 3, 2, marks=pytest.mark.long),
        pytest.param(geglu.geglu_kernel, geglu.settings, 2, 1, marks=pytest.mark.long),
        pytest.param(geglu.geglu_backward_kernel, geglu.settings, 3, 2, marks=pytest.mark.long),
        pytest.param(add_gelu.add_gelu_kernel, add_gelu.settings, 2, 2, marks=pytest.mark.long),
        pytest.param(add_gelu.add_gelu_backward_kernel, add_gelu.settings, 2, 1, marks=pytest.mark.long),
        pytest.param(residual_act.residual_act_kernel, partial(residual_act.settings, act="silu"), 2, 2),
    ],
)
def test_blocks_move_16_bytes_at_a_time(kernel, settings, reads, writes, elements):
    x = torch.empty(elements, dtype=torch.bfloat16, device="meta")
    chosen = settings(x.dtype)
    made = compile_for(kernel, *[x] * (reads + writes), elements, HAS_TAIL=True, device="H200", **chosen).instructions
    vectors_a_thread = chosen["BLOCK"] // (8 * 32 * chosen["num_warps"])
    wide = {"LDG.128": reads * vectors_a_thread, "STG.128": writes * vectors_a_thread}
    rest = {"LDG.16": reads, "STG.16": writes}
    assert {name: n for name, n in made.items() if name.startswith(("LDG", "STG"))} == wide | rest
