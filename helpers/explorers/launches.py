"""The live launch-overhead curve: a chain of elementwise operations, unfused and fused, over the size of its tensor."""

import functools
from dataclasses import dataclass

import ipywidgets as widgets

from helpers import charts
from helpers.charts import Chart, si
from helpers.devices import DEVICES, Device
from helpers.explorers.stage import Explorer, Stage, script, slider, still_svg, svg_opening
from helpers.launch_chart import LABEL_RIGHT, SAMPLES, SECONDS, Curve, label_heights, launch_axes, launch_chart
from helpers.launches import ChainTime, LaunchCosts, chain_time, launch_costs
from helpers.operations import ITEMSIZE
from helpers.recorded import recorded

ELEMENTS = (*(digit * 10**power for power in range(3, 9) for digit in (1, 2, 5)), 10**9)
OPERATIONS = tuple(range(1, 9))
DTYPES = ("fp32", "fp16", "bf16")
LAUNCHED = ("from Python, fused in Triton", "from Python, fused in C++", "by a CUDA graph")


@dataclass(frozen=True)
class Scene:
    """What the explorer shows at one position of its sliders."""

    curves: tuple[Curve, Curve]  # unfused, fused
    elements: int
    title: str
    text: str


def launch_scene(device: Device, dtype: str, launched: str, elements: int, operations: int) -> Scene:
    """A chain of `operations` that each read one tensor and write one, in the model of helpers.launches.

    The memory is the device's, by its data sheet; what a launch costs was recorded, and is taken for every device.

    Raises:
        ValueError: none of DTYPES or LAUNCHED, or fewer than one element or operation.
    """
    if dtype not in DTYPES or launched not in LAUNCHED:
        raise ValueError(f"{dtype!r} launched {launched!r}: one of {DTYPES} and one of {LAUNCHED} expected")
    if elements < 1 or operations < 1:
        raise ValueError(f"{operations} operations on {elements} elements: at least 1 of each expected")
    costs = _costs()
    operator, triton = {
        LAUNCHED[0]: (costs.operator, costs.triton),
        LAUNCHED[1]: (costs.operator, costs.operator),
        LAUNCHED[2]: (0.0, 0.0),
    }[launched]

    def time(launches: int, host: float, numbers: float) -> ChainTime:
        nbytes = round(2 * launches * numbers * ITEMSIZE[dtype])
        return chain_time(launches, nbytes, device.memory_bandwidth, host, costs.start)

    curves = tuple(
        Curve(kind, tuple(time(launches, host, n).total for n in SAMPLES), time(launches, host, elements))
        for kind, launches, host in (("unfused", operations, operator), ("fused", 1, triton))
    )
    unfused, fused = (curve.marked for curve in curves)
    title = _finding(unfused, fused)
    told = "; ".join(f"{curve.label}, {si(curve.marked.total, 's')}, mostly {curve.marked.bound}" for curve in curves)
    text = f"{device.name}, {dtype}, launched {launched}, {elements:,} numbers: {told}. {title}."
    return Scene(curves, elements, title, text)


@functools.cache
def _costs() -> LaunchCosts:
    return launch_costs(recorded("h200"))


def _finding(unfused: ChainTime, fused: ChainTime) -> str:
    gain = unfused.total / fused.total
    fusing = f"Fusing {unfused.launches} operations" if unfused.launches > 1 else "Fusing a single operation"
    if gain >= 1.005:
        return f"{fusing} makes the call {gain:.2f} times faster"
    return f"{fusing} makes the call {1 / gain:.2f} times slower" if gain <= 0.995 else f"{fusing} gains nothing"


@functools.cache
def _still():
    figure, axes = launch_axes()
    return still_svg(figure), figure, charts.page_position(axes), (axes.bbox.x0, axes.bbox.x1)


def _mark(kind: str, x: float, y: float) -> str:
    size, colour = charts.MARKER_SIZE, charts.MARKERS[kind][1]
    paint = f'fill="{colour}" stroke="{charts.TEXT}"'
    if kind == "unfused":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size / 2}" {paint}/>'
    return f'<rect x="{x - size / 2:.1f}" y="{y - size / 2:.1f}" width="{size}" height="{size}" {paint}/>'


