"""Lesson 13's puzzle of edges: unsolved as given, solved by the hidden answer; what it says of other choices."""

import re
from pathlib import Path

import jupytext
import pytest
import torch

from helpers.learning import choose_edges

LESSON = Path(__file__).resolve().parents[2] / "source/lessons/13_deciding_what_to_fuse.py"
SQUARES = [torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta") for _ in range(3)]


def sums(x, y, z):
    return x + y + z, (x * y).sum(1), x.sum(0), y.sum(0), z.sum(0)


def asked(*fuse) -> str:
    return repr(choose_edges(sums, *SQUARES, fuse=fuse))


def test_the_lessons_puzzle_is_unsolved_as_given_and_solved_by_its_answer():
    cells = jupytext.read(LESSON, fmt="py:percent").cells
    (at,) = (place for place, cell in enumerate(cells) if "choose_edges(" in cell.source)
    given = re.findall(r'\("(\w+)", "(\w+)"\)', cells[at].source)
    (hidden,) = re.findall(r"<code>(.*?)</code>", cells[at + 1].source, re.DOTALL)
    answer = re.findall(r'\("(\w+)", "(\w+)"\)', hidden)
    assert asked(*given).startswith("Not yet: ")
    assert asked(*answer).startswith("Solved: ")


@pytest.mark.parametrize(
    ("fuse", "text"),
    [
        ((), r"Not yet: \d+ us predicted, \d+ us is possible; \d+ MB, 7 launches\n  add\n  add_1"),
        ((("add", "sum_1"),), r"Not yet: no edge joins add and sum_1; there are add-add_1, .*"),
        ((("mul", "sum_1"), ("mul", "sum_2")), r"Not yet: mul and sum_2 may not share a kernel: .*"),
        ((("add_1", "add"), ("add", "add_1")), r"Not yet: \d+ us predicted, .*; \d+ MB, 6 launches\n  add \+ add_1"),
    ],
)
def test_what_it_says_of_a_choice(fuse, text):
    assert re.match(text, asked(*fuse))
