"""The lessons' micro-puzzles: as they stand none is solved, the answer that the lesson hides solves it; what is red."""

import importlib.util
import itertools
import re
from pathlib import Path

import jupytext
import pytest
import torch
import triton
import triton.language as tl

from helpers.learning import puzzle

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = "import torch\nimport triton\nimport triton.language as tl\n\nfrom helpers.learning import puzzle\n\n"
BLOCK_OF = "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)"
# kernel -> (text in the cell, what stands there once it is solved); an empty one: the line is deleted.
ANSWERS = {
    "double_kernel": [("element = tl.arange(0, BLOCK)", f"element = {BLOCK_OF}")],
    "sum_kernel": [("b = a", "b = tl.load(b_ptr + element)")],
    "half_kernel": [("# <- a line here", "y = tl.maximum(y, 0.0)")],
    "add_relu_kernel": [("tl.store(y_ptr + element, s)\n", "\n"), ("s = tl.load(y_ptr + element)", "")],
    "mask_kernel": [("exists = element < BLOCK", "exists = element < elements")],
    "block_sum_kernel": [("tl.store(y_ptr, tl.sum(x))", "tl.store(y_ptr + program, tl.sum(x))")],
    "square_kernel": [("tl.load(x_ptr + element)", "tl.load(x_ptr + element).to(tl.float32)")],
    "transposed_kernel": [("x_ptr + row * row_stride + column", "x_ptr + row * row_stride + column * column_stride")],
    "two_blocks_kernel": [
        ("first = tl.program_id(0) * BLOCK + block * BLOCK", "first = (2 * tl.program_id(0) + block) * BLOCK")
    ],
    "mask_again_kernel": [("counter = position", "counter = element")],
    "grad_gate_kernel": [("slope = share", "slope = share * (1 + gate * (1 - share))")],
    "variance_kernel": [
        ("centred = x - tl.sum(x) / columns", "centred = tl.where(inside, x - tl.sum(x) / columns, 0.0)")
    ],
    "mean_kernel": [("mean = tl.sum(x) / columns", "mean = tl.sum(x.to(tl.float32)) / columns")],
    "padding_kernel": [
        (
            "x = tl.load(x_ptr + offset, mask=inside, other=0.0)",
            'x = tl.load(x_ptr + offset, mask=inside, other=-float("inf"))',
        )
    ],
    "running_sum_kernel": [
        (
            "total = total + tl.sum(tl.exp(x - higher))",
            "total = total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher))",
        )
    ],
    "column_banks_kernel": [("pitch = 32", "pitch = 33")],
    "saved_kernel": [("kept += ((y, scale),)", "kept += ((n, scale),)")],
    "persistent_kernel": [
        (
            "for row in range(tl.program_id(0), rows, 1):",
            "for row in range(tl.program_id(0), rows, tl.num_programs(0)):",
        )
    ],
    "row_kernel": [("x_ptr + row * COLUMNS", "x_ptr + row * stride")],
    "k_mask_kernel": [("x = tl.load(x_ptr + at)", "x = tl.load(x_ptr + at, mask=(k < K)[None, :], other=0.0)")],
    "join_parts_kernel": [
        ("y += tl.maximum(tl.load(parts_ptr + part * N + col), 0.0)", "y += tl.load(parts_ptr + part * N + col)"),
        ("tl.store(y_ptr + col, y)", "tl.store(y_ptr + col, tl.maximum(y, 0.0))"),
    ],
    "border_kernel": [
        ("there = (at >= 0) & (at < rows * width)", "there = (col + tap >= 1) & (col + tap <= width)"),
    ],
    "folded_bias_kernel": [
        (
            "shift = tl.load(beta_ptr + k) - mean * scale + bias",
            "shift = tl.load(beta_ptr + k) + (bias - mean) * scale",
        )
    ],
    "column_mask_kernel": [("s = q * k", 's = tl.where(inside, q * k, -float("inf"))')],
    "scalar_flash_kernel": [
        ("acc = acc + tl.sum(p * v[None, :], axis=1)", "acc = acc * shrink + tl.sum(p * v[None, :], axis=1)")
    ],
    "norm_gradient_kernel": [
        ("dx = rstd * (gw - x_hat)", "dx = rstd * (gw - x_hat * (tl.sum(gw * x_hat) / COLUMNS))"),
    ],
    "scores_gradient_kernel": [("ds = p * dp", "ds = p * (dp - tl.sum(p * dp))")],
    "int8_scale_kernel": [
        ("scale = tl.max(y) / 127.0", "scale = tl.maximum(tl.max(tl.abs(y)), 1e-12) / 127.0"),
    ],
    "block_scales_kernel": [("acc = (acc + product) * scale", "acc += product * scale")],
    "gated_row_kernel": [
        (
            "y = tl.sum(gate * tl.sigmoid(gate) * up)",
            "y = tl.sum(gate) * tl.sigmoid(tl.sum(gate)) * tl.sum(up)",
        )
    ],
    "weights_kernel": [("weight = total + 0 * peak", "weight = total * tl.exp(peak - tl.max(peak))")],
    "empty_splits_kernel": [("top = tl.max(peak)", "top = tl.maximum(tl.max(peak), -1e30)")],
    "page_kernel": [("slot = page + key % PAGE", "slot = page * PAGE + key % PAGE")],
    "add_norm_kernel": [("kept = x", "kept = s")],
    "centre_kernel": [("y = tl.load(a_ptr + at) + tl.load(b_ptr + at) - mean", "y = s - mean")],
}


