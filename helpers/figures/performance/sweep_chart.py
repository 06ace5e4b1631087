"""A kernel's share of its ceiling at every size of the sweep, next to the best peer's."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from helpers.figures.frame.chart import Chart
from helpers.instruments.sweep_records import BEHIND, RecordedSweep, aligned, best_peer, key_of, ratio, share
from helpers.style import FUSED, LIMIT, STYLE, TEXT, TEXT_SIZE, TITLE_SIZE, UNFUSED

WIDTH, PANEL_HEIGHT = 576, 130
LEFT, RIGHT, TOP, BOTTOM, GAP = 58, 12, 80, 40, 36
COLUMNS = 2
REGIMES = {"256 MB": "tensors of 256 MiB"}
SIDE_BY_SIDE = 2**0.15  # from one mark to the next at the same place


@dataclass(frozen=True)
class View:
    """The layout of a kernel's points.

    x: the axis' label.
    at: a point's position on that axis.
    panel: the point's panel, apart from its direction; None leaves it out.
    joined: whether sizes follow each other, so that a line between them means something.
    """

    x: str = "columns"
    at: Callable[[dict], float] = lambda point: point["shape"][-1]
    panel: Callable[[dict], str | None] = lambda point: REGIMES.get(point["regime"], point["regime"])
    joined: bool = True


def _square_weights(point: dict) -> str | None:
    return "weights of 4096 x 4096" if point["shape"][1:] == [4096, 4096] else None


def _masking(point: dict) -> str | None:
    if point["regime"] != "d128":
        return None
    return "heads of 128, causal" if point["shape"][-1] else "heads of 128, every pair"


def _depth(point: dict) -> int:
    _, channels, _, _, _, taps, _ = point["shape"]
    return channels * taps**2


VIEWS = {
    "linear_act": View("rows", lambda point: point["shape"][0], _square_weights),
    "conv_bn_act": View("numbers deep (taps x input channels)", _depth, joined=False),
    "flash_attention": View("tokens", lambda point: point["shape"][3], _masking),
}
ELEMENTS = View("elements", lambda point: math.prod(point["shape"]))


def sweep_chart(found: RecordedSweep, kernel: str) -> Chart:
    """Draw one panel per direction and regime: ours in blue squares, the best peer at each size in orange circles, the
    ceiling dashed at 100 %. Where rows do not begin at multiples of 16 bytes, marks are hollow and lines dotted. Where
    sizes do not follow each other, a thin line joins ours and the peer's of each, and those at one position are side by
    side.

    Args:
        found: a recorded sweep.
        kernel: one of its kernels; bf16 is drawn.

    Raises:
        ValueError: nothing was recorded for that kernel.
    """
    elementwise = {point["regime"] for point in found.of(kernel)} == {"elements"}
    view = VIEWS.get(kernel, ELEMENTS if elementwise else View())
    timed = [point for point in found.of(kernel) if not math.isnan(ratio(point))]
    points = sorted((p for p in timed if view.panel(p)), key=lambda p: (p["direction"] != "forward", view.at(p)))
    panels = {}
    for direction, name in dict.fromkeys((p["direction"], view.panel(p)) for p in sorted(points, key=_by_panel(view))):
        panels[f"{direction}, {name}"] = [p for p in points if (p["direction"], view.panel(p)) == (direction, name)]
    title = _title(kernel, points)
    rows = math.ceil(len(panels) / COLUMNS)
    columns = min(COLUMNS, len(panels))
    height = TOP + BOTTOM + PANEL_HEIGHT * rows + GAP * (rows - 1)
    wide = (WIDTH - LEFT - RIGHT - GAP * (columns - 1)) / columns
    ends = [view.at(point) for point in points]
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        for number, (name, its) in enumerate(panels.items()):
            row, column = divmod(number, columns)
            left, top = LEFT + column * (wide + GAP), TOP + row * (PANEL_HEIGHT + GAP)
            place = (left / WIDTH, 1 - (top + PANEL_HEIGHT) / height, wide / WIDTH, PANEL_HEIGHT / height)
            axes = figure.add_axes(place)
            _panel(axes, its, view, ends)
            axes.set_title(name.removesuffix(", elements"), size=TEXT_SIZE, loc="left", pad=3)
            if number + columns >= len(panels):
                axes.set_xlabel(view.x)
            if column == 0:
                axes.set_ylabel("% of the ceiling")
        figure.text(12 / WIDTH, 1 - 14 / height, title, size=TITLE_SIZE, weight="bold", va="center_baseline")
        for down, line in ((28, "bf16; GPU times, cold L2"), (41, _ceiling(points))):
            figure.text(12 / WIDTH, 1 - down / height, line, va="center_baseline", size=TEXT_SIZE)
        _key(figure, height, view.joined, hollow=not all(map(aligned, points)))
    return Chart(figure, f"{title}. {' '.join(_told(name, its, view) for name, its in panels.items())}")


def _by_panel(view: View) -> Callable[[dict], tuple]:
    """Forward before backward, panels by their names."""
    return lambda point: (point["direction"] != "forward", view.panel(point))


def _title(kernel: str, points: list[dict]) -> str:
    level = sum(ratio(point) <= BEHIND for point in points)
    return f"{kernel}: at least level with the best peer at {level} of the {len(points)} sizes plotted"


def _ceiling(points: list[dict]) -> str:
    """Describe 100 %: the slowest of reading and writing, and of the matmuls."""
    bounds = {point["ceiling"] for point in points}
    speed = "a copy's or a read's speed" if "read" in bounds else "a copy's speed"
    matrix = "; or the FLOPs at a large matmul's rate, if that takes longer" if "matrix" in bounds else ""
    return f"ceiling: the minimum bytes at {speed}{matrix}"


def _places(points: list[dict], view: View) -> list[float]:
    """Return each point's position on the axis: points without a line are moved apart."""
    seen, places = Counter(), []
    for point in points:
        places.append(view.at(point) * (1 if view.joined else SIDE_BY_SIDE ** seen[view.at(point)]))
        seen[view.at(point)] += 1
    return places


