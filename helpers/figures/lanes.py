"""A row in the lanes of a block as a picture: what each lane holds, stage after stage, padding lanes marked."""

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.figures.style import LIMIT, STYLE, TITLE_SIZE, WRONG, Chart


def lanes_chart(stages: dict[str, np.ndarray], columns: int, title: str) -> Chart:
    """A line of boxes a stage, in the order given; a padding lane that holds something else than 0 stands out.

    Args:
        stages: what was done -> the value of every lane, (block,).
        columns: lanes that hold the row; those from there on are padding.
        title: the finding that the chart shows.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 0.9 + 0.62 * len(stages)))
        axes = figure.add_axes((0.2, 0.02, 0.79, 0.98 - 50 / figure.bbox.height))
        block = max(len(values) for values in stages.values())
        axes.set(xlim=(0, block), ylim=(len(stages), 0))
        axes.axis("off")
        figure.text(0.02, 1 - 14 / figure.bbox.height, title, size=TITLE_SIZE, weight="bold")
        axes.text(columns / 2, -0.12, "the row", ha="center")
        axes.text((columns + block) / 2, -0.12, "padding lanes", ha="center")
        for stage, (name, values) in enumerate(stages.items()):
            axes.text(-0.2, stage + 0.45, name, ha="right", va="center")
            for lane, value in enumerate(values):
                wrong = lane >= columns and value != 0
                colour, line = (WRONG, 2) if wrong else (LIMIT, 1)
                style = "-" if lane < columns or wrong else ":"
                axes.add_patch(_box(lane, stage, colour, line, style))
                axes.text(lane + 0.5, stage + 0.45, f"{value:.3g}", ha="center", va="center")
    told = "; ".join(f"{name}: {', '.join(f'{value:.3g}' for value in values)}" for name, values in stages.items())
    return Chart(figure, f"{title}. The last {block - columns} lanes are padding. {told}.")


def _box(lane: int, stage: int, colour: str, width: float, style: str) -> Rectangle:
    return Rectangle((lane + 0.06, stage + 0.15), 0.88, 0.6, fill=False, edgecolor=colour, lw=width, ls=style)
