"""Wide rows: what the model says fits, against the compiler; its bytes against the meter's; its explorer."""

import re

import pytest
import torch
import triton
import triton.language as tl

from helpers.figures.rowwise.wide_rows import (
    COLUMNS,
    LOOP_REGISTERS,
    READS,
    ROWS,
    WARPS,
    WideRows,
    WideRowsExplorer,
    segments,
    wide_rows_axes,
)
from helpers.instruments.devices import DEVICES
from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure

POINTERS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@triton.jit
def held_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + offset, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x))
    tl.store(y_ptr + offset, e / tl.sum(e), mask=inside)


@triton.jit
def twice_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    x_ptr += tl.program_id(0).to(tl.int64) * columns
    y_ptr += tl.program_id(0).to(tl.int64) * columns
    peak, total = -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < columns, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(x))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher))
        peak = higher
    for start in range(0, columns, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < columns).to(tl.float32)
        tl.store(y_ptr + col, tl.exp(x - peak) / total, mask=col < columns)


HELD = (4, 16384), (4, 32768), (8, 32768), (8, 65536), (16, 65536), (32, 32768), (32, 50257)


# In `make test` each row of one type.
@pytest.mark.parametrize(
    ("warps", "columns", "dtype"),
    [
        pytest.param(*row, dtype, marks=[] if place % 2 == number else [pytest.mark.long])
        for place, row in enumerate(HELD)
        for number, dtype in enumerate(POINTERS)
    ],
)
def test_a_row_fits_where_the_compiler_spills_nothing(warps, columns, dtype):
    row = torch.empty(2, columns, dtype=POINTERS[dtype], device="meta")
    block = triton.next_power_of_2(columns)
    compiled = compile_for(held_kernel, row, row, columns, device="H100", BLOCK=block, num_warps=warps)
    assert WideRows(DEVICES["H100"], dtype, 1, columns, warps).fits is (compiled.spill_bytes == 0)


@pytest.mark.parametrize("dtype", POINTERS)
def test_as_many_looping_blocks_fit_as_the_compiler_says(dtype):
    row = torch.empty(2, 50257, dtype=POINTERS[dtype], device="meta")
    for warps in WARPS:
        compiled = compile_for(twice_kernel, row, row, 50257, device="H100", BLOCK=256 * warps, num_warps=warps)
        assert compiled.registers == pytest.approx(LOOP_REGISTERS, abs=8)
        in_flight = WideRows(DEVICES["H100"], dtype, 2**20, 50257, warps).in_flight
        assert in_flight == pytest.approx(132 * compiled.occupancy().blocks, rel=0.25)


def test_bytes_are_the_meters_where_l2_keeps_nothing():
    columns = 3000
    x = torch.randn(2, columns)
    y = torch.empty_like(x)
    case = WideRows(DEVICES["T4"], "fp32", 2**20, 2**20, 4)
    assert case.kept == 0
    twice = measure(lambda: twice_kernel[(2,)](x, y, columns, BLOCK=1024))
    assert torch.allclose(y, torch.softmax(x, -1))
    assert sum(case.number_bytes("read twice")) == twice.bytes_total / x.numel() == 12
    held = measure(lambda: held_kernel[(2,)](x, y, columns, BLOCK=4096))
    assert sum(case.number_bytes("held")) == held.bytes_total / x.numel() == 8
    assert sum(case.number_bytes("read three times")) == 16


def test_l2_serves_what_is_at_work():
    few = WideRows(DEVICES["H100"], "bf16", 16, 65536, 4)
    assert few.in_flight == 16
    assert few.kept == 1
    assert few.number_bytes("read twice") == (2, 2, 2)
    assert few.dram_bytes("read three times") == 4 * 16 * 65536
    assert few.least_time("read twice") == pytest.approx(4 * 16 * 65536 / (0.88 * 3.35e12))
    many = WideRows(DEVICES["H100"], "bf16", 8192, 65536, 4)
    assert many.in_flight > 132
    assert many.kept == 0
    assert many.number_bytes("read twice") == (4, 0, 2)
    large_blocks = WideRows(DEVICES["H100"], "bf16", 8192, 65536, 32)
    assert 0 < large_blocks.kept < 1


