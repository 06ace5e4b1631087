"""Occupancy: an SM that fills with blocks, and how many warps are active as each resource varies; as a chart and live.

The three sliders have nearly two million positions, but each resource allows its number of blocks by itself. These
numbers are tabulated here, by `helpers.instruments.occupancy_calculator`; the browser takes the least of them.
"""

import dataclasses
import functools
from pathlib import Path

import ipywidgets as widgets
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MultipleLocator

from helpers.figures.frame.chart import Chart
from helpers.figures.frame.explorer import Explorer, Stage, script, slider, still_svg, svg_opening
from helpers.instruments.devices import DEVICES
from helpers.instruments.occupancy_calculator import (
    LIMITS,
    MAX_REGISTERS,
    MAX_THREADS,
    REGISTER_UNIT,
    WARP,
    Limits,
    Occupancy,
    limits,
    occupancy,
)
from helpers.instruments.occupancy_calculator import REGISTERS as REGISTER_FILE
from helpers.style import FUSED, LIMIT, MARKER_SIZE, MARKERS, SKY_BLUE, STYLE, TEXT, TITLE_SIZE, WRONG

# Resource -> its axis' label, its largest value and the step between two ticks. Shared memory is in bytes.
PANELS = {
    "threads": ("threads per block", MAX_THREADS, 256),
    "registers": ("registers per thread", MAX_REGISTERS, 64),
    "shared memory": ("shared memory per block (KB)", 228 * 1024, 48 * 1024),
}
SWEPT = {"warps": "threads"}  # limiter -> the resource that a panel sweeps for it, where the names differ
OWN_LINE, FREEING_LINE = 5, 18  # points above a panel
TITLE_FROM_TOP = 14  # points
# The SM above the panels, in points: a bar for each resource, which blocks fill from the left.
SM_TOP, BAR_HEIGHT, BAR_STEP, BAR_LEFT, BAR_RIGHT = 26, 15, 21, 136, 134
SM_HEIGHT = 3 * BAR_STEP + 20
# On a narrow page, above all else: each bar below its name, as wide as the page.
NARROW_TOP, NARROW_STEP, NARROW_WIDTH = -75, 28, 260
BLOCKS = (FUSED, SKY_BLUE)  # two colours by turns, so that neighbours differ
LIMITING = FUSED  # of a limiting resource's sweep; the others' are grey


def finding(occupancy: Occupancy) -> str:
    """The chart's title: "24 of 64 warps of an SM are active, limited by registers"."""
    most = limits(occupancy.compute_capability).warps
    return f"{occupancy.warps} of {most} warps of an SM are active, limited by {' and '.join(occupancy.limiters)}"


def amount(resource: str, value: int) -> str:
    """A resource's value with its unit, for a label: "256", "48 KB"."""
    if resource != "shared memory":
        return f"{value}"
    return f"{value / 1024:g} KB" if value % 128 == 0 else f"{value} B"


@dataclasses.dataclass(frozen=True)
class SmBar:
    """One resource of an SM, and the share that each resident block takes: warps, registers or bytes."""

    resource: str  # as PANELS names it
    block: int
    blocks: int
    total: int

    @property
    def name(self) -> str:
        return "warps" if self.resource == "threads" else self.resource

    @property
    def used(self) -> str:
        used = self.block * self.blocks
        if self.resource == "shared memory":
            return f"{used / 1024:g} of {self.total / 1024:g} KB"
        return f"{used:,} of {self.total:,}"

    @property
    def next_is_too_large(self) -> bool:
        return self.block * (self.blocks + 1) > self.total


def sm_bars(occupancy: Occupancy) -> list[SmBar]:
    """Return the blocks' share of an SM's warps, registers and shared memory, as the hardware allocates them."""
    limiters = {resource: limiter for limiter, resource in SWEPT.items()}
    allocated = {resource: occupancy.allocated[limiters.get(resource, resource)] for resource in PANELS}
    return [SmBar(resource, block, occupancy.blocks, total) for resource, (block, total) in allocated.items()]


