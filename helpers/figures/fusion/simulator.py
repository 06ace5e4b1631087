"""The simulator of lesson 13: a graph whose edges fuse and unfuse, by click and by key, and the cost at once.

Every kernel's cost and every refusal is the analyser's own (helpers/instruments/fusion), for each partition that legal
steps reach from the unfused graph, worked out beforehand: the page only looks up.
"""

import html
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.figures.frame.chart import Chart, si
from helpers.figures.frame.explorer import WIDTH_SCRIPT, Explorer, Stage, svg_opening, svg_title
from helpers.instruments.devices import Device
from helpers.instruments.fusion.analyser import costs_of
from helpers.instruments.fusion.cost import Costs
from helpers.instruments.fusion.drawing import kernel_colours, layers
from helpers.instruments.fusion.legality import NotLegalError, bits
from helpers.instruments.fusion.search import partition
from helpers.style import (
    FUSED,
    LIMIT,
    SMALL_SIZE,
    STYLE,
    TEXT,
    TEXT_SIZE,
    TITLE_SIZE,
    UNFUSED,
    javascript,
)

MAX_NODES, MAX_PARTITIONS = 12, 3000
BIG = 16  # tensors that two operations read count above this fraction of the largest: no biases
Partition = tuple[int, ...]  # the kernels, each as the bits of its operations, ascending


@dataclass(frozen=True)
class Handle:
    """A fusible pair: two operations where one reads the other's result, or that read the same tensor (`shared`)."""

    first: int
    second: int
    nbytes: int
    shared: bool

    @property
    def mask(self) -> int:
        return 1 << self.first | 1 << self.second


class Simulation:
    """Partitions of a graph into kernels, and the way from one to the next.

    Raises:
        ValueError: more operations than a picture holds, or more partitions than can be worked out beforehand.
    """

    def __init__(self, costs: Costs):
        self.costs, self.nodes = costs, costs.nodes
        if len(self.nodes) > MAX_NODES:
            raise ValueError(f"{len(self.nodes)} operations: the simulator shows {MAX_NODES}, analyse() takes any")
        self.names = [node.step.name for node in self.nodes]
        self.handles = _handles(self.nodes)
        self.apart: Partition = tuple(1 << node.index for node in self.nodes)
        self.best: Partition = tuple(sorted(partition(costs)))

    def kernel_of(self, place: int, groups: Partition) -> int:
        return next(mask for mask in groups if mask >> place & 1)

    def is_fused(self, handle: Handle, groups: Partition) -> bool:
        return self.kernel_of(handle.first, groups) == self.kernel_of(handle.second, groups)

    def step(self, groups: Partition, handle: Handle) -> Partition:
        """After fusing the two, or unfusing them.

        Raises:
            NotLegalError: why not.
        """
        one, other = self.kernel_of(handle.first, groups), self.kernel_of(handle.second, groups)
        parts = self._without(one, handle) if one == other else [one | other]
        then = tuple(sorted([*(mask for mask in groups if mask not in (one, other)), *parts]))
        for mask in parts:
            self.costs.of(mask)
        self._runs(then)
        return then

    def _without(self, mask: int, handle: Handle) -> list[int]:
        """The pieces that a kernel falls into without one of its edges."""
        left, pieces = mask, []
        kept = [each.mask for each in self.handles if each is not handle and each.mask & mask == each.mask]
        while left:
            piece, before = left & -left, 0
            while piece != before:
                before = piece
                for pair in kept:
                    if pair & piece:
                        piece |= pair
            pieces.append(piece)
            left &= ~piece
        if len(pieces) == 1:
            raise NotLegalError("other edges hold the two in one kernel: unfuse one of those first")
        return pieces

    def _runs(self, groups: Partition) -> None:
        """Return whether there is an order in which each kernel comes after all that it waits for."""
        done, left = 0, list(groups)
        while left:
            ready = [mask for mask in left if not self._before(mask) & ~(done | mask)]
            if not ready:
                waiting = ", ".join(self.names[bits(mask)[0]] for mask in left[:2])
                raise NotLegalError(f"the kernels of {waiting} would wait for one another")
            for mask in ready:
                done |= mask
                left.remove(mask)

    def _before(self, mask: int) -> int:
        found = 0
        for place in bits(mask):
            found |= self.nodes[place].before
        return found

    @cached_property
    def moves(self) -> dict[Partition, list[Partition | str]]:
        """Partition -> for each handle, the partition that it leads to, or why not."""
        found: dict[Partition, list[Partition | str]] = {}
        waiting = [self.apart, self.best]
        while waiting:
            groups = waiting.pop()
            if groups in found:
                continue
            if len(found) == MAX_PARTITIONS:
                raise ValueError(f"more than {MAX_PARTITIONS} partitions: show a smaller graph")
            found[groups] = []
            for handle in self.handles:
                try:
                    then = self.step(groups, handle)
                    waiting.append(then)
                except NotLegalError as error:
                    then = str(error)
                found[groups].append(then)
        return found

    def totals(self, groups: Partition) -> dict[str, float]:
        """Bytes, launches and seconds of all kernels together."""
        costs = [self.costs.of(mask) for mask in groups]
        return {
            "bytes": sum(each.work.bytes for each in costs),
            "launches": sum(each.launches for each in costs),
            "time": sum(each.time for each in costs),
        }

    @cached_property
    def eager(self) -> dict[str, float]:
        """Totals for eager PyTorch."""
        costs = self.costs.eager
        return {
            "bytes": sum(each.work.bytes for each in costs),
            "launches": sum(each.launches for each in costs),
            "time": sum(each.time for each in costs),
        }


