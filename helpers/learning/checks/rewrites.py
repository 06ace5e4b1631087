"""Check that a pass finds every place in a graph where the learner's kernel applies, and no other.

An answer gets a traced graph as plain values and names the places. Each place is then tried out: the rewritten graph is
compared with the original in values, dtypes, nodes and metered bytes.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch.fx import Graph, GraphModule, Node
from torch.nn.functional import gelu, silu

from helpers.instruments.tables import Table, table
from helpers.instruments.traffic import measure
from helpers.learning.checks import cases
from helpers.learning.display_text import Unquoted
from helpers.learning.outcome import PASS, AnswerError, as_check, latest
from kernels.interpreter import runtime

KEYS = ("x", "weight", "up", "eps", "result")
NEAR = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@triton.jit
def gated_norm_kernel(x_ptr, up_ptr, weight_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    inside = col < cols
    x = tl.load(x_ptr + start + col, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + start + col, mask=inside, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x) / cols + eps) * weight
    tl.store(y_ptr + start + col, y * tl.sigmoid(y) * up, mask=inside)


def gated_norm(x: torch.Tensor, up: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return silu(rms_norm(x, eps) * weight) * up in one launch, like a right answer's kernel."""
    x, up = x.contiguous(), up.contiguous()
    y, cols = torch.empty_like(x), x.shape[-1]
    block = triton.next_power_of_2(cols)
    gated_norm_kernel[(x.numel() // cols,)](x, up, weight.contiguous(), y, cols, eps, BLOCK=block)
    return y


@dataclass(frozen=True)
class RewriteCase:
    """A function to try a pass on.

    Attributes:
        label: its special feature, for a failure's first line.
        function: of x, weight, up.
        inputs: these three.
        places: the number of places for the fused kernel.
        dynamic: sizes are symbols in its graph.
    """

    label: str
    function: Callable
    inputs: tuple[torch.Tensor, ...]
    places: int
    dynamic: bool = False


def normed(x, weight, eps=1e-6, power=2, axis=-1):
    return x * torch.rsqrt(x.pow(power).mean(axis, keepdim=True) + eps) * weight


def gated(x, weight, up, eps=1e-6):
    return silu(normed(x, weight, eps)) * up


def swapped(x, weight, up):
    return up * silu(weight * (torch.rsqrt(1e-5 + x.pow(2).mean(-1, keepdim=True)) * x))


def two(x, weight, up):
    first = gated(torch.relu(x), weight, up, 1e-5)
    return gated(first, weight, torch.tanh(up), 1e-3)


def in_a_row(x, weight, up):
    """Chain a random number of places, with an eps of many digits."""
    for place in range(cases.between(3, 5, 16)):
        x = gated(torch.relu(x), weight, up, 1.23456789e-3 * (place + 1))
    return x


def up_is_x(x, weight, up):
    return gated(x, weight, x) + up


def up_is_a_silu(x, weight, up):
    return gated(x, weight, silu(up))


def all_computed(x, weight, up):
    """Compute all of the kernel's arguments."""
    return gated(torch.exp(x), torch.cos(weight), torch.sin(up))


def one_x(x, weight, up):
    return gated(x, weight, up), gated(x, weight, torch.tanh(up), 0.5)


def tiny_eps(x, weight, up):
    return silu(normed(x, weight, 1e-12, power=2.0)) * up


def residual(x, weight, up):
    y = gated(x, weight, up)
    return x + y, y * 2, torch.tanh(y)


def keeps_norm(x, weight, up):
    y = normed(x, weight)
    return silu(y) * up, y


def keeps_root(x, weight, up):
    root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return silu(x * root * weight) * up, root


def keeps_squares(x, weight, up):
    squares = x.pow(2)
    return silu(x * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-6) * weight) * up, squares


def keeps_mean(x, weight, up):
    mean = x.pow(2).mean(-1, keepdim=True)
    return silu(x * torch.rsqrt(mean + 1e-6) * weight) * up, mean


def keeps_sum(x, weight, up):
    shifted = x.pow(2).mean(-1, keepdim=True) + 1e-6
    return silu(x * torch.rsqrt(shifted) * weight) * up, shifted


def keeps_scaled(x, weight, up):
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return silu(scaled * weight) * up, scaled


def keeps_silu(x, weight, up):
    act = silu(normed(x, weight))
    return act * up + torch.tanh(act)


def by_itself(x, weight, up):
    act = silu(normed(x, weight))
    return act * act + up


def other_norm(x, weight, up):
    return silu(x * torch.rsqrt(up.pow(2).mean(-1, keepdim=True) + 1e-6) * weight) * up


def by_columns(x, weight, up):
    return silu(normed(x, weight, axis=0)) * up


def cubed(x, weight, up):
    return silu(normed(x.abs(), weight, power=3)) * up


def without_keepdim(x, weight, up):
    return silu(x * torch.rsqrt(x.pow(2).mean(-1) + 1e-6) * weight) * up


def eps_of_a_tensor(x, weight, up):
    return silu(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + up.pow(2).mean(-1, keepdim=True)) * weight) * up


