"""One step of decode with four kinds of cache: the bytes it reads, its intensity, tokens per second per GPU; live.

A step makes one token for each sequence of the batch. It reads all weights once and each sequence's whole cache once.
The model has the size of Llama 3 8B; attention stores its keys and values in four ways.
"""

import math
from dataclasses import dataclass

import ipywidgets as widgets

from helpers.figures.frame.chart import Chart, plain, si
from helpers.figures.frame.explorer import FramePlayer, slider
from helpers.figures.frame.page_bars import BELOW, Box, Label, Panel, Scene, axis_end, picture, still
from helpers.figures.frame.scene_explorer import SceneExplorer
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.roofline import Work
from helpers.style import FUSED, LIMIT, TEXT

PARAMETERS = 7.5e9  # of Llama 3 8B that a step multiplies with: all but the table of embeddings
LAYERS, HEADS, DIM = 32, 32, 128
LATENT, ROTATED = 512, 64  # of DeepSeek-V2's latent attention


@dataclass(frozen=True)
class Cache:
    """A token's elements in the cache of one layer, and FLOPs per query and cached token in it."""

    elements: int
    flops: int


CACHES = {
    "32 key heads": Cache(2 * 32 * DIM, 4 * HEADS * DIM),
    "8 key heads": Cache(2 * 8 * DIM, 4 * HEADS * DIM),
    "1 key head": Cache(2 * DIM, 4 * HEADS * DIM),
    "latent (MLA)": Cache(LATENT + ROTATED, 2 * HEADS * (2 * LATENT + ROTATED)),
}
FORMATS = {  # bytes of a weight, bytes of an element of the cache, and the dtype of the matmuls
    "bf16, cache bf16": (2, 2, "bf16"),
    "bf16, cache fp8": (2, 1, "bf16"),
    "fp8, cache fp8": (1, 1, "fp8"),
}


@dataclass(frozen=True)
class DecodeStep:
    """One step for `batch` sequences with `context` tokens each, of `rows` new tokens per sequence."""

    cache: Cache
    batch: int
    context: int
    format: str
    rows: int = 1

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return PARAMETERS * FORMATS[self.format][0]

    @property
    def cache_bytes(self) -> float:
        """Bytes of all sequences' keys and values."""
        return self.batch * self.context * LAYERS * self.cache.elements * FORMATS[self.format][1]

    def work(self) -> Work:
        """FLOPs and minimum bytes: every weight and every cached element once."""
        attention = self.context * LAYERS * self.cache.flops
        flops = self.batch * self.rows * (2 * PARAMETERS + attention)
        return Work(round(flops), round(self.weight_bytes + self.cache_bytes), 0)

    def seconds(self, device: Device) -> tuple[float, float]:
        """Return the time of the bytes and of the arithmetic, by the data sheet; the longer is the bound."""
        work = self.work()
        return work.bytes / device.memory_bandwidth, work.flops / device.peak_flops[FORMATS[self.format][2]]

    def tokens_per_second(self, device: Device) -> float:
        """Return the most tokens that the whole batch gets per second."""
        return self.batch * self.rows / max(self.seconds(device))

    def fits(self, device: Device) -> bool:
        """Return whether weights and cache fit in the GPU's memory."""
        return self.work().bytes <= device.memory


SIZE = (576, 234)  # points
BARS = dict(zip(CACHES, (66, 104, 142, 180), strict=True))
BAR = 22
BYTES = Panel(98, 160, "read per step; grey: weights")
INTENSITY = Panel(264, 332, "FLOP/byte", "")
SPEED = Panel(400, 460, "tokens/s", "")
MAX_INTENSE = 4  # decades of its axis, from 1
AXIS = SIZE[1] - BELOW  # its height
TICKS = (1, 100, 10_000)  # the ticks of the intensity's axis that get a number
MARK = SIZE[1] - 11  # the height of the name of a line across all bars


def along(intensity: float) -> float:
    """Return where an intensity is on its panel, in points."""
    decades = min(MAX_INTENSE, max(0.0, math.log10(intensity)))
    return INTENSITY.left + (INTENSITY.right - INTENSITY.left) * decades / MAX_INTENSE