def _handles(nodes) -> list[Handle]:
    found: dict[tuple[int, int], int] = {}
    for node in nodes:
        for link in node.links:
            pair = link.source, link.target
            found[pair] = max(found.get(pair, 0), link.nbytes)
    handles = [Handle(*pair, nbytes, shared=False) for pair, nbytes in sorted(found.items())]
    inputs: dict[tuple, list] = {}  # tensors, by the bytes read
    for node in nodes:
        for read in node.reads:
            inputs.setdefault(read.key, []).append((node.index, read.nbytes))
    largest = max((nbytes for readers in inputs.values() for _, nbytes in readers), default=0)
    for readers in inputs.values():
        for (first, nbytes), (second, _) in itertools.combinations(readers, 2):
            if nbytes * BIG >= largest and (first, second) not in found:
                found[first, second] = nbytes
                handles.append(Handle(first, second, nbytes, shared=True))
    return handles


def _text(simulation: Simulation, groups: Partition) -> str:
    """The line under the picture."""
    totals, best = simulation.totals(groups), simulation.totals(simulation.best)["time"]
    live = max(simulation.costs.of(mask).live for mask in groups)
    kernels = "; ".join(
        " + ".join(simulation.names[place] for place in bits(mask)) for mask in groups if mask.bit_count() > 1
    )
    where = "the best possible" if totals["time"] <= best * (1 + 1e-9) else f"the best is {si(best, 's')}"
    return (
        f"{si(totals['bytes'], 'B')}, {totals['launches']} launches, at most {live} values alive, "
        f"{si(totals['time'], 's')} predicted; {where}. Fused: {kernels or 'nothing'}."
    )


def _finding(simulation: Simulation, groups: Partition) -> str:
    gain = simulation.totals(simulation.apart)["time"] / simulation.totals(groups)["time"]
    if abs(gain - 1) < 0.005:
        return "As fast as unfused" if groups != simulation.apart else "Unfused: one kernel per operation"
    return f"{gain:.2f} times as fast as unfused" if gain > 1 else f"{1 / gain:.2f} times slower than unfused"


