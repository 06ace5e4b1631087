"""Build a submission's kernels from the syntax trees that passed the policy, without running any other line of it.

No text is parsed twice: Triton's compiler and the interpreter use the tree itself as a kernel's source.
"""

import ast
import builtins
import copy
import inspect
import linecache
import math
from unittest import mock

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from helpers.learning.submission_policy.kernel_language import (
    KERNEL_BUILTINS,
    check_kernel,
    is_kernel,
    names_of,
    parsed,
)


def kernels_of(answers: dict[str, str]) -> dict[str, JITFunction]:
    """Return kernel name -> kernel, for each `@triton.jit` function at the top level of the answers.

    Args:
        answers: grade_id -> source.

    Raises:
        RefusedError: a kernel is not in the language that `kernel_language` allows.
    """
    trees = {answer: parsed(source) for answer, source in answers.items()}
    names = names_of(trees)
    # The policy allows no other names, and here no other names exist.
    known = {name: getattr(builtins, name) for name in KERNEL_BUILTINS | {"NotImplementedError"}}
    namespace = {"__name__": "answers", "__builtins__": known, "tl": tl, "triton": triton, "math": math}
    for kernel in names.kernels.values():
        check_kernel(kernel, names)  # again, here: this process runs next to the meter only code that it has checked
        for node in ast.walk(kernel):
            if isinstance(node, ast.Name) and node.id in names.constants and node.id not in namespace:
                namespace[node.id] = constant(names.constants[node.id], namespace)
    for answer, tree in trees.items():
        for statement in tree.body:
            if is_kernel(statement):
                namespace[statement.name] = made(statement, file_of(answer), namespace)
    return {name: namespace[name] for name in names.kernels}


def made(kernel: ast.FunctionDef, file: str, namespace: dict) -> JITFunction:
    """Build the kernel that a syntax tree describes."""
    plain = copy.deepcopy(kernel)
    plain.decorator_list = []
    defined = dict(namespace)
    exec(compile(ast.Module([plain], type_ignores=[]), file, "exec"), namespace, defined)
    # Triton asks for the file's text and cuts the function's source out of it.
    lines = ast.unparse(plain).splitlines(keepends=True)
    with mock.patch.object(inspect, "getsourcelines", return_value=(lines, plain.lineno)):
        function = triton.jit(defined[kernel.name])
    # Lines of a kernel are counted from its first line.
    tree = ast.increment_lineno(ast.Module([copy.deepcopy(plain)], type_ignores=[]), 1 - plain.lineno)
    function.parse = lambda: copy.deepcopy(tree)
    return function


def file_of(answer: str) -> str:
    """Return a file name for an answer's lines; no such file exists."""
    return f"<answer {answer}>"


def show_lines(answers: dict[str, str]) -> None:
    """Let messages quote lines of the answers."""
    for answer, source in answers.items():
        linecache.cache[file_of(answer)] = (len(source), None, source.splitlines(keepends=True), file_of(answer))


def constant(node: ast.expr, namespace: dict) -> object:
    only = {name: namespace[name] for name in ("tl", "math", "__builtins__")}
    return eval(compile(ast.Expression(node), "<constant>", "eval"), only)
