"""Animate the bytes that move: gelu(a + b) as two kernels and as one, side by side, on one scale and one clock.

Tiles of the tensors cross between memory and chip in the order in which the kernels ask for them. How long each way
takes in all is a recorded time; within it, every byte is taken to cross at the same pace.
"""

from itertools import pairwise

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
from helpers.instruments.recordings import Recorded
from helpers.style import FUSED, PURPLE, UNFUSED

TILES = 16  # of each tensor, in the picture
WIDTH, BESIDE = 620, 20  # pixels
CELL, ROW = (14.4, 15), 26
MEMORY, CHIP = 58, 190  # tops
FRAMED = 4 * ROW + 4  # the memory's frame, around its four rows
BUS = 16  # pixels wide, at the right of memory and chip
UNIT, REGISTER = (56, 22), (48, 22)  # a unit of the chip, and the register on the wire between the two
SUM = PURPLE  # what makes the useless trip
LEGEND = "the sum: written, then read back"
REST = 0.75  # of the film: the fused kernel is done, and the second of the two reads the sum back
ITEM = 4  # bytes of a number
CROSSING = 2.0  # turns that a tile is in flight; one leaves at each turn


def trips(fused: bool) -> list[tuple[str, int, bool]]:
    """(tensor, tile, whether it goes to the chip) of each crossing, in order."""
    if fused:
        return [step for tile in range(TILES) for step in (("a", tile, True), ("b", tile, True), ("y", tile, False))]
    added = [step for tile in range(TILES) for step in (("a", tile, True), ("b", tile, True), ("a + b", tile, False))]
    return added + [step for tile in range(TILES) for step in (("a + b", tile, True), ("y", tile, False))]


def _glow(x: float, start: float, end: float, paint: str, size: tuple[float, float] = UNIT) -> MovingBox:
    """A unit at work: its lower edge is lit, so that its name stays readable."""
    y = CHIP + 20 + (UNIT[1] + size[1]) / 2 - 5
    return MovingBox(x + 1, y, x + 1, y, size[0] - 2, 4, max(0.0, start), end, paint)


