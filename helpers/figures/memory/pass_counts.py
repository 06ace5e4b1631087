"""Animate the passes over tensors that kernels make, unfused and fused side by side, on one clock.

Each kernel goes over its tensors tile by tile: a tile of each that it reads comes to the chip, one of each that it
writes goes back, over a bus at their side. Each crossing takes as long as its bytes: the kernels are taken to wait
for memory alone.
"""

import collections
from dataclasses import dataclass

from helpers.figures.frame.animation import (
    Animation,
    Bar,
    Counter,
    Film,
    MovingBox,
    Note,
    Stack,
    flight,
    read_legend,
)
from helpers.style import FUSED, PURPLE, UNFUSED

TILES = 6  # of each tensor, in the picture
WIDTH, BESIDE = 620, 28  # pixels
NAMES = 66  # of the tensors, left of their tiles
CELL, ROW, TOP = (31, 12), 21, 58
NARROWEST = 5  # pixels of a tile: its outline shows that it was read
BUS, FRAME = 32, 5  # pixels: the bus's width, and from the memory's frame to its rows
CHIP = 54  # height
LEGEND = "written by one kernel, read by another"  # what is purple
STROKE, STROKES = (2.5, 6), 6.5  # pixels: a tally's stroke, and from one to the next
COUNTED = 17  # from the chip down to the number of crossings
REST = 0.2  # crossings from the last one's arrival to the film's end, with nothing in the chip
SECONDS, PACE = (12.0, 18.0), 3.0  # playing time, at least and at most, and crossings per second between


@dataclass(frozen=True)
class Pass:
    """One kernel: the tensors that it reads and writes."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Passes:
    """Both ways to compute one thing. `sizes`: of tensors whose elements are smaller, as a share of the others'."""

    unfused: tuple[Pass, ...]
    fused: tuple[Pass, ...]
    title: str
    sizes: tuple[tuple[str, float], ...] = ()

    def crossings(self, way: str) -> list[tuple[int, str, int, bool]]:
        """Return (kernel, tensor, tile, whether it goes to the chip) of each crossing, in order."""
        return [
            (number, tensor, tile, inwards)
            for number, each in enumerate(getattr(self, way))
            for tile in range(TILES)
            for tensors, inwards in ((each.reads, True), (each.writes, False))
            for tensor in tensors
        ]

    @property
    def tallied(self) -> bool:
        """Tell if a tensor is read more than once: its tiles then have a stroke per read."""
        reads = [tensor for each in self.unfused for tensor in each.reads]
        return len(set(reads)) < len(reads)

    def size(self, tensor: str) -> float:
        return dict(self.sizes).get(tensor, 1.0)

    def width(self, tensor: str) -> float:
        """Return the pixels of its tiles."""
        return max(NARROWEST, (CELL[0] - 4) * self.size(tensor))

    def moved(self, way: str) -> float:
        """Return the bytes moved, in bytes of one tensor."""
        return sum(self.size(tensor) for _, tensor, *_ in self.crossings(way)) / TILES


