"""A layer of experts, or a dense one, from 1 to 8192 tokens: whose bytes it moves, its intensity, its time; live.

One linear layer an expert, as in `kernels.moe_int8`. Weights of the experts that are chosen are read once, the tokens'
rows in and out once. Tokens choose uniformly and independently, so that of E experts E (1 - (1 - k/E)^tokens) are
chosen by at least one token, on average.
"""

import math
from dataclasses import dataclass

import ipywidgets as widgets

from helpers.figures.frame.chart import Chart, plain, si
from helpers.figures.frame.explorer import FramePlayer, slider
from helpers.figures.frame.page_bars import Box, Label, Panel, Scene, axis_end, picture, still
from helpers.figures.frame.scene_explorer import SceneExplorer
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.roofline import Work
from helpers.style import FUSED, LIMIT, TEXT

OUT_BYTES = 2  # of an element of the result, in every format


@dataclass(frozen=True)
class Format:
    """A layer's number format: bits per weight with its share of a scale, bits per activation, and the dtype whose rate
    the matmul uses."""

    weight_bits: float
    activation_bits: float
    rate: str


FORMATS = {
    "bf16": Format(16, 16, "bf16"),
    "int8 weights": Format(8, 16, "bf16"),
    "FP8 both": Format(8, 8, "fp8"),
    "MXFP4 weights": Format(4.25, 16, "bf16"),
}


@dataclass(frozen=True)
class ExpertLayer:
    """`experts` linear layers from `cols` to `out_cols` values; each token uses `top_k` of them."""

    experts: int
    top_k: int
    cols: int
    out_cols: int

    def touched(self, tokens: int) -> float:
        """Return how many experts are chosen by any token, on average."""
        return self.experts * (1 - (1 - self.top_k / self.experts) ** tokens)

    def weight_bytes(self, tokens: int, kept: Format) -> float:
        """Bytes of weights that are read, their scales included where a block of them has one."""
        return self.touched(tokens) * self.cols * self.out_cols * kept.weight_bits / 8

    def work(self, tokens: int, kept: Format) -> Work:
        """Return FLOPs of the matmuls, and minimum traffic."""
        flops = 2 * tokens * self.top_k * self.cols * self.out_cols
        read = self.weight_bytes(tokens, kept) + tokens * self.cols * kept.activation_bits / 8
        return Work(round(flops), round(read), tokens * self.out_cols * OUT_BYTES)


def seconds(work: Work, kept: Format, device: Device) -> tuple[float, float]:
    """Return the time of the bytes and of the arithmetic, by the data sheet; the longer one is the layer's."""
    return work.bytes / device.memory_bandwidth, work.flops / device.peak_flops[kept.rate]


SIZE = (576, 234)  # points
BARS = dict(zip(FORMATS, (66, 104, 142, 180), strict=True))
BAR = 22
BYTES = Panel(98, 168, "bytes; grey: weights")
INTENSITY = Panel(256, 336, "FLOP/byte; | is the ridge", "")
TIME = Panel(396, 466, "minimum time", "s")
MAX_INTENSE = 4  # decades of its axis, from 1


def along(intensity: float) -> float:
    """Return an intensity's position on its panel, in points."""
    decades = min(MAX_INTENSE, max(0.0, math.log10(intensity)))
    return INTENSITY.left + (INTENSITY.right - INTENSITY.left) * decades / MAX_INTENSE


