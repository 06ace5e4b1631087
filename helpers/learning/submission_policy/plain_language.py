"""Which Python an answer may be written in that gives numbers or settings, and launches nothing.

Such an answer leaves no launches that could be done again: its values are all there is. So it must not reach what
would work them out for it, the meter, the compiler, the roofline, which its sandbox holds. Its language is closed, as
that of kernels is: what is not listed here is refused.
"""

import ast
import builtins
from collections.abc import Iterable

from helpers.learning.submission_policy.kernel_language import OF_MATH, Refusal, RefusedError, first_line_of, parsed

BUILTINS = frozenset(
    "abs all any bool dict divmod enumerate float frozenset int len list map max min next pow print range reversed "
    "round set sorted str sum tuple zip".split()
)
MATH = OF_MATH | frozenset("ceil floor isclose prod gcd lcm log10 inf".split())
# What else a name may mean in a notebook's kernel.
GLOBALS = frozenset(dir(builtins)) | frozenset("In Out display exit get_ipython quit".split())
METHODS = frozenset("items keys values get append extend index count sort copy update add pop setdefault".split())

STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.For, ast.While, ast.Return, ast.Pass)
STATEMENTS += (ast.Break, ast.Continue, ast.FunctionDef, ast.Import, ast.ImportFrom)
PARTS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.arguments, ast.arg, ast.keyword)
PARTS += (ast.alias, ast.comprehension)
EXPRESSIONS = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List)
EXPRESSIONS += (ast.Dict, ast.Set, ast.Subscript, ast.Slice, ast.Call, ast.Attribute, ast.Starred, ast.Lambda)
EXPRESSIONS += (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.JoinedStr, ast.FormattedValue)


def screen_plain(answers: dict[str, str], kept: Iterable[str] = (), lent: Iterable[str] = ()) -> list[Refusal]:
    """What is refused in answers that give plain values, at most one refusal for each answer.

    Args:
        answers: grade_id -> source, which `policy.screen` lets through.
        kept: names of the exercise's own.
        lent: those of them that answers may call.
    """
    trees = {answer: parsed(source) for answer, source in answers.items()}
    own = {name for tree in trees.values() for name in names_bound(tree)}
    # A parameter of this name would let every other function speak of the real one.
    own -= (GLOBALS - BUILTINS) | set(kept)
    own |= set(lent)
    refusals = []
    for answer, tree in trees.items():
        try:
            for node in ast.walk(tree):
                check_node(node, own)
        except RefusedError as error:
            refusals.append(Refusal(answer, error.line, str(error)))
    return refusals


def names_bound(tree: ast.Module) -> set[str]:
    """Every name that an answer gives a meaning."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.ImportFrom(names=imported):
                names |= {alias.name for alias in imported}
    return names


def check_node(node: ast.AST, own: set[str]) -> None:
    """Raise RefusedError where a node of an answer is not in the language."""
    if isinstance(node, ast.Raise) and ast.unparse(node) == "raise NotImplementedError":
        return  # an exercise's stub
    match node:
        case ast.Import(names=[ast.alias(name="math", asname=None)]):
            return
        case ast.ImportFrom(module="math", names=names) if all(a.name in MATH and not a.asname for a in names):
            return
        case ast.FunctionDef(decorator_list=[_, *_]):
            raise RefusedError(node, "an answer here is a plain function: no decorator")
        case ast.Name(id=name) if name not in own | BUILTINS | {"math", "NotImplementedError"}:
            raise RefusedError(node, f"{name}: an answer here may use its arguments, math and what it defines itself")
        case ast.Attribute(value=ast.Name(id="math"), attr=name) if "math" not in own and name in MATH:
            return
        case ast.Attribute(attr=name) if name not in METHODS:
            raise RefusedError(node, f"{ast.unparse(node)[:80]} is not open to an answer that gives numbers")
        case ast.Import() | ast.ImportFrom():
            raise RefusedError(node, "an answer here may import math, and nothing else")
    known = (*STATEMENTS, *EXPRESSIONS, *PARTS, ast.Module)
    if not isinstance(node, known):
        raise RefusedError(node, f"`{first_line_of(node)}` is not in the language of answers that give numbers")
