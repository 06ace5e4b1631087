"""`bench`: every instrument on one function in one call, for any number of inputs."""

import pytest
import torch
import triton
import triton.language as tl

from helpers.instruments import DEVICES, bench, compile_for
from helpers.instruments.bench_report import _products_of


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
    interpreted = "" if torch.cuda.is_available() else ", interpreted"  # so that no time passes for the kernel's
    assert set(report.times()["alone"]) == {f"yours{interpreted}", "reference"}


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


@triton.jit
def small_product(a_ptr, b_ptr, out_ptr, SIDE: tl.constexpr):
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    product = tl.dot(tl.load(a_ptr + row * SIDE + column), tl.load(b_ptr + row * SIDE + column))
    tl.store(out_ptr + row * SIDE + column, product)


def multiplied(a, b):
    out = torch.empty(64, 64)
    small_product[(1,)](a, b, out, SIDE=64)
    return out


def convolved(image, taps):
    return torch.nn.functional.conv2d(image[None, None], taps[None, None, :3, :3])


@pytest.mark.parametrize(
    ("fn", "dtype", "device", "roof"),
    [
        (multiplied, torch.float32, "H100", "tf32"),
        (multiplied, torch.float16, "H100", "fp16"),
        (multiplied, torch.float16, "T4", "fp32"),  # Triton has no tensor cores there
        (torch.mm, torch.float16, "H100", "fp16"),
        (torch.mm, torch.bfloat16, "H100", "bf16"),
        (torch.mm, torch.float32, "H100", "fp32"),
        (torch.mm, torch.float16, "T4", "fp16"),
        (torch.add, torch.float16, "H100", "fp32"),
        (convolved, torch.float32, "H100", "tf32"),  # as PyTorch is set by default
        (convolved, torch.float32, "T4", "fp32"),  # which has no TF32
    ],
)
def test_the_roof_is_that_of_the_units_that_multiply(fn, dtype, device, roof):
    a, b = torch.rand(2, 64, 64).to(dtype)
    report = bench(fn, a, b, flops=1e12, device=device)
    assert (report.roof.dtype, report.unknown_peak) == (roof, "")
    assert report.roof.time(report.work) == pytest.approx(1e12 / DEVICES[device].peak_flops[roof])
    assert f"the FLOPs given, compute-bound on {roof}" in repr(report)


def test_the_dtypes_of_products_are_read_from_the_code():
    for dtype, device, name in (
        (torch.float8_e4m3fn, "H100", "fp8"),
        (torch.float8_e4m3fn, "L4", "fp8"),
        (torch.float8_e4m3fn, "B200", "fp8"),
        (torch.float32, "B200", "tf32"),
        (torch.bfloat16, "A100", "bf16"),
        (torch.float16, "B200", "fp16"),
    ):
        needs = compile_for(small_product, dtype, dtype, torch.float32, device=device, SIDE=64)
        assert _products_of(needs) == [name], (dtype, device)


def test_a_peak_that_is_not_known_is_named_and_its_flops_are_not_counted():
    a, b = torch.rand(2, 64, 64).double()
    report = bench(torch.mm, a, b, flops=1e12)
    assert (report.unknown_peak, report.work.flops) == ("fp64", 0)
    assert "H100 has no known fp64 peak: the 1e+12 FLOPs are not counted, so the best may take longer" in repr(report)


def test_a_cluster_is_as_many_blocks():
    def doubled(x):
        swiglu_kernel[(1056,)](x, x, x, 1000, BLOCK=1024, num_ctas=2)
        return x

    report = bench(doubled, torch.ones(1000))
    assert (report.kernels[0].waves.full, report.kernels[0].waves.tail) == (1, 0)
    assert "\nclusters    of 2 blocks, which start together" in repr(report)


def test_a_function_that_returns_nothing_is_judged_by_what_it_did_to_its_inputs():
    def add(number):
        def in_place(x):
            x.add_(number)

        return in_place

    assert bench(add(1), torch.ones(100), reference=add(1)).difference is None
    assert bench(add(1), torch.ones(100), reference=add(2)).difference.startswith("WRONG: Mismatched elements: 100")
    assert "values      right" in repr(bench(lambda x: None, torch.ones(3), reference=lambda x: None))


def test_results_of_another_dtype_or_kind_are_named():
    other = bench(lambda x: x.double(), torch.ones(3), reference=lambda x: x)
    assert other.difference.startswith("WRONG: The values for attribute 'dtype' do not match")
    assert bench(lambda x: "a", torch.ones(3), reference=lambda x: "b").difference.startswith("not compared: ")


def test_functions_without_a_kernel_are_timed_under_their_own_names():
    assert set(bench(plain, *torch.randn(2, 1000), reference=plain).times()["alone"]) == {"yours", "reference"}


@pytest.mark.parametrize("flops", [-1, float("nan"), float("inf"), "1", None])
def test_flops_that_are_no_number_are_refused(flops):
    with pytest.raises(ValueError, match="flops is a number of at least 0, got"):
        bench(torch.add, torch.ones(3), torch.ones(3), flops=flops)


def test_a_call_that_does_nothing_has_a_report():
    report = bench(lambda x: x, torch.ones(3), reference=lambda x: x)
    assert "\nroofline    0 us at best for the bytes metered\n" in repr(report)
    assert repr(report).endswith("the reference: 0 us")
