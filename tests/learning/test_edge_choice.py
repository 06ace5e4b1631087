"""The puzzles of edges: unsolved as given, solved by the hidden answer; what is said of other choices."""

import re
from pathlib import Path

import jupytext
import pytest
import torch
from torch.nn import functional

from helpers.learning import choose_edges

LESSONS = Path(__file__).resolve().parents[2] / "source/lessons"
SQUARES = [torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta") for _ in range(3)]


def sums(x, y, z):
    return x + y + z, (x * y).sum(1), x.sum(0), y.sum(0), z.sum(0)


def asked(*fuse) -> str:
    return repr(choose_edges(sums, *SQUARES, fuse=fuse))


def feed_forward(s, norm, gate, up, down):
    h = functional.rms_norm(s, (4096,), norm)
    return s + (functional.silu(h @ gate) * (h @ up)) @ down


SHAPES = (512, 4096), (4096,), (4096, 14336), (4096, 14336), (14336, 4096)
WEIGHTS = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in SHAPES]


@pytest.mark.parametrize(
    ("lesson", "function", "inputs"),
    [("13_deciding_what_to_fuse", sums, SQUARES), ("15_profilers_capstone", feed_forward, WEIGHTS)],
)
def test_a_lessons_puzzle_is_unsolved_as_given_and_solved_by_its_answer(lesson, function, inputs):
    cells = jupytext.read(LESSONS / f"{lesson}.py", fmt="py:percent").cells
    (at,) = (place for place, cell in enumerate(cells) if "choose_edges(\n" in cell.source)
    given = re.findall(r'\("(\w+)", "(\w+)"\)', cells[at].source)
    (hidden,) = re.findall(r"<code>(.*?)</code>", cells[at + 1].source, re.DOTALL)
    answer = re.findall(r'\("(\w+)", "(\w+)"\)', hidden)
    assert repr(choose_edges(function, *inputs, fuse=given)).startswith("Not yet: ")
    assert repr(choose_edges(function, *inputs, fuse=answer)).startswith("Solved: ")


def test_lesson_13s_partition_is_the_greedy_one_and_its_third_step_is_the_mistake():
    pairs = [("add", "add_1"), ("mul", "sum_1"), ("add", "mul"), ("add_1", "sum_4")]
    pairs += [(one, two) for one in ("add", "mul") for two in ("sum_2", "sum_3")]

    def predicted(*fuse):
        found = re.search(r"(\d+) us predicted", asked(*fuse))
        return int(found[1]) if found else 10**6  # refused

    steps = [("add", "mul"), ("add", "add_1"), ("mul", "sum_1")]
    for number, step in enumerate(steps):
        before = steps[:number]
        assert predicted(*before, step) == min(predicted(*before, pair) for pair in pairs)
    assert asked(*[pair for pair in pairs if pair != ("mul", "sum_1")]).startswith("Solved: ")


def test_two_matmuls_and_a_norm_before_one_are_refused():
    two = (("mm", "silu"), ("silu", "mul"), ("mm_1", "mul"))
    assert "two matmuls" in repr(choose_edges(feed_forward, *WEIGHTS, fuse=two))
    norm = (("_fused_rms_norm", "mm"),)
    assert "recompute the whole rows" in repr(choose_edges(feed_forward, *WEIGHTS, fuse=norm))


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
