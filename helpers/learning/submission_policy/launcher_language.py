"""The Python allowed around an answer's kernels: functions that allocate, view and launch.

Like the kernels' language, it is restricted: statements, names and attributes that are not listed here are refused. No
name in it leads to another module, a frame, a class, or code as text. Launchers only run in the sandbox, so this only
reports early, in plain words, what would fail there.
"""

import ast
import builtins

from helpers.learning.submission_policy.global_names import looked_up
from helpers.learning.submission_policy.kernel_language import OF_LANGUAGE, RefusedError, first_line_of, is_kernel

BUILTINS = frozenset(
    "abs all any bool chr dict divmod enumerate filter float frozenset int isinstance iter len list map max min next "
    "ord pow print range repr reversed round set slice sorted str sum tuple zip "
    "AssertionError IndexError KeyError NotImplementedError RuntimeError TypeError ValueError ZeroDivisionError".split()
)
# Other names that exist in a notebook's kernel.
NOT_OPEN = (frozenset(dir(builtins)) | frozenset("In Out display exit get_ipython quit".split())) - BUILTINS

_DTYPES = "float16 bfloat16 float32 float64 half float double int8 int16 int32 int64 short int long uint8 bool"
_VIEWS = (
    "reshape flatten ravel squeeze unsqueeze transpose permute movedim swapaxes t narrow select split chunk unbind "
    "as_strided broadcast_to view_as_real clone repeat_interleave roll flip tril triu gather scatter index_select "
    "take_along_dim masked_select where cat stack"
)
# A launcher mustn't compute these; the kernel must. The judge reports them, with the operator's name.
_COMPUTED = (
    "abs neg add sub subtract mul multiply div divide true_divide pow sqrt rsqrt reciprocal square exp exp2 expm1 log "
    "log2 log1p sigmoid tanh sin cos erf relu softmax log_softmax logsumexp sum mean var std prod amax amin aminmax "
    "max min argmax argmin maximum minimum clamp round floor ceil trunc sign cumsum cumprod sort argsort topk matmul "
    "mm bmm addmm mv dot outer norm any all isnan isinf isfinite equal allclose eq ne lt le gt ge logical_and "
    "logical_or logical_not bitwise_and bitwise_or bitwise_xor nonzero count_nonzero"
)
OF_TORCH = frozenset(
    f"{_DTYPES} {_VIEWS} {_COMPUTED} "
    "Tensor Size dtype device strided contiguous_format channels_last preserve_format e inf nan pi nn "
    "empty empty_like empty_strided zeros zeros_like ones ones_like full full_like arange linspace eye tensor "
    "as_tensor scalar_tensor broadcast_tensors broadcast_shapes finfo iinfo promote_types result_type numel is_tensor "
    "is_floating_point einsum baddbmm layer_norm rms_norm dropout bernoulli rand rand_like randn randn_like randint "
    "manual_seed no_grad enable_grad var_mean std_mean addcmul addcdiv lerp".split()
)
OF_FUNCTIONAL = frozenset(
    "relu relu6 gelu silu mish elu leaky_relu softplus sigmoid logsigmoid tanh hardtanh glu softmax log_softmax "
    "layer_norm rms_norm batch_norm group_norm normalize dropout linear conv1d conv2d pad one_hot embedding "
    "cross_entropy nll_loss mse_loss scaled_dot_product_attention".split()
)
OF_MATH = frozenset(
    "pi e inf nan tau ceil floor trunc sqrt isqrt cbrt exp exp2 expm1 log log2 log10 log1p pow prod gcd lcm comb fabs "
    "fsum fmod copysign isclose isfinite isinf isnan sin cos tan tanh sinh cosh erf hypot".split()
)
MODULES = {
    "torch": OF_TORCH,
    "torch.nn": frozenset({"functional"}),
    "torch.nn.functional": OF_FUNCTIONAL,
    "triton": frozenset("cdiv next_power_of_2 language".split()),
    "triton.language": OF_LANGUAGE,
    "math": OF_MATH,
}
USUAL = {"torch": "torch", "triton": "triton", "tl": "triton.language", "math": "math"}
# Attributes of tensors, dtypes, shapes and plain values.
OF_VALUES = frozenset(
    f"{_VIEWS} {_COMPUTED} half float double short int long bool bfloat16 "
    "shape size stride numel nelement dim ndim dtype device layout itemsize element_size nbytes data_ptr type "
    "storage_offset is_contiguous is_floating_point is_complex is_cuda is_cpu requires_grad index T mT eps tiny bits "
    "contiguous detach to type_as cpu cuda view view_as reshape_as expand expand_as repeat unflatten item tolist "
    "copy_ fill_ zero_ add_ sub_ mul_ div_ clamp_ masked_fill masked_fill_ index_add_ scatter_ scatter_add_ "
    "new_empty new_empty_strided new_zeros new_ones new_full new_tensor "
    "append extend insert pop count copy update items keys values get setdefault join strip startswith endswith lower "
    "upper bit_length is_integer".split()
) - {"type"}

