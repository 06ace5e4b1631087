"""The units attention keeps busy: time per unit for pairs of a query and a key, and the live chart."""

import functools
from dataclasses import dataclass

import ipywidgets as widgets
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart, plain, si
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening
from helpers.figures.frame.page_bars import Box, Label, Panel, Scene, axis_end, picture, still, svg
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.operations import ITEMSIZE, attention_of_heads
from helpers.instruments.roofline import SPECIAL
from helpers.style import FUSED, LIMIT

DIMS = (16, 32, 64, 80, 96, 128, 192, 256)
TOKENS = tuple(2**power for power in range(9, 18))
BARS = {"tensor cores": "matmuls", SPECIAL: "exponentials", "CUDA cores": "other arithmetic", "memory": "bytes"}
SIZE = (576, 197)  # points
FIRST, APART, HIGH = 66, 27, 17
PAIRS = 10**6
PANEL = Panel(118, 452, "minimum time for a million query-key pairs")


@dataclass(frozen=True)
class Units:
    """Fused attention on one device: heads of `dim` over `tokens` tokens, products in `dtype`, "fp16" or "fp8"."""

    device: Device
    dtype: str
    dim: int
    tokens: int

    @functools.cached_property
    def times(self) -> dict[str, float]:
        """Unit -> seconds at least for PAIRS pairs of a query and a key; in fp8, q, k, v and out are half the bytes."""
        (launch,) = attention_of_heads(self.tokens, 1, self.dim, ITEMSIZE[self.dtype]).fused
        found = launch.times(self.device, self.dtype)
        return {unit: found[unit] * PAIRS / self.tokens**2 for unit in BARS}

    @property
    def slowest(self) -> str:
        return max(self.times, key=self.times.get)

    @property
    def finding(self) -> str:
        """The chart's title."""
        products, exponentials = (self.times[unit] for unit in ("tensor cores", SPECIAL))
        heads = f"heads of {self.dim}"
        if self.slowest == "memory":
            return f"{heads.capitalize()}, {self.tokens:,} tokens: memory is the limit"
        if exponentials > products:
            return f"{heads.capitalize()}: exponentials take {plain(exponentials / products)}x as long as matmuls"
        return f"{heads.capitalize()}: exponentials take {plain(100 * exponentials / products)}% as long as matmuls"

    @property
    def text(self) -> str:
        """A one-line description of the chart."""
        each = ", ".join(f"{name} {si(self.times[unit], 's')}" for unit, name in BARS.items())
        place = f"{self.device.name}, {self.dtype}, {self.tokens:,} tokens, a million query-key pairs"
        return f"{place}: {each}; {self.together}. {self.finding}."

    @property
    def together(self) -> str:
        """The part of the description that the chart doesn't show."""
        turns, at_once = (si(of(self.times.values()), "s") for of in (sum, max))
        return f"one after the other {turns}, all at once {at_once}"


def units_axes() -> tuple[Figure, Axes]:
    """Draw the static parts: the bars' names and the axis."""
    return still(SIZE, {name: FIRST + APART * line for line, name in enumerate(BARS.values())}, (PANEL,))


def _scene(case: Units, longest: float) -> Scene:
    end = axis_end(longest)
    scale = (PANEL.right - PANEL.left) / end
    boxes, labels = [], []
    for line, (unit, seconds) in enumerate(case.times.items()):
        y, width = FIRST + APART * line, min(seconds * scale, PANEL.right - PANEL.left)
        boxes.append(Box(PANEL.left, y, width, HIGH, FUSED if unit == case.slowest else LIMIT))
        labels.append(Label(f"{si(seconds, 's')}, {unit}", PANEL.left + width + 6, y, "left"))
    y = SIZE[1] - 25
    ends = Label("0", PANEL.left, y, "center"), Label(si(end, "s"), PANEL.right, y, "center")
    return Scene(case.finding, tuple(boxes), (*labels, *ends), case.text)


def units_chart(case: Units) -> Chart:
    """Draw one bar per unit; the axis ends at the longest."""
    return picture(*units_axes(), _scene(case, max(case.times.values())))


class AttentionUnitsExplorer(Explorer):
    """Attention's units, with sliders for the heads' size and the tokens, and a choice of GPU and dtype.

    Its controls are widgets: `dim`, `tokens`, `device` (a name) and `dtype`; `text` describes the view. Without a
    kernel it displays as a still image with that text.

    Raises:
        ValueError: an unknown GPU or dtype, or a value that is not on its slider.
    """

    _bar = HIGH

    def __init__(self, device: str = "H100", dtype: str = "fp16", dim: int = 64, tokens: int = 8192):
        gpus = [name for name, each in DEVICES.items() if each.special_rate]
        if device not in gpus or dtype not in ("fp16", "fp8"):
            raise ValueError(f"{dtype!r} on {device!r}: choose fp16 or fp8, and from {', '.join(gpus)}")
        self.dim = slider("head dim", DIMS, dim)
        self.tokens = slider("tokens", TOKENS, tokens, [f"{each:,}" for each in TOKENS])
        self.device = widgets.Dropdown(options=gpus, value=device, description="GPU")
        self.dtype = widgets.Dropdown(options=["fp16", "fp8"], value=dtype, description="products")
        super().__init__(FramePlayer(), [self.dim, self.tokens], [[self.device, self.dtype]])

    def _at(self, dim: int, tokens: int) -> Units:
        device, dtype = DEVICES[self.device.value], self.dtype.value
        if dtype not in device.peak_flops:
            raise ValueError(f"{device.name} has no tensor cores for {dtype}: choose fp16, or a newer GPU")
        return Units(device, dtype, dim, tokens)

    @property
    def _case(self) -> Units:
        return self._at(self.dim.value, self.tokens.value)

    @property
    def text(self) -> str:
        try:
            return self._case.text
        except ValueError as refusal:
            return f"{refusal}."

    def chart(self) -> Chart:
        return units_chart(self._case)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, _ = units_axes()
        opening = svg_opening(figure)
        try:
            cases = [self._at(dim, tokens) for dim in DIMS for tokens in TOKENS]
        except ValueError:
            frame = {"svg": f"{opening}</svg>", "text": self.text, "table": ""}
            return still_svg(figure), {"frames": [frame] * (len(DIMS) * len(TOKENS)), "columns": len(TOKENS)}
        longest = max(self._at(DIMS[-1], TOKENS[-1]).times.values())  # so that bars grow with the heads
        frames = [
            {
                "svg": svg(opening, _scene(case, longest)),
                "text": case.text,
                "line": f"{case.together[0].upper()}{case.together[1:]}.",
                "table": "",
            }
            for case in cases
        ]
        return still_svg(figure), {"frames": frames, "columns": len(TOKENS)}
