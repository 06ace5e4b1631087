"""A kernel, line by line: its lanes' values, their reads and writes, and the bytes so far; live.

A launch is recorded as it runs (helpers.instruments.traffic.steps). Here its blocks and tensors get their places on the
page, and each step the cells that it changes. The browser's script and the still picture paint the same cells.
"""

from dataclasses import dataclass, field
from pathlib import Path

import anywidget
import ipywidgets as widgets
import numpy as np
from matplotlib import rc_context
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from traitlets import Dict

from helpers.figures.frame.chart import Chart, with_still
from helpers.instruments.traffic.footprint import SECTOR
from helpers.instruments.traffic.steps import record
from helpers.instruments.traffic.watched_launch import KernelStep, Memory, Move, Recording
from helpers.style import (
    MONOSPACE,
    NEGATIVE,
    POSITIVE,
    READ,
    SMALL_SIZE,
    STYLE,
    TEXT,
    TITLE_SIZE,
    WRITTEN,
    WRONG,
    css,
    javascript,
)

_HERE = Path(__file__).parent
WIDTH = 640  # of the picture; all in pixels
LABEL, GAP = 14, 12  # above a grid, and next to it
WORD = 18  # height of a cell with a number in it
LINE_OF_WORDS = 16  # lanes
MEMORY = 170  # a tensor too large for numbers, at most this high
SHADE = 130  # a tile whose cells are shaded, at most this wide
BEYOND = 16  # places outside a tensor that are drawn
AROUND = 7  # lines of source above and below the lit one in the still picture

# Okabe and Ito's other colours: orange and blue are taken, by unfused and fused.
CODES = {"empty": " ", "value": "v", "masked": "m", "outside": "o", "read": "r", "written": "w", "gap": "g"}