STATEMENTS = (ast.FunctionDef, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.For, ast.While)
STATEMENTS += (ast.Return, ast.Pass, ast.Break, ast.Continue, ast.Assert, ast.Raise, ast.With)
STATEMENTS += (ast.Import, ast.ImportFrom, ast.Delete)
EXPRESSIONS = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.NamedExpr)
EXPRESSIONS += (ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Subscript, ast.Slice, ast.Starred, ast.Call, ast.Attribute)
EXPRESSIONS += (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
EXPRESSIONS += (ast.JoinedStr, ast.FormattedValue)
PARTS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.arguments, ast.arg, ast.keyword)
PARTS += (ast.alias, ast.comprehension, ast.withitem, ast.Module)


def check_launchers(tree: ast.Module, kept: set[str]) -> None:
    """Raise RefusedError at the first construct in an answer, outside its kernels, that this language doesn't have.

    Args:
        tree: an answer's.
        kept: names of the exercise that no answer may redefine.
    """
    rest = [statement for statement in tree.body if not is_kernel(statement)]
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    rest = [statement for statement in rest if not is_unused_import(statement, used | kept)]
    for kernel in tree.body:
        if is_kernel(kernel) and kernel.name in kept | USUAL.keys():
            raise RefusedError(kernel, f"{kernel.name} is a name of the exercise: choose another")
    modules = USUAL.copy()
    for statement in rest:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules |= imported(node, kept)
    # A function may name its local variables freely, because it doesn't look those names up in the notebook.
    outside = looked_up(ast.Module(rest, type_ignores=[]))
    given = {name for statement in rest for node in ast.walk(statement) for name in imports_of(node)}
    bound = {name for statement in rest for name in names_bound(statement)}
    # Python doesn't compile the lines after a return, so it doesn't look their names up either.
    modules = {
        name: module for name, module in modules.items() if name in outside or name in given or name not in bound
    }
    # A local name in one function would be allowed in all others too, so it must be allowed everywhere.
    own = bound - modules.keys() - NOT_OPEN
    own |= bound - outside.keys()
    for statement in rest:
        for name, node in bound_outside(statement):
            if name in kept | USUAL.keys():
                raise RefusedError(node, f"{name} is a name of the exercise: choose another")
        check_parts(statement, modules, own)


# From the course's dependencies and the standard library: an unused import of these has no effect.
UNUSED = frozenset(
    "numpy torch triton triton.language math matplotlib matplotlib.pyplot typing functools itertools collections "
    "dataclasses operator random time statistics fractions decimal string re".split()
)
UNUSED_NAMES = UNUSED - set("torch triton triton.language".split())  # modules whose names may be imported, unused


def is_unused_import(statement: ast.AST, taken: set[str]) -> bool:
    """Return whether this imports only from harmless modules, under names that are never used.

    Args:
        taken: names used by the answer or by the exercise.
    """
    match statement:
        case ast.Import(names=aliases):
            named = [(alias.asname or alias.name.partition(".")[0], alias.name) for alias in aliases]
            return all(
                module in UNUSED and (USUAL[name] == module if name in USUAL else name not in taken)
                for name, module in named
            )
        case ast.ImportFrom(module=module, names=aliases, level=0):
            names = {alias.asname or alias.name for alias in aliases}
            return module in UNUSED_NAMES and names.isdisjoint(taken | USUAL.keys() | {"*"})
    return False


def imports_of(node: ast.AST) -> set[str]:
    """Return the names that an import binds."""
    match node:
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {alias.asname or alias.name.partition(".")[0] for alias in aliases}
    return set()


def check_parts(statement: ast.stmt, modules: dict[str, str], own: set[str]) -> None:
    nodes = list(ast.walk(statement))
    bases = {id(part) for node in nodes if isinstance(node, ast.Attribute) for part in module_parts(node, modules)}
    for node in nodes:
        if getattr(node, "decorator_list", []):
            raise RefusedError(node, refused_decorator(node))
        if isinstance(node, ast.Global | ast.Nonlocal):
            raise RefusedError(node, "global and nonlocal would keep results from one call to the next")
        if isinstance(node, ast.ClassDef):
            raise RefusedError(node, f"classes aren't graded, and {node.name} is one: write functions")
        if not isinstance(node, (*STATEMENTS, *EXPRESSIONS, *PARTS)):
            raise RefusedError(node, f"`{first_line_of(node)}` is not in the language of answers")
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) if name.startswith("__"):
                raise RefusedError(node, f"{name} isn't available to answers")
            case ast.Name(id=name, ctx=ast.Load()) if id(node) not in bases:
                if name in modules:
                    raise RefusedError(node, f"{name} is used here on its own: name what you take from it")
                if name not in own and (name in NOT_OPEN or name.startswith("_")):
                    raise RefusedError(node, f"{name} isn't available to answers")
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    for node in sorted(
        attributes, key=lambda each: (each.lineno, each.col_offset, each.end_lineno, each.end_col_offset)
    ):
        check_attribute(node, modules, id(node) in bases)


