"""The live choice between storing and recomputing: bytes moved and kept in a training step, over the tensor's size."""

import functools

import ipywidgets as widgets

from helpers.charts import Chart, si
from helpers.devices import DEVICES
from helpers.explorers.stage import Explorer, Stage, script, slider, still_svg, svg_opening
from helpers.operations import ITEMSIZE
from helpers.page_bars import Scene, svg
from helpers.recomputation import OPERATIONS
from helpers.recomputation_chart import recomputation_axes, recomputation_chart, scene

ROWS = tuple(2**power for power in range(6, 18))
COLUMNS = (256, 512, 1024, 2048, 4096, 8192, 11008, 16384)
DTYPES = ("bf16", "fp16", "fp32")


class _RecomputationStage(Stage):
    _esm = script("roofline.js")


class RecomputationExplorer(Explorer):
    """Bars for three versions, with sliders for rows and columns, and a choice of operation, dtype and GPU.

    Its controls are widgets: `rows`, `columns`, `operation`, `dtype` and `device` (names); what it shows is also the
    string `text`. Displayed where no kernel runs, it is a picture and that text.
    """

    def __init__(self, operation: str, dtype: str, device: str, rows: int, columns: int):
        if operation not in OPERATIONS or dtype not in DTYPES:
            raise ValueError(
                f"{operation!r} in {dtype!r}: one of {', '.join(OPERATIONS)} in one of {', '.join(DTYPES)} expected"
            )
        DEVICES[device]  # refuses a name that it does not know
        self.rows = slider("rows", ROWS, rows, [f"{each:,}" for each in ROWS])
        self.columns = slider("columns", COLUMNS, columns, [f"{each:,}" for each in COLUMNS])
        self.operation = widgets.Dropdown(options=list(OPERATIONS), value=operation, description="operation")
        self.dtype = widgets.Dropdown(options=list(DTYPES), value=dtype, description="dtype")
        self.device = widgets.Dropdown(options=list(DEVICES), value=device, description="GPU")
        super().__init__(_RecomputationStage(), [self.rows, self.columns], [[self.operation, self.dtype, self.device]])

    def _scene(self, rows: int, columns: int) -> Scene:
        operation, dtype, device = self.operation.value, self.dtype.value, DEVICES[self.device.value]
        what = f"{device.name} ({si(device.memory_bandwidth, 'B/s')}), {operation} in {dtype}, {rows:,} x {columns:,}"
        return scene(OPERATIONS[operation](rows * columns, ITEMSIZE[dtype]), device, what)

    @property
    def text(self) -> str:
        return self._scene(self.rows.value, self.columns.value).text

    def chart(self) -> Chart:
        return recomputation_chart(self._scene(self.rows.value, self.columns.value))

    def _still_and_data(self) -> tuple[str, dict]:
        scenes = (self._scene(rows, columns) for rows in ROWS for columns in COLUMNS)
        still, opening = _still()
        frames = [{"svg": svg(opening, each), "text": each.text, "table": ""} for each in scenes]
        return still, {"frames": frames, "columns": len(COLUMNS)}


@functools.cache
def _still():
    figure, _ = recomputation_axes()
    return still_svg(figure), svg_opening(figure)


def recomputation_explorer(
    operation: str = "bias+dropout+residual",
    dtype: str = "bf16",
    device: str = "H200",
    rows: int = 16384,
    columns: int = 4096,
) -> RecomputationExplorer:
    """The live choice between storing and recomputing; the last expression of a cell shows it.

    Raises:
        ValueError: an unknown operation, dtype or device, or a value that is not on its slider.
    """
    return RecomputationExplorer(operation, dtype, device, rows, columns)