def _table(simulation: Simulation, groups: Partition) -> str:
    head = "<table><tr><th>kernel<th>of<th>bytes<th>launches<th>values alive<th>registers<th>predicted<th>bound by"
    rows = []
    for number, mask in enumerate(groups, 1):
        cost = simulation.costs.of(mask)
        names = html.escape(" + ".join(simulation.names[place] for place in bits(mask)))
        registers = f"{cost.registers}" if cost.registers else "PyTorch's"
        cells = si(cost.work.bytes, "B"), cost.launches, cost.live, registers, si(cost.time, "s"), cost.bound
        rows.append(f"<tr><th scope=row>{number} {names}<td>{cost.kind}<td>" + "<td>".join(map(str, cells)))
    return head + "".join(rows) + "</table>"


WIDTH = 576  # points of the whole picture
TOP, BELOW = 40, 12
BOX_HEIGHT, PITCH_Y, PILL_HEIGHT = 22, 46, 15
BARS_LEFT, BARS_WIDTH, BAR = 408, 150, 16
BARS = {"bytes": ("bytes", "B"), "launches": ("launches", ""), "time": ("predicted time", "s")}


@dataclass(frozen=True)
class Sizes:
    """Widths of a graph's parts, in points: all of it, a box, an edge's pill, and from one column to the next."""

    graph: float
    box: float
    pill: float
    pitch: float
    beside: float  # between a pill that goes round the boxes and these
    margin: float
    letters: float


WIDE = Sizes(BARS_LEFT - 29, 104, 54, 164, 24, 12, SMALL_SIZE)
NARROW = Sizes(264, 91, 44, 120, 10, 2, TEXT_SIZE)  # on a phone, a point is 1.33 pixels


@dataclass(frozen=True)
class Places:
    """The layout, in points, y downwards: boxes' corners, a curve and the middle of each handle."""

    boxes: list[tuple[float, float]]
    curves: list[tuple[tuple[float, float], ...]]
    pills: list[tuple[float, float]]
    height: float


def _places(simulation: Simulation, sizes: Sizes = WIDE) -> Places | None:
    """Return the layout; None if so few points have no room for its columns."""
    names, handles = simulation.names, simulation.handles
    at = layers(names, [(names[each.first], names[each.second]) for each in handles if not each.shared])
    columns, rows = [at[name][0] for name in names], [at[name][1] for name in names]
    round_about = [_is_hidden(each.first, each.second, columns, rows) for each in handles]
    left = sizes.pill + sizes.beside if any(round_about) else sizes.margin
    pitch = min(sizes.pitch, (sizes.graph - 1 - left - sizes.box) / max(1, *columns))
    if sizes is NARROW and pitch < sizes.box + 4:
        return None
    boxes = [(left + column * pitch, TOP + row * PITCH_Y) for column, row in zip(columns, rows, strict=True)]
    curves = []
    for each, around in zip(handles, round_about, strict=True):
        (x1, y1), (x2, y2) = boxes[each.first], boxes[each.second]
        middle = BOX_HEIGHT / 2
        if around:
            # A curve goes three quarters of the way to these.
            out = left - 4 / 3 * (left - (sizes.pill + sizes.margin) / 2)
            curve = (x1, y1 + middle), (out, y1 + middle), (out, y2 + middle), (x2, y2 + middle)
        elif y1 == y2 and not pitch >= abs(x2 - x1) > sizes.box + sizes.pill:
            depth = 30 * abs(x2 - x1) / pitch  # below the boxes, where there is room
            start, end = (x1 + sizes.box / 2, y1 + BOX_HEIGHT), (x2 + sizes.box / 2, y2 + BOX_HEIGHT)
            curve = start, (start[0], start[1] + depth), (end[0], end[1] + depth), end
        elif y1 == y2:
            curve = (x1 + sizes.box, y1 + middle), (x1 + sizes.box, y1 + middle), (x2, y2 + middle), (x2, y2 + middle)
        else:
            start, end = (x1 + sizes.box / 2, y1 + BOX_HEIGHT), (x2 + sizes.box / 2, y2)
            half = (y1 + BOX_HEIGHT + y2) / 2
            curve = start, (start[0], half), (end[0], half), end
        curves.append(curve)
    pills = [_at(curve, 0.5) for curve in curves]
    bottom = max(y for _, y in boxes) + BOX_HEIGHT
    bottom = max(bottom, _legend_y(), *(y + PILL_HEIGHT for _, y in pills))
    return Places(boxes, curves, pills, bottom + BELOW)


