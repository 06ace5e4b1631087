"""Launch overhead: a model of a chain of operations, its timeline, its curve over sizes, and the live curve."""

import functools
from dataclasses import dataclass

import ipywidgets as widgets
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from helpers.figures.frame.chart import Chart, page_position, si
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_mark, svg_opening, svg_title
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.operations import ITEMSIZE
from helpers.instruments.recordings import Recorded, recorded
from helpers.style import LIMIT, MARKER_SIZE, MARKERS, STYLE, TEXT, TITLE_SIZE

CHAIN = 4  # operations of the recorded chains of many sizes


@dataclass(frozen=True)
class LaunchCosts:
    """Seconds per launch: CPU time for a PyTorch operator and for a Triton kernel, and GPU time."""

    operator: float
    triton: float
    start: float


@dataclass(frozen=True)
class ChainTime:
    """Seconds per call of a chain, called back to back: the CPU's, the GPU's starts, the memory's."""

    launches: int
    nbytes: int
    cpu: float
    starts: float
    memory: float

    @property
    def gpu(self) -> float:
        return self.starts + self.memory

    @property
    def total(self) -> float:
        return max(self.cpu, self.gpu)

    @property
    def bound(self) -> str:
        """The bottleneck: "launching" or "memory"."""
        return "memory" if self.memory > max(self.cpu, self.starts) else "launching"


def launch_costs(run: Recorded) -> LaunchCosts:
    """Return the cost of launches on a recorded machine, from the smallest of its `chain_sizes`: four operations, or
    one kernel.

    A chain this small is all launch overhead: back-to-back calls keep the CPU busy, a CUDA graph only the GPU.

    Raises:
        ValueError: that experiment was not recorded.
    """
    sizes = run.experiment("chain_sizes")
    smallest = sizes[min(sizes)]
    call, gpu = smallest["call"], smallest["gpu"]
    return LaunchCosts(call["eager"].median / CHAIN, call["fused"].median, gpu["fused"].median)


def chain_time(launches: int, nbytes: int, bandwidth: float, host: float, start: float) -> ChainTime:
    """The model's time for `launches` kernels that move `nbytes` bytes together.

    Args:
        bandwidth: the memory's, bytes/s.
        host: CPU seconds per launch; 0 for kernels replayed from a CUDA graph.
        start:             GPU seconds per launch, whatever its size.

    Raises:
        ValueError: fewer than one launch, or a bandwidth of 0.
    """
    if launches < 1 or bandwidth <= 0:
        raise ValueError(f"{launches} launches at {bandwidth:g} B/s: both must be positive")
    return ChainTime(launches, nbytes, launches * host, launches * start, nbytes / bandwidth)


SIZES = (1e3, 1e9)  # elements, the ends of the axis
SECONDS = (5e-7, 1e-1)  # room for a label under the quickest launch
SAMPLES = np.geomspace(*SIZES, 61)
LABEL_RIGHT = 6  # points from a line's left end to its label
HALO = 'paint-order="stroke" stroke="var(--jp-layout-color0, Canvas)" stroke-width="3"'  # no line strikes a label
NARROW_LETTER = 11  # points wide there on a narrow page
LABEL_UP, LABEL_DOWN = 8, 9  # points from a line to the middle of its label


@dataclass(frozen=True)
class Curve:
    """One version of a chain: kind is "unfused" or "fused"; its model over SAMPLES, and at the size marked."""

    kind: str
    seconds: tuple[float, ...]
    marked: ChainTime

    @property
    def label(self) -> str:
        return f"{self.kind}, {self.marked.launches} launch{'es' * (self.marked.launches != 1)}"


