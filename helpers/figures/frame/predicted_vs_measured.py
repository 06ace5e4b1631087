"""A reader's prediction vs the measurement: one line with a scale, and a table of all questions of a lesson."""

import html
import math
from collections.abc import Sequence

from helpers.figures.frame.chart import plain
from helpers.instruments.tables import Markup, Table, html_table, table
from helpers.style import FUSED, PAGE_SMALL, WRONG

WIDTH, HEIGHT = 560, 58
LEFT, RIGHT = 12, 12  # free at the ends of the scale
LETTER, GAP = 6.6, 12  # pixels: of a letter at most, between two labels
AXIS = 30  # the scale's height in the picture, y downwards
FAR = 20  # times apart: above this the scale is logarithmic
CLOSE = 1.1  # times apart: as good as right, in the table's strip
STRIP = 120  # pixels of the strip in the table
STRIP_ENDS = 10  # the largest factor that it shows


def predicted_vs_measured(said: float, found: float, unit: str) -> str:
    """Return a scale as SVG: a bar up to the measurement, a diamond at the prediction. Empty if neither scale holds
    both.

    Args:
        said, found: in `unit`; a linear scale holds two numbers of at least 0, a logarithmic one two above 0 that are
            far apart.
    """
    low, high = sorted((said, found))
    if low < 0 or high == 0 or not math.isfinite(high):
        return ""
    if low == 0 or high / low <= FAR:
        ticks, place = _linear(high)
    else:
        ticks, place = _logarithmic(low, high)
    grid = "".join(
        f'<path d="M{place(tick):.1f} 22V38" stroke="currentColor" stroke-opacity=".35"/>'
        f'<text x="{place(tick):.1f}" y="52" text-anchor="{_anchor(place(tick))}">{plain(tick)}</text>'
        for tick in ticks
    )
    start, end, mark = LEFT, place(found), place(said)
    labels = "".join(
        f'<text x="{x:.1f}" y="14">{html.escape(text)}</text>' for x, text in _labels(mark, end, said, found)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" style="max-width:100%" role="img" '
        f'aria-label="{html.escape(f"you said {plain(said)}, found {plain(found)} {unit}".rstrip())}" '
        f'font-size="{PAGE_SMALL}" fill="currentColor">{grid}'
        f'<rect x="{start}" y="{AXIS - 5}" width="{max(end - start, 1):.1f}" height="10" fill="{FUSED}" '
        'stroke="currentColor" stroke-opacity=".5"/>'
        f'<path d="M{mark:.1f} {AXIS - 9}l8 9-8 9-8-9z" fill="{WRONG}" stroke="currentColor"/>{labels}</svg>'
    )


def _linear(high: float):
    step = 10.0 ** math.floor(math.log10(high))
    step = next(each for each in (step / 5, step / 2, step, 2 * step) if high / each <= 6)
    scale = (WIDTH - LEFT - RIGHT) / (high * 1.1)
    return [number * step for number in range(int(high / step) + 1)], lambda value: LEFT + value * scale


def _logarithmic(low: float, high: float):
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    scale = (WIDTH - LEFT - RIGHT) / max(last - first, 1)
    every = math.ceil((last - first) / 8)
    ticks = [10.0**power for power in range(first, last + 1, every)]
    return ticks, lambda value: LEFT + (math.log10(value) - first) * scale


def _anchor(x: float) -> str:
    return "start" if x < 40 else "end" if x > WIDTH - 40 else "middle"


def _labels(mark: float, end: float, said: float, found: float) -> list[tuple[float, str]]:
    """(left end, text) of both labels above the scale, each over its mark, pushed apart where they would overlap."""
    told = sorted([(mark, f"you said {plain(said)}"), (end, f"found {plain(found)}")])
    widths = [LETTER * len(text) for _, text in told]
    one, other = (min(max(x - width / 2, 0), WIDTH - width) for (x, _), width in zip(told, widths, strict=True))
    one = min(one, WIDTH - sum(widths) - GAP, max(other - widths[0] - GAP, 0))
    return [(one, told[0][1]), (max(other, one + widths[0] + GAP), told[1][1])]


def guesses_table(rows: Sequence[tuple[str, float | None, float | None, str]], number) -> Table:
    """Return all questions as a table; as HTML, a strip in the last column shows how far off each guess was.

    Args:
        rows: (question, said, found, unit).
        number: a number as text.
    """
    told = [
        (question, *("-" if value is None else number(value) for value in (said, found)), unit)
        for question, said, found, unit in rows
    ]
    made = table(COLUMNS, told)
    strips = [Markup(_strip(said, found)) for _, said, found, _ in rows]
    shown = [(*row, strip) for row, strip in zip(told, strips, strict=True)]
    made.markup = html_table((*COLUMNS, STRIP_TITLE), shown, SIDES)
    return made


COLUMNS, STRIP_TITLE = ("question", "you said", "found", "unit"), "too low ◂ right ▸ too high"
SIDES = ("left", "right", "right", "left", "left")


def _strip(said: float | None, found: float | None) -> str:
    if not said or not found or said * found < 0:
        return ""
    ratio = said / found
    way = math.log(min(max(ratio, 1 / STRIP_ENDS), STRIP_ENDS)) / math.log(STRIP_ENDS)
    x = STRIP / 2 + way * (STRIP / 2 - 8)
    close = max(ratio, 1 / ratio) <= CLOSE
    told = "right" if close else f"too {'high' if ratio > 1 else 'low'} by a factor of {max(ratio, 1 / ratio):.3g}"
    return (
        f'<svg viewBox="0 0 {STRIP} 16" width="{STRIP}" height="16" role="img" aria-label="{told}">'
        f'<path d="M4 8H{STRIP - 4}M{STRIP // 2} 2V14" stroke="currentColor" stroke-opacity=".5"/>'
        f'<path d="M{x:.1f} 2l6 6-6 6-6-6z" fill="{FUSED if close else WRONG}" stroke="currentColor"/></svg>'
    )
