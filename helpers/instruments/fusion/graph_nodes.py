"""The graph that the search partitions: operations that launch, and the tensors that link them.

An operation that is cheaper to recompute than to read back is not a node of its own: each of its readers recomputes it.
"""

import math
from dataclasses import dataclass, field

from helpers.instruments.fusion.operation_account import TensorAccess, TracedStep
from helpers.instruments.fusion.operator_kinds import (
    Arithmetic,
    Space,
    arithmetic_of,
    base_name,
    extents_of,
    is_random,
    keeps_order,
    kind_of,
    points_of,
    space_of,
)

POINTWISE = ("elementwise", "broadcast")
PRODUCTS = ("matmul", "convolution")
ELSEWHERE = (*PRODUCTS, "attention", "gather", "scatter")  # kinds that read elements other than their own
SHIFTS = frozenset("roll flip rot90".split())
UNROLLED = 8  # elements that one thread reduces; Inductor's unroll_reductions_threshold
INLINED_READS = 4  # Inductor's realize_reads_threshold: the result of an operation with more reads is stored


@dataclass(frozen=True, eq=False)
class Link:
    """A tensor that one node passes to another, possibly through recomputed operations.

    argument: the reader's name for it. permuted: read in a different order than written. part: only some of its
        elements are read. expanded: elements are read more than once.
    """

    source: int
    target: int
    storage: int
    argument: str
    nbytes: int
    permuted: bool
    part: bool
    expanded: bool


@dataclass(frozen=True, eq=False)
class Read:
    """A node's read from memory: its tensor has no producer node, or one in another kernel.

    key: identifies the bytes by storage, footprint and writer. missing: the part of nbytes not in L2.
    """

    key: tuple
    nbytes: int
    missing: float
    points: int
    sources: tuple[int, ...]


@dataclass(eq=False)
class FusionNode:
    """An operation, and the operations recomputed with it."""

    index: int
    step: TracedStep
    kind: str
    space: Space
    points: int
    arithmetic: Arithmetic
    random: bool
    itemsize: int
    name: str
    extents: dict[int, str]
    inlined: list[TracedStep] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)  # to others
    kept: bool = False
    before: int = 0  # bits of the nodes that it directly waits for
    aligned: dict[int, bool] = field(default_factory=dict)  # node that it overwrites -> whether element by element


def nodes_of(
    steps: list[TracedStep], missing: dict[tuple[int, int], float]
) -> tuple[list[FusionNode], list[TracedStep]]:
    """Return the nodes in the graph's order, and the steps that their readers recompute."""
    kinds = [kind_of(step) for step in steps]
    readers: dict[int, set[int]] = {}
    for step in steps:
        for other, wait in step.waits.items():
            if wait.tensors:
                readers.setdefault(other, set()).add(step.index)
    inlined = _inlined(steps, kinds, readers)
    gone = {step.index for step in inlined}
    nodes, place = [], {}
    for step in steps:
        if step.index in gone:
            continue
        kind, space = kinds[step.index], space_of(step, kinds[step.index])
        points = points_of(step, kind)
        if kind == "reduction" and math.prod(size for size, reduced in space if reduced) <= UNROLLED:
            kind, space, points = "broadcast", (), step.writes[0].points
        place[step.index] = len(nodes)
        nodes.append(
            FusionNode(
                index=len(nodes),
                step=step,
                kind=kind,
                space=space,
                points=points,
                arithmetic=arithmetic_of(step, kinds[step.index]),
                random=is_random(step),
                itemsize=max((each.dtype.itemsize for each in (*step.reads, *step.writes)), default=1),
                name=base_name(step),
                extents=extents_of(step, kind) if step.writes else {},
                kept=bool(step.kept),
            )
        )
    for node in nodes:
        _connect(node, node.step, steps, gone, place, nodes, missing, None)
    return nodes, inlined


