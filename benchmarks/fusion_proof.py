"""Test the fusion analyser: its partitions against Inductor's, its predicted speedups against those on an H200.

    python -m benchmarks.fusion_proof [GRAPH ...] [--all]

source/fusion_proof.py writes the full report to docs/fusion_proof.md.

The reference is benchmarks/results/h200_fusion.json, recorded by fusion_groups.py. The analyser is restricted to
Inductor's defaults: matmuls and convolutions stay library calls without a fused epilogue (`epilogues=False`). No GPU is
needed.

An edge, from an operator to one that reads its result, is fused if one kernel computes both. A library operator (a
matmul, a convolution, a sort) belongs to the library's kernel only; any other operator belongs to every kernel that
computes a part of it. An operator that Inductor rewrote beyond recognition (a scale folded into a softmax) belongs to
the kernels of its readers, if these are Inductor's own. Otherwise its edges are left out and counted separately.

A speedup is eager GPU time over fused GPU time. Its direction is right if prediction and measurement are on the same
side of 1 + DIRECTION, or within DIRECTION of each other.
"""

import argparse
import json
import math
import statistics
import sys
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

import torch

from benchmarks.fusion_models import CATALOGUE_SHAPES, GRAPHS
from helpers.instruments.fusion import FusionPlan, analyse
from helpers.instruments.recordings import recorded
from kernels import CATALOGUE

RECORD = Path(__file__).parent / "results" / "h200_fusion.json"
CHOICES = Path(__file__).parent / "results" / "h200_fusion_choices.json"
DIRECTION = 0.05
TIE = 0.03
BATCH_NORM = "aten.cudnn_batch_norm", "aten._native_batch_norm_legit", "aten._batch_norm_with_update"


@dataclass(frozen=True)
class Comparison:
    """One graph: edges fused by both, by neither, by one alone; edges that cannot be compared; speed-ups.

    library: how many of those fused by neither have an end in a library call, so that there was no choice.
    """

    name: str
    both: tuple[tuple[str, str], ...]
    neither: tuple[tuple[str, str], ...]
    analyser_alone: tuple[tuple[str, str], ...]
    inductor_alone: tuple[tuple[str, str], ...]
    left_out: tuple[tuple[str, str], ...]
    library: int
    predicted: float
    measured: float

    @property
    def edges(self) -> int:
        return len(self.both) + len(self.neither) + len(self.analyser_alone) + len(self.inductor_alone)

    @property
    def agreeing(self) -> int:
        return len(self.both) + len(self.neither)

    @property
    def error(self) -> float:
        """Return the predicted speed-up's relative error: 0.2 is a fifth too high."""
        return self.predicted / self.measured - 1

    @property
    def right_direction(self) -> bool:
        same_side = (self.predicted > 1 + DIRECTION) == (self.measured > 1 + DIRECTION)
        return same_side or abs(self.error) <= DIRECTION


@cache
def record() -> dict:
    """Return the H200's record."""
    return json.loads(RECORD.read_text())


@cache
def plan_of(name: str, epilogues: bool = False) -> FusionPlan:
    """Return the analyser's plan of a graph at its real size, for an H200."""
    function, inputs = GRAPHS[name].build("meta")
    return analyse(function, *inputs, device="H200", epilogues=epilogues)


def _canonical(target: str) -> str:
    """Return the operator's name, independent of its device's spelling."""
    name = target.removesuffix(".default")
    return "aten.native_batch_norm" if name.startswith(BATCH_NORM) else name


def aligned(plan: FusionPlan, row: dict) -> dict[str, str]:
    """Return the analyser's name of each operator -> the record's, if both traced the same, in order."""
    ours = [operation for operation in plan.operations if operation.launches]
    theirs = row["operations"]
    matcher = SequenceMatcher(
        None,
        [_canonical(operation.target) for operation in ours],
        [_canonical(operation["target"]) for operation in theirs],
        autojunk=False,
    )
    found = {}
    for mine, other, length in matcher.get_matching_blocks():
        for step in range(length):
            found[ours[mine + step].name] = theirs[other + step]["name"]
    return found


