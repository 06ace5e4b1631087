"""The tensors a transformer layer saves for backward, and the cost of saving fewer: bars for four ways, live."""

from dataclasses import dataclass

import ipywidgets as widgets

from helpers.figures.frame.chart import Chart, plain, si
from helpers.figures.frame.explorer import FramePlayer, slider
from helpers.figures.frame.page_bars import Box, Label, Panel, Scene, axis_end, picture, still
from helpers.figures.frame.scene_explorer import SceneExplorer
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.operations import ITEMSIZE
from helpers.style import FUSED, LIMIT, UNFUSED

LAYERS = 32
SEQUENCE = 4096  # tokens that see each other
INNER = 3.5  # width of the gate, in widths of the layer: Llama 3 8B


@dataclass(frozen=True)
class Way:
    """The work of one layer in a forward and a backward pass.

    flops: matmuls and attention, on tensor cores.
    moved: bytes of everything else, norms, gate and additions, which are memory-bound.
    kept: bytes saved in memory from the forward pass to the backward pass.
    """

    flops: float
    moved: float
    kept: float

    def seconds(self, device: Device, dtype: str) -> tuple[float, float]:
        """Return seconds of matmuls and of the rest, each at the data sheet's rate."""
        return self.flops / device.peak_flops[dtype], self.moved / device.memory_bandwidth


def layer_ways(tokens: int, width: int, itemsize: int, inner: float = INNER) -> dict[str, Way]:
    """The four ways of a layer: RMSNorm, attention (fused in all four), RMSNorm, SwiGLU, two residuals.

    A unit below is a tensor of tokens x width; the gate's are `inner` of them. Weights and their gradients are the same
    in all four, and left out; so is everything with one value per token.
    """
    unit, wide = tokens * width * itemsize, inner
    products = 2 * tokens * width * width * (4 + 3 * inner)
    attention = 2 * tokens * SEQUENCE * width  # causal: half of two products
    forward, training = products + attention, 3 * products + 3.5 * attention  # attention's backward: Q K' once more
    # Written out: x^2, its mean, times rstd, times weight: 7 forward, 23 backward; silu 2, product 3, and 9 backward.
    written_out = 2 * 7 + 2 * 23 + 14 * wide
    # Fused, each input and result once: 2 and 3; gate 3 and 5.
    fused = 2 * 2 + 2 * 3 + 8 * wide
    additions = 2 * 3 + 2 * 3  # of the residuals, and of their gradients
    again = 2 * 2 + 3 * wide  # both norms' and the gate's results, which the products' gradients need
    fused_forward = 2 * 2 + 3 * wide + 2 * 3
    kept_by_products = 1 + 1 + 1 + wide  # inputs: of q k v, of attention's output, of gate and up, of down
    inside = 3 + 2 + 2 * wide  # q k v; x before each norm; gate and up
    return {
        "unfused": Way(training, (written_out + additions) * unit, (kept_by_products + inside + 2 + wide) * unit),
        "fused": Way(training, (fused + additions) * unit, (kept_by_products + inside) * unit),
        "norms, gate recomputed": Way(training, (fused + additions + again) * unit, (inside + 1) * unit),
        "layer recomputed": Way(training + forward, (fused + additions + fused_forward) * unit, unit),
    }


SIZE = (576, 234)  # points
BARS = dict(zip(("unfused", "fused", "norms, gate recomputed", "layer recomputed"), (66, 104, 142, 180), strict=True))
BAR = 22
TIME = Panel(138, 330, "time of a step, and bytes of its open part", "s")
KEPT = Panel(424, 478, f"saved ({LAYERS} layers: % of memory)")