def puzzles():
    """(lesson, kernel, cell, the markdown cell after it) of every puzzle in the lessons' sources."""
    for path in sorted((ROOT / "source/lessons").glob("*.py")):
        cells = jupytext.read(path, fmt="py:percent").cells
        for cell, after in itertools.pairwise(cells):
            found = re.search(r"^puzzle\((\w+),", cell.source, re.MULTILINE)
            if cell.cell_type == "code" and found:
                yield pytest.param(found[1], cell.source, after.source, id=f"{path.stem[:2]}-{found[1]}")


def run(source: str, folder: Path, name: str) -> str:
    """The text of what a cell that ends with a call of `puzzle` shows."""
    path = folder / f"{name}.py"
    path.write_text(IMPORTS + re.sub(r"^puzzle\(", "shown = puzzle(", source, flags=re.MULTILINE))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return repr(module.shown)


@pytest.mark.parametrize(("kernel", "cell", "after"), list(puzzles()))
def test_a_puzzle_is_unsolved_as_it_stands_and_solved_by_the_answer_below_it(kernel, cell, after, tmp_path):
    shown = run(cell, tmp_path, f"{kernel}_before")
    assert shown.startswith("Not yet")
    assert not re.search(r", line \d|\(\d+, 0, 0\)", shown), "a reader sees neither line numbers nor three axes"
    solved = cell
    for old, new in ANSWERS[kernel]:
        assert solved.count(old) == 1
        assert not new.strip() or f"<code>{new}</code>" in " ".join(after.split()), f"the answer is not {new}"
        solved = solved.replace(old, new)
    assert "<details><summary>Answer</summary>" in after
    assert run(solved, tmp_path, f"{kernel}_after").startswith("Solved")


def test_lessons_have_every_puzzle_and_the_first_one_has_the_first():
    found = [(param.id[:2], param.values[0]) for param in puzzles()]
    assert sorted(kernel for _, kernel in found) == sorted(ANSWERS)
    assert found[0] == ("00", "double_kernel")


@triton.jit
def copy_kernel(x_ptr, y_ptr, elements, step, BLOCK: tl.constexpr):
    element = tl.program_id(0) * step + tl.arange(0, BLOCK)
    exists = element < elements
    x = tl.load(x_ptr + element, mask=exists)
    tl.store(y_ptr + element, x, mask=exists)