def _inlined(steps: list[TracedStep], kinds: list[str], readers: dict[int, set[int]]) -> list[TracedStep]:
    """Return the operations whose readers all recompute them, because that moves no more bytes than storing the result.

    With n kernels that need a result, either all read its inputs, or one writes it and n - 1 read it.
    """
    overwritten = {other for step in steps for other, wait in step.waits.items() if not wait.tensors}
    gone: set[int] = set()
    made_of: dict[int, dict[tuple, int]] = {}  # elementwise step -> bytes that it ultimately reads
    for step in steps:
        kind, read = kinds[step.index], {}
        if kind not in POINTWISE or is_random(step) or step.index in overwritten or len(step.writes) != 1:
            continue
        if step.kept or any(each.storage == step.writes[0].storage for each in step.reads):
            continue
        sources = {id(mine): other for other, wait in step.waits.items() for _, mine in wait.tensors}
        for each in step.reads:
            source = sources.get(id(each))
            alone = source in made_of and (source in gone or readers[source] == {step.index})
            read |= made_of[source] if alone else {(each.storage, each.footprint): each.nbytes}
        made_of[step.index] = read
        needed = len(readers.get(step.index, ()))
        if (
            needed > 1
            and len(read) <= INLINED_READS
            and sum(read.values()) * (needed - 1) <= step.writes[0].nbytes * needed
            and all(_can_inline(step, steps[reader], kinds[reader]) for reader in readers[step.index])
        ):
            gone.add(step.index)
            waiting = [step.index]
            while waiting:  # operations that only it reads are recomputed too
                reader = waiting.pop()
                for source in steps[reader].waits:
                    if source in made_of and source not in gone and readers.get(source) == {reader}:
                        gone.add(source)
                        waiting.append(source)
    return [steps[place] for place in sorted(gone)]


def _can_inline(step: TracedStep, reader: TracedStep, kind: str) -> bool:
    if kind in POINTWISE or kind in ("reduction", "normalisation"):
        return not any(write.storage == step.writes[0].storage for write in reader.writes)
    return False


def _connect(node, step, steps, gone, place, nodes, missing, through) -> None:
    """Record the reads of `step` as reads of `node`; `through`: the link so far if the step is recomputed."""
    handed: dict[int, list] = {}
    for other, wait in step.waits.items():
        for theirs, mine in wait.tensors:
            handed.setdefault(id(mine), []).append((other, theirs))
        if step is node.step and (not wait.tensors or _overwrites(step, steps[other])):
            for source in _written_out(other, steps, gone, place):
                node.before |= 1 << source
                aligned = not _reads_elsewhere(steps[other], step) and _aligned(steps[other], step)
                node.aligned[source] = node.aligned.get(source, True) and aligned
    for number, mine in enumerate(step.reads):
        sources = []
        for other, theirs in handed.get(id(mine), ()):
            here = _relation(theirs, mine, through)
            if other in gone:
                if steps[other] not in node.inlined:
                    node.inlined.append(steps[other])
                    _connect(node, steps[other], steps, gone, place, nodes, missing, here)
                continue
            source = place[other]
            sources.append(source)
            node.before |= 1 << source
            nodes[source].links.append(
                Link(source, node.index, mine.storage, mine.name if through is None else "", mine.nbytes, *here)
            )
        if not handed.get(id(mine)) or sources:
            writers = tuple(other for other, _ in handed.get(id(mine), ()))
            node.reads.append(
                Read(
                    (mine.storage, mine.footprint, writers),
                    mine.nbytes,
                    missing.get((step.index, number), mine.nbytes),
                    mine.points,
                    tuple(sources),
                )
            )


def _written_out(other: int, steps, gone, place) -> set[int]:
    """Return the nodes that represent a step: itself, or the dependencies of a recomputed operation."""
    if other not in gone:
        return {place[other]}
    return {found for each in steps[other].waits for found in _written_out(each, steps, gone, place)}


def _relation(theirs: TensorAccess, mine: TensorAccess, through) -> tuple[bool, bool, bool]:
    """Return (permuted, part, expanded) of a read combined with those of its reader."""
    part = mine.footprint != theirs.footprint and mine.footprint.nbytes < theirs.footprint.nbytes
    expanded = mine.points > mine.footprint.nbytes // mine.dtype.itemsize
    here = (not part and not keeps_order(theirs, mine), part, expanded)
    return here if through is None else tuple(one or other for one, other in zip(here, through, strict=True))


def _overwrites(step: TracedStep, earlier: TracedStep) -> bool:
    """Return whether a step overwrites an input of an earlier one."""
    return any(mine.storage == theirs.storage for mine in step.writes for theirs in earlier.reads)


def _reads_elsewhere(first: TracedStep, then: TracedStep) -> bool:
    """Return whether `first` reads the elements that `then` overwrites for other elements of its result."""
    return (kind_of(first) in ELSEWHERE or base_name(first) in SHIFTS) and _overwrites(then, first)


def _aligned(first: TracedStep, then: TracedStep) -> bool:
    """Return whether `then` overwrites the data of `first` element by element."""
    touched = [*first.reads, *first.writes]
    return all(
        mine.footprint == theirs.footprint and keeps_order(theirs, mine) and theirs.points == mine.points
        for mine in then.writes
        for theirs in touched
        if theirs.storage == mine.storage
    )
