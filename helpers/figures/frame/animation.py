"""A film: objects that move along one clock, to play, pause and scrub; a still frame without a kernel.

Everything is placed in Python, in pixels and in seconds of the film's own clock. The browser's script and the picture
paint the same list: boxes that travel, boxes that appear or grow, counters that run.

A tile looks the same in every film: solid until it is read, then an outline; one in flight has an edge.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import anywidget
import ipywidgets as widgets
from matplotlib import rc_context
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from traitlets import Dict

from helpers.figures.frame.chart import Chart, plain, with_still
from helpers.style import LIMIT, STILL_TEXT, STYLE, TEXT, TITLE_SIZE, css, javascript

_HERE = Path(__file__).parent
LINE = 19  # pixels between the lines of a title, here and in animation.js
HEADINGS = 24  # pixels below a film's top, where its panels begin
ROOM = 10  # pixels: the highest gap on a narrow page, unless a film says otherwise
OUTLINE = 1.5  # pixels: the line around a tile that was read or is in flight, here and in animation.js
LEGS = (0.35, 0.7)  # of a flight: along its row until here, down or up the bus until there, then within the chip
SWATCH, SPACE, LETTER = 10, 6, 7.2  # pixels of a legend: its boxes, the space after one, and an upper estimate
TITLE_LETTER = 8.6  # pixels: an upper estimate of a title's letter


@dataclass(frozen=True)
class MovingBox:
    """A box that travels from one corner to another between two times, visible only while it moves.

    edged: whether it has an edge in the text's colour, as a tile in flight has, over tiles of its own colour too.
    """

    x0: float
    y0: float
    x1: float
    y1: float
    width: float
    height: float
    start: float
    end: float
    colour: str
    edged: bool = False


@dataclass(frozen=True)
class Bar:
    """A box whose width grows between two times, and stays; it appears at once where they are the same.

    read: when it is read, which leaves only its outline. None: never.
    """

    x: float
    y: float
    width: float
    height: float
    start: float
    end: float
    colour: str
    opacity: float = 1.0
    read: float | None = None


@dataclass(frozen=True)
class Note:
    """Text; `align` is "left", "center" or "right" of x; y is its baseline.

    start, end: when it is shown; None: from the film's beginning, or to its end.
    """

    text: str
    x: float
    y: float
    align: str = "left"
    bold: bool = False
    start: float | None = None
    end: float | None = None

    def at(self, time: float) -> bool:
        """Tell if it is shown at a time."""
        return (self.start is None or time >= self.start) and (self.end is None or time < self.end)


@dataclass(frozen=True)
class Counter:
    """A number of `name` that runs from 0 to `value` between two times; `text` shows it at {}.

    whole: whether it counts things, and one that has only begun isn't counted yet, as by a film's clock.
    """

    name: str
    text: str
    x: float
    y: float
    value: float
    start: float
    end: float
    digits: int = 2
    whole: bool = False

    def at(self, time: float) -> str:
        part = min(1.0, max(0.0, (time - self.start) / (self.end - self.start)))
        number = math.floor(self.value * part + 1e-6) if self.whole else self.value * part
        return self.text.replace("{}", f"{number:,.{self.digits}f}")


@dataclass(frozen=True)
class Animation:
    """One film. `boxes`: static outlines, (x, y, width, height); `told`: captions, (start time, text).

    size: width and height; seconds: the length of the film's own clock; plays: playing time in seconds.
    unit: the clock's unit, shown next to the slider, with `scale` units per second of that clock.
    counts: whether that is a plural, of things that the clock counts: it shows no fraction of one.
    moments: (start time, text), which the clock shows instead.
    """

    size: tuple[float, float]
    seconds: float
    plays: float
    unit: str
    scale: float
    title: str
    movers: tuple[MovingBox, ...] = ()
    bars: tuple[Bar, ...] = ()
    notes: tuple[Note, ...] = ()
    counters: tuple[Counter, ...] = ()
    boxes: tuple[tuple[float, float, float, float], ...] = ()
    told: tuple[tuple[float, str], ...] = field(default_factory=tuple)
    counts: bool = False
    moments: tuple[tuple[float, str], ...] = ()

    def clock(self, time: float) -> str:
        """Return the clock's text at a time."""
        if self.moments:
            return [text for start, text in self.moments if start <= time][-1]
        if not self.counts:
            return f"{plain(time * self.scale)} {self.unit}"
        count = math.floor(time * self.scale + 1e-6)
        return f"{count:,} {self.unit.removesuffix('s') if count == 1 else self.unit}"

    def says(self, time: float) -> str:
        """The line of text at a time."""
        now = [text for start, text in self.told if start <= time] or [""]
        numbers = ", ".join(f"{counter.name} {counter.at(time)}" for counter in self.counters)
        return f"{self.clock(time)}: {now[-1]}" + (f" {numbers}." if numbers else "")


