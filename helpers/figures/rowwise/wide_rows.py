"""A softmax's wide row: when a block can hold it and the cost of rereading it, the bars, and the live ones."""

from dataclasses import dataclass

import ipywidgets as widgets
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart, bar_axes, si
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.occupancy_calculator import MAX_REGISTERS, REGISTERS, WARP, occupancy
from helpers.instruments.operations import ITEMSIZE
from helpers.instruments.prediction import BANDWIDTH_SHARE, HITS_FROM, HITS_TO, still_in_l2
from helpers.style import FUSED, LIMIT, STYLE, TEXT

READS = {"held": 1, "read twice": 2, "read three times": 3}
LOOP_REGISTERS = 32  # per thread of a loop over blocks of 8 elements per thread


@dataclass(frozen=True)
class WideRows:
    """`rows` rows of `columns` numbers in `dtype` ("fp32", "fp16", "bf16"), a program of `warps` warps each."""

    device: Device
    dtype: str
    rows: int
    columns: int
    warps: int

    @property
    def numbers(self) -> int:
        """Numbers a thread holds, a register each, where the block holds the row: a power of two lanes, in fp32."""
        lanes = 1 << (self.columns - 1).bit_length()
        return -(-lanes // (self.warps * WARP))

    @property
    def room(self) -> int:
        """Registers that a thread can have."""
        return min(MAX_REGISTERS, REGISTERS // (self.warps * WARP))

    @property
    def fits(self) -> bool:
        """True if the block holds the row without spills."""
        return self.numbers < self.room

    @property
    def in_flight(self) -> int:
        """Rows at work at once, in a loop over blocks of each."""
        on_sm = occupancy(self.device.compute_capability, threads=self.warps * WARP, registers=LOOP_REGISTERS).blocks
        return min(self.rows, on_sm * self.device.sms)

    @property
    def flight_bytes(self) -> int:
        """Bytes of the rows in progress, which L2 must keep for a second read."""
        return self.in_flight * self.columns * ITEMSIZE[self.dtype]

    @property
    def kept(self) -> float:
        """The share of a second read that L2 serves."""
        return still_in_l2(self.flight_bytes, self.device.l2_cache, "read")

    def number_bytes(self, way: str) -> tuple[float, float, float]:
        """Bytes for each number of the tensor: read from DRAM, read from L2, written. `way` is one of READS."""
        itemsize, again = ITEMSIZE[self.dtype], READS[way] - 1
        return itemsize * (1 + again * (1 - self.kept)), itemsize * again * self.kept, itemsize

    def dram_bytes(self, way: str) -> float:
        """Bytes that DRAM moves in all."""
        read, _, written = self.number_bytes(way)
        return self.rows * self.columns * (read + written)

    def least_time(self, way: str) -> float:
        """Seconds that these bytes take at the speed of a copy."""
        return self.dram_bytes(way) / (BANDWIDTH_SHARE * self.device.memory_bandwidth)

    @property
    def finding(self) -> str:
        """The chart's title."""
        row = f"A row of {self.columns:,}"
        if self.fits:
            return f"{row} fits in {self.warps} warps: {self.numbers} element{'s' * (self.numbers > 1)} per thread"
        missing = f"{row} does not fit in {self.warps} warps"
        if self.kept > 0.995:
            return f"{missing}, but L2 still has it for a second read"
        if self.kept < 0.005:
            return f"{missing}, and L2 has lost it before a second read"
        return f"{missing}; L2 serves {self.kept:.0%} of a second read"

    @property
    def text(self) -> str:
        """A one-line description of the chart."""
        place = f"{self.device.name}, {self.dtype}, {self.rows:,} x {self.columns:,}, {self.warps} warps per row"
        return f"{place}: {self.finding}. {self.line}"

    @property
    def line(self) -> str:
        """The part of the description that the chart doesn't show."""
        size = self.device.l2_cache / 2**20
        l2 = f"{size:g} MiB of L2 keep up to {HITS_FROM * size:.3g} whole, none of {HITS_TO['read'] * size:.3g}"
        at_work = f"{self.in_flight:,} row{'s' * (self.in_flight > 1)} at work, {self.flight_bytes / 2**20:,.3g} MiB"
        return f"Looping: {at_work} to keep; {l2}."


READ, WRITE = 0.62, 0.38  # heights of bars, of the distance between two
PITCH = 35.75  # points between two bars
TITLE_FROM_TOP = 14
PAINT = ((FUSED, 1.0), (FUSED, 0.25), (LIMIT, 1.0))  # from DRAM, from L2, written: colour and opacity


def segments(case: WideRows, way: str) -> list[tuple[float, float, float, str, float]]:
    """Return a bar's parts: start, width (both in bytes per element), height, colour and opacity.

    A row that its block cannot hold has no bar.
    """
    if way == "held" and not case.fits:
        return []
    parts, start = [], 0.0
    for width, height, (colour, opacity) in zip(case.number_bytes(way), (READ, READ, WRITE), PAINT, strict=True):
        if width:
            parts.append((start, width, height, colour, opacity))
        start += width
    return parts


def label(case: WideRows, way: str) -> str:
    """Return the label next to a bar."""
    if way == "held" and not case.fits:
        return f"does not fit: {case.numbers} elements per thread, but only {case.room} registers for everything"
    return f"{si(case.dram_bytes(way), 'B')}, {si(case.least_time(way), 's')}"


def wide_rows_axes(dtype: str, title: str = "") -> tuple[Figure, Axes]:
    """Draw the static parts: a line for each way, bytes per element to the right."""
    key = (
        "bytes per element: solid read from DRAM, faint from L2, narrow written; labels: DRAM's bytes and minimum time"
    )
    figure, axes = bar_axes(list(READS), 4 * ITEMSIZE[dtype], title, key)
    axes.set_xticks(range(0, 4 * ITEMSIZE[dtype] + 1, ITEMSIZE[dtype]))
    return figure, axes


def wide_rows_chart(case: WideRows) -> Chart:
    """The bars of one case."""
    figure, axes = wide_rows_axes(case.dtype, case.finding)
    with rc_context(STYLE):
        for line, way in enumerate(READS):
            end = 0.0
            for start, width, height, colour, opacity in segments(case, way):
                axes.barh(line, width, left=start, height=height, facecolor=(colour, opacity), edgecolor=TEXT)
                end = start + width
            axes.annotate(label(case, way), (end, line), (6, 0), textcoords="offset points", va="center_baseline")
    return Chart(figure, case.text)


ROWS = (1, 16, 128, 1024, 8192, 65536)
COLUMNS = (1024, 4096, 8192, 16384, 32768, 50257, 65536, 131072, 262144)
WARPS = (4, 8, 16, 32)
DTYPES = ("fp32", "fp16", "bf16")


class WideRowsExplorer(Explorer):
    """Bytes of three ways to a softmax, with sliders for rows, columns and warps, and a choice of dtype and GPU.

    Its controls are widgets: `columns`, `rows`, `warps`, `dtype` and `device` (a name); `text` describes the view.
    Without a kernel it displays as a still image with that text.

    Raises:
        ValueError: an unknown GPU or dtype, or a value that is not on its slider.
    """

    _bar = WRITE * PITCH

    def __init__(
        self, device: str = "H100", dtype: str = "bf16", rows: int = 8192, columns: int = 50257, warps: int = 8
    ):
        gpus = [name for name, each in DEVICES.items() if each.compute_capability]
        if device not in gpus or dtype not in DTYPES:
            raise ValueError(f"{dtype!r} on {device!r}: choose from {', '.join(DTYPES)} and from {', '.join(gpus)}")
        self.columns = slider("columns", COLUMNS, columns, [f"{each:,}" for each in COLUMNS])
        self.rows = slider("rows", ROWS, rows, [f"{each:,}" for each in ROWS])
        self.warps = slider("warps per row", WARPS, warps)
        self.dtype = widgets.Dropdown(options=list(DTYPES), value=dtype, description="dtype")
        self.device = widgets.Dropdown(options=gpus, value=device, description="GPU")
        super().__init__(FramePlayer(), [self.columns, self.rows, self.warps], [[self.dtype, self.device]])

    def _at(self, columns: int, rows: int, warps: int) -> WideRows:
        return WideRows(DEVICES[self.device.value], self.dtype.value, rows, columns, warps)

    @property
    def _case(self) -> WideRows:
        return self._at(self.columns.value, self.rows.value, self.warps.value)

    @property
    def text(self) -> str:
        return self._case.text

    def chart(self) -> Chart:
        return wide_rows_chart(self._case)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, axes = wide_rows_axes(self.dtype.value)
        cases = (self._at(columns, rows, warps) for columns in COLUMNS for rows in ROWS for warps in WARPS)
        frames = [
            {"svg": _moving(case, figure, axes), "text": case.text, "line": case.line, "table": ""} for case in cases
        ]
        return still_svg(figure), {"frames": frames, "columns": len(ROWS), "layers": len(WARPS)}


def _moving(case: WideRows, figure: Figure, axes: Axes) -> str:
    page = figure.bbox.height
    (left, top), (right, bottom) = axes.transData.transform([(0, 0), (1, 1)])
    parts = [svg_title(case.finding, 12, TITLE_FROM_TOP)]
    for line, way in enumerate(READS):
        middle, end = page - top + line * (top - bottom), left
        for start, width, height, colour, opacity in segments(case, way):
            high, end = height * (top - bottom), left + (start + width) * (right - left)
            parts.append(
                f'<rect x="{left + start * (right - left):.1f}" y="{middle - high / 2:.1f}"'
                f' width="{width * (right - left):.1f}" height="{high:.1f}" fill="{colour}" fill-opacity="{opacity}"'
                f' stroke="{TEXT}"/>'
            )
        parts.append(f'<text x="{end + 6:.1f}" y="{middle + 3:.1f}">{label(case, way)}</text>')
    return f"{svg_opening(figure)}{''.join(parts)}</svg>"
