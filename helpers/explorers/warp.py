"""The live warp: the sectors that one load of 32 lanes fetches, as stride, alignment and width change."""

import ipywidgets as widgets

from helpers import charts
from helpers.charts import Chart
from helpers.explorers.stage import Explorer, Stage, script, slider, still_svg, svg_opening
from helpers.operations import ITEMSIZE
from helpers.warp_chart import HALF, WarpLoad, blocks, warp_axes, warp_chart

STRIDES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # elements from a lane's first to the next lane's
OFFSETS = tuple(range(17))  # elements
DTYPES = ("fp32", "fp16", "fp8")
WIDTHS = (1, 2, 4)  # elements a lane, one next to another


def warp_load(dtype: str, stride: int, offset: int, elements: int) -> WarpLoad:
    """A load of `elements` neighbours a lane; the next lane's lie `stride` times as far on as they are wide.

    Raises:
        ValueError: none of DTYPES.
    """
    if dtype not in DTYPES:
        raise ValueError(f"no dtype {dtype!r} here: choose from {', '.join(DTYPES)}")
    itemsize = ITEMSIZE[dtype]
    return WarpLoad(stride * elements * itemsize, elements * itemsize, offset * itemsize)


def _told(dtype: str, stride: int, offset: int, elements: int) -> tuple[str, str]:
    load = warp_load(dtype, stride, offset, elements)
    share = load.wanted / (32 * len(load.sectors))
    title = f"A warp fetches {len(load.sectors)} sectors and uses {share:.0%} of them"
    name = f"{dtype}, {elements} a lane, stride {stride}, offset {offset}"
    return title, name


class _WarpStage(Stage):
    _esm = script("roofline.js")


class WarpExplorer(Explorer):
    """The sectors of a warp's load, with sliders for stride and offset, and a choice of dtype and elements a lane.

    Its controls are widgets: `stride`, `offset`, `dtype` and `elements`; what it shows is also the string `text`.
    Displayed where no kernel runs, it is a picture and that text.
    """

    def __init__(self, dtype: str, stride: int, offset: int, elements: int):
        warp_load(dtype, 1, 0, 1)  # refuses what cannot be shown
        if elements not in WIDTHS:
            raise ValueError(f"{elements} elements a lane: choose from {', '.join(map(str, WIDTHS))}")
        self.stride = slider("stride", STRIDES, stride)
        self.offset = slider("offset", OFFSETS, offset)
        self.dtype = widgets.Dropdown(options=list(DTYPES), value=dtype, description="dtype")
        self.elements = widgets.Dropdown(options=list(WIDTHS), value=elements, description="a lane")
        super().__init__(_WarpStage(), [self.stride, self.offset], [[self.dtype, self.elements]])

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


def _frame(figure, axes, *place) -> dict[str, str]:
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
        + f'<text x="{left:.1f}" y="15" font-size="{charts.TITLE_SIZE}" font-weight="bold">{title}</text>'
        + f'<text x="{left:.1f}" y="{height - top - 4:.1f}">{name}: {load}</text>'
        + boxes(fetched, full, 0, f'fill="none" stroke="{charts.LIMIT}"')
        + boxes(wanted, full / 2, 0.5, f'fill="{charts.LIMIT}"')
        + "</svg>"
    )
    return {"svg": svg, "text": f"{title}. {name}: {load}", "table": ""}


def warp_explorer(dtype: str = "fp32", stride: int = 1, offset: int = 0, elements: int = 1) -> WarpExplorer:
    """The live warp; the last expression of a cell shows it.

    Raises:
        ValueError: an unknown dtype, a number of elements a lane that is not offered, or a value not on the sliders.
    """
    return WarpExplorer(dtype, stride, offset, elements)
