"""Public packages' Triton kernels in the meter: reproduce the table in docs/public_kernels.md."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from extra_packages import folder_with_alone

from kernels.interpreter import runtime

ROOT = Path(__file__).parents[1]
# Not an extra of pyproject.toml: what they need, another PyTorch among it, does not go with the course's own packages.
PACKAGES = (
    "einops==0.8.2",
    "fla-core==0.6.0",
    "flash-linear-attention==0.6.0",
    "liger-kernel==0.8.5",
    "torchao==0.18.0",
    "unsloth==2026.10.9",
    "vllm==0.33.0",
    "xformers==0.0.35",
)
REFUSED = {
    "torchao: fp8_blockwise_act_quant": "fp8e4nv needs a GPU",
    "xformers: tiled_matmul": "its early_config_prune failed without a GPU",
}

# The packages are installed for it.
pytestmark = [pytest.mark.long, pytest.mark.skipif(runtime.has_gpu(), reason="kernels are compiled here")]


def documented() -> dict[str, str]:
    table = (ROOT / "docs" / "public_kernels.md").read_text()
    return dict(re.findall(r"^\| ([\w-]+: \w+) \| (right|refused)", table, re.MULTILINE))


@pytest.mark.timeout(900)
def test_public_kernels_run_and_are_right_or_refused_in_one_line():
    folder = folder_with_alone(*PACKAGES)
    command = [sys.executable, str(ROOT / "tests" / "public_kernels.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=800)
    found = {each["kernel"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert {name: each["outcome"] for name, each in found.items()} == documented()
    refused = {name for name, each in found.items() if each["outcome"] != "right"}
    assert refused == set(REFUSED)
    assert len(found) - len(refused) >= 0.8 * len(found)
    hazards = {name: each["hazards"] for name, each in found.items() if each.get("hazards")}
    assert {name: len(each) for name, each in hazards.items()} == {"fla: chunk_gla": 1}  # no false alarm
    assert hazards["fla: chunk_gla"][0].startswith("uninitialised read of A")
    for name in refused:
        assert REFUSED[name] in found[name]["message"]
        assert "\n" not in found[name]["message"]
