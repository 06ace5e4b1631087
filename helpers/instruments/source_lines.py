"""A line of source where an instrument names it: by its number, and by its text."""

import contextlib
import linecache
import re
from collections.abc import Iterator
from pathlib import Path

CELL = re.compile(r"/ipykernel_\d+/")  # in the name that ipykernel gives a cell's file


def source_line(file: str, number: int) -> str:
    """The text of a file's or a cell's line, without its indent; "" where it cannot be read."""
    if CELL.search(file) and file not in linecache.cache:
        # Compiled by a kernel that is gone. A cell's file has its folder by the process, its name by the cell's text.
        same = (known for known in linecache.cache if CELL.search(known) and Path(known).name == Path(file).name)
        file = next(same, file)
    return linecache.getline(file, number).strip()


def with_source(message: str, file: str) -> str:
    """`message` with the text of the line behind each "line 12" that has none: "line 12, `y = x + 1`"."""

    def told(found: re.Match) -> str:
        text = source_line(file, int(found[1]))
        return f"{found[0]}, `{text}`" if text else found[0]

    return re.sub(r"\bline (\d+)\b(?!, `)", told, message)


@contextlib.contextmanager
def naming_lines(file: str) -> Iterator[None]:
    """Add the source line's text to an executor's refusals of that file's code."""
    try:
        yield
    except RuntimeError as error:
        if type(error) not in (RuntimeError, NotImplementedError):
            raise
        raise type(error)(with_source(str(error), file)) from None
