"""The questions at the end of a lesson: check the number that a learner worked out."""

import ast
import base64
import json
import math

from helpers.learning.display_text import Unquoted, number

LINE = 64  # characters of a seal per line of a cell
MIME = "application/vnd.kernel-fusion.seal+json"


class NotAnswered(Unquoted):
    """The line below an open question. It carries the sealed answer to a page where nothing runs."""

    def __new__(cls, correct: float, hint: str):
        shown = super().__new__(cls, "not answered yet: replace the dots with your number and run the cell")
        shown.sealed = seal(correct, hint)
        return shown

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {"text/plain": str(self), MIME: {"sealed": self.sealed}}


def seal(correct: float | None, hint: str) -> str:
    return base64.b64encode(json.dumps([correct, hint]).encode()).decode()


def unsealed(sealed: str) -> tuple[float | None, str]:
    """Return the right answer, None if a cell computes it, and the hint."""
    correct, hint = json.loads(base64.b64decode(sealed))
    return correct, hint


def self_test(
    answer: float | None, correct: float | None = None, hint: str = "", within: float = 0.01, sealed: str = ""
) -> str:
    """Check a number: right if it's within `within` of the answer (a fraction), otherwise show the hint.

    Args:
        sealed: the hint, and a right answer that isn't a computation, as hidden by `with_seals`.

    Raises:
        TypeError: the answer is not a number.
    """
    if sealed:
        known, hint = unsealed(sealed)
        correct = known if correct is None else correct
    if answer is None or answer is ...:
        return NotAnswered(float(correct), hint)
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        raise TypeError(f"an answer is a number, got {answer!r}: write it without quotes or unit")
    if math.isclose(answer, correct, rel_tol=within):
        return Unquoted("right")
    return Unquoted(f"not {number(answer)}: {hint}")


def with_seals(source: str) -> str:
    """Return a cell's source with the hint in its `self_test(answer, correct, hint)` hidden, and the right answer too
    if it's written as a number or a sum of numbers: readers can decode them, but don't see them in the question.

    Calls in any other form stay as they are.
    """
    if "self_test(" not in source:
        return source
    tree = ast.parse(source)
    calls = [node.value for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    for call in calls:
        arguments = call.args + [each.value for each in call.keywords if each.arg == "hint"]
        match call.func, arguments:
            case ast.Name(id="self_test"), [answer, correct, ast.Constant(value=str(hint))]:
                named = any(isinstance(node, ast.Name) for node in ast.walk(correct))
                known = None if named else eval(compile(ast.Expression(correct), "", "eval"), {"__builtins__": {}})
                hidden = seal(known, hint)
                shown = [ast.unparse(answer), *([ast.unparse(correct)] if named else [])]
                parts = [f'        "{hidden[at : at + LINE]}"' for at in range(0, len(hidden), LINE)]
                more = [ast.unparse(each) for each in call.keywords if each.arg != "hint"]
                told = ["self_test("] + [f"    {each}," for each in (*shown, *more)]
                told += ["    sealed=(", *parts, "    ),", ")"]
                lines = source.splitlines()
                lines[call.lineno - 1 : call.end_lineno] = told
                return "\n".join(lines)
    return source
