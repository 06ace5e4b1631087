"""Curves over one quantity that was varied: a line with a mark at each value that was tried, its name at its end."""

import math
from collections.abc import Mapping
from statistics import mean

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from helpers.figures.frame.chart import Chart, label_width, plain
from helpers.style import FUSED, GREEN, LIMIT, MARKER_SIZE, PURPLE, SKY_BLUE, STYLE, TEXT, TITLE_SIZE, UNFUSED

# The names that have a colour of their own, then Okabe and Ito's colours that mean neither of them.
NAMED = {"unfused": (UNFUSED, "o"), "eager": (UNFUSED, "o"), "fused": (FUSED, "s")}
OTHERS = ((GREEN, "v"), (PURPLE, "D"), (SKY_BLUE, "^"), (FUSED, "s"), (UNFUSED, "o"))
LABEL_HEIGHT = 11  # points
WIDTH, HEIGHT = 576, 252


def curves_chart(
    curves: Mapping[str, Mapping[float, float]],
    title: str,
    x: str,
    y: str,
    log: bool = False,
    limit: Mapping[str, Mapping[float, float]] | None = None,
) -> Chart:
    """A line for each of `curves`, and a dashed grey one, without marks, for each of `limit`.

    Args:
        curves: name -> {value tried: result}; "unfused" or "eager" is orange, "fused" blue.
        title: the finding that the chart shows.
        x, y: what the axes count, with the unit.
        log: both axes logarithmic; else both begin at 0.
        limit: name -> {value: the best possible result}.

    Raises:
        ValueError: no curve, one without a value, more than have a colour, or a value that no axis holds.
    """
    every = curves | (limit or {})
    if not curves or not all(every.values()) or len(curves) > len(OTHERS):
        raise ValueError(f"curves_chart takes 1 to {len(OTHERS)} curves of at least one value each, got {len(curves)}")
    numbers = [number for found in every.values() for pair in found.items() for number in pair]
    if not all(math.isfinite(number) and number >= 0 and (number or not log) for number in numbers):
        least = "above" if log else "from"
        raise ValueError(f"a curve has a value that its axis can't show: use finite numbers {least} 0")
    tried = sorted({value for found in curves.values() for value in found})
    right = max(map(label_width, every)) + 30
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
        axes = figure.add_axes((58 / WIDTH, 40 / HEIGHT, 1 - (58 + right) / WIDTH, 1 - 76 / HEIGHT))
        if log:
            axes.set(xscale="log", yscale="log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xticks(tried, [f"{value:,g}" for value in tried])
        axes.yaxis.set_major_formatter(lambda value, _: plain(value))
        axes.set(xlabel=x)
        free = iter(OTHERS)
        looks = {}
        for name, found in curves.items():
            colour, marker = NAMED.get(name) or next(free)
            looks[name] = {"marker": marker, "color": colour, "markersize": MARKER_SIZE - 1, "mec": TEXT, "mew": 0.7}
            axes.plot(list(found), list(found.values()), "-", linewidth=1.8, clip_on=False, zorder=3, **looks[name])
        for found in (limit or {}).values():
            axes.plot(list(found), list(found.values()), "--", color=LIMIT, linewidth=1.2)
        low = min(tried) / 1.25 if log else 0
        axes.set(xlim=(low, max(tried) * (1.25 if log else 1.03)))
        top = max(value for found in every.values() for value in found.values())
        if log:
            low = axes.get_ylim()[0] / 1.3
            axes.set(ylim=(low, top * 1.6))
            # Within a decade, steps of 1, 2 and 5 are too few to read a value by.
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if 1.6 * top > 10 * low else (1, 1.5, 2, 3, 5, 7)))
        else:
            axes.set(ylim=(0, top * 1.12))
        figure.text(12 / WIDTH, 1 - 14 / HEIGHT, title, size=TITLE_SIZE, weight="bold", va="center_baseline")
        figure.text(12 / WIDTH, 1 - 28 / HEIGHT, y, va="center_baseline")
        tips = {name: axes.transData.transform(max(found.items())) for name, found in every.items()}
        for name, height in _apart({name: end[1] for name, end in tips.items()}).items():
            key, at = (axes.bbox.x1 + 14) / WIDTH, height / HEIGHT
            if name in looks:
                figure.add_artist(Line2D([key], [at], **looks[name]))
            else:
                ends = [key - 5 / WIDTH, key + 5 / WIDTH]
                figure.add_artist(Line2D(ends, [at, at], linestyle="--", color=LIMIT, linewidth=1.2))
            figure.text(key + 8 / WIDTH, at, name, va="center_baseline")
    told = (f"{name}: {', '.join(f'{plain(v)} at {k:,g}' for k, v in found.items())}" for name, found in curves.items())
    return Chart(figure, f"{title}. {y[:1].upper()}{y[1:]} over {x}: {'; '.join(told)}.")


def _apart(heights: dict[str, float]) -> dict[str, float]:
    """Labels' heights in points, in their lines' order, each a line or more above the one before and as near its own
    line as that allows."""
    names = sorted(heights, key=heights.get)
    groups: list[list[float]] = []  # of neighbours that touch: where each would have the first of them
    for number, name in enumerate(names):
        groups.append([heights[name] - number * LABEL_HEIGHT])
        while len(groups) > 1 and mean(groups[-2]) > mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    firsts = [mean(group) for group in groups for _ in group]
    return {name: first + number * LABEL_HEIGHT for number, (name, first) in enumerate(zip(names, firsts, strict=True))}