def with_gelu(x, weight, up):
    return gelu(normed(x, weight)) * up


def up_is_a_number(x, weight, up):
    return silu(normed(x, weight)) * 2.0 + up


def weight_is_a_number(x, weight, up):
    return silu(normed(x, 3.0)) * up + weight


def rewrite_cases(seed: int, *, places: bool, rows: int = 6, cols: int = 40) -> list[RewriteCase]:
    """Return functions with places for the kernel, or functions that only look as if they had one.

    Args:
        seed: for the values.
        places: True for those with places.
        rows, cols: of x and up.
    """
    draw = torch.Generator().manual_seed(seed + (cases.draw << 16))

    def inputs(dtype=torch.float32, *, weight=None, up=None, shape=(rows, cols), flat=False, weights=None, ups=None):
        sizes = shape, weights or shape[-1:], ups or (shape[-1:] if flat else shape)
        dtypes = dtype, weight or dtype, up or dtype
        return tuple(
            torch.randn(size, generator=draw, dtype=torch.float32).to(each)
            for size, each in zip(sizes, dtypes, strict=True)
        )

    half, brain, double = torch.float16, torch.bfloat16, torch.float64
    if places:
        return [
            RewriteCase("as it is written", gated, inputs(), 1),
            RewriteCase("factors and sums in the other order", swapped, inputs(), 1),
            RewriteCase("x and the result are read elsewhere too", residual, inputs(), 1),
            RewriteCase("two places, two values of eps", two, inputs(), 2),
            RewriteCase("16 bits", gated, inputs(brain), 1),
            RewriteCase("three dimensions", gated, inputs(half, shape=(2, rows, cols)), 1),
            RewriteCase("sizes are symbols", residual, inputs(), 1, dynamic=True),
            RewriteCase("up is x too", up_is_x, inputs(), 1),
            RewriteCase("up is another silu", up_is_a_silu, inputs(), 1),
            RewriteCase("x, up and weight are computed", all_computed, inputs(), 1),
            RewriteCase("two places with one x", one_x, inputs(), 2),
            RewriteCase("eps 1e-12, and a power of 2.0", tiny_eps, inputs(), 1),
            RewriteCase("four dimensions", gated, inputs(shape=(2, 2, rows, cols)), 1),
            RewriteCase("several places", in_a_row, inputs(), cases.between(3, 5, 16)),
        ]
    return [
        RewriteCase("the norm is read elsewhere", keeps_norm, inputs(), 0),
        RewriteCase("the root is read elsewhere", keeps_root, inputs(), 0),
        RewriteCase("SiLU's result is read elsewhere", keeps_silu, inputs(), 0),
        RewriteCase("the squares are read elsewhere", keeps_squares, inputs(), 0),
        RewriteCase("the mean is read elsewhere", keeps_mean, inputs(), 0),
        RewriteCase("the mean plus eps is read elsewhere", keeps_sum, inputs(), 0),
        RewriteCase("x times the root is read elsewhere", keeps_scaled, inputs(), 0),
        RewriteCase("SiLU's result times itself", by_itself, inputs(), 0),
        RewriteCase("the weight is wider than x", gated, inputs(brain, weight=torch.float32), 0),
        RewriteCase("up is wider than x", gated, inputs(half, up=torch.float32), 0),
        RewriteCase("64 bits", gated, inputs(double), 0),
        RewriteCase("the root is another tensor's", other_norm, inputs(), 0),
        RewriteCase("a mean over columns", by_columns, inputs(), 0),
        RewriteCase("means along the wrong dimension", without_keepdim, inputs(shape=(cols, cols)), 0),
        RewriteCase("eps is a tensor", eps_of_a_tensor, inputs(), 0),
        RewriteCase("a third power", cubed, inputs(), 0),
        RewriteCase("another activation", with_gelu, inputs(), 0),
        RewriteCase("up is one row", gated, inputs(flat=True), 0),
        RewriteCase("up is a matrix of one row", gated, inputs(ups=(1, cols)), 0),
        RewriteCase("a weight for each element", gated, inputs(weights=(rows, cols)), 0),
        RewriteCase("one weight for all elements", gated, inputs(weights=(1,)), 0),
        RewriteCase("up is a number", up_is_a_number, inputs(), 0),
        RewriteCase("the weight is a number", weight_is_a_number, inputs(), 0),
    ]