@dataclass(eq=False)
class Grid:
    """Cells in rows, with a name above. `first`: number of its first cell among all; `words`: numbers are written out,
    not shaded; `origin`: the place in memory of its first cell; `function`: the called function that it belongs to."""

    name: str
    count: int
    columns: int
    cell: tuple[float, float]
    words: bool
    memory: bool
    origin: int = 0
    first: int = 0
    x: float = 0
    y: float = 0
    largest: float = 0
    function: str = ""

    def fit(self, values: list[np.ndarray]) -> None:
        """Note the numbers that will appear in the cells."""
        flat = np.concatenate([each.ravel() for each in values])
        if self.words:
            longest = max((len(word(value)) for value in flat), default=1)
            self.cell = min(max(self.cell[0], 7 * longest + 4), WIDTH / self.columns), WORD
        else:
            sizes = np.abs(flat.astype(float))
            self.largest = max(self.largest, float(np.max(sizes[np.isfinite(sizes)], initial=0)))

    @property
    def size(self) -> tuple[float, float]:
        rows = -(-self.count // self.columns)
        return max(min(self.count, self.columns) * self.cell[0], 6.1 * len(self.name)), rows * self.cell[1] + LABEL

    def corner(self, cell: int) -> tuple[float, float]:
        row, column = divmod(cell, self.columns)
        return self.x + column * self.cell[0], self.y + LABEL + row * self.cell[1]


def _lanes_grid(name: str, shape: tuple[int, ...]) -> Grid:
    shape = tuple(size for size in shape if size > 1)
    count = int(np.prod(shape, dtype=int))
    if len(shape) < 2:
        if count <= 4 * LINE_OF_WORDS:
            return Grid(name, count, LINE_OF_WORDS, (19, WORD), True, False)
        return Grid(name, count, 64, (9, 9), False, False)
    columns = shape[-1]
    if columns <= LINE_OF_WORDS // 2 and count // columns <= 4:
        return Grid(name, count, columns, (19, WORD), True, False)
    side = max(3, min(11, SHADE // max(columns, count // columns)))
    return Grid(name, count, columns, (side, side), False, False)


def _memory_grid(memory: Memory, low: int, high: int) -> Grid:
    """The places from `low` to `high`, before and behind the tensor where lanes strayed."""
    steps = [stride for size, stride in zip(memory.shape, memory.strides, strict=True) if size > 1 and stride > 1]
    count = high - low
    columns = min(steps, default=0)
    columns = columns if 2 <= columns <= 128 else LINE_OF_WORDS if count <= 8 * LINE_OF_WORDS else 64
    columns = min(columns, count)
    rows = -(-count // columns)
    words = columns <= 20 and rows <= 8
    side = max(3, min(12, WIDTH // columns, MEMORY // rows))
    name = f"{memory.name}  {memory.dtype} {'×'.join(map(str, memory.shape)) or 'scalar'}"
    name = f"{name}, shared memory" if memory.shared and "shared" not in name else name
    return Grid(name, count, columns, (19, WORD) if words else (side, side), words, True, origin=low)


def _flow(grids: list[Grid], y: float) -> float:
    """Places grids side by side in lines, from `y` downwards; gives where they end."""
    x, lowest = 0.0, y
    for grid in grids:
        width, height = grid.size
        if x and x + width > WIDTH:
            x, y = 0.0, lowest
        grid.x, grid.y = x, y
        x, lowest = x + width + GAP, max(lowest, y + height + 6)
    return lowest


def _by_kind(grids: list[Grid], y: float) -> float:
    """Places single numbers, then numbers in lines, then tiles, from `y` downwards; gives where they end."""
    for kind in (
        lambda grid: grid.count == 1,
        lambda grid: grid.count > 1 and grid.words,
        lambda grid: not grid.words,
    ):
        y = _flow([grid for grid in grids if kind(grid)], y)
    return y


def word(value) -> str:
    """A number in five characters or so."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return str(value) if abs(value) < 100_000 else f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    if np.isnan(value):
        return "nan"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if value == 0 or 0.01 <= size < 10:
        shown = f"{value:.2f}".rstrip("0").rstrip(".")
    elif 10 <= size < 10_000:
        shown = f"{value:.1f}".removesuffix(".0") if size < 1000 else f"{value:.0f}"
    else:
        shown = f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return shown.replace("-", "−", 1) if shown.startswith("-") else shown


@dataclass
class Frame:
    """The changes of a step. `cells`: [first, codes, texts] of adjacent cells; `lit`: grids; `now`: cells by operation;
    `boxes`: outlines of sectors; `flights`: (from, to) cells; `clear`: another program begins."""

    line: int
    program: int
    text: str
    read: int
    written: int
    clear: bool
    cells: list = field(default_factory=list)
    lit: list = field(default_factory=list)
    now: dict = field(default_factory=lambda: {"read": [], "written": [], "outside": []})
    boxes: list = field(default_factory=list)
    flights: list = field(default_factory=list)


class StepScene:
    """The grids of a recording, and a frame for each of its steps."""

    def __init__(self, recording: Recording):
        self.recording = recording
        self.programs = list(dict.fromkeys(step.program for step in recording.steps))
        several = [any(program[axis] for program in self.programs) for axis in range(3)]
        self._axes = 3 if several[2] else 2 if several[1] or "," in recording.who else 1
        self._only_written: set[str] = set()  # the previous contents mean nothing
        self.memories = {name: self._memory(memory) for name, memory in recording.memories.items()}
        self.blocks: dict[tuple, Grid] = {}
        for step in recording.steps:
            function = recording.called.get(step.line) or ""
            for name, values in step.named.items():
                self._block(name, values, function)
            for move in step.moves:
                self._block(move.name, move.values, function)
        widths: dict[int, float] = {}  # tensors with equal columns are stacked, cell above cell
        for grid in self.memories.values():
            widths[grid.columns] = max(widths.get(grid.columns, 0), grid.cell[0] if grid.words else 0)
        for grid in self.memories.values():
            grid.cell = (widths[grid.columns], grid.cell[1]) if grid.words else grid.cell
        on_chip = [self.memories[name] for name, memory in recording.memories.items() if memory.shared]
        off_chip = [grid for grid in self.memories.values() if grid not in on_chip]
        self.chip = _flow(sorted(off_chip, key=lambda grid: grid.words), 18) + 14  # where it begins
        end = _flow(on_chip, self.chip + 8)
        # The blocks of called functions share one place: only those of the function that runs are shown.
        functions = dict.fromkeys(grid.function for grid in self.blocks.values())
        own = [grid for grid in self.blocks.values() if not grid.function]
        end = _by_kind(own, end)
        called = [[grid for grid in self.blocks.values() if grid.function == name] for name in functions if name]
        self.height = max((_by_kind(grids, end) for grids in called), default=end) + 4
        self.grids = [*self.memories.values(), *self.blocks.values()]
        first = 0
        for grid in self.grids:
            grid.first, first = first, first + grid.count
        self.cells = first
        self._first_block = min((grid.first for grid in self.blocks.values()), default=first)
        self.initial = [self._before(memory) for memory in recording.memories.values()]
        last, held = None, {}  # per program, the contents of its cells: warps take turns
        self.frames = []
        for step in recording.steps:
            frame = self._frame(step, step.program != last)
            own = held.setdefault(step.program, {})
            kept = list(own.values()) if frame.clear else []
            own.update({cells[0]: cells for cells in frame.cells if cells[0] >= self._first_block})
            frame.cells = kept + frame.cells
            self.frames.append(frame)
            last = step.program

    def _memory(self, memory: Memory) -> Grid:
        moves = [move for step in self.recording.steps for move in step.moves if move.memory == memory.name]
        low, high = 0, len(memory.before)
        for move in moves:
            for place in move.elements[move.outside]:
                if -BEYOND <= place < high + BEYOND:
                    low, high = min(low, int(place)), max(high, int(place) + 1)
        grid = _memory_grid(memory, low, high)
        found = [move.values[move.active] for move in moves if move.kind != "read"]
        if memory.shared or all(move.kind == "write" for move in moves):
            self._only_written.add(memory.name)
        else:
            found.append(memory.before)
        grid.fit([*found, memory.before[:0]])
        return grid

    def _block(self, name: str, values: np.ndarray, function: str) -> Grid:
        grid = self.blocks.get((name, values.shape))
        if grid is None:
            grid = self.blocks[name, values.shape] = _lanes_grid(name, values.shape)
            grid.function = function
        if grid.function != function:
            grid.function = ""
        grid.fit([np.ma.filled(values, 0)])
        return grid

    def _texts(self, grid: Grid, values) -> list[str]:
        if grid.words:
            return [word(value) for value in values]
        if grid.memory:
            return [""] * len(values)  # what was touched matters more there
        scaled = np.nan_to_num(values.astype(float), nan=0, posinf=0, neginf=0) / (grid.largest or 1)
        return [str(int(shade)) for shade in np.sign(scaled) * np.ceil(9 * abs(scaled))]

    def _before(self, memory: Memory) -> list:
        grid = self.memories[memory.name]
        codes = np.full(grid.count, CODES["outside"])
        codes[-grid.origin :][: len(memory.own)] = np.where(memory.own, CODES["empty"], CODES["gap"])
        texts = [""] * grid.count
        if memory.name in self._only_written:
            return [grid.first, "".join(codes), texts]
        for place, text in zip(np.flatnonzero(memory.own), self._texts(grid, memory.before[memory.own]), strict=True):
            texts[place - grid.origin] = text
        return [grid.first, "".join(codes), texts]

    def _frame(self, step: KernelStep, clear: bool) -> Frame:
        number, _ = self.recording.source[step.line]
        program = self.programs.index(step.program)
        told = self._told(step)
        called = self.recording.called.get(step.line)
        line = f"{called}, line {number}" if called else f"line {number}"
        text = f"{self.recording.who.capitalize()} {self.name(step.program)}, {line}: {told}."
        frame = Frame(step.line, program, text, step.read, step.written, clear)
        codes = {}
        for name, values in step.named.items():
            idle = np.ma.getmaskarray(values).ravel()
            codes[name, values.shape] = np.where(idle, CODES["masked"], CODES["value"]), np.ma.filled(values, 0)
        for move in step.moves:
            key = move.name, move.values.shape
            mine, values = codes.get(key, (np.full(move.values.size, CODES["value"]), move.values))
            mine = np.where(move.active.ravel(), mine, CODES["masked"])
            codes[key] = np.where(move.outside.ravel(), CODES["outside"], mine), values
        for key, (code, values) in codes.items():
            grid = self.blocks[key]
            texts = self._texts(grid, values.ravel())
            interpreted = key[0] in step.named and not np.ma.isMaskedArray(step.named[key[0]])
            unknown = _garbage(values.ravel()) if interpreted else np.ones(values.size, bool)
            for lane in np.flatnonzero((code == CODES["masked"]) & unknown):
                texts[lane] = ""
            if grid.words and key[0] not in step.named:
                for lane in np.flatnonzero(code == CODES["outside"]):
                    texts[lane] = "?"  # nothing was read there, and no memory has what was stored
            frame.cells.append([grid.first, "".join(code), texts])
            frame.lit.append(self.grids.index(grid))
        for move in step.moves:
            self._show(move, frame)
        return frame

    def _show(self, move: Move, frame: Frame) -> None:
        memory, grid = self.recording.memories[move.memory], self.memories[move.memory]
        block = self.blocks[move.name, move.values.shape]
        places = move.elements.ravel() - grid.origin
        drawn = move.active.ravel() & (places >= 0) & (places < grid.count)
        outside = drawn & move.outside.ravel()
        inside = drawn & ~outside
        way = "read" if move.kind == "read" else "written"
        there = (places[inside] + grid.first).tolist()
        values = dict(zip(there, self._texts(grid, move.values.ravel()[inside]), strict=True))
        cells = sorted(values)
        frame.now[way] += cells
        frame.now["outside"] += sorted(set((places[outside] + grid.first).tolist()))
        for first, count in _runs(cells):
            frame.cells.append([first, CODES[way] * count, [values[cell] for cell in range(first, first + count)]])
        for lane in np.flatnonzero(drawn):
            pair = [int(places[lane]) + grid.first, block.first + int(lane)]
            frame.flights.append(pair if way == "read" else pair[::-1])
        if memory.shared:
            return
        reached = move.elements[move.active & ~move.outside]
        everywhere = np.arange(grid.origin, grid.origin + grid.count)
        touched = np.isin((memory.first_byte + everywhere * memory.itemsize) // SECTOR, memory.sectors(reached))
        for first, count in _runs(np.flatnonzero(touched).tolist()):
            while count:  # a row at a time
                here = min(count, grid.columns - first % grid.columns)
                frame.boxes += _sector_boxes(memory, grid, first, here)
                first, count = first + here, count - here

    def name(self, program: tuple[int, ...]) -> str:
        """A program as the launch numbers it."""
        return str(program[0]) if self._axes == 1 else str(program[: self._axes])

    @property
    def _has_warps(self) -> bool:
        """Return whether it steps through warps of threads, as in CUDA C++."""
        return "," in self.recording.who

    def _told(self, step: KernelStep) -> str:
        parts = []
        for move in step.moves:
            active, lanes = int(move.active.sum()), move.active.size
            does = {"read": "read", "write": "write"}.get(move.kind, "change")
            what = "lanes" if self._has_warps else "positions"
            who = f"{active} of {lanes} {what} {does}" if lanes > 1 else f"{does}s"
            memory = self.recording.memories[move.memory]
            # The meter counts what strays apart, also where it shares a sector with the tensor.
            touched = memory.sectors(move.elements[move.active]).size if move.outside.any() else move.sectors
            sectors = "" if memory.shared else f" in {touched} sector{'s' * (touched != 1)}"
            rest = "idle" if self._has_warps else "masked"
            masked = f", {lanes - active} {rest}" if active < lanes else ""
            outside = f", {int(move.outside.sum())} OUT OF BOUNDS" if move.outside.any() else ""
            parts.append(f"{who} {move.nbytes:,} B of {move.memory}{sectors}{masked}{outside}")
        moved = {move.name for move in step.moves}
        for name, values in step.named.items():
            if name not in moved:
                shape = " × ".join(map(str, values.shape))
                parts.append(f"{name} = {word(values.ravel()[0])}" if values.size == 1 else f"{name}: {shape} values")
        for expression, values in step.gave:
            parts.append(f"gives {expression}" + _equals(expression, values))
        return "; ".join(parts) or "nothing to move"

    def state(self, until: int) -> tuple[list[str], list[str]]:
        """Code and text of every cell after the frames up to `until`, as the browser's script works them out."""
        codes, texts = [CODES["empty"]] * self.cells, [""] * self.cells
        blocks = self._first_block
        for frame in [None, *self.frames[: until + 1]]:
            if frame is not None and frame.clear:
                count = self.cells - blocks
                codes[blocks:], texts[blocks:] = [CODES["empty"]] * count, [""] * count
            for first, new, words in self.initial if frame is None else frame.cells:
                codes[first : first + len(new)], texts[first : first + len(words)] = new, words
        return codes, texts

    def data(self) -> dict:
        """Return the data that the browser's script draws."""
        last = self.recording.steps[-1]
        return {
            "size": [WIDTH, self.height],
            "chip": self.chip,
            "kernel": self.recording.kernel,
            "who": self.recording.who,
            "source": [text for _, text in self.recording.source],
            "numbers": [number for number, _ in self.recording.source],
            "programs": [self.name(program) for program in self.programs],
            "grids": [
                [
                    grid.name, grid.x, grid.y, grid.columns, grid.count, *grid.cell, grid.words, grid.memory,
                    grid.first, grid.function,
                ]
                for grid in self.grids
            ],
            "functions": [self.recording.called.get(line) or "" for line in range(len(self.recording.source))],
            "initial": self.initial,
            "total": [last.read, last.written],
            "frames": [
                [
                    frame.line, frame.program, frame.text, frame.read, frame.written, frame.clear, frame.cells,
                    frame.lit, [frame.now["read"], frame.now["written"], frame.now["outside"]], frame.boxes,
                    frame.flights,
                ]
                for frame in self.frames
            ],
        }  # fmt: skip


def _equals(expression: str, values: list[np.ndarray]) -> str:
    """ " = 2.43 + 4 = 6.43", or the shape of anything but a single number."""
    if values[-1].size > 1:
        return f": {' × '.join(map(str, values[-1].shape))} values"
    *parts, value = (word(each.ravel()[0]) for each in values)
    return f" = {' + '.join(parts)} = {value}" if parts else f" = {value}"


def _garbage(values: np.ndarray) -> np.ndarray:
    """Return where a masked lane without `other` holds garbage: the runtime puts NaN there, or this number."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    return values == np.frombuffer(b"\x5a" * values.dtype.itemsize, values.dtype)[0]


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """(first, count) of neighbours in rising numbers."""
    runs = []
    for number in numbers:
        if runs and sum(runs[-1]) == number:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((number, 1))
    return runs


def _sector_boxes(memory: Memory, grid: Grid, first: int, count: int) -> list[list[float]]:
    """[x, y, width, height, width of the line] of the sectors in `count` cells of one row."""
    x, y = grid.corner(first)
    places = grid.origin + first + np.arange(count)
    sectors = (memory.first_byte + places * memory.itemsize) // SECTOR
    boxes = []
    for sector in np.unique(sectors):
        at = np.flatnonzero(sectors == sector)
        boxes.append(
            [
                round(float(x + at[0] * grid.cell[0]), 1),
                y,
                round(at.size * grid.cell[0], 1),
                grid.cell[1],
                1.6 if grid.words else 0.8,
            ]
        )
    return boxes


PAINT = {"v": ("none", 1), "m": (TEXT, 0.45), "o": (WRONG, 0.9), "r": (READ, 0.25), "w": (WRITTEN, 0.35)}


def still(scene: StepScene, until: int) -> Chart:
    """A frame as a picture: the source around its line above, memory and lanes below."""
    frame, source = scene.frames[until], scene.recording.source
    lines = range(max(0, frame.line - AROUND), min(len(source), frame.line + AROUND + 1))
    top = 30 + 14 * len(lines) + 10
    height = top + scene.height
    title = f"{scene.recording.kernel}, {scene.recording.who} {scene.name(scene.programs[frame.program])}"
    codes, texts = scene.state(until)
    now = {cell: way for way, cells in frame.now.items() for cell in cells}
    with rc_context(STYLE):
        figure = Figure(figsize=((WIDTH + 20) / 72, height / 72))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-10, WIDTH + 10), ylim=(height, 0))
        axes.axis("off")
        axes.text(0, 17, title, size=TITLE_SIZE, weight="bold")
        counted = f"so far {frame.read:,} B read, {frame.written:,} B written"
        axes.text(WIDTH, 17, counted, ha="right")
        for at, line in enumerate(lines):
            _, text = source[line]
            lit = {"weight": "bold"} if line == frame.line else {}
            axes.text(0, 40 + 14 * at, f"{'▶' if lit else ' '} {text}", size=SMALL_SIZE, family=MONOSPACE, **lit)
        axes.plot((0, WIDTH), (top + scene.chip - 4,) * 2, color=TEXT, lw=0.8, ls="--")
        axes.text(WIDTH, top + 10, "memory", ha="right", style="italic")
        axes.text(WIDTH, top + scene.chip + 8, "on the chip", ha="right", style="italic")
        boxes, fills, edges = [], [], []
        running = scene.recording.called.get(frame.line) or ""
        for place, grid in enumerate(scene.grids):
            if grid.function not in ("", running):
                continue
            bold = {"weight": "bold"} if place in frame.lit else {}
            axes.text(grid.x, top + grid.y + LABEL - 4, grid.name, size=SMALL_SIZE, **bold)
            for cell in range(grid.count):
                code, text = codes[grid.first + cell], texts[grid.first + cell]
                x, y = grid.corner(cell)
                w, h = grid.cell
                inset = 1.5 if grid.words else 0.3
                x0, x1, y0, y1 = x + inset, x + w - inset, top + y + inset, top + y + h - inset
                boxes.append(((x0, y0), (x1, y0), (x1, y1), (x0, y1)))
                fill = _fill(code, text, grid.words, now.get(grid.first + cell))
                fills.append(fill)
                edges.append((TEXT, 0.25 if code in " g" and not grid.memory else 0.7))
                if grid.words and text:
                    ink = TEXT if fill == "none" else "black"
                    axes.text(
                        x + w / 2, top + y + h / 2, text, size=SMALL_SIZE, ha="center", va="center_baseline", color=ink
                    )
        axes.add_collection(PolyCollection(boxes, facecolors=fills, edgecolors=edges, linewidths=0.6))
        for x, y, w, h, line in frame.boxes:
            corners = ((x, x + w, x + w, x, x), (top + y, top + y, top + y + h, top + y + h, top + y))
            axes.plot(*corners, color=TEXT, lw=line)
    ends = scene.recording.steps[-1]
    total = f"The launch reads {ends.read:,} B and writes {ends.written:,} B."
    return Chart(figure, f"{title}, step {until + 1} of {len(scene.frames)}. {frame.text} {total}")


def _fill(code: str, text: str, words: bool, now: str | None):
    if now is not None:
        return _paint({"read": READ, "written": WRITTEN, "outside": WRONG}[now], 0.8, words)
    if not words and code == "v" and text not in ("", "0"):
        return (POSITIVE if int(text) > 0 else NEGATIVE), abs(int(text)) / 9
    colour, opacity = PAINT.get(code, ("none", 0))
    return "none" if colour == "none" else _paint(colour, opacity, words)


def _paint(colour: str, opacity: float, words: bool):
    """Return an opaque tint for under black text, readable on a dark page as well."""
    if not words:
        return colour, opacity
    return tuple(opacity * part + 1 - opacity for part in to_rgb(colour))


class Stepper(anywidget.AnyWidget):
    """The picture in the browser, with its controls."""

    _esm = javascript(_HERE / "stepper.js")
    _css = css(_HERE / "stepper.css")
    data = Dict().tag(sync=True)


class Watch:
    """The result of `watch`: displays the live figure; without a kernel, a still one. `text` describes it.

    `traffic` is the meter's account of the launch, `recording` the steps.
    """

    def __init__(self, traffic, recording: Recording):
        self.traffic, self.recording = traffic, recording
        self.scene = None if recording.too_large else StepScene(recording)

    @property
    def text(self) -> str:
        if self.scene is None:
            return (
                f"{self.recording.kernel} ran, but is too large to watch: {self.recording.too_large}. Use a few dozen "
                f"numbers in blocks of 4 to 64, or tiles of 16 × 16. {self.traffic}"
            )
        return self.chart().text

    def chart(self) -> Chart:
        """The last store, where a mask has the most to say.

        Raises:
            ValueError: the launch is too large.
        """
        if self.scene is None:
            raise ValueError(self.text)
        stores = [at for at, frame in enumerate(self.scene.frames) if frame.now["written"]]
        return still(self.scene, stores[-1] if stores else len(self.scene.frames) - 1)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None):
        if self.scene is None:
            return {"text/plain": self.text}
        return with_still(dict(widgets.VBox([Stepper(data=self.scene.data())])._repr_mimebundle_()), self.chart())


def watch(launch, *arguments, **more) -> Watch:
    """Run a launch and step through it: `watch(kernel[grid], *arguments, BLOCK=16)`, your own kernel too.

    Args:
        launch: `kernel[grid]`, or a function that launches one kernel.
        arguments, more: its arguments; tensors of a few dozen elements.

    Raises:
        ValueError: nothing was launched, or more than one kernel.
        Whatever the kernel raises.
    """
    return Watch(*record(launch, *arguments, **more))
