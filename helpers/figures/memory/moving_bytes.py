"""Animate the bytes that move: gelu(a + b) as two kernels and as one, side by side, on one scale and one clock.

Tiles of the tensors cross between memory and chip in the order in which the kernels ask for them. How long each way
takes in all is a recorded time; within it, every byte is taken to cross at the same pace.
"""

from helpers.figures.frame.animation import Animation, Bar, Counter, Film, MovingBox, Note
from helpers.figures.frame.chart import plain
from helpers.instruments.recordings import Recorded
from helpers.style import FUSED, PURPLE, UNFUSED

TILES = 16  # of each tensor, in the picture
WIDTH, BESIDE = 620, 20  # pixels
CELL, ROW = (15.5, 15), 28
MEMORY, CHIP = 58, 228  # tops
SUM = PURPLE  # what makes the useless trip
ITEM = 4  # bytes of a number


def trips(fused: bool) -> list[tuple[str, int, bool]]:
    """(tensor, tile, whether it goes to the chip) of each crossing, in order."""
    if fused:
        return [step for tile in range(TILES) for step in (("a", tile, True), ("b", tile, True), ("y", tile, False))]
    added = [step for tile in range(TILES) for step in (("a", tile, True), ("b", tile, True), ("a + b", tile, False))]
    return added + [step for tile in range(TILES) for step in (("a + b", tile, True), ("y", tile, False))]


def traffic_animation(run: Recorded, numbers: int = 100_000_000, count: str = "GB") -> Film:
    """The film, with the times of a recorded machine for add+GELU on as many fp32 numbers.

    Args:
        count: what is counted as it crosses, "GB" or "tiles": the latter where the reader is still to find the bytes.

    Raises:
        ValueError: those were not recorded; something else is to be counted.
    """
    if count not in ("GB", "tiles"):
        raise ValueError(f"the animation counts 'GB' or 'tiles', not {count!r}")
    times = run.times("add_gelu", (numbers,), "float32")
    ways = {"unfused": times["eager"].median, "fused": times["fused"].median}
    longest, movers, bars, notes, counters, boxes = max(ways.values()), [], [], [], [], []
    half = (WIDTH - BESIDE) / 2
    for place, (way, seconds) in enumerate(ways.items()):
        left, steps = place * (half + BESIDE), trips(way == "fused")
        colour = UNFUSED if way == "unfused" else FUSED
        each = seconds / len(steps)
        kernels = "two kernels" if way == "unfused" else "one kernel"
        notes.append(Note(f"{way}: {kernels}", left, 40, bold=True))
        notes += [Note("memory", left + half, MEMORY - 4, "right"), Note("chip", left + half, CHIP - 4, "right")]
        boxes.append((left, CHIP, half, 54))
        names = ["a", "b", "a + b", "y"] if way == "unfused" else ["a", "b", "y"]
        rows = {name: MEMORY + ROW * ["a", "b", "a + b", "y"].index(name) for name in names}
        for name, top in rows.items():
            notes.append(Note(name, left, top + 19))
            boxes.append((left + 40, top + 8, TILES * CELL[0], CELL[1]))
            if name in "ab":
                bars.append(Bar(left + 40, top + 8, TILES * CELL[0], CELL[1], 0.0, 0.0, colour, 0.25))
        for number, (name, tile, inwards) in enumerate(steps):
            paint = SUM if name == "a + b" else colour
            x, y = left + 40 + tile * CELL[0], rows[name] + 8
            inside = left + 40 + tile * CELL[0], CHIP + 8 + 14 * (name in ("b", "y"))
            ends = ((x, y), inside) if inwards else (inside, (x, y))
            start, end = number * each, min(seconds, (number + 2.5) * each)
            movers.append(MovingBox(*ends[0], *ends[1], CELL[0] - 1.5, 11, start, end, paint))
            if not inwards:
                bars.append(Bar(x + 0.75, y + 1.5, CELL[0] - 1.5, CELL[1] - 3, end, end, paint))
            elif name != "a + b":
                bars.append(Bar(x + 0.75, y + 1.5, CELL[0] - 1.5, CELL[1] - 3, start, start, paint, 0.5))
        moved, digits = (len(steps), 0) if count == "tiles" else (len(steps) / TILES * ITEM * numbers / 1e9, 2)
        counters.append(Counter(way, f"{{}} {count} have crossed", left, CHIP + 74, moved, 0.0, seconds, digits))
        counters.append(Counter(way, "clock: {} µs", left + 176, CHIP + 74, 1e6 * seconds, 0.0, seconds, 0))
    half_way = ways["unfused"] * 3 / 5
    told = (
        (
            0.0,
            "Both read a and b. The first of two kernels adds and writes the sum to memory; the fused one keeps it.",
        ),
        (half_way, "The second kernel reads the same sum back, to apply GELU: a wasted round trip."),
        (ways["unfused"], "Both have the same result."),
    )
    ratio = ways["unfused"] / ways["fused"]
    scene = Animation(
        (WIDTH, CHIP + 84), longest, 14.0, "µs", 1e6,
        f"The same result, {plain(ratio)} times faster: the sum never leaves the chip",
        tuple(movers), tuple(bars), tuple(notes), tuple(counters), tuple(boxes), told,
    )  # fmt: skip
    return Film({"add + GELU": scene}, frame=0.68)