def traced(function: Callable, *inputs: torch.Tensor, dynamic: bool = False) -> GraphModule:
    """Trace a function of x, weight and up to the ATen operators that a backend gets; if `dynamic`, sizes are
    symbols."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda x, weight, up: function(x, weight, up), tracing_mode="symbolic" if dynamic else "fake")(
        *inputs
    )


def plain_graph(module: GraphModule) -> list[dict]:
    """Return a traced graph's nodes in order, as plain values.

    Each node has a name, an operator `op` ("input" and "output" are two), `args` (a string is another node's name), the
    result's `dtype` and `shape` (a symbol is a string), and `users`, the names of the nodes that read it.
    """
    found = []
    for node in module.graph.nodes:
        result = node.meta.get("val")
        shape = [int(size) if isinstance(size, int) else str(size) for size in getattr(result, "shape", ())]
        kind = {"placeholder": "input", "output": "output"}.get(node.op) or str(node.target).split(".")[1]
        found.append(
            {
                "name": node.name,
                "op": kind,
                "args": []
                if node.op == "placeholder"
                else plain(tensors(node.args[0]) if kind == "output" else node.args),
                "dtype": str(getattr(result, "dtype", "")).removeprefix("torch."),
                "shape": shape,
                "users": [user.name for user in node.users],
            }
        )
    return found


def graph_table(function: Callable, *inputs: torch.Tensor) -> Table:
    """Return the plain graph of a function of x, weight and up as a table with one node per line."""
    columns = ("name", "op", "args", "dtype", "shape", "users")
    graph = plain_graph(traced(function, *inputs))
    return table(columns, [[str(node[column]) for column in columns] for node in graph])


def plain(value: object) -> object:
    """Return a node's argument as a plain value: nodes become names, and None becomes "None"."""
    if isinstance(value, Node):
        return value.name
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, bool | int | float) else str(value)


def rewritten(module: GraphModule, places: Iterable[dict], kernel: Callable = gated_norm) -> GraphModule:
    """Copy a traced graph, with a call of `kernel` at each place and unused nodes removed.

    Args:
        module: from `traced`.
        places: each with the names of x, weight, up and result, and the number eps.
        kernel: called as kernel(x, up, weight, eps).

    Raises:
        KeyError: a name is not in the graph.
    """
    graph = Graph()
    values: dict[Node, Node] = {}
    graph.output(graph.graph_copy(module.graph, values))
    named = {old.name: new for old, new in values.items()}
    for place in places:
        result = named[place["result"]]
        with graph.inserting_after(result):
            arguments = tuple(named[place[key]] for key in ("x", "up", "weight"))
            fused = graph.call_function(kernel, (*arguments, place["eps"]))
        result.replace_all_uses_with(fused)
        named[place["result"]] = fused
    graph.eliminate_dead_code()
    return GraphModule(torch.nn.Module(), graph)


