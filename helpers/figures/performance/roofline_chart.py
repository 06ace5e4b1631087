"""The roofline: its chart, and the live one, whose operations, unfused and fused, move with rows and columns.

All positions of the sliders are drawn beforehand, under a millisecond each, and the browser picks one.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from numbers import Integral, Real

import ipywidgets as widgets
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from helpers.figures.frame.chart import Chart, label_width, page_position, plain, si
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_mark, svg_opening, svg_title
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.operations import ITEMSIZE, OPERATIONS, Cost, cost
from helpers.instruments.roofline import LEVELS, SPECIAL, Roofline, levels, measured_device, roofs
from helpers.style import LIMIT, MARKER_SIZE, MARKERS, STYLE, TEXT, TITLE_SIZE

# Sizes in points.
LABEL_HEIGHT = 11
LABEL_GAP = 8  # between a mark's middle and its label


@dataclass(frozen=True)
class Point:
    """A mark on the roofline chart: FLOP/byte, FLOP/s, and a kind: "unfused", "fused", or "single" for neither."""

    label: str
    intensity: float
    performance: float
    kind: str = "single"

    def __post_init__(self):
        if self.kind not in MARKERS:
            raise ValueError(f"{self.label} is of kind {self.kind!r}: choose from {', '.join(MARKERS)}")
        if not all(isinstance(each, Real) and 0 < each < math.inf for each in (self.intensity, self.performance)):
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


# Triton multiplies matrices on tensor cores at or above this compute capability, below it on CUDA cores.
TENSOR_CORES_IN_TRITON = (8, 0)


def _units(roof: Roofline) -> str:
    """Return the unit of a flat roof."""
    if roof.dtype == SPECIAL or not roof.device.compute_capability:
        return roof.dtype
    if roof.dtype == "fp32":
        return "fp32 on CUDA cores"
    reached = roof.device.compute_capability >= TENSOR_CORES_IN_TRITON
    return f"{roof.dtype} on tensor cores" + ("" if reached else ", not from Triton")


def roofline_axes(
    rooflines: Iterable[Roofline],
    measured: Roofline | None = None,
    key: bool = True,
    flat: bool = True,
    points: Iterable[Point] = (),
) -> tuple[Figure, Axes, list[PlacedLabel]]:
    """Draw the static parts of a roofline chart: axes, a slope for each level of memory, a flat roof for each peak.

    All rooflines are of one device. The ridge of the highest peak over the lowest slope is marked. `measured`, the
    device's sustained roof, is dashed. With `key` the corner distinguishes unfused from fused marks, which are best
    cases; without, marks are measurements. Without `flat` there are only slopes. The axes reach beyond all `points`.
    Also return the labels, for others to avoid.

    Raises:
        ValueError: no roofline, or those of several devices.
    """
    rooflines = sorted(rooflines, key=lambda roof: (roof.bandwidth, -roof.peak))
    if len(devices := sorted({roof.device.name for roof in rooflines})) != 1:
        raise ValueError(f"a roofline chart shows one device, got {' and '.join(devices) or 'no roofline'}")
    by_peak = {roof.peak: roof for roof in reversed(rooflines)}  # equal peaks share one line
    roofs = [by_peak[peak] for peak in sorted(by_peak, reverse=True)]
    by_level = {roof.level: roof for roof in reversed(rooflines)}  # each level's highest roof
    slopes = sorted(by_level.values(), key=lambda roof: roof.bandwidth)
    top, fastest = slopes[0], slopes[-1].bandwidth
    left, right = 0.015, 2e5
    low, high = top.bandwidth * left / 3, top.peak * 30
    for point in points:
        left, right = min(left, point.intensity / 3), max(right, point.intensity * 3)
        low, high = min(low, point.performance / 3), max(high, point.performance * 3)
    with rc_context(STYLE):
        figure = Figure()
        axes = figure.add_axes((0.085, 0.1, 0.895, 0.83))
        axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, high))
        axes.set_xlabel("arithmetic intensity (FLOP/byte)")
        axes.set_ylabel("performance at best (FLOP/s)" if key else "performance (FLOP/s)")
        axes.xaxis.set_major_locator(LogLocator(numticks=20))
        axes.yaxis.set_major_locator(LogLocator(numticks=20))
        axes.xaxis.set_major_formatter(lambda value, _: plain(value))
        axes.yaxis.set_major_formatter(lambda value, _: si(value))

        for roof in slopes:
            end = roof.ridge if flat else axes.get_ylim()[1] / roof.bandwidth
            ends = (left, end), (roof.bandwidth * left, roof.bandwidth * end)
            axes.plot(*ends, color=LIMIT, linewidth=2 if roof is top else 1)
        for roof in roofs if flat else ():
            ends = (roof.peak / fastest, right), (roof.peak, roof.peak)
            axes.plot(*ends, color=LIMIT, linewidth=2 if roof.peak == top.peak else 1)
        if measured:
            ends = (left, measured.ridge, right), (measured.bandwidth * left, measured.peak, measured.peak)
            axes.plot(*ends, color=LIMIT, linewidth=1, linestyle="--")
        position, labels = page_position(axes), []
        if flat:
            axes.axvline(top.ridge, color=LIMIT, linewidth=1, linestyle=":")
            labels.append(_label("left", f"ridge, {plain(top.ridge)}", *position(top.ridge, axes.get_ylim()[0]), 4, -8))
        for roof in slopes:
            name = f"{LEVELS[roof.level]}, {si(roof.bandwidth, 'B/s')}"
            if roof is not top or roof.bandwidth == fastest:  # above the slope, the slower ones' further down
                below = 2 if roof.bandwidth == fastest else 60
                labels.append(_label("right", name, *position(roof.ridge / below, roof.peak / below), -4, -4))
            else:  # another slope runs above it
                labels.append(_label("left", name, *position(roof.ridge / 30, roof.peak / 30), 6, 4))
        for roof in roofs if flat else ():
            name = f"{_units(roof)}, {si(roof.peak, 'FLOP/s')}"
            labels.append(_label("right", name, *position(right, roof.peak), 0, -8))
        if measured:
            name = f"measured, {si(measured.peak, 'FLOP/s')}"
            labels.append(_label("right", name, *position(right, measured.peak), 0, 8))
        for label in labels:
            _draw_label(axes, label)
        for number, kind in enumerate(("unfused", "fused") if key else ()):
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


def place_labels(
    points: list[Point],
    position: Callable[[float, float], tuple[float, float]],
    edges: tuple[float, float],
    obstacles: list[PlacedLabel],
) -> list[PlacedLabel]:
    """A place for each point's label such that no two overlap, and none an obstacle or a mark.

    Marks are on a roof, with free space below it to the right and above it to the left: the label of an unfused point
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


