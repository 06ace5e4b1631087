"""Report a plan as text and as a page: what to fuse, the gain, the tool that does it, what would change the
decision."""

import html
import linecache
import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from helpers.instruments.fusion.drawing import drawing
from helpers.instruments.fusion.existing_kernels import COMPILE, call_for, kernel_for, libraries_for
from helpers.instruments.fusion.plan import WEIGHTS, FusionGroup, FusionPlan, source_name
from helpers.instruments.prediction import LAUNCH
from helpers.instruments.traffic.result import size
from helpers.style import FAINT, REPORT_FONT

HEAD = ("operations", "built around", "bytes", "launches", "predicted", "share", "registers", "score")
HEAD += ("where", "done by", "would change it")
IN_LINE = 8  # operations in the first line of a text row
PLACES = 4  # modules or lines that a row lists
REASONS = 6  # unknown facts that the report's first lines list one by one
REACH = 0.3  # change of a weight that counts as flipping a decision
FUSE = 0.5  # lowest score at which fusing is advised
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>What to fuse on {device}</title><style>
:root {{ color-scheme: light dark }} body {{ font: {font}; margin: 2rem auto; max-width: 70rem }}
table {{ border-collapse: collapse; width: 100% }} td, th {{ padding: .3rem .6rem; text-align: left;
border-bottom: 1px solid {faint}; vertical-align: top }}
td:nth-child(n+3):nth-child(-n+8) {{ white-space: nowrap }}
.picture {{ overflow: auto }} svg text {{ fill: CanvasText }}
</style></head><body>
<h1>What to fuse on {device}</h1><p>{summary}</p>{table}
<h2>What can't be fused, and why</h2>{edges}
<h2>The graph</h2><div class="picture">{picture}</div>
</body></html>
"""


@dataclass(frozen=True, repr=False)
class FusionReport:
    """`print(report)` prints the table; a notebook renders it; `save` writes the page."""

    plan: FusionPlan

    def summary(self) -> str:
        plan = self.plan
        gain = plan.time_unfused / plan.time_fused if plan.time_fused else 1.0
        return (
            f"{plan.launches_unfused} launches become {plan.launches_fused}, {size(plan.bytes_unfused)} become "
            f"{size(plan.bytes_fused)}; predicted on {plan.device.name}: {_time(plan.time_unfused)} become "
            f"{_time(plan.time_fused)}, {gain:.2f} times as fast"
        )

    def headlines(self) -> list[str]:
        """Return the gain with kernels yet to be written and with torch.compile's today, and what is uncertain."""
        plan, today = self.plan, self.plan.today
        lines = [self.summary()]
        if today.time_fused <= 1.005 * plan.time_fused:
            if self.groups():
                lines.append("torch.compile already generates all of these kernels")
        else:
            lines.append(
                f"with torch.compile today, which leaves matmuls and convolutions to libraries: "
                f"{today.launches_fused} launches, {size(today.bytes_fused)}, {_time(today.time_fused)}, "
                f"{plan.time_unfused / today.time_fused:.2f} times as fast; the rest needs hand-written kernels"
            )
        if plan.unsure:
            lines.append(
                f"unsure: {plan.unsure_share:.0%} of eager's time is in operations that may take longer than predicted:"
            )
        for reason, operations in list(plan.unsure.items())[:REASONS]:
            time = sum(each.time for each in operations)
            lines.append(f"    {len(operations)} x {reason} ({f'at least {_time(time)}' if time else 'not timed'})")
        if len(plan.unsure) > REASONS:
            lines.append(f"    and {len(plan.unsure) - REASONS} more reasons")
        if plan.fills_unsure:
            most = plan.launches_unfused + plan.fills_unsure
            lines.append(
                f"launches: {plan.launches_unfused} to {most}, because a library may fill a workspace before each call"
            )
        return lines

    def groups(self) -> list[FusionGroup]:
        """The groups that change something, largest saving first."""
        changed = [group for group in self.plan.groups if group.kind != "eager"]
        return sorted(changed, key=lambda group: group.time - group.time_unfused)

    def folded(self) -> list[list[FusionGroup]]:
        """Return the groups, merging those of equal layers: the same operators on the same number of bytes."""
        found: dict[tuple, list[FusionGroup]] = {}
        for group in self.groups():
            names = tuple(self.plan.by_name[name].operator for name in group.operations)
            shapes = tuple(self.plan.by_name[name].shape for name in group.operations)
            key = names, shapes, group.kind, group.work, group.work_unfused, group.launches, len(group.recomputed)
            found.setdefault(key, []).append(group)
        return sorted(found.values(), key=lambda equal: sum(each.time - each.time_unfused for each in equal))

    def rows(self) -> list[tuple[str, ...]]:
        return [self._row(equal) for equal in self.folded()]

    def _row(self, equal: list[FusionGroup]) -> tuple[str, ...]:
        group, count = equal[0], len(equal)
        before, after = sum(each.time_unfused for each in equal), sum(each.time for each in equal)
        names = [self.plan.by_name[name].operator for name in group.operations]
        return (
            _operations(group) if count == 1 else f"{count} x {_shortened(names)}",
            group.kind,
            f"{size(count * group.work_unfused.bytes)} -> {size(count * group.work.bytes)}",
            f"{count * group.launches_unfused} -> {count * group.launches}",
            f"{_time(before)} -> {_time(after)}",
            f"{before / self.plan.time_unfused:.0%}" if self.plan.time_unfused else "",
            f"{group.registers}",
            f"{group.score.total:.2f}",
            self.where(equal),
            self.who(group),
            "; ".join(flips(group)),
        )

    def where(self, equal: list[FusionGroup]) -> str:
        """Return the modules and source lines of equal groups."""
        operations = [self.plan.by_name[name] for group in equal for name in group.operations]
        modules, lines = {}, {}
        for each in operations:
            path = re.sub(r"(^|(?<=\.))\d+(?=\.|$)", "*", each.module) if len(equal) > 1 else each.module
            modules.setdefault(path, None)
            if each.line:
                lines.setdefault(each.line, None)
        back = "the backward pass of " if all(each.backward for each in operations) else ""
        found = [back + _together([path for path in modules if path])] if any(modules) else []
        if lines:
            found.append(_source(list(lines)))
        return "; ".join(found)

    def who(self, group: FusionGroup) -> str:
        """Return the kernel in kernels/ and the PyTorch call that do this, and whether torch.compile does."""
        names = [self.plan.by_name[name].operator for name in group.operations]
        found = [*libraries_for(group.kind, names), COMPILE.get(group.kind)]
        if call := call_for(group.kind, names):
            found.insert(0, call)
        if kernel := kernel_for(group.kind, names):
            found.insert(0, f"kernels.{kernel}")
        return "; ".join(each for each in found if each)

    def __repr__(self):
        rows = [HEAD, *self.rows()]
        widths = [max(len(row[place]) for row in rows) for place in range(IN_LINE)]
        lines = self.headlines()
        for row in rows:
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())
            if row is not rows[0]:
                lines += [f"    {cell}" for cell in row[IN_LINE:] if cell]
        left = [group for group in self.plan.groups if group.kind == "eager"]
        share = sum(group.time_unfused for group in left) / (self.plan.time_unfused or 1)
        return "\n".join([*lines, f"{len(left)} more operations keep PyTorch's own kernels: {share:.0%} of the time"])

    def _repr_html_(self) -> str:
        lines = "<br>".join(html.escape(line) for line in self.headlines())
        return f"<p>{lines}</p>{_table(HEAD, self.rows())}"

    def page(self) -> str:
        """Return the whole report as one self-contained HTML page."""
        kept = [edge for edge in self.plan.edges if not edge.legal]
        edges = [(edge.producer, edge.consumer, size(edge.nbytes), edge.reason) for edge in kept]
        return PAGE.format(
            font=REPORT_FONT,
            faint=FAINT,
            device=html.escape(self.plan.device.name),
            summary="<br>".join(html.escape(line) for line in self.headlines()),
            table=_table(HEAD, self.rows()),
            edges=_table(("from", "to", "bytes", "why"), edges),
            picture=drawing(self.plan).svg,
        )

    def save(self, path: str | Path) -> None:
        """Write the page to a file.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(self.page(), encoding="utf-8")


def flips(group: FusionGroup) -> list[str]:
    """Return the changes that would flip the decision on a group: another weight in the score, or free launches."""
    found = []
    for name, weight in WEIGHTS.items():
        part, others = (group.score.weighing(name, all_or_none) for all_or_none in (1, 0))
        if abs(part - others) < 1e-9:
            continue
        at = (FUSE - others) / (part - others)
        if 0 <= at <= 1 and abs(at - weight) <= REACH:
            found.append((abs(at - weight), f"a weight of {at:.2f} instead of {weight} for {name} in the score"))
    lines = [text for _, text in sorted(found)[:1]]
    gain = group.time_unfused - group.time
    saved = (group.launches_unfused - group.launches) * LAUNCH
    if 0 < gain <= saved:
        lines.append("a CUDA graph: fusing only saves launches")
    return lines


def _operations(group: FusionGroup) -> str:
    again = f" (recomputing {', '.join(group.recomputed)})" if group.recomputed else ""
    return _shortened(list(group.operations)) + again


def _shortened(names: list[str]) -> str:
    if len(names) > 6:
        names = [*names[:3], f"... {len(names) - 5} more ...", *names[-2:]]
    return " ".join(names)


def _together(paths: list[str]) -> str:
    """Join module paths, with their common prefix written once."""
    more = f", {len(paths) - PLACES} more" if len(paths) > PLACES else ""
    parts = [path.split(".") for path in paths[:PLACES]]
    common = []
    if len(parts) > 1:
        common = [parts[0] for parts in takewhile(_alike, zip(*parts, strict=False))]
    rest = [".".join(part[len(common) :]) or "itself" for part in parts]
    if not common:
        return ", ".join(rest) + more
    return f"{'.'.join(common)}: {', '.join(rest)}{more}"


def _alike(parts: tuple[str, ...]) -> bool:
    return len(set(parts)) == 1


def _source(lines: list[tuple[str, int]]) -> str:
    """Format source lines: file and numbers, and the text of the first."""
    files: dict[str, list[str]] = {}
    for file, number in lines[:PLACES]:
        files.setdefault(source_name(file), []).append(str(number))
    named = ", ".join(f"{file}:{', '.join(numbers)}" for file, numbers in files.items())
    more = f" and {len(lines) - PLACES} more" if len(lines) > PLACES else ""
    said = " ".join(linecache.getline(*lines[0]).split())
    return f"{named}{more}" + (f" `{said[:80]}`" if said else "")


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _unbroken(cell: str) -> str:
    """Return the cell as HTML, without a line break between a number and its unit."""
    return re.sub(r"(\d) (?=[kMGTmu]?[Bs]\b)", r"\1&nbsp;", html.escape(cell))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return "<p>nothing</p>"
    titles = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{_unbroken(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{titles}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