PASSES = {
    "chain": Passes(
        (
            Pass("x * scale", ("x",), ("scaled",)), Pass("+ bias", ("scaled",), ("shifted",)),
            Pass("ReLU", ("shifted",), ("y",)),
        ),
        (Pass("all three", ("x",), ("y",)),),
        "Each kernel of a chain reads what the one before it wrote",
    ),
    "dropout": Passes(
        (
            Pass("+ bias", ("x",), ("biased",)), Pass("dropout", ("biased",), ("dropped", "mask")),
            Pass("+ residual", ("dropped", "residual"), ("y",)), Pass("backward", ("dy", "mask"), ("dx",)),
        ),
        (Pass("forward", ("x", "residual"), ("y",)), Pass("backward", ("dy",), ("dx",))),
        "Fused, the mask is never stored: the backward pass computes it again",
        (("mask", 0.25),),
    ),
    "norm": Passes(
        (
            Pass("mean", ("x",), ()), Pass("variance", ("x",), ()), Pass("normalise", ("x",), ("normed",)),
            Pass("ReLU", ("normed",), ("y",)),
        ),
        (Pass("a row is kept", ("x",), ("y",)),),
        "One program that keeps a row on the chip reads it once",
    ),
    "convolution": Passes(
        (
            Pass("convolution", ("x",), ("sums",)), Pass("batch norm", ("sums",), ("normed",)),
            Pass("ReLU", ("normed",), ("y",)),
        ),
        (Pass("all three", ("x",), ("y",)),),
        "Batch norm and ReLU act on sums that are still in registers",
    ),
    "backward": Passes(
        (
            Pass("dy * w", ("dy",), ("scaled",)), Pass("mean", ("scaled", "x"), ()),
            Pass("dx", ("scaled", "x"), ("dx",)), Pass("dw", ("dy", "x"), ()),
        ),
        (Pass("dx and dw", ("dy", "x"), ("dx",)),),
        "Fused, RMSNorm's backward pass reads dy and x once",
    ),
    "int8": Passes(
        (
            Pass("LayerNorm", ("x",), ("normed",)), Pass("max |row|", ("normed",), ()),
            Pass("quantise", ("normed",), ("q, int8",)),
        ),
        (Pass("all three", ("x",), ("q, int8",)),),
        "Quantised where the row is computed, only small elements go back",
        (("q, int8", 0.5),),
    ),
    "mlp": Passes(
        (
            Pass("norm", ("x",), ("normed",)), Pass("gate", ("normed",), ("gate",)), Pass("up", ("normed",), ("up",)),
            Pass("SiLU", ("gate", "up"), ("hidden",)), Pass("down", ("hidden",), ("sums",)),
            Pass("+ x", ("sums", "x"), ("y",)),
        ),
        (
            Pass("norm", ("x",), ("normed",)), Pass("gate, up, SiLU", ("normed",), ("hidden",)),
            Pass("down, + x", ("hidden", "x"), ("y",)),
        ),
        "One way to fuse a gated MLP: three of its activations never reach memory",
    ),
    "compiled": Passes(
        (
            Pass("matmul", ("x",), ("sums",)), Pass("+ bias", ("sums",), ("biased",)),
            Pass("GELU", ("biased",), ("acted",)), Pass("+ residual", ("acted", "residual"), ("y",)),
        ),
        (Pass("matmul", ("x",), ("sums",)), Pass("the rest, generated", ("sums", "residual"), ("y",))),
        "torch.compile writes one kernel for the elementwise steps after a matmul",
    ),
    "decode": Passes(
        (
            Pass("q · keys", ("keys",), ("scores",)), Pass("softmax", ("scores",), ("weights",)),
            Pass("· values", ("weights", "values"), ("out",)),
        ),
        (Pass("all three", ("keys", "values"), ("out",)),),
        "For one token, the keys and values are nearly all the traffic",
        (("scores", 0.06), ("weights", 0.06), ("out", 0.06)),
    ),
}  # fmt: skip


def _chip(below: float) -> float:
    """Return the chip's top."""
    return below + 22