def _is_hidden(first: int, second: int, columns: list[float], rows: list[int]) -> bool:
    """Return whether a box is between two that have an edge."""
    between = [place for place, row in enumerate(rows) if rows[first] < row < rows[second]]
    for place in between:
        share = (rows[place] - rows[first]) / (rows[second] - rows[first])
        if abs(columns[first] + share * (columns[second] - columns[first]) - columns[place]) < 0.6:
            return True
    return rows[first] > rows[second]


def _at(curve: tuple, t: float) -> tuple[float, float]:
    """A point of the Bezier curve."""
    weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
    return tuple(sum(w * point[axis] for w, point in zip(weights, curve, strict=True)) for axis in (0, 1))


def _colours(simulation: Simulation, groups: Partition) -> list[str]:
    """Return each box's colour: its kernel's, grey if it is alone."""
    found = [LIMIT] * len(simulation.nodes)
    for mask, colour in zip(groups, kernel_colours([mask.bit_count() for mask in groups]), strict=True):
        for place in bits(mask):
            found[place] = colour
    return found


def _labels(simulation: Simulation, groups: Partition) -> list[str]:
    number = {place: count for count, mask in enumerate(groups, 1) for place in bits(mask)}
    return [f"{number[place]}  {_short(name)}" for place, name in enumerate(simulation.names)]


def _short(name: str) -> str:
    return name if len(name) <= 17 else f"{name[:16]}…"


def _said(simulation: Simulation, handle: Handle, fused: bool) -> str:
    return "one kernel" if fused else si(handle.nbytes, "B")


def _bars(simulation: Simulation, groups: Partition) -> list[tuple[float, float, float, float, str]]:
    """Return per total: y, width now, in eager PyTorch, in the best partition, label."""
    now, eager, best = simulation.totals(groups), simulation.eager, simulation.totals(simulation.best)
    found = []
    for number, (key, (name, unit)) in enumerate(BARS.items()):
        scale = BARS_WIDTH / max(eager[key], simulation.totals(simulation.apart)[key])
        label = f"{name}: {si(now[key], unit) if unit else int(now[key])}"
        most = 1.08 * BARS_WIDTH  # a partition may be slower than eager PyTorch
        widths = (min(most, each[key] * scale) for each in (now, eager, best))
        found.append((TOP + 30 + 50 * number, *widths, label))
    return found


LEGEND = "orange: eager PyTorch, grey: the best"


def _legend_y() -> float:
    return TOP + 50 * len(BARS) + 4


def _bars_svg(simulation: Simulation, groups: Partition) -> str:
    parts = [svg_title(_finding(simulation, groups), 12, 18)]
    for y, width, eager, best, label in _bars(simulation, groups):
        parts.append(f'<text x="{BARS_LEFT}" y="{y - 6:.1f}">{label}</text>')
        parts.append(f'<rect x="{BARS_LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{FUSED}"/>')
        for x, colour in ((eager, UNFUSED), (best, LIMIT)):
            parts.append(f'<path d="M{BARS_LEFT + x:.1f} {y - 3}v{BAR + 6}" stroke="{colour}" stroke-width="2"/>')
    parts.append(f'<text x="{BARS_LEFT}" y="{_legend_y() + 3}" font-size="{SMALL_SIZE}">{LEGEND}</text>')
    return "".join(parts)