@triton.jit
def twice_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + element, tl.load(x_ptr + element) * tl.load(x_ptr + element))


@triton.jit
def broken_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK), x_ptr.no_such_thing)


@triton.jit
def idle_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    pass


x = torch.arange(1.0, 11.0)


@pytest.mark.parametrize(
    ("chosen", "beginning"),
    [
        ({"elements": 10, "step": 4}, "Solved: right values, every position on its own element, 8 B/element"),
        ({"elements": 11, "step": 4}, "Not yet: positions load outside their tensor"),
        ({"elements": 9, "step": 4}, "Not yet: 1 of 10 elements is never stored"),
        ({"elements": 8, "step": 4}, "Not yet: 2 of 10 elements are never stored"),
        (
            {"elements": 10, "step": 3},
            "Not yet: programs 0 and 1 both store to y_ptr[3]\n  In all, 2 elements are stored to",
        ),
    ],
)
def test_the_verdict_names_what_is_wrong_first(chosen, beginning):
    assert repr(puzzle(copy_kernel, 3, x, wanted=x.clone(), BLOCK=4, **chosen)).startswith(beginning)


def test_wrong_lanes_and_no_others_are_called_wrong():
    text = repr(puzzle(copy_kernel, 3, x, wanted=x.clone(), elements=11, step=4, BLOCK=4))
    load, store = text.split("tl.store(")[0], text.split("tl.store(")[1]
    assert "program 1: 4-7; program 2: 8-10 (wrong: 10)" in load
    assert "program 1: 4-7; program 2: 8-10 (wrong: 10)" in store


def test_right_values_that_move_too_much_are_not_solved():
    assert repr(puzzle(twice_kernel, 2, x[:8], wanted=x[:8] ** 2, BLOCK=4)).startswith(
        "Not yet: right values, but 12 B/element, and 8 are enough"
    )


@triton.jit
def add_bias_kernel(x_ptr, bias_ptr, y_ptr, HOW: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    at = tl.program_id(0) * BLOCK + lane
    if HOW == "never":
        bias = lane / 4.0
    elif HOW == "one":
        bias = tl.load(bias_ptr) + lane / 4.0
    else:
        bias = tl.load(bias_ptr + lane)
    tl.store(y_ptr + at, tl.load(x_ptr + at) + bias)


@pytest.mark.parametrize(
    ("how", "shared", "beginning"),
    [
        ("each", ("bias_ptr",), "Solved: right values"),
        ("each", (), "Not yet: right values, but 12 B/element, and 9.333 are enough"),
        ("never", ("bias_ptr",), "Not yet: right on these numbers, but 4 of bias_ptr's elements are never loaded"),
        ("one", ("bias_ptr",), "Not yet: right on these numbers, but 3 of bias_ptr's elements are never loaded"),
    ],
)
def test_an_input_that_many_elements_share_may_be_read_again_but_must_be_read(how, shared, beginning):
    bias, wide = torch.arange(4.0) / 4, torch.arange(1.0, 13.0)
    wanted = (wide.view(3, 4) + bias).flatten()
    shown = repr(puzzle(add_bias_kernel, 3, wide, bias, wanted=wanted, shared=shared, HOW=how, BLOCK=4))
    assert shown.startswith(beginning)


def test_equal_numbers_in_an_input_are_refused():
    with pytest.raises(ValueError, match="x_ptr of copy_kernel has equal numbers"):
        puzzle(copy_kernel, 3, torch.ones(10), wanted=torch.ones(10), elements=10, step=4, BLOCK=4)


def test_a_wrong_value_is_named_with_the_right_one():
    shown = repr(puzzle(copy_kernel, 3, x, wanted=2 * x, elements=10, step=4, BLOCK=4))
    assert shown.startswith(
        "Not yet: element 0 is 1; it should be 2\n  It moves 8 B per element of y_ptr; 8 B are needed."
    )


def test_a_stride_is_drawn_where_the_view_lies_in_memory():
    view = torch.arange(18.0).view(3, 6)[:, 1:5]
    shown = repr(puzzle(copy_kernel, 3, view, wanted=view.clone(), elements=12, step=4, BLOCK=4))
    assert "program 1: 4-7 (wrong: 4-5); program 2: 8-11 (wrong: 10-11)" in shown


def test_a_kernel_that_does_not_run_is_told_in_one_line():
    shown = repr(puzzle(broken_kernel, 1, x[:4], wanted=x[:4], BLOCK=4))
    assert shown.startswith("Not yet: broken_kernel, line ")
    assert "\n" not in shown


def test_a_kernel_that_does_nothing_is_told_so():
    assert repr(puzzle(idle_kernel, 1, x[:4], wanted=x[:4], BLOCK=4)).startswith("Not yet: the kernel loads nothing")


def test_the_picture_has_a_box_a_lane_and_stays_inside_its_page():
    chart = puzzle(copy_kernel, 3, x, wanted=x.clone(), elements=10, step=4, BLOCK=4)
    assert [len(axes.patches) for axes in chart.figure.axes] == [10 + 12, 10 + 12]
    box, (width, height) = chart.figure.get_tightbbox(), chart.figure.get_size_inches()
    assert 0 <= box.x0 < box.x1 <= width
    assert 0 <= box.y0 < box.y1 <= height


def test_more_programs_than_a_picture_holds_are_refused():
    with pytest.raises(ValueError, match="100 programs: a puzzle has 1 to 16"):
        puzzle(copy_kernel, 100, x, wanted=x, elements=10, step=4, BLOCK=4)


@triton.jit
def one_place_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(y_ptr + lane * 0, tl.load(x_ptr + lane))


@triton.jit
def tile_kernel(x_ptr, y_ptr, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    at, exists = row * columns + column, (column < columns) & (row >= 0)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=exists), mask=exists)


