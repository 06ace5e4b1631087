"""Compute everyone's points: from checks, minus lateness, plus points by hand. All reports use these.

final = max(0, max(0, earned - late) + by hand), to the hundredth;  total = the sum of a student's finals
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from helpers.grading.class_folder import Class, Found, composed
from helpers.grading.csv_tables import number, shown
from helpers.grading.exercise import Exercise
from helpers.grading.grade import Result, clean
from helpers.grading.lateness import DueDates, LateRule, shown_span, time_in
from helpers.grading.marks import Mark, placed
from helpers.grading.roster import Person, Roster, matched, plain

HUNDREDTH = Decimal("0.01")
# Letters of Cyrillic and Greek that most fonts draw as Latin ones: https://www.unicode.org/reports/tr39/
LIKE_LATIN = str.maketrans(
    "АВЕКМНОРСТХаеорсухіјѕΑΒΕΖΗΙΚΜΝΟΡΤΥΧο",
    "ABEKMHOPCTXaeopcyxijsABEZHIKMNOPTYXo",
)


@dataclass(frozen=True)
class Rules:
    """The instructor's settings: the class, due dates, the late rule, and the marks."""

    roster: Roster | None = None
    due: DueDates = field(default_factory=DueDates)
    late: LateRule | None = None
    marks: tuple[Mark, ...] = ()
    marks_path: Path = Path("marks.csv")
    course: tuple[str, ...] = ()  # all the course's exercises, which marks may name


@dataclass(frozen=True)
class Entry:
    """One exercise of one student.

    Args:
        earned: from checks; None without a hand-in, or if the grader could not grade it.
        folder: the student's name in the class's folder; empty without a hand-in.
        when: in UTC; None if unknown.
        late: after the due date and the student's extra time; None if late by an unknown amount.
        off: points deducted for lateness.
        marks: points by hand, in order.
    """

    exercise: str
    points: Decimal
    earned: Decimal | None
    folder: str = ""
    flags: tuple[str, ...] = ()
    when: datetime | None = None
    late: timedelta | None = timedelta()
    off: Decimal = Decimal(0)
    marks: tuple[Mark, ...] = ()

    @property
    def added(self) -> Decimal:
        return sum((mark.points for mark in self.marks), Decimal(0))

    @property
    def final(self) -> Decimal:
        left = max(Decimal(0), (self.earned or Decimal(0)) - self.off)
        return max(Decimal(0), left + self.added).quantize(HUNDREDTH, ROUND_HALF_UP)

    @property
    def counts(self) -> bool:
        """True if there is any grade: from checks, or by hand."""
        return self.earned is not None or any(mark.points for mark in self.marks)

    @property
    def why(self) -> str:
        """The reason for the points, in words; empty if they are those of the checks."""
        if not self.off and not self.added:
            return ""
        parts = [f"{shown(self.earned)} by the checks"] if self.earned is not None else []
        parts += [f"{shown(self.off)} off for lateness"] if self.off else []
        parts += [f"{shown(abs(self.added))} {'added' if self.added > 0 else 'off'} by hand"] if self.added else []
        return ", ".join(parts)

    @property
    def lateness(self) -> str:
        """The delay in words; empty if it was on time."""
        if self.late is None:
            return "late by an unknown amount"
        return f"{shown_span(self.late)} late" if self.late else ""


@dataclass(frozen=True)
class StudentGrades:
    """One member of the class: a person on the roster, or a student missing from it.

    Args:
        student: the name in reports.
        folders: the names of the student's hand-ins.
    """

    student: str
    person: Person | None
    folders: tuple[str, ...]
    entries: tuple[Entry, ...]

    @property
    def total(self) -> Decimal:
        return sum((entry.final for entry in self.entries), Decimal(0))

    @property
    def missing(self) -> list[str]:
        return [entry.exercise for entry in self.entries if not entry.folder]


@dataclass(frozen=True)
class Gradebook:
    """The grades of the whole class.

    Args:
        rows: the roster's people in its order, then students missing from it; without one, all students.
        exercises: name -> points.
        notes: remarks for the instructor, one line each.
    """

    rows: tuple[StudentGrades, ...]
    exercises: dict[str, Decimal]
    rules: Rules
    notes: tuple[str, ...]

    def rows_of(self, folder: str) -> list[StudentGrades]:
        """Return the students who handed in under this name; several in the case of a group."""
        return [row for row in self.rows if folder in row.folders]

    def total_of(self, folder: str) -> Decimal:
        """Return the points of the hand-in under this name; the lowest, if group members differ."""
        return min(
            sum((entry.final for entry in row.entries if entry.folder == folder), Decimal(0))
            for row in self.rows_of(folder)
        )

    def graded(self) -> list[tuple[StudentGrades, Entry]]:
        """Return every grade, with students and exercises in order."""
        return [(row, entry) for row in self.rows for entry in row.entries if entry.counts]


