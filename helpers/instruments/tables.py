"""Tables: aligned text in a terminal or a test, an HTML table in a notebook."""

import html
import re
from collections.abc import Iterable, Sequence

# Right-aligned cells: "12", "-0.5 MB", "1.2 (3 x)", "64 x 128"; also empty ones.
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
    """Arrange rows under their column names: numbers right-aligned, words left-aligned.

    Args:
        columns: one name or number each; "" if the cells are self-explanatory.
        rows: one cell per column; anything but text is converted by `str`.
        title: one or more lines above the table: its subject, the recording's label.

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
    """Return the table as HTML. Numbers don't wrap; each row's first cell is its header."""
    styles = [f"text-align:{side}" + ";white-space:nowrap" * (side == "right") for side in sides]
    # A column without a name has no header: screen readers would announce an empty one.
    head = "".join(
        f'<th scope="col" style="text-align:{side}">{html.escape(name)}</th>' if name else "<td></td>"
        for name, side in zip(columns, sides, strict=True)
    )
    body = ""
    for first, *others in rows:
        body += f'<tr><th scope="row" style="{styles[0]};font-weight:normal">{_escaped(first)}</th>'
        body += "".join(
            f'<td style="{style}">{_escaped(cell)}</td>' for cell, style in zip(others, styles[1:], strict=True)
        )
        body += "</tr>"
    # A caption would be as narrow as its table, so the title is a line above it and the table's name.
    shown, name = "<br>".join(map(html.escape, title.splitlines())), html.escape("; ".join(title.splitlines()))
    above = f'<div class="fusion-table-title" style="max-width:46rem">{shown}</div>' if title else ""
    name = f' aria-label="{name}"' if title else ""
    head = f"<thead><tr>{head}</tr></thead>" if any(columns) else ""
    return f'{above}<table class="fusion-table"{name}>{head}<tbody>{body}</tbody></table>'


def _escaped(cell: str) -> str:
    return cell if isinstance(cell, Markup) else html.escape(cell)
