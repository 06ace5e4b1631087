"""The live wide row: when a block can hold it, and what reading it again costs, for a softmax."""

import ipywidgets as widgets

from helpers.charts import TEXT, TITLE_SIZE, Chart
from helpers.devices import DEVICES
from helpers.explorers.stage import Explorer, Stage, script, slider, still_svg, svg_opening
from helpers.wide_rows import READS, WideRows
from helpers.wide_rows_chart import TITLE_FROM_TOP, label, segments, wide_rows_axes, wide_rows_chart

ROWS = (1, 16, 128, 1024, 8192, 65536)
COLUMNS = (1024, 4096, 8192, 16384, 32768, 50257, 65536, 131072, 262144)
WARPS = (4, 8, 16, 32)
DTYPES = ("fp32", "fp16", "bf16")


class _WideRowsStage(Stage):
    _esm = script("roofline.js")


class WideRowsExplorer(Explorer):
    """Bytes of three ways to a softmax, with sliders for rows, columns and warps, and a choice of dtype and GPU.

    Its controls are widgets: `columns`, `rows`, `warps`, `dtype` and `device` (a name); what it shows is also the
    string `text`. Displayed where no kernel runs, it is a picture and that text.
    """

    def __init__(self, device: str, dtype: str, rows: int, columns: int, warps: int):
        gpus = [name for name, each in DEVICES.items() if each.compute_capability]
        if device not in gpus or dtype not in DTYPES:
            raise ValueError(f"{dtype!r} on {device!r}: choose from {', '.join(DTYPES)} and from {', '.join(gpus)}")
        self.columns = slider("columns", COLUMNS, columns, [f"{each:,}" for each in COLUMNS])
        self.rows = slider("rows", ROWS, rows, [f"{each:,}" for each in ROWS])
        self.warps = slider("warps a row", WARPS, warps)
        self.dtype = widgets.Dropdown(options=list(DTYPES), value=dtype, description="dtype")
        self.device = widgets.Dropdown(options=gpus, value=device, description="GPU")
        super().__init__(_WideRowsStage(), [self.columns, self.rows, self.warps], [[self.dtype, self.device]])

    def _at(self, columns: int, rows: int, warps: int) -> WideRows:
        return WideRows(DEVICES[self.device.value], self.dtype.value, rows, columns, warps)

    @property
    def _case(self) -> WideRows:
        return self._at(self.columns.value, self.rows.value, self.warps.value)

    @property
    def text(self) -> str:
        return self._case.text

    def chart(self) -> Chart:
        return wide_rows_chart(self._case)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, axes = wide_rows_axes(self.dtype.value)
        cases = (self._at(columns, rows, warps) for columns in COLUMNS for rows in ROWS for warps in WARPS)
        frames = [{"svg": _moving(case, figure, axes), "text": case.text, "table": ""} for case in cases]
        return still_svg(figure), {"frames": frames, "columns": len(ROWS), "layers": len(WARPS)}


def _moving(case: WideRows, figure, axes) -> str:
    page = figure.bbox.height
    (left, top), (right, bottom) = axes.transData.transform([(0, 0), (1, 1)])
    parts = [f'<text x="12" y="{TITLE_FROM_TOP}" font-size="{TITLE_SIZE}" font-weight="bold">{case.finding}</text>']
    for line, way in enumerate(READS):
        middle, end = page - top + line * (top - bottom), left
        for start, width, height, colour, opacity in segments(case, way):
            high, end = height * (top - bottom), left + (start + width) * (right - left)
            parts.append(
                f'<rect x="{left + start * (right - left):.1f}" y="{middle - high / 2:.1f}"'
                f' width="{width * (right - left):.1f}" height="{high:.1f}" fill="{colour}" fill-opacity="{opacity}"'
                f' stroke="{TEXT}"/>'
            )
        parts.append(f'<text x="{end + 6:.1f}" y="{middle + 3:.1f}">{label(case, way)}</text>')
    return f"{svg_opening(figure)}{''.join(parts)}</svg>"


def wide_rows_explorer(
    device: str = "H100", dtype: str = "bf16", rows: int = 8192, columns: int = 50257, warps: int = 8
) -> WideRowsExplorer:
    """The live wide row; the last expression of a cell shows it.

    Raises:
        ValueError: an unknown GPU or dtype, or a value that is not on its slider.
    """
    return WideRowsExplorer(device, dtype, rows, columns, warps)
