"""The live error of LayerNorm: three ways to the variance, over the mean and the width of the rows."""

import ipywidgets as widgets

from helpers.charts import LIMIT, MARKER_SIZE, TEXT, TITLE_SIZE, Chart, page_position, plain
from helpers.explorers.stage import Explorer, Stage, script, slider, still_svg, svg_opening
from helpers.variance import ARITHMETIC
from helpers.variance_chart import (
    FLOOR,
    LOOKS,
    MEANS,
    TITLE_FROM_TOP,
    TOP,
    ErrorCurves,
    variance_axes,
    variance_chart,
)

COLUMNS = (64, 256, 1024, 4096)
DASHES = {"-": "none", "--": "7 3", ":": "2 3"}
HALF = MARKER_SIZE / 2
SHAPES = {
    "^": f"M0 {-HALF}L{HALF} {HALF}H{-HALF}Z",
    "v": f"M0 {HALF}L{HALF} {-HALF}H{-HALF}Z",
    "D": f"M0 {-HALF}L{HALF} 0L0 {HALF}L{-HALF} 0Z",
}


class _VarianceStage(Stage):
    _esm = script("roofline.js")


class VarianceExplorer(Explorer):
    """Error over mean with sliders for the mean and the columns, and a choice of arithmetic.

    Its controls are widgets: `mean`, `columns` and `arithmetic`; what it shows is also the string `text`. Displayed
    where no kernel runs, it is a picture and that text.
    """

    def __init__(self, mean: float, columns: int, arithmetic: str):
        self.mean = slider("mean", MEANS, mean, [plain(each) for each in MEANS])
        self.columns = slider("columns", COLUMNS, columns)
        if arithmetic not in ARITHMETIC:
            raise ValueError(f"no arithmetic is named {arithmetic!r}: choose from {', '.join(ARITHMETIC)}")
        self.arithmetic = widgets.Dropdown(options=list(ARITHMETIC), value=arithmetic, description="arithmetic")
        super().__init__(_VarianceStage(), [self.mean, self.columns], [[self.arithmetic]])

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


def _moving(curves: ErrorCurves, mean: float, figure, axes) -> str:
    position = page_position(axes)
    (x, bottom), (_, top) = position(mean, FLOOR[curves.arithmetic]), position(mean, TOP)
    parts = [
        f'<text x="{axes.bbox.x0}" y="{TITLE_FROM_TOP}" font-size="{TITLE_SIZE}" font-weight="bold">'
        f"{curves.finding(mean)}</text>"
        f'<path d="M{x:.1f} {bottom:.1f}V{top:.1f}" stroke="{LIMIT}" stroke-dasharray="4 2"/>'
    ]
    for way, (colour, marker, dash) in LOOKS.items():
        points = (position(each, curves.height(way, each)) for each in MEANS)
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        x, y = position(mean, curves.height(way, mean))
        parts.append(
            f'<path d="M{line}" stroke="{colour}" stroke-width="2" fill="none" stroke-dasharray="{DASHES[dash]}"/>'
            f'<path d="{SHAPES[marker]}" transform="translate({x:.1f} {y:.1f})" fill="{colour}" stroke="{TEXT}"/>'
        )
    return f"{svg_opening(figure)}{''.join(parts)}</svg>"


def variance_explorer(mean: float = 10_000.0, columns: int = 1024, arithmetic: str = "fp32") -> VarianceExplorer:
    """The live error of three ways to the variance; the last expression of a cell shows it.

    Raises:
        ValueError: a value that is not on its slider, or an unknown arithmetic ("fp16", "fp32", "fp64").
    """
    return VarianceExplorer(mean, columns, arithmetic)
