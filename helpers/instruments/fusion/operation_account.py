"""Account for each operation of a traced graph: the bytes it moves and the operations it waits for.

The graph is dry-run node by node under the traffic meter's rules (dry_run.py), so launches and bytes match the meter's.
Dependencies are tracked as byte ranges of storages, so views and in-place writes need no special rules.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from helpers.instruments.dry_run import DryRun, EagerLaunch, TritonLaunch, dry_run_scope
from helpers.instruments.fusion.plan import source_name
from helpers.instruments.traffic.eager_meter import ALLOCATES, FREE, arguments_of, read_and_changed, tensors_of
from helpers.instruments.traffic.footprint import Footprint
from helpers.instruments.traffic.ledger import footprint_of

# Results that cost nothing: uninitialised memory, another name for a tensor, a program constant.
_NOTHING = ALLOCATES | FREE | frozenset("empty_like new_empty new_empty_strided detach alias lift_fresh_copy".split())


@dataclass(frozen=True, eq=False)
class TensorAccess:
    """A tensor as an operation reads or writes it. `storage` identifies the memory; `name`: the argument's."""

    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    footprint: Footprint
    name: str = ""
    nbytes: int = 0  # bytes moved: for an indexed tensor, those of the requested rows

    @property
    def points(self) -> int:
        """Number of elements, counting an expanded element each time it occurs."""
        return math.prod(self.shape)


@dataclass(eq=False)
class TracedStep:
    """One node of the graph. `reads`, `writes`: memory accesses; `launches`: from the dry run; `waits`: step -> Wait.

    kept: the writes that outlive the graph: results, and new values of the caller's own tensors. A step without
        launches computes something without a known kernel.
    """

    index: int
    node: Node
    given: dict
    reads: list[TensorAccess] = field(default_factory=list)
    writes: list[TensorAccess] = field(default_factory=list)
    results: list[TensorAccess] = field(default_factory=list)
    launches: list[EagerLaunch | TritonLaunch] = field(default_factory=list)
    waits: dict[int, "Wait"] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(eq=False)
class Wait:
    """Why a step follows another: pairs of the other's write and its own read; empty if it only overwrites."""

    tensors: list[tuple[TensorAccess, TensorAccess]] = field(default_factory=list)


def account(graph: GraphModule, tensors: list[torch.Tensor], multiprocessors: int, progress=None) -> list[TracedStep]:
    """Return the steps of the graph without views, which only set the shape of reads through them.

    Raises:
        ValueError: the shape of an operator's result depends on data.
    """
    with dry_run_scope(multiprocessors) as stage, torch.no_grad():
        walk = _Walk(graph, stage, progress)
        walk.run(*[tensor.requires_grad_(False) for tensor in stage.without_data_together(tensors)])
    _wait(walk)
    return walk.steps


