"""Storing or recomputing: the bytes that a training step moves and keeps, their bars, and the live bars over sizes."""

from collections.abc import Callable
from dataclasses import dataclass

import ipywidgets as widgets

from helpers.figures.frame.chart import Chart, label_width, plain, si
from helpers.figures.frame.explorer import FramePlayer, slider
from helpers.figures.frame.page_bars import Box, Label, Panel, Scene, axis_end, picture, still
from helpers.figures.frame.scene_explorer import SceneExplorer
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.operations import ITEMSIZE
from helpers.style import FUSED, INK, UNFUSED


@dataclass(frozen=True)
class Step:
    """Bytes moved in the forward and in the backward pass, and bytes kept in between."""

    forward: int
    backward: int
    kept: int

    @property
    def moved(self) -> int:
        return self.forward + self.backward


@dataclass(frozen=True)
class Steps:
    """The three versions of an operation."""

    unfused: Step
    stored: Step
    recomputed: Step


def bias_dropout_residual(n: int, b: int) -> Steps:
    """residual + dropout(x + bias). A stored mask takes 1 B per element.

    Unfused: add (2b), dropout (2b + 1), add (3b); backward, dropout (2b + 1) and the bias's sum (b). Fused, the sum is
    made on the way.
    """
    return Steps(
        Step(n * (7 * b + 1), n * (3 * b + 1), n),
        Step(n * (3 * b + 1), n * (2 * b + 1), n),
        Step(n * 3 * b, n * 2 * b, 0),
    )


def gated(n: int, b: int) -> Steps:
    """act(gate) * up, both inputs kept.

    Unfused: act (2b), product (3b), which keeps act(gate); backward, two products and act's gradient (3b each). Fused,
    the backward reads the gradient, gate and up, and act(gate) if it was stored; it writes two gradients.
    """
    return Steps(
        Step(n * 5 * b, n * 9 * b, n * 3 * b),
        Step(n * 4 * b, n * 6 * b, n * 3 * b),
        Step(n * 3 * b, n * 5 * b, n * 2 * b),
    )


def residual_gelu(n: int, b: int) -> Steps:
    """gelu(x + residual). To recompute the sum, x and residual must be kept; stored, the sum alone.

    Unfused: add (3b), gelu (2b); backward, gelu's gradient (3b), which x and residual share. Recomputed, the backward
    reads the gradient, x and residual and writes one gradient.
    """
    return Steps(
        Step(n * 5 * b, n * 3 * b, n * b),
        Step(n * 4 * b, n * 3 * b, n * b),
        Step(n * 3 * b, n * 4 * b, n * 2 * b),
    )


TRAINING_STEPS: dict[str, Callable[[int, int], Steps]] = {
    "bias+dropout+residual": bias_dropout_residual,
    "SwiGLU": gated,
    "GeGLU": gated,
    "residual+GELU": residual_gelu,
}


SIZE = (576, 196)  # points
NAMES = {"unfused": "unfused", "stored": "fused, stored", "recomputed": "fused, recomputed"}
COLOURS = {"unfused": UNFUSED, "stored": FUSED, "recomputed": FUSED}
BARS = {"unfused": 66, "stored": 104, "recomputed": 142}  # the middle of each version's bar
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
        y, forward, backward = BARS[name], step.forward * moved_scale, step.backward * moved_scale
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
    """Return the effect of recomputing against storing, both fused."""
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
    """Draw the static parts: the versions' names, the panels' heads and their axes."""
    return still(SIZE, {NAMES[name]: y for name, y in BARS.items()}, (MOVED, KEPT))


def recomputation_chart(shown: Scene) -> Chart:
    """Draw one bar per version in each panel: the bytes a training step moves, and those it saves for backward."""
    return picture(*recomputation_axes(), shown)


ROWS = tuple(2**power for power in range(6, 18))
COLUMNS = (256, 512, 1024, 2048, 4096, 8192, 11008, 16384)
DTYPES = ("bf16", "fp16", "fp32")


class RecomputationExplorer(SceneExplorer):
    """Bars for three versions, with sliders for rows and columns, and a choice of operation, dtype and GPU.

    Its controls are widgets: `rows`, `columns`, `operation`, `dtype` and `device` (names); `text` describes the view.
    Without a kernel it displays as a still image with that text.

    Raises:
        ValueError: an unknown operation, dtype or device, or a value that is not on its slider.
    """

    _parts = (
        ((0, 30, 410, 166),),
        ((0, 30, 108, 166), (410, 30, 166, 166)),
    )
    _axes = staticmethod(recomputation_axes)
    _bar = BAR

    def __init__(
        self,
        operation: str = "bias+dropout+residual",
        dtype: str = "bf16",
        device: str = "H200",
        rows: int = 16384,
        columns: int = 4096,
    ):
        if operation not in TRAINING_STEPS or dtype not in DTYPES:
            raise ValueError(
                f"{operation!r} in {dtype!r}: choose from {', '.join(TRAINING_STEPS)}, and from {', '.join(DTYPES)}"
            )
        DEVICES[device]  # refuses a name that it does not know
        self.rows = slider("rows", ROWS, rows, [f"{each:,}" for each in ROWS])
        self.columns = slider("columns", COLUMNS, columns, [f"{each:,}" for each in COLUMNS])
        self.operation = widgets.Dropdown(options=list(TRAINING_STEPS), value=operation, description="operation")
        self.dtype = widgets.Dropdown(options=list(DTYPES), value=dtype, description="dtype")
        self.device = widgets.Dropdown(options=list(DEVICES), value=device, description="GPU")
        super().__init__(FramePlayer(), [self.rows, self.columns], [[self.operation, self.dtype, self.device]])

    def _scene(self, rows: int, columns: int) -> Scene:
        operation, dtype, device = self.operation.value, self.dtype.value, DEVICES[self.device.value]
        what = f"{device.name} ({si(device.memory_bandwidth, 'B/s')}), {operation} in {dtype}, {rows:,} x {columns:,}"
        return scene(TRAINING_STEPS[operation](rows * columns, ITEMSIZE[dtype]), device, what)
