"""The error of LayerNorm over the mean of its rows, for three ways to the variance, as a picture."""

import math
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.charts import LIMIT, MARKER_SIZE, STYLE, TEXT, TITLE_SIZE, Chart, plain
from helpers.variance import WAYS, layer_norm_errors

MEANS = tuple(float(f"{10 ** (step / 2):.2g}") for step in range(13))  # 1 to a million
FLOOR = {"fp16": 1e-4, "fp32": 1e-8, "fp64": 1e-17}
TOP = 100.0  # errors above are results without any digit right, and drawn here with those that are not numbers
TITLE_FROM_TOP = 14  # points
# Okabe and Ito's colours that mean neither fused nor unfused; dash and marker tell the ways apart without them.
LOOKS = {"one pass": ("#D55E00", "^", "-"), "two passes": ("#009E73", "v", "--"), "Welford": ("#CC79A7", "D", ":")}


@dataclass(frozen=True)
class ErrorCurves:
    """Errors of each way at every one of MEANS, for rows of one width in one arithmetic."""

    columns: int
    arithmetic: str

    def error(self, way: str, mean: float) -> float:
        """The largest difference from exact results; NaN where a result is not a number."""
        return layer_norm_errors(mean, self.columns, self.arithmetic)[way]

    def height(self, way: str, mean: float) -> float:
        """Where the chart draws it: between its floor and TOP."""
        error = self.error(way, mean)
        return TOP if math.isnan(error) else min(TOP, max(FLOOR[self.arithmetic], error))

    def finding(self, mean: float) -> str:
        """The chart's title at one mean."""
        errors = {way: self.error(way, mean) for way in WAYS}
        if all(map(math.isnan, errors.values())):
            return f"At a mean of {plain(mean)}, {self.arithmetic} gives no numbers at all"
        if math.isnan(errors["one pass"]):
            return f"At a mean of {plain(mean)}, one pass gives results that are not numbers"
        if min(errors.values()) == 0 or errors["one pass"] < 1.5 * errors["two passes"]:
            return f"At a mean of {plain(mean)}, the three ways are about as good as one another"
        worse = errors["one pass"] / errors["two passes"]
        return f"At a mean of {plain(mean)}, one pass is {plain(worse)} times further off than two"

    def text(self, mean: float) -> str:
        """The line that says what the chart shows."""
        told = (f"{way} {_said(self.error(way, mean))}" for way in WAYS)
        return f"{self.arithmetic}, {self.columns} columns. {self.finding(mean)}. Largest error: {', '.join(told)}."


def _said(error: float) -> str:
    return "not a number" if math.isnan(error) else f"{error:.1e}"


def variance_axes(arithmetic: str) -> tuple[Figure, Axes]:
    """What stays still on the chart: the axes, and the key of the curves."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 4))
        axes = figure.add_axes((0.085, 0.12, 0.875, 0.78))
        axes.set(xscale="log", yscale="log", xlim=(0.8, 1.3e6), ylim=(FLOOR[arithmetic] / 2, TOP * 3))
        axes.set_xlabel("mean of the rows (their standard deviation is 1)")
        axes.set_ylabel("largest error of a result")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.axhline(TOP, color=LIMIT, linewidth=1, linestyle=":")
        axes.annotate("not a number", (1, TOP), (0, 4), textcoords="offset points")
        for number, (way, (colour, marker, dash)) in enumerate(LOOKS.items()):
            x, y = 0.02, 0.84 - 0.06 * number
            key = {"transform": axes.transAxes, "color": colour}
            axes.plot((x, x + 0.05), (y, y), dash, linewidth=2, **key)
            axes.plot(x + 0.025, y, marker, markersize=MARKER_SIZE, mec=TEXT, **key)
            axes.annotate(way, (x + 0.06, y), xycoords="axes fraction", va="center_baseline")
    return figure, axes


def variance_chart(curves: ErrorCurves, mean: float) -> Chart:
    """The three curves with the marks at one of MEANS."""
    figure, axes = variance_axes(curves.arithmetic)
    with rc_context(STYLE):
        left, height = axes.bbox.x0 / figure.bbox.width, figure.bbox.height
        figure.text(left, 1 - TITLE_FROM_TOP / height, curves.finding(mean), size=TITLE_SIZE, weight="bold")
        axes.axvline(mean, color=LIMIT, linewidth=1, linestyle="--")
        for way, (colour, marker, dash) in LOOKS.items():
            axes.plot(MEANS, [curves.height(way, each) for each in MEANS], dash, color=colour, linewidth=2)
            axes.plot(mean, curves.height(way, mean), marker, color=colour, markersize=MARKER_SIZE, mec=TEXT, zorder=4)
    return Chart(figure, curves.text(mean))
