"""Rows as vectors and an edge: every column once, whatever the width and the address, and 16 bytes at a time."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings, strategies

from helpers.instruments.resources import compile_for
from kernels.interpreter import runtime
from kernels.tuned.segments import at_vector, edge, elements_before, in_edge, row_vectors

BF16 = torch.bfloat16

ONCE = 4096  # more than any element: a sum holds it once for each position that added to it


@triton.jit
def count_kernel(
    x_ptr, y_ptr, cols, stride, ONCE: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, UNALIGNED: tl.constexpr
):
    """y += ONCE + x at the column that each position with an element has."""
    row = tl.program_id(0).to(tl.int64)
    misalignment = elements_before(row * stride, VECTOR, UNALIGNED)
    whole = at_vector(cols - misalignment, VECTOR)
    place = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at_vector(row * stride + misalignment, VECTOR) + place, mask=place < whole)
    tl.atomic_add(y_ptr + row * cols + misalignment + place, ONCE + x, mask=place < whole)
    if UNALIGNED:
        col, inside = edge(misalignment, cols, VECTOR), in_edge(misalignment, whole, cols, VECTOR)
        x = tl.load(x_ptr + row * stride + col, mask=inside)
        tl.atomic_add(y_ptr + row * cols + col, ONCE + x, mask=inside)


@settings(max_examples=60)
@given(
    cols=strategies.integers(1, 1300),
    padding=strategies.integers(0, 9),
    offset=strategies.integers(0, 5),
)
def test_every_column_has_one_position(cols, padding, offset):
    rows = 9
    device = "cuda" if runtime.has_gpu() else "cpu"
    memory = torch.full((offset + rows * (cols + padding),), -1.0, device=device)
    x = memory[offset:].view(rows, cols + padding)[:, :cols]
    x.copy_(torch.arange(1, cols + 1))
    y = torch.zeros(rows, cols, device=device)
    vector, unaligned = row_vectors(x)
    count_kernel[(rows,)](x, y, cols, x.stride(0), ONCE, BLOCK=2048, VECTOR=vector, UNALIGNED=unaligned)
    assert (y == ONCE + x).all()


def test_rows_that_begin_apart_are_taken_by_single_elements():
    x = torch.empty(4, 100, dtype=BF16)
    assert row_vectors(x) == (8, True)  # 200 bytes per row
    assert row_vectors(torch.empty(4, 104, dtype=BF16)) == (8, False)
    assert row_vectors(torch.empty(4, 104, dtype=BF16)[:, :100]) == (8, True)
    assert row_vectors(x, torch.empty(4, 104, dtype=BF16)[:, :100]) == (1, False)
    assert row_vectors(torch.empty(401, dtype=BF16)[1:].view(4, 100)) == (1, False)
    assert row_vectors(torch.empty(4, 7, dtype=BF16)) == (1, False)


@pytest.mark.parametrize("cols", [1000, 1025, 4099, 5000, 10001])
def test_threads_load_16_bytes_at_a_time(cols):
    x, y = torch.empty(64, cols, dtype=BF16, device="meta"), torch.empty(64, cols, device="meta")
    vector, unaligned = row_vectors(x)
    chosen = {"BLOCK": triton.next_power_of_2(cols), "VECTOR": vector, "UNALIGNED": unaligned}
    found = compile_for(count_kernel, x, y, cols, cols, ONCE, device="H100", **chosen).instructions
    assert found["LDG.128"] >= chosen["BLOCK"] // (4 * 32 * 8)  # vectors per thread
    assert found["LDG.16"] <= 3  # the edge's