def roofline_chart(
    rooflines: Roofline | Iterable[Roofline],
    points: Iterable[Point],
    title: str,
    text: str,
    measured: Roofline | None = None,
    flat: bool = True,
) -> Chart:
    """Points under the roofs of one device; an unfused and a fused point of the same label are joined.

    Args:
        rooflines: one, or several of the same device in different dtypes.
        points: the marks.
        title: the finding that the chart shows.
        text: the description for screen readers.
        measured: the device's sustained roof, dashed.
        flat: whether to draw the compute roof.

    Raises:
        ValueError: no roofline, or those of several devices.
    """
    points = list(points)
    one_or_more = [rooflines] if isinstance(rooflines, Roofline) else rooflines
    figure, axes, labels = roofline_axes(one_or_more, measured, _has_pairs(points), flat, points)
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


def _has_pairs(points: list[Point]) -> bool:
    """Return whether some are unfused or fused, so that the corner needs a key."""
    return any(point.kind != "single" for point in points)


# Powers of two, and sizes that are met in practice or fit no tile.
ROWS = (1, 4, 16, 64, 127, 128, 197, 256, 512, 1000, 1024, 1025, 2048, 4096, 8192, 16384, 32768, 65536)
COLUMNS = (1, 16, 64, 127, 128, 512, 768, 1024, 1025, 2048, 4096, 5120, 8192, 11008, 16384)
SHOWN = ("ReLU", "add+GELU", "LayerNorm", "softmax", "matmul+bias+ReLU", "attention")
EVERYTHING = "everything"
# The chart in steps: each one's addition, and its operations.
STEPS = {
    "memory roof": ("add+GELU",),
    "compute roof": ("add+GELU", "matmul+bias+ReLU"),
    "fusing": ("add+GELU",),
    EVERYTHING: (),  # those that are chosen
}