def gradebook(
    students: Class, results: dict[tuple[str, str], Result], exercises: dict[str, Exercise], rules: Rules
) -> Gradebook:
    """Return the grades of a class.

    Args:
        results: (student, exercise) -> the checks' results; no entry if it wasn't graded.
        exercises: those being graded, by name.

    Raises:
        ValueError: roster, folder and marks contradict one another; one line.
    """
    people = matched(rules.roster, students) if rules.roster else {each.student: () for each in students.found}
    persons = {each.key: each for each in (rules.roster.people if rules.roster else ())}
    folders: dict[str, list[str]] = {key: [] for key in persons}
    for folder, found in sorted(people.items()):
        # An unknown student may have chosen a name that reports use for a member of the class.
        stranger = f"{folder} (not in the roster)" if folder in persons else folder
        for key in [each.key for each in found] or [stranger]:
            folders.setdefault(key, []).append(folder)
    given = {(each.student, each.exercise): each for each in students.found}
    marks = placed(rules.marks, rules.course, finder(rules.roster, folders), list(folders), rules.marks_path)
    asked = {exercise for _, exercise in [*given, *marks]}
    asked = [name for name in exercises if name in asked or len(exercises) == 1]
    worth = {name: sum((exact(points) for points in exercises[name].checks.values()), Decimal(0)) for name in asked}
    rows, unread = [], []
    for key, under in folders.items():
        person = persons.get(key)
        entries = []
        for name in asked:
            found = next((given[folder, name] for folder in under if (folder, name) in given), None)
            result = results.get((found.student, name)) if found else None
            said = tuple(marks.get((key, name), ()))
            entries.append(entry_of(name, worth[name], found, result, person, said, rules, unread))
        rows.append(StudentGrades(key, person, tuple(under), tuple(entries)))
    return Gradebook(tuple(rows), worth, rules, (*students.notes, *notes_on(rows, worth, rules, unread)))


def finder(roster: Roster | None, folders: dict[str, list[str]]):
    """Return a function that maps a name, number or address to the matching students (all of them for a group's
    hand-in)."""

    def find(who: str) -> list[str]:
        if who in folders:
            return [who]
        if composed(who) in folders:
            return [composed(who)]
        person = roster.find(composed(who)) if roster else None
        # Strip control characters from names in tables, because a terminal would obey them.
        if person:
            return [person.key]
        return [key for key, names in folders.items() if composed(who) in map(clean, (key, *names))]

    return find


def entry_of(
    exercise: str,
    points: Decimal,
    found: Found | None,
    result: Result | None,
    person: Person | None,
    marks: tuple[Mark, ...],
    rules: Rules,
    unread: list[str],
) -> Entry:
    earned = sum((exact(check.earned) for check in result.checks), Decimal(0)) if result else None
    if found is None:
        return Entry(exercise, points, None, marks=marks)
    corrected = next((mark.handed_in for mark in reversed(marks) if mark.handed_in), "")
    text = corrected or found.handed_in or (person.handed_in if person else "")
    try:
        when = time_in(text, rules.due.zone) if text else None
    except ValueError as error:
        if corrected:
            raise ValueError(f"{rules.marks_path}: {marks[0].student}, {exercise}: handed in {error}") from None
        when = None
        unread.append(str(error))
    due = rules.due.of(exercise)
    if when and due:
        late = max(timedelta(), when - due - (person.extra if person else timedelta()))
    else:
        late = None if found.late else timedelta()
    off = cost(rules.late, late, points) if earned is not None else Decimal(0)
    flags = result.flags if result else ()
    return Entry(exercise, points, earned, found.student, flags, when, late, min(off, earned or Decimal(0)), marks)


def cost(rule: LateRule | None, late: timedelta | None, points: Decimal) -> Decimal:
    """Return the points deducted; if the delay is unknown, only a share that is taken once."""
    if rule is None or (late is None and rule.unit):
        return Decimal(0)
    return rule.cost(timedelta.max if late is None else late, points)


