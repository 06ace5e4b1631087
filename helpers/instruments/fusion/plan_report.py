"""A plan as text and as a page: what to fuse, what it brings, who does it, what would change the decision."""

import html
import re
from dataclasses import dataclass
from pathlib import Path

from helpers.instruments.fusion.drawing import drawing
from helpers.instruments.fusion.existing_kernels import COMPILE, call_for, kernel_for
from helpers.instruments.fusion.plan import WEIGHTS, FusionGroup, FusionPlan
from helpers.instruments.prediction import LAUNCH
from helpers.instruments.traffic.result import size
from helpers.style import FAINT, REPORT_FONT

HEAD = ("operations", "kernel of", "bytes", "launches", "predicted", "registers", "score", "who does it", "flips")
REACH = 0.3  # by which a weight may change to count as what flips a decision
FUSE = 0.5  # a score from which on fusing is advised
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>What to fuse on {device}</title><style>
:root {{ color-scheme: light dark }} body {{ font: {font}; margin: 2rem auto; max-width: 70rem }}
table {{ border-collapse: collapse; width: 100% }} td, th {{ padding: .3rem .6rem; text-align: left;
border-bottom: 1px solid {faint}; vertical-align: top }}
td:nth-child(n+3):nth-child(-n+7) {{ white-space: nowrap }}
.picture {{ overflow: auto }} svg text {{ fill: CanvasText }}
</style></head><body>
<h1>What to fuse on {device}</h1><p>{summary}</p>{table}
<h2>What may not be fused, and why</h2>{edges}
<h2>The graph</h2><div class="picture">{picture}</div>
</body></html>
"""


@dataclass(frozen=True, repr=False)
class FusionReport:
    """`print(report)` is the table; a notebook shows it as one; `save` writes the page."""

    plan: FusionPlan

    def summary(self) -> str:
        plan = self.plan
        gain = plan.time_unfused / plan.time_fused if plan.time_fused else 1.0
        return (
            f"{plan.launches_unfused} launches become {plan.launches_fused}, {size(plan.bytes_unfused)} become "
            f"{size(plan.bytes_fused)}; predicted on {plan.device.name}: {_time(plan.time_unfused)} become "
            f"{_time(plan.time_fused)}, {gain:.2f} times as fast"
        )

    def groups(self) -> list[FusionGroup]:
        """The groups that change something, the one that saves most first."""
        changed = [group for group in self.plan.groups if group.kind != "eager"]
        return sorted(changed, key=lambda group: group.time - group.time_unfused)

    def rows(self) -> list[tuple[str, ...]]:
        return [
            (
                _operations(group),
                group.kind,
                f"{size(group.work_unfused.bytes)} -> {size(group.work.bytes)}",
                f"{group.launches_unfused} -> {group.launches}",
                f"{_time(group.time_unfused)} -> {_time(group.time)}",
                f"{group.registers}",
                f"{group.score.total:.2f}",
                self.who(group),
                "; ".join(flips(group)),
            )
            for group in self.groups()
        ]

    def who(self, group: FusionGroup) -> str:
        """Which kernel of kernels/, which call of PyTorch does it, and what torch.compile does."""
        names = [self.plan.by_name[name].operator for name in group.operations]
        found = [COMPILE.get(group.kind)]
        if call := call_for(group.kind, names):
            found.insert(0, call)
        if kernel := kernel_for(group.kind, names):
            found.insert(0, f"kernels.{kernel}")
        return "; ".join(each for each in found if each)

    def __repr__(self):
        rows = [HEAD, *self.rows()]
        widths = [max(len(row[place]) for row in rows) for place in range(7)]
        lines = [self.summary()]
        for row in rows:
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())
            if row is not rows[0]:
                lines += [f"    {cell}" for cell in row[7:] if cell]
        left = sum(group.kind == "eager" for group in self.plan.groups)
        return "\n".join([*lines, f"{left} more operations stay PyTorch's own kernels"])

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.summary())}</p>{_table(HEAD, self.rows())}"

    def page(self) -> str:
        """The whole report as one HTML page that needs nothing else."""
        kept = [edge for edge in self.plan.edges if not edge.legal]
        edges = [(edge.producer, edge.consumer, size(edge.nbytes), edge.reason) for edge in kept]
        return PAGE.format(
            font=REPORT_FONT,
            faint=FAINT,
            device=html.escape(self.plan.device.name),
            summary=html.escape(self.summary()),
            table=_table(HEAD, self.rows()),
            edges=_table(("from", "to", "bytes", "why"), edges),
            picture=drawing(self.plan).svg,
        )

    def save(self, path: str | Path) -> None:
        """Write the page.

        Raises:
            OSError: it cannot be written there.
        """
        Path(path).write_text(self.page(), encoding="utf-8")


def flips(group: FusionGroup) -> list[str]:
    """What would turn the decision on a group: another weight of the score, or launches that cost nothing."""
    found = []
    for name, weight in WEIGHTS.items():
        part, others = (group.score.weighing(name, all_or_none) for all_or_none in (1, 0))
        if abs(part - others) < 1e-9:
            continue
        at = (FUSE - others) / (part - others)
        if 0 <= at <= 1 and abs(at - weight) <= REACH:
            found.append((abs(at - weight), f"the score: {name} weighing {at:.2f} instead of {weight}"))
    lines = [text for _, text in sorted(found)[:1]]
    gain = group.time_unfused - group.time
    saved = (group.launches_unfused - group.launches) * LAUNCH
    if 0 < gain <= saved:
        lines.append("the time: a CUDA graph, for all it saves are launches")
    return lines


def _operations(group: FusionGroup) -> str:
    names = list(group.operations)
    if len(names) > 6:
        names = [*names[:3], f"... {len(names) - 5} more ...", *names[-2:]]
    again = f" (again: {', '.join(group.recomputed)})" if group.recomputed else ""
    return " ".join(names) + again


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _unbroken(cell: str) -> str:
    """As HTML, in which no line ends between a number and its unit."""
    return re.sub(r"(\d) (?=[kMGTmu]?[Bs]\b)", r"\1&nbsp;", html.escape(cell))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return "<p>nothing</p>"
    titles = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{_unbroken(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{titles}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