@dataclass(frozen=True)
class RooflineScene:
    """The roofline explorer's view: points, the finding, a line of text, and the costs of each operation."""

    rooflines: tuple[Roofline, ...]
    measured: Roofline | None  # what the device holds in that dtype, where it was measured
    points: list[Point]
    title: str
    text: str
    costs: dict[str, tuple[Cost, Cost]]  # by operation: unfused, fused
    flat: bool = True  # whether there is a compute roof


def roofline_step(step: str, device: Device, dtype: str, rows: int, columns: int) -> RooflineScene:
    """Return one of the first STEPS: one slope and a mark under it; the compute roof; the effect of fusing.

    Raises:
        ValueError: no peak for that dtype, or fewer than one row or column.
    """
    roof = Roofline(device, dtype)
    scene = roofline_scene(device, dtype, rows, columns, STEPS[step])
    if step == "fusing":
        return replace(scene, rooflines=(roof,), measured=None)
    points = [Point(name, cost.work.intensity, cost.performance) for name, (cost, _) in scene.costs.items()]
    if step == "memory roof":
        [(name, (cost, _))] = scene.costs.items()
        intensity = cost.work.intensity
        points = [Point(name, intensity, roof.bandwidth * intensity)]
        title = (
            f"{name} does {plain(intensity)} FLOP per byte: "
            f"{si(roof.bandwidth, 'B/s')} allow {si(points[0].performance, 'FLOP/s')}"
        )
    else:
        title = f"Below {plain(roof.ridge)} FLOP per byte memory is the limit, above it arithmetic"
    text = f"{device.name}, {dtype}, shape ({rows}, {columns}), unfused. {title}."
    return RooflineScene((roof,), None, points, title, text, {}, flat=step != "memory roof")


def roofline_scene(device: Device, dtype: str, rows: int, columns: int, operations: Iterable[str]) -> RooflineScene:
    """Return the roofline of some OPERATIONS on (rows, columns), unfused and fused, each launch at its minimum time.

    Raises:
        ValueError: no peak for that dtype, an unknown operation, or fewer than one row or column.
    """
    tensor = Roofline(device, dtype)
    if not all(isinstance(each, Integral) and each >= 1 for each in (rows, columns)):
        raise ValueError(f"{rows} rows of {columns}: both must be whole numbers of at least 1")
    points, costs = [], {}
    for name in operations:
        if name not in OPERATIONS:
            raise ValueError(f"unknown operation {name!r}: choose from {', '.join(OPERATIONS)}")
        if dtype not in ITEMSIZE:
            raise ValueError(f"an element in {dtype} is a fraction of a byte: choose from {', '.join(ITEMSIZE)}")
        versions = OPERATIONS[name](rows, columns, ITEMSIZE[dtype])
        unfused = fused = cost(versions.unfused, device, dtype)
        if versions.fused != versions.unfused:
            fused = cost(versions.fused, device, dtype)
            points.append(Point(name, unfused.work.intensity, unfused.performance, "unfused"))
        kind = "single" if fused is unfused else "fused"
        points.append(Point(name, fused.work.intensity, fused.performance, kind))
        costs[name] = (unfused, fused)

    title = _finding(costs)
    sides = [
        f"{bound}-bound: {', '.join(names)}"
        for bound in ("memory", "compute")
        if (names := [name for name, (_, fused) in costs.items() if fused.bound == bound])
    ]
    text = (
        f"{device.name}, {dtype}, shape ({rows}, {columns}): ridge at {plain(tensor.ridge)} FLOP/byte. "
        + "".join(f"{side[0].upper()}{side[1:]}. " for side in sides)
        + f"{title}."
    )
    known, found = roofs(device), measured_device(device)
    flat = [known[name] for name in ("fp32", SPECIAL) if name in known]
    held = Roofline(found, dtype) if found and dtype in found.peak_flops else None
    if held:
        text += f" Measured: {si(held.bandwidth, 'B/s')}, {si(held.peak, 'FLOP/s')}."
    if dtype != "fp32" and device.compute_capability < TENSOR_CORES_IN_TRITON:
        text += " Triton has no tensor cores before compute capability 8.0: its products run on CUDA cores here."
    return RooflineScene((*levels(device, dtype).values(), *flat), held, points, title, text, costs)