def flight(
    corners: Sequence[tuple[float, float]], size: tuple[float, float], start: float, end: float, colour: str
) -> list[MovingBox]:
    """Return a tile's way between memory and chip: three straight legs, one after the other, over four corners.

    It leaves its row at the side, where the bus is, so that it crosses no other row and no name.
    """
    parts = (0.0, *LEGS, 1.0)
    if corners[0][1] > corners[-1][1]:  # outwards
        parts = tuple(1 - part for part in reversed(parts))
    times = [start + (end - start) * part for part in parts]
    legs = zip(pairwise(corners), pairwise(times), strict=True)
    return [MovingBox(*one, *other, *size, begin, stop, colour, True) for (one, other), (begin, stop) in legs]


def read_legend(x: float, y: float, read: str = "read") -> tuple[list[Bar], list[Note]]:
    """Return the legend of waiting and read tiles, its baseline starting at (x, y)."""
    bars, notes = [], []
    for text, at in (("not read yet", None), (read, -1.0)):
        bars.append(Bar(x, y - SWATCH + 1, SWATCH, SWATCH, -1.0, -1.0, LIMIT, read=at))
        notes.append(Note(text, x + SWATCH + SPACE, y))
        x += SWATCH + 3 * SPACE + LETTER * len(text)
    return bars, notes


@dataclass(frozen=True)
class Stack:
    """A film on a narrow page: objects right of `split` move below the others, `width` pixels wide.

    Empty space, such as a row of only one part, is left out; `room` is the highest gap that stays.
    """

    split: float
    width: float
    room: float = ROOM

    def layout(self, scene: Animation) -> dict:
        """Return what the browser lays a scene out by: each part's heights and by how much they and all below move."""
        title = folded(scene.title, self.width)
        upper, end = _tightened(scene, lambda x: x < self.split, HEADINGS + LINE * title.count("\n"), self.room)
        lower, end = _tightened(scene, lambda x: x >= self.split, end + ROOM, self.room)
        size = self.width, end + 4
        return {"split": self.split, "size": size, "title": title, "upper": upper, "lower": lower}


def _heights(scene: Animation, ours: Callable[[float], bool]) -> list[tuple[float, float]]:
    """Return (top, bottom) of all that a part of a scene shows; of a box, its two lines."""
    heights = [(each.y, each.y + each.height) for each in scene.bars if ours(each.x)]
    for mover in scene.movers:
        heights += [(y, y + mover.height) for x, y in ((mover.x0, mover.y0), (mover.x1, mover.y1)) if ours(x)]
    heights += [(each.y - 12, each.y + 4) for each in (*scene.notes, *scene.counters) if ours(each.x)]
    for x, y, _, height in scene.boxes:
        heights += [(y, y), (y + height, y + height)] if ours(x) else []
    return sorted(heights)


def _tightened(
    scene: Animation, ours: Callable[[float], bool], top: float, room: float
) -> tuple[list[tuple[float, float]], float]:
    """Return (height, shift) steps that close gaps higher than `room` below `top`, and the end of the part."""
    reached, shift, steps = None, top, []
    for upper, lower in _heights(scene, ours):
        if reached is None or upper - reached > room:
            shift = top - upper if reached is None else shift - (upper - reached - room)
            steps.append((round(upper, 1), round(shift, 1)))
        reached = lower if reached is None else max(reached, lower)
    return steps, round((reached or 0) + shift, 1)


def folded(title: str, width: float) -> str:
    """Return a title in lines that fit a width."""
    return textwrap.fill(title, int(width / TITLE_LETTER))