def _graph_svg(simulation: Simulation, places: Places, sizes: Sizes = WIDE) -> str:
    """The graph, its handles switches: simulator.js sets what is fused."""
    parts = []
    for number, (curve, (x, y)) in enumerate(zip(places.curves, places.pills, strict=True)):
        handle = simulation.handles[number]
        first, second = (html.escape(simulation.names[place]) for place in (handle.first, handle.second))
        (a, b), *rest = curve
        path = f"M{a:.1f} {b:.1f}C" + " ".join(f"{c:.1f} {d:.1f}" for c, d in rest)
        dashes = ' stroke-dasharray="4 3"' if handle.shared else ""
        name = f"{first} and {second}, which read the same tensor" if handle.shared else f"{first} to {second}"
        parts.append(
            f'<g class="fusion-edge" role="switch" tabindex="0" aria-checked="false" aria-label="{name}">'
            f'<path d="{path}" fill="none" stroke="{LIMIT}" stroke-width="1.5"{dashes}/>'
            f'<rect x="{x - sizes.pill / 2:.1f}" y="{y - PILL_HEIGHT / 2:.1f}" width="{sizes.pill}" '
            f'height="{PILL_HEIGHT}" rx="7" stroke="{LIMIT}"/>'
            f'<text x="{x:.1f}" y="{y + 3:.1f}" text-anchor="middle" font-size="{sizes.letters}"></text></g>'
        )
    for x, y in places.boxes:
        parts.append(
            f'<g class="fusion-box"><rect x="{x:.1f}" y="{y:.1f}" width="{sizes.box}" height="{BOX_HEIGHT}" rx="4" '
            f'fill-opacity=".16" stroke-width="1.5"/><text x="{x + 6:.1f}" y="{y + 14.5:.1f}"></text></g>'
        )
    return "".join(parts)


def _narrow_svg(simulation: Simulation, places: Places) -> str:
    opening = f'<svg viewBox="0 0 {NARROW.graph} {places.height:g}" width="100%" fill="currentColor"'
    return f'{opening} font-size="{TEXT_SIZE}">{_graph_svg(simulation, places, NARROW)}'


class SimulatorStage(Stage):
    """The graph in the browser. `first`: the number of the partition that is shown."""

    _esm = javascript(WIDTH_SCRIPT, Path(__file__).with_name("simulator.js"))