def scene(layer: ExpertLayer, tokens: int, device: Device) -> Scene:
    """Three bars a format: bytes, intensity and time."""
    works = {name: layer.work(tokens, kept) for name, kept in FORMATS.items()}
    times = {name: seconds(works[name], kept, device) for name, kept in FORMATS.items()}
    bytes_end = axis_end(max(work.bytes for work in works.values()))
    time_end = axis_end(max(map(max, times.values())))
    byte_scale, time_scale = (BYTES.right - BYTES.left) / bytes_end, (TIME.right - TIME.left) / time_end
    boxes, labels, told = [], [], []
    for name, kept in FORMATS.items():
        y, work, (memory, arithmetic) = BARS[name], works[name], times[name]
        weights = layer.weight_bytes(tokens, kept)
        boxes.append(Box(BYTES.left, y, weights * byte_scale, BAR, LIMIT))
        boxes.append(Box(BYTES.left + weights * byte_scale, y, (work.bytes - weights) * byte_scale, BAR, None))
        share = f"{100 * weights / work.bytes:.0f} %"
        labels.append(Label(f"{si(work.bytes, 'B')}, {share}", BYTES.left + work.bytes * byte_scale + 5, y, "left"))
        ridge = device.peak_flops[kept.rate] / device.memory_bandwidth
        boxes.append(Box(INTENSITY.left, y, along(work.intensity) - INTENSITY.left, BAR, LIMIT))
        boxes.append(Box(along(ridge) - 1, y, 2, BAR + 8, TEXT))
        labels.append(Label(plain(work.intensity), max(along(work.intensity), along(ridge)) + 5, y, "left"))
        time, bound = max(memory, arithmetic), "memory" if memory >= arithmetic else "arithmetic"
        boxes.append(Box(TIME.left, y, time * time_scale, BAR, FUSED))
        labels.append(Label(f"{si(time, 's')}, {bound}", TIME.left + time * time_scale + 5, y, "left"))
        told.append(
            f"{name}: {si(work.bytes, 'B')}, {share} of weights, {plain(work.intensity)} FLOP/byte, {si(time, 's')} "
            f"({bound})"
        )
    ends = Label("1", INTENSITY.left, SIZE[1] - 25, "center"), Label("10,000", INTENSITY.right, SIZE[1] - 25, "center")
    labels += [*BYTES.ends(bytes_end, SIZE), *ends, *TIME.ends(time_end, SIZE)]
    title = finding(layer, tokens, {name: max(each) for name, each in times.items()})
    what = f"{device.name}, {counted(tokens)}, {layer.experts} experts of {layer.cols} x {layer.out_cols}"
    return Scene(title, tuple(boxes), tuple(labels), f"{what}, {layer.top_k} per token: {'; '.join(told)}. {title}.")


def counted(tokens: int) -> str:
    return "1 token" if tokens == 1 else f"{tokens:,} tokens"


def finding(layer: ExpertLayer, tokens: int, times: dict[str, float]) -> str:
    """Return the finding: how many experts are read, and the formats' gain."""
    first, *others = times
    gains = ", ".join(f"{name.split()[0]} {times[first] / times[name]:.1f}x" for name in others)
    verb = "reads" if tokens == 1 else "read"
    return f"{counted(tokens)} {verb} {layer.touched(tokens):.0f} of {layer.experts} experts; faster than bf16: {gains}"


def weights_axes():
    """Draw the static parts: the formats' names, the panels' heads and their axes."""
    return still(SIZE, BARS, (BYTES, INTENSITY, TIME))


def weights_chart(shown: Scene) -> Chart:
    """The bars as a picture."""
    return picture(*weights_axes(), shown)


TOKENS = tuple(2**power for power in range(14))
EXPERTS = (1, 8, 16, 32, 64, 128, 256)
TOP_K = (1, 2, 4, 8)
SIZES = {"2048 x 768": (2048, 768), "4096 x 14336": (4096, 14336), "7168 x 2048": (7168, 2048)}


class ExpertWeightsExplorer(SceneExplorer):
    """Bars for four formats of a layer of experts, with sliders for tokens and experts, and a choice of the rest.

    Its controls are widgets: `tokens`, `experts`, `top_k`, `size` and `device` (names); `text` describes the view. If
    `top_k` exceeds the number of experts, all count. Without a kernel it displays as a still image with that text.

    Raises:
        ValueError: a value that is not on its slider or among its choices.
    """

    _parts = (
        ((0, 30, 250, 204),),
        ((0, 30, 94, 204), (250, 30, 142, 204)),
        ((0, 30, 94, 204), (390, 30, 186, 204)),
    )
    _axes = staticmethod(weights_axes)
    _bar = BAR

    def __init__(
        self, tokens: int = 64, experts: int = 64, top_k: int = 8, size: str = "2048 x 768", device: str = "H200"
    ):
        devices = [name for name, each in DEVICES.items() if "fp8" in each.peak_flops]
        for what, value, known in (("top_k", top_k, TOP_K), ("size", size, SIZES), ("device", device, devices)):
            if value not in known:
                raise ValueError(f"{what} of {value!r}: choose from {', '.join(map(str, known))}")
        self.tokens = slider("tokens", TOKENS, tokens, [f"{each:,}" for each in TOKENS])
        self.experts = slider("experts", EXPERTS, experts)
        self.top_k = widgets.Dropdown(options=list(TOP_K), value=top_k, description="a token's")
        self.size = widgets.Dropdown(options=list(SIZES), value=size, description="expert")
        self.device = widgets.Dropdown(options=devices, value=device, description="GPU")
        super().__init__(FramePlayer(), [self.tokens, self.experts], [[self.top_k, self.size, self.device]])

    def _scene(self, tokens: int, experts: int) -> Scene:
        layer = ExpertLayer(experts, min(self.top_k.value, experts), *SIZES[self.size.value])
        return scene(layer, tokens, DEVICES[self.device.value])