def launch_axes() -> tuple[Figure, Axes]:
    """Draw the static parts: the axes, time over the number of elements, both logarithmic."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 4))
        axes = figure.add_axes((0.1, 0.12, 0.88, 0.78))
        axes.set(xscale="log", yscale="log", xlim=SIZES, ylim=SECONDS)
        axes.set_xlabel("elements in the tensor")
        axes.set_ylabel("time per call")
        axes.xaxis.set_major_locator(LogLocator(numticks=20))
        axes.yaxis.set_major_locator(LogLocator(numticks=20))
        axes.xaxis.set_major_formatter(lambda value, _: si(value))
        axes.yaxis.set_major_formatter(lambda value, _: si(value, "s"))
    return figure, axes


def label_heights(curves: tuple[Curve, ...]) -> list[float]:
    """Return points from each line's left end up to its label: the slower one's is above its line, the other's
    below."""
    slower = max(curves, key=lambda curve: curve.seconds[0])
    return [LABEL_UP if curve is slower else -LABEL_DOWN for curve in curves]


def launch_chart(curves: tuple[Curve, ...], elements: int, title: str, text: str) -> Chart:
    """Time over size of a chain, unfused and fused, and the size that is marked.

    Args:
        curves: one for each version.
        elements: the size at which `curves` are marked.
        title: the finding that the chart shows.
        text: the description for screen readers.
    """
    figure, axes = launch_axes()
    with rc_context(STYLE):
        left = axes.bbox.x0 / figure.bbox.width
        figure.text(left, 1 - 15 / figure.bbox.height, title, size=TITLE_SIZE, weight="bold", va="center_baseline")
        axes.axvline(elements, color=LIMIT, linewidth=1, linestyle=":")
        for curve, height in zip(curves, label_heights(curves), strict=True):
            marker, colour = MARKERS[curve.kind]
            axes.plot(SAMPLES, curve.seconds, color=colour, linewidth=2)
            axes.plot(elements, curve.marked.total, marker, color=colour, markersize=MARKER_SIZE, mec=TEXT, zorder=4)
            offset = {"xytext": (LABEL_RIGHT, height), "textcoords": "offset points", "va": "center_baseline"}
            axes.annotate(curve.label, (SAMPLES[0], curve.seconds[0]), **offset)
    return Chart(figure, text)


Spans = list[tuple[float, float]]  # start and end of each piece of work, in seconds


def timeline(chain: ChainTime) -> tuple[Spans, Spans]:
    """Return when the CPU launches each kernel of a chain, and when the GPU runs it: later, and one at a time."""
    host, each = chain.cpu / chain.launches, chain.gpu / chain.launches
    launched = [(number * host, (number + 1) * host) for number in range(chain.launches)]
    ran, free = [], 0.0
    for _, ready in launched:
        start = max(ready, free)
        free = start + each
        ran.append((start, free))
    return launched, ran


ELEMENTS = (*(digit * 10**power for power in range(3, 9) for digit in (1, 2, 5)), 10**9)
OPERATIONS = tuple(range(1, 9))
DTYPES = ("fp32", "fp16", "bf16")
LAUNCHED = ("from Python, fused in Triton", "from Python, fused in C++", "by a CUDA graph")


@dataclass(frozen=True)
class LaunchScene:
    """The explorer's view at one position of its sliders."""

    curves: tuple[Curve, Curve]  # unfused, fused
    elements: int
    title: str
    text: str


def launch_scene(device: Device, dtype: str, launched: str, elements: int, operations: int) -> LaunchScene:
    """A chain of `operations` that each read one tensor and write one, in the model of `chain_time`.

    The memory is the device's, by its data sheet; the cost of a launch was recorded, and is used for every device.

    Raises:
        ValueError: none of DTYPES or LAUNCHED, or fewer than one element or operation.
    """
    if dtype not in DTYPES or launched not in LAUNCHED:
        raise ValueError(f"{dtype!r} launched {launched!r}: choose from {DTYPES} and from {LAUNCHED}")
    if elements < 1 or operations < 1:
        raise ValueError(f"{operations} operations on {elements} elements: both must be at least 1")
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
    return LaunchScene(curves, elements, title, text)


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
    return still_svg(figure), figure, page_position(axes), (axes.bbox.x0, axes.bbox.x1)


