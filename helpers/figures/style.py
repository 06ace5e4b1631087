"""The look of every chart in the course, and the roofline chart.

Unfused is an orange circle, fused a blue square, limits are grey. A picture is drawn on a transparent background in
colours that read on a white and on a dark page alike: text in the one grey that is as far from white as from
JupyterLab's dark #111111 (4.3:1 each; no colour reaches 4.5:1 on both), and a grey edge round each orange or blue mark.
"""

import base64
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from helpers.instruments.roofline import LEVELS, Roofline

# Okabe and Ito, "Color universal design" (2008).
UNFUSED = "#E69F00"
FUSED = "#0072B2"
TEXT = "#797979"
LIMIT = "#7a7a7a"
MARKERS = {"unfused": ("o", UNFUSED), "fused": ("s", FUSED), "single": ("D", LIMIT)}
INK = {UNFUSED: "black", FUSED: "white", LIMIT: "white"}  # text on a bar of that colour

# Sizes in points.
MARKER_SIZE = 7
TITLE_SIZE = 10
LABEL_HEIGHT = 11
LABEL_GAP = 8  # between a mark's middle and its label

STYLE = {
    "figure.figsize": (8, 5),
    "figure.dpi": 72,  # one pixel a point, as in an SVG
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,  # the grid under the bars
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "svg.fonttype": "none",
    "svg.hashsalt": "kernel-fusion-course",  # the same drawing, the same bytes
    "grid.color": LIMIT,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT),
}


@dataclass(frozen=True)
class Chart:
    """A picture and the line that says the same. A notebook shows the picture; a reader without it has the line."""

    figure: Figure
    text: str

    def png(self) -> bytes:
        """The picture, sharp on dense screens."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=192)
        return buffer.getvalue()

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None):
        width, height = (round(inches * 96) for inches in self.figure.get_size_inches())
        data = {"text/plain": self.text, "image/png": base64.b64encode(self.png()).decode()}
        return data, {"image/png": {"width": width, "height": height, "alt": self.text}}


@dataclass(frozen=True)
class Point:
    """A mark on the roofline chart: FLOP/byte, FLOP/s, and a kind: "unfused", "fused", or "single" for neither."""

    label: str
    intensity: float
    performance: float
    kind: str = "single"

    def __post_init__(self):
        if self.kind not in MARKERS:
            raise ValueError(f"{self.label} is of kind {self.kind!r}: one of {', '.join(MARKERS)} expected")
        if not (0 < self.intensity < math.inf and 0 < self.performance < math.inf):
            raise ValueError(
                f"{self.label} is at {self.intensity} FLOP/byte and {self.performance} FLOP/s: "
                "logarithmic axes take finite numbers above 0"
            )


@dataclass(frozen=True)
class PlacedLabel:
    """A label and its mark on the page, in points, y downwards: `x` is the end that faces the mark, `y` the middle."""

    text: str
    x: float
    y: float
    align: str  # "left" or "right": the side of the text that x is
    mark: tuple[float, float]

    @property
    def left(self) -> float:
        return self.x - (label_width(self.text) if self.align == "right" else 0)


def si(value: float, unit: str = "") -> str:
    """Three digits and a prefix: si(3.35e12, "B/s") == "3.35 TB/s"."""
    prefixes = ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m"), (-6, "µ"), (-9, "n"))
    power, prefix = next((p for p in prefixes if abs(value) >= 0.9995 * 10.0 ** p[0]), (0, ""))
    return f"{plain(value / 10.0**power)} {prefix}{unit}".rstrip()


def plain(value: float) -> str:
    """Three digits, no exponent: plain(1.5) == "1.5", plain(152.9) == "153", plain(12345) == "12,300"."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = f"{round(value, digits):,.{max(0, digits)}f}"
    return rounded.rstrip("0").rstrip(".") if "." in rounded else rounded


