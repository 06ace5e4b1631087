"""Rows in pieces: every column once, whatever the width and the address, and 16 bytes at a time."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies

from helpers.instruments.resources import compile_for
from kernels.interpreter import runtime
from kernels.rowwise.pieces import (
    blocks,
    columns,
    columns_inside,
    load_pieces,
    pieces_of,
    pointers,
    row_launch,
    row_max,
    row_sum,
    rows_from,
)
from kernels.vectors import elements_before

BF16 = torch.bfloat16


ONCE = 4096  # more than any element: a sum holds it once for each lane that added to it


@triton.jit
def count_kernel(
    x_ptr, y_ptr, sums_ptr, rows, cols, stride, ONCE: tl.constexpr, BLOCK_ROWS: tl.constexpr, PIECES: tl.constexpr
):
    """y += ONCE + x at the column that each lane with an element has; each row's sum, and its maximum beside it."""
    row = rows_from(tl.program_id(0) * BLOCK_ROWS, BLOCK_ROWS)
    lead = elements_before(row * stride, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    col = columns(lead, cols, PIECES)
    x = load_pieces(pointers(x_ptr, row * stride, lead, cols, PIECES), inside, row < rows, 0.0)
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
    count_kernel[grid](x, y, sums, rows, cols, x.stride(0), ONCE, BLOCK_ROWS=block_rows, PIECES=pieces_of(x))
    assert (y == ONCE + x).all()
    assert (sums[:, 0] == cols * (cols + 1) / 2).all()
    assert (sums[:, 1] == cols).all()


def test_rows_that_begin_apart_are_taken_by_single_elements():
    x = torch.empty(4, 100, dtype=BF16)
    assert pieces_of(x)[2:] == (8, True)  # 200 bytes a row
    assert pieces_of(torch.empty(4, 104, dtype=BF16))[2:] == (8, False)
    assert pieces_of(torch.empty(4, 104, dtype=BF16)[:, :100])[2:] == (8, True)
    assert pieces_of(x, torch.empty(4, 104, dtype=BF16)[:, :100])[2:] == (1, False)
    assert pieces_of(torch.empty(401, dtype=BF16)[1:].view(4, 100))[2:] == (1, False)
    assert pieces_of(torch.empty(4, 7, dtype=BF16))[2:] == (1, False)


@given(cols=strategies.integers(1, 300_000))
def test_blocks_hold_the_row_and_little_more(cols):
    head, tail = blocks(cols)
    assert cols <= head + tail
    assert cols > 512 or tail == 0
    assert (head + tail) * 0.66 < cols or cols <= 512


@pytest.mark.parametrize("cols", [1000, 1025, 4099, 5000, 10001])
def test_threads_move_16_bytes_at_a_time(cols):
    from kernels.rowwise.softmax import softmax_kernel

    x = torch.empty(64, cols, dtype=BF16, device="meta")
    chosen = {"PIECES": pieces_of(x), "COMPUTE": tl.float32, **row_launch(*x.shape)[1]}
    found = compile_for(softmax_kernel, x, x, *x.shape, cols, device="H100", **chosen).instructions
    whole = chosen["PIECES"][0] // (chosen["num_warps"] * 32 * 8)  # vectors of the head a thread
    assert min(found["LDG.128"], found["STG.128"]) >= whole
    assert found["LDG.16"] <= 3  # the rim's
