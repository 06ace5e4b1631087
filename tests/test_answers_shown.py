"""A cell that answers a question shows the answer: Jupyter displays only a cell's last expression."""

import ast
from pathlib import Path

import jupytext
import pytest

LESSONS = sorted((Path(__file__).parents[1] / "source" / "lessons").glob("*.py"))


def hidden_answers(source: str) -> list[str]:
    """Calls of `compare` that stand alone as a statement with others after it: nothing displays what they return."""
    *before, _ = ast.parse(source).body or [None]
    return [
        ast.unparse(each.value.func)
        for each in before
        if isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Call)
        and isinstance(each.value.func, ast.Attribute)
        and each.value.func.attr == "compare"
    ]


def test_a_call_in_the_middle_is_found():
    assert hidden_answers("a.compare(1)\nprint(2)") == ["a.compare"]
    assert hidden_answers("print(2)\na.compare(1)") == hidden_answers("display(a.compare(1))\nb") == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_answer_is_its_cells_last_expression(path):
    cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    assert [found for cell in cells for found in hidden_answers(cell)] == []
