"""Occupancy as a picture: the three sweeps of NVIDIA's calculator, with the kernel's own point marked on each."""

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from helpers.charts import LIMIT, MARKER_SIZE, MARKERS, STYLE, TEXT, TITLE_SIZE, Chart
from helpers.occupancy import MAX_REGISTERS, MAX_THREADS, Limits, Occupancy, limits

# Resource -> its axis' label, its largest value and the step between two ticks. Shared memory is in bytes.
PANELS = {
    "threads": ("threads a block", MAX_THREADS, 256),
    "registers": ("registers a thread", MAX_REGISTERS, 64),
    "shared memory": ("shared memory a block (KB)", 228 * 1024, 48 * 1024),
}
SWEPT = {"warps": "threads"}  # limiter -> the resource that a panel sweeps for it, where the names differ
OWN_LINE, FREEING_LINE = 5, 16  # points above a panel
TITLE_FROM_TOP = 14  # points


def finding(occupancy: Occupancy) -> str:
    """The chart's title: "24 of 64 warps of an SM are active, limited by registers"."""
    most = limits(occupancy.compute_capability).warps
    return f"{occupancy.warps} of {most} warps of an SM are active, limited by {' and '.join(occupancy.limiters)}"


def amount(resource: str, value: int) -> str:
    """A resource's value with its unit, for a label: "256", "48 KB"."""
    if resource != "shared memory":
        return f"{value}"
    return f"{value / 1024:g} KB" if value % 128 == 0 else f"{value} B"


def occupancy_axes(of_sm: Limits) -> tuple[Figure, dict[str, Axes]]:
    """What stays still on the chart: a panel for each resource; the dotted line is what the SM can hold."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 3))
        panels = {}
        for number, (resource, (label, largest, step)) in enumerate(PANELS.items()):
            axes = figure.add_axes((0.06 + 0.325 * number, 0.15, 0.285, 0.6))
            axes.set(xlim=(0, largest * 1.02), ylim=(0, of_sm.warps * 1.1))
            axes.set_xlabel(label)
            axes.xaxis.set_major_locator(MultipleLocator(step))
            axes.yaxis.set_major_locator(MultipleLocator(of_sm.warps // 4))
            axes.axhline(of_sm.warps, color=LIMIT, linewidth=1, linestyle=":")
            panels[resource] = axes
        panels["shared memory"].xaxis.set_major_formatter(lambda value, _: f"{value / 1024:g}")
        panels["threads"].set_ylabel("active warps an SM")
    return figure, panels


def occupancy_chart(occupancy: Occupancy) -> Chart:
    """How many warps are active as threads, registers or shared memory vary, and where this kernel stands.

    Each panel varies one resource and keeps the others. What limits is said above its panel; where changing that one
    resource lets one more block in, an open mark shows the value.
    """
    figure, panels = occupancy_axes(limits(occupancy.compute_capability))
    marker, colour = MARKERS["single"]
    mark = {"markersize": MARKER_SIZE, "zorder": 4, "clip_on": False}
    limiting = [SWEPT.get(limiter, limiter) for limiter in occupancy.limiters]
    less = occupancy.one_more_block
    with rc_context(STYLE):
        left, height = panels["threads"].bbox.x0 / figure.bbox.width, figure.bbox.height
        figure.text(left, 1 - TITLE_FROM_TOP / height, finding(occupancy), size=TITLE_SIZE, weight="bold")
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
            axes.step(values, [warps[value] for value in values], where="pre", color=TEXT, linewidth=1.2)
            axes.axvline(sweep.at, color=LIMIT, linewidth=1, linestyle="--")
            axes.plot(sweep.at, occupancy.warps, marker, color=colour, mec=TEXT, **mark)
    return Chart(figure, f"{finding(occupancy)}. {occupancy!r}")
