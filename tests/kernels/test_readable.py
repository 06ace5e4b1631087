"""A kernel can be read in one sitting, and its settings stand in its file: nothing searches for them unseen."""

import ast
from pathlib import Path

import pytest

import kernels
from kernels import CATALOGUE

ROOT = Path(kernels.__file__).parent
FILES = sorted(ROOT.glob("*/*.py"))
LONGEST = 60  # lines of a kernel
LONGEST_FILE = 250  # lines, docstring included
INTERPRETER = ROOT / "runtime.py"  # no kernel is in it: it is Triton's interpreter, put right where GPUs differ


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


@pytest.mark.parametrize("path", sorted({*FILES, *ROOT.glob("*.py")} - {INTERPRETER}), ids=lambda path: path.stem)
def test_a_file_is_read_in_one_sitting(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_file_of_an_operation_holds_one_kernel_each_way(name):
    """A case that needs a kernel of its own has a file of its own; functions that kernels share end otherwise."""
    source = (ROOT / CATALOGUE[name].group / f"{name}.py").read_text()
    launched = [each for each in kernels_in(source) if each.endswith("_kernel")]
    assert sum("backward" not in each for each in launched) <= 1
    assert sum("backward" in each for each in launched) <= 1


def test_a_long_kernel_is_found():
    long = "@triton.jit\ndef long_kernel(x_ptr):\n" + "    x_ptr += 1\n" * LONGEST
    assert kernels_in(long + "def not_one():\n    pass\n") == {"long_kernel": LONGEST}
