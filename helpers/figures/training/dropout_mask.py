"""Random masks as a figure: the counter and the program that draw each element's number, and the elements kept."""

from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.figures.frame.chart import Chart
from helpers.style import LIMIT, STYLE, TEXT, TITLE_SIZE, WRONG

CELL = 30  # points: the height of an element's box
HEAD, FOOT = 50, 26


@dataclass(frozen=True)
class Draw:
    """A kernel's mask: for each element of (rows, columns) its counter, its program, and whether it is kept.

    Three arrays of one shape: integers, integers and bool.
    """

    counters: np.ndarray
    programs: np.ndarray
    kept: np.ndarray

    def __post_init__(self):
        shapes = {array.shape for array in (self.counters, self.programs, self.kept)}
        if len(shapes) != 1 or self.kept.ndim != 2:
            raise ValueError(
                f"counters, programs and kept have shapes {sorted(shapes)}: they must be one (rows, columns)"
            )


def mask_chart(draws: dict[str, Draw], title: str) -> Chart:
    """Draw one panel per kernel, side by side; elements on which a mask differs from the first stand out.

    Args:
        draws: name -> the mask; all of one shape.
        title: the finding that the chart shows.

    Raises:
        ValueError: none, or masks of different shapes.
    """
    shapes = {draw.kept.shape for draw in draws.values()}
    if len(shapes) != 1:
        raise ValueError(f"masks of shapes {sorted(shapes)} cannot be compared: pass masks of one shape")
    ((rows, columns),) = shapes
    first, told = next(iter(draws.values())), []
    with rc_context(STYLE):
        figure = Figure(figsize=(8, (HEAD + FOOT + CELL * rows) / 72))
        width, height = figure.bbox.size
        figure.text(12 / width, 1 - 16 / height, title, size=TITLE_SIZE, weight="bold", va="center_baseline")
        key = "in each box: the counter; filled: kept; thick lines: a program's elements"
        if any((draw.kept != first.kept).any() for draw in draws.values()):
            key += "; orange-red edge: differs from the first mask"
        figure.text(12 / width, 8 / height, key)
        step = (width - 12) / len(draws)
        for number, (name, draw) in enumerate(draws.items()):
            left = 12 + number * step
            axes = figure.add_axes((left / width, FOOT / height, (step - 14) / width, CELL * rows / height))
            axes.set(xlim=(-0.03, columns + 0.03), ylim=(rows + 0.03, -0.03))
            axes.axis("off")
            figure.text(left / width, 1 - (HEAD - 8) / height, name)
            wrong = draw.kept != first.kept
            for (row, column), kept in np.ndenumerate(draw.kept):
                colour = WRONG if wrong[row, column] else LIMIT
                axes.add_patch(_box(column, row, colour, kept, wrong[row, column]))
                ink = "white" if kept else TEXT
                axes.text(column + 0.5, row + 0.5, f"{draw.counters[row, column]}", ha="center", va="center", color=ink)
            for x, y in _borders(draw.programs):
                axes.plot(x, y, color=TEXT, linewidth=2, solid_capstyle="butt", clip_on=False)
            told.append(f"{name}: {_said(draw, first)}")
    return Chart(figure, f"{title}. " + "; ".join(told))


def _box(column: int, row: int, colour: str, kept: bool, wrong: bool) -> Rectangle:
    fill = LIMIT if kept else "none"
    return Rectangle((column + 0.1, row + 0.12), 0.8, 0.76, facecolor=fill, edgecolor=colour, lw=2.5 if wrong else 1)


def _borders(programs: np.ndarray):
    """Lines (x, y) between elements of different programs, and around the whole."""
    outside = np.pad(programs, 1, constant_values=-1)
    for row, column in np.argwhere(outside[1:-1, 1:] != outside[1:-1, :-1]):
        yield (column, column), (row, row + 1)
    for row, column in np.argwhere(outside[1:, 1:-1] != outside[:-1, 1:-1]):
        yield (column, column + 1), (row, row)


def _said(draw: Draw, first: Draw) -> str:
    dropped = f"{np.count_nonzero(~draw.kept)} of {draw.kept.size} dropped"
    differ = np.count_nonzero(draw.kept != first.kept)
    return f"{dropped}, {differ} unlike the first" if differ else dropped
