"""A picture of a plan's graph: operations in one kernel share a colour, edges show the bytes they move.

Colours are those of lesson 13's simulator: an operation alone in its kernel is grey, a fused edge blue. Each kernel
also has a number, for readers who cannot tell colours apart.
"""

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from helpers.instruments.fusion.plan import FusionPlan
from helpers.instruments.traffic.result import size
from helpers.style import FONT, FUSED, JOINED, LIMIT, PAGE_LABEL, PAGE_TITLE

WIDTH, HEIGHT, GAP_X, GAP_Y = 132, 28, 24, 32  # box size and gaps, in pixels
MAX = 150  # maximum operations drawn; a larger graph is drawn kernel by kernel


@dataclass(frozen=True, repr=False)
class FusionDrawing:
    """`svg`: the picture; `text`: the same as text."""

    svg: str
    text: str

    def __repr__(self):
        return self.text

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        """Return the picture as a figure, whose dark text the course's style sheets invert on a dark page."""
        packed = base64.b64encode(self.svg.encode()).decode()
        alt = html.escape(self.text.partition("\n")[0])
        return f'<figure><img src="data:image/svg+xml;base64,{packed}" alt="{alt}"></figure>'


def drawing(plan: FusionPlan) -> FusionDrawing:
    """Draw a plan."""
    of = {name: number for number, group in enumerate(plan.groups) for name in group.operations}
    whole = len(of) > MAX
    boxes: dict[str, int] = {}  # label -> the number of its kernel
    label = {}
    for name, number in of.items():
        names = plan.groups[number].operations
        label[name] = f"{names[0]} +{len(names) - 1}" if whole and len(names) > 1 else name
        boxes[label[name]] = number
    edges: dict[tuple[str, str], int] = {}
    for edge in plan.edges:
        ends = label.get(edge.producer), label.get(edge.consumer)
        if None not in ends and ends[0] != ends[1] and not edge.ordering:
            edges[ends] = edges.get(ends, 0) + edge.nbytes
    fused = {(label[one], label[other]) for one, other in plan.fused_edges if one in label and other in label}
    places, extent = _places(boxes, edges)
    finding = (
        f"{plan.launches_unfused} launches in {len(plan.groups)} kernels: {size(plan.bytes_unfused)} become "
        f"{size(plan.bytes_fused)}"
    )
    parts = [_edge(places[one], places[other], nbytes, (one, other) in fused) for (one, other), nbytes in edges.items()]
    colours = kernel_colours([len(group.operations) for group in plan.groups])
    parts += [_box(places[name], name, number, plan, colours[number]) for name, number in boxes.items()]
    width, height = max(extent[0], 8 * len(finding)) + 24, extent[1] + 40
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{FONT}" font-size="{PAGE_LABEL}">'
        f"<title>{html.escape(finding)}</title>"
        f'<text x="12" y="18" font-size="{PAGE_TITLE}" font-weight="bold" fill="currentColor">'
        f"{html.escape(finding)}</text>" + "".join(parts) + "</svg>"
    )
    lines = [finding]
    for number, group in enumerate(plan.groups, 1):
        lines.append(f"{number:3} {group.kind:11} {size(group.work.bytes):>9}  {' '.join(group.operations)}")
    return FusionDrawing(svg, "\n".join(lines))


def kernel_colours(counts: Sequence[int]) -> list[str]:
    """Return each kernel's colour from its number of operations: grey if it has one."""
    found, joined = [], 0
    for count in counts:
        found.append(JOINED[joined % len(JOINED)] if count > 1 else LIMIT)
        joined += count > 1
    return found


def _places(boxes: dict[str, int], edges: dict[tuple[str, str], int]) -> tuple[dict[str, tuple], tuple[int, int]]:
    """Return label -> (x, y) of its box, just below the boxes it reads from; and the picture's size."""
    at = layers(boxes, edges)
    places = {name: (12 + column * (WIDTH + GAP_X), 34 + row * (HEIGHT + GAP_Y)) for name, (column, row) in at.items()}
    right = max((x for x, _ in places.values()), default=0) + WIDTH
    return places, (round(right), max((y for _, y in places.values()), default=0) + HEIGHT)


def layers(boxes: Iterable[str], edges: Iterable[tuple[str, str]]) -> dict[str, tuple[float, int]]:
    """Return label -> (column, row) of its box: in the first row below its inputs, in a column near them."""
    boxes = list(boxes)
    before: dict[str, list[str]] = {name: [] for name in boxes}
    for one, other in edges:
        before[other].append(one)
    depth: dict[str, int] = {}
    waiting = boxes
    while waiting:  # kernels are not listed in the order in which they run
        rest = []
        for name in waiting:
            if all(each in depth for each in before[name]):
                depth[name] = 1 + max((depth[each] for each in before[name]), default=-1)
            else:
                rest.append(name)
        if len(rest) == len(waiting):
            depth |= dict.fromkeys(rest, 1 + max(depth.values(), default=0))
            rest = []
        waiting = rest
    rows: dict[int, list[str]] = {}
    for name in boxes:
        rows.setdefault(depth[name], []).append(name)
    column: dict[str, float] = {}
    for level in sorted(rows):
        wanted = {
            name: sum(column[each] for each in before[name] if each in column) / max(1, len(before[name]))
            for name in rows[level]
        }
        taken = -1.0
        for name in sorted(rows[level], key=wanted.get):
            taken = column[name] = max(wanted[name], taken + 1)
    return {name: (column[name], depth[name]) for name in boxes}


def _edge(start, end, nbytes: int, fused: bool) -> str:
    x1, y1, x2, y2 = start[0] + WIDTH / 2, start[1] + HEIGHT, end[0] + WIDTH / 2, end[1]
    style = f'stroke="{FUSED}" stroke-width="3"' if fused else f'stroke="{LIMIT}" stroke-dasharray="4 3"'
    middle = (y1 + y2) / 2
    curve = f"M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"
    path = f'<path d="{curve}" fill="none" {style}/>'
    said = "" if fused else size(nbytes)
    where = f'x="{(x1 + x2) / 2 + 4:.0f}" y="{middle + 3:.0f}"'
    return path + (f'<text {where} fill="currentColor" font-size="{PAGE_LABEL}">{said}</text>' if said else "")


def _box(place, name: str, number: int, plan: FusionPlan, colour: str) -> str:
    x, y = place
    group = plan.groups[number]
    said = html.escape(name if len(name) <= 18 else name[:17] + "…")
    more = html.escape(f"{name}: kernel {number + 1}, {group.kind}, {group.launches} launch")
    return (
        f'<g><title>{more}</title><rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="5" '
        f'fill="{colour}" fill-opacity=".16" stroke="{colour}" stroke-width="1.5"/>'
        f'<text x="{x + 6:.0f}" y="{y + 18:.0f}" fill="currentColor">{number + 1} {said}</text></g>'
    )
