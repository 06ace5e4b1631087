"""Animate matmuls of few and many rows on one clock: memory and tensor cores both work, the slower sets the time."""

from helpers.figures.frame.animation import LINE, Animation, Bar, Counter, Film, Note, folded
from helpers.instruments import DEVICES, Roofline, Work
from helpers.style import GREEN, LIMIT, PURPLE

GPU, DTYPE = "A100", "fp16"
ROWS, SIZE = (32, 128, 512), 4096  # of x; its columns, and those of the result
LEFT, RIGHT, TOP = 120, 620, 46  # pixels
NARROW = 340  # RIGHT on a narrow page
LANE, OPERATION = 20, 72  # heights
WAITS = 0.22  # opacity of the time in which a resource has nothing left to do


def matmul(rows: int) -> Work:
    """Return the work of a (rows, SIZE) by (SIZE, SIZE) matmul, each tensor read or written once."""
    return Work(flops=2 * rows * SIZE * SIZE, bytes_read=2 * (rows * SIZE + SIZE * SIZE), bytes_written=2 * rows * SIZE)


def limits(rows: int) -> tuple[float, float]:
    """Return the seconds that memory takes for the bytes, and the tensor cores for the FLOPs, by the data sheet."""
    roof, work = Roofline(DEVICES[GPU], DTYPE), matmul(rows)
    return (work.bytes_read + work.bytes_written) / roof.device.memory_bandwidth, work.flops / roof.peak


def two_limits_animation() -> Film:
    """Return the film: for each matmul of ROWS its bytes and its arithmetic, as the data sheet's rates allow them."""
    return Film({"limits": _scene(RIGHT)}, frame=0.4, narrow={"limits": _scene(NARROW)})


def _scene(right: float) -> Animation:
    """Draw it as far as `right`."""
    title = folded("Bytes and arithmetic: whichever takes longer sets the time", right)
    lower = LINE * title.count("\n")
    taken = {rows: limits(rows) for rows in ROWS}
    seconds = max(map(max, taken.values()))
    scale = (right - LEFT) / seconds
    bars, notes, counters, boxes, told = [], [], [], [], [(0.0, "Memory and tensor cores work at the same time.")]
    for place, (rows, both) in enumerate(taken.items()):
        top, end = TOP + lower + place * OPERATION, max(both)
        notes.append(Note(f"{rows} rows × {SIZE} × {SIZE}", 0, top - 2, bold=True))
        counters.append(Counter(f"{rows} rows", "{} µs", right - 60, top - 2, 1e6 * end, 0.0, end, 1))
        for lane, (name, colour, done) in enumerate(
            zip(("memory", "tensor cores"), (GREEN, PURPLE), both, strict=True)
        ):
            y = top + 6 + lane * LANE
            notes.append(Note(name, LEFT - 8, y + 12, "right"))
            boxes.append((LEFT, y, right - LEFT, LANE - 4))
            bars.append(Bar(LEFT, y + 2, done * scale, LANE - 8, 0.0, done, colour))
            if done < end:
                bars.append(Bar(LEFT + done * scale, y + 2, (end - done) * scale, LANE - 8, done, end, LIMIT, WAITS))
        slower = "memory" if both[0] > both[1] else "the tensor cores"
        told.append((end, f"{rows} rows: {slower} finished last and set the time."))
    bottom = TOP + lower + len(ROWS) * OPERATION - 12
    notes.append(Note("grey: nothing left to do", LEFT, bottom))
    return Animation(
        (right + 4, bottom + 8), seconds, 8.0, "µs", 1e6, title, (), tuple(bars), tuple(notes),
        tuple(counters), tuple(boxes), tuple(sorted(told)),
    )  # fmt: skip
