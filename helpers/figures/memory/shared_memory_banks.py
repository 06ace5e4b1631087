"""Shared memory's banks: the words that a warp reads from a tile, and the wavefronts it takes; live."""

import ipywidgets as widgets
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.figures.memory.warp_load import LANES
from helpers.style import FUSED, SMALL_SIZE, STYLE, TITLE_SIZE, WRONG

BANKS = 32  # of 4 bytes: CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later
WIDTHS = (8, 16, 24, *range(28, 41), 48, 64)  # words a row of the tile
PLACES = tuple(range(8))
# What a warp reads of `tile[32][WIDTH]` -> the word of each lane.
READS = {
    "a column: tile[lane][k]": lambda lane, k, width: lane * width + k,
    "a row: tile[k][lane]": lambda lane, k, width: k * width + lane,
    "one word: tile[k][k]": lambda lane, k, width: k * width + k,
}
LINE = 32  # the most wavefronts that a read can take


def stacks(read: str, width: int, k: int) -> list[list[list[int]]]:
    """For each bank, its words in order of the lanes; each word as the lanes that ask for it."""
    banks = [{} for _ in range(BANKS)]
    for lane in range(LANES):
        word = READS[read](lane, k, width)
        banks[word % BANKS].setdefault(word, []).append(lane)
    return [list(words.values()) for words in banks]


def wavefronts_of(read: str, width: int, k: int) -> int:
    """A bank gives one word a wavefront, to any number of lanes: as many wavefronts as the most words of a bank."""
    return max(map(len, stacks(read, width, k)))


def _axes() -> tuple[Figure, Axes]:
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 5.4))
        height = figure.bbox.height
        axes = figure.add_axes((0.07, 34 / height, 0.92, 1 - 76 / height))
        axes.set(xlim=(0, BANKS), ylim=(0, LINE), yticks=range(0, LINE + 1, 4))
        axes.set_xticks([bank + 0.5 for bank in range(0, BANKS, 2)], range(0, BANKS, 2))
        axes.set_xlabel("bank (4 bytes each, by turns)")
        axes.set_ylabel("words requested from it (each a wavefront)")
        axes.grid(axis="x", visible=False)
    return figure, axes


def _told(read: str, width: int, k: int) -> tuple[str, str]:
    found = stacks(read, width, k)
    taken, busy = wavefronts_of(read, width, k), sum(map(bool, found))
    plural = "wavefronts" if taken > 1 else "wavefront"
    title = f"{taken} {plural}: {LANES} lanes read {busy} bank{'s' * (busy > 1)}"
    return title, f"tile[32][{width}], {read} with k = {k}"


def _boxes(read: str, width: int, k: int) -> list[tuple[int, int, str]]:
    """(bank, height, lanes as text) of every word."""
    return [
        (bank, level, str(lanes[0]) if len(lanes) == 1 else "all")
        for bank, words in enumerate(stacks(read, width, k))
        for level, lanes in enumerate(words)
    ]


class BanksExplorer(Explorer):
    """The words that a warp reads of a tile in shared memory, stacked on their banks.

    Its controls are widgets: the sliders `width` (words per row) and `k`, and the choice `read`; `text` describes the
    view. Without a kernel it displays as a still image with that text.

    Raises:
        ValueError: a value that is not on the sliders.
    """

    def __init__(self, width: int = 32, k: int = 0):
        self.read = widgets.Dropdown(
            options=list(READS),
            value=next(iter(READS)),
            description="a warp reads",
            style={"description_width": "112px"},  # as the sliders'
        )
        self.width = slider("words a row", WIDTHS, width)
        self.k = slider("k", PLACES, k)
        super().__init__(FramePlayer(), [self.width, self.k], [[self.read]])

    def _at(self) -> tuple[str, int, int]:
        return self.read.value, self.width.value, self.k.value

    @property
    def text(self) -> str:
        return ". ".join(_told(*self._at()))

    def chart(self) -> Chart:
        title, name = _told(*self._at())
        figure, axes = _axes()
        with rc_context(STYLE):
            height = figure.bbox.height
            figure.text(0.02, 1 - 15 / height, title, size=TITLE_SIZE, weight="bold", va="center_baseline")
            figure.text(0.02, 1 - 30 / height, name, va="center_baseline")
            for bank, level, lanes in _boxes(*self._at()):
                colour = WRONG if level else FUSED
                axes.broken_barh([(bank + 0.06, 0.88)], (level + 0.08, 0.84), facecolor=colour)
                axes.text(bank + 0.5, level + 0.5, lanes, ha="center", va="center", color="white", size=SMALL_SIZE)
        return Chart(figure, f"{title}. {name}")

    def _still_and_data(self) -> tuple[str, dict]:
        figure, axes = _axes()
        frames = [_frame(figure, axes, self.read.value, width, k) for width in WIDTHS for k in PLACES]
        return still_svg(figure), {"frames": frames, "columns": len(PLACES)}


def _frame(figure: Figure, axes: Axes, read: str, width: int, k: int) -> dict[str, str]:
    title, name = _told(read, width, k)
    (left, right), height = (axes.bbox.x0, axes.bbox.x1), figure.bbox.height
    bottom, across, up = height - axes.bbox.y0, (right - left) / BANKS, axes.bbox.height / LINE
    drawn, numbers = {FUSED: "", WRONG: ""}, ""
    for bank, level, lanes in _boxes(read, width, k):
        x, y = left + (bank + 0.06) * across, bottom - (level + 0.92) * up
        drawn[WRONG if level else FUSED] += (
            f"M{x:.1f} {y:.1f}h{0.88 * across:.1f}v{0.84 * up:.1f}h{-0.88 * across:.1f}z"
        )
        numbers += f'<text x="{left + (bank + 0.5) * across:.1f}" y="{y + 0.66 * up:.1f}">{lanes}</text>'
    edge = 0.02 * figure.bbox.width
    svg = (
        svg_opening(figure)
        + svg_title(title, edge, 15)
        + f'<text x="{edge:.1f}" y="30">{name}</text>'
        + "".join(f'<path d="{path}" fill="{colour}"/>' for colour, path in drawn.items())
        + f'<g class="fusion-fine" fill="white" font-size="{SMALL_SIZE}" text-anchor="middle">{numbers}</g></svg>'
    )
    return {"svg": svg, "text": f"{title}. {name}", "table": "", "quiet": True}