def bar_axes(names: Sequence[str], longest: float, title: str, label: str) -> tuple[Figure, Axes]:
    """A figure for one horizontal bar a name, the first on top: bar `number` lies at y = number, from 0 rightwards.

    The axis' `label` begins at the picture's left edge, where a long one has room.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 0.8 + 0.55 * len(names)))
        width, height = figure.bbox.size
        left = 12 + label_width(max(names, key=len))
        axes = figure.add_axes((left / width, 34 / height, 1 - (left + 12) / width, 1 - 62 / height))
        axes.set(xlim=(0, longest * 1.3), ylim=(len(names) - 0.4, -0.6))  # room for a label beside the longest bar
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        figure.text(12 / width, 1 - 14 / height, title, size=TITLE_SIZE, weight="bold")
        figure.text(12 / width, 6 / height, label)
    return figure, axes


def roofline_axes(rooflines: Iterable[Roofline]) -> tuple[Figure, Axes, list[PlacedLabel]]:
    """What stays still on a roofline chart: axes, a slope for each level of memory, a flat roof for each peak.

    All rooflines are of one device. The ridge of the highest peak over the lowest slope is marked. Also given: the
    labels, for others to keep clear of.
    """
    rooflines = sorted(rooflines, key=lambda roof: (roof.bandwidth, -roof.peak))
    by_peak = {roof.peak: roof for roof in reversed(rooflines)}  # equal peaks share one line
    roofs = [by_peak[peak] for peak in sorted(by_peak, reverse=True)]
    by_level = {roof.level: roof for roof in reversed(rooflines)}  # each level's highest roof
    slopes = sorted(by_level.values(), key=lambda roof: roof.bandwidth)
    device, top, fastest = slopes[0].device, slopes[0], slopes[-1].bandwidth
    left, right = 0.015, 2e5
    with rc_context(STYLE):
        figure = Figure()
        axes = figure.add_axes((0.085, 0.1, 0.895, 0.83))
        axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(top.bandwidth * left / 3, top.peak * 30))
        axes.set_xlabel("arithmetic intensity (FLOP/byte)")
        axes.set_ylabel("performance at best (FLOP/s)")
        axes.xaxis.set_major_locator(LogLocator(numticks=20))
        axes.yaxis.set_major_locator(LogLocator(numticks=20))
        axes.xaxis.set_major_formatter(lambda value, _: plain(value))
        axes.yaxis.set_major_formatter(lambda value, _: si(value))

        for roof in slopes:
            ends = (left, roof.ridge), (roof.bandwidth * left, roof.peak)
            axes.plot(*ends, color=LIMIT, linewidth=2 if roof is top else 1)
        for roof in roofs:
            ends = (roof.peak / fastest, right), (roof.peak, roof.peak)
            axes.plot(*ends, color=LIMIT, linewidth=2 if roof.peak == top.peak else 1)
        axes.axvline(top.ridge, color=LIMIT, linewidth=1, linestyle=":")

        position = page_position(axes)
        labels = [_label("left", f"ridge, {plain(top.ridge)}", *position(top.ridge, axes.get_ylim()[0]), 4, -8)]
        for roof in slopes:
            name = f"{LEVELS[roof.level]}, {si(roof.bandwidth, 'B/s')}"
            if roof.bandwidth == fastest:
                labels.append(_label("right", name, *position(roof.ridge / 2, roof.peak / 2), -4, -4))
            else:  # another slope runs above it
                labels.append(_label("left", name, *position(roof.ridge / 30, roof.peak / 30), 6, 4))
        for roof in roofs:
            units = "CUDA cores" if roof.dtype == "fp32" else "tensor cores"
            name = f"{roof.dtype} on {units}" if device.compute_capability else roof.dtype
            labels.append(_label("right", f"{name}, {si(roof.peak, 'FLOP/s')}", *position(right, roof.peak), 0, -8))
        for label in labels:
            _draw_label(axes, label)
        for number, kind in enumerate(("unfused", "fused")):
            marker, colour = MARKERS[kind]
            x, y = 0.025, 0.97 - 0.045 * number
            axes.plot(x, y, marker, color=colour, markersize=MARKER_SIZE, mec=TEXT, transform=axes.transAxes, zorder=4)
            x, y = axes.transAxes.transform((x, y))
            _draw_label(axes, _label("left", kind, x, figure.bbox.height - y, LABEL_GAP, 0))
    return figure, axes, labels


def _label(align: str, text: str, x: float, y: float, dx: float, dy: float) -> PlacedLabel:
    return PlacedLabel(text, x + dx, y + dy, align, (x + dx, y + dy))


def _draw_label(axes: Axes, label: PlacedLabel) -> None:
    height = axes.figure.bbox.height
    if label.y != label.mark[1]:
        axes.annotate(
            "",
            (label.mark[0], height - label.mark[1]),
            (label.x, height - label.y),
            xycoords="figure points",
            textcoords="figure points",
            arrowprops={"arrowstyle": "-", "color": LIMIT, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 0},
        )
    axes.annotate(
        label.text, (label.x, height - label.y), xycoords="figure points", ha=label.align, va="center_baseline"
    )


def page_position(axes: Axes) -> Callable[[float, float], tuple[float, float]]:
    """From data to points of the page, y downwards as an SVG counts it: the log-log axes' own transform.

    Reduced to a straight line in each logarithm, which takes a microsecond a point.
    """
    (x0, y0), (x1, y1) = axes.transData.transform([(1, 1), (10, 10)])
    height = axes.figure.bbox.height
    return lambda x, y: (x0 + (x1 - x0) * math.log10(x), height - y0 - (y1 - y0) * math.log10(y))


def place_labels(
    points: list[Point],
    position: Callable[[float, float], tuple[float, float]],
    edges: tuple[float, float],
    obstacles: list[PlacedLabel],
) -> list[PlacedLabel]:
    """A place for each point's label such that no two overlap, and none an obstacle or a mark.

    Marks lie on a roof, with free space below it to the right and above it to the left: the label of an unfused point
    goes left and upwards, any other right and downwards, or to the other side where `edges` (left, right) come first.
    """
    marks = [position(point.intensity, point.performance) for point in points]
    taken = [(label.left, label.y, label_width(label.text)) for label in obstacles]
    taken += [(x - MARKER_SIZE / 2, y, MARKER_SIZE) for x, y in marks]
    placed = []
    for upwards in (False, True):
        group = [(y, x, p.label) for (x, y), p in zip(marks, points, strict=True) if (p.kind == "unfused") is upwards]
        for mark_y, mark_x, text in sorted(group, reverse=upwards):
            width, step = label_width(text), -1 if upwards else 1
            fits_left = mark_x - LABEL_GAP - width >= edges[0]
            fits_right = mark_x + LABEL_GAP + width <= edges[1]
            align = ("right" if fits_left else "left") if upwards else ("left" if fits_right else "right")
            left = mark_x + LABEL_GAP if align == "left" else mark_x - LABEL_GAP - width
            y = mark_y - LABEL_HEIGHT if upwards else mark_y + LABEL_HEIGHT / 2  # clear of the roof
            while clashes := [
                other_y
                for other_left, other_y, other_width in taken
                if other_left < left + width and left < other_left + other_width and abs(other_y - y) < LABEL_HEIGHT
            ]:
                y = (min if upwards else max)(clashes) + step * (LABEL_HEIGHT + 0.01)
            taken.append((left, y, width))
            placed.append(PlacedLabel(text, left if align == "left" else left + width, y, align, (mark_x, mark_y)))
    return placed


def label_width(label: str) -> float:
    """An upper estimate of a label's width, in points."""
    return 5.4 * len(label)


