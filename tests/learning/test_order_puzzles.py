"""Lesson 18's puzzles of waiting programs: unsolved as they stand, solved by the hidden answer, not by shortcuts."""

import html
import importlib.util
import itertools
import re
from pathlib import Path

import jupytext
import pytest

from kernels.interpreter import runtime

pytestmark = pytest.mark.skipif(runtime.has_gpu(), reason="a wrong count hangs a GPU")
ROOT = Path(__file__).resolve().parents[2]
CELLS = jupytext.read(ROOT / "source/lessons/18_short_kernels.py", fmt="py:percent").cells
IMPORTS = """import torch
import triton
import triton.language as tl

from helpers.learning import order_puzzle
from kernels.counters import signal, wait
"""
# call -> (the line, the answer, changes that must not solve it and what they show)
PUZZLES = {
    "double_then_sum": (
        "tl.debug_barrier()",
        "wait(counter_ptr, programs)",
        {
            "tl.debug_barrier()": "wrong values in 20 of 20 orders; ",
            "wait(counter_ptr, 1)": "wrong values",
            "wait(counter_ptr, programs - 1)": "wrong values",
            "wait(counter_ptr, programs + 1)": "deadlock",
            "signal(counter_ptr)": "wrong values",
        },
    ),
    "tiles_then_sum": (
        "wait(counter_ptr, programs)",
        "wait(counter_ptr, tiles)",
        {
            "wait(counter_ptr, programs)": "deadlock",
            "wait(counter_ptr, tiles - 1)": "wrong values",
            "wait(counter_ptr, 1)": "wrong values",
            "pass": "wrong values",
        },
    ),
}


def shown(name: str, change: str, folder: Path) -> str:
    (source,) = [cell.source for cell in CELLS if f"\norder_puzzle({name}, " in cell.source]
    line = f"    {PUZZLES[name][0]}  # <- change this line"
    assert source.count(line) == 1
    changed = source.replace(line, f"    {change}").replace("\norder_puzzle(", "\nshown = order_puzzle(")
    path = folder / "puzzle.py"
    path.write_text(IMPORTS + changed)  # Triton reads a kernel's source from a file
    spec = importlib.util.spec_from_file_location("order_puzzle_cell", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return repr(module.shown)


@pytest.mark.parametrize("name", PUZZLES)
def test_the_hidden_answer_solves_it(name, tmp_path):
    answer = PUZZLES[name][1]
    (after,) = [after.source for cell, after in itertools.pairwise(CELLS) if f"\norder_puzzle({name}, " in cell.source]
    assert f"<code>{html.escape(answer)}</code>" in after
    assert shown(name, answer, tmp_path) == "Solved: right values and no race in 20 orders"


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [(name, change, found) for name, (_, _, wrong) in PUZZLES.items() for change, found in wrong.items()],
)
def test_another_line_is_not_solved_and_the_fault_is_named(name, change, found, tmp_path):
    text = shown(name, change, tmp_path)
    assert re.match("Not yet: ", text)
    assert found in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_every_order_puzzle_is_here():
    source = "\n".join(cell.source for cell in CELLS if cell.cell_type == "code")
    assert set(re.findall(r"^order_puzzle\((\w+), ", source, re.MULTILINE)) == set(PUZZLES)
