"""A warp's load: the sectors that 32 lanes fetch, their picture, and the live one as stride and alignment change.

A sector is what L1 asks of L2. From DRAM, L2 may fetch more at a time.
"""

from dataclasses import dataclass

import ipywidgets as widgets
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from helpers.figures.frame.chart import Chart
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.instruments.operations import ITEMSIZE
from helpers.style import LIMIT, STYLE, TEXT, TITLE_SIZE

LANES = 32
SECTOR = 32  # bytes
SHOWN = 32 * SECTOR  # bytes of memory in the picture: as many sectors as lanes
HALF = 0.3  # of a row's height


@dataclass(frozen=True)
class WarpLoad:
    """A load in which lane k of a warp takes `width` bytes from byte `offset + k * step` of an aligned tensor on."""

    step: int
    width: int
    offset: int = 0

    def __post_init__(self):
        if self.step < 0 or self.width < 1 or self.offset < 0:
            raise ValueError(f"{self}: width must be at least 1 byte, step and offset not negative")

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

    @property
    def beyond(self) -> str:
        """The note on sectors to the right of the figure; empty if it shows them all."""
        left_out = sum(sector * SECTOR >= SHOWN for sector in self.sectors)
        return f"  ({left_out} of them are to the right of this figure)" if left_out else ""

    def __str__(self):
        fetched = SECTOR * len(self.sectors)
        return f"{len(self.sectors)} sectors, {self.wanted} of {fetched} bytes used"


def warp_axes(rows: int) -> tuple[Figure, Axes]:
    """Draw the static parts: memory from left to right, a line at each sector."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 0.95 + 0.6 * rows))
        height = figure.bbox.height
        axes = figure.add_axes((0.03, 34 / height, 0.94, 1 - 62 / height))
        axes.set(xlim=(0, SHOWN), ylim=(rows - 0.4, -0.7), yticks=())
        axes.set_xlabel("memory from the tensor's first byte on (bytes; one line per sector)")
        axes.xaxis.set_major_locator(MultipleLocator(4 * SECTOR))
        axes.xaxis.set_minor_locator(MultipleLocator(SECTOR))
        axes.grid(axis="x", which="minor")
        axes.spines["left"].set_visible(False)
    return figure, axes


def blocks(load: WarpLoad) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return a load's drawing as (first byte, bytes): the sectors fetched, and the bytes each lane requests."""
    fetched = [(sector * SECTOR, SECTOR) for sector in load.sectors if sector * SECTOR < SHOWN]
    return fetched, [(start, load.width) for start in load.starts if start < SHOWN]


def warp_chart(loads: dict[str, WarpLoad], title: str) -> Chart:
    """One row per load: boxes are fetched sectors, filled parts the bytes that lanes request.

    Args:
        loads: name -> load.
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
            axes.text(0, row - HALF - 0.06, f"{name}: {load}{load.beyond}", color=TEXT, va="bottom")
    return Chart(figure, f"{title}. " + "; ".join(f"{name}: {load}" for name, load in loads.items()))


STRIDES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # elements from a lane's first to the next lane's
OFFSETS = tuple(range(17))  # elements
DTYPES = ("fp32", "fp16", "fp8")
WIDTHS = (1, 2, 4)  # neighbouring elements per lane


def warp_load(dtype: str, stride: int, offset: int, elements: int) -> WarpLoad:
    """A load of `elements` neighbours per lane; lanes begin `stride` such widths apart.

    Raises:
        ValueError: none of DTYPES.
    """
    if dtype not in DTYPES:
        raise ValueError(f"no dtype {dtype!r} here: choose from {', '.join(DTYPES)}")
    itemsize = ITEMSIZE[dtype]
    return WarpLoad(stride * elements * itemsize, elements * itemsize, offset * itemsize)


def _told(dtype: str, stride: int, offset: int, elements: int) -> tuple[str, str]:
    load = warp_load(dtype, stride, offset, elements)
    share = load.wanted / (SECTOR * len(load.sectors))
    title = f"A warp fetches {len(load.sectors)} sectors and uses {share:.0%} of their bytes"
    name = f"{dtype}, {elements} per lane, stride {stride}, offset {offset}"
    return title, name


class WarpExplorer(Explorer):
    """The sectors of a warp's load, with sliders for stride and offset, and a choice of dtype and elements per lane.

    Its controls are widgets: `stride`, `offset`, `dtype` and `elements`; `text` describes the view. Without a kernel it
    displays as a still image with that text.

    Raises:
        ValueError: an unknown dtype, a number of elements per lane that is not offered, or a value not on the sliders.
    """

    def __init__(self, dtype: str = "fp32", stride: int = 1, offset: int = 0, elements: int = 1):
        warp_load(dtype, 1, 0, 1)  # refuses what cannot be shown
        if elements not in WIDTHS:
            raise ValueError(f"{elements} elements per lane: choose from {', '.join(map(str, WIDTHS))}")
        self.stride = slider("stride", STRIDES, stride)
        self.offset = slider("offset", OFFSETS, offset)
        self.dtype = widgets.Dropdown(options=list(DTYPES), value=dtype, description="dtype")
        self.elements = widgets.Dropdown(options=list(WIDTHS), value=elements, description="per lane")
        super().__init__(FramePlayer(), [self.stride, self.offset], [[self.dtype, self.elements]])

    def _at(self, stride: int, offset: int) -> tuple[str, int, int, int]:
        return self.dtype.value, stride, offset, self.elements.value

    @property
    def text(self) -> str:
        return repr(self.chart())

    def chart(self) -> Chart:
        at = self._at(self.stride.value, self.offset.value)
        title, name = _told(*at)
        return warp_chart({name: warp_load(*at)}, title)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, axes = warp_axes(1)
        places = (self._at(stride, offset) for stride in STRIDES for offset in OFFSETS)
        frames = [_frame(figure, axes, *place) for place in places]
        return still_svg(figure), {"frames": frames, "columns": len(OFFSETS)}


def _frame(figure: Figure, axes: Axes, *place) -> dict[str, str]:
    load, (title, name) = warp_load(*place), _told(*place)
    height, (left, right) = figure.bbox.height, (axes.bbox.x0, axes.bbox.x1)
    (_, top), (_, middle) = axes.transData.transform([(0, -HALF), (0, 0)])
    full, scale = 2 * (top - middle), (right - left) / axes.get_xlim()[1]
    centre = height - middle

    def boxes(spans, high: float, inset: float, paint: str) -> str:
        return "".join(
            f'<rect x="{left + (start + inset) * scale:.1f}" y="{centre - high / 2:.1f}" '
            f'width="{(width - 2 * inset) * scale:.1f}" height="{high:.1f}" {paint}/>'
            for start, width in spans
        )

    fetched, wanted = blocks(load)
    svg = (
        svg_opening(figure)
        + svg_title(title, left, 15)
        + f'<text x="{left:.1f}" y="{height - top - 4:.1f}">{name}: {load}{load.beyond}</text>'
        + boxes(fetched, full, 0, f'fill="none" stroke="{LIMIT}"')
        + boxes(wanted, full / 2, 0.5, f'fill="{LIMIT}"')
        + "</svg>"
    )
    return {"svg": svg, "text": f"{title}. {name}: {load}", "table": "", "quiet": True}
