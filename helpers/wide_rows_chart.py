"""Ways to the softmax of a wide row as a picture: the bytes of each number, and whether DRAM or L2 serves them."""

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.charts import FUSED, LIMIT, STYLE, TEXT, Chart, bar_axes, si
from helpers.operations import ITEMSIZE
from helpers.wide_rows import READS, WideRows

READ, WRITE = 0.62, 0.38  # heights of bars, of the distance between two
TITLE_FROM_TOP = 14  # points
PAINT = ((FUSED, 1.0), (FUSED, 0.25), (LIMIT, 1.0))  # from DRAM, from L2, written: colour and opacity


def segments(case: WideRows, way: str) -> list[tuple[float, float, float, str, float]]:
    """Of a way's bar: where each part starts, its width (both bytes a number), height, colour and opacity.

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
    """What stands beside a way's bar."""
    if way == "held" and not case.fits:
        return f"does not fit: {case.numbers} numbers a thread, which can have {case.room} registers for everything"
    return f"{si(case.dram_bytes(way), 'B')}, {si(case.least_time(way), 's')}"


def wide_rows_axes(dtype: str, title: str = "") -> tuple[Figure, Axes]:
    """What stays still on the chart: a line for each way, bytes a number to the right."""
    key = "bytes a number: solid read from DRAM, faint from L2, narrow written; beside it, DRAM's bytes and least time"
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
