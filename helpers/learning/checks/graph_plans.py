"""Check that an answer plans one token's launches as CUDA graphs that later tokens can replay.

A step is {"launches": [...], "tensors": {...}}. A launch is {"name", "reads", "makes", "waits"}: `reads` and `makes`
map each tensor to its number of elements, and `waits` is true if the CPU reads a value before it launches. `tensors`
has the kind of every input that no launch produces: "fixed" stays at its address, "new" is a different tensor for each
token, and "number" is a Python number. An answer returns {"graphs": lists of names, "copied": names, "launches": a
number, "bytes": a number}.

A graph remembers addresses and numbers. So does the replay here, which needs no GPU: a `MemorySlot` stands for an
address. On a GPU, torch.cuda.CUDAGraph also captures the same plan.
"""

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch.nn.functional import silu

from helpers.instruments.timing import benchmark_together
from helpers.instruments.traffic import measure
from helpers.learning.checks import cases
from helpers.learning.display_text import Unquoted
from helpers.learning.outcome import PASS, AnswerError, as_check, latest
from kernels.interpreter import runtime

ITEMSIZE = 4
EPS = 1e-6
TOKENS = 3  # the first is captured
KEYS = ("graphs", "copied", "launches", "bytes")
NEAR = 1e-4


@triton.jit
def gated_norm_kernel(x_ptr, residual_ptr, gate_ptr, weight_ptr, y_ptr, sum_ptr, cols, eps, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    inside = col < cols
    s = tl.load(x_ptr + col, mask=inside, other=0.0) + tl.load(residual_ptr + col, mask=inside, other=0.0)
    tl.store(sum_ptr + col, s, mask=inside)
    normed = s * tl.rsqrt(tl.sum(s * s, axis=0) / cols + eps) * tl.load(weight_ptr + col, mask=inside, other=0.0)
    gate = tl.load(gate_ptr + col, mask=inside, other=0.0)
    tl.store(y_ptr + col, normed * (gate * tl.sigmoid(gate)), mask=inside)


def gated_norm(x, residual, gate, weight, eps):
    """Return what the kernel of exercise 18 computes for one row."""
    y, s = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[-1])
    gated_norm_kernel[(1,)](x, residual, gate, weight, y, s, x.shape[-1], eps, BLOCK=block)
    return y, s


