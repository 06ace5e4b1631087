"""Bytes moved and bytes kept in a training step, stored or recomputed, as bars.

Where everything stands is worked out once, in points of the page, y downwards: `scene`. The picture and the explorer
both draw it.
"""

import math
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.charts import FUSED, INK, LIMIT, STYLE, TEXT, TITLE_SIZE, UNFUSED, Chart, label_width, plain, si
from helpers.devices import Device
from helpers.recomputation import Steps

WIDTH, HEIGHT = 576, 196  # points
NAMES = {"unfused": "unfused", "stored": "fused, stored", "recomputed": "fused, recomputed"}
COLOURS = {"unfused": UNFUSED, "stored": FUSED, "recomputed": FUSED}
ROWS = {"unfused": 66, "stored": 104, "recomputed": 142}  # the middle of each version's bar
BAR = 22
BOTTOM = 162  # where the bars' axis lies
MOVED, KEPT = (112, 320), (420, 476)  # each panel's left end, and where its axis ends
TITLE_FROM_TOP = 16
LAYERS = 32
HEADS = {
    MOVED[0]: "moved (filled: forward, open: backward)",
    KEPT[0]: f"kept ({LAYERS} layers: % of memory)",
}
HEADS_FROM_TOP = 42
STEPS = (1, 1.5, 2, 3, 4, 5, 7, 10)  # where an axis may end, times a power of ten


@dataclass(frozen=True)
class Box:
    """A rectangle on the page; `colour` None is an open one."""

    x: float
    y: float
    width: float
    colour: str | None


@dataclass(frozen=True)
class Label:
    """Text on the page around y; `align` is "left", "center" or "right" of x."""

    text: str
    x: float
    y: float
    align: str
    colour: str = TEXT


@dataclass(frozen=True)
class Scene:
    """What moves: the title (the finding), bars, labels, and the line of text that says the same."""

    title: str
    boxes: tuple[Box, ...]
    labels: tuple[Label, ...]
    text: str


def scene(steps: Steps, device: Device, what: str) -> Scene:
    """The bars of one operation on one device; times are bytes over its bandwidth. `what` opens the line of text.

    The share of the device's memory is that of what LAYERS such operations keep.
    """
    versions = {name: getattr(steps, name) for name in NAMES}
    moved_end = _axis_end(max(step.moved for step in versions.values()))
    kept_end = _axis_end(max(step.kept for step in versions.values()))
    moved_scale, kept_scale = (MOVED[1] - MOVED[0]) / moved_end, (KEPT[1] - KEPT[0]) / kept_end
    boxes, labels, told = [], [], []
    for name, step in versions.items():
        y, forward, backward = ROWS[name], step.forward * moved_scale, step.backward * moved_scale
        boxes += [Box(MOVED[0], y, forward, COLOURS[name]), Box(MOVED[0] + forward, y, backward, None)]
        time = f"{si(step.moved, 'B')}, {si(step.moved / device.memory_bandwidth, 's')}"
        labels.append(Label(time, MOVED[0] + forward + backward + 5, y, "left"))
        if label_width("forward") < forward:
            labels.append(Label("forward", MOVED[0] + forward / 2, y, "center", INK[COLOURS[name]]))
        kept = f"{si(step.kept, 'B')} ({_share(LAYERS * step.kept / device.memory)})" if step.kept else "nothing"
        if step.kept:
            boxes.append(Box(KEPT[0], y, step.kept * kept_scale, COLOURS[name]))
        labels.append(Label(kept, KEPT[0] + step.kept * kept_scale + 5, y, "left"))
        told.append(f"{NAMES[name]} moves {time} and keeps {kept}")
    for (left, right), end in ((MOVED, moved_end), (KEPT, kept_end)):
        labels += [Label("0", left, BOTTOM + 9, "center"), Label(si(end, "B"), right, BOTTOM + 9, "center")]
    title = finding(steps)
    text = f"{what}: {'; '.join(told)} (of memory, in {LAYERS} layers). {title}."
    return Scene(title, tuple(boxes), tuple(labels), text)


def finding(steps: Steps) -> str:
    """What recomputing changes against storing, both fused."""
    stored, recomputed = steps.stored, steps.recomputed
    if recomputed.moved == stored.moved:
        moves = "as many bytes"
    else:
        more = "fewer" if recomputed.moved < stored.moved else "more"
        moves = f"{plain(abs(100 * (1 - recomputed.moved / stored.moved)))} % {more} bytes"
    keeps = f"{si(abs(recomputed.kept - stored.kept), 'B')} {'less' if recomputed.kept < stored.kept else 'more'}"
    return f"Recomputing moves {moves} than storing and keeps {keeps}".replace("as many bytes than", "as many bytes as")


def _share(fraction: float) -> str:
    return f"{plain(float(f'{100 * fraction:.2g}'))} %" if fraction >= 0.001 else "<0.1 %"


def _axis_end(longest: int) -> float:
    power = 10.0 ** math.floor(math.log10(longest))
    return next(step * power for step in STEPS if step * power >= longest)


def recomputation_axes() -> tuple[Figure, Axes]:
    """What stays still: the versions' names, the panels' heads and their axes. Data are points of the page."""
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
        axes.axis("off")
        for name, y in ROWS.items():
            _write(axes, Label(NAMES[name], MOVED[0] - 6, y, "right"))
        for x, head in HEADS.items():
            _write(axes, Label(head, x, HEADS_FROM_TOP, "left"))
        for left, right in (MOVED, KEPT):
            axes.plot((left, left, right, right), (HEADS_FROM_TOP + 9, BOTTOM, BOTTOM, BOTTOM + 3), color=LIMIT, lw=0.8)
    return figure, axes


def _write(axes: Axes, label: Label, **style) -> None:
    axes.text(label.x, label.y, label.text, ha=label.align, va="center_baseline", color=label.colour, **style)


def recomputation_chart(shown: Scene) -> Chart:
    """One bar a version in each panel: what a training step moves, and what it keeps between its passes."""
    figure, axes = recomputation_axes()
    with rc_context(STYLE):
        place = {"ha": "left", "va": "center_baseline", "size": TITLE_SIZE, "weight": "bold"}
        figure.text(12 / WIDTH, 1 - TITLE_FROM_TOP / HEIGHT, shown.title, **place)
        for box in shown.boxes:
            corner = box.x, box.y - BAR / 2
            axes.add_patch(Rectangle(corner, box.width, BAR, facecolor=box.colour or "none", edgecolor=TEXT))
        for label in shown.labels:
            _write(axes, label)
    return Chart(figure, shown.text)
