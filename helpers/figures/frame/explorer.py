"""The base of all explorers: sliders over a chart whose static part is drawn once and kept.

matplotlib draws the static part (axes, limits, their labels). The moving part is a light SVG over it, positioned by the
axes' own transform. Everything that a slider can show is sent to the browser beforehand, and a short script there,
`frameOf(data, positions, narrow)`, handles each move: a round trip to the kernel was measured at 20 to 60 ms on two
busy cores.
"""

import io
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import anywidget
import ipywidgets as widgets
from matplotlib import rc_context
from matplotlib.figure import Figure
from traitlets import Dict, Int, List, Unicode

from helpers.figures.frame.chart import Chart, with_still
from helpers.figures.frame.guess_mark import GuessMark, guess_mark_svg, sentence
from helpers.style import MARKER_SIZE, MARKERS, STYLE, TEXT, TEXT_SIZE, TITLE_SIZE, css, javascript

_HERE = Path(__file__).parent
WIDTH_SCRIPT = _HERE / "narrow.js"  # `followWidth`, for the browser's scripts
MORE = "More controls"
POSITIONS = ("first", "second", "third")  # of the sliders, as the browser's scripts know them


def script(file: Path) -> str:
    """Return the browser's side of an explorer: its own `frameOf`, and the code that shows the frames."""
    return javascript(file, WIDTH_SCRIPT, _HERE / "explorer.js")


class Stage(anywidget.AnyWidget):
    """The chart in the browser. An explorer's own stage adds `_esm`: its script.

    `data` is the input of `frameOf`; `said` is drawn over it and added to its text; `doing`, unless empty, replaces the
    text while new data are computed; `first`, `second` and `third` are the sliders' positions when it was made, and
    `sliders` their models' ids.
    """

    _css = css(_HERE / "explorer.css")
    still = Unicode().tag(sync=True)
    data = Dict().tag(sync=True)
    said = Dict({"svg": "", "text": ""}).tag(sync=True)
    doing = Unicode().tag(sync=True)
    first = Int().tag(sync=True)
    second = Int().tag(sync=True)
    third = Int().tag(sync=True)
    sliders = List(Unicode()).tag(sync=True)


class FramePlayer(Stage):
    """A stage whose frames, one a position of the sliders, were all drawn beforehand: `data` as frames.js takes it."""

    _esm = script(_HERE / "frames.js")


