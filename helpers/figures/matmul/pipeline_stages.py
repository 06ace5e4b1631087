"""Stages of a loop that loads and multiplies, drawn with one, two and three stages: which step waits for which."""

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from helpers.figures.frame.chart import Chart, plain
from helpers.style import FUSED, LIMIT, SMALL_SIZE, STYLE, TEXT, TITLE_SIZE

LANE = 0.8  # height of a bar
APART = 0.9  # between two numbers of stages


def pipeline(steps: int, stages: int, load: float, multiply: float) -> list[tuple[float, float]]:
    """(start of the load, start of the product) of each step.

    A load starts once its buffer, one of `stages`, is free; a product once its load has arrived and the product before
    is done. Loads do not slow each other down. Times in any one unit.
    """
    found = []
    for step in range(steps):
        loads = found[step - stages][1] + multiply if step >= stages else 0.0
        multiplies = max(loads + load, found[-1][1] + multiply if found else 0.0)
        found.append((loads, multiplies))
    return found


def stages_chart(
    counts: tuple[int, ...] = (1, 2, 3), steps: int = 6, load: float = 2.0, multiply: float = 1.0
) -> Chart:
    """Loads (open) and products (filled) of `steps` steps over time, for several numbers of stages.

    Args:
        load, multiply: how long one takes.
    """
    ends = {stages: pipeline(steps, stages, load, multiply)[-1][1] + multiply for stages in counts}
    first, last = counts[0], counts[-1]
    title = f"{last} stages take {plain(ends[last])} units of time, {first} takes {plain(ends[first])}"
    with rc_context(STYLE):
        lanes = sum(counts) + len(counts) * (1 + APART)
        figure = Figure(figsize=(8, 0.9 + 0.24 * lanes))
        width, height = figure.bbox.size
        axes = figure.add_axes((0.12, 34 / height, 0.86, 1 - 66 / height))
        axes.set(xlim=(0, max(ends.values()) * 1.02), ylim=(lanes - APART, -0.3))
        axes.set_xlabel(f"time (a load takes {plain(load)}, a product {plain(multiply)})")
        axes.set_yticks([])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", visible=False)
        figure.text(12 / width, 1 - 16 / height, title, size=TITLE_SIZE, weight="bold")
        top = 0.0
        for stages in counts:
            name = f"{stages} stage{'s' * (stages != 1)}"
            axes.text(
                -0.01, top + (stages + LANE) / 2, name, ha="right", va="center", transform=axes.get_yaxis_transform()
            )
            for step, (loads, multiplies) in enumerate(pipeline(steps, stages, load, multiply)):
                lane = top + step % stages
                axes.broken_barh([(loads, load)], (lane, LANE), facecolor="none", edgecolor=LIMIT)
                axes.text(
                    loads + load / 2,
                    lane + LANE / 2,
                    f"load {step + 1}",
                    ha="center",
                    va="center",
                    color=TEXT,
                    size=SMALL_SIZE,
                )
                axes.broken_barh([(multiplies, multiply)], (top + stages, LANE), facecolor=FUSED, edgecolor=TEXT)
                at = multiplies + multiply / 2, top + stages + LANE / 2
                axes.text(*at, f"{step + 1}", ha="center", va="center", color="white", size=SMALL_SIZE)
            top += stages + 1 + APART
    told = "; ".join(f"{stages} stage{'s' * (stages != 1)}: {plain(end)}" for stages, end in ends.items())
    return Chart(figure, f"{title}. {steps} steps, a load takes {plain(load)}, a product {plain(multiply)}: {told}.")
