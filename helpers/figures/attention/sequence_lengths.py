"""Attention from 128 to 131,072 tokens, unfused and fused: memory, bytes moved, minimum time; the live chart.

Bytes assume 16 bits per element. Unfused, the first matmul writes scores, another launch scales them (and one masks
them), softmax and the second matmul follow; two N x N matrices per head exist at once. Fused, q, k and v come in and
the output goes out, each once.
"""

import functools
from dataclasses import dataclass

import ipywidgets as widgets
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart, page_position, plain, si
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_mark, svg_opening, svg_title
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.operations import Cost, attention_of_heads, cost
from helpers.style import LIMIT, MARKER_SIZE, MARKERS, STYLE, TEXT, TITLE_SIZE

TOKENS = tuple(2**power for power in range(7, 18))
HEADS = (1, 8, 16, 32, 64, 128)
DIMS = (64, 128, 256)
ITEMSIZE = 2
DTYPE = "fp16"
VERSIONS = ("unfused", "fused")


def beyond_inputs(tokens: int, heads: int, dim: int) -> dict[str, int]:
    """Bytes allocated at most at once beyond q, k and v: two matrices of scores, or the output alone."""
    scores, out = heads * tokens**2 * ITEMSIZE, heads * tokens * dim * ITEMSIZE
    return {"unfused": max(2 * scores, scores + out), "fused": out}


@dataclass(frozen=True)
class Attention:
    """One attention on one device: `heads` heads, batch included, of `dim` columns over `tokens` tokens."""

    device: Device
    tokens: int
    heads: int
    dim: int
    causal: bool

    @functools.cached_property
    def costs(self) -> dict[str, Cost]:
        versions = attention_of_heads(self.tokens, self.heads, self.dim, ITEMSIZE, self.causal)
        return {name: cost(getattr(versions, name), self.device, DTYPE) for name in VERSIONS}

    @functools.cached_property
    def values(self) -> dict[str, dict[str, float]]:
        """Panel -> version -> value."""
        found = self.costs
        return {
            "memory": beyond_inputs(self.tokens, self.heads, self.dim),
            "bytes": {name: each.work.bytes for name, each in found.items()},
            "time": {name: each.time for name, each in found.items()},
        }

    @property
    def fits(self) -> bool:
        """True if the unfused version, including q, k and v, fits in the device's memory."""
        inputs = 3 * self.heads * self.tokens * self.dim * ITEMSIZE
        return self.values["memory"]["unfused"] + inputs <= self.device.memory

    @property
    def finding(self) -> str:
        """The chart's title."""
        ratios = {panel: of["unfused"] / of["fused"] for panel, of in self.values.items()}
        size = f"{self.tokens:,} tokens"
        if not self.fits:
            return f"{size}: unfused doesn't fit in the {self.device.name}'s {si(self.device.memory, 'B')}"
        memory, moved, time = (plain(ratios[panel]) for panel in ("memory", "bytes", "time"))
        return f"{size}: fused takes {memory}x less memory, {moved}x less traffic, {time}x less time"

    @property
    def text(self) -> str:
        """A one-line description of the chart."""
        told, bound = [], self.costs
        for name in VERSIONS:
            memory, moved, time = (self.values[panel][name] for panel in ("memory", "bytes", "time"))
            told.append(
                f"{name} holds {si(memory, 'B')}, moves {si(moved, 'B')}, takes at least {si(time, 's')} "
                f"({bound[name].unit})"
            )
        kind = "causal" if self.causal else "full"
        return f"{self.device.name}, {kind}, {self.heads} x {self.dim}, {'; '.join(told)}. {self.finding}."


PANELS = {
    "memory": ("memory beyond q, k, v", "B", (1e4, 5e13), (1e6, 1e9, 1e12)),
    "bytes": ("bytes moved", "B", (1e4, 5e13), (1e6, 1e9, 1e12)),
    "time": ("minimum time", "s", (1e-9, 1e3), (1e-9, 1e-6, 1e-3, 1)),
}
SIZE = (576, 262)  # points
LEFTS, WIDTH = (46, 238, 430), 134
BOTTOM, HEIGHT = 36, 150
TITLE_AT = 12, 14  # points from the left and the top
KEYS_FROM_TOP = (50, 64)  # of the values, unfused and fused


def lengths_axes(device: Device) -> tuple[Figure, dict[str, Axes]]:
    """Draw the static parts: three panels over the tokens, and the device's memory size."""
    width, height = SIZE
    with rc_context(STYLE):
        figure = Figure(figsize=(width / 72, height / 72))
        found = {}
        for (panel, (head, unit, limits, ticks)), left in zip(PANELS.items(), LEFTS, strict=True):
            axes = figure.add_axes((left / width, BOTTOM / height, WIDTH / width, HEIGHT / height))
            axes.set(xscale="log", yscale="log", xlim=(100, 170_000), ylim=limits)
            axes.set_xticks([128, 1024, 8192, 65536], ["128", "1,024", "8,192", "65,536"])
            axes.set_xticks([], minor=True)
            axes.set_yticks(ticks)
            axes.set_yticks([], minor=True)
            axes.yaxis.set_major_formatter(lambda value, _, unit=unit: si(value, unit))
            axes.set_xlabel("tokens")
            figure.text((left - 34) / width, 1 - 34 / height, head)
            found[panel] = axes
        memory = found["memory"]
        memory.axhline(device.memory, color=LIMIT, linewidth=1, linestyle="--")
        label = f"{device.name}: {si(device.memory, 'B')}"
        memory.annotate(label, (110, device.memory), (0, 3), textcoords="offset points", va="bottom")
    return figure, found


