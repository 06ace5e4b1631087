"""Read the source of the answer cells in a learner's notebook, and nothing else.

An exercise notebook carries its own original, written by the build: the code cells, the points of each check, and each
check's output for a pass. So if a check cell is edited, deleted or moved, its original still runs.
"""

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Submission:
    """The answers in a notebook, and the original notebook to run them in.

    Args:
        exercise: the exercise's name, such as "03_fused_add_gelu".
        original: the exercise's code cells in order, as `source/build.py` describes them.
        answers: grade_id -> source.
        left_out: how many code cells were added, or changed outside the answers; they don't run.
    """

    exercise: str
    original: list[dict]
    answers: dict[str, str]
    left_out: int


def read_submission(path: Path) -> Submission:
    """Return the submission in a notebook file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a notebook, or not an exercise, or not the exercise in its name, or an answer cell
            is missing, duplicated or no longer code. One line each, with the fix.
    """
    notebook = read_notebook(path)
    course = notebook["metadata"].get("kernel_fusion")
    if not isinstance(course, dict) or not {"exercise", "original"} <= course.keys():
        raise ValueError(f"{path} is not an exercise of this course: choose one of {listed(path)}")
    exercise, original = course["exercise"], course["original"]
    named, held = (re.match(r"\d\d[a-z]?(?=_|$)", name) for name in (path.stem, exercise))
    if named and held and named[0] != held[0]:
        raise ValueError(f"{path} holds exercise {exercise}, not {named[0]}: rename it, or pass the right file")

    answers = answers_in(notebook, [cell["id"] for cell in original if cell["answer"]], path)
    return Submission(exercise, original, answers, left_out_of(notebook, answers, original))


def answers_in(notebook: dict, asked: list[str], path: Path | str) -> dict[str, str]:
    """Return grade_id -> source for each requested answer cell; ValueError if one is missing, duplicated or not
    code."""
    sources = {}
    for cell in notebook["cells"]:
        if grade_id := grade_id_of(cell):
            sources.setdefault(grade_id, []).append(cell)
    answers = {}
    for grade_id in asked:
        found = sources.get(grade_id, [])
        if not found:
            raise ValueError(f"{path} has no answer cell {grade_id!r}: start again from a fresh copy of the exercise")
        if len(found) > 1:
            raise ValueError(f"{path} has {len(found)} answer cells {grade_id!r}, one of them a copy: delete one")
        if found[0]["cell_type"] != "code":
            raise ValueError(
                f"{path} has its answer {grade_id!r} in a {found[0]['cell_type']} cell: make it code again"
            )
        answers[grade_id] = text_of(found[0])
    return answers


def up_to_the_last_check(cells: list[dict]) -> list[dict]:
    """Return the code cells that can affect a check; cells after the last check are for reading."""
    return cells[: 1 + max(place for place, cell in enumerate(cells) if "points" in cell)]


def in_words(cell: dict) -> str:
    """Name a cell as learners know it: an answer or a check by its grade_id, any other cell by its first line."""
    if cell["answer"] or "points" in cell:
        return f"the cell {cell['id']!r}"
    lines = [line.strip() for line in cell["source"].splitlines()]
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return f"the cell that begins with `{first[:60]}`"


def left_out_of(notebook: dict, answers: dict[str, str], original: list[dict]) -> int:
    """Count code cells that were added, or changed outside the answers.

    A solution's hidden checks don't count, nor do cells that only ask for hints, as each exercise suggests.
    """
    unchanged = {cell["source"].strip() for cell in original}
    hidden = {cell["id"] for cell in original if "points" in cell and cell.get("pass", "shown") is None}
    return sum(
        cell["cell_type"] == "code"
        and grade_id_of(cell) not in answers.keys() | hidden
        and bool(text_of(cell).strip())
        and text_of(cell).strip() not in unchanged
        and not only_asks_for_hints(text_of(cell))
        for cell in notebook["cells"]
    )


def only_asks_for_hints(source: str) -> bool:
    """Return whether each statement is `hint` or a call such as `hint(1)` or `hint("values", 2)`."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    asked = [each.value for each in statements if isinstance(each, ast.Expr)]
    functions = [each.func if isinstance(each, ast.Call) else each for each in asked]
    return len(asked) == len(statements) and all(isinstance(each, ast.Name) and each.id == "hint" for each in functions)


def read_notebook(path: Path) -> dict:
    """Read a notebook file as JSON, with its cells and metadata checked."""
    if not path.is_file():
        raise FileNotFoundError(f"no notebook {path}: choose one of {listed(path)}")
    return parsed_notebook(path.read_bytes(), path)


def parsed_notebook(content: bytes, path: Path | str) -> dict:
    """Parse a notebook's JSON and check its cells and metadata; ValueError if it's not a notebook."""
    try:
        notebook = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not a notebook (not JSON): save it again from JupyterLab") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not isinstance(notebook.get("metadata"), dict) or not all(map(is_cell, cells)):
        raise ValueError(f"{path} is JSON, but not a notebook of format 4: save it again from JupyterLab")
    return notebook


def is_cell(cell: object) -> bool:
    if not isinstance(cell, dict) or not isinstance(cell.get("metadata"), dict):
        return False
    source = cell.get("source")
    lines = source if isinstance(source, list) else [source]
    return isinstance(cell.get("cell_type"), str) and all(isinstance(line, str) for line in lines)


def grade_id_of(cell: dict) -> str | None:
    nbgrader = cell["metadata"].get("nbgrader")
    grade_id = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
    return grade_id if isinstance(grade_id, str) else None


def text_of(cell: dict) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def listed(path: Path) -> str:
    """List the exercises that a learner may have meant: those in the folder of `path`, or else in ./exercises."""
    for folder in (path.parent, Path("exercises")):
        if folder.name == "exercises" and (found := sorted(folder.glob("*.ipynb"))):
            return ", ".join(map(str, found))
    return "those in the folder exercises/"
