"""Animate a fusion plan for a chain: edge after edge is fused or refused, and the bytes that cross memory fall."""

from dataclasses import dataclass
from itertools import pairwise

from helpers.figures.frame.animation import LINE, Animation, Bar, Film, MovingBox, Note, folded
from helpers.figures.frame.chart import si
from helpers.instruments.fusion.plan import FusionPlan
from helpers.style import FUSED, LIMIT, UNFUSED, WRONG

ASKED, ANSWERED = 1.0, 2.0  # of the clock: when an edge is fused or refused, and when the next one is asked
EDGE = 3  # pixels: the frame around an operation that shares a kernel
LEGEND = {UNFUSED: "through memory", FUSED: "in one kernel", LIMIT: "asked", WRONG: "refused"}
SWATCH = 10  # pixels
LETTER = 7.2  # pixels: an upper estimate
NUMBER = 62  # pixels for the bytes, at the end of their bar
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


@dataclass(frozen=True)
class _Layout:
    """Lay out a chain: from left to right, its memory below, or upright, its memory to the right.

    Lengths are along the chain, depths across it.
    """

    upright: bool
    width: int
    node: int  # length of an operation
    gap: int  # between two operations
    deep: int  # depth of an operation
    memory: int  # where the tensors begin
    tensor: int  # length of a tensor
    thick: int  # depth of a tensor
    joint: int  # depth of a joint

    @property
    def title(self) -> str:
        return folded(TITLE, self.width)

    @property
    def corner(self) -> tuple[int, int]:
        top = 40 + LINE * self.title.count("\n")
        return (0, top + 18) if self.upright else (60, top)

    def rectangle(self, along: float, across: float, length: float, depth: float) -> tuple[float, float, float, float]:
        left, top = self.corner
        if self.upright:
            return left + across, top + along, depth, length
        return left + along, top + across, length, depth

    def operation(self, number: int) -> tuple[float, float, float, float]:
        return self.rectangle(number * (self.node + self.gap), 0, self.node, self.deep)

    def _middle(self, number: int) -> float:
        """Return an edge's place along the chain."""
        return number * (self.node + self.gap) + self.node + self.gap / 2

    def home(self, number: int, inset: int = 0) -> tuple[float, float, float, float]:
        """The place of an edge's tensor in memory."""
        along, across = self._middle(number) - self.tensor / 2 + inset, self.memory + inset
        return self.rectangle(along, across, self.tensor - 2 * inset, self.thick - 2 * inset)

    def ways(self, number: int) -> list[tuple[float, float, float, float]]:
        """Return the line from an edge's operations to its tensor."""
        sides = (self._middle(number) + side * (self.gap / 2 + 4) - 1.5 for side in (-1, 1))
        return [self.rectangle(along, self.deep, 3, self.memory - self.deep) for along in sides]

    def between(self, number: int) -> tuple[float, float, float, float]:
        """The joint of an edge's operations."""
        along = self._middle(number) - self.gap / 2
        return self.rectangle(along, (self.deep - self.joint) / 2, self.gap, self.joint)

    def headings(self) -> list[Note]:
        top = self.corner[1]
        if self.upright:
            middles = {"kernels": self.deep / 2, "memory": self.memory + self.thick / 2}
            return [Note(name, x, top - 8, "center", True) for name, x in middles.items()]
        return [Note("kernels", 0, top + 19, bold=True), Note("memory", 0, top + self.memory + 14, bold=True)]

    def size_of(self, number: int, size: str, freed: float | None) -> Note:
        """Return the label of an edge's tensor, which goes with it."""
        x, y, width, height = self.home(number)
        if self.upright:
            return Note(size, x + width + 8, y + 15, end=freed)
        return Note(size, x + width / 2, y + height + 13, "center", end=freed)

    def low(self, operations: int) -> float:
        """Return the place of the label of all bytes."""
        along, across = operations * (self.node + self.gap) + 18, self.memory + self.thick + 61
        return self.corner[1] + (along if self.upright else across)

    def bar(self, operations: int) -> tuple[float, float, float]:
        """The bar of all bytes at its longest: x, y, width. Its number is to its right."""
        low = self.low(operations)
        x, y = (0, low + 8) if self.upright else (84, low - 13)
        return x, y, self.width - x - NUMBER


WIDE = _Layout(False, 624, node=78, gap=18, deep=30, memory=82, tensor=40, thick=20, joint=14)
NARROW = _Layout(True, 346, node=28, gap=20, deep=96, memory=190, tensor=22, thick=80, joint=40)


