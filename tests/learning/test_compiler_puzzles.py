"""Lesson 16's puzzles: as they stand none is solved, the answer that the lesson hides solves it, shortcuts do not."""

import html
import itertools
import re
import sys
import types
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).resolve().parents[2]
CELLS = jupytext.read(ROOT / "source/lessons/16_compilers_and_libraries.py", fmt="py:percent").cells
SCALED = """    if y.max().item() > 1:  # <- these two lines look at a value: make them one that does not
        y = y / y.max()"""
PATTERN = "y = x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight"
WINDOW = "visible = query - key < 4"
# puzzle -> (text in the cell, the answer, shortcuts that must not solve it)
PUZZLES = {
    "graph_puzzle": (SCALED, "    y = y / y.max().clamp(min=1)", ["    y = y / y.max()", "    y = y * 1"]),
    "pattern_puzzle": (
        PATTERN,
        "y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight",
        ["y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight"],
    ),
    "score_puzzle": (
        WINDOW,
        "visible = (query >= key) & (query - key < 4)",
        ["visible = query >= key", "visible = (query >= key) & (query - key <= 4)"],
    ),
}


@pytest.fixture(scope="module")
def lesson():
    """The names of the lesson's cells that a puzzle may use."""
    module = types.ModuleType("lesson_16")
    sys.modules["lesson_16"] = module  # Dynamo looks up a function's module
    names = vars(module)
    needed = ("import logging", "def gated(", '"lesson16::gated"')
    sources = [cell.source for cell in CELLS if any(text in cell.source for text in needed)]
    for source in sources[:3]:
        # Triton reads a kernel's source from a file.
        path = Path(__file__).parent / "__pycache__" / f"lesson_16_{len(names)}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        exec(compile(source, str(path), "exec"), names)
    return names


def shown(name: str, change: str, lesson: dict) -> str:
    (source,) = [cell.source for cell in CELLS if re.search(rf"^{name}\(", cell.source, re.MULTILINE)]
    text = PUZZLES[name][0]
    assert source.count(text) == 1
    exec(source.replace(text, change).replace(f"\n{name}(", f"\nshown = {name}("), lesson)
    return repr(lesson["shown"])


@pytest.mark.parametrize("name", PUZZLES)
def test_a_puzzle_is_unsolved_as_given_and_solved_by_its_answer_alone(name, lesson):
    text, answer, shortcuts = PUZZLES[name]
    assert shown(name, text, lesson).startswith("Not yet")
    for shortcut in shortcuts:
        assert shown(name, shortcut, lesson).startswith("Not yet"), shortcut
    assert shown(name, answer, lesson).startswith("Solved")
    (after,) = [two for one, two in itertools.pairwise(CELLS) if re.search(rf"^{name}\(", one.source, re.MULTILINE)]
    assert answer.strip() in html.unescape(after.source)
