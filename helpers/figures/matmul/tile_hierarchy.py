"""The tiles of a matmul, each a part of the one before: from the matrix to a thread's sums; live.

The shapes are those that Triton chooses for an SM of compute capability 9.0: a warp group of four warps takes
64 rows of the tile at a time, one `wgmma` multiplies 64 rows with 16 elements along K (PTX ISA, wgmma.mma_async), and
the sums are in the registers of the group's 128 threads.
"""

from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import si
from helpers.figures.frame.explorer import FramePlayer, slider
from helpers.figures.frame.page_bars import Box, Label, Scene, still
from helpers.figures.frame.scene_explorer import SceneExplorer
from helpers.style import FUSED, SKY_BLUE, STYLE

SIZE = (576, 290)  # points
M = N = K = 4096
STEP = 64  # elements along K that the program loads at a time
GROUP_ROWS, DEPTH = 64, 16  # of an instruction's operands: PTX ISA, wgmma.mma_async, 16-bit operands
GROUP = 128  # threads
ITEMSIZE = 2
TILES = ((64, 64), (128, 64), (128, 128), (128, 256))
LEVELS = ("the result", "a thread block", "a step along K", "a warp group", "an instruction", "a thread")
TOP, SIDE = 62, 106  # of the matrix
LEFTS = tuple(12 + number * 113 for number in range(5))
SCALE = 0.31  # points per element, in all squares but the first
DRAWN = 8  # tiles drawn along the longer side of a tile
GAP = 3  # between a tile of the result and its operands
UNDER = 183  # the numbers below them
ROW = 254  # middle of the row of a thread
ACROSS, REGISTER = 32, 4.5  # registers in a line, and points of each
EPILOGUE, MEMORY = (173, 84), (278, 60)  # left edge and width
TALL = 22  # of both
APPLIED = "Bias and GELU are applied there, before the only store"


@dataclass(frozen=True)
class TileHierarchy:
    """A matmul of M x N x K in tiles of `rows` x `columns`, on 4 warps for each 64 rows of the tile."""

    rows: int
    columns: int

    @property
    def programs(self) -> int:
        return M // self.rows * (N // self.columns)

    @property
    def groups(self) -> int:
        """Warp groups of a thread block."""
        return self.rows // GROUP_ROWS

    @property
    def stage(self) -> int:
        """Bytes of x and w that one step loads into shared memory."""
        return ITEMSIZE * STEP * (self.rows + self.columns)

    @property
    def instruction(self) -> str:
        return f"wgmma m{GROUP_ROWS}n{self.columns}k{DEPTH}"

    @property
    def flops(self) -> int:
        """FLOP per instruction."""
        return 2 * GROUP_ROWS * self.columns * DEPTH

    @property
    def sums(self) -> int:
        """Registers of a thread that hold sums."""
        return GROUP_ROWS * self.columns // GROUP

    def notes(self) -> tuple[str, ...]:
        """Return one sentence per level."""
        of = "A warp group takes all" if self.groups == 1 else f"Each of {self.groups} warp groups takes"
        return (
            f"The result, {M:,} x {N:,}: {self.programs:,} tiles, each the work of one program",
            f"A program is a thread block of {4 * self.groups} warps: it goes along K in {K // STEP} steps",
            f"One step loads {STEP} columns of x and {STEP} rows of w into shared memory: {si(self.stage, 'B')}",
            f"{of} {GROUP_ROWS} rows of the tile, in {STEP // DEPTH} instructions per step",
            f"One instruction, {self.instruction}: {self.flops:,} FLOP",
            f"Each of the group's {GROUP} threads keeps {self.sums} sums in registers until the epilogue",
        )

    def numbers(self) -> tuple[str, ...]:
        """Return the line under each square."""
        return (
            f"{self.programs:,} tiles",
            f"{self.rows} x {self.columns}, {4 * self.groups} warps",
            f"{STEP} along K, {si(self.stage, 'B')}",
            f"{GROUP_ROWS} x {self.columns}",
            f"{GROUP_ROWS} x {self.columns} x {DEPTH}",
        )