def scene(ways: dict[str, Way], device: Device, dtype: str, what: str) -> Scene:
    """The bars of the four ways on one device. `what` opens the line of text."""
    seconds = {name: way.seconds(device, dtype) for name, way in ways.items()}
    time_end = axis_end(max(map(sum, seconds.values())))
    kept_end = axis_end(max(way.kept for way in ways.values()))
    time_scale, kept_scale = (TIME.right - TIME.left) / time_end, (KEPT.right - KEPT.left) / kept_end
    boxes, labels, told = [], [], []
    for name, way in ways.items():
        y, colour = BARS[name], UNFUSED if name == "unfused" else FUSED
        products, rest = (each * time_scale for each in seconds[name])
        boxes += [Box(TIME.left, y, products, BAR, LIMIT), Box(TIME.left + products, y, rest, BAR, None)]
        boxes.append(Box(KEPT.left, y, way.kept * kept_scale, BAR, colour))
        time, moved, kept = si(sum(seconds[name]), "s"), si(way.moved, "B"), si(way.kept, "B")
        share = f"{plain(float(f'{100 * LAYERS * way.kept / device.memory:.2g}'))} %"
        labels.append(Label(f"{time}, {moved}", TIME.left + products + rest + 5, y, "left"))
        labels.append(Label(f"{kept} ({share})", KEPT.left + way.kept * kept_scale + 5, y, "left"))
        told.append(f"{name}: {time}; norms, gate and additions move {moved}, and {kept} saved ({share})")
    labels += [*TIME.ends(time_end, SIZE), *KEPT.ends(kept_end, SIZE)]
    title = finding(ways, seconds)
    return Scene(title, tuple(boxes), tuple(labels), f"{what}: {'; '.join(told)}. {title}.")


def finding(ways: dict[str, Way], seconds: dict[str, tuple[float, float]]) -> str:
    """Return the cost and saving of either way of recomputing, against the fused layer."""
    _, fused, cheap, whole = ways
    costs = [100 * (sum(seconds[name]) / sum(seconds[fused]) - 1) for name in (cheap, whole)]
    saves = [100 * (1 - ways[name].kept / ways[fused].kept) for name in (cheap, whole)]
    return (
        f"Norms and gate recomputed: {costs[0]:.0f} % more time, {saves[0]:.0f} % less saved; "
        f"the layer: {costs[1]:.0f} % and {saves[1]:.0f} %"
    )


def checkpointing_axes():
    """Draw the static parts: the ways' names, the panels' heads and their axes."""
    return still(SIZE, BARS, (TIME, KEPT))


def checkpointing_chart(shown: Scene) -> Chart:
    """Draw one bar per way in each panel: a step's time on one layer, and the bytes it saves for backward."""
    return picture(*checkpointing_axes(), shown)


TOKENS = tuple(2**power for power in range(10, 18))
WIDTHS = (1024, 2048, 3072, 4096, 5120, 6144, 8192)
DTYPES = ("bf16", "fp16", "fp32")


class CheckpointingExplorer(SceneExplorer):
    """Bars for four ways to train a layer, with sliders for tokens and width, and a choice of dtype and GPU.

    Its controls are widgets: `tokens`, `width`, `dtype` and `device` (names); `text` describes the view. Without a
    kernel it displays as a still image with that text.

    Raises:
        ValueError: an unknown dtype or device, a device without that dtype, or a value that is not on its slider.
    """

    _parts = (
        ((0, 30, 418, 204),),
        ((0, 30, 133, 204), (418, 30, 158, 204)),
    )
    _axes = staticmethod(checkpointing_axes)
    _bar = BAR

    def __init__(self, tokens: int = 8192, width: int = 4096, dtype: str = "bf16", device: str = "H200"):
        devices = [name for name, each in DEVICES.items() if set(DTYPES) <= each.peak_flops.keys()]
        if dtype not in DTYPES or device not in devices:
            raise ValueError(f"{dtype!r} on {device!r}: choose from {', '.join(DTYPES)}, and from {', '.join(devices)}")
        self.tokens = slider("tokens", TOKENS, tokens, [f"{each:,}" for each in TOKENS])
        self.width = slider("width", WIDTHS, width, [f"{each:,}" for each in WIDTHS])
        self.dtype = widgets.Dropdown(options=list(DTYPES), value=dtype, description="dtype")
        self.device = widgets.Dropdown(options=devices, value=device, description="GPU")
        super().__init__(FramePlayer(), [self.tokens, self.width], [[self.dtype, self.device]])

    def _scene(self, tokens: int, width: int) -> Scene:
        dtype, device = self.dtype.value, DEVICES[self.device.value]
        what = f"{device.name}, a layer of {tokens:,} tokens x {width:,} in {dtype}"
        return scene(layer_ways(tokens, width, ITEMSIZE[dtype]), device, dtype, what)
