"""Online softmax as a picture: block after block, the maximum so far and the sum that is right for it."""

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from helpers.figures.style import FUSED, LIMIT, MARKER_SIZE, STYLE, TEXT, TITLE_SIZE, UNFUSED, Chart


def running(row: np.ndarray, block: int) -> list[tuple[float, float, float, float]]:
    """What online softmax holds after each block of a row.

    Args:
        row: (columns,), finite.
        block: columns seen at a time.

    Returns:
        For each block: the maximum so far; the sum brought over from the blocks before, rescaled to that maximum; what
        this block adds to it; and the sum of one that never rescales.
    """
    steps, peak, total, stale = [], -np.inf, 0.0, 0.0
    for start in range(0, len(row), block):
        part = row[start : start + block]
        higher = max(peak, part.max())
        carried, added = total * np.exp(peak - higher), np.exp(part - higher).sum()
        peak, total, stale = higher, carried + added, stale + added
        steps.append((float(peak), float(carried), float(added), float(stale)))
    return steps


def online_softmax_chart(row: np.ndarray, block: int, title: str) -> Chart:
    """Above, the row and its running maximum; below, a bar a block: what was carried over and, on top, what is new.

    Circles mark the sum without rescaling.

    Args:
        row, block: as of `running`.
        title: the finding that the chart shows.
    """
    steps = running(row, block)
    edges = np.minimum(np.arange(len(steps) + 1) * block, len(row))
    middles, widths = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
    peaks, carried, added, stale = map(np.array, zip(*steps, strict=True))
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 4.2))
        above = figure.add_axes((0.085, 0.6, 0.895, 0.31))
        below = figure.add_axes((0.085, 0.11, 0.895, 0.4))
        figure.text(above.bbox.x0 / figure.bbox.width, 0.955, title, size=TITLE_SIZE, weight="bold")
        above.plot(np.arange(len(row)) + 0.5, row, "o", color=LIMIT, markersize=3)
        above.step(edges, [*peaks, peaks[-1]], where="post", color=FUSED, linewidth=2)
        above.set(xlim=(0, len(row)), ylim=(min(row) - 0.5, max(row) + 1.4), ylabel="score")
        above.set_xticks(edges, [])
        above.annotate("line: maximum so far", (0.01, 0.87), xycoords="axes fraction")
        bars = {"width": 0.8 * widths, "edgecolor": TEXT}
        below.bar(middles, carried, facecolor=(FUSED, 0.3), **bars)
        below.bar(middles, added, bottom=carried, facecolor=FUSED, **bars)
        below.plot(middles, stale, "o", color=UNFUSED, markersize=MARKER_SIZE, mec=TEXT)
        below.set(xlim=(0, len(row)), ylim=(0, 1.3 * max(stale)), xlabel="columns seen", ylabel="sum so far")
        below.set_xticks(edges)
        key = "faint: carried over, rescaled; solid: new; circles: never rescaled"
        below.annotate(key, (0.01, 0.91), xycoords="axes fraction")
    told = "; ".join(
        f"{edge} columns: maximum {peak:.3g}, sum {old + new:.3g}, never rescaled {wrong:.3g}"
        for edge, (peak, old, new, wrong) in zip(edges[1:], steps, strict=True)
    )
    return Chart(figure, f"{title}. After {told}.")