def roofline_chart(rooflines: Roofline | Iterable[Roofline], points: Iterable[Point], title: str, text: str) -> Chart:
    """Points under the roofs of one device; an unfused and a fused point of the same label are joined.

    Args:
        rooflines: one, or several of the same device in different dtypes.
        points: what to mark.
        title: the finding that the chart shows.
        text: the line that says the same to those who cannot see it.
    """
    points = list(points)
    figure, axes, labels = roofline_axes([rooflines] if isinstance(rooflines, Roofline) else rooflines)
    with rc_context(STYLE):
        figure.text(axes.bbox.x0 / figure.bbox.width, 0.97, title, size=TITLE_SIZE, weight="bold", va="center_baseline")
        for label in dict.fromkeys(point.label for point in points):
            joined = [(point.intensity, point.performance) for point in points if point.label == label]
            axes.plot(*zip(*joined, strict=True), color=LIMIT, linewidth=1, linestyle="--", zorder=3)
        for point in points:
            marker, colour = MARKERS[point.kind]
            axes.plot(
                point.intensity, point.performance, marker, color=colour, markersize=MARKER_SIZE, mec=TEXT, zorder=4
            )
        for label in place_labels(points, page_position(axes), (axes.bbox.x0, axes.bbox.x1), labels):
            _draw_label(axes, label)
    return Chart(figure, text)