def launches_left(module: GraphModule) -> list[str]:
    """Return the names of a graph's calls."""
    return [node.name for node in module.graph.nodes if node.op == "call_function"]


def in_torch_compile(find_places: Callable, kernel: Callable, function: Callable, *inputs: torch.Tensor) -> Unquoted:
    """Compile a function with torch.compile, using the learner's pass and kernel, and describe the result.

    That's the graph's code, its largest difference from the function's own result, and metered launches and bytes
    before and after. If the checks "values" and "finds" haven't passed in this session, it's one line with that reason.
    """
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    if any(name not in latest or latest[name].state != PASS for name in ("values", "finds")):
        return Unquoted("Once the checks 'values' and 'finds' have passed, run this cell again.")
    graphs, ordered = [], []
    inputs = [each.to("cuda" if runtime.has_gpu() else each.device) for each in inputs]

    def backend(module, _inputs):
        graphs.extend([module, rewritten(module, find_places(plain_graph(module)), kernel)])

        def call(*given):
            ordered[:] = given  # as the graph takes them
            return graphs[1](*given)

        return make_boxed_func(call)

    with torch.no_grad():
        got = torch.compile(function, backend=aot_autograd(fw_compiler=backend))(*inputs)
    apart = max(
        (one - other).abs().max().item() for one, other in zip(tensors(got), tensors(function(*inputs)), strict=True)
    )
    before, after = (measure(graph, *ordered) for graph in graphs)
    lines = [graphs[1].code.strip(), f"largest difference {apart:.1e}", f"before: {before}", f"after:  {after}"]
    return Unquoted("\n".join(lines))


@as_check
def check_rewrites(answer: Callable, questions: Iterable[RewriteCase]) -> str:
    """Ask `answer(graph)` for the places where the fused kernel can be called, and try each."""
    questions = list(questions)
    for case in questions:
        module = traced(case.function, *case.inputs, dynamic=case.dynamic)
        graph = plain_graph(module)
        try:
            got = answer(copy.deepcopy(graph))
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            said = f"your function raises {type(error).__name__}: {error}"
            told(case, said, "the node that it was looking at", graph)
        check_places(case, module, graph, got)
    return f"right on {len(questions)} graphs."


def check_places(case: RewriteCase, module: GraphModule, graph: list[dict], got: object) -> None:
    """Raise AnswerError unless these are exactly the places of the case."""
    if not isinstance(got, list | tuple) or not all(isinstance(each, dict) for each in got):
        raise AnswerError(
            f"{case.label}: got {got!r:.80}; expected a list of dictionaries", "what your function returns"
        )
    names = [node["name"] for node in graph]
    for place in got:
        if set(place) != set(KEYS):
            told(case, f"{place!r:.80} has other keys than {', '.join(KEYS)}", "what your function returns", graph)
        for key in KEYS:
            known = place[key] in names if key != "eps" else isinstance(place[key], int | float)
            if not known:
                kind = "a number" if key == "eps" else "a node of the graph"
                told(case, f"{key} is {place[key]!r:.60}, not {kind}", f"where {key} comes from", graph)
        for key in ("x", "weight", "up"):
            if names.index(place[key]) >= names.index(place["result"]):
                told(case, f"{key} is {place[key]}, which comes after the result", f"where {key} comes from", graph)
        try_place(case, module, graph, place)
    if len({place["result"] for place in got}) != len(got):
        told(case, "two of the places have one result", "that each is found once", graph)
    if len(got) < case.places:
        where = "which condition refuses it"
        told(case, f"{len(got)} found of {case.places} that the kernel can do", where, graph)


