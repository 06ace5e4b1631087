"""Mark a reader's guess on the axis of the chart that answers the question.

The mark is an SVG over the image, positioned by the axes' own transform. A guess beyond an axis is drawn at its end,
with an arrow.
"""

import html
from collections.abc import Callable
from dataclasses import dataclass

from IPython.display import display
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart, label_width
from helpers.style import TEXT_SIZE, WRONG

HALF = 5  # points: half a diamond's width
APART = 7  # points between a line and its label
HALO = 'paint-order="stroke" stroke="var(--jp-layout-color0, Canvas)" stroke-width="3"'  # no line strikes a label


@dataclass(frozen=True)
class GuessMark:
    """A guess: `text`, such as "you said 12 MB", at `value` on the axis "x" or "y" of a chart's panel, from 0.

    row: the guess's bar in a chart of horizontal bars, from 0; None: all bars.
    """

    text: str
    axis: str
    value: float
    panel: int = 0
    row: int | None = None

    def __post_init__(self):
        if self.axis not in ("x", "y"):
            raise ValueError(f"a guess is on axis {self.axis!r}: use 'x' or 'y'")
        if self.row is not None and self.axis != "x":
            raise ValueError(f"a bar's guess is on axis 'x', not {self.axis!r}")


def guess_mark_svg(figure: Figure, said: GuessMark) -> str:
    """Draw a dashed line across the panel at the guess, a diamond on the axis, and the label."""
    axes, height = figure.axes[said.panel], figure.bbox.height
    left, right = axes.bbox.x0, axes.bbox.x1
    top, bottom = height - axes.bbox.y1, height - axes.bbox.y0
    low, high = map(float, sorted(axes.get_xlim() if said.axis == "x" else axes.get_ylim()))
    value = min(max(said.value, low), high)
    width = label_width(said.text) + 12
    if said.axis == "x":
        x, y = axes.transData.transform((value, axes.get_ylim()[0]))[0], bottom
        if said.row is not None:
            ends = axes.transData.transform([(value, said.row + place) for place in (-0.5, 0.4)])[:, 1]
            top, y = (height - float(end) for end in ends)
        line = f"M{x:.1f} {y:.1f}V{top:.1f}"
        ahead = x + APART + width <= right
        anchor, at = ("start", x + APART) if ahead else ("end", x - APART)
        label = at, top + 4 if said.row is not None else top + 8
        beyond = ("", "◂ ", " ▸")
    else:
        x, y = left, height - axes.transData.transform((axes.get_xlim()[0], value))[1]
        line = f"M{left:.1f} {y:.1f}H{right:.1f}"
        anchor = "start"
        label = left + APART, y - 5 if y - 14 > top else y + 12
        beyond = ("", "▾ ", " ▴")
    before, after = beyond[1] * (said.value < low), beyond[2] * (said.value > high)
    return (
        f'<svg viewBox="0 0 {figure.bbox.width:g} {height:g}" width="100%" aria-hidden="true" fill="currentColor" '
        f'font-size="{TEXT_SIZE}"><path d="{line}" stroke="{WRONG}" stroke-width="1.5" stroke-dasharray="5 3"/>'
        f'<path d="M{x:.1f} {y - HALF:.1f}l{HALF} {HALF}-{HALF} {HALF}-{HALF}-{HALF}z" fill="{WRONG}" '
        f'stroke="currentColor"/><text x="{label[0]:.1f}" y="{label[1]:.1f}" text-anchor="{anchor}" {HALO}>'
        f"{before}{html.escape(said.text)}{after}</text></svg>"
    )


def sentence(said: GuessMark) -> str:
    """Return the mark in words, to append to a chart's own text."""
    return f"{said.text[0].upper()}{said.text[1:]}."


class MarkedChart:
    """A chart in a cell's output that shows the guess, even if it comes after the cell has run."""

    def __init__(self, chart: Chart):
        self.chart = chart
        self._said: GuessMark | None = None
        self._update: Callable[..., None] | None = None
        self._drawn = chart._repr_mimebundle_()

    def mark(self, said: GuessMark | None) -> None:
        """Show the guess; None: nothing."""
        if said != self._said:
            self._said = said
            if self._update:
                data, metadata = self._bundle()
                self._update(data, metadata=metadata, raw=True)

    def _bundle(self) -> tuple[dict, dict]:
        data, metadata = self._drawn
        if self._said is None:
            return data, metadata
        over = f'<div style="position:absolute;inset:0">{guess_mark_svg(self.chart.figure, self._said)}</div>'
        page = data["text/html"].replace("<img", '<div style="position:relative;width:fit-content"><img', 1)
        told = f"{over}</div><figcaption>{html.escape(sentence(self._said))}</figcaption></figure>"
        return data | {"text/html": page.replace("</figure>", told, 1)}, metadata

    def __repr__(self) -> str:
        return repr(self.chart)

    def _ipython_display_(self) -> None:
        data, metadata = self._bundle()
        handle = display(data, metadata=metadata, raw=True, display_id=True)
        self._update = handle.update if handle else None