def _moving(scene: Scene) -> str:
    _, figure, position, (left, _) = _still()
    pieces = [f'<text x="{left}" y="15" font-size="{charts.TITLE_SIZE}" font-weight="bold">{scene.title}</text>']
    (x, bottom), (_, top) = position(scene.elements, SECONDS[0]), position(scene.elements, SECONDS[1])
    pieces.append(f'<path d="M{x:.1f} {bottom:.1f}V{top:.1f}" stroke="{charts.LIMIT}" stroke-dasharray="1 2"/>')
    for curve, height in zip(scene.curves, label_heights(scene.curves), strict=True):
        points = (position(n, seconds) for n, seconds in zip(SAMPLES, curve.seconds, strict=True))
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        pieces.append(f'<path d="M{line}" stroke="{charts.MARKERS[curve.kind][1]}" stroke-width="2" fill="none"/>')
        pieces.append(_mark(curve.kind, *position(scene.elements, curve.marked.total)))
        x, y = position(SAMPLES[0], curve.seconds[0])
        pieces.append(f'<text x="{x + LABEL_RIGHT:.1f}" y="{y - height + 3:.1f}">{curve.label}</text>')
    return svg_opening(figure) + "".join(pieces) + "</svg>"


def _table(scene: Scene) -> str:
    head = "<table><tr><th><th>launches<th>bytes<th>CPU launches<th>GPU starts<th>memory<th>a call"
    rows = []
    for curve in scene.curves:
        time = curve.marked
        seconds = (time.cpu, time.starts, time.memory, time.total)
        cells = (f"{time.launches}", si(time.nbytes, "B"), *(si(each, "s") for each in seconds))
        rows.append(f"<tr><th scope=row>{curve.kind}<td>" + "<td>".join(cells))
    return head + "".join(rows) + "</table>"


class _LaunchStage(Stage):
    _esm = script("roofline.js")


class LaunchExplorer(Explorer):
    """Time over size of a chain, with sliders for numbers and operations, and a choice of GPU, dtype and launching.

    Its controls are widgets: `elements`, `operations`, `device` (a name), `dtype` and `launched`; what it shows is also
    the string `text`. Displayed where no kernel runs, it is a picture and that text.
    """

    def __init__(self, device: str, dtype: str, launched: str, elements: int, operations: int):
        launch_scene(DEVICES[device], dtype, launched, 1, 1)  # refuses what cannot be shown
        self.elements = slider("numbers", ELEMENTS, elements, [si(each) for each in ELEMENTS])
        self.operations = slider("operations", OPERATIONS, operations)
        self.device = widgets.Dropdown(options=list(DEVICES), value=device, description="GPU")
        self.dtype = widgets.Dropdown(options=list(DTYPES), value=dtype, description="dtype")
        self.launched = widgets.Dropdown(options=list(LAUNCHED), value=launched, description="launched")
        choices = [[self.device, self.dtype, self.launched]]
        super().__init__(_LaunchStage(), [self.elements, self.operations], choices)

    def _scene(self, elements: int, operations: int) -> Scene:
        return launch_scene(DEVICES[self.device.value], self.dtype.value, self.launched.value, elements, operations)

    @property
    def text(self) -> str:
        return self._scene(self.elements.value, self.operations.value).text

    def chart(self) -> Chart:
        scene = self._scene(self.elements.value, self.operations.value)
        return launch_chart(scene.curves, scene.elements, scene.title, scene.text)

    def _still_and_data(self) -> tuple[str, dict]:
        scenes = (self._scene(elements, operations) for elements in ELEMENTS for operations in OPERATIONS)
        frames = [{"svg": _moving(scene), "text": scene.text, "table": _table(scene)} for scene in scenes]
        return _still()[0], {"frames": frames, "columns": len(OPERATIONS)}


def launch_explorer(
    device: str = "H200",
    dtype: str = "fp32",
    launched: str = LAUNCHED[0],
    elements: int = 1_000_000,
    operations: int = 4,
) -> LaunchExplorer:
    """The live launch-overhead curve; the last expression of a cell shows it.

    Raises:
        ValueError: an unknown device, dtype or way to launch, or a value not on the sliders.
    """
    return LaunchExplorer(device, dtype, launched, elements, operations)
