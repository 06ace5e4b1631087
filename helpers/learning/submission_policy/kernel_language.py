"""The language of kernels, checked on an answer's text alone; `launcher_language` checks the Python around them.

Kernels are interpreted and compiled in the meter's process, so their language is restricted: anything not listed here
is refused. Nothing in the list leads to a module, a frame or an attribute of the interpreter.
"""

import ast
from dataclasses import dataclass

from helpers.learning.submission_policy.unambiguous_source import (
    as_triton_reads,
    characters_of_two_readings,
    is_rewritten_by_ipython,
)

BLOCK_POINTERS = frozenset("make_block_ptr advance".split())

MAX_TEXT = 50_000  # characters of an answer cell

# The language of kernels
KERNEL_BUILTINS = frozenset("range min max abs float int bool len".split())
OF_TRITON = frozenset("cdiv next_power_of_2".split())
OF_MATH = frozenset("pi e inf sqrt exp log log2".split())
OF_LANGUAGE = frozenset(
    # types
    "constexpr float16 bfloat16 float32 float64 int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    # programs and blocks
    "program_id num_programs arange zeros full zeros_like cast broadcast broadcast_to expand_dims permute trans "
    "reshape view ravel join split interleave cat flip where range static_range static_assert assume multiple_of "
    "max_contiguous max_constancy cdiv next_power_of_2 swizzle2d "
    # memory
    "load store make_tensor_descriptor load_tensor_descriptor store_tensor_descriptor atomic_add atomic_max atomic_min "
    "atomic_and atomic_or atomic_xor atomic_xchg atomic_cas gather debug_barrier "
    # arithmetic
    "abs ceil floor exp exp2 log log2 cos sin sqrt sqrt_rn rsqrt erf sigmoid softmax fma div_rn fdiv umulhi clamp "
    "maximum minimum dot dot_scaled "
    # reductions and scans
    "sum max min argmax argmin xor_sum reduce associative_scan cumsum cumprod sort topk histogram "
    # random numbers
    "rand rand4x randn randint randint4x philox".split()
)
OF_VALUES = frozenset(
    "to dtype element_ty shape T value cast load store trans permute reshape view ravel broadcast_to expand_dims split "
    "sum max min argmax argmin abs exp exp2 log log2 sqrt rsqrt sigmoid cumsum sort gather".split()
)

_STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.For, ast.While, ast.Return, ast.Pass)
_EXPRESSIONS = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List)
_EXPRESSIONS += (ast.Subscript, ast.Slice, ast.Call, ast.Attribute)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)


@dataclass(frozen=True)
class Refusal:
    """A refusal by the policy: the answer cell's grade_id, the line in it (0 for the whole cell), and the reason."""

    answer: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"answer {self.answer!r}, line {self.line}: {self.why}" if self.line else f"{self.answer!r}: {self.why}"


class RefusedError(Exception):
    """Raised for a node that is not allowed; the first argument is the reason."""

    def __init__(self, node: ast.AST, why: str):
        super().__init__(why)
        self.line = getattr(node, "lineno", 0)


class SyntaxRefusedError(RefusedError):
    """Raised if Python can't parse an answer, and so would run none of it."""


@dataclass
class Names:
    """The names that the answer cells of one submission define for their kernels."""

    language: set[str]  # names of triton.language
    triton: set[str]
    math: set[str]
    kernels: dict[str, ast.FunctionDef]
    constants: dict[str, ast.expr]


def parsed(source: str) -> ast.Module:
    """Return an answer's syntax tree; RefusedError if it has none, or if other tools would parse it differently."""
    if len(source) > MAX_TEXT:
        raise RefusedError(ast.Module(), f"it has {len(source):,} characters: at most {MAX_TEXT:,} are graded")
    if found := characters_of_two_readings(source):
        raise RefusedError(ast.Pass(lineno=found[0]), found[1])
    try:
        source.encode()
        tree = ast.parse(source)
        rewritten = is_rewritten_by_ipython(source, tree)
    except SyntaxError as error:
        node = ast.Pass(lineno=error.lineno or 0)
        magic = (error.text or "").lstrip().startswith(("%", "!", "?"))
        if magic:
            raise RefusedError(node, "magics and shell commands are not graded") from None
        raise SyntaxRefusedError(node, error.msg) from None
    except (ValueError, RecursionError, MemoryError):
        raise RefusedError(ast.Module(), "Python cannot read it: it is nested too deeply, or not text") from None
    if rewritten:
        raise RefusedError(tree, "IPython would run other code than this: no prompts, no magics")
    for statement in tree.body:
        if is_kernel(statement) and (why := as_triton_reads(source, statement)):
            raise RefusedError(statement, why)
    return tree


