"""Registers of one SM as the hardware gives them out: whole units per warp, from the quarter in which the warp is."""

from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.instruments.devices import DEVICES
from helpers.instruments.occupancy_calculator import REGISTERS, SUB_PARTITIONS, WARP, Occupancy, occupancy
from helpers.style import FUSED, LIMIT, SKY_BLUE, STYLE, TITLE_SIZE, WRONG

DEVICE = "H100"
QUARTER = REGISTERS // SUB_PARTITIONS
THREADS = (32, 64, 96, 128, 160, 192, 256, 384, 512)
REGISTER_COUNTS = (24, 32, 40, 48, 56, 64, 72, 80, 96, 128, 168, 255)
BLOCKS = (FUSED, SKY_BLUE)  # two colours by turns, so that neighbours differ
TITLE_FROM_TOP = 14  # points
HALF = 0.36  # of a bar's height


@dataclass(frozen=True)
class RegisterQuarters:
    """The blocks of one kernel on an SM of DEVICE, and where their warps' registers are."""

    threads: int  # per block
    registers: int  # per thread

    @property
    def found(self) -> Occupancy:
        """The blocks that fit, by the occupancy calculator."""
        return occupancy(DEVICES[DEVICE].compute_capability, threads=self.threads, registers=self.registers)

    @property
    def of_a_warp(self) -> int:
        """The registers that a warp gets: whole units."""
        return self.found.allocated["registers"][0] // self.warps

    @property
    def warps(self) -> int:
        """Warps per block."""
        return self.threads // WARP

    @property
    def quarters(self) -> list[list[int]]:
        """For each quarter, the block of each warp in it; warps take the quarters in turn."""
        blocks = [warp // self.warps for warp in range(self.found.warps)]
        return [blocks[quarter::SUB_PARTITIONS] for quarter in range(SUB_PARTITIONS)]

    @property
    def left(self) -> list[int]:
        """For each quarter, the registers that no warp has."""
        return [QUARTER - len(blocks) * self.of_a_warp for blocks in self.quarters]

    @property
    def finding(self) -> str:
        """The chart's title."""
        blocks = self.found.blocks
        if not blocks:
            return f"No block fits: it needs {self.warps * self.of_a_warp:,} registers, and the SM has {REGISTERS:,}"
        fit = f"{blocks} blocks fit" if blocks > 1 else "1 block fits"
        if "registers" not in self.found.limiters:
            return f"{fit}, limited by {' and '.join(self.found.limiters)}"
        if sum(self.left) >= self.warps * self.of_a_warp:
            return f"{fit}: the leftovers add up to one more, but are spread over four quarters"
        return f"{fit}, limited by registers"

    @property
    def text(self) -> str:
        """A description of the chart."""
        return f"{self.finding}. {self.line} Left per quarter: {', '.join(f'{each:,}' for each in self.left)}."

    @property
    def line(self) -> str:
        """The part of the description that the chart doesn't show."""
        per_block = self.warps * self.of_a_warp
        return (
            f"{self.threads} threads with {self.registers} registers: a warp gets {self.of_a_warp:,}, "
            f"a block {per_block:,}; {REGISTERS:,} / {per_block:,} = {REGISTERS / per_block:.2f}."
        )


def quarters_axes() -> tuple[Figure, Axes]:
    """Draw the still part: a frame per quarter."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 2.7))
        height = figure.bbox.height
        axes = figure.add_axes((0.11, 34 / height, 0.84, 1 - 66 / height))
        axes.set(
            xlim=(0, QUARTER),
            ylim=(SUB_PARTITIONS - 0.5, -0.5),
            xlabel="registers of a quarter (a box per warp, neighbouring blocks in two colours; dashed: left over)",
        )
        axes.set_yticks(range(SUB_PARTITIONS), [f"quarter {quarter + 1}" for quarter in range(SUB_PARTITIONS)])
        axes.set_xticks(range(0, QUARTER + 1, QUARTER // 4), [f"{x:,}" for x in range(0, QUARTER + 1, QUARTER // 4)])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        for quarter in range(SUB_PARTITIONS):
            axes.broken_barh([(0, QUARTER)], (quarter - HALF, 2 * HALF), facecolor="none", edgecolor=LIMIT)
    return figure, axes


def quarters_chart(state: RegisterQuarters) -> Chart:
    """The four quarters of an SM, a box per warp, neighbouring blocks in two colours, leftovers dashed."""
    figure, axes = quarters_axes()
    with rc_context(STYLE):
        edge, height = axes.bbox.x0 / figure.bbox.width, figure.bbox.height
        figure.text(edge, 1 - TITLE_FROM_TOP / height, state.finding, size=TITLE_SIZE, weight="bold")
        for quarter, (blocks, left) in enumerate(zip(state.quarters, state.left, strict=True)):
            for place, block in enumerate(blocks):
                box = [(place * state.of_a_warp, state.of_a_warp)]
                axes.broken_barh(box, (quarter - HALF, 2 * HALF), facecolor=BLOCKS[block % 2], ec=LIMIT, lw=0.5)
            if left:
                axes.broken_barh(
                    [(QUARTER - left, left)], (quarter - 0.8 * HALF, 1.6 * HALF), facecolor="none", ec=WRONG, ls="--"
                )
    return Chart(figure, state.text)


class RegisterQuartersExplorer(Explorer):
    """The registers of an SM's four quarters, with sliders for threads per block and registers per thread.

    Its controls are widgets, `threads` and `registers`, and the string `text` describes the picture. Displayed where no
    kernel runs, it is a still picture and that text.

    Raises:
        ValueError: a value that is not on its slider.
    """

    def __init__(self, threads: int = 128, registers: int = 32):
        self.threads = slider("threads", THREADS, threads)
        self.registers = slider("registers", REGISTER_COUNTS, registers)
        super().__init__(FramePlayer(), [self.threads, self.registers], [])

    @property
    def _state(self) -> RegisterQuarters:
        return RegisterQuarters(self.threads.value, self.registers.value)

    @property
    def text(self) -> str:
        return self._state.text

    def chart(self) -> Chart:
        return quarters_chart(self._state)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, axes = quarters_axes()
        states = [RegisterQuarters(threads, registers) for threads in THREADS for registers in REGISTER_COUNTS]
        frames = [
            {"svg": _moving(each, figure, axes), "text": each.text, "line": each.line, "table": ""} for each in states
        ]
        return still_svg(figure), {"frames": frames, "columns": len(REGISTER_COUNTS)}


def _moving(state: RegisterQuarters, figure: Figure, axes: Axes) -> str:
    (left, _), (right, _) = axes.transData.transform([(0, 0), (QUARTER, 0)])
    across = (right - left) / QUARTER
    paths, empty = dict.fromkeys(BLOCKS, ""), ""

    def box(quarter: int, start: int, width: int, half: float) -> str:
        top, bottom = (figure.bbox.height - axes.transData.transform((0, quarter + side))[1] for side in (-half, half))
        return f"M{left + start * across:.1f} {top:.1f}h{width * across:.1f}V{bottom:.1f}h{-width * across:.1f}z"

    for quarter, (blocks, unused) in enumerate(zip(state.quarters, state.left, strict=True)):
        for place, block in enumerate(blocks):
            paths[BLOCKS[block % 2]] += box(quarter, place * state.of_a_warp, state.of_a_warp, HALF)
        if unused:
            empty += box(quarter, QUARTER - unused, unused, 0.8 * HALF)
    drawn = "".join(f'<path d="{path}" fill="{colour}" stroke="{LIMIT}"/>' for colour, path in paths.items())
    dashed = f'<path d="{empty}" fill="none" stroke="{WRONG}" stroke-dasharray="4 2"/>'
    title = svg_title(state.finding, axes.bbox.x0, TITLE_FROM_TOP)
    return f'{svg_opening(figure)}{title}<g stroke-width="0.5">{drawn}</g>{dashed}</svg>'