def picture(scene: Animation, time: float) -> Chart:
    """The film at a time of its clock."""
    width, height = scene.size
    with rc_context(STYLE):
        figure = Figure(figsize=((width + 12) / 72, height / 72))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-6, width + 6), ylim=(height, 0))
        axes.axis("off")
        axes.text(0, 14, scene.title, size=TITLE_SIZE, weight="bold")
        for x, y, w, h in scene.boxes:
            axes.plot((x, x + w, x + w, x, x), (y, y, y + h, y + h, y), color=TEXT, lw=0.8)
        corners, colours, edges, edged = [], [], [], []
        for bar in scene.bars:
            if time < bar.start:
                continue
            if bar.read is not None and time > bar.read:
                edges.append(_corners(*_inside(bar)))
                edged.append(bar.colour)
            else:
                part = min(1.0, (time - bar.start) / (bar.end - bar.start)) if bar.end > bar.start else 1.0
                corners.append(_corners(bar.x, bar.y, bar.width * part, bar.height))
                colours.append((bar.colour, bar.opacity))
        for mover in scene.movers:
            if mover.start < time < mover.end:
                part = (time - mover.start) / (mover.end - mover.start)
                x, y = mover.x0 + (mover.x1 - mover.x0) * part, mover.y0 + (mover.y1 - mover.y0) * part
                corners.append(_corners(x, y, mover.width, mover.height))
                colours.append((mover.colour, 1.0))
                if mover.edged:
                    edges.append(corners[-1])
                    edged.append(STILL_TEXT)
        axes.add_collection(PolyCollection(corners, facecolors=colours, linewidths=0))
        axes.add_collection(PolyCollection(edges, facecolors="none", edgecolors=edged, linewidths=OUTLINE))
        for note in (each for each in scene.notes if each.at(time)):
            axes.text(note.x, note.y, note.text, ha=note.align, weight="bold" if note.bold else "normal")
        for counter in scene.counters:
            axes.text(counter.x, counter.y, counter.at(time), weight="bold")
    return Chart(figure, f"{scene.title}. {scene.says(time)}")


def _inside(bar: Bar) -> tuple[float, float, float, float]:
    """Return where the outline of a bar runs: all of its width is within the bar."""
    return bar.x + OUTLINE / 2, bar.y + OUTLINE / 2, bar.width - OUTLINE, bar.height - OUTLINE


def _corners(x: float, y: float, width: float, height: float):
    return ((x, y), (x + width, y), (x + width, y + height), (x, y + height))


class FilmStage(anywidget.AnyWidget):
    """The film in the browser, with its controls."""

    _esm = javascript(_HERE / "narrow.js", _HERE / "animation.js")
    _css = css(_HERE / "animation.css")
    data = Dict().tag(sync=True)


class Film:
    """One or several films under one set of controls; a still frame without a kernel. `text` describes it.

    Args:
        scenes: name -> scene; with more than one, the reader chooses, and the first is shown.
        choice: the label of the names.
        frame: the time of the still picture, as a fraction of the film; never its end. A live film rests there
            until it is played, unless `rests` is changed.
        narrow: the layout on a narrow page: a Stack, or name -> scene.
    """

    def __init__(
        self,
        scenes: dict[str, Animation],
        choice: str = "",
        frame: float = 0.5,
        narrow: Stack | dict[str, Animation] | None = None,
    ):
        self.scenes, self.frame, self.rests, self._choice, self._narrow = scenes, frame, frame, choice, narrow

    @property
    def text(self) -> str:
        return self.chart().text

    def chart(self) -> Chart:
        first = next(iter(self.scenes.values()))
        return picture(first, first.seconds * self.frame)

    def data(self) -> dict:
        """The data that the browser's script draws."""
        scenes = [[name, _sent(scene)] for name, scene in self.scenes.items()]
        given = self._narrow
        if isinstance(given, Stack):
            narrow = [given.layout(scene) for scene in self.scenes.values()]
        else:
            narrow = [_sent(scene) for scene in (given or {}).values()]
        return {"choice": self._choice, "scenes": scenes, "narrow": narrow, "rests": self.rests}

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None):
        return with_still(dict(widgets.VBox([FilmStage(data=self.data())])._repr_mimebundle_()), self.chart())


def _sent(scene: Animation) -> dict:
    def short(value: float) -> float:
        return float(f"{value:.7g}")

    def rounded(each) -> list:
        return [short(value) if isinstance(value, float) else value for value in vars(each).values()]

    return {
        "size": scene.size,
        "seconds": short(scene.seconds),  # as all else is: nothing ends after it
        "plays": scene.plays,
        "unit": scene.unit,
        "scale": scene.scale,
        "counts": scene.counts,
        "title": scene.title,
        "movers": [rounded(mover) for mover in scene.movers],
        "bars": [rounded(bar) for bar in scene.bars],
        "notes": [rounded(note) for note in scene.notes],
        "counters": [rounded(counter) for counter in scene.counters],
        "boxes": scene.boxes,
        "told": [(short(start), text) for start, text in scene.told],
        "moments": [(short(start), text) for start, text in scene.moments],
    }
