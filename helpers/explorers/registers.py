"""The live register budget: what a growing kernel needs of a GPU, compiled for real.

All sizes are compiled when a GPU is chosen, which takes some seconds; the slider then moves over what was found.
"""

import functools
from collections.abc import Callable, Iterable

import ipywidgets as widgets

from helpers.charts import FUSED, LIMIT, MARKER_SIZE, TITLE_SIZE, Chart
from helpers.devices import DEVICES
from helpers.explorers.stage import Explorer, Stage, script, slider, still_svg, svg_opening
from helpers.registers_chart import LABEL_ABOVE, TITLE_FROM_TOP, Growth, registers_axes, registers_chart
from helpers.resources import OLDEST, Resources


class _RegistersStage(Stage):
    _esm = script("registers.js")


class RegistersExplorer(Explorer):
    """Registers, spills and occupancy over the operations fused, with a slider for these and a choice of GPU.

    Its controls are widgets: `operations` and `device` (a name); what it shows is also the string `text`. Displayed
    where no kernel runs, it is a picture and that text.
    """

    def __init__(self, compiled: Callable[[int, str], Resources], sizes: tuple[int, ...], device: str, operations: int):
        gpus = [name for name, each in DEVICES.items() if (each.compute_capability or OLDEST) >= OLDEST]
        if device not in gpus:
            raise ValueError(f"{device!r} is none of the GPUs to compile for: choose from {', '.join(gpus)}")
        self._growth_on = functools.cache(lambda gpu: Growth(sizes, tuple(compiled(size, gpu) for size in sizes)))
        self.operations = slider("operations", sizes, operations)
        self.device = widgets.Dropdown(options=gpus, value=device, description="GPU")
        super().__init__(_RegistersStage(), [self.operations], [[self.device]])

    @property
    def _growth(self) -> Growth:
        return self._growth_on(self.device.value)

    @property
    def text(self) -> str:
        return self._growth.text(self.operations.value)

    def chart(self) -> Chart:
        return registers_chart(self._growth, self.operations.value)

    def _draw(self, change=None) -> None:
        sizes = len(self.operations.options)
        waiting = {"svg": "", "text": f"Compiling {sizes} kernels for {self.device.value} ...", "table": ""}
        self._stage.data = {"frames": [waiting] * sizes}
        super()._draw(change)

    def _still_and_data(self) -> tuple[str, dict]:
        growth = self._growth
        figure, panels = registers_axes(growth)
        return still_svg(figure), {"frames": [_frame(growth, size, figure, panels) for size in growth.sizes]}


def _frame(growth: Growth, size: int, figure, panels) -> dict[str, str]:
    height, half = figure.bbox.height, MARKER_SIZE / 2
    index = growth.sizes.index(size)
    left = next(iter(panels.values())).bbox.x0
    parts = [
        f'<text x="{left:.1f}" y="{TITLE_FROM_TOP}" font-size="{TITLE_SIZE}" font-weight="bold">'
        f"{growth.finding(size)}</text>"
    ]
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
    return {"svg": f"{svg_opening(figure)}{''.join(parts)}</svg>", "text": growth.text(size), "table": ""}


def registers_explorer(
    compiled: Callable[[int, str], Resources], sizes: Iterable[int], device: str = "H100", operations: int | None = None
) -> RegistersExplorer:
    """What a kernel needs as it fuses more; the last expression of a cell shows it.

    Args:
        compiled: (operations, name of a GPU) -> what `compile_for` gives.
        sizes: the numbers of operations on the slider, rising.
        device: a name in DEVICES that Triton compiles for.
        operations: where the slider stands; the first of `sizes` if None.

    Raises:
        ValueError: another device, or a number of operations that is not on the slider.
    """
    sizes = tuple(sizes)
    return RegistersExplorer(compiled, sizes, device, sizes[0] if operations is None else operations)
