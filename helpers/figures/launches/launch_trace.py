"""Traces of one call: the CPU's launches and the GPU's kernels, one above the other on one time axis; live.

A trace is rows of (where, name, start, duration): "host" or "GPU", in microseconds from the first.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart, plain
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.style import FUSED, LIMIT, STYLE, TEXT, TITLE_SIZE, UNFUSED

Rows = Sequence[tuple[str, str, float, float]]


@dataclass(frozen=True)
class Span:
    """A kernel on the GPU. Microseconds; gap: since the one before ended."""

    name: str
    start: float
    duration: float
    gap: float


@dataclass(frozen=True)
class Trace:
    """One call: spans of the CPU's launches, and of the GPU's kernels."""

    launches: tuple[tuple[float, float], ...]
    kernels: tuple[Span, ...]

    @classmethod
    def of(cls, rows: Rows) -> "Trace":
        launches = tuple((start, duration) for where, _, start, duration in rows if where == "host")
        kernels, end = [], None
        for where, name, start, duration in rows:
            if where == "GPU":
                kernels.append(Span(name, start, duration, max(0.0, start - end) if end is not None else 0.0))
                end = max(end or 0.0, start + duration)
        return cls(launches, tuple(kernels))

    @property
    def span(self) -> float:
        """Seconds from the first kernel's start to the last one's end."""
        return self.kernels[-1].start + self.kernels[-1].duration - self.kernels[0].start

    @property
    def busy(self) -> float:
        """For how long a kernel runs."""
        return sum(kernel.duration for kernel in self.kernels)

    @property
    def total(self) -> float:
        """Seconds from the first launch to the end of the last kernel."""
        ends = [start + duration for start, duration in self.launches]
        return max(*ends, self.kernels[-1].start + self.kernels[-1].duration)


def short(name: str) -> str:
    """A kernel's name without namespaces and templates: "vectorized_elementwise_kernel"."""
    plain_name = name.replace("(anonymous namespace)::", "").removeprefix("void ").split("<")[0].split("(")[0]
    return plain_name.rsplit("::", 1)[-1].strip()


WIDTH = 576
LEFT, RIGHT = 124, 560
TOP, PITCH, LINE = 62, 70, 17
NAMED = 10  # from a marked kernel's row down to the middle of its name
LONGEST = 40  # letters of a name


def _axes(traces: Mapping[str, Trace]) -> tuple[Figure, Axes, float]:
    """Draw the static parts: the spans of all traces, on one axis; and return points per microsecond."""
    end = max(trace.total for trace in traces.values())
    scale = (RIGHT - LEFT) / end
    with rc_context(STYLE):
        height = TOP + PITCH * len(traces) + 24
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        axes.axis("off")
        for number, (name, trace) in enumerate(traces.items()):
            y, middle = TOP + number * PITCH, {"va": "center_baseline"}
            axes.text(12, y - 8, _head(name, trace), **middle)
            rows = (
                ("CPU launches", trace.launches, LIMIT),
                ("GPU runs", [(kernel.start, kernel.duration) for kernel in trace.kernels], _colour(name)),
            )
            for row, (label, spans, colour) in enumerate(rows):
                axes.text(LEFT - 8, y + (row + 0.5) * LINE, label, ha="right", **middle)
                bars = [(LEFT + start * scale, max(0.8, duration * scale)) for start, duration in spans]
                axes.broken_barh(bars, (y + row * LINE + 2, LINE - 4), facecolor=colour, edgecolor="none")
        bottom = TOP + PITCH * len(traces) - 10
        axes.plot((LEFT, RIGHT), (bottom, bottom), color=LIMIT, lw=0.8)
        for tick in range(0, int(end) + 1, 100):
            axes.plot((LEFT + tick * scale,) * 2, (bottom, bottom + 3), color=LIMIT, lw=0.8)
            axes.text(LEFT + tick * scale, bottom + 11, f"{tick}", ha="center", va="center_baseline")
        axes.text(LEFT - 24, bottom + 11, "µs", ha="right", va="center_baseline")
    return figure, axes, scale


def _colour(name: str) -> str:
    return FUSED if name.startswith("compiled") else UNFUSED


def _finding(traces: Mapping[str, Trace]) -> str:
    shares = [100 * trace.busy / trace.total for trace in traces.values()]
    return (
        f"The GPU is busy {plain(min(shares))} to {plain(max(shares))} % of a call, depending on what launches, and how"
    )