def try_place(case: RewriteCase, module: GraphModule, graph: list[dict], place: dict) -> None:
    """Raise AnswerError if the kernel must not be called at a place, with the first reason that applies."""
    nodes = {node["name"]: node for node in graph}
    where = f"at {place['result']}"
    x, weight, up, result = (nodes[place[key]] for key in ("x", "weight", "up", "result"))
    dtypes = {node["dtype"] for node in (x, weight, up)}
    if dtypes != {result["dtype"]} or result["dtype"] not in ("float32", "float16", "bfloat16"):
        of = ", ".join(f"{key} {nodes[place[key]]['dtype']}" for key in ("x", "weight", "up", "result"))
        said = f"{where} dtypes do not fit: {of}; the kernel computes in fp32 and stores x's dtype"
        told(case, said, "the dtypes of x, weight and up", graph)
    if x["shape"] != up["shape"] or weight["shape"] != x["shape"][-1:]:
        of = ", ".join(f"{key} {nodes[place[key]]['shape']}" for key in ("x", "weight", "up"))
        told(case, f"{where} shapes do not fit: {of}", "the shapes of weight and up", graph)
    if {place[key] for key in ("x", "weight", "up")} >= {each for each in result["args"] if isinstance(each, str)}:
        said = f"{where} the kernel would replace {place['result']} alone: up is {place['up']}, and the graph keeps it"
        told(case, said, "where up comes from: it must be computed outside the place", graph)
    left = rewritten(module, [place])
    before, after = launches_left(module), launches_left(left)
    still = [name for name in inside(nodes, place) if name in after]
    if still:
        said = f"{where} {still[0]} is read elsewhere: the graph still computes it, and the kernel does too"
        told(case, said, "which operations read values that the kernel no longer stores", graph)
    wanted, seen = module(*case.inputs), measure(left, *case.inputs)
    for one, other in zip(tensors(seen.result), tensors(wanted), strict=True):
        near = NEAR[other.dtype] * max(1.0, other.abs().max().item())
        if one.dtype != other.dtype or not (one.double() - other.double()).abs().max().item() <= near:
            told(case, f"{where} the graph computes something else", "what each operator is applied to", graph)
    own = {number for name in inside(nodes, place) for number in nodes[name]["args"] if isinstance(number, float)}
    if own and place["eps"] not in own:
        told(case, f"{where} eps is {place['eps']!r}, and the graph has {max(own)!r}", "where eps comes from", graph)
    if seen.bytes_total >= measure(module, *case.inputs).bytes_total or len(after) >= len(before):
        told(case, f"{where} the rewritten graph moves no fewer bytes", "what the kernel replaces", graph)


def inside(nodes: dict[str, dict], place: dict) -> list[str]:
    """Return the names of the nodes between the kernel's arguments and its result."""
    known, found = {place[key] for key in ("x", "weight", "up")}, []
    left = [place["result"]]
    while left:
        for name in nodes[left.pop()]["args"]:
            if isinstance(name, str) and name in nodes and name not in known and nodes[name]["op"] != "input":
                known.add(name)
                found.append(name)
                left.append(name)
    return found


def tensors(result: object) -> list:
    """Return one or several results as a list."""
    return list(result) if isinstance(result, list | tuple) else [result]


def told(case: RewriteCase, what: str, look_at: str, graph: list[dict]) -> None:
    """Raise AnswerError with the graph that it's about."""
    raise AnswerError("\n".join([f"{case.label}: {what}", *map(line_of, graph)]), look_at)


def line_of(node: dict) -> str:
    """Describe a node in one line: "mul_1 = mul(mul, weight_1): float32 [6, 40], read by silu"."""
    args = ", ".join(str(each) for each in node["args"])
    readers = f", read by {', '.join(node['users'])}" if node["users"] else ""
    if node["op"] == "output":
        return f"output({args})"
    return f"{node['name']} = {node['op']}({args}): {node['dtype']} {node['shape']}{readers}"
