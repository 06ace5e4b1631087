"""Decide from the text which of a submission's answers are graded, with the same result in `fusion check` and `fusion
grade`."""

import ast
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass

from helpers.learning.submission_policy.global_names import defined
from helpers.learning.submission_policy.kernel_language import (
    Refusal,
    RefusedError,
    SyntaxRefusedError,
    check_kernel,
    is_kernel,
    names_of,
    parsed,
)
from helpers.learning.submission_policy.launcher_language import check_launchers
from helpers.learning.submission_policy.plain_language import screen_plain


@dataclass(frozen=True)
class Screened:
    """The answers of one submission.

    Args:
        readable: grade_id -> source, for the answers that run.
        unreadable: grade_id -> where and why not, for those that Python can't parse.
        refused: grade_id -> where and why, for those that the policy refuses. Like an unreadable one, a refused answer
            costs only the checks that need it.
    """

    readable: dict[str, str]
    unreadable: dict[str, Refusal]
    refused: dict[str, Refusal]

    @property
    def refusals(self) -> list[Refusal]:
        """Return the refusals, starting with unparsable answers, since those may define a missing name."""
        return [*self.unreadable.values(), *self.refused.values()] if self.refused else []

    @property
    def left_out(self) -> dict[str, Refusal]:
        """grade_id -> reason, for everything that isn't run."""
        return self.unreadable | self.refused


def screened(answers: dict[str, str], cells: list[dict]) -> Screened:
    """Screen the answers to an exercise.

    Args:
        answers: grade_id -> source.
        cells: the exercise's code cells: `id`, `source`, and `answer` of those that learners write.
    """
    unreadable = {}
    for answer, source in answers.items():
        try:
            parsed(source)
        except SyntaxRefusedError as error:
            unreadable[answer] = Refusal(answer, error.line, f"SyntaxError: {error}")
        except RefusedError:
            pass  # `screen` reports it
    readable = {answer: source for answer, source in answers.items() if answer not in unreadable}
    kept, plain, lent = kept_by(cells), plain_answers(cells), lent_by(cells)
    refused: dict[str, Refusal] = {}
    while True:
        # Screen the code to run again: no answer may depend on definitions in one that is left out.
        missing = unreadable.keys() | refused.keys()
        promised = promised_by(cell for cell in cells if cell["answer"] and cell["id"] in missing)
        found = screen(readable, kept, plain) or replaced(readable, cells)
        if not found and plain:
            found = screen_plain({a: s for a, s in (readable | promised).items() if a in plain}, kept, lent)
        if not found:
            return Screened(readable, unreadable, refused)
        refused |= {refusal.answer: refusal for refusal in found}
        readable = {answer: source for answer, source in readable.items() if answer not in refused}


def screen(answers: dict[str, str], kept: Iterable[str] = (), plain: Iterable[str] = ()) -> list[Refusal]:
    """Return the policy's refusals in a submission's answers, at most one per answer.

    Args:
        answers: grade_id -> source.
        kept: names of the exercise that no answer may redefine.
        plain: the answers that `screen_plain` screens.
    """
    trees, refusals = {}, []
    for answer, source in answers.items():
        try:
            trees[answer] = parsed(source)
        except RefusedError as error:
            refusals.append(Refusal(answer, error.line, str(error)))
    if refusals:
        return refusals
    kept = set(kept)
    trees = {answer: tree for answer, tree in trees.items() if answer not in plain}
    try:
        names = names_of(trees)
    except RefusedError as error:
        return [Refusal(defining(trees, str(error)), error.line, str(error))]
    for answer, tree in trees.items():
        try:
            check_launchers(tree, kept)
            for statement in tree.body:
                if is_kernel(statement):
                    check_kernel(statement, names)
        except RefusedError as error:
            refusals.append(Refusal(answer, error.line, str(error)))
        except RecursionError:
            refusals.append(Refusal(answer, 0, "it is nested too deeply to be checked"))
    return refusals


def replaced(answers: dict[str, str], cells: list[dict]) -> list[Refusal]:
    """Return a refusal for each answer with a function whose name is also a variable's in the exercise: whichever of
    the two comes later would replace the other."""
    variables = {name for cell in cells if not cell["answer"] for name in defined(ast.parse(cell["source"]))}
    found = {}
    for answer, source in answers.items():
        for each in parsed(source).body:
            if isinstance(each, ast.FunctionDef) and each.name in variables:
                found[answer] = Refusal(answer, each.lineno, f"{each.name} is a name of the exercise: choose another")
    return list(found.values())