def _moving(scene: LaunchScene) -> str:
    _, figure, position, (left, _) = _still()
    pieces, labels = [svg_title(scene.title, left, 15)], []
    (x, bottom), (_, top) = position(scene.elements, SECONDS[0]), position(scene.elements, SECONDS[1])
    pieces.append(f'<path d="M{x:.1f} {bottom:.1f}V{top:.1f}" stroke="{LIMIT}" stroke-dasharray="1 2"/>')
    for curve, height in zip(scene.curves, label_heights(scene.curves), strict=True):
        points = [position(n, seconds) for n, seconds in zip(SAMPLES, curve.seconds, strict=True)]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        pieces.append(f'<path d="M{line}" stroke="{MARKERS[curve.kind][1]}" stroke-width="2" fill="none"/>')
        mark = svg_mark(curve.kind, *position(scene.elements, curve.marked.total))
        pieces.append(f'<g stroke="{TEXT}">{mark}</g>')
        x, y = points[0]
        # On a narrow page letters grow: those above a line upwards, those below it downwards, and both to the right.
        above = min(y for at, y in points if at <= x + LABEL_RIGHT + NARROW_LETTER * len(curve.label))
        place = f'y="{above - height + 3:.1f}"' if height > 0 else f'y="{y + 4:.1f}" dominant-baseline="hanging"'
        labels.append(f'<text x="{x + LABEL_RIGHT:.1f}" {place} {HALO}>{curve.label}</text>')
    return svg_opening(figure) + "".join(pieces + labels) + "</svg>"


def _table(scene: LaunchScene) -> str:
    head = "<table><tr><td><th>launches<th>bytes<th>CPU launches<th>GPU starts<th>memory<th>per call"
    rows = []
    for curve in scene.curves:
        time = curve.marked
        seconds = (time.cpu, time.starts, time.memory, time.total)
        cells = (f"{time.launches}", si(time.nbytes, "B"), *(si(each, "s") for each in seconds))
        rows.append(f"<tr><th scope=row>{curve.kind}<td>" + "<td>".join(cells))
    return head + "".join(rows) + "</table>"


class LaunchExplorer(Explorer):
    """Time over size of a chain, with sliders for numbers and operations, and a choice of GPU, dtype and launching.

    Its controls are widgets: `elements`, `operations`, `device` (a name), `dtype` and `launched`; `text` describes the
    view. Without a kernel it displays as a still image with that text.

    Raises:
        ValueError: an unknown device, dtype or way to launch, or a value not on the sliders.
    """

    def __init__(
        self,
        device: str = "H200",
        dtype: str = "fp32",
        launched: str = LAUNCHED[0],
        elements: int = 1000000,
        operations: int = 4,
    ):
        launch_scene(DEVICES[device], dtype, launched, 1, 1)  # refuses what cannot be shown
        self.elements = slider("numbers", ELEMENTS, elements, [si(each) for each in ELEMENTS])
        self.operations = slider("operations", OPERATIONS, operations)
        self.device = widgets.Dropdown(options=list(DEVICES), value=device, description="GPU")
        self.dtype = widgets.Dropdown(options=list(DTYPES), value=dtype, description="dtype")
        self.launched = widgets.Dropdown(options=list(LAUNCHED), value=launched, description="launched")
        choices = [[self.device, self.dtype, self.launched]]
        super().__init__(FramePlayer(), [self.elements, self.operations], choices)

    def _scene(self, elements: int, operations: int) -> LaunchScene:
        return launch_scene(DEVICES[self.device.value], self.dtype.value, self.launched.value, elements, operations)

    @property
    def text(self) -> str:
        return self._scene(self.elements.value, self.operations.value).text

    def chart(self) -> Chart:
        scene = self._scene(self.elements.value, self.operations.value)
        return launch_chart(scene.curves, scene.elements, scene.title, scene.text)

    def _still_and_data(self) -> tuple[str, dict]:
        scenes = (self._scene(elements, operations) for elements in ELEMENTS for operations in OPERATIONS)
        frames = [
            {"svg": _moving(scene), "text": scene.text, "table": _table(scene), "quiet": True} for scene in scenes
        ]
        return _still()[0], {"frames": frames, "columns": len(OPERATIONS)}
