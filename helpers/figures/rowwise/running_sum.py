"""Online softmax block by block: scores under their running max, and the exponentials that shrink when it rises."""

import math
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.style import FUSED, LIMIT, STYLE, TITLE_SIZE

BLOCK = 4  # columns
COLUMNS = 24
READ_BLOCKS = tuple(range(1, COLUMNS // BLOCK + 1))
SLOPES = (-1.0, -0.5, 0.0, 0.5, 1.0)  # rise of the scores over eight columns
BUMPS = (0.1, 0.6, 0.0, 0.4, 0.3, 0.2, 0.7, 0.1)
TITLE_FROM_TOP = 14  # points
SCORE_LIMITS = (-3.3, 3.9)
DOT = 3.2  # radius, points
WIDTH = 0.7  # of a column's bar


@dataclass(frozen=True)
class RunningSum:
    """Maximum and sum after a number of blocks of a row whose scores rise by `slope` over eight columns."""

    slope: float
    blocks: int

    @property
    def scores(self) -> list[float]:
        """The scores of all COLUMNS, read or not."""
        return [self.slope * column / 8 + BUMPS[column % len(BUMPS)] for column in range(COLUMNS)]

    @property
    def before(self) -> "RunningSum | None":
        """The state one block earlier; None at the first block."""
        return RunningSum(self.slope, self.blocks - 1) if self.blocks > 1 else None

    @property
    def maximum(self) -> float:
        """The running max."""
        return max(self.scores[: self.blocks * BLOCK])

    @property
    def heights(self) -> list[float]:
        """exp(score - running max) of each column that was read."""
        return [math.exp(score - self.maximum) for score in self.scores[: self.blocks * BLOCK]]

    @property
    def total(self) -> float:
        """The running sum."""
        return sum(self.heights)

    @property
    def factor(self) -> float:
        """Return the factor on the sum of earlier blocks: 1 if the maximum stays, 0 at the first block."""
        return math.exp(self.before.maximum - self.maximum) if self.before else 0.0

    @property
    def finding(self) -> str:
        """The chart's title."""
        if self.before is None:
            return f"Block 1: {BLOCK} columns under the running max {self.maximum:.2f}"
        if self.factor < 1:
            return (
                f"Block {self.blocks}: the max rises to {self.maximum:.2f}, and all earlier columns "
                f"shrink to {self.factor:.2f} of their height"
            )
        return f"Block {self.blocks}: the max stays at {self.maximum:.2f}, and the earlier columns keep their height"

    @property
    def text(self) -> str:
        """The line under the chart: how the running sum came about."""
        read = f"{self.blocks} of {COLUMNS // BLOCK} blocks, slope {self.slope:g}"
        after = f"{self.finding}. After {read}, the running sum is"
        if self.before is None:
            return f"{after} {self.total:.2f}."
        own = self.total - self.before.total * self.factor
        return f"{after} {self.before.total:.2f} x {self.factor:.2f} + {own:.2f} = {self.total:.2f}."


def running_sum_axes() -> tuple[Figure, Axes, Axes]:
    """Draw the still part: a panel for the scores, and one for their exponentials."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 4.2))
        height = figure.bbox.height
        below = figure.add_axes((0.1, 34 / height, 0.88, 118 / height))
        above = figure.add_axes((0.1, 172 / height, 0.88, 98 / height))
        for axes in (above, below):
            axes.set_xlim(-0.5, COLUMNS - 0.5)
            axes.set_xticks([block * BLOCK - 0.5 for block in range(COLUMNS // BLOCK + 1)], [])
        above.set(ylim=SCORE_LIMITS, yticks=(-3, 0, 3), ylabel="score")
        below.set(ylim=(0, 1.05), yticks=(0, 0.5, 1), ylabel="exp(score - max)")
        middles = [(block - 0.5) * BLOCK - 0.5 for block in READ_BLOCKS]
        below.set_xticks(middles, [f"block {block}" for block in READ_BLOCKS], minor=True)
        below.tick_params(axis="x", which="minor", length=0, pad=6)
        below.set_xlabel("dashed: before this block was read")
    return figure, above, below


def running_sum_chart(state: RunningSum) -> Chart:
    """One state of the loop over the row."""
    figure, above, below = running_sum_axes()
    read, columns = state.blocks * BLOCK, range(COLUMNS)
    with rc_context(STYLE):
        left, height = above.bbox.x0 / figure.bbox.width, figure.bbox.height
        figure.text(left, 1 - TITLE_FROM_TOP / height, state.finding, size=TITLE_SIZE, weight="bold")
        above.plot(columns[read:], state.scores[read:], "o", ms=2 * DOT, mfc="none", mec=LIMIT)
        above.plot(columns[:read], state.scores[:read], "o", ms=2 * DOT, color=FUSED)
        above.plot((-0.5, read - 0.5), (state.maximum, state.maximum), color=FUSED, linewidth=2)
        below.bar(columns[:read], state.heights, WIDTH, color=FUSED)
        if state.before:
            old = state.before
            above.plot((-0.5, read - BLOCK - 0.5), (old.maximum, old.maximum), "--", color=LIMIT, linewidth=1)
            below.bar(columns[: len(old.heights)], old.heights, WIDTH, fill=False, ec=LIMIT, ls="--")
    return Chart(figure, state.text)


class RunningSumExplorer(Explorer):
    """The columns of online softmax under a rising maximum, with sliders for the blocks read and the scores' slope.

    Its controls are widgets, `blocks` and `slope`, and the string `text` describes the picture. Displayed where no
    kernel runs, it is a still picture and that text.

    Raises:
        ValueError: a value that is not on its slider.
    """

    def __init__(self, blocks: int = 1, slope: float = 1.0):
        self.blocks = slider("blocks read", READ_BLOCKS, blocks)
        self.slope = slider("slope", SLOPES, slope, [f"{each:g}" for each in SLOPES])
        super().__init__(FramePlayer(), [self.blocks, self.slope], [])

    @property
    def _state(self) -> RunningSum:
        return RunningSum(self.slope.value, self.blocks.value)

    @property
    def text(self) -> str:
        return self._state.text

    def chart(self) -> Chart:
        return running_sum_chart(self._state)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, above, below = running_sum_axes()
        states = [RunningSum(slope, blocks) for blocks in READ_BLOCKS for slope in SLOPES]
        frames = [{"svg": _moving(each, figure, above, below), "text": each.text, "table": ""} for each in states]
        return still_svg(figure), {"frames": frames, "columns": len(SLOPES)}


def _moving(state: RunningSum, figure: Figure, above: Axes, below: Axes) -> str:
    page, read, old = figure.bbox.height, state.blocks * BLOCK, state.before

    def at(axes: Axes, x: float, y: float) -> tuple[float, float]:
        across, up = axes.transData.transform((x, y))
        return across, page - up

    def lid(end: int, height: float, look: str) -> str:
        (x, y), (right, _) = at(above, -0.5, height), at(above, end - 0.5, height)
        return f'<path d="M{x:.1f} {y:.1f}H{right:.1f}" {look}/>'

    def bars(heights: list[float], look: str) -> str:
        path = ""
        for column, height in enumerate(heights):
            (x, top), (right, bottom) = at(below, column - WIDTH / 2, height), at(below, column + WIDTH / 2, 0)
            path += f"M{x:.1f} {bottom:.1f}V{top:.1f}H{right:.1f}V{bottom:.1f}Z"
        return f'<path d="{path}" {look}/>'

    parts = [svg_title(state.finding, above.bbox.x0, TITLE_FROM_TOP)]
    for column, score in enumerate(state.scores):
        x, y = at(above, column, score)
        look = f'fill="{FUSED}"' if column < read else f'fill="none" stroke="{LIMIT}"'
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{DOT}" {look}/>')
    parts.append(lid(read, state.maximum, f'stroke="{FUSED}" stroke-width="2"'))
    parts.append(bars(state.heights, f'fill="{FUSED}"'))
    if old:
        dashed = f'fill="none" stroke="{LIMIT}" stroke-dasharray="3 2"'
        parts += [lid(read - BLOCK, old.maximum, dashed), bars(old.heights, dashed)]
    return f"{svg_opening(figure)}{''.join(parts)}</svg>"
