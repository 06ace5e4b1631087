"""A kernel's own blocks and lanes as a picture: which element each lane of each program asks for, wrong ones red."""

import textwrap
from collections import Counter
from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.figures.frame.chart import Chart
from helpers.style import FUSED, LIMIT, MONOSPACE, STYLE, TEXT, TITLE_SIZE, WRONG

BEYOND = 6  # elements drawn on either side of a tensor, at most
ROW, TOP = 20, 22  # points
LETTER, BOLD, FIXED = 4.8, 6.8, 6.1  # points of a letter: of text, of a title, of code
WIDE, NARROW = 576, 372  # points: a picture's width; few elements take less, so that a phone shows all of them
FEW = 20  # elements
BEFORE = 69  # points left of the elements: the rows' names
LAYERS = 3  # rows of one access at most, if lanes share elements; more share a box


@dataclass(frozen=True)
class Lanes:
    """The lanes of one program instance: the element that each asks for, those that do, and those that are wrong.

    Args:
        program: its number.
        elements, active, wrong: (lanes,) int, bool, bool.
    """

    program: int
    elements: np.ndarray
    active: np.ndarray
    wrong: np.ndarray


@dataclass(frozen=True)
class Row:
    """One row of boxes, no two at the same element: its name, and (element, label, active, wrong) of each box."""

    name: str
    boxes: tuple[tuple[int, str, bool, bool], ...]


@dataclass(frozen=True)
class KernelLine:
    """One line of a kernel.

    Args:
        source: its text.
        own: its tensor's elements in memory; missing: those that should be stored but are not.
        lanes: the elements that each program's block accesses there.
    """

    source: str
    own: tuple[int, ...]
    missing: frozenset[int]
    lanes: tuple[Lanes, ...]

    @property
    def names(self) -> list[str]:
        """The name of each access: its program, and which access of the program it is, after the first."""
        before, found = Counter(), []
        alone = len({lanes.program for lanes in self.lanes}) == 1 < len(self.lanes)
        for lanes in self.lanes:
            before[lanes.program] += 1
            turn = before[lanes.program]
            found.append(f"access {turn}" if alone or turn > 1 else f"program {lanes.program}")
        return found

    @property
    def rows(self) -> list[Row]:
        return [row for name, lanes in zip(self.names, self.lanes, strict=True) for row in rows_of(lanes, name)]


def rows_of(lanes: Lanes, name: str) -> list[Row]:
    """Return the rows that show one access: masked lanes get their own if they would cover others.

    Lanes at the same element are in rows below each other, or, if more than LAYERS, in one box with their number.
    """
    at = {True: {}, False: {}}  # active -> element -> its lanes
    for lane, (element, active) in enumerate(zip(lanes.elements.tolist(), lanes.active, strict=True)):
        at[bool(active)].setdefault(element, []).append(lane)

    def boxes(active: bool, layer: int | None) -> tuple:
        found = []
        for element, its in at[active].items():
            shown = its if layer is None else its[layer : layer + 1]
            if shown:
                label = str(shown[0]) if len(shown) == 1 else f"{len(shown)}x"
                found.append((element, label, active, bool(lanes.wrong[shown].any())))
        return tuple(found)

    depth = max(map(len, at[True].values()), default=0)
    layers = [boxes(True, layer) for layer in range(depth)] if 1 <= depth <= LAYERS else [boxes(True, None)]
    masked = boxes(False, None)
    if not at[True].keys() & at[False].keys():
        layers[0], masked = layers[0] + masked, ()
    rows = [Row(name if not number else "", each) for number, each in enumerate(layers)]
    return [*rows, Row("masked", masked)] if masked else rows


