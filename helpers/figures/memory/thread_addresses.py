"""The threads of a grid: a thread's block, warp and lane, the address it reads, its warp's sectors; live."""

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.figures.memory.warp_load import LANES, SECTOR, WarpLoad
from helpers.style import FUSED, LIMIT, STYLE, TEXT, TITLE_SIZE, WRONG

BLOCKS, BLOCK = 4, 64  # blocks of the grid, threads per block
WARPS = BLOCK // LANES  # a block
STRIDES = (1, 2, 3, 4, 6, 8, 16, 32)  # elements
THREADS = tuple(LANES * warp + lane for warp in range(BLOCKS * WARPS) for lane in (0, 1, 2, 3, 7, 8, 16, 31))
ITEMSIZE = 4  # bytes: fp32
ACROSS = 32  # sectors in a line of the picture
LINES = STRIDES[-1] * ITEMSIZE // SECTOR
GAP, PITCH = 1.6, 1.4  # from the threads to the memory, from one line of sectors to the next; in threads' heights
FIRST_LINE = BLOCKS * WARPS + GAP  # the y of the first line of sectors
BOTTOM = FIRST_LINE + PITCH * LINES


def load_of(thread: int, stride: int) -> WarpLoad:
    """Return the read of `thread`'s warp in `x[i * stride]`: i the thread of the grid, x an aligned fp32 tensor."""
    return WarpLoad(stride * ITEMSIZE, ITEMSIZE, thread // LANES * LANES * stride * ITEMSIZE)


def _axes() -> tuple[Figure, Axes]:
    """Draw the static parts: one box per thread, one line per warp; below, memory in sectors starting at the warp's
    first."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 4.9))
        height = figure.bbox.height
        axes = figure.add_axes((0.15, 8 / height, 0.84, 1 - 56 / height))
        axes.set(xlim=(0, LANES), ylim=(BOTTOM, -0.6))
        axes.axis("off")
        for lane in range(0, LANES, 4):
            axes.text(lane + 0.5, -0.15, str(lane), ha="center", va="bottom")
        axes.text(-0.3, -0.15, "lane", ha="right", va="bottom")
        for warp in range(BLOCKS * WARPS):
            name = f"block {warp // WARPS}, warp {warp % WARPS}"
            axes.text(-0.3, warp + 0.5, name, ha="right", va="center")
            threads = [(lane + 0.08, 0.84) for lane in range(LANES)]
            axes.broken_barh(threads, (warp + 0.12, 0.76), facecolor="none", edgecolor=LIMIT, linewidth=0.7)
        axes.text(-0.3, FIRST_LINE + 0.5, "memory", ha="right", va="center")
        told = "a box is a sector, its filled parts what the warp asked for"
        axes.text(0, FIRST_LINE - 0.2, told, va="bottom", color=TEXT)
        for line in range(LINES):
            axes.broken_barh([(0, ACROSS)], (FIRST_LINE + PITCH * line, 1), facecolor=LIMIT, alpha=0.12)
    return figure, axes


def _told(thread: int, stride: int) -> tuple[str, str]:
    load = load_of(thread, stride)
    fetched = len(load.sectors)
    share = f"{100 * load.wanted / (SECTOR * fetched):.3g}%"
    title = f"Stride {stride}: a request of the warp fetches {fetched} sectors and uses {share} of them"
    block, place = divmod(thread, BLOCK)
    name = (
        f"i = {block} * {BLOCK} + {place} = {thread} (block {block}, warp {place // LANES}, lane {place % LANES}) "
        f"reads x[{thread * stride}], byte {load.starts[thread % LANES]}"
    )
    return title, name


def _boxes(thread: int, stride: int) -> dict[str, list[tuple[float, float, float, float]]]:
    """(x, y, width, height) of each box: "warp", "fetched", "wanted", and "own", the thread's."""
    load, lane = load_of(thread, stride), thread % LANES
    start = load.offset // SECTOR  # a warp's first byte is a sector's: LANES * ITEMSIZE is a multiple of SECTOR

    def in_memory(first: int, nbytes: int, high: float) -> tuple[float, float, float, float]:
        line, place = divmod(first / SECTOR - start, ACROSS)
        return place, FIRST_LINE + PITCH * line + (1 - high) / 2, nbytes / SECTOR, high

    wanted = [in_memory(first, ITEMSIZE, 0.7) for first in load.starts]
    own = (lane + 0.08, thread // LANES + 0.12, 0.84, 0.76)
    return {
        "warp": [(each + 0.08, thread // LANES + 0.12, 0.84, 0.76) for each in range(LANES) if each != lane],
        "fetched": [in_memory(sector * SECTOR, SECTOR, 1) for sector in load.sectors],
        "wanted": [each for number, each in enumerate(wanted) if number != lane],
        "own": [own, wanted[lane]],
    }


_PAINT = {"warp": (FUSED, ""), "fetched": ("", LIMIT), "wanted": (FUSED, ""), "own": (WRONG, "")}  # fill, edge


class ThreadsExplorer(Explorer):
    """A grid of 4 blocks of 64 threads that read x[i * stride], with sliders for the stride and the thread i.

    Its controls are widgets: `stride` and `thread`; `text` describes the view. Without a kernel it displays as a still
    image with that text.

    Raises:
        ValueError: a value that is not on the sliders.
    """

    def __init__(self, stride: int = 1, thread: int = 0):
        self.stride = slider("stride", STRIDES, stride)
        self.thread = slider("thread i", THREADS, thread)
        super().__init__(FramePlayer(), [self.stride, self.thread], [])

    @property
    def text(self) -> str:
        return ". ".join(_told(self.thread.value, self.stride.value))

    def chart(self) -> Chart:
        place = self.thread.value, self.stride.value
        title, name = _told(*place)
        figure, axes = _axes()
        with rc_context(STYLE):
            height = figure.bbox.height
            figure.text(0.02, 1 - 15 / height, title, size=TITLE_SIZE, weight="bold", va="center_baseline")
            figure.text(0.02, 1 - 30 / height, name, va="center_baseline")
            for kind, boxes in _boxes(*place).items():
                fill, edge = _PAINT[kind]
                for x, y, width, high in boxes:
                    paint = {"facecolor": fill or "none", "edgecolor": edge or "none"}
                    axes.broken_barh([(x, width)], (y, high), **paint)
        return Chart(figure, f"{title}. {name}")

    def _still_and_data(self) -> tuple[str, dict]:
        figure, axes = _axes()
        frames = [_frame(figure, axes, thread, stride) for stride in STRIDES for thread in THREADS]
        return still_svg(figure), {"frames": frames, "columns": len(THREADS)}


def _frame(figure: Figure, axes: Axes, thread: int, stride: int) -> dict[str, str]:
    title, name = _told(thread, stride)
    (left, right), height = (axes.bbox.x0, axes.bbox.x1), figure.bbox.height
    (top, bottom), (last, first) = (height - axes.bbox.y1, height - axes.bbox.y0), axes.get_ylim()
    across, down = (right - left) / LANES, (bottom - top) / (last - first)
    paths = []
    for kind, boxes in _boxes(thread, stride).items():
        fill, edge = _PAINT[kind]
        drawn = "".join(
            f"M{left + x * across:.1f} {top + (y - first) * down:.1f}h{width * across:.1f}v{high * down:.1f}"
            f"h{-width * across:.1f}z"
            for x, y, width, high in boxes
        )
        paths.append(f'<path d="{drawn}" fill="{fill or "none"}" stroke="{edge or "none"}"/>')
    opening = svg_opening(figure) + svg_title(title, 0.02 * figure.bbox.width, 15)
    svg = f'{opening}<text x="{0.02 * figure.bbox.width:.1f}" y="30">{name}</text>{"".join(paths)}</svg>'
    return {"svg": svg, "text": f"{title}. {name}", "table": "", "quiet": True}