def occupancy_axes(of_sm: Limits) -> tuple[Figure, dict[str, Axes]]:
    """Draw the static parts: a panel for each resource; the dotted line is the SM's limit."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 3 + SM_HEIGHT / 72))
        points = figure.bbox.height
        panels = {}
        for number, (resource, (label, largest, step)) in enumerate(PANELS.items()):
            axes = figure.add_axes((0.06 + 0.33 * number, 32 / points, 0.275, 130 / points))
            axes.set(xlim=(0, largest * 1.02), ylim=(0, of_sm.warps * 1.1))
            axes.set_xlabel(label)
            axes.xaxis.set_major_locator(MultipleLocator(step))
            axes.yaxis.set_major_locator(MultipleLocator(of_sm.warps // 4))
            axes.axhline(of_sm.warps, color=LIMIT, linewidth=1, linestyle=":")
            panels[resource] = axes
        panels["shared memory"].xaxis.set_major_formatter(lambda value, _: f"{value / 1024:g}")
        panels["threads"].set_ylabel("active warps per SM")
    return figure, panels


def occupancy_chart(occupancy: Occupancy) -> Chart:
    """Draw active warps as threads, registers or shared memory vary, and mark this kernel.

    Above, the SM: a bar per resource, which its blocks fill; where the next block would not fit, it is dashed. Each
    panel varies one resource and keeps the others. A limiting resource has "limits" in its title and a blue line; where
    changing that one resource lets one more block in, an open mark shows the value.
    """
    figure, panels = occupancy_axes(limits(occupancy.compute_capability))
    marker, colour = MARKERS["single"]
    mark = {"markersize": MARKER_SIZE, "zorder": 4, "clip_on": False}
    limiting = [SWEPT.get(limiter, limiter) for limiter in occupancy.limiters]
    less = occupancy.one_more_block
    with rc_context(STYLE):
        left, height = panels["threads"].bbox.x0 / figure.bbox.width, figure.bbox.height
        figure.text(left, 1 - TITLE_FROM_TOP / height, finding(occupancy), size=TITLE_SIZE, weight="bold")
        _draw_sm(figure, sm_bars(occupancy), limiting, panels["threads"].bbox.x0, panels["shared memory"].bbox.x1)
        for resource, axes in panels.items():
            sweep = occupancy.sweep(resource)
            # Units of allocation end between the sweep's steps, so the kernel's own value may be off them.
            warps = dict(zip(sweep.values, sweep.warps, strict=True)) | {sweep.at: occupancy.warps}
            above = {"xy": (0, 1), "xycoords": "axes fraction", "textcoords": "offset points"}
            text, weight = amount(resource, sweep.at), "normal"
            if resource in limiting:
                text, weight = f"{text} limits", "bold"
            axes.annotate(text, xytext=(0, OWN_LINE), weight=weight, **above)
            if list(less) == [resource]:
                freeing = sweep.at - less[resource]
                warps[freeing] = occupancy.warps_at(resource, freeing)
                axes.annotate(f"{amount(resource, freeing)}: one more block", xytext=(0, FREEING_LINE), **above)
                axes.plot(freeing, warps[freeing], marker, color="none", mec=TEXT, **mark)
            values = sorted(warps)
            # What a value allows, every lower value down to the one before it allows too, or more.
            line, fill, wide = (LIMITING, LIMITING, 2.4) if resource in limiting else (LIMIT, colour, 1.2)
            axes.step(values, [warps[value] for value in values], where="pre", color=line, linewidth=wide)
            axes.axvline(sweep.at, color=LIMIT, linewidth=1, linestyle="--")
            axes.plot(sweep.at, occupancy.warps, marker, color=fill, mec=TEXT, **mark)
    return Chart(figure, f"{finding(occupancy)}. {occupancy!r}")


def _draw_sm(figure: Figure, bars: list[SmBar], limiting: list[str], left: float, right: float) -> None:
    """The SM's bars; lengths in points, from the page's top left corner."""
    page_width, page_height = figure.bbox.size

    def box(x: float, y: float, width: float, height: float, **look) -> None:
        corner = x / page_width, 1 - (y + height) / page_height
        figure.add_artist(Rectangle(corner, width / page_width, height / page_height, **look))

    start, width = left + BAR_LEFT, right - left - BAR_LEFT - BAR_RIGHT
    for number, bar in enumerate(bars):
        top, step = SM_TOP + BAR_STEP * number, width * bar.block / bar.total
        weight = "bold" if bar.resource in limiting else "normal"
        for text, x, side in ((bar.name, start - 6, "right"), (bar.used, start + width + 6, "left")):
            y = 1 - (top + BAR_HEIGHT / 2) / page_height
            figure.text(x / page_width, y, text, ha=side, va="center", weight=weight)
        for block in range(bar.blocks):
            box(
                start + step * block, top, step, BAR_HEIGHT, facecolor=BLOCKS[block % 2], edgecolor=LIMIT, linewidth=0.5
            )
        box(start, top, width, BAR_HEIGHT, fill=False, edgecolor=LIMIT)
        if bar.next_is_too_large and (room := width - step * bar.blocks - 4) > 0:
            end = start + step * bar.blocks
            box(end + 2, top + 2, room, BAR_HEIGHT - 4, fill=False, ec=WRONG, ls="--")


THREADS = tuple(range(WARP, MAX_THREADS + 1, WARP))
REGISTERS = tuple(range(1, MAX_REGISTERS + 1))
SHARED_MEMORY = tuple(range(0, max(of_sm.shared_memory_per_block for of_sm in LIMITS.values()) + 1, 1024))  # bytes
NO_LIMIT = 65536  # blocks: more than any SM holds, where infinity could not be sent


@functools.cache
def _tables(compute_capability: tuple[int, int]) -> tuple[str, dict]:
    """Return the chart's static part, and the browser's data apart from slider values: see occupancy.js."""
    of_sm = limits(compute_capability)
    figure, panels = occupancy_axes(of_sm)
    height = figure.bbox.height

    def allowed(resource: str, **demands) -> int:
        return min(NO_LIMIT, occupancy(compute_capability, **demands).allowed[resource])

    unit, reserved = of_sm.shared_memory_unit, of_sm.reserved_shared_memory
    units = range((of_sm.shared_memory_per_block + reserved) // unit + 1)  # allocated to a block, the reserved included
    return still_svg(figure), {
        "opening": svg_opening(figure),
        "title_y": TITLE_FROM_TOP,
        "own_line": OWN_LINE,
        "freeing_line": FREEING_LINE,
        "grey": LIMIT,
        "limiting": LIMITING,
        "sm": {
            "top": SM_TOP,
            "height": BAR_HEIGHT,
            "step": BAR_STEP,
            "left": BAR_LEFT,
            "right": BAR_RIGHT,
            "colours": BLOCKS,
            "narrow": {
                "top": NARROW_TOP,
                "height": BAR_HEIGHT - 2,
                "step": NARROW_STEP,
                "width": NARROW_WIDTH,
                "colours": BLOCKS,
            },
        },
        "wrong": WRONG,
        "register_unit": REGISTER_UNIT,
        "register_file": REGISTER_FILE,
        "shared_memory": of_sm.shared_memory,
        "panels": {
            resource: {
                "left": axes.bbox.x0,
                "right": axes.bbox.x1,
                "top": height - axes.bbox.y1,
                "bottom": height - axes.bbox.y0,
                "largest": axes.get_xlim()[1],
                "most": axes.get_ylim()[1],
            }
            for resource, axes in panels.items()
        },
        "warps": of_sm.warps,
        "blocks": of_sm.blocks,
        "shares": [f"{warps / of_sm.warps:.0%}" for warps in range(of_sm.warps + 1)],
        "most": of_sm.shared_memory_per_block,
        "unit": unit,
        "reserved": reserved,
        "capability": "{}.{}".format(*compute_capability),
        "by_registers": [
            [allowed("registers", threads=threads, registers=registers) for registers in (0, *REGISTERS)]
            for threads in THREADS
        ],
        "by_shared_memory": [
            allowed("shared memory", threads=WARP, dynamic_shared_memory=max(0, count * unit - reserved))
            for count in units
        ],
    }


class _OccupancyStage(Stage):
    _esm = script(Path(__file__).with_name("occupancy.js"))


class OccupancyExplorer(Explorer):
    """NVIDIA's occupancy calculator with sliders for threads, registers and shared memory, and a choice of GPU.

    Its controls are widgets: `threads` (per block), `registers` (per thread), `shared_memory` (bytes per block) and
    `device` (a name); `text` describes the view. Without a kernel it displays as a still image with that text.

    Args:
        device: a name in DEVICES; the explorer can change it.
        threads: per block, a multiple of 32 up to 1024.
        registers: per thread, 1 to 255.
        shared_memory: bytes per block, static and dynamic, without the driver's share.
        first: the only control that isn't folded, "registers" for instance. None: all are shown.

    Raises:
        ValueError: an unknown device or control, a value outside these ranges, or more shared memory than a block can
            have.
    """

    _parts = (
        ((-2, NARROW_TOP - 13, NARROW_WIDTH + 4, 3 * NARROW_STEP + 2),),
        ((0, 108, 203, 192),),
        ((203, 108, 189, 192),),
        ((392, 108, 184, 192),),
    )
    _flat = (1, 0.6, 0.6, 0.6)

    def __init__(
        self,
        device: str = "H100",
        threads: int = 256,
        registers: int = 64,
        shared_memory: int = 0,
        first: str | None = None,
    ):
        occupancy(
            DEVICES[device].compute_capability,
            threads=threads,
            registers=registers,
            dynamic_shared_memory=shared_memory,
        )  # refuses what cannot be shown
        sizes = tuple(sorted({*SHARED_MEMORY, shared_memory}))
        labels = [amount("shared memory", size) for size in sizes]
        self.threads = slider("threads", THREADS, threads)
        self.registers = slider("registers", REGISTERS, registers)
        self.shared_memory = slider("shared memory", sizes, shared_memory, labels)
        self.device = widgets.Dropdown(options=list(DEVICES), value=device, description="GPU")
        self._values = {"threads": THREADS, "registers": REGISTERS, "shared memory": sizes}
        if first and first not in (*self._values, "GPU"):
            raise ValueError(f"no control {first!r} here: choose from {', '.join((*self._values, 'GPU'))}")
        if first:
            self._folded = tuple(name for name in (*self._values, "GPU") if name != first)
        super().__init__(_OccupancyStage(), [self.threads, self.registers, self.shared_memory], [[self.device]])

    def _occupancy(self) -> Occupancy:
        return occupancy(
            DEVICES[self.device.value].compute_capability,
            threads=self.threads.value,
            registers=self.registers.value,
            dynamic_shared_memory=self.shared_memory.value,
        )

    @property
    def text(self) -> str:
        try:
            found = self._occupancy()
        except ValueError as error:  # more shared memory than a block of the GPU chosen can have
            return str(error)
        size = amount("shared memory", self.shared_memory.value)
        block = f"{self.threads.value} threads, {self.registers.value} registers, {size} of shared memory"
        return f"{self.device.value}, {block}: {found!r}."

    def chart(self) -> Chart:
        return dataclasses.replace(occupancy_chart(self._occupancy()), text=self.text)

    def _still_and_data(self) -> tuple[str, dict]:
        still, tables = _tables(DEVICES[self.device.value].compute_capability)
        return still, {"name": self.device.value, "values": self._values, **tables}