def _panel(axes: Axes, points: list[dict], view: View, ends: list[float]) -> None:
    axes.set(ylim=(0, 112))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = math.floor(math.log2(min(ends))), math.ceil(math.log2(max(ends)))
    ticks = [2**power for power in range(low, high + 1, max(1, (high - low) // 5))]
    axes.set_xticks(ticks, map(_binary, ticks))
    axes.set(xlim=(min(ends) / 1.4, max(ends) * 1.4))
    axes.axhline(100, color=LIMIT, linewidth=1.2, linestyle="--")
    places = dict(zip(map(key_of, points), _places(points, view), strict=True))
    if not view.joined:
        pairs = ([100 * share(point, name(point)) for point in points] for name in (best_peer, lambda _: "fused"))
        axes.vlines(list(places.values()), *pairs, color=TEXT, linewidth=0.6, zorder=1)
    of_peer, of_ours = {"marker": "o", "color": UNFUSED}, {"marker": "s", "color": FUSED}
    for look, shown in ((of_peer, lambda point: share(point, best_peer(point))), (of_ours, share)):
        for whole in (True, False):
            these = [point for point in points if aligned(point) is whole]
            axes.plot(
                [places[key_of(point)] for point in these],
                [100 * shown(point) for point in these],
                linestyle=("-" if whole else ":") if view.joined else "none",
                **look | _marks(look["color"], whole),
            )


def _marks(color: str, whole: bool) -> dict:
    filled = {"mec": TEXT, "mew": 0.5} if whole else {"mec": color, "mew": 1.2, "mfc": "none"}
    return filled | {"markersize": 4, "linewidth": 1.2}


def _binary(power: int) -> str:
    """1024 as 1K, 2**20 as 1M."""
    unit, name = next(((u, n) for u, n in ((2**20, "M"), (2**10, "K")) if power >= u), (1, ""))
    return f"{power // unit}{name}"


def _key(figure: Figure, height: float, joined: bool, hollow: bool) -> None:
    """Names of the marks, one line under what the ceiling is."""
    looks = {
        "ours": {"marker": "s", "color": FUSED, **_marks(FUSED, True)},
        "the best peer at each size": {"marker": "o", "color": UNFUSED, **_marks(UNFUSED, True)},
        "hollow: rows not aligned to 16 bytes": {"marker": "s", "color": TEXT, **_marks(TEXT, False), "linestyle": ":"},
        "ceiling": {"color": LIMIT, "linestyle": "--"},
    }
    if not hollow:
        del looks["hollow: rows not aligned to 16 bytes"]
    if not joined:
        looks = {name: {"linestyle": "none"} | look if "marker" in look else look for name, look in looks.items()}
    figure.legend(
        [Line2D([], [], **look) for look in looks.values()],
        looks,
        loc="center left",
        bbox_to_anchor=(4 / WIDTH, 1 - 56 / height),
        ncols=4,
        frameon=False,
        fontsize=TEXT_SIZE,
        handlelength=1.6,
        columnspacing=1.2,
        labelcolor=TEXT,
    )


def _told(name: str, points: list[dict], view: View) -> str:
    worst = max(points, key=ratio)
    places = [f"{round(view.at(point)):,}" for point in (points[0], points[-1], worst)]
    unit = view.x.partition(" (")[0]
    return (
        f"{name[0].upper()}{name[1:]}, {places[0]} to {places[1]} {unit}: ours {_range(points, share)}, the"
        f" best peer {_range(points, lambda point: share(point, best_peer(point)))}; ours takes at most"
        f" {ratio(worst):.2f} times the best peer's time, at {places[2]} {unit} against {best_peer(worst)}."
    )


def _range(points: list[dict], shown: Callable[[dict], float]) -> str:
    """The shares of rows aligned to 16 bytes, and in brackets those of the others."""
    parts = []
    for whole in (True, False):
        shares = [100 * shown(point) for point in points if aligned(point) is whole]
        if shares:
            parts.append(f"{min(shares):.0f} to {max(shares):.0f} %{' of the ceiling' if whole else ' of it'}")
    return parts[0] if len(parts) < 2 else f"{parts[0]} ({parts[1]} where rows are not aligned)"