def _half(shown: Passes, way: str, left: float, below: float, half: float) -> tuple[list, list, list, list, float]:
    """Draw one way, its rows as far as `below`: its movers, bars, notes and boxes, and when it ends."""
    kernels, colour = getattr(shown, way), UNFUSED if way == "unfused" else FUSED
    read = {tensor for each in kernels for tensor in each.reads}
    written = {tensor for each in kernels for tensor in each.writes}
    tensors = list(dict.fromkeys(tensor for each in kernels for tensor in (*each.reads, *each.writes)))
    chip = _chip(below)

    def paint(tensor: str) -> str:
        return PURPLE if tensor in read & written else colour

    bus = left + half - BUS
    movers, bars, time, reads = [], [], 0.0, collections.Counter()
    count = f"{len(kernels)} kernels" if len(kernels) > 1 else "1 kernel"
    notes = [Note(f"{way}: {count}", left, 38, bold=True), Note("memory", bus - 8, TOP - FRAME - 4, "right")]
    notes += [Note("chip", left + 4, chip - 6), Note("bus", bus - 4, chip - 6, "right")]
    boxes = [
        (left, TOP - FRAME, half - BUS - 8, below - TOP + 2 * FRAME),
        (bus, TOP - FRAME, BUS, chip - TOP + FRAME),
        (left, chip, half, CHIP),
    ]
    rows = {tensor: TOP + ROW * number for number, tensor in enumerate(tensors)}
    for tensor, y in rows.items():
        notes.append(Note(tensor, left + NAMES - 6, y + 12, "right"))
        boxes.append((left + NAMES, y, TILES * CELL[0], CELL[1] + 4))
    arrived = {(tensor, tile): 0.0 for tensor in tensors if tensor not in written for tile in range(TILES)}
    first = {}
    pitch = (half - 8) / len(kernels)  # of their names in the chip
    spans = [[float("inf"), 0.0] for _ in kernels]
    for number, tensor, tile, inwards in shown.crossings(way):
        at, wide = (left + NAMES + tile * CELL[0] + 2, rows[tensor] + 2), shown.width(tensor)
        unit = left + 4 + (number + 0.5) * pitch - wide / 2, chip + 8
        lane = bus + (BUS - wide) / 2
        corners = [at, (lane, at[1]), (lane, unit[1]), unit]
        size = shown.size(tensor)
        end = time + size
        movers += flight(corners if inwards else corners[::-1], (wide, CELL[1]), time, end, paint(tensor))
        if not inwards:
            arrived[tensor, tile] = end
        else:
            first.setdefault((tensor, tile), time)
            if shown.tallied:
                reads[tensor, tile] += 1
                x = at[0] + STROKES * reads[tensor, tile]
                bars.append(Bar(x, at[1] + 3, *STROKE, time, time, paint(tensor)))
        spans[number] = [min(spans[number][0], time), max(spans[number][1], end)]
        time = end
    for (tensor, tile), start in arrived.items():
        at = left + NAMES + tile * CELL[0] + 2, rows[tensor] + 2
        size = shown.width(tensor), CELL[1]
        bars.append(Bar(*at, *size, start, start, paint(tensor), read=first.get((tensor, tile))))
    for number, (each, (start, end)) in enumerate(zip(kernels, spans, strict=True)):
        x = left + 4 + number * pitch
        notes.append(Note(each.name, x + pitch / 2, chip + 40, "center"))
        movers.append(MovingBox(x + 3, chip + 46, x + 3, chip + 46, pitch - 6, 4, start, end, colour))
    return movers, bars, notes, boxes, max(end for _, end in spans)


def _counter(shown: Passes, way: str, left: float, y: float) -> Counter:
    """Count a way's crossings as each of them is over; where elements differ in size, in tiles of the larger ones."""
    total = TILES * shown.moved(way)
    if shown.sizes:
        return Counter(way, "{} crossings, in full tiles", left, y, total, 0.0, total, 1)
    return Counter(way, "{} crossings", left, y, total, 0.0, total, 0, True)


def passes_animation(what: str) -> Film:
    """The film of one of PASSES.

    Raises:
        ValueError: none of these.
    """
    if what not in PASSES:
        raise ValueError(f"no passes {what!r} here: choose from {', '.join(PASSES)}")
    shown, half = PASSES[what], (WIDTH - BESIDE) / 2
    tensors = {tensor for each in shown.unfused for tensor in (*each.reads, *each.writes)}
    below = TOP + ROW * len(tensors) - FRAME
    chip = _chip(below)
    lefts = {"unfused": 0.0, "fused": half + BESIDE}
    halves = [_half(shown, way, left, below, half) for way, left in lefts.items()]
    counters = tuple(_counter(shown, way, left, chip + CHIP + COUNTED) for way, left in lefts.items())
    movers, bars, notes, boxes = (tuple(item for of in halves for item in of[part]) for part in range(4))
    ends, under = [of[4] for of in halves], chip + CHIP + COUNTED + 12
    tiles, said = read_legend(lefts["fused"], under + 9, "read, a stroke per read" if shown.tallied else "read")
    bars += (Bar(0, under, 10, 10, 0.0, 0.0, PURPLE), *tiles)
    notes += (Note(LEGEND, 16, under + 9), *said)
    seconds = max(ends) + REST
    told = (
        (0.0, "Every kernel reads its inputs from memory and writes its results there."),
        (ends[1], "The fused version is done."),
        (ends[0], "Both give the same result."),
    )
    plays = min(max(seconds / PACE, SECONDS[0]), SECONDS[1])
    scene = Animation(
        (WIDTH, under + 18), seconds, plays, "steps", 1.0, shown.title, movers, bars, notes, counters, boxes, told,
        counts=True,
    )  # fmt: skip
    return Film({what: scene}, frame=0.4, narrow=Stack(half + BESIDE, half + 4))
