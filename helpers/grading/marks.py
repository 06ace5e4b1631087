"""Points and comments by hand, in marks.csv. Every run reads this table, and grading again doesn't change it.

    student,exercise,points,comment,handed in,by,when

Points are added after checks and lateness; -2 deducts two. A time under "handed in" overrides the platform's. Several
rows for one student and exercise add up. Every row has an author: reading fills in a missing `by` and `when`, and never
drops a row.
"""

import fcntl
import getpass
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path

from helpers.grading.atomic_files import write_whole
from helpers.grading.csv_tables import escaped, number, shown, table_in, unescaped, written

FIELDS = ("student", "exercise", "points", "comment", "handed in", "by", "when")
KNOWN = {field: (field,) for field in FIELDS}


@dataclass(frozen=True)
class Mark:
    """A person's mark for one exercise of one student; `points` are added, and `handed_in` is text, empty if not
    given."""

    student: str
    exercise: str
    points: Decimal
    comment: str
    handed_in: str
    by: str
    when: str

    @property
    def says(self) -> bool:
        return bool(self.points or self.comment or self.handed_in)


def marks_in(path: Path, by: str = "") -> list[Mark]:
    """Return the marks in a table, or none if there is no table; rows without author and time are completed in the
    file.

    Raises:
        OSError, ValueError: it cannot be read or makes no sense; one line.
    """
    if not path.exists():
        return []
    with alone(path):
        marks = read(path)
        complete = [signed(mark, by) if mark.says else mark for mark in marks]
        if complete != marks:
            write(path, complete)
    return [mark for mark in complete if mark.says]


def add_mark(path: Path, mark: Mark, by: str = "") -> None:
    """Append a mark to the table."""
    with alone(path):
        write(path, [*read(path), signed(mark, by)])


def start_table(path: Path, rows: list[tuple[str, str]]) -> None:
    """Write a table to fill in, with a row for each (student, exercise), unless there is one already."""
    with alone(path):
        if not path.exists():
            write(path, [Mark(student, exercise, Decimal(0), "", "", "", "") for student, exercise in rows])


def mark_of(student: str, exercise: str, points: str, comment: str) -> Mark:
    """Build a mark from the command line's arguments."""
    try:
        added = number(points)
    except ValueError as error:
        raise ValueError(f"--comment {student!r}: {error}, or 0") from None
    return Mark(student, exercise, added, comment.strip(), "", "", "")


def read(path: Path) -> list[Mark]:
    if not path.exists():
        return []
    rows, header = table_in(path, KNOWN)
    for name in header:
        if name.strip().lower() not in FIELDS:
            raise ValueError(f"{path} has a column {name!r}: its columns are {', '.join(FIELDS)}")
    marks = []
    for line, cells in rows:
        cells = {field: unescaped(cells.get(field, "")) for field in FIELDS}
        try:
            points = number(cells["points"] or "0")
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
        rest = (cells[field] for field in FIELDS[3:])
        mark = Mark(cells["student"], cells["exercise"], points, *rest)
        if mark.says and not (mark.student and mark.exercise):
            raise ValueError(f"{path}, line {line}: no student or no exercise: each row names both")
        marks.append(mark)
    return marks


def write(path: Path, marks: list[Mark]) -> None:
    lines = [list(FIELDS)]
    for mark in marks:
        points = shown(mark.points) if mark.points else ""
        rest = map(escaped, (mark.comment, mark.handed_in, mark.by, mark.when))
        lines.append([escaped(mark.student), mark.exercise, points, *rest])
    # With a byte-order mark, so that Excel detects UTF-8.
    write_whole(path, "\ufeff" + written(lines))


def signed(mark: Mark, by: str) -> Mark:
    now = datetime.now().astimezone().isoformat(" ", "minutes")
    return replace(mark, by=mark.by or by or user(), when=mark.when or now)


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user id
        return f"user {os.getuid()}"


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Make concurrent writers wait for each other."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_name(f".{path.name}.lock"), "w")  # noqa: SIM115
    except OSError as error:
        raise OSError(f"{path.parent} cannot be written: {error.strerror}: choose another folder") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def placed(
    marks: Iterable[Mark], exercises: Iterable[str], students: Callable[[str], list[str]], names: list[str], path: Path
) -> dict[tuple[str, str], list[Mark]]:
    """Return (student, exercise) -> marks, in the table's order.

    Args:
        exercises: all names in the course.
        students: the keys of students with a name; none for an unknown name.
        names: those that a message may suggest.

    Raises:
        ValueError: a mark without a known student or exercise; one line.
    """
    found: dict[tuple[str, str], list[Mark]] = {}
    for mark in marks:
        # A spreadsheet makes 03 a 3.
        meant = (f"{mark.exercise.lower()}_", f"0{mark.exercise.lower()}_")
        exercise = next((name for name in exercises if f"{name}_".startswith(meant)), None)
        if exercise is None:
            raise ValueError(f"{path}: no exercise {mark.exercise!r}: choose from {', '.join(exercises)}")
        if not (called := students(mark.student)):
            near = get_close_matches(mark.student, names, 1)
            mend = f"is it {near[0]!r}?" if near else "write the name as the report has it, or the id"
            raise ValueError(f"{path}: unknown student {mark.student!r}: {mend}")
        for student in called:
            found.setdefault((student, exercise), []).append(mark)
    return found