def _finding(costs: dict[str, tuple[Cost, Cost]]) -> str:
    gains = {name: unfused.time / fused.time for name, (unfused, fused) in costs.items() if fused is not unfused}
    if not gains:
        return "Nothing here to fuse: each operation is one launch" if costs else "No operation is chosen"
    most, least = max(gains, key=gains.get), min(gains, key=gains.get)
    finding = f"At best, fusing makes {most} {_times(gains[most], 'times faster')}"
    return finding if most == least else f"{finding}, {least} {_times(gains[least], 'times')}"


def _times(gain: float, unit: str) -> str:
    return f"{gain:.2f} {unit}" if gain >= 1.005 else "no faster"


@dataclass(frozen=True)
class _Still:
    svg: str
    opening: str  # of the SVG over it
    position: object
    edges: tuple[float, float]
    labels: list[PlacedLabel]


@functools.cache
def _still(rooflines: tuple[Roofline, ...], measured: Roofline | None, key: bool, flat: bool) -> _Still:
    figure, axes, labels = roofline_axes(rooflines, measured, key, flat)
    return _Still(still_svg(figure), svg_opening(figure), page_position(axes), (axes.bbox.x0, axes.bbox.x1), labels)


def _moving(scene: RooflineScene, still: _Still) -> str:
    joins, marks, labels, starts = [], [], [], {}
    for point in scene.points:
        x, y = still.position(point.intensity, point.performance)
        if point.label in starts:
            x0, y0 = starts[point.label]
            joins.append(f"M{x0:.1f} {y0:.1f}L{x:.1f} {y:.1f}")
        starts[point.label] = (x, y)
        marks.append(svg_mark(point.kind, x, y))
    leaders = []
    for label in place_labels(scene.points, still.position, still.edges, still.labels):
        leaders.append(f"M{label.mark[0]:.1f} {label.mark[1]:.1f}L{label.x:.1f} {label.y:.1f}")
        anchor = ' text-anchor="end"' if label.align == "right" else ""
        labels.append(f'<text x="{label.x:.1f}" y="{label.y + 3:.1f}"{anchor}>{label.text}</text>')
    return (
        f"{still.opening}"
        f"{svg_title(scene.title, still.edges[0], 15)}"
        f'<g stroke="{LIMIT}" fill="none"><path d="{"".join(joins)}" stroke-dasharray="4 2"/>'
        f'<path d="{"".join(leaders)}" stroke-width=".5"/></g>'
        f'<g stroke="{TEXT}">{"".join(marks)}</g><g class="fusion-labels">{"".join(labels)}</g></svg>'
    )


def _table(scene: RooflineScene) -> str:
    if not scene.costs:
        return ""
    rows = []
    for name, (unfused, fused) in scene.costs.items():
        cells = [
            (f"{unfused.launches}", f"{fused.launches}"),
            (si(unfused.work.bytes, "B"), si(fused.work.bytes, "B")),
            (plain(unfused.work.intensity), plain(fused.work.intensity)),
            (si(unfused.time, "s"), si(fused.time, "s")),
        ]
        texts = [a if fused is unfused else f"{a} → {b}" for a, b in cells]
        rows.append(f"<tr><th scope=row>{name}<td>" + "<td>".join([*texts, fused.unit]))
    return (
        "<table><tr><th>unfused → fused<th>launches<th>bytes<th>FLOP/byte<th>time at best<th>fused, limited by"
        + "".join(rows)
        + "</table>"
    )