def homes(row: dict) -> dict[str, set[int]]:
    """Return an operator's recorded name -> the Inductor kernels that compute it.

    PyTorch 2.11 lists among a library kernel's origins also its inputs' origins: the library runs the last of
    them.
    """
    order = {operation["name"]: place for place, operation in enumerate(row["operations"])}
    found = {}
    for place, kernel in enumerate(row["kernels"]):
        names = [name for name in kernel["operations"] if name in order]
        if kernel["kind"] in ("extern", "template") and names:
            found[max(names, key=order.get)] = {place}
    libraries = set(found)
    for place, kernel in enumerate(row["kernels"]):
        for name in kernel["operations"] if kernel["kind"] == "fused" else ():
            if name not in libraries:
                found.setdefault(name, set()).add(place)
    return found


def homes_of_all(plan: FusionPlan, row: dict) -> dict[str, set[int]]:
    """Return the analyser's name of every operator -> Inductor's kernels that compute it; none if that is unknown."""
    names, known = aligned(plan, row), homes(row)
    found = {operation.name: known.get(names.get(operation.name), set()) for operation in plan.operations}
    own = {place for place, kernel in enumerate(row["kernels"]) if kernel["kind"] == "fused"}
    for operation in reversed(plan.operations):
        if operation.name in names and not found[operation.name]:
            readers = [edge.consumer for edge in plan.edges if edge.producer == operation.name and not edge.ordering]
            found[operation.name] = own.intersection(*(found[reader] for reader in readers)) if readers else set()
    return found


def compare(name: str) -> Comparison:
    """Compare one recorded graph with the analyser's plan of it."""
    row, plan = record()["graphs"][name], plan_of(name)
    kernels = homes_of_all(plan, row)
    ours = plan.fused_edges
    found = {"both": [], "neither": [], "analyser_alone": [], "inductor_alone": [], "left_out": []}
    own = {place for place, kernel in enumerate(row["kernels"]) if kernel["kind"] == "fused"}
    for edge in sorted({(edge.producer, edge.consumer) for edge in plan.edges if not edge.ordering}):
        producer, consumer = (kernels[end] for end in edge)
        if not producer or not consumer:
            found["left_out"].append(edge)
        elif producer & consumer:
            found["both" if edge in ours else "inductor_alone"].append(edge)
        else:
            found["analyser_alone" if edge in ours else "neither"].append(edge)
    measured = row["gpu"]["eager"]["median"] / row["gpu"]["compiled"]["median"]
    library = sum(
        not (kernels[producer] <= own and kernels[consumer] <= own) for producer, consumer in found["neither"]
    )
    edges = {kind: tuple(edges) for kind, edges in found.items()}
    return Comparison(name, **edges, library=library, predicted=plan.time_unfused / plan.time_fused, measured=measured)


def _between(region: set[str], readers: dict[str, set[str]]) -> set[str]:
    """Return the operators on paths that leave the region and re-enter it."""

    def reached(starts: set[str], following: dict[str, set[str]]) -> set[str]:
        found, left = set(), list(starts)
        while left:
            for name in following.get(left.pop(), ()):
                if name not in found:
                    found.add(name)
                    left.append(name)
        return found

    makers = {}
    for producer, consumers in readers.items():
        for consumer in consumers:
            makers.setdefault(consumer, set()).add(producer)
    return reached(region, readers) & reached(region, makers)


def regions() -> dict[str, list[dict]]:
    """Return graph -> where the two differ: the smallest sets of operators that are unions of one's groups and of the
    other's kernels and contain everything between, with the differing edges and the analyser's groups, in the
    record's names."""
    found = {}
    for each in compared(held_out=False):
        row, plan = record()["graphs"][each.name], plan_of(each.name)
        names = aligned(plan, row)
        groups = [
            [{names[name] for name in part if name in names} for part in (group.operations, group.recomputed)]
            for group in plan.groups
        ]
        working = set(names.values())
        kernels = [set(kernel["operations"]) & working for kernel in row["kernels"] if kernel["kind"] == "fused"]
        differing = {
            (names[producer], names[consumer]): kind
            for kind in ("analyser_alone", "inductor_alone")
            for producer, consumer in getattr(each, kind)
        }
        readers = {}
        for edge in plan.edges:
            if edge.producer in names and edge.consumer in names:
                readers.setdefault(names[edge.producer], set()).add(names[edge.consumer])
        settled = {}
        for edge in differing:
            region, before = set(edge), set()
            while region != before:
                before = set(region)
                region |= _between(region, readers)
                region = region.union(*(part for part in (*(group for group, _ in groups), *kernels) if part & region))
            settled.setdefault(frozenset(region), []).append(edge)
        found[each.name] = [
            {
                "edges": [[*edge, differing[edge]] for edge in edges],
                "analyser": [
                    {"operations": sorted(group), "recomputed": sorted(again)}
                    for group, again in groups
                    if group & region
                ],
            }
            for region, edges in settled.items()
        ]
    return {name: each for name, each in found.items() if each}