def scene(batch: int, context: int, format: str, device: Device) -> Scene:
    """Three bars per kind of cache: bytes, intensity and tokens per second."""
    steps = {name: DecodeStep(cache, batch, context, format) for name, cache in CACHES.items()}
    speeds = {name: step.tokens_per_second(device) for name, step in steps.items()}
    limit = DecodeStep(Cache(0, 0), batch, context, format).tokens_per_second(device)
    bytes_end = axis_end(max(step.work().bytes for step in steps.values()))
    speed_end = axis_end(limit)
    byte_scale, speed_scale = (BYTES.right - BYTES.left) / bytes_end, (SPEED.right - SPEED.left) / speed_end
    ridge = device.peak_flops[FORMATS[format][2]] / device.memory_bandwidth
    boxes, labels, told = [], [], []
    for name, step in steps.items():
        y, work, weights = BARS[name], step.work(), step.weight_bytes
        boxes.append(Box(BYTES.left, y, weights * byte_scale, BAR, LIMIT))
        boxes.append(Box(BYTES.left + weights * byte_scale, y, step.cache_bytes * byte_scale, BAR, FUSED))
        share = f"{100 * step.cache_bytes / work.bytes:.0f} % cache"
        labels.append(Label(f"{si(work.bytes, 'B')}, {share}", BYTES.left + work.bytes * byte_scale + 5, y, "left"))
        boxes.append(Box(INTENSITY.left, y, along(work.intensity) - INTENSITY.left, BAR, LIMIT))
        labels.append(Label(plain(work.intensity), max(along(work.intensity), along(ridge)) + 5, y, "left"))
        speed, shown = speeds[name], f"{speeds[name]:,.0f}"
        if not step.fits(device):
            shown += ", too large"
        boxes.append(Box(SPEED.left, y, speed * speed_scale, BAR, FUSED if step.fits(device) else None))
        labels.append(Label(shown, SPEED.left + limit * speed_scale + 6, y, "left"))
        told.append(
            f"{name}: {si(work.bytes, 'B')} ({share}), {plain(work.intensity)} FLOP/byte, {speed:,.0f} tokens/s"
            + ("" if step.fits(device) else ", doesn't fit in memory")
        )
    top = min(BARS.values()) - BAR / 2 - 4
    for name, x in (("ridge", along(ridge)), ("without a cache", SPEED.left + limit * speed_scale)):
        boxes.append(Box(x - 1, (top + AXIS) / 2, 2, AXIS - top, TEXT))
        labels.append(Label(name, x, MARK, "center"))
    ticks = [Label(f"{each:,}", along(each), AXIS + 9, "center") for each in TICKS]
    labels += [*BYTES.ends(bytes_end, SIZE), *ticks, *SPEED.ends(speed_end, SIZE)]
    title = finding(batch, steps, speeds, limit, device)
    what = f"{device.name}, {format}, {batch} x {context:,} tokens"
    return Scene(
        title, tuple(boxes), tuple(labels), f"{what}: {'; '.join(told)}. Without a cache {limit:,.0f}. {title}."
    )


def finding(batch: int, steps: dict[str, DecodeStep], speeds: dict[str, float], limit: float, device: Device) -> str:
    """Return what 8 key heads reach, and whether they fit."""
    name = "8 key heads"
    sequences = "1 sequence" if batch == 1 else f"{batch} sequences"
    if not steps[name].fits(device):
        return f"{sequences} with 8 key heads don't fit in {device.memory / 1e9:.0f} GB"
    return f"{sequences}, 8 key heads: {speeds[name]:,.0f} tokens/s, {100 * speeds[name] / limit:.0f} % of no cache"


def decode_axes():
    """Draw what stays still: the caches' names, the panels' heads and their axes."""
    figure, axes = still(SIZE, BARS, (BYTES, INTENSITY, SPEED))
    for decade in range(MAX_INTENSE + 1):
        x, size = along(10**decade), 5 if 10**decade in TICKS else 3
        axes.plot((x, x), (AXIS, AXIS + size), color=LIMIT, lw=0.8)
    return figure, axes


def decode_chart(shown: Scene) -> Chart:
    """Draw the bars as a picture."""
    return picture(*decode_axes(), shown)


BATCHES = tuple(2**power for power in range(10))
CONTEXTS = tuple(2**power for power in range(10, 18))


class DecodeSpeedExplorer(SceneExplorer):
    """Bars for four kinds of cache, with sliders for batch and context, and a choice of format and GPU.

    Its controls are widgets: `batch`, `context`, `format` and `device` (names); the string `text` says the same.
    Without a kernel it displays as a still image with that text.

    Raises:
        ValueError: a value that is not on its slider or among its choices.
    """

    _parts = (
        ((0, 30, 258, 204),),
        ((0, 30, 94, 204), (258, 30, 138, 204)),
        ((0, 30, 94, 204), (392, 30, 184, 204)),
    )
    _axes = staticmethod(decode_axes)
    _bar = BAR

    def __init__(self, batch: int = 1, context: int = 8192, format: str = "bf16, cache bf16", device: str = "H200"):
        devices = [name for name, each in DEVICES.items() if "fp8" in each.peak_flops]
        for what, value, known in (("format", format, FORMATS), ("device", device, devices)):
            if value not in known:
                raise ValueError(f"{what} of {value!r}: choose from {'; '.join(known)}")
        self.batch = slider("batch", BATCHES, batch)
        self.context = slider("context", CONTEXTS, context, [f"{each:,}" for each in CONTEXTS])
        self.format = widgets.Dropdown(options=list(FORMATS), value=format, description="weights")
        self.device = widgets.Dropdown(options=devices, value=device, description="GPU")
        super().__init__(FramePlayer(), [self.batch, self.context], [[self.format, self.device]])

    def _scene(self, batch: int, context: int) -> Scene:
        return scene(batch, context, self.format.value, DEVICES[self.device.value])