def blocks_chart(panels: list[KernelLine], title: str, told: str) -> Chart:
    """Draw one panel per line of the kernel: on top its tensor as it is in memory, below one row per program.

    A box is a lane, with its number, at the element that it accesses, or many lanes, with how many; dotted: masked;
    red: wrong.

    Args:
        panels: the lines, in order.
        title: the finding that the chart shows; told: further text, a sentence or two.
    """
    first = max(-BEYOND, min(min(lanes.elements.min() for lanes in panel.lanes) for panel in panels))
    last = max(max(panel.own) for panel in panels)
    last = min(last + BEYOND, max(last, *(lanes.elements.max() for panel in panels for lanes in panel.lanes)))
    heights = [TOP + ROW * (1 + len(panel.rows)) for panel in panels]
    labels = {label for panel in panels for row in panel.rows for _, label, *_ in row.boxes}
    if many := max((int(label[:-1]) for label in labels if label.endswith("x")), default=0):
        told = f"{told} {many}x: {many} positions at one element.".strip()
    code = BEFORE + 12 + FIXED * max(len(panel.source) for panel in panels)
    width = min(WIDE, max(NARROW, code)) if last - first < FEW else WIDE
    titles, lines = (textwrap.wrap(text, (width - 24) // letter) for text, letter in ((title, BOLD), (told, LETTER)))
    head = 14 + 16 * len(titles) + 13 * len(lines)
    with rc_context(STYLE):
        figure = Figure(figsize=(width / 72, (head + sum(heights) + 4) / 72))
        height = figure.bbox.height
        for number, line in enumerate(titles):
            figure.text(12 / width, 1 - (18 + 16 * number) / height, line, size=TITLE_SIZE, weight="bold")
        for number, line in enumerate(lines):
            figure.text(12 / width, 1 - (17 + 16 * len(titles) + 13 * number) / height, line)
        bottom = height - head
        for panel, high in zip(panels, heights, strict=True):
            bottom -= high
            axes = figure.add_axes((BEFORE / width, bottom / height, 1 - (BEFORE + 12) / width, high / height))
            axes.set(xlim=(first, last + 1), ylim=(high, 0))
            axes.axis("off")
            _draw(axes, panel, first, last)
    return Chart(figure, "\n  ".join(filter(None, [title, told, *map(_told, panels)])))


def _draw(axes, panel: KernelLine, first: int, last: int) -> None:
    side = 0.02 * (last - first + 1)
    axes.text(first, TOP - 8, panel.source, family=MONOSPACE, va="baseline")
    axes.text(first - side, TOP + ROW / 2, "tensor", ha="right", va="center", color=TEXT)
    for element in panel.own:
        missing = element in panel.missing
        style = {"facecolor": "none", "edgecolor": WRONG, "lw": 2} if missing else {"facecolor": LIMIT, "alpha": 0.25}
        axes.add_patch(Rectangle((element + 0.03, TOP + 3), 0.94, ROW - 6, **style))
    for number, row in enumerate(panel.rows, start=1):
        top = TOP + ROW * number
        axes.text(first - side, top + ROW / 2, row.name, ha="right", va="center")
        for element, label, active, wrong in row.boxes:
            if not first <= element <= last:
                continue
            colour, line = (WRONG, "-") if wrong else (FUSED, "-") if active else (LIMIT, ":")
            fill = {"facecolor": colour, "alpha": 0.9} if wrong else {"facecolor": "none"}
            axes.add_patch(
                Rectangle((element + 0.08, top + 2), 0.84, ROW - 4, edgecolor=colour, ls=line, lw=1.3, **fill)
            )
            ink = "white" if wrong else TEXT
            axes.text(element + 0.5, top + ROW / 2, label, ha="center", va="center", color=ink)


def _told(panel: KernelLine) -> str:
    rows = []
    for name, lanes in zip(panel.names, panel.lanes, strict=True):
        row = f"{name}: {spans(lanes.elements[lanes.active])}"
        if lanes.wrong.any():
            row += f" (wrong: {spans(lanes.elements[lanes.wrong])})"
        rows.append(row)
    never = f"; never stored: {spans(np.array(sorted(panel.missing)))}" if panel.missing else ""
    return f"{panel.source}\n    " + "; ".join(rows) + never


def spans(elements: np.ndarray) -> str:
    """Element numbers in few words: "0-3, 8"; runs of neighbours from first to last."""
    found = []
    for element in sorted(set(elements.tolist())):
        if found and element == found[-1][1] + 1:
            found[-1][1] = element
        else:
            found.append([element, element])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in found) or "none"
