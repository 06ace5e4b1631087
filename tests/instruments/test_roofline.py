"""The roofline against values worked out by hand."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.instruments.devices import DEVICES
from helpers.instruments.operations import OPERATIONS
from helpers.instruments.roofline import SPECIAL, Roofline, Work, levels, measured_device, roofs

A100 = Roofline(DEVICES["A100"], "fp16")
H100 = Roofline(DEVICES["H100"], "fp16")


def test_ridges_by_hand():
    assert A100.ridge == pytest.approx(312e12 / 2039e9)
    assert A100.ridge == pytest.approx(153.0, abs=0.05)
    assert H100.ridge == pytest.approx(295.3, abs=0.05)
    assert Roofline(DEVICES["A100"], "fp32").ridge == pytest.approx(9.56, abs=0.01)


def test_times_by_hand():
    add = Work(flops=1e6, bytes_read=8e6, bytes_written=4e6)
    assert add.intensity == pytest.approx(1 / 12)
    assert A100.time(add) == pytest.approx(12e6 / 2039e9)
    matmul = Work(flops=2 * 4096**3, bytes_read=2 * 2 * 4096**2, bytes_written=2 * 4096**2)
    assert matmul.intensity == pytest.approx(4096 / 3)  # not 4096: bytes, not elements, and the output counts
    assert A100.time(matmul) == pytest.approx(2 * 4096**3 / 312e12)
    assert (A100.bound(add), A100.bound(matmul)) == ("memory", "compute")


def test_relu_sits_three_orders_of_magnitude_under_an_a100s_ridge():
    relu = OPERATIONS["ReLU"](4096, 4096, 2).fused[0].work
    assert relu.intensity == 0.25
    assert round(math.log10(A100.ridge / relu.intensity)) == 3


def test_bounds_at_and_beside_the_ridge():
    exactly = Work(flops=312, bytes_read=2.039, bytes_written=0)
    assert A100.bound(exactly) == "compute"
    assert A100.bound(Work(flops=311, bytes_read=2.039, bytes_written=0)) == "memory"
    assert A100.attainable(A100.ridge) == pytest.approx(A100.peak)
    assert A100.bound(Work(flops=1, bytes_read=0, bytes_written=0)) == "compute"
    assert A100.time(Work(flops=0, bytes_read=0, bytes_written=0)) == 0


def test_a_roof_for_every_dtype_and_for_special_functions():
    peaks = {"fp32": 8.1e12, "fp16": 65e12, "special functions": 40 * 16 * 1.59e9}
    assert {name: roof.peak for name, roof in roofs(DEVICES["T4"]).items()} == pytest.approx(peaks)


def test_units_on_the_chip_by_hand():
    h200 = DEVICES["H200"]
    assert h200.special_rate == pytest.approx(132 * 16 * 1.98e9)
    assert h200.shared_bandwidth == pytest.approx(132 * 128 * 1.98e9)
    unknown = dataclasses.replace(h200, compute_capability=(99, 0))
    assert (unknown.special_rate, unknown.shared_bandwidth) == (None, None)
    assert (list(levels(unknown, "fp16")), SPECIAL in roofs(unknown)) == (["DRAM"], False)
    with pytest.raises(ValueError, match="H200 has no known special functions"):
        Roofline(unknown, SPECIAL)


def test_what_was_measured_is_the_records_and_lower_than_the_data_sheet():
    h200 = measured_device(DEVICES["H200"])
    record = json.loads(Path("benchmarks/results/h200.json").read_text())
    run = record["runs"][max(row["run"] for row in record["rows"])]["ceilings"]
    roof = Roofline(h200, "bf16")
    assert (roof.bandwidth, roof.peak) == (run["copy_bytes_per_second"], run["bf16_matrix_flops_per_second"])
    assert 0.7 < roof.peak / DEVICES["H200"].peak_flops["bf16"] < 1
    assert 0.7 < roof.bandwidth / DEVICES["H200"].memory_bandwidth < 1
    assert measured_device(DEVICES["A100"]) is None


WITH_L2 = dataclasses.replace(DEVICES["A100"], l2_bandwidth=4078e9)  # twice its memory's: no claim about an A100


def test_each_level_has_a_roof_where_its_bandwidth_is_known():
    dram, l2, shared = levels(WITH_L2, "fp16").values()
    assert (dram.ridge, l2.ridge) == (pytest.approx(153.0, abs=0.05), pytest.approx(76.5, abs=0.05))
    assert shared.ridge == pytest.approx(312e12 / (108 * 128 * 1.41e9))
    assert list(levels(DEVICES["A100"], "fp16")) == ["DRAM", "shared"]
    # A softmax that reads its input twice, the second time from L2: 2 bytes of L2 traffic for one of DRAM's.
    at_dram, at_l2 = Work(5e9, 2e9, 2e9), Work(5e9, 6e9, 4e9)
    assert dram.time(at_dram) == pytest.approx(4e9 / 2039e9)
    assert l2.time(at_l2) == pytest.approx(10e9 / 4078e9)
    assert l2.time(at_l2) > dram.time(at_dram)  # L2 decides
    assert (dram.bound(at_dram), l2.bound(at_l2)) == ("memory", "L2")
    assert l2.attainable(at_l2.intensity) == pytest.approx(5e9 / l2.time(at_l2))


def test_a_level_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="no L2 bandwidth of A100 is known: measure it"):
        Roofline(DEVICES["A100"], "fp16", "L2")
    with pytest.raises(ValueError, match="unknown memory level 'L1': choose from DRAM, L2, shared"):
        Roofline(WITH_L2, "fp16", "L1")


sizes = st.floats(1e-3, 1e15)


@given(sizes, sizes, sizes, st.sampled_from(sorted(DEVICES)))
def test_time_is_flops_over_attainable(flops, read, written, name):
    roof, work = Roofline(DEVICES[name], "fp32"), Work(flops, read, written)
    assert roof.time(work) == pytest.approx(work.flops / roof.attainable(work.intensity))
    assert roof.bound(work) == ("memory" if roof.attainable(work.intensity) < roof.peak else "compute")


def test_bad_input_is_refused_in_one_line():
    with pytest.raises(TypeError, match=r"write DEVICES\[name\]"):
        Roofline("A100", "fp16")
    with pytest.raises(ValueError, match="V100 has no bf16 peak"):
        Roofline(DEVICES["V100"], "bf16")
    for intensity in (-1, math.nan, "3", 3j):
        with pytest.raises(ValueError, match="at least 0"):
            A100.attainable(intensity)
    with pytest.raises(TypeError, match=r"takes the name of a dtype, got torch.float16: write one of fp32, tf32, fp16"):
        Roofline(DEVICES["A100"], torch.float16)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "3", None, 3j, torch.ones(3), 2**2000, 1e301])
def test_work_is_finite_numbers(value):
    for which in ("flops", "bytes_read", "bytes_written"):
        with pytest.raises(ValueError, match=f"Work takes {which} from 0 to 1e300, got") as raised:
            Work(**{"flops": 1, "bytes_read": 1, "bytes_written": 1, which: value})
        assert len(str(raised.value)) < 100
    with pytest.raises(ValueError, match="got more"):
        Work(10**5000, 0, 0)  # Python doesn't print it
    most = Work(10**300, 10**300, 10**300)
    assert math.isfinite(A100.time(most))
    assert A100.bound(most) == "memory"


def test_nothing_limits_no_work():
    assert A100.time(Work(0, 0, 0)) == 0
    with pytest.raises(ValueError, match="no FLOPs and no bytes: nothing limits such work"):
        A100.bound(Work(0, 0, 0))


def test_a_record_belongs_to_the_gpu_it_was_made_on():
    h200 = DEVICES["H200"]
    for changed in ({"sms": 16}, {"sm_clock": 1.2e9}, {"driver_name": "NVIDIA H200 NVL"}, {"name": "../results/h200"}):
        assert measured_device(dataclasses.replace(h200, **changed)) is None