def traffic_animation(run: Recorded, numbers: int = 100_000_000, count: bool = True) -> Film:
    """The film, with the times of a recorded machine for add+GELU on as many fp32 numbers.

    Args:
        count: whether it counts the bytes that have crossed; no if the reader has yet to find them.

    Raises:
        ValueError: those were not recorded.
    """
    times = run.times("add_gelu", (numbers,), "float32")
    ways = {"unfused": times["eager"].median, "fused": times["fused"].median}
    longest = max(ways.values())
    movers, bars, notes, counters, boxes = [], [], [], [], []
    half = (WIDTH - BESIDE) / 2
    moved = {way: len(trips(way == "fused")) for way in ways}
    for place, (way, seconds) in enumerate(ways.items()):
        left, steps = place * (half + BESIDE), trips(way == "fused")
        colour = UNFUSED if way == "unfused" else FUSED
        turn = seconds / (len(steps) + 1 + CROSSING)
        kernels = "two kernels" if way == "unfused" else "one kernel"
        notes.append(Note(f"{way}: {kernels}", left, 40, bold=True))
        names = ["a", "b", "a + b", "y"] if way == "unfused" else ["a", "b", "y"]
        rows = {name: MEMORY + ROW * number for number, name in enumerate(["a", "b", "a + b", "y"]) if name in names}
        for name, top in rows.items():
            notes.append(Note(name, left + 4, top + 19))
            boxes.append((left + 40, top + 8, TILES * CELL[0], CELL[1]))
        bus = left + half - BUS
        framed = bus - 8 - left
        boxes += [(left, MEMORY, framed, FRAMED), (bus, MEMORY, BUS, CHIP - MEMORY), (left, CHIP, half, 72)]
        notes += [
            Note("memory", left + framed, MEMORY - 4, "right"),
            Note("bus", bus - 4, CHIP - 6, "right"),
            Note("chip", left + 4, CHIP + 14),
        ]
        # In the order of the computation: the adder, the register that holds the sum, the GELU unit.
        units = {"add": left + 52, "register": left + 132, "GELU": left + 204}
        sizes = {"add": UNIT, "register": REGISTER, "GELU": UNIT}
        for name, x in units.items():
            width, height = sizes[name]
            boxes.append((x, CHIP + 20 + (UNIT[1] - height) / 2, width, height))
            notes.append(Note("a + b" if name == "register" else name, x + width / 2, CHIP + 35, "center"))
        for one, other in pairwise(units):
            start = units[one] + sizes[one][0]
            boxes.append((start, CHIP + 20 + UNIT[1] / 2, units[other] - start, 0.1))
        notes.append(Note("register", units["register"] + REGISTER[0] / 2, CHIP + 52, "center"))
        arrived = {(name, tile): 0.0 for name in "ab" for tile in range(TILES)}
        read = {}
        for number, (name, tile, inwards) in enumerate(steps):
            paint = SUM if name == "a + b" else colour
            x, y = left + 40 + tile * CELL[0], rows[name] + 8
            unit = {"y": "GELU", "a + b": "GELU" if inwards else "register"}.get(name, "add")
            # A tile in leaves memory at its turn; one out leaves the chip once its inputs have arrived.
            start = (number if inwards else number - 1 + CROSSING) * turn
            inside = (
                units[unit] + sizes[unit][0] / 2 - CELL[0] / 2,
                CHIP + (6 if inwards else 57),
            )  # below the register's name
            corners = [(x, y + 2), (bus + 1, y + 2), (bus + 1, inside[1]), inside]
            end = start + CROSSING * turn
            movers += flight(corners if inwards else corners[::-1], (CELL[0] - 1.5, 11), start, end, paint)
            if inwards:
                read[name, tile] = start
            else:
                arrived[name, tile] = end
                working = units["add" if name == "a + b" else "GELU"]
                movers.append(_glow(working, start - turn, start + 0.4 * turn, paint))
                if name == "a + b" or way == "fused":
                    movers.append(_glow(units["register"], start - 0.8 * turn, start + 0.4 * turn, SUM, REGISTER))
                if way == "fused":
                    movers.append(_glow(units["add"], start - turn, start - 0.3 * turn, paint))
        for (name, tile), start in arrived.items():
            at, paint = (left + 40.75 + tile * CELL[0], rows[name] + 9.5), SUM if name == "a + b" else colour
            bars.append(Bar(*at, CELL[0] - 1.5, CELL[1] - 3, start, start, paint, read=read.get((name, tile))))
        bars.append(Bar(left, CHIP + 92, half * moved[way] / max(moved.values()), 14, 0.0, seconds, colour))
        if count:
            crossed = moved[way] / TILES * ITEM * numbers / 1e9
            counters.append(Counter(way, "{} GB have crossed", left, CHIP + 88, crossed, 0.0, seconds))
        clock = left + 176 if count else left
        counters.append(Counter(way, "clock: {} µs", clock, CHIP + 88, 1e6 * seconds, 0.0, seconds, 0))
    under = CHIP + 126
    legend, said = read_legend(half + BESIDE, under)
    bars += [Bar(0, under - 9, 10, 10, 0.0, 0.0, SUM), *legend]
    notes += [Note(LEGEND, 16, under), *said]
    half_way = ways["unfused"] * 3 / 5
    told = (
        (
            0.0,
            "Unfused, the first kernel adds a and b and writes the sum to memory. Fused, the sum stays on the chip.",
        ),
        (half_way, "The second kernel reads the same sum back, to apply GELU: a wasted round trip."),
        (ways["unfused"], "Both give the same result. Only the unfused version moved the sum, out and back."),
    )
    scene = Animation(
        (WIDTH, under + 8), longest, 14.0, "µs", 1e6,
        "The same result, but fused, the sum never leaves the chip",
        tuple(movers), tuple(bars), tuple(notes), tuple(counters), tuple(boxes), told,
    )  # fmt: skip
    return Film({"add + GELU": scene}, frame=REST, narrow=Stack(half + BESIDE, half + 4, room=3))