class Explorer(ABC):
    """Sliders and choices above a stage. A subclass defines the content: `text`, `chart()` and `_still_and_data()`.

    `_parts`: rows of windows (x, y, width, height) of the picture, as a narrow page shows it; none: all of it.
    `_bar`: points, the height of its lowest bars; a narrow page draws them at least 14 pixels high.
    `_flat`: for parts that a narrow page draws as wide as itself, each row's height, times what its own shape would
    give; none: no part is drawn so wide.
    `_folded`: names of sliders and choices that the reader unfolds.
    `_kernel_only`: names of choices that a web page goes without, because their combinations are too many.
    """

    _parts: tuple[tuple[tuple[float, float, float, float], ...], ...] = ()
    _bar: float = 0
    _flat: tuple[float, ...] = ()
    _folded: tuple[str, ...] = ()
    _kernel_only: tuple[str, ...] = ()

    def __init__(self, stage: Stage, sliders: Iterable[widgets.SelectionSlider], choices: list[list[widgets.Widget]]):
        self._stage, self._sliders, self._choices = stage, list(sliders), [each for row in choices for each in row]
        self._said: GuessMark | None = None
        for slider, position in zip(self._sliders, POSITIONS, strict=False):
            setattr(stage, position, slider.index)
        stage.sliders = [each.model_id for each in self._sliders]
        for control in self._choices:
            control.observe(self._draw, "value")
        self._draw()
        rows = [
            [
                [each for each in row if (each.description in self._folded) == hidden]
                for row in (self._sliders, *choices)
            ]
            for hidden in (False, True)
        ]
        shown, hidden = ([widgets.HBox(row) for row in part if row] for part in rows)
        more = [widgets.Accordion([widgets.VBox(hidden)], titles=[MORE])] if hidden else []
        self._box = widgets.VBox([*shown, *more, stage])
        self._box.add_class("fusion-controls")

    @property
    @abstractmethod
    def text(self) -> str:
        """The line under the chart."""

    @abstractmethod
    def chart(self) -> Chart:
        """Return the current view as an image with its line of text.

        Raises:
            ValueError: the current choice cannot be drawn; `text` has the reason.
        """

    @abstractmethod
    def _still_and_data(self) -> tuple[str, dict]:
        """The still part as SVG, and the stage's `data`."""

    def _draw(self, _change=None) -> None:
        self._stage.doing = "computing ..."
        try:
            still, data = self._still_and_data()
            with self._stage.hold_sync():
                self._stage.still, self._stage.data = self._with_parts(still), data
                self._show_said()
        finally:  # the browser waits for it, also where the data are as they were
            self._stage.doing = ""

    def _with_parts(self, still: str) -> str:
        if self._bar:
            still = still.replace("<svg", f'<svg data-bar="{self._bar:g}"', 1)
        if self._flat:
            still = still.replace("<svg", f'<svg data-flat="{" ".join(f"{share:g}" for share in self._flat)}"', 1)
        rows = (",".join(" ".join(f"{each:g}" for each in window) for window in row) for row in self._parts)
        return still.replace("<svg", f'<svg data-parts="{";".join(rows)}"', 1) if self._parts else still

    def mark(self, said: GuessMark | None) -> None:
        """Show what the reader said on the chart; None: nothing."""
        self._said = said
        self._show_said()

    def _show_said(self) -> None:
        if self._said:
            svg = guess_mark_svg(self.chart().figure, self._said)
            self._stage.said = {"svg": svg, "text": sentence(self._said)}
        else:
            self._stage.said = {"svg": "", "text": ""}

    def _repr_mimebundle_(self, include=None, exclude=None):
        view = dict(self._box._repr_mimebundle_())
        try:
            return with_still(view, self.chart())
        except ValueError:
            return view | {"text/plain": self.text}


def slider(name: str, options: tuple, value, labels: Iterable[str] | None = None) -> widgets.SelectionSlider:
    """A slider over `options`, shown as `labels`.

    Raises:
        ValueError: the value is not among the options.
    """
    if value not in options:
        ends = options if len(options) <= 20 else (*options[:2], "...", options[-1])
        raise ValueError(f"the {name} slider has no {value!r}: choose from {', '.join(map(str, ends))}")
    shown = zip(labels or map(str, options), options, strict=True)
    return widgets.SelectionSlider(
        options=list(shown),
        value=value,
        description=name,
        layout=widgets.Layout(width="390px"),
        style={"description_width": "112px"},
    )


def still_svg(figure: Figure) -> str:
    """A figure as SVG whose text takes the page's own colour."""
    buffer = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.S)  # a style would reach all the page
    svg = re.sub(r'<svg[^>]*? viewBox="', '<svg width="100%" aria-hidden="true" viewBox="', svg, count=1)
    return re.sub(r" font-family: [^;]*;", "", svg).replace(TEXT, "currentColor")


def svg_opening(figure: Figure) -> str:
    """Return the opening tag of an SVG over a figure's static part: coordinates in points, y downwards."""
    width, height = figure.bbox.size
    view = f'viewBox="0 0 {width:g} {height:g}" width="100%" aria-hidden="true"'
    return f'<svg {view} fill="currentColor" font-size="{TEXT_SIZE}">'


def svg_title(title: str, x: float, y: float) -> str:
    """A chart's title, its baseline starting at (x, y)."""
    return f'<text class="fusion-title" x="{x:.1f}" y="{y}" font-size="{TITLE_SIZE}" font-weight="bold">{title}</text>'


def svg_mark(kind: str, x: float, y: float) -> str:
    """The mark of a kind of point, one of MARKERS, around (x, y); the edge is the surrounding group's."""
    half, colour = MARKER_SIZE / 2, MARKERS[kind][1]
    if kind == "unfused":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{half}" fill="{colour}"/>'
    turn = "" if kind == "fused" else f' transform="rotate(45 {x:.1f} {y:.1f})"'
    box = f'x="{x - half:.1f}" y="{y - half:.1f}" width="{MARKER_SIZE}" height="{MARKER_SIZE}"'
    return f'<rect {box} fill="{colour}"{turn}/>'
