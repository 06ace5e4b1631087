"""Registers, spills and active warps as a kernel grows, as a picture of three panels with one size marked on each."""

from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from helpers.charts import FUSED, LIMIT, MARKER_SIZE, STYLE, TEXT, TITLE_SIZE, Chart
from helpers.occupancy import MAX_REGISTERS, limits
from helpers.resources import Resources

TITLE_FROM_TOP = 14  # points
LABEL_ABOVE = 5  # points above a panel


@dataclass(frozen=True)
class Growth:
    """One kernel compiled at several sizes for one device: `compiled[i]` is what `sizes[i]` operations need."""

    sizes: tuple[int, ...]
    compiled: tuple[Resources, ...]

    @property
    def first_spill(self) -> int | None:
        """The fewest operations at which a register spills; None if none does."""
        spilling = (size for size, each in zip(self.sizes, self.compiled, strict=True) if each.spill_bytes)
        return next(spilling, None)

    def values(self, panel: str) -> list[int]:
        """What a panel of the chart shows, for each size."""
        return [_VALUE[panel](each) for each in self.compiled]

    def finding(self, size: int) -> str:
        """The chart's title at one size."""
        each = self.compiled[self.sizes.index(size)]
        share = f"{each.occupancy().fraction:.0%} occupancy"
        if each.spill_bytes:
            return f"{size} fused operations spill {each.spill_stores} bytes a thread, at {share}"
        fit = "operation fits" if size == 1 else "operations fit"
        return f"{size} fused {fit} in {each.registers} registers a thread, at {share}"

    def text(self, size: int) -> str:
        """The line that says what the chart shows."""
        each, first = self.compiled[self.sizes.index(size)], self.first_spill
        last = "no size shown spills" if first is None else f"the first to spill is {first}"
        return f"{each.device.name}: {self.finding(size)}; {last}. Occupancy: {each.occupancy()!r}."


_VALUE = {
    "registers a thread": lambda each: each.registers,
    "spilled bytes a thread": lambda each: each.spill_stores,
    "active warps an SM": lambda each: each.occupancy().warps,
}


def registers_axes(growth: Growth) -> tuple[Figure, dict[str, Axes]]:
    """What stays still on the chart: a panel each with its curve; dotted is the most that there can be."""
    most_warps = limits(growth.compiled[0].device.compute_capability).warps
    tops = {"registers a thread": MAX_REGISTERS, "active warps an SM": most_warps}
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 3))
        panels = {}
        for number, panel in enumerate(_VALUE):
            axes = figure.add_axes((0.055 + 0.33 * number, 0.15, 0.275, 0.66))
            values = growth.values(panel)
            top = tops.get(panel, max(64, *values))
            axes.set(xlim=(0, growth.sizes[-1] * 1.04), ylim=(0, top * 1.1))
            axes.set_xlabel("fused operations")
            axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            if panel in tops:
                axes.axhline(top, color=LIMIT, linewidth=1, linestyle=":")
            axes.plot(growth.sizes, values, color=FUSED, linewidth=1.2)
            axes.plot(growth.sizes, values, "s", color=FUSED, markersize=3, mec=TEXT, mew=0.5)
            panels[panel] = axes
    return figure, panels


def registers_chart(growth: Growth, size: int) -> Chart:
    """The three panels with the marks at `size` operations, one of growth's sizes."""
    figure, panels = registers_axes(growth)
    with rc_context(STYLE):
        left, height = panels["registers a thread"].bbox.x0 / figure.bbox.width, figure.bbox.height
        figure.text(left, 1 - TITLE_FROM_TOP / height, growth.finding(size), size=TITLE_SIZE, weight="bold")
        for panel, axes in panels.items():
            value = growth.values(panel)[growth.sizes.index(size)]
            axes.axvline(size, color=LIMIT, linewidth=1, linestyle="--")
            axes.plot(size, value, "s", color=FUSED, markersize=MARKER_SIZE, mec=TEXT, zorder=4, clip_on=False)
            axes.annotate(
                f"{value} {panel}", (0, 1), (0, LABEL_ABOVE), xycoords="axes fraction", textcoords="offset points"
            )
    return Chart(figure, growth.text(size))
