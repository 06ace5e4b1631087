"""Live charts: sliders that move points on a chart, fast enough to feel.

The chart's still part (axes, roofs, their labels) is drawn by matplotlib once for a device and dtype, and kept. What
moves is a light SVG over it, its positions from the axes' own transform. All positions of the sliders are drawn
beforehand, under a millisecond each, and the browser picks one: asking the kernel at each move was measured to
take 20 to 60 ms on two busy cores.
"""

import functools
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import anywidget
import ipywidgets as widgets
from matplotlib import rc_context
from traitlets import Dict, Int, List, Unicode

from helpers import charts
from helpers.charts import Chart, PlacedLabel, Point, plain, si
from helpers.devices import DEVICES, Device
from helpers.operations import ITEMSIZE, OPERATIONS, Cost, cost
from helpers.roofline import Roofline

# Powers of two, and sizes that are met in practice or fit no tile.
ROWS = (1, 4, 16, 64, 127, 128, 197, 256, 512, 1000, 1024, 1025, 2048, 4096, 8192, 16384, 32768, 65536)
COLUMNS = (1, 16, 64, 127, 128, 512, 768, 1024, 1025, 2048, 4096, 5120, 8192, 11008, 16384)
SHOWN = ("ReLU", "add+GELU", "LayerNorm", "softmax", "matmul+bias+ReLU", "attention")


@dataclass(frozen=True)
class Scene:
    """What the roofline explorer shows: points, the finding, a line of text, and the costs of each operation."""

    rooflines: tuple[Roofline, ...]
    points: list[Point]
    title: str
    text: str
    costs: dict[str, tuple[Cost, Cost]]  # by operation: unfused, fused


def roofline_scene(device: Device, dtype: str, rows: int, columns: int, operations: Iterable[str]) -> Scene:
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
    return Scene((tensor, vector), points, title, text, costs)


def _finding(costs: dict[str, tuple[Cost, Cost]]) -> str:
    gains = {name: unfused.time / fused.time for name, (unfused, fused) in costs.items() if fused is not unfused}
    if not gains:
        return "Nothing here to fuse: each operation is one launch" if costs else "No operation is chosen"
    most, least = max(gains, key=gains.get), min(gains, key=gains.get)
    finding = f"At best, fusing makes {most} {_times(gains[most], 'times faster')}"
    return finding if most == least else f"{finding}, {least} {_times(gains[least], 'times')}"


def _times(gain: float, unit: str) -> str:
    return f"{gain:.2f} {unit}" if gain >= 1.005 else "no faster"


def roofline_still(device: Device, dtype: str, rows: int, columns: int, operations: Iterable[str] = SHOWN) -> Chart:
    """The explorer's chart as a picture with its line of text; arguments and errors as of `roofline_scene`."""
    scene = roofline_scene(device, dtype, rows, columns, operations)
    return charts.roofline_chart(scene.rooflines, scene.points, scene.title, scene.text)


@dataclass(frozen=True)
class _Frame:
    svg: str
    view_box: str
    position: object
    edges: tuple[float, float]
    labels: list[PlacedLabel]


@functools.cache
def _frame(tensor: Roofline, vector: Roofline) -> _Frame:
    """The still part as SVG whose text takes the page's own colour."""
    figure, axes, labels = charts.roofline_axes((tensor, vector))
    buffer = io.StringIO()
    with rc_context(charts.STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.S)  # a style would reach all the page
    svg = re.sub(r'<svg[^>]*? viewBox="', '<svg width="100%" aria-hidden="true" viewBox="', svg, count=1)
    svg = re.sub(r" font-family: [^;]*;", "", svg).replace(charts.TEXT, "currentColor")
    width, height = figure.bbox.size
    view_box = f"0 0 {width:g} {height:g}"
    return _Frame(svg, view_box, charts.page_position(axes), (axes.bbox.x0, axes.bbox.x1), labels)


def _mark(kind: str, x: float, y: float) -> str:
    half = charts.MARKER_SIZE / 2
    colour = charts.MARKERS[kind][1]
    if kind == "unfused":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{half}" fill="{colour}"/>'
    turn = "" if kind == "fused" else f' transform="rotate(45 {x:.1f} {y:.1f})"'
    size = charts.MARKER_SIZE
    return f'<rect x="{x - half:.1f}" y="{y - half:.1f}" width="{size}" height="{size}" fill="{colour}"{turn}/>'


