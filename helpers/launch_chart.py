"""Launches as pictures: a chain's time over its size, and who waits for whom."""

from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from helpers.charts import LIMIT, MARKER_SIZE, MARKERS, STYLE, TEXT, TITLE_SIZE, UNFUSED, Chart, plain, si
from helpers.launches import ChainTime

SIZES = (1e3, 1e9)  # elements, the ends of the axis
SECONDS = (1e-6, 1e-1)
SAMPLES = np.geomspace(*SIZES, 61)
LABEL_RIGHT = 6  # points from a line's left end to its label
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
    """What stays still: the axes, time over the number of elements, both logarithmic."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 4))
        axes = figure.add_axes((0.1, 0.12, 0.88, 0.78))
        axes.set(xscale="log", yscale="log", xlim=SIZES, ylim=SECONDS)
        axes.set_xlabel("numbers in the tensor")
        axes.set_ylabel("time of a call")
        axes.xaxis.set_major_locator(LogLocator(numticks=20))
        axes.yaxis.set_major_locator(LogLocator(numticks=20))
        axes.xaxis.set_major_formatter(lambda value, _: si(value))
        axes.yaxis.set_major_formatter(lambda value, _: si(value, "s"))
    return figure, axes


def label_heights(curves: tuple[Curve, ...]) -> list[float]:
    """Points from each line's left end up to its label: the slower one's lies above its line, the other's below."""
    slower = max(curves, key=lambda curve: curve.seconds[0])
    return [LABEL_UP if curve is slower else -LABEL_DOWN for curve in curves]


def launch_chart(curves: tuple[Curve, ...], elements: int, title: str, text: str) -> Chart:
    """Time over size of a chain, unfused and fused, and the size that is marked.

    Args:
        curves: one for each version.
        elements: the size at which `curves` are marked.
        title: the finding that the chart shows.
        text: the line that says the same to those who cannot see it.
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


def timeline_chart(chains: dict[str, ChainTime], title: str) -> Chart:
    """Who works when, in the first call of an unfused chain: the CPU that launches, the GPU that runs.

    Args:
        chains: a name for its panel -> a chain's model.
        title: the finding that the chart shows.
    """
    says = []
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 0.55 + 1.25 * len(chains)))
        height = figure.bbox.height
        figure.text(0.12, 1 - 15 / height, title, size=TITLE_SIZE, weight="bold", va="center_baseline")
        for number, (name, chain) in enumerate(chains.items()):
            launched, ran = timeline(chain)
            axes = figure.add_axes((0.12, 1 - (98 + 90 * number) / height, 0.86, 48 / height))
            axes.set(ylim=(1.6, -0.6), xlim=(0, ran[-1][1] * 1.01e6))
            axes.set_yticks((0, 1), ("CPU launches", "GPU runs"))
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="y", visible=False)
            axes.set_title(name, loc="left", size=STYLE["font.size"], color=TEXT)
            for row, spans, colour in ((0, launched, LIMIT), (1, ran, UNFUSED)):
                bars = [(start * 1e6, (end - start) * 1e6) for start, end in spans]
                # The inside stays the page's own, as in a traffic chart.
                axes.broken_barh(bars, (row - 0.3, 0.6), facecolor="none", edgecolor=colour, linewidth=2)
            busy = sum(end - start for start, end in ran) / ran[-1][1]
            says.append(f"{name}: the GPU is busy {plain(100 * busy)} % of the time")
        axes.set_xlabel("time (µs)")
    return Chart(figure, f"{title}. " + "; ".join(says))


Spans = list[tuple[float, float]]  # start and end of each piece of work, in seconds


def timeline(chain: ChainTime) -> tuple[Spans, Spans]:
    """When the CPU launches each kernel of a chain, and when the GPU runs it: not before, and one at a time."""
    host, each = chain.cpu / chain.launches, chain.gpu / chain.launches
    launched = [(number * host, (number + 1) * host) for number in range(chain.launches)]
    ran, free = [], 0.0
    for _, ready in launched:
        start = max(ready, free)
        free = start + each
        ran.append((start, free))
    return launched, ran
