"""The error of LayerNorm: three ways to the variance, their curves over the rows' mean, and the live curves."""

import functools
import math
from dataclasses import dataclass

import ipywidgets as widgets
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart, page_position, plain
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.style import GREEN, LIMIT, MARKER_SIZE, PURPLE, STYLE, TEXT, TITLE_SIZE, VERMILION

WAYS = ("one pass", "two passes", "Welford")
ARITHMETIC = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
EPS = 1e-5
ROWS = 8


def _sum(rows: np.ndarray) -> np.ndarray:
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows


def mean_and_variance(way: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's mean and variance, in the rows' own dtype and one of WAYS.

    Args:
        way: one of WAYS.
        rows: (rows, columns), columns a power of two.

    Returns:
        mean and variance, each (rows, 1).

    Raises:
        ValueError: another way, or columns that are not a power of two.
    """
    columns = rows.shape[1]
    if way not in WAYS or columns & (columns - 1):
        raise ValueError(f"{way!r} over {columns} columns: choose from {WAYS}, and a power of two")
    count = rows.dtype.type(columns)
    if way == "Welford":
        means, squares, merged = rows, np.zeros_like(rows), 1
        while means.shape[1] > 1:
            half = means.shape[1] // 2
            apart = means[:, half:] - means[:, :half]
            means = means[:, :half] + apart / rows.dtype.type(2)
            squares = squares[:, :half] + squares[:, half:] + apart * apart * rows.dtype.type(merged / 2)
            merged *= 2
        return means, squares / count
    mean = _sum(rows) / count
    if way == "one pass":
        return mean, _sum(rows * rows) / count - mean * mean
    return mean, _sum((rows - mean) * (rows - mean)) / count


@functools.cache
def layer_norm_errors(mean: float, columns: int, arithmetic: str) -> dict[str, float]:
    """Return the error of LayerNorm's results, each about 1, against exact arithmetic: way -> the largest difference.

    NaN where a result is not a number: the variance came out negative, or a sum overflowed.

    Args:
        mean: the mean of normally distributed rows with standard deviation 1.
        columns: per row, a power of two.
            arithmetic: a name in ARITHMETIC; the rows are in that dtype, so rounding them does not count as an error.
    """
    dtype = ARITHMETIC[arithmetic]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        rows = (np.random.default_rng(0).standard_normal((ROWS, columns)) + mean).astype(dtype)
        wide = rows.astype(np.longdouble)
        centred = wide - wide.mean(axis=1, keepdims=True)
        exact = centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + EPS)
        found = {}
        for way in WAYS:
            centre, variance = mean_and_variance(way, rows)
            result = (rows - centre) / np.sqrt(variance + dtype(EPS))
            found[way] = float(np.abs(result.astype(np.longdouble) - exact).max())
    return found


MEANS = tuple(float(f"{10 ** (step / 2):.2g}") for step in range(13))  # 1 to a million
FLOOR = {"fp16": 1e-4, "fp32": 1e-8, "fp64": 1e-17}
TOP = 1e4  # above every error that is a number: where those that are not are drawn
TITLE_FROM_TOP = 14  # points
# Okabe and Ito's colours that mean neither fused nor unfused; dash and marker tell the ways apart without them.
LOOKS = {"one pass": (VERMILION, "^", "-"), "two passes": (GREEN, "v", "--"), "Welford": (PURPLE, "D", ":")}


@dataclass(frozen=True)
class ErrorCurves:
    """Errors of each way at every one of MEANS, for rows of one width in one arithmetic."""

    columns: int
    arithmetic: str

    def error(self, way: str, mean: float) -> float:
        """The largest difference from exact results; NaN where a result is not a number."""
        return layer_norm_errors(mean, self.columns, self.arithmetic)[way]

    def height(self, way: str, mean: float) -> float:
        """Return its height in the chart: from the floor up, NaN at TOP."""
        error = self.error(way, mean)
        return TOP if math.isnan(error) else max(FLOOR[self.arithmetic], error)

    def runs(self, way: str) -> list[list[float]]:
        """Return the means without a break: a line ends where results are not numbers."""
        found = [[]]
        for mean in MEANS:
            if math.isnan(self.error(way, mean)):
                found.append([])
            else:
                found[-1].append(mean)
        return [run for run in found if run]

    def gaps(self, way: str) -> list[float]:
        """Return the means with results that are not numbers."""
        return [mean for mean in MEANS if math.isnan(self.error(way, mean))]

    def finding(self, mean: float) -> str:
        """The chart's title at one mean."""
        errors = {way: self.error(way, mean) for way in WAYS}
        if all(map(math.isnan, errors.values())):
            return f"At a mean of {plain(mean)}, {self.arithmetic} gives no numbers at all"
        if math.isnan(errors["one pass"]):
            return f"At a mean of {plain(mean)}, one pass gives results that are not numbers"
        if min(errors.values()) == 0 or errors["one pass"] < 1.5 * errors["two passes"]:
            return f"At a mean of {plain(mean)}, the three ways are about equally accurate"
        worse = errors["one pass"] / errors["two passes"]
        return f"At a mean of {plain(mean)}, one pass is {plain(worse)} times further off than two"

    def text(self, mean: float) -> str:
        """A one-line description of the chart."""
        told = (f"{way} {_said(self.error(way, mean))}" for way in WAYS)
        return f"{self.arithmetic}, {self.columns} columns. {self.finding(mean)}. Largest error: {', '.join(told)}."


def _said(error: float) -> str:
    return "not a number" if math.isnan(error) else f"{error:.1e}"


def variance_axes(arithmetic: str) -> tuple[Figure, Axes]:
    """Draw the static parts: the axes, and the key of the curves."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 4))
        axes = figure.add_axes((0.115, 0.12, 0.845, 0.78))
        axes.set(xscale="log", yscale="log", xlim=(0.8, 1.3e6), ylim=(FLOOR[arithmetic] / 2, TOP * 3))
        axes.set_xlabel("mean of the rows (their standard deviation is 1)")
        axes.set_ylabel("largest error of a result")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}" if value < 0.9 * TOP else "")  # it has a name
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
            for run in curves.runs(way):
                axes.plot(run, [curves.height(way, each) for each in run], dash, color=colour, linewidth=2)
            gaps = curves.gaps(way)
            axes.plot(gaps, [TOP] * len(gaps), marker, color=colour, markersize=MARKER_SIZE / 2)
            axes.plot(mean, curves.height(way, mean), marker, color=colour, markersize=MARKER_SIZE, mec=TEXT, zorder=4)
    return Chart(figure, curves.text(mean))


COLUMNS = (64, 256, 1024, 4096)
DASHES = {"-": "none", "--": "7 3", ":": "2 3"}
HALF = MARKER_SIZE / 2
SHAPES = {
    "^": f"M0 {-HALF}L{HALF} {HALF}H{-HALF}Z",
    "v": f"M0 {HALF}L{HALF} {-HALF}H{-HALF}Z",
    "D": f"M0 {-HALF}L{HALF} 0L0 {HALF}L{-HALF} 0Z",
}


class VarianceExplorer(Explorer):
    """Error over mean with sliders for the mean and the columns, and a choice of arithmetic.

    Its controls are widgets: `mean`, `columns` and `arithmetic`; `text` describes the view. Without a kernel it
    displays as a still image with that text.

    Raises:
        ValueError: a value that is not on its slider, or an unknown arithmetic ("fp16", "fp32", "fp64").
    """

    def __init__(self, mean: float = 10000.0, columns: int = 1024, arithmetic: str = "fp32"):
        self.mean = slider("mean", MEANS, mean, [plain(each) for each in MEANS])
        self.columns = slider("columns", COLUMNS, columns)
        if arithmetic not in ARITHMETIC:
            raise ValueError(f"unknown arithmetic {arithmetic!r}: choose from {', '.join(ARITHMETIC)}")
        self.arithmetic = widgets.Dropdown(options=list(ARITHMETIC), value=arithmetic, description="arithmetic")
        super().__init__(FramePlayer(), [self.mean, self.columns], [[self.arithmetic]])

    @property
    def _curves(self) -> ErrorCurves:
        return ErrorCurves(self.columns.value, self.arithmetic.value)

    @property
    def text(self) -> str:
        return self._curves.text(self.mean.value)

    def chart(self) -> Chart:
        return variance_chart(self._curves, self.mean.value)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, axes = variance_axes(self.arithmetic.value)
        curves = [ErrorCurves(columns, self.arithmetic.value) for columns in COLUMNS]
        frames = [
            {"svg": _moving(each, mean, figure, axes), "text": each.text(mean), "table": ""}
            for mean in MEANS
            for each in curves
        ]
        return still_svg(figure), {"frames": frames, "columns": len(COLUMNS)}


def _moving(curves: ErrorCurves, mean: float, figure: Figure, axes: Axes) -> str:
    position = page_position(axes)
    (x, bottom), (_, top) = position(mean, FLOOR[curves.arithmetic]), position(mean, TOP)
    parts = [
        svg_title(curves.finding(mean), axes.bbox.x0, TITLE_FROM_TOP),
        f'<path d="M{x:.1f} {bottom:.1f}V{top:.1f}" stroke="{LIMIT}" stroke-dasharray="4 2"/>',
    ]
    for way, (colour, marker, dash) in LOOKS.items():
        lines = ""
        for run in curves.runs(way):
            points = (position(each, curves.height(way, each)) for each in run)
            lines += "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        for each in curves.gaps(way):
            x, y = position(each, TOP)
            parts.append(
                f'<path d="{SHAPES[marker]}" transform="translate({x:.1f} {y:.1f}) scale(0.5)" fill="{colour}"/>'
            )
        x, y = position(mean, curves.height(way, mean))
        parts.append(
            f'<path d="{lines}" stroke="{colour}" stroke-width="2" fill="none" stroke-dasharray="{DASHES[dash]}"/>'
            f'<path d="{SHAPES[marker]}" transform="translate({x:.1f} {y:.1f})" fill="{colour}" stroke="{TEXT}"/>'
        )
    return f"{svg_opening(figure)}{''.join(parts)}</svg>"
