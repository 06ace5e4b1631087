"""The fusion analyser against what a GPU did: Inductor's groups and times as recorded, the traffic meter's counts."""

import pytest
import torch

from benchmarks import fusion_proof
from benchmarks.fusion_models import GRAPHS
from helpers.instruments.fusion import analyse
from helpers.instruments.traffic import measure

RECORDED = fusion_proof.record()["graphs"]
# Where a GPU has other operators than a CPU: dropout in one, and statistics of a LayerNorm of 16-bit values in fp32.
AS_ON_A_GPU = {"native_dropout", "_fused_rms_norm", "native_layer_norm", "native_batch_norm"}


def unfused(name):
    torch.manual_seed(0)
    function, inputs = GRAPHS[name].build("cpu", small=True)
    plan = analyse(function, *inputs, device="H200")
    read = sum(operation.work.bytes_read for operation in plan.operations)
    written = sum(operation.work.bytes_written for operation in plan.operations)
    return plan, {"bytes_read": read, "bytes_written": written, "launches": plan.launches_unfused}


def metered(name):
    torch.manual_seed(0)
    function, inputs = GRAPHS[name].build("cpu", small=True)
    traffic = measure(function, *inputs)
    return {part: getattr(traffic, part) for part in ("bytes_read", "bytes_written", "launches")}


def test_every_graph_was_recorded():
    assert set(RECORDED) == set(GRAPHS)


@pytest.mark.parametrize("name", GRAPHS)
def test_unfused_bytes_and_launches_are_the_meters(name):
    plan, found = unfused(name)
    assert found == RECORDED[name]["metered_small"]
    if not {operation.target.split(".")[1] for operation in plan.operations} & AS_ON_A_GPU:
        assert found == metered(name)