def _scene(plan: FusionPlan, layout: _Layout) -> Animation:
    names = [each.name.removeprefix("native_") for each in plan.operations]
    seconds = ANSWERED * len(plan.edges) + 2.0
    movers, bars, boxes, notes = [], [], [], layout.headings()
    told = [(0.0, f"{len(names)} kernels, and every result goes through memory.")]
    for number, name in enumerate(names):
        x, y, width, height = layout.operation(number)
        boxes.append((x, y, width, height))
        notes.append(Note(name, x + width / 2, y + height / 2 + 4, "center"))
    moved, kernels, coloured = bytes_after(plan), len(names), set()
    for number, edge in enumerate(plan.edges):
        asked = ANSWERED * number
        answered = asked + ASKED
        fused = (edge.producer, edge.consumer) in plan.fused_edges
        reason = edge.reason.replace("native_", "")  # as the operations are called here
        boxes.append(layout.home(number))
        notes.append(layout.size_of(number, si(edge.nbytes, "B"), answered if fused else None))
        through_memory = layout.home(number, inset=2), *layout.ways(number)
        movers += [_shown(place, -1.0, answered if fused else seconds + 1, UNFUSED) for place in through_memory]
        joint = layout.between(number)
        movers.append(_shown(joint, asked, answered, LIMIT))
        told.append((asked, f"May {names[number]} and {names[number + 1]} share a kernel?"))
        if fused:
            kernels -= 1
            bars.append(Bar(*joint, answered, answered, FUSED))
            for each in sorted({number, number + 1} - coloured):
                bars += _frame(layout.operation(each), answered)
            coloured |= {number, number + 1}
            fell = f"{si(moved[number], 'B')} become {si(moved[number + 1], 'B')}, in {kernels} kernels"
            told.append((answered, f"Yes: {reason}. {fell}."))
        else:
            movers.append(_shown(joint, answered, seconds + 1, WRONG))
            told.append((answered, f"No: {reason}. Still {si(moved[number], 'B')}."))
    told.append((seconds - 1, f"{kernels} kernels of {len(names)} are left, and {si(moved[-1], 'B')} of traffic."))
    x, y, room = layout.bar(len(names))
    notes.append(Note("bytes moved", 0, layout.low(len(names)), bold=True))
    boxes.append((x, y, room, 18))
    for number, value in enumerate(moved):
        begin = -1.0 if not number else ANSWERED * (number - 1) + ASKED - 0.01
        end = ANSWERED * number + ASKED if number < len(plan.edges) else seconds + 1
        wide = (room - 4) * value / moved[0]
        movers.append(_shown((x + 2, y + 2, wide, 14), begin, end, UNFUSED))
        notes.append(Note(si(value, "B"), x + wide + 8, y + 13, bold=True, start=begin, end=end))
    notes.append(Note("0", x, y + 32))
    notes.append(Note(f"{si(moved[0], 'B')}, unfused", x + room, y + 32, "right"))
    right, line = x, 0
    for colour, meaning in LEGEND.items():
        width = SWATCH + 6 + LETTER * len(meaning) + 14
        if right + width - 14 > layout.width:
            right, line = x, line + 1
        low = y + 52 + 18 * line
        bars.append(Bar(right, low - SWATCH + 1, SWATCH, SWATCH, -1.0, -1.0, colour))
        notes.append(Note(meaning, right + SWATCH + 6, low))
        right += width
    edges = len(plan.edges)
    moments = [(ANSWERED * number, f"edge {number + 1} of {edges}") for number in range(edges)]
    return Animation(
        (layout.width, y + 62 + 18 * line), seconds, 14.0, "edges", 0.5, layout.title, tuple(movers),
        tuple(bars), tuple(notes), (), tuple(boxes), tuple(told), moments=tuple(moments),
    )  # fmt: skip


def _shown(place: tuple[float, float, float, float], start: float, end: float, colour: str) -> MovingBox:
    """A box that stays where it is, visible between two times."""
    x, y, width, height = place
    return MovingBox(x, y, x, y, width, height, start, end, colour)


def _frame(place: tuple[float, float, float, float], start: float) -> list[Bar]:
    """A box's edge, so that the name in it stays readable."""
    x, y, width, height = place
    sides = [(x, y, EDGE, height), (x + width - EDGE, y, EDGE, height)]
    sides += [(x, y, width, EDGE), (x, y + height - EDGE, width, EDGE)]
    return [Bar(*side, start, start, FUSED) for side in sides]


def chain_animation(plan: FusionPlan) -> Film:
    """Return the film of a plan for a chain of operations.

    Raises:
        ValueError: the operations are not a chain.
    """
    _chain(plan)
    return Film({"chain": _scene(plan, WIDE)}, frame=0.62, narrow={"chain": _scene(plan, NARROW)})
