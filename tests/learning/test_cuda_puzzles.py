"""Lesson 14's puzzles in CUDA C++: unsolved as given, solved by the hidden answer; what is said of wrong ones."""

import itertools
import re
from pathlib import Path

import jupytext
import pytest
import torch

from helpers.learning import cuda_puzzle

LESSON = Path(__file__).resolve().parents[2] / "source/lessons/14_cuda.py"
MARKED = {"warp_sums": r"for \(int far = 16; far > 1; far /= 2\)", "reverse": r"// <- a line here"}


def puzzles():
    cells = jupytext.read(LESSON, fmt="py:percent").cells
    for cell, after in itertools.pairwise(cells):
        found = re.search(r'^cuda_puzzle\(\w+, "(\w+)"', cell.source, re.MULTILINE)
        if found:
            yield pytest.param(found[1], cell.source, after.source, id=found[1])


def run(source: str) -> str:
    names = {"torch": torch, "cuda_puzzle": cuda_puzzle}
    exec(source.replace("\ncuda_puzzle(", "\nshown = cuda_puzzle("), names)
    return repr(names["shown"])


@pytest.mark.parametrize(("name", "cell", "after"), list(puzzles()))
def test_a_puzzle_is_unsolved_as_given_and_solved_by_the_answer_below_it(name, cell, after):
    answer = re.search(r"<summary>Answer</summary><code>(.*?)</code>", after)[1]
    solved, changed = re.subn(MARKED[name], answer, cell)
    assert changed == 1
    assert run(cell).startswith("Not yet: ")
    assert run(solved) == "Solved: right values, no race, nothing out of bounds"


def test_every_puzzle_of_the_lesson_is_tried():
    assert {param.id for param in puzzles()} == MARKED.keys()


REVERSE = """
__global__ void reverse(const float* x, float* y) {
  __shared__ float row[64];
  row[threadIdx.x] = x[threadIdx.x];
  BARRIER
  y[threadIdx.x] = row[PLACE];
}"""


@pytest.mark.parametrize(
    ("barrier", "place", "beginning"),
    [
        ("__syncwarp();", "63 - threadIdx.x", "Not yet: race: shared memory"),
        ("__syncthreads();", "threadIdx.x", "Not yet: 64 of 64 elements are wrong; element 0 is 0; it should be 63"),
        ("__syncthreads();", "63 - threadId", "Not yet: reverse does not compile"),
        ("__syncthreads();", "64 - threadIdx.x", "Not yet: "),
    ],
)
def test_a_wrong_kernel_is_told_why(barrier, place, beginning):
    source = REVERSE.replace("BARRIER", barrier).replace("PLACE", place)
    x = torch.arange(64.0)
    assert repr(cuda_puzzle(source, "reverse", 1, 64, x, wanted=x.flip(0))).startswith(beginning)