def _moving_svg(scene: Scene, frame: _Frame) -> str:
    joins, marks, labels, starts = [], [], [], {}
    for point in scene.points:
        x, y = frame.position(point.intensity, point.performance)
        if point.label in starts:
            x0, y0 = starts[point.label]
            joins.append(f"M{x0:.1f} {y0:.1f}L{x:.1f} {y:.1f}")
        starts[point.label] = (x, y)
        marks.append(_mark(point.kind, x, y))
    leaders = []
    for label in charts.place_labels(scene.points, frame.position, frame.edges, frame.labels):
        leaders.append(f"M{label.mark[0]:.1f} {label.mark[1]:.1f}L{label.x:.1f} {label.y:.1f}")
        anchor = ' text-anchor="end"' if label.align == "right" else ""
        labels.append(f'<text x="{label.x:.1f}" y="{label.y + 3:.1f}"{anchor}>{label.text}</text>')
    return (
        f'<svg viewBox="{frame.view_box}" width="100%" aria-hidden="true" fill="currentColor" font-size="9">'
        f'<text x="{frame.edges[0]}" y="15" font-size="{charts.TITLE_SIZE}" font-weight="bold">{scene.title}</text>'
        f'<g stroke="{charts.LIMIT}" fill="none"><path d="{"".join(joins)}" stroke-dasharray="4 2"/>'
        f'<path d="{"".join(leaders)}" stroke-width=".5"/></g>'
        f'<g stroke="{charts.TEXT}">{"".join(marks)}</g>{"".join(labels)}</svg>'
    )


def _table(scene: Scene) -> str:
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


class _Frames(anywidget.AnyWidget):
    """The chart in the browser: one frame for each row and column of the sliders."""

    _esm = Path(__file__).with_name("explorers.js")
    _css = Path(__file__).with_name("explorers.css")
    still = Unicode().tag(sync=True)
    frames = List(Dict()).tag(sync=True)
    columns = Int(len(COLUMNS)).tag(sync=True)
    row = Int().tag(sync=True)
    column = Int().tag(sync=True)


def _slider(name: str, options: tuple, value) -> widgets.SelectionSlider:
    if value not in options:
        raise ValueError(f"the {name} slider has no {value!r}: choose from {', '.join(map(str, options))}")
    return widgets.SelectionSlider(options=options, value=value, description=name, layout=widgets.Layout(width="390px"))


class RooflineExplorer:
    """A roofline with sliders for rows and columns, and a choice of dtype, GPU and operations.

    Its controls are widgets: `rows`, `columns`, `dtype`, `device` (a name) and `operations` (a checkbox by name); what
    it shows is also the string `text`. Displayed where no kernel runs, it is a picture and that text.
    """

    def __init__(self, device: str, dtype: str, rows: int, columns: int, operations: Iterable[str]):
        operations = tuple(operations)
        roofline_scene(DEVICES[device], dtype, 1, 1, operations)  # refuses what cannot be shown
        self.rows = _slider("rows", ROWS, rows)
        self.columns = _slider("columns", COLUMNS, columns)
        self.dtype = widgets.Dropdown(options=list(ITEMSIZE), value=dtype, description="dtype")
        self.device = widgets.Dropdown(options=list(DEVICES), value=device, description="GPU")
        self.operations = {
            name: widgets.Checkbox(
                value=name in operations, description=name, indent=False, layout=widgets.Layout(width="auto")
            )
            for name in OPERATIONS
        }
        self._frames = _Frames(row=self.rows.index, column=self.columns.index)
        widgets.jslink((self.rows, "index"), (self._frames, "row"))
        widgets.jslink((self.columns, "index"), (self._frames, "column"))
        for control in (self.dtype, self.device, *self.operations.values()):
            control.observe(self._draw, "value")
        self._draw()
        controls = [
            widgets.HBox([self.rows, self.columns]),
            widgets.HBox([self.device, self.dtype]),
            widgets.HBox(list(self.operations.values())),
        ]
        self._box = widgets.VBox([*controls, self._frames])
        self._box.add_class("fusion-controls")

    def _scene(self, rows: int, columns: int) -> Scene:
        chosen = [name for name, box in self.operations.items() if box.value]
        return roofline_scene(DEVICES[self.device.value], self.dtype.value, rows, columns, chosen)

    @property
    def text(self) -> str:
        """The line under the chart."""
        try:
            return self._scene(self.rows.value, self.columns.value).text
        except ValueError as error:  # a dtype that the GPU chosen does not have
            return str(error)

    def _draw(self, _change=None) -> None:
        try:
            scenes = [self._scene(rows, columns) for rows in ROWS for columns in COLUMNS]
        except ValueError:
            still, frames = "", [{"svg": "", "text": self.text, "table": ""}] * (len(ROWS) * len(COLUMNS))
        else:
            frame = _frame(*scenes[0].rooflines)
            still = frame.svg
            frames = [
                {"svg": _moving_svg(scene, frame), "text": scene.text, "table": _table(scene)} for scene in scenes
            ]
        with self._frames.hold_sync():
            self._frames.still, self._frames.frames = still, frames

    def _repr_mimebundle_(self, include=None, exclude=None):
        view = dict(self._box._repr_mimebundle_())
        try:
            scene = self._scene(self.rows.value, self.columns.value)
        except ValueError:
            return view | {"text/plain": self.text}
        picture, metadata = charts.roofline_chart(
            scene.rooflines, scene.points, scene.title, scene.text
        )._repr_mimebundle_()
        return view | picture, metadata


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
