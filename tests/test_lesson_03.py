"""Lesson 03: its fused kernel is compared with the exact GELU, on every draw."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import gelu

LESSON = (Path(__file__).resolve().parents[1] / "source/lessons/03_first_fused_kernel.py").read_text()
CELLS = re.split(r"^# %%", LESSON, flags=re.MULTILINE)
CHECK = re.search(r"^close = (torch\.allclose\(.*\))$", LESSON, re.MULTILINE)[1]


# At -3.397, PyTorch's own GELU in float32 is 1e-6 off on a CPU, more than the comparison allows.
@pytest.mark.parametrize(("approximate", "passes"), [("none", True), ("tanh", False)])
def test_the_exact_gelu_passes_and_the_tanh_formula_does_not(approximate, passes):
    a = torch.linspace(-6, 6, 8000).index_fill(0, torch.arange(64), -3.396965265274048)
    y = gelu(a.double(), approximate=approximate).float()
    named = {"torch": torch, "gelu": gelu, "a": a, "b": torch.zeros(8000), "fused": SimpleNamespace(result=y)}
    assert eval(CHECK, named) is passes


def test_the_launch_that_shows_what_lies_beyond_the_end_waits_for_the_guess():
    [stepped] = [cell for cell in CELLS if "\nwatch(unmasked_kernel" in cell]
    assert stepped.startswith(' tags=["answers-beyond"]\n')
