"""`bench`: every instrument on one function in one call, for any number of inputs."""

import pytest
import torch
import triton
import triton.language as tl

from helpers.instruments import DEVICES, bench


@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + i, mask=i < n)
    tl.store(out_ptr + i, gate * tl.sigmoid(gate) * tl.load(up_ptr + i, mask=i < n), mask=i < n)


def swiglu(gate, up):
    out = torch.empty_like(gate)
    swiglu_kernel[(triton.cdiv(gate.numel(), 1024),)](gate, up, out, gate.numel(), BLOCK=1024)
    return out


def plain(gate, up):
    return torch.nn.functional.silu(gate) * up


def test_a_kernel_of_two_inputs_has_every_line():
    gate, up = torch.randn(2, 50_000)
    report = bench(swiglu, gate, up, reference=plain, flops=6 * 50_000, device="A100")
    assert report.difference is None
    assert (report.traffic.launches, report.traffic.bytes_total) == (1, 12 * 50_000)
    assert (report.reference.launches, report.reference.bytes_total) == (2, 20 * 50_000)
    (kernel,) = report.kernels
    assert kernel.grid == (49, 1, 1)
    assert kernel.waves.tail == 49  # of the real grid
    assert kernel.resources.device.name == "A100"
    device = DEVICES["A100"]
    assert report.roof.time(report.work) == pytest.approx(12 * 50_000 / device.memory_bandwidth)
    assert 0 < report.prediction.time < report.reference_prediction.time
    names = [line.split("  ")[0] for line in repr(report).splitlines() if not line.startswith(" ")]
    assert names == "values traffic reference kernel occupancy waves roofline predicted".split()
    assert set(report.times()["alone"]) == {"yours", "reference"}


def test_wrong_values_are_said_and_counted():
    gate, up = torch.rand(2, 1000) + 1
    wrong = bench(swiglu, gate, up, reference=lambda gate, up: gate * up)
    assert wrong.difference.startswith("WRONG: Mismatched elements: 1000 / 1000")
    assert "\nThe failure" not in repr(wrong)
    several = bench(lambda gate, up: (gate, up), gate, up, reference=plain)
    assert several.difference == "WRONG: 2 results, the reference has 1"


def test_a_function_in_place_does_not_change_what_the_other_gets():
    x = torch.ones(100)
    report = bench(lambda x: x.add_(1), x, reference=lambda x: x + 1)
    assert report.difference is None
    assert x.sum() == 100
    assert report.kernels == ()
