"""Traffic as a picture: what each version of a computation reads and writes, tensor by tensor."""

from matplotlib import rc_context
from matplotlib.figure import Figure

from helpers.charts import FUSED, STYLE, TEXT, TITLE_SIZE, UNFUSED, Chart
from helpers.traffic import Traffic
from helpers.traffic.result import size

COLOURS = {"unfused": UNFUSED, "fused": FUSED}
DASHED = "dashed"
LETTER = 5.5  # points, an upper estimate of a letter's width


def traffic_chart(versions: dict[str, Traffic], title: str) -> Chart:
    """One bar a version, in the order given: first what is read, then, dashed, what is written.

    Args:
        versions: "unfused" and "fused", or one of them -> what the meter saw.
        title: the finding that the chart shows.

    Raises:
        ValueError: a version of another name, or one that moves nothing.
    """
    for name, traffic in versions.items():
        if name not in COLOURS:
            raise ValueError(f"a version is named {name!r}: 'unfused' or 'fused' expected")
        if not traffic.bytes_total:
            raise ValueError(f"the {name} version moves no byte: there is nothing to draw")
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 0.8 + 0.65 * len(versions)))
        height = figure.bbox.height
        axes = figure.add_axes((0.085, 34 / height, 0.895, 1 - 62 / height))
        widest = max(traffic.bytes_total for traffic in versions.values())
        axes.set(xlim=(0, widest * 1.12), ylim=(len(versions) - 0.4, -0.6))
        axes.set_xlabel("bytes moved (MB)")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g}")
        axes.set_yticks(range(len(versions)), versions)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        figure.text(axes.bbox.x0 / figure.bbox.width, 1 - 14 / height, title, size=TITLE_SIZE, weight="bold")
        for row, (name, traffic) in enumerate(versions.items()):
            start = 0
            for tensor, nbytes, line in _segments(traffic):
                # The inside stays the page's own, so that the label reads on a light and on a dark one.
                axes.barh(row, nbytes, left=start, height=0.6, color="none", edgecolor=COLOURS[name], ls=line, lw=2)
                label = f"{'write' if line == DASHED else 'read'} {tensor}"
                room = nbytes / axes.get_xlim()[1] * axes.bbox.width
                if len(label) * LETTER < room:
                    axes.text(start + nbytes / 2, row, label, ha="center", va="center", color=TEXT)
                start += nbytes
            axes.text(start, row, f"  {size(start)}", va="center", color=TEXT)
    return Chart(figure, f"{title}: " + "; ".join(f"{name} {traffic}" for name, traffic in versions.items()))


def _segments(traffic: Traffic) -> list[tuple[str, int, str]]:
    reads = [(tensor, moved.read, "solid") for tensor, moved in traffic.by_tensor.items() if moved.read]
    writes = [(tensor, moved.written, DASHED) for tensor, moved in traffic.by_tensor.items() if moved.written]
    return reads + writes
