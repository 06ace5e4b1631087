"""A growing kernel's registers, spills and occupancy: compiled for real, their curves, and the live register budget.

All sizes are compiled when a GPU is chosen, which takes some seconds; the slider then moves over what was found.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import ipywidgets as widgets
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from helpers.figures.frame.chart import Chart
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.instruments.devices import DEVICES
from helpers.instruments.occupancy_calculator import MAX_REGISTERS, limits
from helpers.instruments.resources import OLDEST, Resources
from helpers.style import FUSED, LIMIT, MARKER_SIZE, STYLE, TEXT, TITLE_SIZE

TITLE_FROM_TOP = 14  # points
LABEL_ABOVE = 5  # points above a panel


@dataclass(frozen=True)
class Growth:
    """One kernel compiled at several sizes for one device: `compiled[i]` is what `sizes[i]` steps need."""

    sizes: tuple[int, ...]
    compiled: tuple[Resources, ...]

    @property
    def first_spill(self) -> int | None:
        """The smallest number of steps that spills a register; None if none does."""
        spilling = (size for size, each in zip(self.sizes, self.compiled, strict=True) if each.spill_bytes)
        return next(spilling, None)

    def values(self, panel: str) -> list[int]:
        """Return a panel's value for each size."""
        return [_VALUE[panel](each) for each in self.compiled]

    def finding(self, size: int) -> str:
        """The chart's title at one size."""
        each = self.compiled[self.sizes.index(size)]
        share = f"{each.occupancy().fraction:.0%} occupancy"
        if each.spill_bytes:
            return f"{size} fused steps spill {each.spill_bytes} bytes per thread, at {share}"
        fit = "step fits" if size == 1 else "steps fit"
        return f"{size} fused {fit} in {each.registers} registers per thread, at {share}"

    def text(self, size: int) -> str:
        """A one-line description of the chart."""
        each, first = self.compiled[self.sizes.index(size)], self.first_spill
        last = "no size shown spills" if first is None else f"the first to spill is {first}"
        return f"{each.device.name}: {self.finding(size)}; {last}. Occupancy: {each.occupancy()!r}."


_VALUE = {
    "registers per thread": lambda each: each.registers,
    "spilled bytes per thread": lambda each: each.spill_bytes,  # stored and loaded, as in every table
    "active warps per SM": lambda each: each.occupancy().warps,
}


def registers_axes(growth: Growth) -> tuple[Figure, dict[str, Axes]]:
    """Draw the static parts: a panel per curve; the dotted line is the maximum."""
    most_warps = limits(growth.compiled[0].device.compute_capability).warps
    tops = {"registers per thread": MAX_REGISTERS, "active warps per SM": most_warps}
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 3))
        panels = {}
        for number, panel in enumerate(_VALUE):
            axes = figure.add_axes((0.055 + 0.33 * number, 0.15, 0.275, 0.66))
            values = growth.values(panel)
            top = tops.get(panel, max(64, *values))
            axes.set(xlim=(0, growth.sizes[-1] * 1.04), ylim=(0, top * 1.1))
            axes.set_xlabel("fused steps")
            axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            if panel in tops:
                axes.axhline(top, color=LIMIT, linewidth=1, linestyle=":")
            axes.plot(growth.sizes, values, color=FUSED, linewidth=1.2)
            axes.plot(growth.sizes, values, "s", color=FUSED, markersize=3, mec=TEXT, mew=0.5)
            panels[panel] = axes
    return figure, panels


def registers_chart(growth: Growth, size: int) -> Chart:
    """The three panels with the marks at `size` steps, one of growth's sizes."""
    figure, panels = registers_axes(growth)
    with rc_context(STYLE):
        left, height = panels["registers per thread"].bbox.x0 / figure.bbox.width, figure.bbox.height
        figure.text(left, 1 - TITLE_FROM_TOP / height, growth.finding(size), size=TITLE_SIZE, weight="bold")
        for panel, axes in panels.items():
            value = growth.values(panel)[growth.sizes.index(size)]
            axes.axvline(size, color=LIMIT, linewidth=1, linestyle="--")
            axes.plot(size, value, "s", color=FUSED, markersize=MARKER_SIZE, mec=TEXT, zorder=4, clip_on=False)
            axes.annotate(
                f"{value} {panel}", (0, 1), (0, LABEL_ABOVE), xycoords="axes fraction", textcoords="offset points"
            )
    return Chart(figure, growth.text(size))