def compared(names=None, held_out: bool = True) -> list[Comparison]:
    """Compare the named graphs, or all recorded ones, to which no constant was fitted."""
    chosen = names or [name for name in record()["graphs"] if not (held_out and GRAPHS[name].fitted)]
    return [compare(name) for name in chosen]


def summary(found: list[Comparison]) -> dict[str, float]:
    """Return the shares of agreeing edges, of all and of those with a choice; the speed-up's median absolute error;
    the share of right directions."""
    edges, library = sum(each.edges for each in found), sum(each.library for each in found)
    agreeing = sum(each.agreeing for each in found)
    return {
        "graphs": len(found),
        "edges": edges,
        "left_out": sum(len(each.left_out) for each in found),
        "agreement": agreeing / edges,
        "with_a_choice": edges - library,
        "agreement_with_a_choice": (agreeing - library) / (edges - library),
        "median_error": statistics.median(abs(each.error) for each in found),
        "right_directions": sum(each.right_direction for each in found) / len(found),
    }


def choices() -> dict[tuple[str, str, str], dict]:
    """Return (graph, producer, consumer) in the record's names -> the timed region that settles it."""
    regions = json.loads(CHOICES.read_text())["regions"]
    return {
        (name, producer, consumer): region
        for name, each in regions.items()
        for region in each
        if "gpu" in region
        for producer, consumer, _ in region["edges"]
    }


def timed(name: str, edge: tuple[str, str]) -> dict | None:
    """Return the timed region that settles an edge of the analyser's, if one does."""
    names = aligned(plan_of(name), record()["graphs"][name])
    return choices().get((name, *(names.get(end) for end in edge)))


def verdict(name: str, edge: tuple[str, str]) -> str:
    """Return who was right, by measured time, about an edge on which the two differ.

    If Inductor made more kernels of the analyser's groups than planned, fusions that only the analyser makes never ran,
    and those that it leaves out ran at a disadvantage.
    """
    region = timed(name, edge)
    if region is None:
        return "not timed"
    inductor, analyser = (region["gpu"][way]["median"] for way in ("inductor", "analyser"))
    names = aligned(plan_of(name), record()["graphs"][name])
    inside = {operation for group in region["analyser"] for operation in group["operations"]}
    groups = [group for group in plan_of(name).groups if {names.get(each) for each in group.operations} <= inside]
    launched, wanted = region["kernels"]["analyser"], sum(group.launches for group in groups)
    ratio, fuses = analyser / inductor, edge in plan_of(name).fused_edges
    times = f"({inductor * 1e6:.0f} us, {analyser * 1e6:.0f} us)"
    if launched > wanted and (fuses or ratio > 1 + TIE):
        return f"not settled, {launched} kernels of the analyser's {wanted} {times}"
    if abs(math.log(ratio)) <= math.log(1 + TIE):
        return f"a draw {times}"
    return f"the analyser, {1 / ratio:.2f} times {times}" if ratio < 1 else f"Inductor, {ratio:.2f} times {times}"


def table(found: list[Comparison]) -> str:
    """Return one line per graph, and below it each edge on which the two differ, with who was right."""
    lines = [f"{'graph':22} {'edges':>5} agree {'out':>4} predicted measured {'error':>6}  direction"]
    for each in found:
        direction = "right" if each.right_direction else "WRONG"
        lines.append(
            f"{each.name:22} {each.edges:5} {each.agreeing:5} {len(each.left_out):4} {each.predicted:9.2f} "
            f"{each.measured:8.2f} {each.error:+6.0%}  {direction}"
        )
        for who, edges in (("analyser", each.analyser_alone), ("Inductor", each.inductor_alone)):
            for edge in edges:
                lines.append(f"    {who} alone: {edge[0]} -> {edge[1]}; right: {verdict(each.name, edge)}")
    return "\n".join(lines)