def test_what_lesson_06_says_is_to_be_found():
    def case(gpu="H100", rows=8192, columns=50257, warps=8):
        return WideRows(DEVICES[gpu], "bf16", rows, columns, warps)

    assert [columns for columns in COLUMNS if any(case(columns=columns, warps=warps).fits for warps in WARPS)] == list(
        COLUMNS[: COLUMNS.index(50257)]
    )
    assert case(warps=4).kept == 0 < case(warps=32).kept
    assert case(rows=1024, warps=4).kept == 0
    assert case(rows=128, warps=4).kept == 1
    assert (case("RTX 4090", warps=32).kept, case("T4", warps=32).kept) == (1, 0)
    assert [case(gpu, warps=32).in_flight for gpu in ("RTX 4090", "T4")] == [128, 40]  # one on each SM


@pytest.mark.parametrize("columns", [1, 2, 127, 128, 129])
def test_lanes_are_a_power_of_two(columns):
    case = WideRows(DEVICES["H100"], "fp32", 1, columns, 4)
    assert case.numbers == -(-triton.next_power_of_2(columns) // 128)
    assert case.fits
    assert "1 element per thread" in case.finding or columns == 129


def test_findings():
    def finding(columns, rows=8192, warps=8):
        return WideRows(DEVICES["H100"], "bf16", rows, columns, warps).finding

    assert finding(16384) == "A row of 16,384 fits in 8 warps: 64 elements per thread"
    assert finding(65536) == "A row of 65,536 does not fit in 8 warps, and L2 has lost it before a second read"
    assert finding(65536, rows=16) == "A row of 65,536 does not fit in 8 warps, but L2 still has it for a second read"
    assert re.fullmatch(
        r"A row of 65,536 does not fit in 32 warps; L2 serves \d\d% of a second read", finding(65536, warps=32)
    )


def test_each_frame_shows_its_position():
    explorer = WideRowsExplorer("A100", "fp32")
    figure, axes = wide_rows_axes("fp32")
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(COLUMNS) * len(ROWS) * len(WARPS)
    for index in range(0, len(frames), 7):
        explorer.columns.index, rest = divmod(index, len(ROWS) * len(WARPS))
        explorer.rows.index, explorer.warps.index = divmod(rest, len(WARPS))
        frame, case = frames[index], explorer._case
        assert frame["text"] == explorer.text == explorer.chart().text
        drawn = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', frame["svg"])
        expected = [(line, part) for line, way in enumerate(READS) for part in segments(case, way)]
        for (x, y, width, height), (line, (start, long, high, *_)) in zip(drawn, expected, strict=True):
            corners = axes.transData.transform([(start, line + high / 2), (start + long, line - high / 2)])
            (left, bottom), (right, top) = corners
            found = float(x), float(y), float(x) + float(width), float(y) + float(height)
            assert found == pytest.approx((left, figure.bbox.height - top, right, figure.bbox.height - bottom), abs=0.2)


def test_a_row_that_does_not_fit_has_no_bar():
    explorer = WideRowsExplorer(columns=65536, warps=8)
    assert "does not fit: 256 elements" in explorer._stage.data["frames"][_index(explorer)]["svg"]
    assert not segments(explorer._case, "held")
    data, _ = explorer._repr_mimebundle_()
    assert data["text/plain"] == explorer.text
    assert data["image/png"]


def _index(explorer):
    return (explorer.columns.index * len(ROWS) + explorer.rows.index) * len(WARPS) + explorer.warps.index


@pytest.mark.parametrize(
    ("options", "message"),
    [({"device": "CPU"}, "choose from fp32"), ({"dtype": "fp8"}, "choose from fp32"), ({"columns": 7}, "has no 7")],
)
def test_what_cannot_be_shown_is_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=message) as refused:
        WideRowsExplorer(**options)
    assert "\n" not in str(refused.value)
