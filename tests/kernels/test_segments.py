"""Rows in segments: every column once, whatever the width and the address, and 16 bytes at a time."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies

from helpers.instruments.resources import compile_for
from kernels.interpreter import runtime
from kernels.tuned.segments import (
    elements_before,
    load_segments,
    row_launch,
    row_max,
    row_segments,
    row_sum,
    rows_from,
    segment_blocks,
    segment_columns,
    segment_masks,
    segment_pointers,
)

BF16 = torch.bfloat16


ONCE = 4096  # more than any element: a sum holds it once for each lane that added to it


@triton.jit
def count_kernel(
    x_ptr, y_ptr, sums_ptr, rows, cols, stride, ONCE: tl.constexpr, BLOCK_ROWS: tl.constexpr, SEGMENTS: tl.constexpr
):
    """y += ONCE + x at the column that each position with an element has; each row's sum, and its maximum beside it."""
    row = rows_from(tl.program_id(0).to(tl.int64) * BLOCK_ROWS, BLOCK_ROWS)
    misalignment = elements_before(row * stride, SEGMENTS[2], SEGMENTS[3])
    inside = segment_masks(misalignment, cols, SEGMENTS)
    col = segment_columns(misalignment, cols, SEGMENTS)
    x = load_segments(segment_pointers(x_ptr, row * stride, misalignment, cols, SEGMENTS), inside, row < rows, 0.0)
    for i in tl.static_range(len(x)):
        here = inside[i] & (row < rows)
        tl.atomic_add(y_ptr + row * cols + col[i], ONCE + x[i], mask=here)
    tl.store(sums_ptr + 2 * row, row_sum(x), mask=row < rows)
    tl.store(sums_ptr + 2 * row + 1, row_max(x), mask=row < rows)


@settings(max_examples=60)
@given(
    cols=strategies.integers(1, 1300),
    padding=strategies.integers(0, 9),
    offset=strategies.integers(0, 5),
    block_rows=strategies.sampled_from([1, 2, 4]),
)
def test_every_column_has_one_lane(cols, padding, offset, block_rows):
    rows = 3
    device = "cuda" if runtime.has_gpu() else "cpu"
    memory = torch.full((offset + rows * (cols + padding),), -1.0, device=device)
    x = memory[offset:].view(rows, cols + padding)[:, :cols]
    x.copy_(torch.arange(1, cols + 1))
    y, sums = torch.zeros(rows, cols, device=device), torch.empty(rows, 2, device=device)
    grid = (triton.cdiv(rows, block_rows),)
    count_kernel[grid](x, y, sums, rows, cols, x.stride(0), ONCE, BLOCK_ROWS=block_rows, SEGMENTS=row_segments(x))
    assert (y == ONCE + x).all()
    assert (sums[:, 0] == cols * (cols + 1) / 2).all()
    assert (sums[:, 1] == cols).all()


def test_rows_that_begin_apart_are_taken_by_single_elements():
    x = torch.empty(4, 100, dtype=BF16)
    assert row_segments(x)[2:] == (8, True)  # 200 bytes a row
    assert row_segments(torch.empty(4, 104, dtype=BF16))[2:] == (8, False)
    assert row_segments(torch.empty(4, 104, dtype=BF16)[:, :100])[2:] == (8, True)
    assert row_segments(x, torch.empty(4, 104, dtype=BF16)[:, :100])[2:] == (1, False)
    assert row_segments(torch.empty(401, dtype=BF16)[1:].view(4, 100))[2:] == (1, False)
    assert row_segments(torch.empty(4, 7, dtype=BF16))[2:] == (1, False)


@given(cols=strategies.integers(1, 300_000))
def test_blocks_hold_the_row_and_little_more(cols):
    head, tail = segment_blocks(cols)
    assert cols <= head + tail
    assert cols > 512 or tail == 0
    assert (head + tail) * 0.66 < cols or cols <= 512


@pytest.mark.parametrize("cols", [1000, 1025, 4099, 5000, 10001])
def test_threads_load_16_bytes_at_a_time(cols):
    x = torch.empty(64, cols, dtype=BF16, device="meta")
    sums, (_, chosen) = torch.empty(64, 2, device="meta"), row_launch(*x.shape)
    segments = row_segments(x)
    found = compile_for(count_kernel, x, sums, sums, *x.shape, cols, ONCE, SEGMENTS=segments, device="H100", **chosen)
    whole = segments[0] // (chosen["num_warps"] * 32 * 8)  # vectors of the head per thread
    assert found.instructions["LDG.128"] >= whole
    assert found.instructions["LDG.16"] <= 3  # the edge's