def _head(name: str, trace: Trace) -> str:
    return f"{name}: {len(trace.kernels)} kernels, {plain(trace.busy)} of {plain(trace.total)} µs"


def _text(traces: Mapping[str, Trace], way: str, number: int) -> str:
    return f"{_head(way, traces[way])}. {_line(traces[way], number)} {_finding(traces)}."


def _line(trace: Trace, number: int) -> str:
    """Describe a kernel, which the picture only marks."""
    kernel = trace.kernels[min(number, len(trace.kernels)) - 1]
    after = f"{plain(kernel.gap)} µs after the one before" if kernel.gap or number > 1 else "the first"
    return (
        f"Kernel {min(number, len(trace.kernels))}, {short(kernel.name)}: starts at {plain(kernel.start)} µs, "
        f"{after}, and runs for {plain(kernel.duration)} µs."
    )


class TraceExplorer(Explorer):
    """Traces to read kernel by kernel, with a slider for the way and one for the kernel.

    Its controls are widgets: `way` and `kernel`; `text` describes the view. Without a kernel it displays as a still
    image with that text.

    Raises:
        ValueError: a way or a kernel that is not there.
    """

    def __init__(self, traces: Mapping[str, Rows], way: str | None = None, kernel: int = 1):
        self._traces = {name: Trace.of(rows) for name, rows in traces.items()}
        most = max(len(trace.kernels) for trace in self._traces.values())
        self.way = slider("way", tuple(traces), way or next(iter(traces)))
        self.kernel = slider("kernel", tuple(range(1, most + 1)), kernel)
        super().__init__(FramePlayer(), [self.kernel, self.way], [])

    @property
    def text(self) -> str:
        return _text(self._traces, self.way.value, self.kernel.value)

    def _mark(self, way: str, number: int, scale: float) -> tuple[float, float, float, float]:
        """Left, top, width and height of the frame round a kernel."""
        trace = self._traces[way]
        kernel = trace.kernels[min(number, len(trace.kernels)) - 1]
        top = TOP + list(self._traces).index(way) * PITCH + LINE
        return LEFT + kernel.start * scale - 1.5, top, max(0.8, kernel.duration * scale) + 3, LINE

    def _name(self, way: str, number: int, scale: float) -> tuple[str, float, str]:
        """A marked kernel's number and name, where they are written, and which end of them is there."""
        trace = self._traces[way]
        number = min(number, len(trace.kernels))
        name = short(trace.kernels[number - 1].name)
        name = f"{number}: {name if len(name) <= LONGEST else name[: LONGEST - 1] + '…'}"
        left, _, width, _ = self._mark(way, number, scale)
        middle = left + width / 2
        return (name, left, "start") if middle < (LEFT + RIGHT) / 2 else (name, left + width, "end")

    def chart(self) -> Chart:
        figure, axes, scale = _axes(self._traces)
        with rc_context(STYLE):
            axes.text(12, 18, _finding(self._traces), size=TITLE_SIZE, weight="bold")
            left, top, width, height = self._mark(self.way.value, self.kernel.value, scale)
            box = (left, left + width, left + width, left, left), (top, top, top + height, top + height, top)
            axes.plot(*box, color=TEXT, lw=1.8)
            name, x, end = self._name(self.way.value, self.kernel.value, scale)
            place = {"ha": {"start": "left", "end": "right"}[end], "va": "center_baseline", "weight": "bold"}
            axes.text(x, top + LINE + NAMED, name, **place)
        return Chart(figure, self.text)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, _, scale = _axes(self._traces)
        opening, title = svg_opening(figure), svg_title(_finding(self._traces), 12, 18)
        frames = []
        for number in range(1, len(self.kernel.options) + 1):
            for way in self._traces:
                left, top, width, height = self._mark(way, number, scale)
                box = f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}" fill="none"'
                name, x, end = self._name(way, number, scale)
                place = f'x="{x:.1f}" y="{top + LINE + NAMED + 3:.1f}" text-anchor="{end}"'
                named = f'<text {place} font-weight="bold">{html.escape(name)}</text>'
                svg = f'{opening}{title}{box} stroke="currentColor" stroke-width="1.8"/>{named}</svg>'
                text, line = _text(self._traces, way, number), _line(self._traces[way], number)
                frames.append({"svg": svg, "text": text, "line": line, "table": ""})
        return still_svg(figure), {"frames": frames, "columns": len(self._traces)}
