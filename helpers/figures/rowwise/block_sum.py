"""Animate a block's sum as its threads make it: shuffles within each warp, then shared memory and a barrier."""

from helpers.figures.frame.animation import Animation, Bar, Film, MovingBox, Note, Stack, read_legend
from helpers.style import FUSED, GREEN, LIMIT, PURPLE, UNFUSED

WARPS, LANES = 4, 8  # drawn; a warp has 32 lanes
LANE, WARP = 17, 156  # pixels from one to the next
BOX, SENT = 14, 6  # sides of a lane's box and of the value it sends
ELEMENTS, SUMS, SHARED = 62, 124, 206  # tops of the rows
FLIGHT = 0.8  # of a step
TITLE = "tl.sum is one call; in CUDA each step is yours"


def shuffles(lanes: int) -> list[int]:
    """Return how far each shuffle reaches, in order."""
    return [1 << bit for bit in reversed(range(lanes.bit_length() - 1))]


def held(lanes: int) -> list[set[int]]:
    """Return the lanes whose elements lane 0's sum has: after the loads, and after each shuffle."""
    sums = [{lane} for lane in range(lanes)]
    found = [sums[0]]
    for far in shuffles(lanes):
        sums = [sums[lane] | sums[lane ^ far] for lane in range(lanes)]
        found.append(sums[0])
    return found


def _left(warp: int, lane: int) -> float:
    return warp * WARP + lane * LANE


def block_sum_animation() -> Film:
    """Return the film of one block's sum."""
    movers, bars, boxes, notes, told = [], [], [], [], []
    lanes = [(warp, lane) for warp in range(WARPS) for lane in range(LANES)]

    def send(start: float, x0: float, y0: float, x1: float, y1: float, colour: str) -> None:
        movers.append(MovingBox(x0 + 4, y0 + 4, x1 + 4, y1 + 4, SENT, SENT, start, start + FLIGHT, colour))

    def hold(start: float, x: float, y: float, part: float, colour: str) -> None:
        bars.append(Bar(x + 1, y + 1, (BOX - 2) * part, BOX - 2, start, start, colour))

    told.append((0.0, "Each thread loads its element."))
    for warp, lane in lanes:
        x = _left(warp, lane)
        boxes += [(x, ELEMENTS, BOX, BOX), (x, SUMS, BOX, BOX)]
        bars.append(Bar(x + 1, ELEMENTS + 1, BOX - 2, BOX - 2, 0.0, 0.0, UNFUSED, read=0.0))
        send(0.0, x, ELEMENTS, x, SUMS, UNFUSED)
    step = 1.0
    for far, summed in zip((0, *shuffles(LANES)), held(LANES), strict=True):
        if far:
            of = f"the lane {far} away" if far > 1 else "its neighbour"
            told.append((step, f"Shuffle: each lane adds the sum of {of}. No memory, and no barrier."))
            for warp, lane in lanes:
                send(step, _left(warp, lane ^ far), SUMS, _left(warp, lane), SUMS, PURPLE)
            step += 1
        for warp, lane in lanes:
            hold(step - 1 + FLIGHT, _left(warp, lane), SUMS, len(summed) / LANES, FUSED)
    told.append((step, "Shuffles don't cross warps: lane 0 of each warp stores its sum in shared memory."))
    for warp in range(WARPS):
        boxes.append((_left(warp, 0), SHARED, BOX, BOX))
        send(step, _left(warp, 0), SUMS, _left(warp, 0), SHARED, PURPLE)
        hold(step + FLIGHT, _left(warp, 0), SHARED, 1.0, FUSED)
    step += 1
    told.append((step, "Barrier: without it, a fast warp reads a sum that is not there yet."))
    for warp in range(WARPS):
        bars.append(Bar(_left(warp, 0), (SUMS + BOX + SHARED) / 2, LANES * LANE, 4, step, step + FLIGHT, LIMIT))
    waiting = step + FLIGHT  # all sums are stored, and none is read
    step += 1
    told.append((step, "Every thread adds the sums of all warps, one after the other."))
    for source in range(WARPS):
        for warp, lane in lanes:
            send(step + source, _left(source, 0), SHARED, _left(warp, lane), SUMS, PURPLE)
    step += WARPS
    for warp, lane in lanes:
        hold(step - 1 + FLIGHT, _left(warp, lane), SUMS, 1.0, GREEN)
    told.append((step, "Every thread has the block's sum."))
    for warp in range(WARPS):
        notes += [
            Note(f"warp {warp}: elements", _left(warp, 0), ELEMENTS - 8, bold=True),
            Note("sums in registers", _left(warp, 0), SUMS - 8),
            Note("shared memory", _left(warp, 1) + 4, SHARED + 11),
        ]
    legend = (
        "blue: a warp's sum grows; green: the block's sum",
        "purple: sent; grey bar: barrier",
        f"a warp is drawn with {LANES} lanes, it has 32",
    )
    notes += [Note(line, 0, SHARED + 42 + 16 * number) for number, line in enumerate(legend)]
    tiles, said = read_legend(0, SHARED + 42 + 16 * len(legend))
    bars += tiles
    notes += said
    half = 2 * WARP
    scene = Animation(
        (WARPS * WARP, SHARED + 98), step + 1, 16.0, "steps", 1.0, TITLE, tuple(movers), tuple(bars), tuple(notes),
        (), tuple(boxes), tuple(told), counts=True,
    )  # fmt: skip
    return Film({"sum": scene}, frame=waiting / scene.seconds, narrow=Stack(half, half))