def refused_decorator(node: ast.AST) -> str:
    """Return why a function or class with decorators is refused."""
    found = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    for each in map(ast.unparse, found):
        if each in ("triton.autotune", "triton.heuristics"):
            return f"@{each} isn't graded: leave it out, and pass the kernel's constants in your launcher"
    return "a function under @triton.jit alone, outside of any other, is a kernel"


def check_attribute(node: ast.Attribute, modules: dict[str, str], is_base: bool) -> None:
    written = ast.unparse(node)[:80]
    if node.attr.startswith("_"):
        raise RefusedError(node, f".{node.attr} reaches into the interpreter")
    if not isinstance(node.ctx, ast.Load):
        raise RefusedError(node, f"assigning to {written} would patch what it belongs to")
    module = module_of(node.value, modules)
    if module is None:
        if node.attr not in OF_VALUES:
            raise RefusedError(node, f"{written} isn't available to answers")
    elif node.attr not in MODULES[module]:
        raise RefusedError(node, f"{written} isn't available to answers")
    elif f"{module}.{node.attr}" in MODULES and not is_base:
        raise RefusedError(node, f"{written} is used here on its own: name what you take from it")


def module_parts(node: ast.Attribute, modules: dict[str, str]) -> list[ast.expr]:
    """Return the expressions that name an attribute's module: `torch.nn` and `torch` of `torch.nn.functional`."""
    parts = []
    if module_of(node.value, modules):
        inner = node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner)
            inner = inner.value
        parts.append(inner)
    return parts


def module_of(node: ast.expr, modules: dict[str, str]) -> str | None:
    """Return the module that an expression refers to, if any."""
    match node:
        case ast.Name(id=name):
            return modules.get(name)
        case ast.Attribute(value=value, attr=attr):
            outer = module_of(value, modules)
            return f"{outer}.{attr}" if outer and f"{outer}.{attr}" in MODULES else None
    return None


def imported(node: ast.Import | ast.ImportFrom, kept: set[str]) -> dict[str, str]:
    """Return name -> module for the modules that an import binds."""
    known = ", ".join(sorted(MODULES))
    if isinstance(node, ast.Import):
        found = {}
        for alias in node.names:
            if alias.name not in MODULES:
                raise RefusedError(node, f"importing {alias.name} is not graded: answers may import {known}")
            name, module = (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
            found |= named(name, module, node, kept)
        return found
    module = "." * node.level + (node.module or "")
    if module not in MODULES:
        raise RefusedError(node, f"importing {module} is not graded: answers may import {known}")
    found = {}
    for alias in node.names:
        if alias.name not in MODULES[module]:
            raise RefusedError(node, f"importing {alias.name} from {module} is not graded")
        if (inner := f"{module}.{alias.name}") in MODULES:
            found |= named(alias.asname or alias.name, inner, node, kept)
        elif (alias.asname or alias.name) in USUAL or (alias.asname or "") in kept:
            raise RefusedError(node, f"{alias.asname or alias.name} is a name of the exercise: choose another")
    return found


def named(name: str, module: str, node: ast.AST, kept: set[str]) -> dict[str, str]:
    if USUAL.get(name, module) != module or (name in kept and name not in USUAL):
        raise RefusedError(node, f"{name} is a name of the exercise: choose another")
    return {name: module}


def names_bound(statement: ast.stmt) -> set[str]:
    """Return every name that a statement binds, including nested statements."""
    names = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
    return names


def bound_outside(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """Return the names, with their nodes, that a top-level statement binds or deletes."""
    match node:
        case ast.FunctionDef(name=name):
            head = [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.decorator_list]
            return [(name, node), *(each for part in head for each in bound_outside(part))]
        case ast.Lambda():
            return [each for part in node.args.defaults for each in bound_outside(part)]
        case ast.Import() | ast.ImportFrom():
            return []  # `imported` has looked at it
    found = [(node.id, node)] if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) else []
    return found + [each for child in ast.iter_child_nodes(node) for each in bound_outside(child)]
