"""The bytes of an operation, launch by launch, unfused and fused: their bars, and the live ones over sizes."""

import functools
import math

import ipywidgets as widgets
from matplotlib import rc_context

from helpers.figures.frame.chart import Chart, si
from helpers.figures.frame.explorer import FramePlayer, slider
from helpers.figures.frame.page_bars import Box, Label, Panel, Scene, axis_end, picture, still
from helpers.figures.frame.scene_explorer import SceneExplorer
from helpers.figures.launches.launch_overhead import launch_costs
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.operations import ITEMSIZE, OPERATIONS, Launch, Versions
from helpers.instruments.recordings import recorded
from helpers.style import FUSED, LIMIT, STYLE, UNFUSED

SIZE = (576, 160)  # points
COLOURS = {"unfused": UNFUSED, "fused": FUSED}
BARS = {"unfused": 68, "fused": 104}  # the middle of each version's bar
READ, WRITTEN = 24, 12  # heights
MOVED = Panel(64, 430, "bytes moved, launch by launch: wide bars are read, narrow ones written")

# Below the bars: one scale of time for every size, dtype and GPU.
RULER = 90  # points
SECONDS = (1e-10, 1.0)
TIMES = {"unfused": 190, "fused": 205}  # the middle of each version's bar
THIN = 12
AXIS = 216
RULER_HEAD = "time of these bytes, on one scale for every size, dtype and GPU"


@functools.cache
def _start() -> float:
    """Seconds of the GPU that a launch takes at least, whatever its size."""
    return launch_costs(recorded("h200")).start


def _at(seconds: float) -> float:
    """Return a time's position on the ruler."""
    low, high = map(math.log10, SECONDS)
    way = (math.log10(min(max(seconds, SECONDS[0]), SECONDS[1])) - low) / (high - low)
    return MOVED.left + way * (RIGHT - MOVED.left)


RIGHT = 540  # where the ruler ends


def operation_scene(versions: Versions, device: Device, what: str) -> Scene:
    """The bars of one operation on one device; times are bytes over its bandwidth. `what` opens the line of text."""
    by_version = {"unfused": versions.unfused, "fused": versions.fused}
    end = axis_end(max(_moved(launches) for launches in by_version.values()))
    scale = (MOVED.right - MOVED.left) / end
    boxes, labels, told = [], [], []
    for version, launches in by_version.items():
        x, y = MOVED.left, BARS[version]
        for launch in launches:
            for nbytes, height in ((launch.work.bytes_read, READ), (launch.work.bytes_written, WRITTEN)):
                boxes.append(Box(x, y, nbytes * scale, height, COLOURS[version]))
                x += nbytes * scale
        moved = _moved(launches)
        seconds = moved / device.memory_bandwidth
        cost = f"{si(moved, 'B')}, {si(seconds, 's')}"
        labels.append(Label(cost, x + 5, y, "left"))
        boxes.append(Box(MOVED.left, TIMES[version], _at(seconds) - MOVED.left, THIN, COLOURS[version]))
        count = f"{len(launches)} launch{'es' if len(launches) > 1 else ''}"
        if seconds < len(launches) * _start():
            cost += f" for the bytes, but launching takes {si(len(launches) * _start(), 's')}"
        told.append(f"{version} {count}, {cost}")
    title = _finding(versions)
    return Scene(title, tuple(boxes), (*labels, *MOVED.ends(end, SIZE)), f"{what}: {'; '.join(told)}. {title}.")


def _moved(launches: tuple[Launch, ...]) -> int:
    return sum(launch.work.bytes for launch in launches)


def _finding(versions: Versions) -> str:
    if versions.fused == versions.unfused:
        return "Nothing to fuse: it is one launch already"
    return f"Fusing moves {_moved(versions.unfused) / _moved(versions.fused):.2f}x fewer bytes"


def operation_axes():
    """Draw the static parts: the versions' names, the panel's head and its axis, and the ruler of times with one
    launch."""
    figure, axes = still(SIZE, BARS, (MOVED,), more=RULER)
    with rc_context(STYLE):
        axes.text(MOVED.left, SIZE[1] + 11, RULER_HEAD, va="center_baseline")
        axes.plot((MOVED.left, RIGHT), (AXIS, AXIS), color=LIMIT, lw=0.8)
        for power in range(round(math.log10(SECONDS[0])) + 1, 1, 3):
            x = _at(10.0**power)
            axes.plot((x, x), (AXIS, AXIS + 3), color=LIMIT, lw=0.8)
            axes.text(x, AXIS + 10, si(10.0**power, "s"), ha="center", va="center_baseline")
        x = _at(_start())
        axes.plot((x, x), (SIZE[1] + 20, AXIS + 18), color=LIMIT, lw=1, ls=":")
        told = f"the launch alone takes {si(_start(), 's')} (recorded on an H200)"
        axes.text(x + 4, AXIS + 24, told, va="center_baseline")
    return figure, axes


def operation_chart(shown: Scene) -> Chart:
    """Draw one bar per version, as long as its bytes: each launch's reads, then its writes."""
    return picture(*operation_axes(), shown)


ROWS = tuple(2**power for power in range(0, 17, 2))
COLUMNS = (256, 1000, 1024, 4096, 11008, 16384)
DTYPES = ("fp32", "fp16", "bf16")
# Those whose time is that of their bytes, on every GPU.
SHOWN = ("ReLU", "vector add", "GELU", "add+GELU", "LayerNorm", "softmax")


class TrafficExplorer(SceneExplorer):
    """Bars of bytes, with sliders for rows and columns, and a choice of operation, dtype and GPU.

    Its controls are widgets: `rows`, `columns`, `operation`, `dtype` and `device` (names); `text` describes the view.
    Without a kernel it displays as a still image with that text.

    Raises:
        ValueError: an operation, dtype or device that is not offered, or a value that is not on its slider.
    """

    _axes = staticmethod(operation_axes)
    _bar = WRITTEN

    def __init__(
        self,
        operation: str = "add+GELU",
        dtype: str = "fp32",
        device: str = "H200",
        rows: int = 1024,
        columns: int = 1000,
    ):
        if operation not in SHOWN or dtype not in DTYPES:
            raise ValueError(
                f"{operation!r} in {dtype!r}: choose from {', '.join(SHOWN)}, and from {', '.join(DTYPES)}"
            )
        DEVICES[device]  # refuses a name that it does not know
        self.rows = slider("rows", ROWS, rows, [f"{each:,}" for each in ROWS])
        self.columns = slider("columns", COLUMNS, columns, [f"{each:,}" for each in COLUMNS])
        self.operation = widgets.Dropdown(options=list(SHOWN), value=operation, description="operation")
        self.dtype = widgets.Dropdown(options=list(DTYPES), value=dtype, description="dtype")
        self.device = widgets.Dropdown(options=list(DEVICES), value=device, description="GPU")
        super().__init__(FramePlayer(), [self.rows, self.columns], [[self.operation, self.dtype, self.device]])

    def _scene(self, rows: int, columns: int) -> Scene:
        operation, dtype, device = self.operation.value, self.dtype.value, DEVICES[self.device.value]
        versions = OPERATIONS[operation](rows, columns, ITEMSIZE[dtype])
        memory = si(device.memory_bandwidth, "B/s")
        return operation_scene(
            versions, device, f"{device.name} ({memory}), {operation} in {dtype}, {rows:,} x {columns:,}"
        )
