"""The analyser's result: a model's operations, the edges between them, and the groups to fuse into one kernel."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from helpers.instruments.devices import Device
from helpers.instruments.roofline import Work


def plain_name(operator: str) -> str:
    """Return an operator's name without the mark of an in-place one: "add" for "add_"."""
    return operator if operator.startswith("_") else operator.rstrip("_")


def source_name(file: str) -> str:
    """Return a readable name for a source file: "cell" for a notebook cell."""
    return "cell" if "ipykernel" in file else Path(file).name


@dataclass(frozen=True)
class TracedOperation:
    """One ATen operator of the traced graph, as eager PyTorch runs it.

    name: its FX node's, such as "add_1"; target: the operator, such as "aten.add.Tensor".
    kind: "elementwise", "broadcast" (elementwise over inputs of several shapes), "reduction", "normalisation",
        "matmul", "convolution", "attention", "gather", "scatter", "view" or "opaque".
    shape, dtype, strides: of its first result.
    work: FLOPs, and the bytes that the traffic meter counts; launches: on a GPU, 0 for a view.
    added_launches: launches that a library adds to the one kernel the meter counts, such as cuDNN's conversions.
    time: s, predicted, with L2 as the previous operations left it.
    module: path of the nn.Module that called it; line: file and number of the innermost line outside PyTorch; for the
        backward pass, those of the operation that it differentiates.
    unsure: what is unknown about it, empty if nothing is; `time` is then a lower bound.
    """

    name: str
    target: str
    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]
    work: Work
    launches: int
    time: float
    added_launches: int = 0
    module: str = ""
    line: tuple[str, int] | None = None
    backward: bool = False
    unsure: str = ""

    @property
    def operator(self) -> str:
        """Its plain name: "add" for "aten.add_.Tensor"."""
        return plain_name(self.target.split(".")[1])


@dataclass(frozen=True)
class FusionEdge:
    """A tensor that one operation writes and another reads, through views or not; both launch kernels.

    nbytes: bytes that the consumer reads. legal: whether one kernel may do both; reason: why, or why not.
    ordering: the consumer only has to come later, because it overwrites data that the producer reads or writes.
    """

    producer: str
    consumer: str
    nbytes: int
    legal: bool
    reason: str
    ordering: bool = False


WEIGHTS = {"bandwidth": 0.4, "launches": 0.2, "registers": 0.2, "complexity": 0.1, "upkeep": 0.1}


@dataclass(frozen=True)
class FusionScore:
    """The weighted score of lesson 13, each part from 0 to 1; 1 favours fusing."""

    bandwidth: float
    launches: float
    registers: float
    complexity: float
    upkeep: float

    @property
    def total(self) -> float:
        return sum(weight * getattr(self, name) for name, weight in WEIGHTS.items())

    def weighing(self, part: str, weight: float) -> float:
        """Return the total if `part` had another weight, from 0 to 1, and the others shared the rest in proportion."""
        own = getattr(self, part)
        others = (self.total - WEIGHTS[part] * own) / (1 - WEIGHTS[part])
        return weight * own + (1 - weight) * others


@dataclass(frozen=True)
class FusionGroup:
    """Operations that one kernel should compute.

    operations: their names, in the graph's order; each operation that launches is in one group.
    recomputed: operations of other groups that this one recomputes instead of reading their result.
    kind: the loop that its kernel is built around: "pointwise", "rows", "matmul", "convolution", "attention"; "eager"
        for an operation that stays PyTorch's own kernel.
    work, launches, time, work_unfused, launches_unfused, time_unfused: fused, and in eager PyTorch.
    registers: per thread, estimated from `live`, the values per element that are alive at once.
    """

    operations: tuple[str, ...]
    recomputed: tuple[str, ...]
    kind: str
    work: Work
    launches: int
    time: float
    work_unfused: Work
    launches_unfused: int
    time_unfused: float
    live: int
    registers: int
    score: FusionScore


@dataclass(frozen=True, repr=False)
class FusionPlan:
    """A partition of a model's operations into kernels, in bytes and seconds.

    graph: the traced graph; `graph(*inputs)` runs it eagerly.
    """

    device: Device
    graph: torch.fx.GraphModule = field(compare=False)
    operations: tuple[TracedOperation, ...]
    edges: tuple[FusionEdge, ...]
    groups: tuple[FusionGroup, ...]
    _today: Callable[[], "FusionPlan"] | None = field(default=None, compare=False)

    @cached_property
    def today(self) -> "FusionPlan":
        """Return the plan that torch.compile can deliver: matmuls and convolutions stay the library's."""
        return self._today() if self._today else self

    @cached_property
    def unsure(self) -> dict[str, tuple[TracedOperation, ...]]:
        """Unknown fact -> the operations it concerns, longest first."""
        found: dict[str, list[TracedOperation]] = {}
        for operation in self.operations:
            if operation.unsure:
                found.setdefault(operation.unsure, []).append(operation)
        order = sorted(found, key=lambda reason: -sum(each.time for each in found[reason]))
        return {reason: tuple(found[reason]) for reason in order}

    @property
    def unsure_share(self) -> float:
        """Share of eager PyTorch's predicted time spent in uncertain operations."""
        unsure = sum(each.time for operations in self.unsure.values() for each in operations)
        return unsure / self.time_unfused if self.time_unfused else float(bool(self.unsure))

    @property
    def fills_unsure(self) -> int:
        """Launches that `launches_unfused` may lack: one workspace fill per library call."""
        return sum(each.kind in ("matmul", "convolution", "attention") and each.time > 0 for each in self.operations)

    @cached_property
    def by_name(self) -> dict[str, TracedOperation]:
        return {operation.name: operation for operation in self.operations}

    @property
    def bytes_unfused(self) -> float:
        return sum(operation.work.bytes for operation in self.operations)

    @property
    def bytes_fused(self) -> float:
        return sum(group.work.bytes for group in self.groups)

    @property
    def launches_unfused(self) -> int:
        return sum(operation.launches for operation in self.operations)

    @property
    def launches_fused(self) -> int:
        return sum(group.launches for group in self.groups)

    @property
    def time_unfused(self) -> float:
        return sum(operation.time for operation in self.operations)

    @property
    def time_fused(self) -> float:
        return sum(group.time for group in self.groups)

    @cached_property
    def fused_edges(self) -> frozenset[tuple[str, str]]:
        """(producer, consumer) of each edge whose tensor never reaches memory because one kernel computes both."""
        found = set()
        for group in self.groups:
            inside = {*group.operations, *group.recomputed}
            found |= {
                (edge.producer, edge.consumer)
                for edge in self.edges
                if not edge.ordering and edge.producer in inside and edge.consumer in inside
            }
        return frozenset(found)

    def report(self):
        """Return a FusionReport (a table and a page): what to fuse, what it saves, which tool does it and what would
        change the decision."""
        from helpers.instruments.fusion.plan_report import FusionReport  # imports this module, as does the next

        return FusionReport(self)

    def draw(self):
        """Draw the graph as a FusionDrawing: kernels coloured and numbered, edges labelled with bytes."""
        from helpers.instruments.fusion.drawing import drawing

        return drawing(self)

    def compile(self, group: FusionGroup):
        """Generate a kernel for a pointwise group and return its Resources on the plan's device: its real registers.

        Raises:
            ValueError: the group is not pointwise, or has an operator without a formula.
        """
        from helpers.instruments.fusion.generated_kernel import compiled

        return compiled(self, group)

    def __repr__(self):
        return repr(self.report())

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()
