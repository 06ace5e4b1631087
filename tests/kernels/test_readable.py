"""A kernel can be read in one sitting, and its settings stand in its file: nothing searches for them unseen."""

import ast
from pathlib import Path

import pytest

import kernels

FILES = sorted(Path(kernels.__file__).parent.glob("*/*.py"))
LONGEST = 60  # lines


def kernels_in(source: str) -> dict[str, int]:
    """Lines of the body of each `@triton.jit` function."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return {
        each.name: each.end_lineno - each.body[0].lineno + 1
        for each in functions
        if any("jit" in ast.unparse(decorator) for decorator in each.decorator_list)
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kernels_are_short_and_nothing_is_tuned_unseen(path):
    source = path.read_text()
    assert all(lines < LONGEST for lines in kernels_in(source).values())
    assert "autotune" not in source


def test_a_long_kernel_is_found():
    long = "@triton.jit\ndef long_kernel(x_ptr):\n" + "    x_ptr += 1\n" * LONGEST
    assert kernels_in(long + "def not_one():\n    pass\n") == {"long_kernel": LONGEST}
