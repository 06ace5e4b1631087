"""The analyser's kernels vs those that torch.compile generated on a GPU, operation by operation; live over graphs.

Both are given: the plan, and for each operation the recorded kernels that compute it. An operation that two kernels
work out is in both.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.figures.frame.chart import Chart
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.instruments.fusion.plan import FusionPlan
from helpers.style import LIMIT, STYLE, TITLE_SIZE, UNFUSED, WRONG

MAX = 20  # operations of one picture


@dataclass(frozen=True)
class TwoPartitions:
    """One graph: its plan, operation -> numbers of the recorded kernels that compute it, and how many edges differ."""

    plan: FusionPlan
    homes: Mapping[str, set[int]]
    differing: tuple[tuple[str, str], ...]
    edges: int

    @property
    def operations(self) -> list[str]:
        return [operation.name for operation in self.plan.operations if operation.launches]


@dataclass(frozen=True)
class GroupRow:
    """An operation: its name, its kernels on either side, whether an edge of it differs.

    Kernels are numbered as they come; two of the same operations, one on either side, have one number.
    """

    name: str
    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    differs: bool


def rows_of(graph: TwoPartitions) -> list[GroupRow]:
    """The operations in the graph's order."""
    differing = {name for edge in graph.differing for name in edge}
    groups = list(enumerate(graph.plan.groups))
    ours = {
        name: [n for n, each in groups if name in (*each.operations, *each.recomputed)] for name in graph.operations
    }
    theirs = {name: sorted(graph.homes.get(name, ())) for name in graph.operations}
    numbers: dict[frozenset[str], int] = {}

    def numbered(side: dict[str, list[int]], name: str) -> tuple[int, ...]:
        made = [frozenset(each for each in side if kernel in side[each]) for kernel in side[name]]
        return tuple(numbers.setdefault(operations, len(numbers) + 1) for operations in made)

    return [
        GroupRow(name, numbered(ours, name), numbered(theirs, name), name in differing) for name in graph.operations
    ]


def told(name: str, graph: TwoPartitions) -> tuple[str, str]:
    """Return the title, and the line that describes the figure."""
    rows = rows_of(graph)
    counts = [len({kernel for row in rows for kernel in getattr(row, side)}) for side in ("ours", "theirs")]
    same = graph.edges - len(graph.differing)
    title = f"{name}: {same} of {graph.edges} edges alike; {counts[0]} kernels and {counts[1]}"
    where = "; ".join(f"{one} to {other}" for one, other in graph.differing) or "none"
    kernels = ", ".join(f"{row.name} {_numbers(row.ours)}/{_numbers(row.theirs)}" for row in rows)
    return title, f"{title}. Differing edges: {where}. Kernels: {kernels}."


def _numbers(kernels: tuple[int, ...]) -> str:
    return "+".join(map(str, kernels)) or "none"


WIDTH = 576
TOP, PITCH = 76, 17
NAME, OURS, THEIRS, BOX = 190, 206, 372, 150  # where names end, where the boxes begin, their width


def _axes(count: int) -> tuple[Figure, Axes]:
    with rc_context(STYLE):
        height = TOP + PITCH * count + 8
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        axes.axis("off")
        for x, head in ((OURS, "the analyser"), (THEIRS, "torch.compile")):
            axes.text(x, TOP - 14, head, va="center_baseline")
        axes.text(12, TOP - 36, "a box is a kernel; grey: the same in both", va="center_baseline")
    return figure, axes


def _cells(rows: list[GroupRow]):
    """(x, y, width, height, colour, label) of each box: grey where both sides have the kernel.

    Neighbours in one kernel share a box.
    """
    ours, theirs = ({kernel for row in rows for kernel in getattr(row, side)} for side in ("ours", "theirs"))
    for left, side in ((OURS, "ours"), (THEIRS, "theirs")):
        number = 0
        for kernels, same in itertools.groupby(rows, lambda row, side=side: getattr(row, side)):
            count = len(list(same))
            for place, kernel in enumerate(kernels):
                width = BOX / len(kernels)
                colour = LIMIT if kernel in ours & theirs else UNFUSED
                yield left + place * width, TOP + number * PITCH, width, PITCH * count, colour, str(kernel)
            number += count


class FusionGroupsExplorer(Explorer):
    """The operations that each one fuses, graph by graph. Its control is the slider `graph`; `text` describes the view.

    Without a kernel it displays as a still image with that text.

    Raises:
        ValueError: a graph that is not among them, or has more operations than a picture holds.
    """

    def __init__(self, graphs: Mapping[str, TwoPartitions], graph: str | None = None):
        for name, each in graphs.items():
            if len(each.operations) > MAX:
                raise ValueError(f"{name} has {len(each.operations)} operations: the picture holds {MAX}")
        self._graphs = graphs
        self.graph = slider("graph", tuple(graphs), graph or next(iter(graphs)))
        super().__init__(FramePlayer(), [self.graph], [])

    @property
    def text(self) -> str:
        return told(self.graph.value, self._graphs[self.graph.value])[1]

    @property
    def _longest(self) -> int:
        return max(len(graph.operations) for graph in self._graphs.values())

    def chart(self) -> Chart:
        graph = self._graphs[self.graph.value]
        rows = rows_of(graph)
        figure, axes = _axes(len(rows))
        with rc_context(STYLE):
            axes.text(12, 18, told(self.graph.value, graph)[0], size=TITLE_SIZE, weight="bold")
            for number, row in enumerate(rows):
                style = {"color": WRONG, "weight": "bold"} if row.differs else {}
                y = TOP + (number + 0.5) * PITCH
                axes.text(NAME, y, _marked(row), ha="right", va="center_baseline", **style)
            for x, y, width, height, colour, label in _cells(rows):
                for style in ({"fc": colour, "alpha": 0.16, "ec": "none"}, {"fc": "none", "ec": colour}):
                    axes.add_patch(Rectangle((x, y + 1), width - 2, height - 2, **style))
                axes.text(x + 6, y + height / 2, label, va="center_baseline")
        return Chart(figure, self.text)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, _ = _axes(self._longest)
        opening = svg_opening(figure)
        frames = []
        for name, graph in self._graphs.items():
            title, text = told(name, graph)
            frames.append({"svg": _frame(opening, title, rows_of(graph)), "text": text, "table": "", "quiet": True})
        return still_svg(figure), {"frames": frames, "columns": 1}


def _marked(row: GroupRow) -> str:
    name = row.name if len(row.name) <= 30 else f"{row.name[:29]}…"
    return f"≠ {name}" if row.differs else name


def _frame(opening: str, title: str, rows: list[GroupRow]) -> str:
    parts = [svg_title(title, 12, 18)]
    for number, row in enumerate(rows):
        style = f' fill="{WRONG}" font-weight="bold"' if row.differs else ""
        y = TOP + (number + 0.5) * PITCH + 3
        parts.append(f'<text x="{NAME}" y="{y:.1f}" text-anchor="end"{style}>{_marked(row)}</text>')
    for x, y, width, height, colour, label in _cells(rows):
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 1:.1f}" width="{width - 2:.1f}" height="{height - 2}" fill="{colour}" '
            f'fill-opacity=".16" stroke="{colour}"/><text x="{x + 6:.1f}" y="{y + height / 2 + 3:.1f}">{label}</text>'
        )
    return opening + "".join(parts) + "</svg>"
