"""A chart as a notebook shows it, numbers as text, and axes that several figures share."""

import base64
import contextlib
import html
import io
import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib import colors, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from PIL import Image

from helpers.style import HALO, LIMIT, STILL_TEXT, STYLE, TEXT, TITLE_SIZE

_GREY = {colors.to_hex(TEXT), colors.to_hex(LIMIT)}


@dataclass(frozen=True)
class Chart:
    """An image and a line that describes it. A notebook shows the image; a screen reader has the line."""

    figure: Figure
    text: str

    def png(self) -> bytes:
        """The picture, sharp on dense screens; with a palette it has a third of the bytes, and looks the same."""
        drawn, packed = io.BytesIO(), io.BytesIO()
        with _text_of_stills(self.figure):
            self.figure.savefig(drawn, format="png", dpi=192)
        Image.open(drawn).quantize(256, method=Image.Quantize.FASTOCTREE).save(packed, "PNG", optimize=True)
        return packed.getvalue()

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None):
        width, height = (round(inches * 96) for inches in self.figure.get_size_inches())
        data = {"text/plain": self.text, "image/png": base64.b64encode(self.png()).decode()}
        data["text/html"] = page_of(data["image/png"], width, height, self.text)
        return data, {"image/png": {"width": width, "height": height, "alt": self.text}}


@contextlib.contextmanager
def _text_of_stills(figure: Figure) -> Iterator[None]:
    """Draw grey text near-black with a halo (see helpers.style), and leave text on coloured bars as it is."""
    figure.draw_without_rendering()  # which makes the ticks' labels
    grey = [text for text in figure.findobj(Text) if colors.to_hex(text.get_color()) in _GREY]
    before = [(text.get_color(), text.get_path_effects()) for text in grey]
    for text in grey:
        text.set(color=STILL_TEXT, path_effects=[withStroke(linewidth=1.5, foreground=HALO)])
    try:
        yield
    finally:
        for text, (color, effects) in zip(grey, before, strict=True):
            text.set(color=color, path_effects=effects)


def page_of(png: str, width: int, height: int, alt: str) -> str:
    """The picture with its description, which neither JupyterLab nor a page made from a notebook knows of an image."""
    picture = f'<img src="data:image/png;base64,{png}" width="{width}" height="{height}" alt="{html.escape(alt)}">'
    return f"<figure>{picture}</figure>"


def with_still(view: dict, chart: Chart) -> tuple[dict, dict]:
    """Return a live figure's MIME bundle: its widget, and for a page without a kernel the chart, with a note on how to
    run it."""
    still, metadata = chart._repr_mimebundle_()
    note = '<figcaption class="fusion-run-note">Run this cell to move it.</figcaption></figure>'
    still["text/html"] = still["text/html"].replace("</figure>", note)
    return view | still, metadata


def si(value: float, unit: str = "") -> str:
    """Three digits and a prefix: si(3.35e12, "B/s") == "3.35 TB/s"."""
    prefixes = ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m"), (-6, "µ"), (-9, "n"))
    known = (p for p in prefixes if math.isfinite(value) and abs(value) >= 0.9995 * 10.0 ** p[0])
    power, prefix = next(known, (0, ""))
    return f"{plain(value / 10.0**power)} {prefix}{unit}".rstrip()


def plain(value: float) -> str:
    """Three digits, no exponent: plain(1.5) == "1.5", plain(152.9) == "153", plain(12345) == "12,300"."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(float(value))
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = f"{round(value, digits):,.{max(0, digits)}f}"
    return rounded.rstrip("0").rstrip(".") if "." in rounded else rounded


def bar_axes(names: Sequence[str], longest: float, title: str, label: str) -> tuple[Figure, Axes]:
    """Return a figure for one horizontal bar per name, the first on top: bar `number` is at y = number, from 0
    rightwards.

    The axis' `label` begins at the picture's left edge, where a long one has room.
    """
    with rc_context(STYLE):
        below = 34 + 12 * label.count("\n")  # points
        figure = Figure(figsize=(8, 0.8 + (below - 34) / 72 + 0.55 * len(names)))
        width, height = figure.bbox.size
        left = 12 + label_width(max(names, key=len))
        axes = figure.add_axes((left / width, below / height, 1 - (left + 12) / width, 1 - (28 + below) / height))
        axes.set(xlim=(0, longest * 1.3), ylim=(len(names) - 0.4, -0.6))  # room for a label next to the longest bar
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        figure.text(12 / width, 1 - 14 / height, title, size=TITLE_SIZE, weight="bold")
        figure.text(12 / width, 6 / height, label)
    return figure, axes


def page_position(axes: Axes) -> Callable[[float, float], tuple[float, float]]:
    """Return the map from data to page points, y downwards as in SVG: the log-log axes' own transform.

    Reduced to a straight line in each logarithm, which takes a microsecond a point.
    """
    (x0, y0), (x1, y1) = axes.transData.transform([(1, 1), (10, 10)])
    height = axes.figure.bbox.height
    return lambda x, y: (x0 + (x1 - x0) * math.log10(x), height - y0 - (y1 - y0) * math.log10(y))


def label_width(label: str) -> float:
    """An upper estimate of a label's width, in points; Chinese characters and the like are twice as wide as Latin."""
    return 5.4 * sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in label)
