"""Read CSV as people have it, from a German Excel or from a platform, and write it without formulas."""

import csv
import io
import re
from decimal import Decimal
from pathlib import Path

from helpers.grading.grade import clean

MAX_TABLE = 20_000_000  # bytes
Cells = dict[str, str]


def table_in(path: Path, known: dict[str, tuple[str, ...]]) -> tuple[list[tuple[int, Cells]], dict[str, str]]:
    """Return a CSV file's non-empty rows and its header: each column's name -> its field, or the name itself.

    Args:
        path: UTF-8, UTF-16 or else Windows-1252; with commas, semicolons or tabs.
        known: field -> the names that its column may have, in lowercase.

    Returns:
        Rows: line number, and a dictionary: field -> cell for known columns, column name -> cell for the others.

    Raises:
        OSError, ValueError: it can't be read, or its columns or rows make no sense; one line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_TABLE:
        raise ValueError(f"{path} has {len(content):,} bytes: is it the table?")
    text = decoded(content)
    if "\0" in text:
        raise ValueError(f"{path} is not text: save it as CSV (UTF-8)")
    text = re.sub(r"\Asep=(.)\r?\n", "", text)  # Excel's own first line
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter(text), strict=True)
    try:
        rows = [(lines.line_num, [cell.strip() for cell in cells]) for cells in lines]
    except csv.Error as error:
        raise ValueError(f"{path}, line {lines.line_num}: {error}: save it as CSV again") from None
    rows = [(line, cells) for line, cells in rows if any(cells)]
    if not rows:
        raise ValueError(f"{path} is empty: its first line names the columns")
    header = rows[0][1]
    fields = fields_of(path, header, known)
    found = []
    for line, cells in rows[1:]:
        if any(cells[len(header) :]):
            raise ValueError(
                f"{path}, line {line}: {len(cells)} cells under {len(header)} columns: quote what has commas"
            )
        cells += [""] * (len(header) - len(cells))
        found.append((line, dict(zip(fields, cells, strict=False))))
    return found, dict(zip(header, fields, strict=True))


def decoded(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def delimiter(text: str) -> str:
    """Return the delimiter between column names; a comma if there is none."""
    header = re.sub(r'"[^"]*"', "", text.lstrip().partition("\n")[0])
    return max(",;\t", key=header.count)


def fields_of(path: Path, header: list[str], known: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the field of each column, or its name if it is not a known field."""
    fields = []
    for name in header:
        plain = re.sub(r"[\s_-]+", " ", name).strip().lower()
        field = next((field for field, names in known.items() if plain in names), name)
        if field in known and field in fields:
            earlier = header[fields.index(field)]
            raise ValueError(f"{path}: the columns {earlier!r} and {name!r} are both the {field}: take one away")
        fields.append(field)
    return fields


def number(cell: str) -> Decimal:
    """Parse a number with a decimal point or comma, exactly; ValueError if it is not a number, or ambiguous."""
    cell = cell.replace("−", "-").replace("\N{NO-BREAK SPACE}", "").strip()
    if re.fullmatch(r"[+-]?\d{1,9}(\.\d{1,9}|,\d{1,2})?", cell, re.ASCII):
        return Decimal(cell.replace(",", "."))
    raise ValueError(f"{cell!r} is not a number such as 1.5 or 1,5")


def shown(value: Decimal) -> str:
    """Format a number without trailing zeros: 12.5, not 12.50."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


FORMULA = tuple("=+-@|%'")  # characters that start a formula in a spreadsheet, and the prefix that prevents it


def as_text(cell: str) -> str:
    """Return one line that no spreadsheet takes for a formula."""
    return escaped(clean(cell).replace("\n", " "))


def escaped(cell: str) -> str:
    return f"'{cell}" if cell.lstrip().startswith(FORMULA) else cell


def unescaped(cell: str) -> str:
    """Undo `escaped`; leave other text as it is."""
    return cell[1:] if cell.startswith("'") and cell[1:].lstrip().startswith(FORMULA) else cell


def written(lines: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
