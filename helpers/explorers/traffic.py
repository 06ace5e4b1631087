"""The live traffic of an operation: bytes moved, unfused and fused, over the size of its tensors."""

import functools

import ipywidgets as widgets

from helpers.charts import Chart, si
from helpers.devices import DEVICES
from helpers.explorers.stage import Explorer, Stage, script, slider, still_svg, svg_opening
from helpers.operation_chart import operation_axes, operation_chart, operation_scene
from helpers.operations import ITEMSIZE, OPERATIONS
from helpers.page_bars import Scene, svg

ROWS = tuple(2**power for power in range(0, 17, 2))
COLUMNS = (256, 1000, 1024, 4096, 11008, 16384)
DTYPES = ("fp32", "fp16", "bf16")
# Those whose time is that of their bytes, on every GPU.
SHOWN = ("ReLU", "vector add", "GELU", "add+GELU", "LayerNorm", "softmax")


class _TrafficStage(Stage):
    _esm = script("roofline.js")


class TrafficExplorer(Explorer):
    """Bars of bytes, with sliders for rows and columns, and a choice of operation, dtype and GPU.

    Its controls are widgets: `rows`, `columns`, `operation`, `dtype` and `device` (names); what it shows is also the
    string `text`. Displayed where no kernel runs, it is a picture and that text.
    """

    def __init__(self, operation: str, dtype: str, device: str, rows: int, columns: int):
        if operation not in SHOWN or dtype not in DTYPES:
            raise ValueError(
                f"{operation!r} in {dtype!r}: one of {', '.join(SHOWN)} in one of {', '.join(DTYPES)} expected"
            )
        DEVICES[device]  # refuses a name that it does not know
        self.rows = slider("rows", ROWS, rows, [f"{each:,}" for each in ROWS])
        self.columns = slider("columns", COLUMNS, columns, [f"{each:,}" for each in COLUMNS])
        self.operation = widgets.Dropdown(options=list(SHOWN), value=operation, description="operation")
        self.dtype = widgets.Dropdown(options=list(DTYPES), value=dtype, description="dtype")
        self.device = widgets.Dropdown(options=list(DEVICES), value=device, description="GPU")
        super().__init__(_TrafficStage(), [self.rows, self.columns], [[self.operation, self.dtype, self.device]])

    def _scene(self, rows: int, columns: int) -> Scene:
        operation, dtype, device = self.operation.value, self.dtype.value, DEVICES[self.device.value]
        versions = OPERATIONS[operation](rows, columns, ITEMSIZE[dtype])
        memory = si(device.memory_bandwidth, "B/s")
        return operation_scene(
            versions, device, f"{device.name} ({memory}), {operation} in {dtype}, {rows:,} x {columns:,}"
        )

    @property
    def text(self) -> str:
        return self._scene(self.rows.value, self.columns.value).text

    def chart(self) -> Chart:
        return operation_chart(self._scene(self.rows.value, self.columns.value))

    def _still_and_data(self) -> tuple[str, dict]:
        still, opening = _still()
        scenes = (self._scene(rows, columns) for rows in ROWS for columns in COLUMNS)
        frames = [{"svg": svg(opening, each), "text": each.text, "table": ""} for each in scenes]
        return still, {"frames": frames, "columns": len(COLUMNS)}


@functools.cache
def _still():
    figure, _ = operation_axes()
    return still_svg(figure), svg_opening(figure)


def traffic_explorer(
    operation: str = "add+GELU", dtype: str = "fp32", device: str = "H200", rows: int = 1024, columns: int = 1000
) -> TrafficExplorer:
    """The live traffic of an operation; the last expression of a cell shows it.

    Raises:
        ValueError: an operation, dtype or device that is not offered, or a value that is not on its slider.
    """
    return TrafficExplorer(operation, dtype, device, rows, columns)
