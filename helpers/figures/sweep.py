"""What a kernel reaches at every size of the sweep: the share of its ceiling over the width, beside the best peer's."""

import math
from collections.abc import Callable

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from helpers.figures.style import FUSED, LIMIT, STYLE, TEXT, TITLE_SIZE, UNFUSED, Chart
from helpers.instruments.sweep import BEHIND, RecordedSweep, aligned, best_peer, ratio, share

WIDTH, PANEL_HEIGHT = 576, 130
LEFT, RIGHT, TOP, BOTTOM, GAP = 58, 12, 66, 40, 36


def sweep_chart(
    found: RecordedSweep, kernel: str, x: str = "columns", at: Callable[[dict], float] | None = None
) -> Chart:
    """A panel a direction and regime: ours in blue squares, the best peer at each size in orange circles, the ceiling
    dashed at 100 %.

    Ours is a hollow square where rows do not begin at multiples of 16 bytes.

    Args:
        found: a recorded sweep.
        kernel: one of its kernels; bf16 is drawn.
        x: what the axis counts.
        at: a point's place on that axis; the elements of a row (of the tensor, where it has no rows) by default.

    Raises:
        ValueError: nothing was recorded for that kernel.
    """
    at = at or (lambda point: point["shape"][-1])
    points = [point for point in found.of(kernel) if not math.isnan(ratio(point))]
    directions = list(dict.fromkeys(point["direction"] for point in sorted(points, key=_forward_first)))
    regimes = list(dict.fromkeys(point["regime"] for point in points))
    panels = {
        (direction, regime): sorted((p for p in points if (p["direction"], p["regime"]) == (direction, regime)), key=at)
        for direction in directions
        for regime in regimes
    }
    title = _title(kernel, points)
    height = TOP + BOTTOM + PANEL_HEIGHT * len(directions) + GAP * (len(directions) - 1)
    wide = (WIDTH - LEFT - RIGHT - GAP * (len(regimes) - 1)) / len(regimes)
    ends = [at(point) for point in points]
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        for number, ((direction, regime), its) in enumerate(panels.items()):
            row, column = divmod(number, len(regimes))
            left, top = LEFT + column * (wide + GAP), TOP + row * (PANEL_HEIGHT + GAP)
            place = (left / WIDTH, 1 - (top + PANEL_HEIGHT) / height, wide / WIDTH, PANEL_HEIGHT / height)
            axes = figure.add_axes(place)
            _panel(axes, its, at)
            axes.set(xlim=(min(ends) / 1.4, max(ends) * 1.4))
            axes.set_title(f"{direction}, {regime}", size=9, loc="left", pad=3)
            if row == len(directions) - 1:
                axes.set_xlabel(x)
        figure.text(12 / WIDTH, 1 - 14 / height, title, size=TITLE_SIZE, weight="bold", va="center_baseline")
        figure.text(12 / WIDTH, 1 - 28 / height, "% of the ceiling on the least bytes", va="center_baseline")
        _key(figure, height)
    return Chart(figure, f"{title}. {' '.join(_told(*name, its, at, x) for name, its in panels.items() if its)}")


def _forward_first(point: dict) -> bool:
    return point["direction"] != "forward"


def _title(kernel: str, points: list[dict]) -> str:
    level = sum(ratio(point) <= BEHIND for point in points)
    return f"{kernel}: ahead of the best peer or level with it at {level} of {len(points)} sizes"


def _panel(axes: Axes, points: list[dict], at: Callable[[dict], float]) -> None:
    axes.set(ylim=(0, 112))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    powers = range(*(round(f(math.log2(at(point)))) for f, point in ((math.floor, points[0]), (math.ceil, points[-1]))))
    ticks = [2**power for power in [*powers, powers.stop][:: max(1, len(powers) // 5)]]
    axes.set_xticks(ticks, map(_binary, ticks))
    axes.axhline(100, color=LIMIT, linewidth=1.2, linestyle="--")
    places = [at(point) for point in points]
    peers = [100 * share(point, best_peer(point)) for point in points]
    ours = [100 * share(point) for point in points]
    axes.plot(places, peers, "-o", color=UNFUSED, markersize=4, mec=TEXT, mew=0.5, linewidth=1.2, zorder=2)
    axes.plot(places, ours, "-", color=FUSED, linewidth=1.2, zorder=3)
    for wide in (True, False):
        these = [n for n, point in enumerate(points) if aligned(point) is wide]
        axes.plot(
            [places[n] for n in these],
            [ours[n] for n in these],
            "s",
            color=FUSED,
            markersize=4,
            mec=TEXT if wide else FUSED,
            mew=0.5 if wide else 1,
            mfc=FUSED if wide else "none",
            zorder=4,
        )


def _binary(power: int) -> str:
    """1024 as 1K, 2**20 as 1M."""
    unit, name = next(((u, n) for u, n in ((2**20, "M"), (2**10, "K")) if power >= u), (1, ""))
    return f"{power // unit}{name}"


def _key(figure: Figure, height: float) -> None:
    """Names of the marks, one line under the title."""
    looks = {
        "ours": {"marker": "s", "color": FUSED, "mec": TEXT, "mew": 0.5},
        "ours, rows not aligned to 16 bytes": {"marker": "s", "color": FUSED, "mfc": "none", "linestyle": "none"},
        "the best peer at each size": {"marker": "o", "color": UNFUSED, "mec": TEXT, "mew": 0.5},
        "ceiling": {"color": LIMIT, "linestyle": "--"},
    }
    lines = [Line2D([], [], markersize=5, linewidth=1.2, **look) for look in looks.values()]
    figure.legend(
        lines,
        looks,
        loc="center left",
        bbox_to_anchor=(4 / WIDTH, 1 - 42 / height),
        ncols=4,
        frameon=False,
        fontsize=9,
        handlelength=1.6,
        columnspacing=1.2,
        labelcolor=TEXT,
    )


def _told(direction: str, regime: str, points: list[dict], at: Callable[[dict], float], x: str) -> str:
    ours = [100 * share(point) for point in points]
    peers = [100 * share(point, best_peer(point)) for point in points]
    worst = max(points, key=ratio)
    return (
        f"{direction.capitalize()}, {regime}, {at(points[0]):,} to {at(points[-1]):,} {x}: ours"
        f" {min(ours):.0f} to {max(ours):.0f} % of the ceiling, the best peer {min(peers):.0f} to {max(peers):.0f} %;"
        f" ours takes at most {ratio(worst):.2f} times the best peer's time, at {at(worst):,} {x}"
        f" against {best_peer(worst)}."
    )