def exact(points: float) -> Decimal:
    return Decimal(str(points))


def notes_on(rows: list[StudentGrades], worth: dict[str, Decimal], rules: Rules, unread: list[str]) -> list[str]:
    entries = [(row, entry) for row in rows for entry in row.entries if entry.folder]
    notes = []
    if rules.roster:
        if strangers := [row.student for row in rows if not row.person]:
            notes.append(f"not in {rules.roster.path.name}: {listed(strangers)}")
        if absent := [row.student for row in rows if row.person and not row.folders]:
            notes.append(f"no notebook handed in: {listed(absent)}")
        if rules.roster.unknown:
            notes.append(f"columns of {rules.roster.path.name} that are not read: {listed(list(rules.roster.unknown))}")
        for name, points in worth.items():
            if (column := rules.roster.canvas_column(name)) and differs(rules.roster.canvas[column], points):
                there = rules.roster.canvas[column]
                notes.append(f"Canvas gives {column!r} {there} points, and takes the {shown(points)} of canvas.csv")
    if over := [f"{row.student}, {e.exercise}, {shown(e.final)} of {shown(e.points)}" for row, e in beyond(rows)]:
        notes.append(f"more points than there are, by hand: {listed(over)}")
    notes += [f"may be one person: {listed(names)}" for names in lookalikes(rows)]
    notes += [
        f"one hand-in, {folder}, and other points for each: its results.json has the least of {listed(names)}"
        for folder, names in unequal(rows).items()
    ]
    if unread:
        notes.append(f"times that are not read: {listed(list(dict.fromkeys(unread)))}")
    if unknown := [row.student for row, entry in entries if entry.late is None]:
        taken = "" if rules.late and not rules.late.unit else ", and nothing is deducted"
        notes.append(f"late by an unknown amount{taken}: {listed(unknown)}: write the time into marks.csv")
    timeless = [row.student for row, entry in entries if not entry.when and entry.late is not None]
    if timeless and any(rules.due.of(entry.exercise) for _, entry in entries):
        notes.append(
            f"no time of handing in, taken as in time: {listed(timeless)}: the downloads of Moodle and Canvas hold "
            "none; give the roster or marks.csv a column 'handed in'"
        )
    return notes


def beyond(rows: list[StudentGrades]) -> list[tuple[StudentGrades, Entry]]:
    return [(row, entry) for row in rows for entry in row.entries if entry.final > entry.points]


def lookalikes(rows: list[StudentGrades]) -> list[list[str]]:
    """Return names that differ only in accents, case, punctuation or letter forms, unless the roster has both."""
    found: dict[str, list[StudentGrades]] = {}
    for row in rows:
        found.setdefault(plain(row.student.translate(LIKE_LATIN)), []).append(row)
    return [
        [row.student for row in alike]
        for name, alike in found.items()
        if name and len(alike) > 1 and not all(row.person for row in alike)
    ]


def unequal(rows: list[StudentGrades]) -> dict[str, list[str]]:
    """Return folder -> the group members who handed it in, if their points for it differ."""
    together: dict[str, dict[str, list[Decimal]]] = {}
    for row in rows:
        for entry in row.entries:
            if entry.folder:
                together.setdefault(entry.folder, {}).setdefault(row.student, []).append(entry.final)
    return {folder: list(finals) for folder, finals in together.items() if len({*map(tuple, finals.values())}) > 1}


def differs(text: str, points: Decimal) -> bool:
    try:
        return bool(text) and number(text) != points
    except ValueError:
        return True


def listed(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    return "; ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def remarks(entry: Entry, rules: Rules) -> list[str]:
    """Return why the points differ from those of the checks, one line each: lateness, and points by hand with author
    and time."""
    lines = []
    if entry.lateness:
        taken = f": {shown(entry.off)} points off ({rules.late.text})" if entry.off and rules.late else ""
        lines.append(entry.lateness + taken)
    for mark in entry.marks:
        points = f"{shown(abs(mark.points))} points {'added' if mark.points > 0 else 'off'}" if mark.points else ""
        moved = f"handed in {mark.handed_in}" if mark.handed_in else ""
        said = "; ".join(filter(None, (points, moved, mark.comment)))
        lines.append(f"{said} ({mark.by}, {mark.when})")
    return lines