class RooflineExplorer(Explorer):
    """A roofline with sliders for rows and columns, and a choice of dtype, GPU and operations.

    Its controls are widgets: `show` (one of STEPS), `rows`, `columns`, `dtype`, `device` (a name) and `operations` (a
    checkbox by name, in the last step); `text` describes the view. Without a kernel it displays as a still image with
    that text.

    Raises:
        ValueError: an unknown device, operation or step, a dtype the device has no peak for, a size not on the sliders.
    """

    _kernel_only = tuple(OPERATIONS)  # a box per operation: 2 to the power of their number

    def __init__(
        self,
        device: str = "A100",
        dtype: str = "fp16",
        rows: int = 4096,
        columns: int = 4096,
        operations: Iterable[str] = SHOWN,
        show: str = EVERYTHING,
    ):
        operations = tuple(operations)
        if show not in STEPS:
            raise ValueError(f"the roofline has no step {show!r}: choose from {', '.join(STEPS)}")
        roofline_scene(DEVICES[device], dtype, 1, 1, operations)  # refuses what cannot be shown
        self.rows = slider("rows", ROWS, rows)
        self.columns = slider("columns", COLUMNS, columns)
        self.dtype = widgets.Dropdown(options=list(ITEMSIZE), value=dtype, description="dtype")
        self.device = widgets.Dropdown(options=list(DEVICES), value=device, description="GPU")
        self.operations = {
            name: widgets.Checkbox(
                value=name in operations, description=name, indent=False, layout=widgets.Layout(width="auto")
            )
            for name in OPERATIONS
        }
        self.show = widgets.Dropdown(options=list(STEPS), value=show, description="show")
        for choice in (self.show, self.device, self.dtype):  # all three in one line
            choice.layout.width = "250px"
        choices = [[self.show, self.device, self.dtype], list(self.operations.values())]
        super().__init__(FramePlayer(), [self.rows, self.columns], choices)
        self.show.observe(self._hide_operations, "value")
        self._hide_operations()

    def _hide_operations(self, _change=None) -> None:
        for box in self.operations.values():
            box.layout.display = "" if self.show.value == EVERYTHING else "none"

    def _scene(self, rows: int, columns: int) -> RooflineScene:
        if self.show.value != EVERYTHING:
            return roofline_step(self.show.value, DEVICES[self.device.value], self.dtype.value, rows, columns)
        chosen = [name for name, box in self.operations.items() if box.value]
        return roofline_scene(DEVICES[self.device.value], self.dtype.value, rows, columns, chosen)

    @property
    def text(self) -> str:
        try:
            return self._scene(self.rows.value, self.columns.value).text
        except ValueError as error:  # a dtype that the GPU chosen does not have
            return str(error)

    def chart(self) -> Chart:
        scene = self._scene(self.rows.value, self.columns.value)
        return roofline_chart(scene.rooflines, scene.points, scene.title, scene.text, scene.measured, scene.flat)

    def _still_and_data(self) -> tuple[str, dict]:
        try:
            scenes = [self._scene(rows, columns) for rows in ROWS for columns in COLUMNS]
        except ValueError:
            svg, frames = "", [{"svg": "", "text": self.text, "table": ""}] * (len(ROWS) * len(COLUMNS))
        else:
            first = scenes[0]
            still = _still(first.rooflines, first.measured, _has_pairs(first.points), first.flat)
            svg = still.svg
            frames = [{"svg": _moving(scene, still), "text": scene.text, "table": _table(scene)} for scene in scenes]
        return svg, {"frames": frames, "columns": len(COLUMNS)}