def hierarchy_axes() -> tuple[Figure, Axes]:
    """Draw the still part: the names of the levels that are squares."""
    figure, axes = still(SIZE, {}, ())
    with rc_context(STYLE):
        for left, name in zip(LEFTS, LEVELS, strict=False):
            axes.text(left + SIDE / 2, TOP - 12, name, ha="center", va="center_baseline")
        key = "dark blue: a part of the result; light blue: the operands that it takes"
        axes.text(LEFTS[0], UNDER + 23, key, va="center_baseline")
    return figure, axes


def _box(left: float, top: float, width: float, height: float, colour: str | None) -> Box:
    return Box(left, top + height / 2, width, round(height, 1), colour)


def _slots(tiles: TileHierarchy) -> tuple[int, int]:
    """Return how many rows and columns of tiles the result is drawn with: one of each stands for those left out."""
    longest = max(tiles.rows, tiles.columns)
    return DRAWN * longest // tiles.rows, DRAWN * longest // tiles.columns


def _one(tiles: TileHierarchy) -> tuple[float, float, float, float]:
    """Return the place of the tile that the other squares magnify: left, top, width, height."""
    rows, columns = _slots(tiles)
    wide, high = SIDE / columns, SIDE / rows
    return LEFTS[0] + (columns // 4) * wide, TOP + (rows // 4) * high, wide, high


def _matrix(tiles: TileHierarchy, left: float) -> list[Box]:
    """The result: its first tiles and its last, with a gap for those between, and one that is filled."""
    rows, columns = _slots(tiles)
    wide, high = SIDE / columns, SIDE / rows
    drawn = [
        _box(left + column * wide, TOP + row * high, wide, high, None)
        for row in range(rows) if row != rows - 2
        for column in range(columns) if column != columns - 2
    ]  # fmt: skip
    return [*drawn, _box(*_one(tiles), FUSED)]


def _left_out(tiles: TileHierarchy) -> list[Label]:
    """Dots in the result's gaps."""
    rows, columns = _slots(tiles)
    across, down = LEFTS[0] + SIDE * (1 - 1.5 / columns), TOP + SIDE * (1 - 1.5 / rows)
    return [Label("⋯", across, TOP + 0.64 * SIDE, "center"), Label("⋮", LEFTS[0] + 0.4 * SIDE, down, "center")]


def _zoom(tiles: TileHierarchy) -> tuple[tuple[float, float, float, float], ...]:
    """Lines from a tile of the result to the same tile, magnified."""
    left, top, wide, high = _one(tiles)
    corner, edge = LEFTS[1] + STEP * SCALE + GAP, TOP + STEP * SCALE + GAP
    return (left + wide, top, corner, edge), (left + wide, top + high, corner, edge + tiles.rows * SCALE)


def _products(tiles: TileHierarchy, left: float, rows: int, depth: int) -> list[Box]:
    """A tile with its operands, x to the left and w above: of `rows` rows and `depth` elements along K, filled."""
    step, wide, high = STEP * SCALE, tiles.columns * SCALE, tiles.rows * SCALE
    across, down = left + step + GAP, TOP + step + GAP
    filled, deep = rows * SCALE, depth * SCALE
    return [
        _box(left, down, step, high, None), _box(across, TOP, wide, step, None), _box(across, down, wide, high, None),
        _box(left, down, deep, filled, SKY_BLUE), _box(across, TOP, wide, deep, SKY_BLUE),
        _box(across, down, wide, filled, FUSED),
    ]  # fmt: skip


def _squares(tiles: TileHierarchy, number: int, left: float) -> list[Box]:
    if number == 0:
        return _matrix(tiles, left)
    if number == 1:
        high = GROUP_ROWS * SCALE
        top, wide = TOP + STEP * SCALE + GAP, tiles.columns * SCALE
        across = left + STEP * SCALE + GAP
        return [_box(across, top + group * high, wide, high, FUSED) for group in range(tiles.groups)]
    rows, depth = {2: (tiles.rows, STEP), 3: (GROUP_ROWS, STEP), 4: (GROUP_ROWS, DEPTH)}[number]
    return _products(tiles, left, rows, depth)


def _thread(tiles: TileHierarchy) -> tuple[list[Box], list[Label]]:
    """A thread's sums, the epilogue that takes them, and memory."""
    rows = tiles.sums // ACROSS
    top = ROW - rows * REGISTER / 2
    left = LEFTS[0]
    sums = [
        _box(left + place % ACROSS * REGISTER, top + place // ACROSS * REGISTER, REGISTER, REGISTER, FUSED)
        for place in range(tiles.sums)
    ]
    filled = left + ACROSS * REGISTER
    boxes = [*sums, *(Box(at, ROW, width, TALL, None) for at, width in (EPILOGUE, MEMORY))]
    placed = (
        (f"{tiles.sums} sums in registers", (left + filled) / 2, 22), ("→", (filled + EPILOGUE[0]) / 2, 0),
        ("+ bias, GELU", EPILOGUE[0] + EPILOGUE[1] / 2, 0), ("the epilogue", EPILOGUE[0] + EPILOGUE[1] / 2, 22),
        ("→", (sum(EPILOGUE) + MEMORY[0]) / 2, 0),
        ("memory", MEMORY[0] + MEMORY[1] / 2, 0), ("the only store", MEMORY[0] + MEMORY[1] / 2, 22),
    )  # fmt: skip
    named = Label(LEVELS[-1], left, ROW - 25, "left")
    return boxes, [named, *(Label(text, x, ROW + down, "center") for text, x, down in placed)]


def hierarchy_scene(tiles: TileHierarchy, level: int) -> Scene:
    """Draw the levels up to `level`, from 0."""
    boxes, labels = [], []
    for number, (left, told) in enumerate(zip(LEFTS[: level + 1], tiles.numbers(), strict=False)):
        boxes += _squares(tiles, number, left)
        labels.append(Label(told, left + SIDE / 2, UNDER, "center"))
    title = tiles.notes()[level]
    text = f"{LEVELS[level]}, level {level + 1} of {len(LEVELS)}. {title}."
    labels += _left_out(tiles)
    if LEVELS[level] == "a thread":
        of_thread, told_of_it = _thread(tiles)
        boxes, labels, text = boxes + of_thread, labels + told_of_it, f"{text} {APPLIED}."
    links = _zoom(tiles) if level else ()
    return Scene(title, tuple(boxes), tuple(labels), text[0].upper() + text[1:], links=links)


class TileHierarchyExplorer(SceneExplorer):
    """The tiles of a matmul within each other, with sliders for the level and the tile of a thread block.

    Its controls are widgets: `level` (one of LEVELS) and `tile` (rows, columns); the string `text` describes the
    picture. Displayed where no kernel runs, it is a picture and that text.

    Raises:
        ValueError: a value that is not on its slider.
    """

    _parts = (
        ((0, 28, 231, 190),),
        ((231, 28, 345, 190),),
        ((0, 218, 345, 72),),
    )
    _axes = staticmethod(hierarchy_axes)

    def __init__(self, level: str = LEVELS[0], tile: tuple[int, int] = (128, 128)):
        self.level = slider("level", LEVELS, level)
        self.tile = slider("tile", TILES, tile, [f"{rows} x {columns}" for rows, columns in TILES])
        super().__init__(FramePlayer(), [self.level, self.tile], [])

    def _scene(self, level: str, tile: tuple[int, int]) -> Scene:
        return hierarchy_scene(TileHierarchy(*tile), LEVELS.index(level))