def test_all_that_store_to_an_element_are_named_without_backticks():
    shown = repr(puzzle(copy_kernel, 3, x[:4], wanted=x[:4].clone(), elements=4, step=0, BLOCK=4))
    assert shown.startswith(
        "Not yet: programs 0, 1 and 2 all store to y_ptr[0-3]\n  On a GPU, any of them may store last."
    )
    shown = repr(puzzle(one_place_kernel, 1, x[:8], wanted=x[:8].clone(), BLOCK=8))
    assert shown.startswith("Not yet: 8 positions of program 0 all store to y_ptr[0]\n")
    shown = repr(puzzle(copy_kernel, 3, x, wanted=x.clone(), elements=11, step=4, BLOCK=4))
    assert "`" not in shown
    assert "\n  out-of-bounds read by program 2: " in shown


def numbers_that_touch(chart) -> list[tuple[str, str]]:
    chart.figure.canvas.draw()
    shown = [(each.get_text(), each.get_window_extent()) for axes in chart.figure.axes for each in axes.texts]
    return [(a, b) for (a, one), (b, other) in itertools.combinations(shown, 2) if one.overlaps(other)]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: puzzle(tile_kernel, 1, x, wanted=x.clone(), columns=5, ROWS=2, BLOCK=8),
        lambda: puzzle(one_place_kernel, 1, torch.arange(32.0), wanted=torch.arange(32.0), BLOCK=32),
        lambda: puzzle(one_place_kernel, 1, x[:2], wanted=x[:2].clone(), BLOCK=2),
    ],
    ids=["masked over active", "32 lanes", "two lanes"],
)
def test_no_number_of_a_picture_covers_another(draw):
    assert numbers_that_touch(draw()) == []


def test_the_accesses_of_one_program_have_different_names():
    shown = repr(puzzle(twice_kernel, 1, x[:4], wanted=x[:4] ** 2, BLOCK=4))
    assert "access 1: 0-3; access 2: 0-3 (wrong: 0-3)" in shown
