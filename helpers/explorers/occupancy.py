"""The live occupancy: how many blocks fit on an SM as threads, registers and shared memory change.

The three sliders have nearly two million positions, but each resource allows its number of blocks by itself. These
numbers are tabulated here, by `helpers.occupancy`; the browser takes the least of them.
"""

import dataclasses
import functools

import ipywidgets as widgets

from helpers.charts import LIMIT, Chart
from helpers.devices import DEVICES
from helpers.explorers.stage import Explorer, Stage, script, slider, still_svg, svg_opening
from helpers.occupancy import LIMITS, MAX_REGISTERS, MAX_THREADS, WARP, Occupancy, limits, occupancy
from helpers.occupancy_chart import FREEING_LINE, OWN_LINE, TITLE_FROM_TOP, amount, occupancy_axes, occupancy_chart

THREADS = tuple(range(WARP, MAX_THREADS + 1, WARP))
REGISTERS = tuple(range(1, MAX_REGISTERS + 1))
SHARED_MEMORY = tuple(range(0, max(of_sm.shared_memory_per_block for of_sm in LIMITS.values()) + 1, 1024))  # bytes
NO_LIMIT = 65536  # blocks: more than any SM holds, where infinity could not be sent


@functools.cache
def _tables(compute_capability: tuple[int, int]) -> tuple[str, dict]:
    """The chart's still part, and what the browser needs besides the sliders' values: see occupancy.js."""
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
    _esm = script("occupancy.js")


class OccupancyExplorer(Explorer):
    """NVIDIA's occupancy calculator with sliders for threads, registers and shared memory, and a choice of GPU.

    Its controls are widgets: `threads` (a block), `registers` (a thread), `shared_memory` (bytes a block) and `device`
    (a name); what it shows is also the string `text`. Displayed where no kernel runs, it is a picture and that text.
    """

    def __init__(self, device: str, threads: int, registers: int, shared_memory: int):
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


def occupancy_explorer(
    device: str = "H100", threads: int = 256, registers: int = 64, shared_memory: int = 0
) -> OccupancyExplorer:
    """The live occupancy; the last expression of a cell shows it.

    Args:
        device: a name in DEVICES; the explorer can change it.
        threads: a block, a multiple of 32 up to 1024.
        registers: a thread, 1 to 255.
        shared_memory: bytes a block, static and dynamic, without what the driver reserves.

    Raises:
        ValueError: an unknown device, a value outside these ranges, or more shared memory than a block can have.
    """
    return OccupancyExplorer(device, threads, registers, shared_memory)
