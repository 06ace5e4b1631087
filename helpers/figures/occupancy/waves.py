"""Waves as a picture: a grid's blocks over time, and the slots that stay empty in the last wave."""

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from helpers.figures.frame.chart import Chart, plain
from helpers.instruments.occupancy_calculator import Waves
from helpers.style import LIMIT, STYLE, TEXT, TITLE_SIZE

DRAWN = 40  # waves with a line of their own; more would run together


def waves_chart(waves: Waves) -> Chart:
    """Blocks that run at once, wave after wave, every block taking the same time; the tail is hatched.

    Raises:
        ValueError: an empty grid, which has no wave.
    """
    if not waves.count:
        raise ValueError("an empty grid has no wave to draw: pass waves() a grid of at least 1 block")
    title = _finding(waves)
    slots = waves.blocks_per_wave
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 2.4))
        width, height = figure.bbox.size
        axes = figure.add_axes((0.085, 34 / height, 0.895, 1 - 62 / height))
        axes.set(xlim=(0, waves.count), ylim=(0, slots * 1.2))
        axes.set_xlabel("time (waves)")
        axes.set_ylabel("blocks running")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        figure.text(axes.bbox.x0 / width, 1 - 14 / height, title, size=TITLE_SIZE, weight="bold")
        bars = waves.full if waves.full <= DRAWN else 1
        for number in range(bars):
            start, length = number * waves.full / bars, waves.full / bars
            axes.bar(start, slots, length, align="edge", facecolor=(LIMIT, 0.4), edgecolor=TEXT)
        axes.bar(waves.full, waves.tail, 1, align="edge", color="none", edgecolor=TEXT, hatch="///")
        axes.axhline(slots, color=LIMIT, linewidth=1, linestyle=":")
        axes.text(waves.count, slots * 1.03, f"room for {slots:,} at once", ha="right", va="bottom", color=TEXT)
    return Chart(figure, f"{title}. {waves!r}")


def _finding(waves: Waves) -> str:
    if not waves.tail:
        return f"{waves.count} full wave{'s' * (waves.count != 1)}: every slot is used"
    idle = plain(100 * (1 - waves.efficiency))
    return f"{idle}% of the slots stay empty, all in the last of {waves.count} wave{'s' * (waves.count != 1)}"
