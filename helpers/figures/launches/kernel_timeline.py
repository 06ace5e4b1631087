"""The timeline of a trace: the GPU's kernels, with gaps shaded, one kernel named at a time; searchable."""

import re

import ipywidgets as widgets
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.figures.frame.chart import plain, si
from helpers.figures.frame.explorer import FramePlayer, slider
from helpers.figures.frame.page_bars import Box, Label, Panel, Scene, axis_end, still
from helpers.figures.frame.scene_explorer import SceneExplorer
from helpers.instruments.traces import KernelTimeline
from helpers.style import FAINT, FUSED, LIMIT, UNFUSED

SIZE = (576, 200)  # points
LEFT, RIGHT = 66, 560
HOST, GPU, HIGH = 66, 96, 20  # position and height of the two lanes
NAMED, FOUND = 136, 152  # the lines that say what is under the slider, and what the search found
THIN = 0.4  # points: the minimum drawn width of a kernel
LANES = {"launches": HOST, "GPU": GPU}
PANEL = Panel(LEFT, RIGHT, "time", "s")


def timeline_axes() -> tuple[Figure, Axes]:
    """Draw the static parts: the names of the lanes."""
    return still(SIZE, LANES, (PANEL,))


def _said(timeline: KernelTimeline, place: int) -> str:
    kernel = timeline.kernels[place]
    gap = timeline.gaps[place - 1] if place else 0.0
    kind = "a matmul" if kernel.product else "bytes"
    return (
        f"kernel {place + 1} of {len(timeline.kernels)}: {kernel.short_name}, {si(kernel.duration, 's')}, {kind}; "
        f"{si(gap, 's')} idle before it"
    )


def _finding(way: str, timeline: KernelTimeline) -> str:
    kernels = len(timeline.kernels)
    return f"{way}: {kernels} kernels, the GPU is busy {plain(100 * timeline.busy)}% of {si(timeline.wall, 's')}"


def timeline_scene(way: str, timeline: KernelTimeline, place: int, search: str, wall: float) -> Scene:
    """The timeline of one way, a kernel under the slider and those that the search finds marked.

    Args:
        place: the named kernel's position.
        wall: seconds that the axis covers: equal for ways that are compared.
    """
    begin = min(timeline.kernels[0].start, *(start for start, _ in timeline.launches[:1] or ((1e9, 0),)))
    end = axis_end(max(wall, timeline.kernels[-1].end - begin))
    scale = (RIGHT - LEFT) / end
    found = set(timeline.search(search)) if search else set()

    def box(start: float, duration: float, y: float, colour: str | None) -> Box:
        return Box(LEFT + (start - begin) * scale, y, max(duration * scale, THIN), HIGH, colour)

    boxes = [box(start, duration, HOST, None) for start, duration in timeline.launches]
    before = timeline.kernels[0].end
    for kernel, gap in zip(timeline.kernels[1:], timeline.gaps, strict=True):
        if gap * scale > THIN:
            boxes.append(box(before, gap, GPU, FAINT))
        before = max(before, kernel.end)
    colours = [
        UNFUSED if number in found else FUSED if kernel.product else LIMIT
        for number, kernel in enumerate(timeline.kernels)
    ]
    for kernel, colour in zip(timeline.kernels, colours, strict=True):
        boxes.append(box(kernel.start, kernel.duration, GPU, colour))
    at = timeline.kernels[place]
    boxes.append(box(at.start, at.duration, GPU + HIGH, colours[place]))
    search = re.sub("[<>&]", "", search)  # labels are SVG
    says, kernels = _said(timeline, place), [timeline.kernels[number] for number in sorted(found)]
    searched = "no search" if not search else f"{len(found)} kernels with “{search}” in their names"
    if found:
        searched += f" (orange): {si(sum(each.duration for each in kernels), 's')}"
    labels = [
        *PANEL.ends(end, SIZE),
        Label(says, LEFT + 6, NAMED, "left"),
        Label(searched, LEFT + 6, FOUND, "left"),
    ]
    finding = _finding(way, timeline)
    return Scene(finding, tuple(boxes), tuple(labels), f"{finding}. {says}; {searched}.")


class KernelTimelineExplorer(SceneExplorer):
    """Timelines of several ways to run one thing, a slider over the kernels, a choice of way, a search by name.

    Its controls are widgets: `kernel` (a number from 1), `way` and `search`; `text` describes the view. Without a
    kernel it displays as a still image with that text.

    Args:
        timelines: a name for each way -> what `read_trace` read.
        way: the one shown first; the first of all by default.

    Raises:
        ValueError: no timeline of that name.
    """

    _axes = staticmethod(timeline_axes)

    def __init__(self, timelines: dict[str, KernelTimeline], way: str | None = None, search: str = ""):
        way = way or next(iter(timelines), "")
        if way not in timelines:
            raise ValueError(f"unknown timeline {way!r}: choose from {', '.join(timelines)}")
        self._timelines = timelines
        self._most = max(len(each.kernels) for each in timelines.values())
        self.kernel = slider("kernel", tuple(range(1, self._most + 1)), 1)
        self.way = widgets.Dropdown(options=list(timelines), value=way, description="way")
        self.search = widgets.Text(value=search, description="search", placeholder="part of a name")
        super().__init__(FramePlayer(), [self.kernel], [[self.way, self.search]])

    def _scene(self, number: int) -> Scene:
        timeline = self._timelines[self.way.value]
        place = min(number, len(timeline.kernels)) - 1
        return timeline_scene(self.way.value, timeline, place, self.search.value, self._longest)

    @property
    def _longest(self) -> float:
        """The axis length: ways of similar length share an axis, and a short one stays visible."""
        wall = self._timelines[self.way.value].wall
        return max(each.wall for each in self._timelines.values() if each.wall <= 4 * wall)
