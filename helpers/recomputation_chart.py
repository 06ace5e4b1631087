"""Bytes moved and bytes kept in a training step, stored or recomputed, as bars."""

from helpers.charts import FUSED, INK, UNFUSED, Chart, label_width, plain, si
from helpers.devices import Device
from helpers.page_bars import Box, Label, Panel, Scene, axis_end, picture, still
from helpers.recomputation import Steps

SIZE = (576, 196)  # points
NAMES = {"unfused": "unfused", "stored": "fused, stored", "recomputed": "fused, recomputed"}
COLOURS = {"unfused": UNFUSED, "stored": FUSED, "recomputed": FUSED}
ROWS = {"unfused": 66, "stored": 104, "recomputed": 142}  # the middle of each version's bar
BAR = 22
LAYERS = 32
MOVED = Panel(112, 320, "moved (filled: forward, open: backward)")
KEPT = Panel(420, 476, f"kept ({LAYERS} layers: % of memory)")


def scene(steps: Steps, device: Device, what: str) -> Scene:
    """The bars of one operation on one device; times are bytes over its bandwidth. `what` opens the line of text.

    The share of the device's memory is that of what LAYERS such operations keep.
    """
    versions = {name: getattr(steps, name) for name in NAMES}
    moved_end = axis_end(max(step.moved for step in versions.values()))
    kept_end = axis_end(max(step.kept for step in versions.values()))
    moved_scale, kept_scale = (MOVED.right - MOVED.left) / moved_end, (KEPT.right - KEPT.left) / kept_end
    boxes, labels, told = [], [], []
    for name, step in versions.items():
        y, forward, backward = ROWS[name], step.forward * moved_scale, step.backward * moved_scale
        boxes.append(Box(MOVED.left, y, forward, BAR, COLOURS[name]))
        boxes.append(Box(MOVED.left + forward, y, backward, BAR, None))
        time = f"{si(step.moved, 'B')}, {si(step.moved / device.memory_bandwidth, 's')}"
        labels.append(Label(time, MOVED.left + forward + backward + 5, y, "left"))
        if label_width("forward") < forward:
            labels.append(Label("forward", MOVED.left + forward / 2, y, "center", INK[COLOURS[name]]))
        kept = f"{si(step.kept, 'B')} ({_share(LAYERS * step.kept / device.memory)})" if step.kept else "nothing"
        if step.kept:
            boxes.append(Box(KEPT.left, y, step.kept * kept_scale, BAR, COLOURS[name]))
        labels.append(Label(kept, KEPT.left + step.kept * kept_scale + 5, y, "left"))
        told.append(f"{NAMES[name]} moves {time} and keeps {kept}")
    labels += [*MOVED.ends(moved_end, SIZE), *KEPT.ends(kept_end, SIZE)]
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


def recomputation_axes():
    """What stays still: the versions' names, the panels' heads and their axes."""
    return still(SIZE, {NAMES[name]: y for name, y in ROWS.items()}, (MOVED, KEPT))


def recomputation_chart(shown: Scene) -> Chart:
    """One bar a version in each panel: what a training step moves, and what it keeps between its passes."""
    return picture(*recomputation_axes(), shown)
