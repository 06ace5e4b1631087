"""The Python allowed in answers that return numbers or settings, and launch nothing.

Such an answer has no launches to replay, only values. So it must not reach tools in its sandbox that could compute
them: the meter, the compiler, the roofline. All other Python is allowed; only access to other names in the notebook, to
modules other than math, or to the interpreter is refused.
"""

import ast
from collections.abc import Iterable

from helpers.learning.submission_policy.global_names import defined, looked_up
from helpers.learning.submission_policy.kernel_language import Refusal, RefusedError, first_line_of, parsed
from helpers.learning.submission_policy.launcher_language import (
    NOT_OPEN,
    OF_MATH,
    imports_of,
    is_unused_import,
    names_bound,
)

BUILTINS = frozenset(
    "abs all any bin bool bytes callable chr complex dict divmod enumerate filter float format frozenset hash hex int "
    "isinstance iter len list map max min next oct ord pow print range repr reversed round set slice sorted str sum "
    "tuple zip "
    "ArithmeticError AssertionError Exception IndexError KeyError LookupError NotImplementedError OverflowError "
    "RuntimeError StopIteration TypeError ValueError ZeroDivisionError".split()
)
# Methods of numbers, strings, lists, dictionaries, sets and tuples. Not str.format, whose fields reach attributes by
# text.
METHODS = frozenset(
    "add append bit_count bit_length capitalize casefold center clear copy count difference difference_update discard "
    "endswith extend find fromkeys get index insert intersection intersection_update isalnum isalpha isdecimal isdigit "
    "isdisjoint islower is_integer isnumeric isspace issubset issuperset isupper items join keys ljust lower lstrip "
    "partition pop popitem remove removeprefix removesuffix replace reverse rfind rindex rjust rpartition rsplit "
    "rstrip setdefault sort split splitlines startswith strip swapcase symmetric_difference "
    "symmetric_difference_update title union update upper values zfill as_integer_ratio conjugate real imag numerator "
    "denominator".split()
)

STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.For, ast.While, ast.Return, ast.Pass)
STATEMENTS += (ast.Break, ast.Continue, ast.FunctionDef, ast.Import, ast.ImportFrom, ast.Assert, ast.Raise, ast.Try)
STATEMENTS += (ast.Delete, ast.Nonlocal, ast.Match)
PARTS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.arguments, ast.arg, ast.keyword)
PARTS += (ast.alias, ast.comprehension, ast.ExceptHandler, ast.match_case)
# No class patterns, because they read attributes by name.
PARTS += (
    ast.MatchValue,
    ast.MatchSingleton,
    ast.MatchSequence,
    ast.MatchMapping,
    ast.MatchStar,
    ast.MatchAs,
    ast.MatchOr,
)
EXPRESSIONS = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List)
EXPRESSIONS += (ast.Dict, ast.Set, ast.Subscript, ast.Slice, ast.Call, ast.Attribute, ast.Starred, ast.Lambda)
EXPRESSIONS += (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.JoinedStr, ast.FormattedValue)
EXPRESSIONS += (ast.NamedExpr, ast.Yield, ast.YieldFrom)
KNOWN = (*STATEMENTS, *EXPRESSIONS, *PARTS, ast.Module)


def screen_plain(answers: dict[str, str], kept: Iterable[str] = (), lent: Iterable[str] = ()) -> list[Refusal]:
    """Return the refusals in answers that return plain values, at most one per answer.

    Args:
        answers: grade_id -> source, as passed by `screening.screen`.
        kept: names of the exercise.
        lent: names that answers may call.
    """
    trees = {answer: parsed(source) for answer, source in answers.items()}
    # If an answer might not have bound the name, it could be the notebook's.
    try:
        own = {name for tree in trees.values() for name in defined(tree)} - set(kept) - NOT_OPEN
    except RefusedError:
        own = set()  # `check_answer` reports it for the answer, which is not compiled
    taken = {node.id for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Name)} | set(kept)
    refusals = []
    for answer, tree in trees.items():
        try:
            check_answer(tree, own | BUILTINS | {"math"} | set(lent), taken, set(kept))
        except RefusedError as error:
            refusals.append(Refusal(answer, error.line, str(error)))
    return refusals


def check_answer(tree: ast.Module, known: set[str], taken: set[str], kept: set[str]) -> None:
    """Raise RefusedError at the first construct in an answer that is not in the language.

    Args:
        known: names that it may look up in the notebook.
        taken: names used by the answers and by the exercise itself.
            kept: names used by the exercise itself.
    """
    outside = looked_up(tree)
    # A name that this function looks up is the module, whatever it is in another function. So is one never bound:
    # Python doesn't compile the lines after a return.
    is_math = "math" in outside or not any("math" in names_bound(statement) for statement in tree.body)
    for node in ast.walk(tree):
        check_node(node, is_math, taken)
    imported = {name for node in ast.walk(tree) for name in imports_of(node)}
    for name, line in defined(tree).items():
        if name in kept and name not in imported:
            raise RefusedError(ast.Pass(lineno=line), f"{name} is a name of the exercise: choose another")
    for name, line in sorted(outside.items(), key=lambda each: each[1]):
        if name not in known:
            raise RefusedError(
                ast.Pass(lineno=line), f"{name}: an answer here may use its arguments, math and its own definitions"
            )


def check_node(node: ast.AST, is_math: bool, taken: set[str]) -> None:
    """Raise RefusedError if a node of an answer is not in the language."""
    if isinstance(node, ast.ClassDef):
        raise RefusedError(node, f"classes aren't graded, and {node.name} is one: write functions")
    if not isinstance(node, KNOWN):
        raise RefusedError(node, f"`{first_line_of(node)}` is not in the language of answers that give numbers")
    match node:
        case ast.Import() | ast.ImportFrom() if is_unused_import(node, taken):
            return
        case ast.Import(names=[ast.alias(name="math", asname=None)]):
            return
        case ast.ImportFrom(module="math", names=names) if all(a.name in OF_MATH and not a.asname for a in names):
            return
        case ast.Import() | ast.ImportFrom():
            module = getattr(node, "module", None) or node.names[0].name
            raise RefusedError(
                node, f"importing {module} is not graded: an answer here may import math, and nothing else"
            )
        case ast.FunctionDef(decorator_list=[_, *_]):
            raise RefusedError(node, "an answer here is a plain function: no decorator")
        case ast.Attribute(value=ast.Name(id="math"), attr=name) if is_math and name in OF_MATH:
            return
        case ast.Attribute(attr=name) if name.startswith("_"):
            raise RefusedError(node, f".{name} reaches into the interpreter")
        case ast.Attribute(attr=name) if name not in METHODS:
            raise RefusedError(node, f"{ast.unparse(node)[:80]} isn't available to answers that return numbers")
