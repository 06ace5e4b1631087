"""Without a GPU a call is metered as it is on the course's reference GPU: the same launches, the same bytes."""

import json

import pytest
import torch

from benchmarks.metered import RESULTS, metered, shapes
from helpers.instruments import measure
from kernels import CATALOGUE, layer_norm

RECORD = RESULTS / "h100_80gb_hbm3_metered.json"  # 132 multiprocessors, as the H200 has
CASES = [(name, shape) for name, op in CATALOGUE.items() for shape in shapes(op)]


@pytest.fixture(scope="module")
def recorded():
    if not RECORD.exists():
        pytest.skip("run python benchmarks/metered.py on a GPU")
    rows = json.loads(RECORD.read_text())["rows"]
    return {(row.pop("kernel"), tuple(row.pop("shape"))): row for row in rows}


# In `make test` few rows of a usual width for four operations, each of another family.
USUAL = "cross_entropy", "layer_norm", "residual_rms_norm", "softmax"
MARKED = [
    pytest.param(*each, marks=[pytest.mark.long] * (each[1] == (64, 512) and each[0] not in USUAL)) for each in CASES
]


@pytest.mark.parametrize(("name", "shape"), MARKED, ids=str)
def test_launches_and_bytes_are_those_of_a_gpu(recorded, name, shape):
    if (name, shape) not in recorded:
        pytest.skip(f"run python benchmarks/metered.py on a GPU for {name}")
    here, there = metered(CATALOGUE[name], shape, "cpu"), recorded[name, shape]
    assert {way: here[way] for way in there} == there
    if here.keys() != there.keys():
        pytest.skip(f"run python benchmarks/metered.py on a GPU for {name} backward")


def backward_of_layer_norm(device=None):
    x, weight, bias = (torch.randn(size, requires_grad=True) for size in ((64, 512), 512, 512))
    y = layer_norm(x, weight, bias)
    gradient = torch.randn_like(y)
    return measure(lambda: torch.autograd.grad(y, (x, weight, bias), gradient), device=device)


def test_the_reference_gpu_is_the_h200_and_another_can_be_asked_for():
    """64 rows are few for the 132 multiprocessors of an H200 and the 108 of an A100, many for the 40 of a T4."""
    counts = {device: backward_of_layer_norm(device) for device in (None, "H200", "A100", "T4")}
    here, there, small = ((counts[device].launches, counts[device].bytes_total) for device in (None, "H200", "T4"))
    assert here == there != small
    assert counts["A100"].bytes_total == counts["H200"].bytes_total > counts["T4"].bytes_total  # other kernels


def test_another_gpu_is_one_that_is_known():
    with pytest.raises(ValueError, match="unknown device 'H2000': the nearest is"):
        backward_of_layer_norm("H2000")