def names_of(trees: dict[str, ast.Module]) -> Names:
    """Kernels, module aliases and constants that the answers define at the top level."""
    names = Names({"tl"}, {"triton"}, {"math"}, {}, {})
    for tree in trees.values():
        for statement in tree.body:
            match statement:
                case ast.FunctionDef() if is_kernel(statement):
                    if statement.name in names.kernels:
                        raise RefusedError(statement, f"the kernel {statement.name} is defined twice: keep one")
                    names.kernels[statement.name] = statement
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    names.constants[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    names.constants[name] = value
    return names


def is_kernel(statement: ast.stmt) -> bool:
    """Return whether this is a function under `@triton.jit`, and nothing else."""
    return (
        isinstance(statement, ast.FunctionDef)
        and len(statement.decorator_list) == 1
        and ast.unparse(statement.decorator_list[0]) == "triton.jit"
    )


def stores(node: ast.AST) -> bool:
    return not isinstance(node.ctx, ast.Load)


# Kernels


def check_kernel(kernel: ast.FunctionDef, names: Names) -> None:
    """Raise RefusedError at the first construct in a kernel that its closed language lacks."""
    given = kernel.args
    if given.vararg or given.kwarg or given.posonlyargs:
        raise RefusedError(kernel, "a kernel's parameters are plain names: no *, ** or /")
    parameters = [*given.args, *given.kwonlyargs]
    local = {parameter.arg for parameter in parameters}
    local |= {node.id for node in ast.walk(kernel) if isinstance(node, ast.Name) and stores(node)}
    reserved = names.language | names.triton | names.math | KERNEL_BUILTINS | names.kernels.keys()
    if taken := sorted(local & reserved):
        raise RefusedError(kernel, f"{taken[0]} already means something in a kernel: choose another name")
    for annotation in [*(parameter.annotation for parameter in parameters), kernel.returns]:
        if annotation is not None and ast.unparse(annotation) != "tl.constexpr":
            raise RefusedError(annotation, "the only annotation in a kernel is tl.constexpr")
    for default in [*given.defaults, *given.kw_defaults]:
        if default is not None and not isinstance(default, ast.Constant):
            raise RefusedError(default, "a kernel's default is a plain number or None")
    for statement in kernel.body:
        check_statement(statement, local, names)


def check_statement(node: ast.stmt, local: set[str], names: Names) -> None:
    if isinstance(node, ast.Raise) and ast.unparse(node) == "raise NotImplementedError":
        return  # an exercise's stub
    if not isinstance(node, _STATEMENTS):
        raise RefusedError(node, f"`{first_line_of(node)}` is not in the language of kernels")
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) != "tl.constexpr":
        raise RefusedError(node, "the only annotation in a kernel is tl.constexpr")
    for target in targets_of(node):
        elements = target.elts if isinstance(target, ast.Tuple) else [target]
        if not all(isinstance(element, ast.Name) for element in elements):
            raise RefusedError(node, "a kernel assigns to plain names; memory is written with tl.store")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            check_statement(child, local, names)
        elif isinstance(child, ast.expr) and child is not getattr(node, "annotation", None):
            check_expression(child, local, names)


def targets_of(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For) else []


def check_expression(node: ast.expr, local: set[str], names: Names) -> None:
    if not isinstance(node, _EXPRESSIONS):
        raise RefusedError(node, f"`{first_line_of(node)}` is not in the language of kernels")
    match node:
        case ast.Attribute():
            check_attribute(node, local, names)
            return
        case ast.Name(id=name) if name not in local | KERNEL_BUILTINS | names.kernels.keys():
            if name not in names.constants:
                raise RefusedError(
                    node, f"{name}: a kernel may use its parameters, tl, your other kernels and constants"
                )
            if not is_number(names.constants[name], names):
                raise RefusedError(node, f"{name}: a constant that a kernel uses must be plain numbers")
        case ast.Call(func=called, keywords=keywords):
            if not isinstance(called, ast.Name | ast.Attribute) or (
                isinstance(called, ast.Name) and called.id in local
            ):
                raise RefusedError(node, f"`{first_line_of(called)}` cannot be called in a kernel")
            if any(keyword.arg is None for keyword in keywords):
                raise RefusedError(node, "** is not in the language of kernels")
            for keyword in keywords:
                check_expression(keyword.value, local, names)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            check_expression(child, local, names)


def check_attribute(node: ast.Attribute, local: set[str], names: Names) -> None:
    written = ast.unparse(node)[:80]
    match node.value:
        case ast.Name(id=module) if module not in local and module in names.language | names.triton | names.math:
            known = OF_LANGUAGE if module in names.language else OF_TRITON if module in names.triton else OF_MATH
            if module in names.language and node.attr in BLOCK_POINTERS:
                raise RefusedError(node, f"{written}: block pointers aren't graded; use pointers and a mask")
            if node.attr not in known:
                raise RefusedError(node, f"{written} is not in the language of kernels")
        case ast.Attribute(value=ast.Name(id=module), attr="math") if module not in local and module in names.language:
            if node.attr not in OF_LANGUAGE:
                raise RefusedError(node, f"{written} is not in the language of kernels")
        case value:
            if node.attr not in OF_VALUES:
                raise RefusedError(node, f"{written} is not in the language of kernels")
            check_expression(value, local, names)


def is_number(node: ast.expr, names: Names) -> bool:
    """Return whether a constant consists of plain numbers, tl.constexpr and math."""
    match node:
        case ast.Constant(value=int() | float() | None):
            return True
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return is_number(inner, names)
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _ARITHMETIC):
            return is_number(left, names) and is_number(right, names)
        case ast.Attribute(value=ast.Name(id="math"), attr=attribute):
            return attribute in OF_MATH
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=attribute), args=[inner], keywords=[]):
            known = (module == "math" and attribute in OF_MATH) or (module == "tl" and attribute == "constexpr")
            return known and is_number(inner, names)
    return False


def first_line_of(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0][:80]
