"""The kernels of a submission, made from the text of its answers: no other line of it is run."""

import ast
import builtins
import math
from pathlib import Path

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from helpers.learning.policy import KERNEL_BUILTINS, check_kernel, is_kernel, names_of, parsed


def kernels_of(answers: dict[str, str], folder: Path) -> dict[str, JITFunction]:
    """Kernel name -> kernel, for every `@triton.jit` function at the top level of the answers.

    Args:
        answers: grade_id -> source.
        folder: where the text is put, a file for each answer: Triton reads a kernel's source from its file.

    Raises:
        RefusedError: a kernel is not in the language that `policy` allows.
    """
    trees = {answer: parsed(source) for answer, source in answers.items()}
    names = names_of(trees)
    # What the policy lets through could name nothing else; here there is nothing else to name.
    known = {name: getattr(builtins, name) for name in KERNEL_BUILTINS | {"NotImplementedError"}}
    namespace = {"__name__": "answers", "__builtins__": known, "tl": tl, "triton": triton, "math": math}
    for kernel in names.kernels.values():
        check_kernel(kernel, names)  # again, here: what runs beside the meter is what this process has checked
        for node in ast.walk(kernel):
            if isinstance(node, ast.Name) and node.id in names.constants and node.id not in namespace:
                namespace[node.id] = constant(names.constants[node.id], namespace)
    for number, (answer, tree) in enumerate(trees.items()):
        path = folder / f"answer_{number}.py"
        path.write_text(answers[answer])
        only = ast.Module([statement for statement in tree.body if is_kernel(statement)], type_ignores=[])
        exec(compile(only, str(path), "exec"), namespace)
    return {name: namespace[name] for name in names.kernels}


def constant(node: ast.expr, namespace: dict) -> object:
    only = {name: namespace[name] for name in ("tl", "math", "__builtins__")}
    return eval(compile(ast.Expression(node), "<constant>", "eval"), only)
