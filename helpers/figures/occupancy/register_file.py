"""The register file of one SM as a figure: how many blocks it holds at several register counts per thread."""

from collections.abc import Iterable

from matplotlib import rc_context
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart
from helpers.instruments.occupancy_calculator import REGISTER_UNIT, REGISTERS, WARP, occupancy
from helpers.style import FUSED, LIMIT, STYLE, TEXT, TITLE_SIZE

ROW = 0.5  # inches


def register_file_chart(
    compute_capability: tuple[int, int], threads: int, registers: Iterable[int], title: str
) -> Chart:
    """Draw one bar per register count: the file, a box for each block that fits, and the rest.

    Args:
        compute_capability: the SM's, such as (9, 0).
        threads: per block.
        registers: register counts per thread, one bar each, from the top.
        title: the finding that the chart shows.

    Raises:
        ValueError: as of helpers.instruments.occupancy_calculator.
    """
    rows = [(count, occupancy(compute_capability, threads=threads, registers=count)) for count in registers]
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 0.95 + ROW * len(rows)))
        height = figure.bbox.height
        axes = figure.add_axes((0.13, 36 / height, 0.69, 1 - 64 / height))
        axes.set(xlim=(0, REGISTERS), ylim=(len(rows) - 0.5, -0.5))
        axes.set_xlabel("registers of one SM")
        axes.set_xticks([REGISTERS * quarter // 4 for quarter in range(5)])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_yticks(range(len(rows)), [f"{count} per thread" for count, _ in rows])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False)
        figure.text(axes.bbox.x0 / figure.bbox.width, 1 - 14 / height, title, size=TITLE_SIZE, weight="bold")
        for row, (count, found) in enumerate(rows):
            of_block = -(-count * WARP // REGISTER_UNIT) * REGISTER_UNIT * -(-threads // WARP)
            axes.barh(row, REGISTERS, height=0.6, color="none", edgecolor=LIMIT, ls=":")
            for block in range(found.blocks):
                axes.barh(
                    row, of_block, left=block * of_block, height=0.6, color=FUSED, alpha=0.35, edgecolor=TEXT, lw=0.8
                )
            blocks = f"{found.blocks} block{'s' * (found.blocks != 1)}, {found.warps} warps"
            axes.text(REGISTERS * 1.015, row, blocks, va="center")
    held = "; ".join(f"{count} registers per thread, {found.blocks} blocks" for count, found in rows)
    return Chart(figure, f"{title}. Blocks of {threads} threads on an SM: {held}.")
