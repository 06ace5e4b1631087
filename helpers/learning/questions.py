"""Find the questions in a lesson's notebook, and the cells that answer them."""

import ast
import re

HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)


def answers_of(notebook: dict) -> dict[str, list[dict]]:
    """Return question -> the code cells that answer it; a cell may answer several.

    These are all the cells after the question up to the one that compares, and from there to the next question or
    heading, because outputs after an answer show it in detail; any later cell that uses the guess, such as a chart that
    marks it, or that has the tag `answers-NAME`; and the table of all guesses. A puzzle is never one of them, nor a
    launch to step through after the answer: the reader is to work with it.
    """
    cells = notebook["cells"]
    asked = {at: found for at, cell in enumerate(cells) if (found := _asked(cell)) is not None}
    answers = {}
    for at, (name, question) in asked.items():
        taken_up = re.compile(rf"\b{name}\.(?:compare|on)\(|\A\s*predictions\(\)\s*\Z")
        tag = f"answers-{name}"
        behind = [number for number in range(at + 1, len(cells)) if cells[number]["cell_type"] == "code"]
        compares = re.compile(rf"\b{name}\.compare\(")
        to = next((number for number in behind if compares.search(text(cells[number]["source"]))), at)
        end = next((number for number in range(to + 1, len(cells)) if number in asked or _begins(cells[number])), None)
        answers[question] = [
            cells[number]
            for number in behind
            if number not in asked
            and (
                ((end is None or number < end) and not _is_to_do(cells[number], after=number > to))
                or taken_up.search(text(cells[number]["source"]))
                or tag in cells[number]["metadata"].get("tags", ())
            )
        ]
    return answers


def _is_to_do(cell: dict, after: bool) -> bool:
    """Return whether a cell shows a puzzle, or, `after` the answer, a launch to step through."""
    calls = "puzzle|cuda_puzzle|watch" if after else "puzzle|cuda_puzzle"
    return re.search(rf"^(?:{calls})\(", text(cell["source"]), re.MULTILINE) is not None


def _begins(cell: dict) -> bool:
    return cell["cell_type"] == "markdown" and HEADING.search(text(cell["source"])) is not None


def _asked(cell: dict) -> tuple[str, str] | None:
    """Return (variable, question) if a cell asks for a prediction."""
    source = text(cell["source"])
    if cell["cell_type"] != "code" or "predict_first(" not in source:
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
    """Return a notebook's text, which is stored as a list of lines."""
    return lines if isinstance(lines, str) else "".join(lines)
