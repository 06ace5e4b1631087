"""Find the names in an answer that Python looks up in the notebook, not among a function's own variables.

Python's compiler decides: a name that no instruction loads from the globals belongs to the answer, so a local variable
may be called `bytes`, for example.
"""

import ast
import copy
import dis
import warnings
from collections.abc import Iterator
from types import CodeType

from helpers.learning.submission_policy.kernel_language import RefusedError

OF_NOTEBOOK = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF"}


def looked_up(tree: ast.Module) -> dict[str, int]:
    """Return name -> the first line of an answer's tree that looks it up in the notebook.

    Raises:
        RefusedError: see `compiled`.
    """
    found: dict[str, int] = {}
    for each in code_of(compiled(tree)):
        for instruction in dis.get_instructions(each):
            if instruction.opname in OF_NOTEBOOK:
                line = instruction.positions.lineno or 0
                found[instruction.argval] = min(line, found.get(instruction.argval, line))
    return found


def defined(tree: ast.Module) -> dict[str, int]:
    """Return name -> the first line that binds or deletes it in the notebook."""
    found: dict[str, int] = {}
    code = compiled(tree)
    for each in code_of(code):
        # An assignment expression in a comprehension binds its name outside the comprehension.
        names = {"STORE_GLOBAL", "DELETE_GLOBAL"} | ({"STORE_NAME", "DELETE_NAME"} if each is code else set())
        for instruction in dis.get_instructions(each):
            if instruction.opname in names:
                line = instruction.positions.lineno or 0
                found[instruction.argval] = min(line, found.get(instruction.argval, line))
    return found


def compiled(tree: ast.Module) -> CodeType:
    """Compile an answer's tree.

    Raises:
        RefusedError: Python can parse it but not compile it, such as `return` outside a function.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of code that has not run yet
            return compile(copy.deepcopy(tree), "<answer>", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise RefusedError(ast.Pass(lineno=error.lineno or 0), f"SyntaxError: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise RefusedError(tree, "Python cannot compile it: it is nested too deeply") from None


def code_of(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_of(constant)
