"""`fusion analyse` as a new user runs it, on models of public packages, installed for this test alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from extra_packages import folder_with
from foreign_models import MODELS

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
    first, today, fills, head, *table = run.stdout.splitlines()
    # Two residuals, GELU, two norms, six products, attention in steps: what BERT's paper has in a layer.
    assert re.match(r"19 launches become 9, .* MB become .* MB; predicted on H200: ", first)
    assert today.startswith("with torch.compile today")
    assert fills.startswith("launches: 19 to 27, because a library may fill a workspace")
    assert head.startswith("operations")
    kernels = [line.split("  ")[0] for line in table if line and line[0] != " "]
    assert "bmm mul _softmax bmm_1" in kernels
    assert any(re.fullmatch(r"addmm_\d+ gelu", kernel) for kernel in kernels)
    assert sum("add" in kernel.split() or "add_1" in kernel.split() for kernel in kernels) == 2
    assert "torch.nn.functional.scaled_dot_product_attention" in run.stdout
    assert "kernels.linear_act" in run.stdout
    assert "modeling_bert.py:" in run.stdout
    assert "<svg" in (tmp_path / "page.html").read_text()


LLAMA_7B = """
import time, torch, transformers
from helpers.instruments.fusion import analyse
with torch.device("meta"):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig()).to(torch.bfloat16).eval()
tokens, began = torch.arange(2048)[None] % 1000, time.process_time()
with torch.no_grad():
    plan = analyse(model, tokens, keywords={"use_cache": False}, device="H100")
plan.report().headlines()
print(len(plan.operations), time.process_time() - began)
"""


@pytest.mark.timeout(600)
def test_the_32_layers_of_llama_7b_take_20_seconds_of_one_core(packages):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LLAMA_7B],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{packages}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    operators, seconds = map(float, run.stdout.split()[-2:])
    assert operators > 2000
    assert seconds < 20  # of CPU time, for both headlines


REFUSED = {"GCN": "edge_index[:, mask]", "GATv2": "edge_index[:, mask]"}  # whose shapes depend on values


@pytest.fixture(scope="module")
def analysed(packages) -> dict[str, dict]:
    """What the analyser finds in each of MODELS."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("foreign_models.py"))],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{packages}", "TRANSFORMERS_VERBOSITY": "critical"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"name"')]
    assert len(lines) == len(MODELS), run.stderr[-2000:]
    return {each["name"]: each for each in lines}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MODELS)
def test_a_public_model_runs_or_fails_in_one_line(analysed, name):
    found = analysed[name]
    if "skipped" in found:
        pytest.skip(f"{name} is not here: {found['skipped']}")
    before, after = found["digests"]  # of weights, buffers, gradients, an optimizer's state and inputs
    assert before == after
    if name in REFUSED:
        assert REFUSED[name] in found["refused"]
        assert "foreign_models.py:" in found["refused"]  # the user's own line, too
        assert "\n" not in found["refused"]
        return
    assert "refused" not in found, found["refused"]
    eager, today, ours = found["times"]
    # Measured on an H100, BERT's compiled attention takes longer than the eager one: transformers builds a mask for it.
    assert eager > today or any("whose mask transformers skips" in reason for reason in found["unsure"])
    assert ours <= 1.02 * today  # the search looks at more kernels, and does not find all of them
    assert found["moving_nothing"] == 0
    assert not found["of_a_cpu"]
    assert found["rows"] <= found["launches"][2]
    if found["unsure"]:
        assert any(line.startswith("unsure: ") for line in found["report"][:3])


def test_memory_formats_differ_in_what_is_known(analysed):
    first, last = analysed["ResNet"], analysed["ResNet, channels last"]
    if "skipped" in first:
        pytest.skip(first["skipped"])
    assert any("channels_last" in reason for reason in first["unsure"])
    assert not any("channels_last" in reason for reason in last["unsure"])


def test_llamas_attention_is_counted(analysed):
    """Two layers of 4 heads of 64, 2 x 128 tokens, half of the scores masked; and all products, by hand."""
    if "skipped" in analysed["Llama"]:
        pytest.skip(analysed["Llama"]["skipped"])
    tokens, width, inner, vocabulary = 2 * 128, 256, 512, 1000
    attention = 4 * 2 * 4 * 128**2 * 64 // 2
    layer = 2 * tokens * (width * (width + 2 * 128 + width) + 3 * width * inner) + attention
    rotations = 2 * 2 * 32 * 128  # positions by frequencies
    wanted = 2 * layer + 2 * tokens * width * vocabulary
    assert analysed["Llama"]["flops"] == pytest.approx(wanted, abs=rotations + 1)
