"""A plain file is the kernel of its lesson and nothing else: it needs few other files, and few other functions."""

import ast
from pathlib import Path

import pytest

import kernels
from kernels import CATALOGUE

ROOT = Path(kernels.__file__).parent
MAX_IMPORTS = 5  # modules of the project that a plain file imports
MAX_HELPERS = 3  # functions of the project that its forward kernel calls
WHOLE_LAYER = {"decoder_layer": 7}  # five kernels' worth of steps, and what orders them
MAX_LINES = {"plain": 9886, "in all": 16_381}  # of kernels/: all but tuned/ and interpreter/, and with them


def tree_of(name: str) -> ast.Module:
    return ast.parse((ROOT / CATALOGUE[name].group / f"{name}.py").read_text())


def is_jit(function: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def jit_functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and is_jit(node)}


def project_imports(tree: ast.AST) -> set[str]:
    """Modules of the project that a file imports, wherever in it; `from kernels import costs` is kernels.costs."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("kernels", "helpers"):
            within = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in within if (ROOT.parent / f"{name.replace('.', '/')}.py").exists()}
            found |= modules or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in ("kernels", "helpers")}
    return found


def helpers_called(tree: ast.Module, kernel: str) -> set[str]:
    """Functions that a kernel calls by a plain name and that are not Python's own, through local functions too."""
    local, found, left = jit_functions(tree), set(), {kernel}
    while left:
        body = local[left.pop()]
        called = {
            node.func.id for node in ast.walk(body) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        called -= {"range", "len", "float", "int", "min", "max", "isinstance"}
        left |= called & local.keys() - found
        found |= called
    return found


def magic_indices(function: ast.FunctionDef) -> list[str]:
    """Subscripts of a parameter by a number: a tuple whose fields have no names."""
    parameters = {argument.arg for argument in function.args.args}
    return [
        ast.unparse(node)
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in parameters
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, int)
    ]


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_plain_file_needs_few_others(name):
    imports = project_imports(tree_of(name))
    assert len(imports) <= MAX_IMPORTS, sorted(imports)
    assert not [module for module in imports if module.startswith("kernels.tuned")]


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_plain_kernel_calls_few_functions(name):
    kernel = CATALOGUE[name].kernel.fn
    called = helpers_called(tree_of(kernel.__module__.rsplit(".", 1)[1]), kernel.__name__)
    assert len(called) <= WHOLE_LAYER.get(name, MAX_HELPERS), sorted(called)


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_tuple_is_indexed_by_a_number(name):
    assert not [each for function in jit_functions(tree_of(name)).values() for each in magic_indices(function)]


@pytest.mark.parametrize(
    "path", sorted(set(ROOT.rglob("*.py")) - set(ROOT.glob("interpreter/*"))), ids=lambda path: path.stem
)
def test_nothing_is_tuned_unseen(path):
    assert "autotune(" not in path.read_text()


def test_lines():
    lines = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    plain = sum(count for path, count in lines.items() if path.parts[0] not in ("tuned", "interpreter"))
    assert plain <= MAX_LINES["plain"]
    assert sum(lines.values()) <= MAX_LINES["in all"]


def test_what_breaks_the_rules_is_found():
    source = """
from kernels import costs
from kernels.op import FusedOp, Work
from kernels.tuned import segments

@triton.jit
def first(x):
    return second(x)

@triton.jit
def a_kernel(x_ptr, PIECES: tl.constexpr):
    tl.store(x_ptr, first(PIECES[2]) + third(float(1)))
"""
    tree = ast.parse(source)
    assert project_imports(tree) == {"kernels.costs", "kernels.op", "kernels.tuned.segments"}
    assert helpers_called(tree, "a_kernel") == {"first", "second", "third"}
    assert magic_indices(jit_functions(tree)["a_kernel"]) == ["PIECES[2]"]
