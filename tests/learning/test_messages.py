"""A message names the mistake that there is evidence for, and not another one."""

import re

import pytest
import torch
import triton
import triton.language as tl

from helpers.learning import check_passes, check_values
from helpers.learning.checks.cases import Case
from helpers.learning.outcome import FAIL, PASS
from kernels.interpreter import runtime

DEVICE = "cuda" if runtime.has_gpu() else "cpu"


@triton.jit
def first_axis_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    start, col = tl.program_id(0) * cols, tl.arange(0, BLOCK)
    x = tl.load(x_ptr + start + col, mask=col < cols)
    tl.store(y_ptr + start + col, x, mask=col < cols)


@triton.jit
def second_axis_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    start, col = tl.program_id(1) * cols, tl.arange(0, BLOCK)
    x = tl.load(x_ptr + start + col, mask=col < cols)
    tl.store(y_ptr + start + col, x, mask=col < cols)


@triton.jit
def column_by_column_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + col, mask=col < cols)
    tl.store(y_ptr + col * tl.num_programs(0) + row, x, mask=col < cols)


@triton.jit
def unmasked_kernel(x_ptr, other_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    start, col = tl.program_id(0) * cols, tl.arange(0, BLOCK)
    x = tl.load(x_ptr + start + col)
    other = tl.load(other_ptr + start + col, mask=col < cols)
    tl.store(y_ptr + start + col, x + other, mask=col < cols)


@triton.jit
def store_of_several_lines_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    start, col = tl.program_id(0) * cols, tl.arange(0, BLOCK)
    x = tl.load(x_ptr + start + col, mask=col < cols)
    tl.store(
        y_ptr + start + col,
        x,
    )


@triton.jit
def bounds_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    # What lies past x's end is no number of passes.
    size = tl.load(x_ptr + tl.num_programs(0) * cols + cols).to(tl.int32)
    tl.store(y_ptr + tl.arange(0, size), 0.0)


@triton.jit
def overlapping_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


def copied(kernel, rows=None):
    def answer(x):
        y = torch.empty_like(x)
        kernel[(rows or len(x),)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y

    return answer


def without_the_second_row(x):
    y = torch.empty_like(x)
    for row in (0, 2):
        first_axis_kernel[(1,)](x[row:], y[row:], x.shape[1], BLOCK=128)
    return y


def numbers(rows, cols):
    return torch.randn(rows, cols, device=DEVICE)


def values_of(answer):
    cases = [Case("", (numbers(3, 100),), "the formula")]
    return check_values(answer, lambda x: x.clone(), cases, name="values")


def test_a_right_copy_passes():
    assert values_of(copied(first_axis_kernel)).state == PASS


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            copied(second_axis_kernel),
            r"race of .*only one may\. They differ in axis 0 .* never calls tl\.program_id\(0\)",
        ),
        (copied(column_by_column_kernel), r"rows and columns are exchanged in memory\. Element \(i, j\) of 3 x 100 "),
        (copied(first_axis_kernel, rows=2), r"the grid: nothing was written from element 200 on\.$"),
        (copied(first_axis_kernel, rows=1), r"the grid: nothing was written from element 100 on\.$"),
        (
            without_the_second_row,
            r"Look at the grid and the store: these elements were never written\.$",
        ),
        (
            copied(store_of_several_lines_kernel),
            r"your line \d+, `tl\.store\(y_ptr \+ start \+ col, \.\.\.`: which of these",
        ),
        (
            copied(bounds_kernel),
            r"error: values\s+out-of-bounds read of x, 101 past the last .* and then InterpreterError",
        ),
    ],
    ids="axis exchanged grid one-row stride lines before-the-exception".split(),
)
def test_what_there_is_evidence_for_is_named_alone(answer, told):
    said = re.sub(r"\s+", " ", str(values_of(answer)))
    assert re.search(told, said), said
    assert "the formula" not in said, said


def test_a_race_is_blamed_on_no_axis_that_the_kernel_asks_for():
    said = str(values_of(overlapping))
    assert "race of" in said
    assert "program_id" not in said, said


def overlapping(x):
    """Each program stores over the one before, but for an element."""
    y = torch.empty_like(x)
    overlapping_kernel[(len(x),)](x, y, BLOCK=64)
    return y


def test_a_load_without_a_mask_is_not_told_as_a_second_load():
    x, other = numbers(6, 100).split(3)  # what lies past x's end is there, so it's no out-of-bounds read

    def answer(x, other):
        y = torch.empty_like(x)
        unmasked_kernel[(3,)](x, other, y, 100, BLOCK=128)
        return y

    outcome = check_passes(answer, (x, other), reads=(1, 1), name="traffic")
    assert outcome.state == FAIL
    assert "without a mask it also loads what lies past the end of its elements" in outcome.look_at, outcome
    assert "already holds" not in outcome.look_at
