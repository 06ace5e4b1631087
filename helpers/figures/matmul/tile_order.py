"""The order of a matmul's tiles: which stripes of x and W the programs of one wave read between them; live.

A tile of y needs one stripe of x, its rows, and one of W, its columns. Programs that run together share stripes through
L2, which reads each of them from memory once: the fewer a wave needs, the less memory has to deliver. Programs start in
the order of their numbers; that those of a wave also go through K in step is the model's assumption.
"""

import functools
from itertools import groupby

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart, plain
from helpers.figures.frame.explorer import Explorer, FramePlayer, slider, still_svg, svg_opening
from helpers.figures.frame.page_bars import Box, Label, Scene, picture, svg
from helpers.instruments.devices import DEVICES
from helpers.instruments.roofline import Roofline
from helpers.style import FUSED, LIMIT, STYLE, UNFUSED


def place(tile: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Row and column of the tile-th tile: `group` rows of tiles at a time, column by column within them.

    Source: Triton's tutorial 03, "L2 cache optimizations".
    """
    first = tile // (group * tiles_n) * group
    rows, within = min(group, tiles_m - first), tile % (group * tiles_n)
    return first + within % rows, within // rows


def wave_tiles(wave: int, programs: int, tiles_m: int, tiles_n: int, group: int) -> list[tuple[int, int]]:
    """The tiles of a wave, counted from 0, of `programs` programs."""
    last = min((wave + 1) * programs, tiles_m * tiles_n)
    return [place(tile, tiles_m, tiles_n, group) for tile in range(wave * programs, last)]


def stripes(tiles: list[tuple[int, int]]) -> tuple[int, int]:
    """Count the stripes of x and of W that these tiles need."""
    return len({row for row, _ in tiles}), len({column for _, column in tiles})


def all_stripes(programs: int, tiles_m: int, tiles_n: int, group: int) -> int:
    """Stripes that all waves read, where nothing stays in L2 from one wave to the next."""
    waves = -(-tiles_m * tiles_n // programs)
    return sum(sum(stripes(wave_tiles(wave, programs, tiles_m, tiles_n, group))) for wave in range(waves))


SIDE = 64  # tiles of y each way: 8192 x 8192 in tiles of 128 x 128
TILE = 128  # rows and columns of a tile, in 16 bits
DEVICE = DEVICES["H200"]
PROGRAMS = 2 * DEVICE.sms  # at once: as many as fit, in tiles of this size with three stages
WAVES = -(-SIDE * SIDE // PROGRAMS)
GROUPS = (1, 2, 4, 8, 16, 32, 64)
SIZE = (576, 380)  # points
CELL = 4.5  # a tile of y
X_LEFT, STRIPE = 40, 14  # x is left of y, W^T above it
Y_LEFT, Y_TOP = X_LEFT + STRIPE + 8, 48 + STRIPE + 8
BESIDE = Y_LEFT + SIDE * CELL + 20
LINES = (84, 102, 120, 138, 156, 192, 210, 228, 264, 282)


def rectangles(tiles: list[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """(first row, rows, first column, columns) of few rectangles that are the tiles."""
    columns = {}
    for row, column in sorted(tiles):
        columns.setdefault(row, []).append(column)
    runs = [(row, _runs(found)) for row, found in columns.items()]
    boxes = []
    for _, same in groupby(enumerate(runs), key=lambda each: (each[1][0] - each[0], each[1][1])):
        same = [row for _, (row, _) in same]
        boxes += [(same[0], len(same), first, count) for first, count in _runs(columns[same[0]])]
    return boxes


def _runs(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    """(first, count) of neighbours in rising numbers."""
    together = (list(each) for _, each in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]))
    return tuple((each[0][1], len(each)) for each in together)


def _box(row: int, rows: int, column: int, columns: int, colour: str | None) -> Box:
    return Box(Y_LEFT + column * CELL, Y_TOP + (row + rows / 2) * CELL, columns * CELL, rows * CELL, colour)


def _stripe(of_x: bool, first: int, count: int) -> Box:
    if of_x:
        return Box(X_LEFT, Y_TOP + (first + count / 2) * CELL, STRIPE, count * CELL, UNFUSED)
    return Box(Y_LEFT + first * CELL, Y_TOP - 8 - STRIPE / 2, count * CELL, STRIPE, UNFUSED)


def order_name(group: int) -> str:
    return {1: "row by row", SIDE: "column by column"}.get(group, f"groups of {group} rows")


def scene(group: int, wave: int) -> Scene:
    """The wave, counted from 1: its tiles, the stripes that they need, and the tiles done before."""
    now = wave_tiles(wave - 1, PROGRAMS, SIDE, SIDE, group)
    before = [tile for each in range(wave - 1) for tile in wave_tiles(each, PROGRAMS, SIDE, SIDE, group)]
    boxes = [_box(*each, None) for each in rectangles(before)] + [_box(*each, FUSED) for each in rectangles(now)]
    boxes += [_stripe(True, *each) for each in _runs(sorted({row for row, _ in now}))]
    boxes += [_stripe(False, *each) for each in _runs(sorted({column for _, column in now}))]
    of_x, of_w = stripes(now)
    # 2 TILE^2 K FLOP per tile over 2 TILE K bytes per stripe.
    intensity, ridge = len(now) * TILE / (of_x + of_w), Roofline(DEVICE, "bf16").ridge
    total, least = all_stripes(PROGRAMS, SIDE, SIDE, group), 2 * SIDE
    said = (
        f"wave {wave} of {WAVES}, {len(now)} tiles",
        f"{of_x} stripes of x",
        f"{of_w} stripes of W",
        f"{plain(intensity)} FLOP per byte of DRAM;",
        f"the ridge is {plain(ridge)}",
        "all waves together:",
        f"{total} stripes, {total / least:.1f} times",
        "all of x and W",
        "filled: this wave",
        "open: done before",
    )
    labels = tuple(Label(line, BESIDE, y, "left") for line, y in zip(said, LINES, strict=True))
    order = order_name(group)
    title = f"{order.capitalize()}: this wave reads {of_x + of_w} stripes for {len(now)} tiles"
    text = (
        f"{title}. {', '.join(said[:3])}: {said[3]} {said[4]}. All waves together read {total} stripes, "
        f"{total / least:.1f} times all of x and W."
    )
    return Scene(title, tuple(boxes), labels, text)


class TileOrderExplorer(Explorer):
    """A wave of tiles and the stripes that it reads, with sliders for the order and the wave.

    Its controls are widgets: the sliders `group` (rows of tiles) and `wave`; `text` describes the view. Without a
    kernel it displays as a still image with that text.

    Raises:
        ValueError: a value that is not on its slider.
    """

    def __init__(self, group: int = 1, wave: int = 3):
        self.group = slider("rows per group", GROUPS, group)
        self.wave = slider("wave", tuple(range(1, WAVES + 1)), wave)
        super().__init__(FramePlayer(), [self.group, self.wave], [])

    @property
    def text(self) -> str:
        return scene(self.group.value, self.wave.value).text

    def chart(self) -> Chart:
        return picture(*_axes(), scene(self.group.value, self.wave.value))

    def _still_and_data(self) -> tuple[str, dict]:
        return _still_and_frames()


@functools.cache
def _still_and_frames() -> tuple[str, dict]:
    figure, _ = _axes()
    opening = svg_opening(figure)
    scenes = (scene(group, wave) for group in GROUPS for wave in range(1, WAVES + 1))
    frames = [{"svg": svg(opening, each), "text": each.text, "table": "", "quiet": True} for each in scenes]
    return still_svg(figure), {"frames": frames, "columns": WAVES}


def _axes() -> tuple[Figure, Axes]:
    width, height = SIZE
    with rc_context(STYLE):
        figure = Figure(figsize=(width / 72, height / 72))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        for left, top, across, down in (
            (Y_LEFT, Y_TOP, SIDE, SIDE),
            (X_LEFT, Y_TOP, STRIPE / CELL, SIDE),
            (Y_LEFT, Y_TOP - 8 - STRIPE, SIDE, STRIPE / CELL),
        ):
            axes.plot(
                (left, left + across * CELL, left + across * CELL, left, left),
                (top, top, top + down * CELL, top + down * CELL, top),
                color=LIMIT,
                lw=0.8,
            )
        middle, centred = Y_LEFT + SIDE * CELL / 2, {"ha": "center", "va": "center_baseline"}
        axes.text(X_LEFT - 8, Y_TOP + SIDE * CELL / 2, "x", ha="right", va="center_baseline")
        axes.text(middle, Y_TOP - STRIPE - 15, "W, transposed", **centred)
        axes.text(middle, Y_TOP + SIDE * CELL + 10, f"y, {SIDE} x {SIDE} tiles", **centred)
    return figure, axes
