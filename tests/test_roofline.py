"""The roofline against values worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.devices import DEVICES
from helpers.operations import OPERATIONS
from helpers.roofline import Roofline, Work, roofs

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


def test_a_roof_for_every_dtype():
    assert {dtype: roof.peak for dtype, roof in roofs(DEVICES["T4"]).items()} == {"fp32": 8.1e12, "fp16": 65e12}


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
    for intensity in (-1, math.nan):
        with pytest.raises(ValueError, match="at least 0"):
            A100.attainable(intensity)
