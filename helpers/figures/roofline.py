"""The live roofline: operations, unfused and fused, under the roofs of a GPU, as rows and columns change.

All positions of the sliders are drawn beforehand, under a millisecond each, and the browser picks one.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import ipywidgets as widgets

from helpers.figures import style as charts
from helpers.figures.stage import Explorer, Stage, script, slider, still_svg, svg_opening
from helpers.figures.style import Chart, PlacedLabel, Point, plain, si
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.operations import ITEMSIZE, OPERATIONS, Cost, cost
from helpers.instruments.roofline import Roofline, levels

# Powers of two, and sizes that are met in practice or fit no tile.
ROWS = (1, 4, 16, 64, 127, 128, 197, 256, 512, 1000, 1024, 1025, 2048, 4096, 8192, 16384, 32768, 65536)
COLUMNS = (1, 16, 64, 127, 128, 512, 768, 1024, 1025, 2048, 4096, 5120, 8192, 11008, 16384)
SHOWN = ("ReLU", "add+GELU", "LayerNorm", "softmax", "matmul+bias+ReLU", "attention")


@dataclass(frozen=True)
class RooflineScene:
    """What the roofline explorer shows: points, the finding, a line of text, and the costs of each operation."""

    rooflines: tuple[Roofline, ...]
    points: list[Point]
    title: str
    text: str
    costs: dict[str, tuple[Cost, Cost]]  # by operation: unfused, fused


def roofline_scene(device: Device, dtype: str, rows: int, columns: int, operations: Iterable[str]) -> RooflineScene:
    """The roofline of some OPERATIONS on (rows, columns), unfused and fused, each launch at its least time.

    Raises:
        ValueError: no peak for that dtype, an unknown operation, or fewer than one row or column.
    """
    tensor, vector = Roofline(device, dtype), Roofline(device, "fp32")
    if rows < 1 or columns < 1:
        raise ValueError(f"{rows} rows of {columns}: at least 1 of each expected")
    points, costs = [], {}
    for name in operations:
        if name not in OPERATIONS:
            raise ValueError(f"no operation is named {name!r}: choose from {', '.join(OPERATIONS)}")
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
    return RooflineScene((*levels(device, dtype).values(), vector), points, title, text, costs)


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
def _still(*rooflines: Roofline) -> _Still:
    figure, axes, labels = charts.roofline_axes(rooflines)
    return _Still(
        still_svg(figure), svg_opening(figure), charts.page_position(axes), (axes.bbox.x0, axes.bbox.x1), labels
    )


def _mark(kind: str, x: float, y: float) -> str:
    half = charts.MARKER_SIZE / 2
    colour = charts.MARKERS[kind][1]
    if kind == "unfused":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{half}" fill="{colour}"/>'
    turn = "" if kind == "fused" else f' transform="rotate(45 {x:.1f} {y:.1f})"'
    size = charts.MARKER_SIZE
    return f'<rect x="{x - half:.1f}" y="{y - half:.1f}" width="{size}" height="{size}" fill="{colour}"{turn}/>'


def _moving(scene: RooflineScene, still: _Still) -> str:
    joins, marks, labels, starts = [], [], [], {}
    for point in scene.points:
        x, y = still.position(point.intensity, point.performance)
        if point.label in starts:
            x0, y0 = starts[point.label]
            joins.append(f"M{x0:.1f} {y0:.1f}L{x:.1f} {y:.1f}")
        starts[point.label] = (x, y)
        marks.append(_mark(point.kind, x, y))
    leaders = []
    for label in charts.place_labels(scene.points, still.position, still.edges, still.labels):
        leaders.append(f"M{label.mark[0]:.1f} {label.mark[1]:.1f}L{label.x:.1f} {label.y:.1f}")
        anchor = ' text-anchor="end"' if label.align == "right" else ""
        labels.append(f'<text x="{label.x:.1f}" y="{label.y + 3:.1f}"{anchor}>{label.text}</text>')
    return (
        f"{still.opening}"
        f'<text x="{still.edges[0]}" y="15" font-size="{charts.TITLE_SIZE}" font-weight="bold">{scene.title}</text>'
        f'<g stroke="{charts.LIMIT}" fill="none"><path d="{"".join(joins)}" stroke-dasharray="4 2"/>'
        f'<path d="{"".join(leaders)}" stroke-width=".5"/></g>'
        f'<g stroke="{charts.TEXT}">{"".join(marks)}</g>{"".join(labels)}</svg>'
    )


def _table(scene: RooflineScene) -> str:
    rows = []
    for name, (unfused, fused) in scene.costs.items():
        cells = [
            (f"{unfused.launches}", f"{fused.launches}"),
            (si(unfused.work.bytes, "B"), si(fused.work.bytes, "B")),
            (plain(unfused.work.intensity), plain(fused.work.intensity)),
            (si(unfused.time, "s"), si(fused.time, "s")),
        ]
        texts = [a if fused is unfused else f"{a} → {b}" for a, b in cells]
        rows.append(f"<tr><th scope=row>{name}<td>" + "<td>".join([*texts, fused.bound]))
    return (
        "<table><tr><th>unfused → fused<th>launches<th>bytes<th>FLOP/byte<th>time at best<th>bound, fused"
        + "".join(rows)
        + "</table>"
    )


class _RooflineStage(Stage):
    _esm = script("frames.js")


class RooflineExplorer(Explorer):
    """A roofline with sliders for rows and columns, and a choice of dtype, GPU and operations.

    Its controls are widgets: `rows`, `columns`, `dtype`, `device` (a name) and `operations` (a checkbox by name); what
    it shows is also the string `text`. Displayed where no kernel runs, it is a picture and that text.
    """

    def __init__(self, device: str, dtype: str, rows: int, columns: int, operations: Iterable[str]):
        operations = tuple(operations)
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
        choices = [[self.device, self.dtype], list(self.operations.values())]
        super().__init__(_RooflineStage(), [self.rows, self.columns], choices)

    def _scene(self, rows: int, columns: int) -> RooflineScene:
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
        return charts.roofline_chart(scene.rooflines, scene.points, scene.title, scene.text)

    def _still_and_data(self) -> tuple[str, dict]:
        try:
            scenes = [self._scene(rows, columns) for rows in ROWS for columns in COLUMNS]
        except ValueError:
            svg, frames = "", [{"svg": "", "text": self.text, "table": ""}] * (len(ROWS) * len(COLUMNS))
        else:
            still = _still(*scenes[0].rooflines)
            svg = still.svg
            frames = [{"svg": _moving(scene, still), "text": scene.text, "table": _table(scene)} for scene in scenes]
        return svg, {"frames": frames, "columns": len(COLUMNS)}


def roofline_explorer(
    device: str = "A100",
    dtype: str = "fp16",
    rows: int = 4096,
    columns: int = 4096,
    operations: Iterable[str] = SHOWN,
) -> RooflineExplorer:
    """The live roofline; the last expression of a cell shows it.

    Raises:
        ValueError: an unknown device or operation, a dtype the device has no peak for, a size not on the sliders.
    """
    return RooflineExplorer(device, dtype, rows, columns, operations)
