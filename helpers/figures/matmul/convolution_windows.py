"""A convolution as a matmul: which pixels the windows of a tile's rows hold, and how many times each is read; live."""

from collections.abc import Iterator
from dataclasses import dataclass

import ipywidgets as widgets
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.figures.frame.chart import Chart, plain
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening, svg_title
from helpers.style import FUSED, LIMIT, SMALL_SIZE, STYLE, TEXT, TITLE_SIZE

SIZE = 12  # pixels in a row and in a column of the picture
TILE = 16  # output pixels that a program makes


@dataclass(frozen=True)
class Windows:
    """The map from a row of the matrix of windows, an output pixel, to the pixels in it.

    A square filter of `taps` x `taps` over `height` x `width` pixels, moved by `stride`, with `padding` pixels of
    zeros on every side. Channels are left out: each pixel brings all of its own.
    """

    height: int
    width: int
    taps: int
    stride: int
    padding: int

    @property
    def out_shape(self) -> tuple[int, int]:
        """Output pixels, down and across."""
        height, width = ((size + 2 * self.padding - self.taps) // self.stride + 1 for size in (self.height, self.width))
        return height, width

    @property
    def pixels(self) -> int:
        """Output pixels: rows of the matrix of windows."""
        return self.out_shape[0] * self.out_shape[1]

    def seen(self, pixel: int | np.ndarray, tap: int | np.ndarray) -> tuple[int, int] | tuple[np.ndarray, np.ndarray]:
        """Return (row, column) in the image that output pixel `pixel` reads for `tap`; outside it, in the padding."""
        down, across = divmod(pixel, self.out_shape[1])
        r, s = divmod(tap, self.taps)
        return down * self.stride + r - self.padding, across * self.stride + s - self.padding

    def reads(self, pixels: range | None = None, tap: int | None = None) -> np.ndarray:
        """Count how many times each pixel is read for these output pixels and this tap, all if None.

        (height + 2 padding, width + 2 padding): reads in the padding are counted there, though nothing is loaded.
        """
        counts = np.zeros((self.height + 2 * self.padding, self.width + 2 * self.padding), int)
        chosen = range(self.pixels) if pixels is None else pixels
        taps = range(self.taps**2) if tap is None else [tap]
        row, col = self.seen(np.array(chosen, int)[:, None], np.array(taps)[None, :])
        np.add.at(counts, (row + self.padding, col + self.padding), 1)
        return counts

    def in_picture(self, counts: np.ndarray) -> np.ndarray:
        """Return the part of `reads`'s counts inside the image."""
        return counts[self.padding :, self.padding :][: self.height, : self.width]


FILTERS = (1, 3, 5)
STRIDES = (1, 2, 3)
PADDINGS = (0, 1, 2)
TILES = ("all", *range(9))
SHOWN = {"all": None, "the first": "first", "the middle": "middle", "the last": "last"}


@dataclass(frozen=True)
class WindowsScene:
    """The explorer's view: the windows, a tile's number or "all", and the taps shown."""

    windows: Windows
    tile: int | str
    taps: str

    @property
    def tap(self) -> int | None:
        count = self.windows.taps**2
        return {None: None, "first": 0, "middle": count // 2, "last": count - 1}[SHOWN[self.taps]]

    @property
    def chosen(self) -> range:
        """The output pixels of the tile; none where the picture has fewer tiles."""
        if self.tile == "all":
            return range(self.windows.pixels)
        return range(self.tile * TILE, max(self.tile * TILE, min(self.windows.pixels, (self.tile + 1) * TILE)))

    @property
    def counts(self) -> np.ndarray:
        return self.windows.reads(self.chosen, self.tap)

    def told(self) -> tuple[str, str]:
        """The title, and the line below it."""
        tiles = -(-self.windows.pixels // TILE)
        windows, name = self.windows, "all tiles" if self.tile == "all" else f"tile {self.tile}"
        down, across = windows.out_shape
        place = (
            f"{windows.taps} x {windows.taps} filter, stride {windows.stride}, padding {windows.padding}; {name}, "
            f"{'all taps' if self.tap is None else self.taps + ' tap'}"
        )
        if not len(self.chosen):
            return (
                f"No tile {self.tile}: the output has {down} x {across} pixels",
                f"{place}: the last is {tiles - 1}",
            )
        counts = self.counts
        real = windows.in_picture(counts)
        total, distinct, padded = int(real.sum()), int((real > 0).sum()), int(counts.sum() - real.sum())
        if not total:
            return f"{name.capitalize()} reads nothing: all it sees is padding", place
        least, most = int(real[real > 0].min()), int(real.max())
        often = f"{least} to {most} times each" if least < most else "once each" if most == 1 else f"{most} times each"
        title = (
            f"{name.capitalize()}: {total:,} reads of {distinct} of {windows.height * windows.width} pixels, {often}"
        )
        more = [f"{plain(total / distinct)} on average"] if least < most else []
        more += [f"{padded:,} more fall in the padding, where nothing is read"] if padded else []
        return title, f"{place}: {'; '.join(more)}" if more else place


CELL = 14.5  # points
LEFT, RIGHT, TOP = 14, 304, 66  # of the picture with its padding, of the output, of both


def _axes() -> tuple[Figure, Axes]:
    """Draw the static parts: one coordinate per point, y downwards, and the names of the two grids."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 4.3))
        width, height = figure.bbox.size
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        picture = LEFT + CELL * max(PADDINGS), TOP + CELL * max(PADDINGS)
        border = {"facecolor": "none", "edgecolor": TEXT, "linewidth": 2}
        axes.broken_barh([(picture[0], CELL * SIZE)], (picture[1], CELL * SIZE), **border)
        axes.text(LEFT, TOP - 10, "input in its padding; number: how many times a pixel is read", color=TEXT)
        axes.text(RIGHT, TOP - 10, "output; filled: the tile's pixels, a row of the matmul each", color=TEXT)
    return figure, axes


def _shade(share: float) -> str:
    """Return a shade from grey to blue, with a white number readable on each."""
    grey, blue = (bytes.fromhex(colour[1:]) for colour in (LIMIT, FUSED))
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(grey, blue, strict=True))


def _cells(scene: WindowsScene) -> Iterator[tuple[float, float, str, str, bool]]:
    """(x, y, fill or "", number, whether padding) of every cell of both grids."""
    windows, counts = scene.windows, scene.counts
    most, shift = max(1, int(counts.max())), max(PADDINGS) - windows.padding
    for (row, col), count in np.ndenumerate(counts):
        inside = 0 <= row - windows.padding < windows.height and 0 <= col - windows.padding < windows.width
        fill = _shade(count / most) if count and inside else ""
        yield LEFT + CELL * (col + shift), TOP + CELL * (row + shift), fill, str(count) if count else "", not inside
    chosen, across = scene.chosen, windows.out_shape[1]
    for pixel in range(windows.pixels):
        row, col = divmod(pixel, across)
        yield RIGHT + CELL * col, TOP + CELL * row, FUSED if pixel in chosen else "", "", False


class WindowsExplorer(Explorer):
    """A picture of 12 x 12 pixels and the output pixels of a convolution, in tiles of 16.

    Its controls are widgets: the sliders `tile`, `stride` and `padding`, and the choices `taps` (of the filter, down
    and across) and `shown` (which of them); `text` describes the view. Without a kernel it displays as a still image
    with that text.

    Raises:
        ValueError: an unknown filter, or a value that is not on its slider.
    """

    _parts = (
        ((0, 48, 290, 260),),
        ((290, 48, 286, 260),),
    )

    def __init__(self, taps: int = 3, stride: int = 1, padding: int = 1, tile: int | str = 0):
        if taps not in FILTERS:
            raise ValueError(
                f"there is no filter of {taps!r} x {taps!r}: choose taps from {', '.join(map(str, FILTERS))}"
            )
        self.tile = slider("tile", TILES, tile)
        self.stride = slider("stride", STRIDES, stride)
        self.padding = slider("padding", PADDINGS, padding)
        filters = [(f"{each} x {each}", each) for each in FILTERS]
        self.taps = widgets.Dropdown(options=filters, value=taps, description="filter")
        self.shown = widgets.Dropdown(options=list(SHOWN), value="all", description="taps")
        super().__init__(FramePlayer(), [self.tile, self.stride, self.padding], [[self.taps, self.shown]])

    def _at(self, tile: int | str, stride: int, padding: int) -> WindowsScene:
        return WindowsScene(Windows(SIZE, SIZE, self.taps.value, stride, padding), tile, self.shown.value)

    @property
    def _scene(self) -> WindowsScene:
        return self._at(self.tile.value, self.stride.value, self.padding.value)

    @property
    def text(self) -> str:
        return ". ".join(self._scene.told())

    def chart(self) -> Chart:
        title, line = self._scene.told()
        figure, axes = _axes()
        with rc_context(STYLE):
            axes.text(LEFT, 18, title, size=TITLE_SIZE, weight="bold")
            axes.text(LEFT, 34, line)
            cells = list(_cells(self._scene))
            boxes = [Rectangle((x, y), CELL, CELL) for x, y, *_ in cells]
            fills = [fill or "none" for _, _, fill, *_ in cells]
            lines = [":" if padding else "-" for *_, padding in cells]
            drawn = PatchCollection(boxes, facecolor=fills, edgecolor=LIMIT, linewidth=0.6, linestyle=lines)
            axes.add_collection(drawn)
            for x, y, fill, number, _ in cells:
                if number:
                    place = {"ha": "center", "va": "center", "size": 8.5, "color": "white" if fill else TEXT}
                    axes.text(x + CELL / 2, y + CELL / 2, number, **place)
        return Chart(figure, self.text)

    def _still_and_data(self) -> tuple[str, dict]:
        figure, _ = _axes()
        scenes = (self._at(tile, stride, padding) for tile in TILES for stride in STRIDES for padding in PADDINGS)
        frames = [_frame(figure, scene) for scene in scenes]
        return still_svg(figure), {"frames": frames, "columns": len(STRIDES), "layers": len(PADDINGS)}


def _frame(figure: Figure, scene: WindowsScene) -> dict[str, str]:
    title, line = scene.told()
    paths, numbers = {}, []
    for x, y, fill, number, padding in _cells(scene):
        kind = fill or "none", "1 2" if padding else "none"
        paths[kind] = paths.get(kind, "") + f"M{x:.4g} {y:.4g}h{CELL}v{CELL}h-{CELL}z"
        if number:
            ink = ' fill="white"' if fill else ""
            numbers.append(f'<text x="{x + CELL / 2:.4g}" y="{y + CELL / 2 + 2.7:.4g}"{ink}>{number}</text>')
    drawn = "".join(
        f'<path d="{path}" fill="{fill}" stroke-dasharray="{dashes}"/>' for (fill, dashes), path in paths.items()
    )
    svg = (
        f'{svg_opening(figure)}{svg_title(title, LEFT, 18)}<text x="{LEFT}" y="34">{line}</text>'
        f'<g stroke="{LIMIT}" stroke-width="0.6">{drawn}</g>'
        f'<g font-size="{SMALL_SIZE}" text-anchor="middle">{"".join(numbers)}</g></svg>'
    )
    return {"svg": svg, "text": f"{title}. {line}", "table": "", "quiet": True}
