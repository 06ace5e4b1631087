"""Check whether a lesson contains the measured code."""

import ast
import inspect
import textwrap
from pathlib import Path

LESSONS = Path(__file__).resolve().parents[1] / "source/lessons"


def lesson_defines(lesson: str, function) -> bool:
    """Return whether a lesson defines a function with this code, ignoring line breaks."""
    (wanted,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    defined = ast.walk(ast.parse((LESSONS / f"{lesson}.py").read_text(encoding="utf-8")))
    return any(isinstance(each, ast.FunctionDef) and ast.dump(each) == ast.dump(wanted) for each in defined)
