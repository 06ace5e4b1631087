"""`fusion analyse` as a new user runs it, on a layer of Hugging Face's BERT, installed for this test alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from extra_packages import folder_with

ROOT = Path(__file__).parents[2]
MODEL = """\
import torch
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer


def build():
    layer = BertLayer(BertConfig(hidden_size=1024, num_attention_heads=16, intermediate_size=4096)).eval()
    return layer.to("meta", torch.bfloat16), torch.empty(8, 512, 1024, dtype=torch.bfloat16, device="meta")
"""
COMMAND = (
    "import sys; from helpers.cli import main; sys.exit(main(['analyse', 'model.py:build', '--page', 'page.html']))"
)

# transformers is installed for it.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def packages() -> Path:
    """The folder that transformers lies in, apart from the course's own packages."""
    return folder_with("foreign")


@pytest.mark.timeout(900)
def test_a_new_user_is_told_what_to_fuse_in_bert(packages, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    run = subprocess.run(
        [sys.executable, "-c", COMMAND],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{packages}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    first, _, *table = run.stdout.splitlines()
    # Two residuals, GELU, two norms, six products, attention in steps: what BERT's paper has in a layer.
    assert re.match(r"19 launches become 9, .* MB become .* MB; predicted on H200: ", first)
    kernels = [line.split("  ")[0] for line in table if line and line[0] != " "]
    assert "bmm mul _softmax bmm_1" in kernels
    assert any(re.fullmatch(r"addmm_\d+ gelu", kernel) for kernel in kernels)
    assert sum("add" in kernel.split() or "add_1" in kernel.split() for kernel in kernels) == 2
    assert "torch.nn.functional.scaled_dot_product_attention" in run.stdout
    assert "kernels.linear_act" in run.stdout
    assert "<svg" in (tmp_path / "page.html").read_text()
