"""Bars and labels placed in points of the page, y downwards: worked out once, drawn as a picture and as an SVG."""

import math
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.figures.frame.chart import Chart, si
from helpers.figures.frame.explorer import svg_title
from helpers.style import LIMIT, STYLE, TEXT, TITLE_SIZE

LEFT = 12  # of the title
TITLE_FROM_TOP = 16
BELOW = 34  # the axes of the panels
STEPS = (1, 1.5, 2, 3, 4, 5, 7, 10)  # where an axis may end, times a power of ten
ANCHORS = {"left": "start", "center": "middle", "right": "end"}


@dataclass(frozen=True)
class Box:
    """A rectangle around y; `colour` None is an open one."""

    x: float
    y: float
    width: float
    height: float
    colour: str | None


@dataclass(frozen=True)
class Label:
    """Text around y; `align` is "left", "center" or "right" of x. `more` follows it, but not on a narrow page."""

    text: str
    x: float
    y: float
    align: str
    colour: str = TEXT
    more: str = ""


@dataclass(frozen=True)
class Scene:
    """The moving parts: the title (the finding), bars, labels, dashed `links` from one x, y to another, and the text
    that describes them; `line` is the part of it that the picture doesn't show, if it shows the rest."""

    title: str
    boxes: tuple[Box, ...]
    labels: tuple[Label, ...]
    text: str
    line: str | None = None
    links: tuple[tuple[float, float, float, float], ...] = ()


@dataclass(frozen=True)
class Panel:
    """A space for bars from `left`; `right` is where its axis ends, which counts in `unit`."""

    left: float
    right: float
    head: str
    unit: str = "B"

    def ends(self, end: float, size: tuple[float, float]) -> tuple[Label, Label]:
        """The labels of an axis that goes to `end`, in a figure of `size`."""
        y = size[1] - BELOW + 9
        return Label("0", self.left, y, "center"), Label(si(end, self.unit), self.right, y, "center")


def axis_end(longest: float) -> float:
    """Return the end of an axis for bars up to `longest`: a round number."""
    power = 10.0 ** math.floor(math.log10(longest))
    return next(step * power for step in STEPS if step * power >= longest)


def still(
    size: tuple[float, float], names: dict[str, float], panels: tuple[Panel, ...], more: float = 0
) -> tuple[Figure, Axes]:
    """Draw the static parts: the bars' names, each at its y left of the first panel, the panels' heads, and their axes.

    `size`: width and height; `more`: points below it for something else. Data of the axes are points of the page.
    """
    width, height = size[0], size[1] + more
    top, bottom = 51, size[1] - BELOW
    with rc_context(STYLE):
        figure = Figure(figsize=(width / 72, height / 72))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        for name, y in names.items():
            _write(axes, Label(name, panels[0].left - 6, y, "right"))
        for panel in panels:
            _write(axes, Label(panel.head, panel.left, top - 9, "left"))
            left, right = panel.left, panel.right
            axes.plot((left, left, right, right), (top, bottom, bottom, bottom + 3), color=LIMIT, lw=0.8)
    return figure, axes


def picture(figure: Figure, axes: Axes, shown: Scene) -> Chart:
    """The scene over its still part."""
    with rc_context(STYLE):
        width, height = figure.bbox.size
        place = {"ha": "left", "va": "center_baseline", "size": TITLE_SIZE, "weight": "bold"}
        figure.text(LEFT / width, 1 - TITLE_FROM_TOP / height, shown.title, **place)
        for box in shown.boxes:
            corner = box.x, box.y - box.height / 2
            axes.add_patch(Rectangle(corner, box.width, box.height, facecolor=box.colour or "none", edgecolor=TEXT))
        for x0, y0, x1, y1 in shown.links:
            axes.plot((x0, x1), (y0, y1), color=LIMIT, lw=0.8, ls="--")
        for label in shown.labels:
            _write(axes, label)
    return Chart(figure, shown.text)


def _write(axes: Axes, label: Label) -> None:
    axes.text(label.x, label.y, label.text + label.more, ha=label.align, va="center_baseline", color=label.colour)


def svg(opening: str, shown: Scene) -> str:
    """The scene as an SVG; `opening`: its opening tag."""
    boxes = (
        f'<rect x="{box.x:.1f}" y="{box.y - box.height / 2:.1f}" width="{box.width:.1f}" height="{box.height}" '
        f'fill="{box.colour or "none"}" stroke="{TEXT}"/>'
        for box in shown.boxes
    )
    ends = "".join(f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" for x0, y0, x1, y1 in shown.links)
    links = f'<path d="{ends}" fill="none" stroke="{LIMIT}" stroke-dasharray="4 3"/>' if ends else ""
    labels = (
        f'<text x="{label.x:.1f}" y="{label.y + 3:.1f}" text-anchor="{ANCHORS[label.align]}"{_paint(label)}>'
        f"{label.text}{_fine(label.more)}</text>"
        for label in shown.labels
    )
    return f"{opening}{svg_title(shown.title, LEFT, TITLE_FROM_TOP + 3)}{''.join(boxes)}{links}{''.join(labels)}</svg>"


def _fine(more: str) -> str:
    return f'<tspan class="fusion-fine">{more}</tspan>' if more else ""


def _paint(label: Label) -> str:
    # The page's own colour otherwise: a bar's. A narrow page has no room for letters in bars.
    return "" if label.colour == TEXT else f' fill="{label.colour}" class="fusion-fine"'