def defining(trees: dict[str, ast.Module], why: str) -> str:
    """Return the last answer with a kernel that `why` names; if two have the same name, the later one overrides the
    earlier."""
    kernels = [(answer, each.name) for answer, tree in trees.items() for each in tree.body if is_kernel(each)]
    return next(answer for answer, name in reversed(kernels) if name in why.split())


def run_instead(why: Refusal) -> str:
    """Return the code to run instead of a skipped answer: it fails with the reason."""
    return f"raise SyntaxError({str(why)!r})"


def needing(left_out: Container[str], cells: list[dict]) -> set[str]:
    """Return the check cells that need one of these answers, according to the names that the exercise's own cells
    define and use."""
    trees = {cell["id"]: ast.parse(cell["source"]) for cell in cells}
    defined: dict[str, set[str]] = {}
    for cell, tree in trees.items():
        for node in tree.body:
            bound = ast.walk(node) if not isinstance(node, ast.FunctionDef | ast.ClassDef) else ()
            names = {each.id for each in bound if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
            for name in names | ({node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()):
                defined.setdefault(name, set()).add(cell)
    uses = {
        cell: {other for node in ast.walk(tree) if isinstance(node, ast.Name) for other in defined.get(node.id, ())}
        for cell, tree in trees.items()
    }
    found = set()
    for check in (cell["id"] for cell in cells if "points" in cell):
        reached, left = set(), {check}
        while left:
            reached |= left
            left = set().union(*(uses[cell] for cell in left)) - reached
        if any(cell in left_out for cell in reached):
            found.add(check)
    return found


def refusal_behind(message: str, found: Screened, cells: list[dict]) -> Refusal | None:
    """Return the refused answer that broke a check because it defines the missing function or kernel."""
    missing = re.search(r"NameError: name '(\w+)' is not defined", message)
    defining = {cell["id"]: cell["source"] for cell in cells if cell["answer"]}
    for answer, refusal in found.refused.items():
        if missing and re.search(rf"^def {missing[1]}\(|^{missing[1]}\b", defining[answer], re.MULTILINE):
            return refusal
    return None


def promised_by(cells: Iterable[dict]) -> dict[str, str]:
    """Return functions with the names that unreadable answers should have defined, because other answers may call
    them."""
    return {
        cell["id"]: "\n".join(
            f"def {node.name}(): pass" for node in ast.parse(cell["source"]).body if isinstance(node, ast.FunctionDef)
        )
        for cell in cells
    }


def is_plain(cells: list[dict]) -> bool:
    """Return whether an exercise asks for numbers or settings, rather than for a kernel."""
    return not any("@triton.jit" in cell["source"] for cell in cells if cell["answer"])


# Checks whose answer returns plain values and launches nothing.
NUMBERS = ("check_numbers", "check_counts", "check_rewrites", "check_arrangement", "check_graph_plan")


def plain_answers(cells: list[dict]) -> set[str]:
    """Return the ids of the answers that are numbers or settings: all of them if no kernel is asked for, or else those
    whose function a check asks for numbers."""
    answers = {cell["id"]: cell["source"] for cell in cells if cell["answer"]}
    if is_plain(cells):
        return set(answers)
    asked = {
        call.args[0].id
        for cell in cells
        if not cell["answer"]
        for call in ast.walk(ast.parse(cell["source"]))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in NUMBERS
    }
    return {
        answer
        for answer, source in answers.items()
        if any(isinstance(each, ast.FunctionDef) and each.name in asked for each in ast.parse(source).body)
    }


LENDING = "helpers.learning.allowed_calls"


def lent_by(cells: list[dict]) -> set[str]:
    """Return what an exercise lends to answers in plain Python: its imports from LENDING, under their own names."""
    return {
        alias.name
        for cell in cells
        if not cell["answer"]
        for node in ast.parse(cell["source"]).body
        if isinstance(node, ast.ImportFrom) and node.module == LENDING
        for alias in node.names
        if not alias.asname
    }


def kept_by(cells: list[dict]) -> set[str]:
    """Return the functions and imports of an exercise that an answer must not redefine."""
    names = set()
    for cell in cells:
        if cell["answer"]:
            continue
        for node in ast.parse(cell["source"]).body:
            if isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
    return names