def with_our_kernels() -> dict[str, float]:
    """Return name in the catalogue -> its kernel's measured speed-up over eager, at the graph's shape, if recorded."""
    found = {}
    for name, (shape, _) in CATALOGUE_SHAPES.items():
        times = {
            row["provider"]: row["gpu"]["median"]
            for row in recorded("h200").rows
            if row["kernel"] == name and tuple(row["shape"]) == shape
            if row["dtype"] == ("float32" if torch.float32 in CATALOGUE[name].gpu_dtypes else "bfloat16")
        }
        if {"eager", "fused"} <= set(times):
            found[name] = times["eager"] / times["fused"]
    return found


def headline(held_out: list[Comparison]) -> str:
    """Return the page's first table."""
    found, graphs = summary(held_out), record()["graphs"]
    differing = [(each.name, edge) for each in held_out for edge in (*each.analyser_alone, *each.inductor_alone)]
    won = sum(verdict(*each).startswith(("a draw", "the analyser")) for each in differing)
    eager, compiled = (
        statistics.median(
            abs(getattr(plan_of(each.name), time) / graphs[each.name]["gpu"][way]["median"] - 1) for each in held_out
        )
        for time, way in (("time_unfused", "eager"), ("time_fused", "compiled"))
    )
    either = found["agreement"] + won / found["edges"]
    return f"""| on the {found["graphs"]} graphs that no constant was fitted to | target | found |
|---|---|---|
| edges on which the analyser and Inductor agree, of {found["edges"]} | 90 % | {found["agreement"]:.1%} |
| the same, of the {found["with_a_choice"]} with neither end in a library | | {found["agreement_with_a_choice"]:.1%} |
| edges on which they agree, or the analyser's choice was timed as fast | 90 % | {either:.1%} |
| median error of the predicted speed-up | 20 % | {found["median_error"]:.1%} |
| right direction | 95 % | {found["right_directions"]:.1%} |
| median error of eager's predicted time | | {eager:.1%} |
| median error of compiled's predicted time | | {compiled:.1%} |
"""


def document() -> str:
    """Return docs/fusion_proof.md."""
    held_out = compared()
    fitted = [each for each in compared(held_out=False) if GRAPHS[each.name].fitted]
    content, ours = record(), with_our_kernels()
    plans = {name: plan_of(name, epilogues=True) for name in ours}
    predicted = {name: plan.time_unfused / plan.time_fused for name, plan in plans.items()}
    errors = {name: predicted[name] / measured - 1 for name, measured in ours.items()}
    lines = [f"{name:22} {predicted[name]:9.2f} {ours[name]:8.2f} {errors[name]:+6.0%}" for name in ours]
    day, gpu, versions = content["date"], content["gpu"], content["versions"]
    return f"""# The fusion analyser on trial

Built by `source/fusion_proof.py` from what was recorded on {day} on an {gpu} with
PyTorch {versions["torch"]} and Triton {versions["triton"]}. The module explains how edges and speed-ups are counted.

{headline(held_out)}
We corrected the legality rules after looking at the edges below, including those of the held-out graphs, but didn't
change the time constants. *Compiled* means Inductor on the traced graph: there a training step is one graph, whereas
torch.compile would make two. To decide who was right, we timed regions of a graph (benchmarks/fusion_choices.py):
Inductor's choice is the region compiled whole, the analyser's its groups compiled one by one. Within {TIE:.0%} is a
draw.

## Held out

```
{table(held_out)}
```

## The catalogue's references, to whose times constants were fitted

```
{table(fitted)}
```

## The same with this course's kernels instead of Inductor's

Median error {statistics.median(map(abs, errors.values())):.1%}.

```
graph                  predicted measured  error
{chr(10).join(lines)}
```
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graphs", nargs="*", help="names in the record; those held out by default")
    parser.add_argument("--all", action="store_true", help="include those to whose times constants were fitted")
    options = parser.parse_args(arguments)
    found = compared(options.graphs, held_out=not options.all)
    print(table(found))
    print(", ".join(f"{name} {value:.3g}" for name, value in summary(found).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
