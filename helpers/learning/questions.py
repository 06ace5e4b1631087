"""The questions of a lesson's notebook, and the cells that answer them, read from its text."""

import ast
import re


def answers_of(notebook: dict) -> dict[str, list[dict]]:
    """Question -> the code cells from behind it to the one that compares; a table of all stands with the last."""
    cells, found, question = code_cells(notebook), {}, None
    for number, cell in enumerate(cells):
        if (asked := _asked(text(cell["source"]))) is not None:
            name, question = asked
            compares = re.compile(rf"\b{name}\.compare\(")
            ends = (at for at, later in enumerate(cells) if at > number and compares.search(text(later["source"])))
            found[question] = cells[number + 1 : next(ends, number) + 1]
        elif question is not None and text(cell["source"]).strip() == "predictions()":
            found[question] = [*found[question], cell]
    return found


def _asked(source: str) -> tuple[str, str] | None:
    """(variable, question) of a cell that asks for a prediction."""
    if "predict_first(" not in source:
        return None
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return None
    for statement in statements:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id="predict_first"), args=[ast.Constant(value=str(question)), *_]),
            ):
                return name, question
    return None


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def text(lines: str | list[str]) -> str:
    """A notebook's text, which on disk is a list of lines."""
    return lines if isinstance(lines, str) else "".join(lines)
