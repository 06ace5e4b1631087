"""Traffic as a figure: each version's reads and writes, tensor by tensor."""

from matplotlib import rc_context

from helpers.figures.frame.chart import Chart, bar_axes, label_width
from helpers.instruments.traffic import Traffic
from helpers.instruments.traffic.result import size
from helpers.style import INK, MARKERS, STYLE, TEXT

READ, WRITE = 0.62, 0.38  # heights of bars, of the distance between two


UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))  # of the axis, as of the bars' labels


def traffic_chart(versions: dict[str, Traffic], title: str | None = None) -> Chart:
    """Draw one bar per version, in the given order: first reads, then, narrower, writes.

    Args:
        versions: "unfused" and "fused", or one of them -> the meter's result.
        title: the finding that the chart shows; by default the factor by which fusing cuts the bytes.

    Raises:
        ValueError: a version of another name, or one that moves nothing.
    """
    for name, traffic in versions.items():
        if name not in ("unfused", "fused"):
            raise ValueError(f"unknown version {name!r}: use 'unfused' or 'fused'")
        if not traffic.bytes_total:
            raise ValueError(f"the {name} version moves no byte: there is nothing to draw")
    if not versions:
        raise ValueError("traffic_chart takes the traffic of 'unfused', 'fused' or both, got none")
    title = title or _finding(versions)
    with rc_context(STYLE):
        longest = max(traffic.bytes_total for traffic in versions.values())
        scale, unit = next((each for each in UNITS if longest >= each[0]), UNITS[-1])
        label = f"bytes moved ({unit}): wide bars are read, narrow ones written"
        figure, axes = bar_axes(list(versions), longest, title, label)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / scale:g}")
        for row, (name, traffic) in enumerate(versions.items()):
            colour, start = MARKERS[name][1], 0
            for label, nbytes, height in _segments(traffic):
                axes.barh(row, nbytes, left=start, height=height, color=colour, edgecolor=TEXT)
                if label_width(label) < nbytes / axes.get_xlim()[1] * axes.bbox.width:
                    axes.text(start + nbytes / 2, row, label, ha="center", va="center", color=INK[colour])
                start += nbytes
            axes.text(start, row, f"  {size(start)}", va="center", color=TEXT)
    return Chart(figure, f"{title}: " + "; ".join(f"{name} {traffic}" for name, traffic in versions.items()))


def _finding(versions: dict[str, Traffic]) -> str:
    moved = {name: traffic.bytes_total for name, traffic in versions.items()}
    if len(moved) == 1:
        return next(f"The {name} version moves {size(nbytes)}" for name, nbytes in moved.items())
    if moved["unfused"] == moved["fused"]:
        return "Fusing moves as many bytes"
    ratio = max(moved.values()) / min(moved.values())
    return f"Fusing moves {ratio:.2f}x {'fewer' if moved['fused'] < moved['unfused'] else 'more'} bytes"


def _segments(traffic: Traffic) -> list[tuple[str, int, float]]:
    reads = [(f"read {tensor}", moved.read, READ) for tensor, moved in traffic.by_tensor.items() if moved.read]
    writes = [(f"write {tensor}", moved.written, WRITE) for tensor, moved in traffic.by_tensor.items() if moved.written]
    return reads + writes
