"""Each solution, handed in, earns all points in the sandbox."""

import json
import re
from pathlib import Path

import pytest

from helpers.grading.exercise import exercises_in
from helpers.grading.grade import grade
from helpers.grading.judge import Judge
from helpers.instruments.machine import bubblewrap

SOLUTIONS = Path(__file__).parents[2] / "solutions"
# In `make test` the cheapest that asks for what the compiler makes; attacks.py has 03.
NAMES = [pytest.param(name, marks=[] if name.startswith("07") else [pytest.mark.long]) for name in exercises_in()]


@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_solution_earns_all_points(name):
    judge = Judge(exercises_in(only=name)[name], seed=5)
    try:
        result = grade((SOLUTIONS / f"{name}.ipynb").read_bytes(), f"{name}.ipynb", judge)
    finally:
        judge.close()
    assert result.earned == result.points, [check for check in result.checks if check.state != "pass"]


@pytest.mark.long
@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def partition(graph):\n    while True:\n        pass", "ran for over 30 s: look for a loop that never ends"),
        (
            "def partition(graph):\n    return [each['name'] for each in graph['operations']]",
            "a list of lists of names",
        ),
        ("def partition(graph):\n    return partition(graph)", "RecursionError"),
    ],
    ids=["without an end", "one list", "recursion"],
)
def test_a_partition_that_is_none_earns_nothing(code, told):
    exercise = exercises_in(only="13")["13_decide"]
    notebook = json.loads((SOLUTIONS / "13_decide.ipynb").read_text())
    for cell in notebook["cells"]:
        if cell["id"] == "partition-answer":
            cell["source"] = code
    judge = Judge(exercise, seed=5)
    try:
        result = grade(json.dumps(notebook).encode(), "13_decide.ipynb", judge)
    finally:
        judge.close()
    earned = {check.check for check in result.checks if check.earned}
    # After a cell that came to no end, no other is run.
    assert earned in ({"legal", "edges"}, {"legal", "edges", "other-groups"}), result.checks
    (message,) = [check.message for check in result.checks if check.check == "partitions"]
    assert re.search(told, message)