class RegistersExplorer(Explorer):
    """Registers, spills and occupancy over the steps fused, with a slider for these and a choice of GPU.

    Its controls are widgets: `steps` and `device` (a name); `text` describes the view. Without a kernel it
    displays as a still image with that text.

    Args:
        compiled: (steps, name of a GPU) -> `compile_for`'s result.
        sizes: the numbers of steps on the slider, ascending.
        device: a name in DEVICES that Triton compiles for.
        steps: the slider's position; the first of `sizes` if None.

    Raises:
        ValueError: another device, or a number of steps that is not on the slider.
    """

    _parts = (
        ((0, 22, 198, 194),),
        ((198, 22, 190, 194),),
        ((388, 22, 188, 194),),
    )

    def __init__(
        self,
        compiled: Callable[[int, str], Resources],
        sizes: Iterable[int],
        device: str = "H100",
        steps: int | None = None,
    ):
        gpus = [name for name, each in DEVICES.items() if (each.compute_capability or OLDEST) >= OLDEST]
        if device not in gpus:
            raise ValueError(f"{device!r} is not a GPU to compile for: choose from {', '.join(gpus)}")
        self._compiled, self._sizes, self._growth_on = compiled, tuple(sizes), functools.cache(self._compile)
        self.steps = slider("steps", self._sizes, self._sizes[0] if steps is None else steps)
        self.device = widgets.Dropdown(options=gpus, value=device, description="GPU")
        super().__init__(FramePlayer(), [self.steps], [[self.device]])

    def _compile(self, gpu: str) -> Growth:
        """Compile all sizes, and show the browser which one is being compiled."""
        found = []
        for number, size in enumerate(self._sizes, 1):
            self._stage.doing = f"compiling {number} of {len(self._sizes)}: steps = {size}, {gpu}"
            found.append(self._compiled(size, gpu))
        return Growth(self._sizes, tuple(found))

    @property
    def _growth(self) -> Growth:
        return self._growth_on(self.device.value)

    @property
    def text(self) -> str:
        return self._growth.text(self.steps.value)

    def chart(self) -> Chart:
        return registers_chart(self._growth, self.steps.value)

    def _still_and_data(self) -> tuple[str, dict]:
        growth = self._growth
        figure, panels = registers_axes(growth)
        frames = [
            {"svg": _moving(growth, size, figure, panels), "text": growth.text(size), "table": ""}
            for size in growth.sizes
        ]
        return still_svg(figure), {"frames": frames, "columns": 1}


def _moving(growth: Growth, size: int, figure: Figure, panels: dict[str, Axes]) -> str:
    height, half = figure.bbox.height, MARKER_SIZE / 2
    index = growth.sizes.index(size)
    left = next(iter(panels.values())).bbox.x0
    parts = [svg_title(growth.finding(size), left, TITLE_FROM_TOP)]
    for panel, axes in panels.items():
        value = growth.values(panel)[index]
        x, y = axes.transData.transform((size, value))
        top, bottom, left = height - axes.bbox.y1, height - axes.bbox.y0, axes.bbox.x0
        parts.append(
            f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{LIMIT}" stroke-dasharray="4 2"/>'
            f'<rect x="{x - half:.1f}" y="{height - y - half:.1f}" width="{MARKER_SIZE}" height="{MARKER_SIZE}"'
            f' fill="{FUSED}" stroke="currentColor"/>'
            f'<text x="{left:.1f}" y="{top - LABEL_ABOVE:.1f}">{value} {panel}</text>'
        )
    return f"{svg_opening(figure)}{''.join(parts)}</svg>"
