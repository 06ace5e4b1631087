"""Animate a fusion plan for a chain: edge after edge is fused or refused, and the bytes that cross memory fall."""

from itertools import pairwise

from helpers.figures.frame.animation import LINE, Animation, Bar, Film, MovingBox, Note, folded
from helpers.figures.frame.chart import si
from helpers.instruments.fusion.plan import FusionPlan
from helpers.style import FUSED, LIMIT, UNFUSED, WRONG

ASKED, ANSWERED = 1.0, 2.0  # of the clock: when an edge is fused or refused, and when the next one is asked
FAINT = 0.3  # opacity of an operation
TITLE = "Fusing an edge takes its tensor out of memory"


def _chain(plan: FusionPlan) -> None:
    """Raise ValueError unless each operation but the last has one reader, the next."""
    names = [each.name for each in plan.operations]
    if [(each.producer, each.consumer) for each in plan.edges] != list(pairwise(names)):
        raise ValueError("the film shows a chain: each operation but the last read by the next one alone")


def bytes_after(plan: FusionPlan) -> list[int]:
    """Return the bytes moved before the first edge is decided, and after each: a fused one saves a write and a read.

    An operation's other outputs, such as a norm's statistics, always count.
    """
    found = [plan.bytes_unfused]
    for each in plan.edges:
        fused = (each.producer, each.consumer) in plan.fused_edges
        found.append(found[-1] - 2 * each.nbytes * fused)
    return found


def _scene(plan: FusionPlan, upright: bool) -> Animation:
    """Draw it, the chain from left to right, or from top to bottom where it is `upright`, for a narrow page."""
    width, left = (346, 0) if upright else (624, 60)
    title = folded(TITLE, width)
    top = 40 + LINE * title.count("\n") + (18 if upright else 0)
    node, gap, deep, memory, tensor = (28, 20, 96, 190, 22) if upright else (78, 18, 30, 82, 40)
    thick, joint = (80, 40) if upright else (20, 14)  # of a tensor and of a joint, across the chain

    def rectangle(along: float, across: float, length: float, depth: float) -> tuple[float, float, float, float]:
        if upright:
            return left + across, top + along, depth, length
        return left + along, top + across, length, depth

    names = [each.name.removeprefix("native_") for each in plan.operations]
    seconds = ANSWERED * len(plan.edges) + 2.0
    movers, bars, boxes, notes = [], [], [], []
    told = [(0.0, f"{len(names)} kernels, and every result goes through memory.")]
    for number, name in enumerate(names):
        place = rectangle(number * (node + gap), 0, node, deep)
        boxes.append(place)
        notes.append(Note(name, place[0] + place[2] / 2, place[1] + place[3] / 2 + 4, "center"))
    if upright:
        notes += [Note("kernels", deep / 2, top - 8, "center", True)]
        notes += [Note("memory", memory + thick / 2, top - 8, "center", True)]
    else:
        notes += [Note("kernels", 0, top + 19, bold=True), Note("memory", 0, top + memory + 14, bold=True)]
    moved, kernels, coloured = bytes_after(plan), len(names), set()
    for number, edge in enumerate(plan.edges):
        asked, middle = ANSWERED * number, number * (node + gap) + node + gap / 2
        answered = asked + ASKED
        fused = (edge.producer, edge.consumer) in plan.fused_edges
        end = answered if fused else seconds + 1
        place = rectangle(middle - tensor / 2, memory, tensor, thick)
        boxes.append(place)
        size = si(edge.nbytes, "B")
        if upright:
            notes.append(Note(size, place[0] + place[2] + 8, place[1] + 15))
        else:
            notes.append(Note(size, place[0] + place[2] / 2, place[1] + place[3] + 13, "center"))
        ways = [rectangle(middle + side * (gap / 2 + 4) - 1.5, deep, 3, memory - deep) for side in (-1, 1)]
        gone = [rectangle(middle - tensor / 2 + 2, memory + 2, tensor - 4, thick - 4), *ways]
        movers += [MovingBox(x, y, x, y, w, h, -1.0, end, UNFUSED) for x, y, w, h in gone]
        x, y, w, h = rectangle(middle - gap / 2, (deep - joint) / 2, gap, joint)
        movers.append(MovingBox(x, y, x, y, w, h, asked, answered, LIMIT))
        producer, consumer = names[number], names[number + 1]
        told.append((asked, f"May {producer} and {consumer} share a kernel?"))
        if fused:
            kernels -= 1
            bars.append(Bar(x, y, w, h, answered, answered, FUSED))
            for each in sorted({number, number + 1} - coloured):
                bars.append(Bar(*rectangle(each * (node + gap), 0, node, deep), answered, answered, FUSED, FAINT))
            coloured |= {number, number + 1}
            fell = f"{si(moved[number], 'B')} become {si(moved[number + 1], 'B')}, in {kernels} kernels"
            told.append((answered, f"Yes: {edge.reason}. {fell}."))
        else:
            movers.append(MovingBox(x, y, x, y, w, h, answered, seconds + 1, WRONG))
            told.append((answered, f"No: {edge.reason}."))
    told.append((seconds - 1, f"{kernels} kernels of {len(names)} are left, and {si(moved[-1], 'B')} of traffic."))
    low = top + (len(names) * (node + gap) + 18 if upright else memory + thick + 48)
    notes.append(Note("bytes moved", 0, low if upright else low + 13, bold=True))
    start, low = (0, low + 8) if upright else (84, low)
    room = width - start - 4
    boxes.append((start, low, room, 18))
    for number, value in enumerate(moved):
        begin = -1.0 if not number else ANSWERED * (number - 1) + ASKED - 0.01
        end = ANSWERED * number + ASKED if number < len(plan.edges) else seconds + 1
        at = start + 2, low + 2
        movers.append(MovingBox(*at, *at, (room - 4) * value / moved[0], 14, begin, end, UNFUSED))
    notes.append(Note("0", start, low + 32))
    notes.append(Note(f"{si(moved[0], 'B')}, all apart", start + room, low + 32, "right"))
    legend = ("orange: through memory", "blue: in one kernel", "grey: asked", "red: refused")
    lines = [", ".join(legend[:2]), ", ".join(legend[2:])] if upright else [", ".join(legend)]
    notes += [Note(line, start, low + 52 + 15 * number) for number, line in enumerate(lines)]
    bottom = low + 44 + 15 * len(lines)
    return Animation(
        (width, bottom), seconds, 14.0, "steps", 0.5, title, tuple(movers), tuple(bars), tuple(notes), (),
        tuple(boxes), tuple(told),
    )  # fmt: skip


def chain_animation(plan: FusionPlan) -> Film:
    """Return the film of a plan for a chain of operations.

    Raises:
        ValueError: the operations are not a chain.
    """
    _chain(plan)
    return Film({"chain": _scene(plan, False)}, frame=0.62, narrow={"chain": _scene(plan, True)})
