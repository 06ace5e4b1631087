"""Name a source line by its number and its text."""

import contextlib
import linecache
import re
from collections.abc import Iterator
from pathlib import Path

CELL = re.compile(r"/ipykernel_\d+/")  # in the name that ipykernel gives to a cell's file


def source_line(file: str, number: int) -> str:
    """Return the text of a line in a file or cell, without its indent; "" if it cannot be read."""
    if CELL.search(file) and file not in linecache.cache:
        # Compiled by a Jupyter kernel that has ended: a cell's folder depends on the process, its file name on the text
        same = (known for known in linecache.cache if CELL.search(known) and Path(known).name == Path(file).name)
        file = next(same, file)
    return linecache.getline(file, number).strip()


def with_source(message: str, file: str) -> str:
    """Return `message` with the text of the line after each "line 12" that lacks it: "line 12, `y = x + 1`"."""

    def told(found: re.Match) -> str:
        text = source_line(file, int(found[1]))
        return f"{found[0]}, `{text}`" if text else found[0]

    return re.sub(r"\bline (\d+)\b(?!, `)", told, message)


@contextlib.contextmanager
def naming_lines(file: str) -> Iterator[None]:
    """Add the source line's text to the errors that an executor raises for that file's code."""
    try:
        yield
    except RuntimeError as error:
        if type(error) not in (RuntimeError, NotImplementedError):
            raise
        raise type(error)(with_source(str(error), file)) from None