class FusionSimulator(Explorer):
    """A graph whose edges fuse and unfuse: click an edge, or go to it with Tab or the arrow keys and press Enter.

    Home unfuses everything, End fuses as the analyser would. `toggle` is a click from Python; `groups` is the current
    partition, `text` its cost. Without a kernel it displays as a still image with that text.
    """

    def __init__(self, costs: Costs):
        self.simulation = Simulation(costs)
        self._order = list(self.simulation.moves)
        self._numbers = {groups: number for number, groups in enumerate(self._order)}
        stage = SimulatorStage()
        stage.first = self._numbers[self.simulation.apart]
        super().__init__(stage, [], [])

    @property
    def _groups(self) -> Partition:
        return self._order[self._stage.first]

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The kernels, each as the names of its operations."""
        return [tuple(self.simulation.names[place] for place in bits(mask)) for mask in self._groups]

    @property
    def predicted(self) -> float:
        """Seconds of all kernels together."""
        return self.simulation.totals(self._groups)["time"]

    @property
    def text(self) -> str:
        return _text(self.simulation, self._groups)

    def toggle(self, producer: str, consumer: str) -> str | None:
        """Fuse two operations, or unfuse them; gives the reason if that is refused.

        Raises:
            ValueError: there is no edge between them.
        """
        for handle, then in zip(self.simulation.handles, self.simulation.moves[self._groups], strict=True):
            if (self.simulation.names[handle.first], self.simulation.names[handle.second]) == (producer, consumer):
                if isinstance(then, str):
                    return then
                self._stage.first = self._numbers[then]
                return None
        names = ", ".join(self.simulation.names)
        raise ValueError(f"no edge from {producer!r} to {consumer!r}: the operations are {names}")

    def apart(self) -> None:
        """Unfuse everything."""
        self._stage.first = self._numbers[self.simulation.apart]

    def best(self) -> None:
        """Fuse as the analyser would."""
        self._stage.first = self._numbers[self.simulation.best]

    def _still_and_data(self) -> tuple[str, dict]:
        simulation, places = self.simulation, _places(self.simulation)
        figure = _figure(places)
        narrow = _places(simulation, NARROW)
        return "", {
            "narrow": _narrow_svg(simulation, narrow) if narrow else "",
            "width": WIDTH,
            "graph": svg_opening(figure).replace(' aria-hidden="true"', "") + _graph_svg(simulation, places),
            "best": self._numbers[simulation.best],
            "apart": self._numbers[simulation.apart],
            "fused": FUSED,
            "split": BARS_LEFT - 8,
            "partitions": [self._partition(groups) for groups in self._order],
        }

    def _partition(self, groups: Partition) -> dict:
        simulation = self.simulation
        joined = [simulation.is_fused(handle, groups) for handle in simulation.handles]
        return {
            "text": _text(simulation, groups),
            "table": _table(simulation, groups),
            "bars": _bars_svg(simulation, groups),
            "colours": _colours(simulation, groups),
            "labels": _labels(simulation, groups),
            "joined": joined,
            "said": [_said(simulation, *each) for each in zip(simulation.handles, joined, strict=True)],
            "moves": [each if isinstance(each, str) else self._numbers[each] for each in simulation.moves[groups]],
        }

    def chart(self) -> Chart:
        simulation, places, groups = self.simulation, _places(self.simulation), self._groups
        figure = _figure(places)
        with rc_context(STYLE):
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set(xlim=(0, WIDTH), ylim=(places.height, 0))
            axes.axis("off")
            baseline = {"va": "center_baseline"}
            axes.text(12, 15, _finding(simulation, groups), size=TITLE_SIZE, weight="bold", **baseline)
            drawn = zip(simulation.handles, places.curves, places.pills, strict=True)
            for handle, curve, (x, y) in drawn:
                fused = simulation.is_fused(handle, groups)
                style = {"lw": 4, "color": FUSED} if fused else {"lw": 1.5, "color": LIMIT}
                style["linestyle"] = (0, (3, 2)) if handle.shared else "-"
                points = [_at(curve, step / 60) for step in range(61)]
                if not fused:  # a gap for the label: nothing hides a line on a transparent page
                    free = [abs(a - x) > WIDE.pill / 2 or abs(b - y) > PILL_HEIGHT / 2 for a, b in points]
                    points = [point if far else (math.nan,) * 2 for point, far in zip(points, free, strict=True)]
                axes.plot(*zip(*points, strict=True), **style)
                if not fused:
                    axes.text(x, y, _said(simulation, handle, fused), ha="center", size=SMALL_SIZE, **baseline)
            boxes = zip(places.boxes, _colours(simulation, groups), _labels(simulation, groups), strict=True)
            for (x, y), colour, label in boxes:
                for style in ({"fc": colour, "alpha": 0.16, "ec": "none"}, {"fc": "none", "ec": colour, "lw": 1.5}):
                    axes.add_patch(Rectangle((x, y), WIDE.box, BOX_HEIGHT, **style))
                axes.text(x + 6, y + BOX_HEIGHT / 2, label, **baseline)
            for y, width, eager, best, label in _bars(simulation, groups):
                axes.text(BARS_LEFT, y - 9, label, **baseline)
                axes.add_patch(Rectangle((BARS_LEFT, y), width, BAR, fc=FUSED, ec=TEXT))
                for x, colour in ((eager, UNFUSED), (best, LIMIT)):
                    axes.plot((BARS_LEFT + x,) * 2, (y - 3, y + BAR + 3), color=colour, lw=2)
            axes.text(BARS_LEFT, _legend_y(), LEGEND, size=SMALL_SIZE, **baseline)
        return Chart(figure, self.text)


def _figure(places: Places) -> Figure:
    with rc_context(STYLE):
        return Figure(figsize=(WIDTH / 72, places.height / 72))


def fusion_simulator(
    model: Callable, *inputs, device: str | Device = "H200", epilogues: bool = True
) -> FusionSimulator:
    """The live graph of a small model; the last expression of a cell shows it. Its arguments are those of `analyse`.

    Raises:
        TypeError, ValueError: as `analyse`; a graph that is too large.
    """
    return FusionSimulator(costs_of(model, *inputs, device=device, epilogues=epilogues))