def _curves(case: Attention) -> dict[str, dict[str, list[float]]]:
    """Panel -> version -> its value at each of TOKENS."""
    along = [Attention(case.device, tokens, case.heads, case.dim, case.causal).values for tokens in TOKENS]
    return {panel: {name: [of[panel][name] for of in along] for name in VERSIONS} for panel in PANELS}


def lengths_chart(case: Attention) -> Chart:
    """The curves, with a mark at the case's own number of tokens."""
    figure, axes = lengths_axes(case.device)
    width, height = SIZE
    values = case.values
    with rc_context(STYLE):
        figure.text(TITLE_AT[0] / width, 1 - TITLE_AT[1] / height, case.finding, size=TITLE_SIZE, weight="bold")
        for (panel, curves), left in zip(_curves(case).items(), LEFTS, strict=True):
            for name, from_top in zip(VERSIONS, KEYS_FROM_TOP, strict=True):
                marker, colour = MARKERS[name]
                axes[panel].plot(TOKENS, curves[name], color=colour, linewidth=1.5)
                at = case.tokens, values[panel][name]
                axes[panel].plot(*at, marker, color=colour, markersize=MARKER_SIZE, mec=TEXT, clip_on=False)
                x, y = (left - 28) / width, 1 - from_top / height
                axes[panel].plot(
                    x, y, marker, color=colour, markersize=MARKER_SIZE, mec=TEXT, transform=figure.transFigure,
                    clip_on=False,
                )  # fmt: skip
                label = f"{name} {si(values[panel][name], PANELS[panel][1])}"
                figure.text(x + 8 / width, y, label, va="center_baseline")
    return Chart(figure, case.text)


class AttentionLengthsExplorer(Explorer):
    """Attention over more and more tokens, with sliders for tokens, heads and their size, and a choice of GPU.

    Its controls are widgets: `tokens`, `heads`, `dim`, `device` (a name) and `causal` ("full" or "causal"); `text`
    describes the view. Without a kernel it displays as a still image with that text.

    Raises:
        ValueError: an unknown GPU, or a value that is not on its slider.
    """

    _parts = (
        ((0, 20, 200, 242),),
        ((200, 20, 192, 242),),
        ((392, 20, 184, 242),),
    )

    def __init__(self, device: str = "H100", tokens: int = 8192, heads: int = 32, dim: int = 128, causal: bool = False):
        gpus = [name for name, each in DEVICES.items() if each.special_rate]
        if device not in gpus:
            raise ValueError(f"no rates of {device!r} are known: choose from {', '.join(gpus)}")
        self.tokens = slider("tokens", TOKENS, tokens, [f"{each:,}" for each in TOKENS])
        self.heads = slider("heads", HEADS, heads)
        self.dim = slider("head dim", DIMS, dim)
        self.device = widgets.Dropdown(options=gpus, value=device, description="GPU")
        self.causal = widgets.Dropdown(
            options=["full", "causal"], value="causal" if causal else "full", description="mask"
        )
        super().__init__(FramePlayer(), [self.tokens, self.heads, self.dim], [[self.device, self.causal]])

    def _at(self, tokens: int, heads: int, dim: int) -> Attention:
        return Attention(DEVICES[self.device.value], tokens, heads, dim, self.causal.value == "causal")

    @property
    def _case(self) -> Attention:
        return self._at(self.tokens.value, self.heads.value, self.dim.value)

    @property
    def text(self) -> str:
        return self._case.text

    def chart(self) -> Chart:
        return lengths_chart(self._case)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, axes = lengths_axes(DEVICES[self.device.value])
        position = {panel: page_position(each) for panel, each in axes.items()}
        opening = svg_opening(figure)
        lines = {
            (heads, dim): _lines(_curves(self._at(TOKENS[0], heads, dim)), position) for heads in HEADS for dim in DIMS
        }
        frames = []
        for tokens in TOKENS:
            for heads in HEADS:
                for dim in DIMS:
                    case = self._at(tokens, heads, dim)
                    svg = f"{opening}{_moving(case, lines[heads, dim], position)}</svg>"
                    frames.append({"svg": svg, "text": case.text, "table": "", "quiet": True})
        return still_svg(figure), {"frames": frames, "columns": len(HEADS), "layers": len(DIMS)}


def _lines(curves: dict, position: dict) -> str:
    parts = []
    for panel, of in curves.items():
        for name in VERSIONS:
            points = (position[panel](x, y) for x, y in zip(TOKENS, of[name], strict=True))
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{MARKERS[name][1]}" stroke-width="1.5"/>')
    return "".join(parts)


def _moving(case: Attention, lines: str, position: dict) -> str:
    parts, values = [svg_title(case.finding, *TITLE_AT), lines, f'<g stroke="{TEXT}">'], case.values
    labels = []
    for panel, left in zip(PANELS, LEFTS, strict=True):
        for name, from_top in zip(VERSIONS, KEYS_FROM_TOP, strict=True):
            parts.append(svg_mark(name, *position[panel](case.tokens, values[panel][name])))
            parts.append(svg_mark(name, left - 28, from_top))
            label = f"{name} {si(values[panel][name], PANELS[panel][1])}"
            labels.append(f'<text x="{left - 20}" y="{from_top + 3}">{label}</text>')
    return f"{''.join(parts)}</g>{''.join(labels)}"
