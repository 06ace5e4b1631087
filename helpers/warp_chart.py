"""What one load of a warp fetches: its lanes' bytes and the 32-byte sectors around them, as a picture.

Memory is read in whole sectors, so a lane that wants 4 bytes of a sector pays for 32 of them unless its neighbours want
the rest. Source: the memory tables of NVIDIA's Nsight Compute documentation.
"""

from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from helpers.charts import LIMIT, STYLE, TEXT, TITLE_SIZE, Chart

LANES = 32
SECTOR = 32  # bytes
SHOWN = 16 * SECTOR  # bytes of memory in the picture: where all 32 lanes load 16 bytes each
HALF = 0.3  # of a row's height


@dataclass(frozen=True)
class WarpLoad:
    """A load in which lane k of a warp takes `width` bytes from byte `offset + k * step` of an aligned tensor on."""

    step: int
    width: int
    offset: int = 0

    def __post_init__(self):
        if self.step < 0 or self.width < 1 or self.offset < 0:
            raise ValueError(f"{self}: a width of at least 1 byte, and no negative step or offset, expected")

    @property
    def starts(self) -> list[int]:
        """The first byte of each lane."""
        return [self.offset + lane * self.step for lane in range(LANES)]

    @property
    def sectors(self) -> list[int]:
        """The numbers of the sectors fetched, in order."""
        return sorted({sector for start in self.starts for sector in self._sectors(start)})

    def _sectors(self, start: int) -> range:
        return range(start // SECTOR, (start + self.width - 1) // SECTOR + 1)

    @property
    def wanted(self) -> int:
        """Distinct bytes that the lanes asked for."""
        return len({start + byte for start in self.starts for byte in range(self.width)})

    def __str__(self):
        fetched = SECTOR * len(self.sectors)
        return f"{len(self.sectors)} sectors, {self.wanted} of {fetched} bytes used"


def warp_axes(rows: int) -> tuple[Figure, Axes]:
    """What stays still: memory from left to right, a line at each sector."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 0.95 + 0.6 * rows))
        height = figure.bbox.height
        axes = figure.add_axes((0.03, 34 / height, 0.94, 1 - 62 / height))
        axes.set(xlim=(0, SHOWN), ylim=(rows - 0.4, -0.7), yticks=())
        axes.set_xlabel("memory from the tensor's first byte on (bytes; a line a sector)")
        axes.xaxis.set_major_locator(MultipleLocator(SECTOR))
        axes.spines["left"].set_visible(False)
    return figure, axes


def blocks(load: WarpLoad) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """What is drawn of a load, as (first byte, bytes): the sectors fetched, and what each lane wants."""
    fetched = [(sector * SECTOR, SECTOR) for sector in load.sectors if sector * SECTOR < SHOWN]
    return fetched, [(start, load.width) for start in load.starts if start < SHOWN]


def warp_chart(loads: dict[str, WarpLoad], title: str) -> Chart:
    """One row a load: a box is a sector fetched, what is filled are the bytes that a lane wants.

    Args:
        loads: what to call each -> the load.
        title: the finding that the chart shows.
    """
    figure, axes = warp_axes(len(loads))
    with rc_context(STYLE):
        height = figure.bbox.height
        figure.text(0.03, 1 - 15 / height, title, size=TITLE_SIZE, weight="bold", va="center_baseline")
        for row, (name, load) in enumerate(loads.items()):
            fetched, wanted = blocks(load)
            axes.broken_barh(fetched, (row - HALF, 2 * HALF), facecolor="none", edgecolor=LIMIT, linewidth=1)
            inner = [(start + 0.5, width - 1) for start, width in wanted]
            axes.broken_barh(inner, (row - HALF / 2, HALF), facecolor=LIMIT)
            axes.text(0, row - HALF - 0.06, f"{name}: {load}", color=TEXT, va="bottom")
    return Chart(figure, f"{title}. " + "; ".join(f"{name}: {load}" for name, load in loads.items()))