def chosen(flag: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return a sum or a difference: the CPU decides after reading the flag."""
    return one + other if flag.item() > 0 else one - other


def product(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x[None], weight.view(-1, len(x)).t())[0]


def launch(name: str, call: Callable, reads: dict[str, int], makes: dict[str, int], waits: bool = False) -> dict:
    return {"name": name, "reads": reads, "makes": makes, "waits": waits, "call": call}


def a_step(width: int, hidden: int, first: bool, middle: bool, tempered: bool, kept: bool, gated=gated_norm) -> dict:
    """Return the feed-forward half of a decoder layer for one token.

    Args:
        first, middle: whether the CPU reads a value before the first launch, and before the head.
        tempered: whether a result is divided by a number that differs from token to token.
        kept: whether the caller keeps the residual at one address.
        gated: the fused kernel's launcher.
    """
    tensors = {"x": "new", "residual": "fixed" if kept else "new", "gate": "new"}
    tensors |= {"norm_weight": "fixed", "up_weight": "fixed", "down_weight": "fixed"}
    found, x, inner = [], "x", "inner"
    if first:
        tensors |= {"flag": "new", "shift": "new"}
        found.append(launch("moved", chosen, {"flag": 1, "x": width, "shift": width}, {"start": width}, True))
        x = "start"
    given = {x: width, "residual": width, "gate": width, "norm_weight": width}
    found.append(launch("gated", lambda *each: gated(*each, EPS), given, {"y": width, "s": width}))
    found.append(launch("up", product, {"up_weight": hidden * width, "y": width}, {"inner": hidden}))
    if tempered:
        tensors["temperature"] = "number"
        found.append(launch("tempered", torch.div, {"inner": hidden, "temperature": 1}, {"cooled": hidden}))
        inner = "cooled"
    found.append(launch("active", silu, {inner: hidden}, {"opened": hidden}))
    found.append(launch("down", product, {"down_weight": hidden * width, "opened": hidden}, {"back": width}))
    found.append(launch("out", torch.add, {"back": width, "s": width}, {"after": width}))
    if middle:
        tensors |= {"bias": "new", "head_weight": "fixed"}
        found.append(launch("largest", torch.amax, {"after": width}, {"best": 1}))
        found.append(launch("picked", chosen, {"best": 1, "after": width, "bias": width}, {"next": width}, True))
        found.append(launch("opened_again", torch.mul, {"next": width, "gate": width}, {"let": width}))
        found.append(launch("head", product, {"head_weight": hidden * width, "let": width}, {"logits": hidden}))
    return {"launches": found, "tensors": tensors}


def a_broken_up_step(width: int) -> dict:
    """Return a step with two launches in a row that wait, one launch between waiting ones, and a last one that waits.

    Two launches read the same number, one reads a new tensor of one element, and a fixed tensor is read inside and
    outside of the graphs.
    """
    tensors = {"x": "new", "shift": "fixed", "temperature": "number", "flag": "new", "factor": "new"}
    kept = {"flag": 1, "shift": width}
    found = [
        launch("cooled", torch.div, {"x": width, "temperature": 1}, {"first": width}),
        launch("cooled_too", torch.div, {"shift": width, "temperature": 1}, {"second": width}),
        launch("chosen", chosen, {"flag": 1, "first": width, "second": width}, {"third": width}, True),
        launch("chosen_again", chosen, kept | {"third": width}, {"fourth": width}, True),
        launch("scaled", torch.mul, {"fourth": width, "factor": 1}, {"fifth": width}),
        launch("chosen_last", chosen, kept | {"fifth": width}, {"sixth": width}, True),
    ]
    return {"launches": found, "tensors": tensors}


def a_long_step(width: int, parts: int, length: int) -> dict:
    """Return a step of `parts` parts of `length` launches; the CPU reads a value before each part but the first."""
    found, last = [], "x"
    for part in range(parts):
        if part:
            read = {"flag": 1, last: width, "shift": width}
            found.append(launch(f"chosen_{part}", chosen, read, {f"start_{part}": width}, True))
            last = f"start_{part}"
        for place in range(length):
            name = f"step_{part}_{place}"
            found.append(launch(name, torch.tanh, {last: width}, {f"{name}_result": width}))
            last = f"{name}_result"
        # Each graph reads a tensor that no graph produces.
        found.append(
            launch(f"scaled_{part}", torch.mul, {last: width, "gain": width}, {f"scaled_{part}_result": width})
        )
        last = f"scaled_{part}_result"
    return {"launches": found, "tensors": {"x": "new", "flag": "new", "shift": "new", "gain": "new"}}


def steps_asked(seed: int, count: int) -> list[dict]:
    """Return the plainest step, one with each part, one with all of them, some drawn at random, one whose launches
    often wait, and a long one."""
    draw = random.Random(seed + (cases.draw << 16))
    parts = [tuple(place == part for place in range(4)) for part in (None, 0, 1, 2, 3)]
    parts += [(True,) * 4] + [tuple(draw.random() < 0.5 for _ in range(4)) for _ in range(count)]
    found = [a_step(draw.choice((8, 24, 40)), draw.choice((16, 48, 72)), *each) for each in parts]
    found.append(a_broken_up_step(draw.choice((8, 24, 40))))
    return [*found, a_long_step(draw.choice((8, 24, 40)), draw.randint(4, 5), draw.randint(18, 40))]


def shown(step: dict) -> tuple[list[dict], dict[str, str]]:
    """Return the part of a step that an answer sees."""
    launches = [{key: value for key, value in each.items() if key != "call"} for each in step["launches"]]
    return copy.deepcopy(launches), dict(step["tensors"])


def tokens_of(step: dict, count: int) -> list[dict]:
    """Return the tensors and numbers of each token; the weights are the same for all."""
    draw, sizes = torch.Generator().manual_seed(cases.draw), {}
    device = "cuda" if runtime.has_gpu() else "cpu"
    for each in step["launches"]:
        sizes |= {name: length for name, length in each["reads"].items() if name in step["tensors"]}

    def value(name: str):
        length = sizes[name]
        if step["tensors"][name] == "number":
            return 0.5 + torch.rand((), generator=draw).item()
        scale = (length / 10) ** -0.5 if name.endswith("_weight") else 1.0
        return (scale * torch.randn(length, generator=draw)).to(device)

    weights = {name: value(name) for name in sizes if name.endswith("_weight")}
    return [weights | {name: value(name) for name in sizes if name not in weights} for _ in range(count)]


@dataclass
class MemorySlot:
    """An address, represented by the value it currently holds, or a number."""

    value: torch.Tensor | float


def results_of(one: dict, places: dict[str, MemorySlot]) -> dict[str, torch.Tensor]:
    found = one["call"](*(places[name].value for name in one["reads"]))
    return dict(zip(one["makes"], found if isinstance(found, tuple) else (found,), strict=True))


def in_eager(step: dict, given: dict) -> dict[str, torch.Tensor]:
    """Compute all results of a token launch by launch."""
    places, found = {name: MemorySlot(value) for name, value in given.items()}, {}
    for one in step["launches"]:
        made = results_of(one, places)
        found |= made
        places |= {name: MemorySlot(value) for name, value in made.items()}
    return found


class Graph:
    """Launches that read and write the same addresses at each replay; with `capture`, a torch.cuda.CUDAGraph."""

    def __init__(self, launches: list[dict], places: dict[str, MemorySlot], capture: bool):
        self.launches, self.places = launches, dict(places)
        self.made: dict[str, MemorySlot] = {}
        self.replay = self._run
        if capture:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._run()  # compiles kernels, sets up libraries
            torch.cuda.current_stream().wait_stream(side)
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                self._run()
            self.replay = captured.replay

    def _run(self) -> None:
        for one in self.launches:
            for name, value in results_of(one, self.places | self.made).items():
                self.made.setdefault(name, MemorySlot(value)).value = value


class Planned:
    """A step that runs one token after another according to a plan."""

    def __init__(self, step: dict, plan: dict, capture: bool = False):
        self.step, self.copied, self.capture = step, plan["copied"], capture
        known = {each["name"]: each for each in step["launches"]}
        self.groups = {group[0]: [known[name] for name in group] for group in plan["graphs"]}
        self.inside = {name for group in plan["graphs"] for name in group}
        self.fixed: dict[str, MemorySlot] = {}
        self.buffers: dict[str, MemorySlot] = {}
        self.graphs: dict[str, Graph] = {}
        self.places: dict[str, MemorySlot] = {}

    def receive(self, given: dict) -> None:
        """Take over a token's tensors; fixed ones stay at their address."""
        self.places = {name: MemorySlot(value) for name, value in given.items()}
        for name, kind in self.step["tensors"].items():
            if kind == "fixed":
                if name in self.fixed:
                    self.fixed[name].value.copy_(given[name])
                else:
                    self.fixed[name] = MemorySlot(given[name].clone())
        self.places |= self.fixed

    def run(self) -> dict[str, torch.Tensor]:
        """Copy, launch and replay; return all results."""
        made, fresh = {}, set()
        for one in self.step["launches"]:
            name = one["name"]
            if name in self.groups:
                self._copy(self.groups[name], fresh)
                if name not in self.graphs:
                    self.graphs[name] = Graph(self.groups[name], self.places | self.buffers, self.capture)
                self.graphs[name].replay()
                made |= self.graphs[name].made
            elif name not in self.inside:
                made |= {each: MemorySlot(value) for each, value in results_of(one, self.places).items()}
            self.places |= made
        return {name: place.value for name, place in made.items()}

    def _copy(self, group: list[dict], fresh: set[str]) -> None:
        """Copy these launches' inputs into buffers, unless an earlier graph of this token has already done it."""
        for name in (name for one in group for name in one["reads"]):
            if name not in self.copied or name not in self.places or name in fresh:
                continue
            fresh.add(name)
            value = self.places[name].value
            if name not in self.buffers:
                like = value if isinstance(value, torch.Tensor) else self.places["x"].value[:1]
                self.buffers[name] = MemorySlot(torch.empty_like(like))
            if isinstance(value, torch.Tensor):
                self.buffers[name].value.copy_(value)
            else:
                self.buffers[name].value.fill_(value)


def best_plan(step: dict) -> dict:
    """Return the minimum number of graphs that hold every launch that can be captured, and the copies they need."""
    graphs, copied, inside, nbytes, is_open = [], [], set(), 0, False
    for one in step["launches"]:
        nbytes += ITEMSIZE * (sum(one["reads"].values()) + sum(one["makes"].values()))
        if one["waits"]:
            is_open = False
            continue
        if not is_open:
            graphs.append([])
            is_open = True
        graphs[-1].append(one["name"])
        for name, length in one["reads"].items():
            kind = step["tensors"].get(name)
            if kind != "fixed" and name not in inside and name not in copied:
                copied.append(name)
                nbytes += ITEMSIZE * (1 if kind == "number" else 2 * length)
        inside |= set(one["makes"])
    return {"graphs": graphs, "copied": copied, "launches": len(step["launches"]) + len(copied), "bytes": nbytes}


@as_check
def check_graph_plan(answer: Callable, steps: Iterable[dict]) -> str:
    """Ask `answer(launches, tensors)` for a plan, run three tokens with it, and meter the last one.

    Args:
        answer: the learner's function.
        steps: the simplest first.
        name: the check's name.
    """
    steps = list(steps)
    for step in steps:
        plan = answer(*shown(step))
        require_plan(plan, step, answer.__name__)
        try_plan(plan, step, answer.__name__)
    return f"later tokens match eager, with the predicted launches and bytes, on {len(steps)} steps."


def try_plan(plan: dict, step: dict, function: str) -> None:
    """Raise AnswerError unless later tokens match eager mode, with the launches and bytes of the budget."""
    planned, given = Planned(step, plan), tokens_of(step, TOKENS)
    replayed_as_eager(planned, step, given[:-1], function)
    planned.receive(given[-1])
    metered = measure(planned.run)
    seen = metered.launches, metered.bytes_total
    compared(metered.result, in_eager(step, given[-1]), plan, step, TOKENS, function)
    best = best_plan(step)
    if len(plan["graphs"]) != len(best["graphs"]) or outside(plan, step) != outside(best, step):
        raise AnswerError(
            f"{function}: {len(plan['graphs'])} graphs and {len(outside(plan, step))} launches from Python; "
            f"{len(best['graphs'])} and {len(outside(best, step))} are enough",
            "which launches a graph can hold: all unless the CPU has to read a value first",
        )
    for name in (name for name in plan["copied"] if name not in moving(plan, step)):
        why = "its address stays the same" if name in read_by_graphs(plan, step) else "no graph reads it"
        raise AnswerError(
            f"{function} copies {name}, but {why}: {seen[0]} launches, {seen[1]} bytes; the budget is "
            f"{best['launches']} launches, {best['bytes']} bytes",
            "what has to be copied before a replay",
        )
    if (plan["launches"], plan["bytes"]) != seen:
        raise AnswerError(
            f"{function} predicts {plan['launches']} launches, {plan['bytes']} bytes per token; the meter counts "
            f"{seen[0]} launches, {seen[1]} bytes",
            "launches: each in the list, and each copy; bytes: what all of these read and make",
        )
    if runtime.has_gpu():
        replayed_as_eager(Planned(step, plan, capture=True), step, given, function)


def replayed_as_eager(planned: Planned, step: dict, tokens: list[dict], function: str) -> None:
    for number, given in enumerate(tokens, 1):
        planned.receive(given)
        plan = {"copied": planned.copied, "graphs": [[one["name"] for one in each] for each in planned.groups.values()]}
        compared(planned.run(), in_eager(step, given), plan, step, number, function)


def compared(got: dict, wanted: dict, plan: dict, step: dict, token: int, function: str) -> None:
    """Raise AnswerError at the first result that differs from eager mode, and name the stale value in the graph."""
    for name, value in wanted.items():
        if not torch.allclose(got[name], value, rtol=NEAR, atol=NEAR):
            held = next((each for each in moving(plan, step) if each not in plan["copied"]), None)
            kind = {"number": "a number", "new": "new for each token"}.get(step["tensors"].get(held), "made outside")
            why = f"the graph still has the {held} of token 1, and {held} is {kind}" if held else "a replay differs"
            raise AnswerError(
                f"{function}: in token {token}, {name} is not what eager gives: {why}",
                "what has to be copied before a replay",
            )


def moving(plan: dict, step: dict) -> list[str]:
    """Return the names that the graphs read and that have another address or number for each token."""
    known = {one["name"]: one for one in step["launches"]}
    made = {name for group in plan["graphs"] for each in group for name in known[each]["makes"]}
    fixed = {name for name, kind in step["tensors"].items() if kind == "fixed"}
    return [name for name in read_by_graphs(plan, step) if name not in made | fixed]


def read_by_graphs(plan: dict, step: dict) -> list[str]:
    """Return, in order, the names that launches in graphs read."""
    inside = {name for group in plan["graphs"] for name in group}
    return [name for one in step["launches"] if one["name"] in inside for name in one["reads"]]


def outside(plan: dict, step: dict) -> list[str]:
    inside = {name for group in plan["graphs"] for name in group}
    return [one["name"] for one in step["launches"] if one["name"] not in inside]


def require_plan(plan: object, step: dict, function: str) -> None:
    """Raise AnswerError unless this is a plan for the step, with graphs that can be captured."""
    if not isinstance(plan, dict) or set(plan) != set(KEYS):
        keys = ", ".join(KEYS)
        raise AnswerError(f"{function} gives {plan!r:.80}, not a dictionary with {keys}", "what your function returns")
    graphs, copied = plan["graphs"], plan["copied"]
    listed = isinstance(graphs, list | tuple) and all(isinstance(group, list | tuple) and group for group in graphs)
    names = [*copied] if isinstance(copied, list | tuple | set) else [None]
    names += [name for group in graphs for name in group] if listed else [None]
    if not all(isinstance(name, str) for name in names):
        raise AnswerError(
            f"{function}: graphs must be a list of lists of names, and copied a list of names", "what it returns"
        )
    for key in ("launches", "bytes"):
        if not isinstance(plan[key], int) or isinstance(plan[key], bool):
            raise AnswerError(f"{function}: {key} is {plan[key]!r:.40}, not a whole number", "what it returns")
    order = [one["name"] for one in step["launches"]]
    known = {one["name"]: one for one in step["launches"]}
    everything = set(step["tensors"]).union(*(one["makes"] for one in step["launches"]))
    counted = Counter(name for group in graphs for name in group)
    for name, times in counted.items():
        if name not in known or times > 1:
            said = "isn't a launch of this step" if name not in known else f"is in graphs {times} times"
            raise AnswerError(f"{function}: {name} {said}", "the graphs")
    for name in copied:
        if name not in everything:
            raise AnswerError(f"{function}: {name}, which is copied, isn't a tensor of this step", "copied")
    for group in graphs:
        start = order.index(group[0])
        if [*group] != order[start : start + len(group)]:
            raise AnswerError(
                f"{function} has the graph {' '.join(group)}, which doesn't run one after the other in the step: "
                f"{' '.join(order)}",
                "the order of the launches, and the launches between them",
            )
        if waiting := [name for name in group if known[name]["waits"]]:
            raise AnswerError(
                f"{function} has {waiting[0]} in a graph, but the CPU reads a value before it launches {waiting[0]}: "
                "a capture can't wait for the GPU",
                "the launches that wait",
            )


def in_a_graph(answer: Callable, kernel: Callable) -> Unquoted:
    """Run a step with the learner's kernel and the learner's plan; on a GPU, with torch.cuda.CUDAGraph, and time it."""
    if any(name not in latest or latest[name].state != PASS for name in ("values", "graph")):
        return Unquoted("Once the checks 'values' and 'graph' have passed, run this cell again.")
    on_gpu = runtime.has_gpu()
    sizes = (1024, 3072) if on_gpu else (64, 96)
    step = a_step(*sizes, False, True, True, False, gated=kernel)
    try:
        plan = answer(*shown(step))
        require_plan(plan, step, answer.__name__)
        planned, given = Planned(step, plan, capture=on_gpu), tokens_of(step, TOKENS)
        replayed_as_eager(planned, step, given, answer.__name__)
    except AnswerError as error:  # the answer has changed since it passed
        return Unquoted(f"{error}. Run the check 'graph' again.")
    calls = len(plan["graphs"]) + len(plan["copied"]) + len(outside(plan, step))
    lines = [f"{len(step['launches'])} calls from Python without graphs, {calls} with {len(plan['graphs'])}"]
    if on_gpu:
        planned.receive(given[0])
        times = benchmark_together(
            {"launched": lambda: in_eager(step, given[0]), "graphs": planned.run}, runs=20, launches=True
        )
        lines.append(f"captured by torch.cuda.CUDAGraph: {TOKENS} tokens as eager gives them; {times}")
    else:
        lines.append(f"No GPU here: nothing was captured. {TOKENS} tokens, replayed without one, are as eager's.")
    return Unquoted("\n".join(lines))
