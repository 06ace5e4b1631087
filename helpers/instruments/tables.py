"""Tables: text under one another where text is read or compared, an HTML table in a notebook."""

import html
import re
from collections.abc import Iterable, Sequence

# What stands to the right, under the figure above it: "12", "-0.5 MB", "1.2 (3 x)", "64 x 128"; nothing, too.
FIGURE = re.compile(r"[-+]?[\d.,]+ ?(x [\d x]+|\(.*\)|[^\s:]*)|-?")


class Markup(str):
    """A cell that is HTML already."""


class Table(str):
    """Text that a notebook shows as an HTML table."""

    markup: str

    __repr__ = str.__str__

    def _repr_html_(self) -> str:
        return self.markup


def table(columns: Sequence[str], rows: Iterable[Sequence], title: str = "") -> Table:
    """Rows under their columns' names: a column of figures to the right, one of words to the left.

    Args:
        columns: a name, or number, each; "" where the rows speak for themselves.
        rows: as many cells as columns; what is no text is shown as `str` has it.
        title: a line, or some, above the table: of what, where recorded.

    Raises:
        ValueError: a row with more or fewer cells than there are columns.
    """
    columns, cells = tuple(map(str, columns)), [tuple(map(str, row)) for row in rows]
    wrong = next((row for row in cells if len(row) != len(columns)), None)
    if wrong is not None:
        raise ValueError(f"a row of {len(wrong)} cells under {len(columns)} columns: {', '.join(wrong)}")
    sides = ["right" if cells and all(map(FIGURE.fullmatch, column)) else "left" for column in zip(*cells, strict=True)]
    sides = sides or ["left"] * len(columns)
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    place = {"left": str.ljust, "right": str.rjust}
    lines = [
        "  ".join(place[side](cell, width) for cell, width, side in zip(row, widths, sides, strict=True)).rstrip()
        for row in (([columns] if any(columns) else []) + cells)
    ]
    made = Table("\n".join([title] * bool(title) + lines))
    made.markup = html_table(columns, cells, sides, title)
    return made


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]], sides: Sequence[str], title: str = "") -> str:
    """The same as HTML. A cell of figures is not broken; the first cell of a row names it."""
    styles = [f"text-align:{side}" + ";white-space:nowrap" * (side == "right") for side in sides]
    head = "".join(
        f'<th scope="col" style="text-align:{side}">{html.escape(name)}</th>'
        for name, side in zip(columns, sides, strict=True)
    )
    body = ""
    for first, *others in rows:
        body += f'<tr><th scope="row" style="{styles[0]};font-weight:normal">{_escaped(first)}</th>'
        body += "".join(
            f'<td style="{style}">{_escaped(cell)}</td>' for cell, style in zip(others, styles[1:], strict=True)
        )
        body += "</tr>"
    caption = "<br>".join(map(html.escape, title.splitlines()))
    caption = f'<caption style="text-align:left">{caption}</caption>' if title else ""
    head = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    return f'<table class="fusion-table">{caption}{head}<tbody>{body}</tbody></table>'


def _escaped(cell: str) -> str:
    return cell if isinstance(cell, Markup) else html.escape(cell)