class _Walk(Interpreter):
    def __init__(self, graph: GraphModule, stage: DryRun, progress):
        super().__init__(graph)
        self.extra_traceback = False
        self._stage, self._progress = stage, progress or (lambda done, of: None)
        self._nodes = len(graph.graph.nodes)
        self.steps: list[TracedStep] = []
        self.given: set[int] = set()  # the caller's storages
        self._numbers: set[int] = set()  # storages of scalars that stay on the CPU
        self.results: list[TensorAccess] = []

    def access(self, tensor: torch.Tensor, name: str = "") -> TensorAccess | None:
        footprint = footprint_of(tensor)
        if footprint is None:
            return None
        where = id(self._stage.ledger.storage(tensor))
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return TensorAccess(where, shape, strides, tensor.storage_offset(), tensor.dtype, footprint, name)

    def run_node(self, node: Node):
        try:
            return self._run_node(node)
        except Exception as error:
            file, number = node.meta.get("line") or ("", 0)
            where = f" of {source_name(file)}:{number}" if file else ""
            reason = " ".join(str(error).split())[:160]
            raise ValueError(f"{node.target}{where} cannot be rehearsed: {reason}") from error

    def _run_node(self, node: Node):
        launches = self._stage.launches
        before = len(launches)
        if node.op == "get_attr":
            return self._stage.without_data(super().run_node(node))
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            result = super().run_node(node)
            if node.op == "placeholder":
                storages = {id(self._stage.ledger.storage(each)) for each in tensors_of(result)}
                self.given |= storages
                self._numbers |= storages if node.meta.get("host") else set()
            if node.op == "output":
                self.results = [
                    found
                    for each in tree_leaves(result)
                    if isinstance(each, torch.Tensor) and (found := self.access(each))
                ]
            return result
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        if node.target is torch.ops.aten.lift_fresh_copy.default:  # a program constant, which eager PyTorch only wraps
            return torch.ops.aten.lift_fresh.default(*args)
        given = arguments_of(node.target, args, kwargs)
        read, changed = read_and_changed(node.target, given, whole=True)
        if self._is_on_the_host(given):
            return self._run_on_the_host(node.target, args, kwargs)
        step = TracedStep(len(self.steps), node, given)
        step.reads = [found for tensor, name, _ in read if (found := self.access(tensor, name))]
        step.writes = [found for tensor, name, _ in changed if (found := self.access(tensor, name))]
        result = self._stage.run(node.target, args, kwargs)
        step.launches = launches[before:]
        known = {each.storage for each in (*step.reads, *step.writes)}
        made = [found for each in tensors_of(result) if (found := self.access(each)) and found.storage not in known]
        step.writes += made
        step.results = [found for each in tensors_of(result) if (found := self.access(each))]
        if not step.writes and node.target.namespace not in ("aten", "as_on_a_gpu", "prims"):
            step.launches = []  # what a custom operator without results does is unknown
            self.steps.append(step)
        elif step.launches:
            _weigh(step)
            if step.writes:  # otherwise its results are empty, and a GPU launches nothing
                self.steps.append(step)
        elif made and node.target.overloadpacket.__name__ not in _NOTHING and not node.target.is_view:
            self.steps.append(step)
        self._progress(len(self.steps), self._nodes)
        return result

    def _is_on_the_host(self, given: dict) -> bool:
        """Return whether an operator only works on constants and scalars that stay on the CPU."""
        storages = [self._stage.ledger.storage(each) for value in given.values() for each in tensors_of(value)]
        known = [id(each) in self._numbers for each in storages]
        return any(known) and all(mine or each.free for mine, each in zip(known, storages, strict=True))

    def _run_on_the_host(self, operator, args, kwargs):
        launches, ledger = self._stage.launches, self._stage.ledger
        before = len(launches), len(ledger.launches)
        result = self._stage.run(operator, args, kwargs)
        del launches[before[0] :], ledger.launches[before[1] :]
        self._numbers |= {id(ledger.storage(each)) for each in tensors_of(result)}
        return result


def _weigh(step: TracedStep) -> None:
    """Take the bytes of each access from the launches, and drop accesses that none of them makes."""
    read, written = {}, {}
    for launch in step.launches:
        for storage, operand in launch.operands.items():
            read[storage] = read.get(storage, 0) + operand.read
            written[storage] = written.get(storage, 0) + operand.written
    for accesses, moved in ((step.reads, read), (step.writes, written)):
        accesses[:] = [
            replace(each, nbytes=min(each.footprint.nbytes, int(moved[each.storage])))
            for each in accesses
            if moved.get(each.storage)
        ]


def _wait(walk: _Walk) -> None:
    """Find, per storage, the steps whose bytes a step reads and those that it must follow."""
    written: dict[int, list[tuple[TracedStep, TensorAccess]]] = {}  # per storage: its contents, by writer
    read: dict[int, list[tuple[TracedStep, TensorAccess]]] = {}  # its readers
    for step in walk.steps:
        for mine in step.reads:
            for other, theirs in written.get(mine.storage, ()):
                if _meet(mine, theirs):
                    step.waits.setdefault(other.index, Wait()).tensors.append((theirs, mine))
        for mine in step.writes:
            before = (*written.get(mine.storage, ()), *read.get(mine.storage, ()))
            for other, theirs in before:
                if other is not step and _meet(mine, theirs):
                    step.waits.setdefault(other.index, Wait())
            left = [each for each in written.get(mine.storage, ()) if not _covers(mine, each[1])]
            written[mine.storage] = [*left, (step, mine)]
            read[mine.storage] = [each for each in read.get(mine.storage, ()) if not _covers(mine, each[1])]
        for mine in step.reads:
            read.setdefault(mine.storage, []).append((step, mine))
    for storage, writers in written.items():
        for step, mine in writers:
            if storage in walk.given or any(
                result.storage == storage and _meet(mine, result) for result in walk.results
            ):
                step.kept.add(storage)


def _meet(one: TensorAccess, other: TensorAccess) -> bool:
    """Return whether two accesses may share a byte because their ranges overlap."""
    return one.footprint.low < other.footprint.high and other.footprint.low < one.footprint.high


def _covers(one: TensorAccess, other: TensorAccess) -> bool:
    if one.footprint == other.footprint:
        return True
    whole, part = one.footprint, other.footprint
    return not whole.dims and whole.low <= part.low and part.high <= whole.high
