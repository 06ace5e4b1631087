"""The analyser's bytes for torch.compile's kernels against the sum over Inductor's own kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from extra_packages import folder_with
from torch import nn
from torch.nn import functional

from benchmarks.inductor_bytes import MODELS, compared

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "inductor_bytes.md"
NEAR = 0.05


class Block(nn.Module):
    """A transformer's block with causal attention."""

    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.after(x))))


def test_a_blocks_bytes_are_inductors_own():
    with torch.device("meta"):
        block = Block().to(torch.bfloat16).eval()
    found = compared(block, torch.empty(2, 128, 256, dtype=torch.bfloat16, device="meta"))
    # Its second norm recomputes a sum: PyTorch's own kernel would read one that nobody wrote, 4 % fewer bytes.
    assert found.ratio == pytest.approx(1, abs=0.01)


@pytest.mark.long
@pytest.mark.timeout(500)
def test_public_models_bytes_are_inductors_within_a_twentieth_or_explained():
    packages = folder_with("foreign")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.inductor_bytes"],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, packages))), "TRANSFORMERS_VERBOSITY": "critical"}
        | {"OMP_NUM_THREADS": "1"},  # fake tensors give more threads nothing to do, and on a busy machine they wait
        capture_output=True,
        text=True,
        timeout=400,
    )
    rows = {each["name"]: each for each in map(json.loads, run.stdout.splitlines())}
    assert set(rows) == set(MODELS), run.stderr[-2000:]
    assert len(rows) >= 6
    page = PAGE.read_text()
    for name, row in rows.items():
        expected = MODELS[name].ratio
        assert row["ours"] / row["inductor"] == pytest.approx(expected, abs=0.01), name
        assert MODELS[name].why or abs(expected - 1) <= NEAR
        assert f"| {name} |" in page
