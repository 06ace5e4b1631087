"""Read the class from `--roster class.csv`, and match its members with the hand-ins.

Any table with names or numbers works: a gradebook exported from Canvas, a grading worksheet or grades exported from
Moodle, a roster or grades from Gradescope, or your own table with name, id, email, group and extra time.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from helpers.grading.class_folder import Class, Found, Submitter, composed
from helpers.grading.csv_tables import Cells, table_in
from helpers.grading.lateness import span_in

KNOWN = {
    "name": ("name", "student", "full name", "student name"),
    "first name": ("first name", "firstname", "given name"),
    "last name": ("last name", "lastname", "surname", "family name"),
    "id": ("sis user id", "id number", "student id", "student number", "sid", "matriculation number"),
    "plain id": ("id",),
    "login": ("sis login id", "login", "login id", "username", "user name"),
    "email": ("email", "e mail", "email address"),
    "number": ("identifier", "canvas id", "participant"),  # the platform's own, in the names of its files
    "group": ("group", "groups", "section", "sections"),
    "extra time": ("extra time", "extension"),
    "handed in": ("handed in", "submission time", "last modified (submission)"),
}
UNIQUE = ("id", "login", "email", "number")
# Columns of the platforms' own tables; other unread columns are reported, so that a typo such as "extra tim" is
# noticed.
NOT_READ = """status; grade; maximum grade; grade can be changed; last modified (grade); feedback comments; online text;
marker; marking workflow state; due date; institution; department; integration id; root account; role; total score;
max points; submission id; lateness (h:m:s); total lateness (h:m:s); view count; submission count; last downloaded from
this course"""
NOBODY = re.compile(r"points possible|student, test", re.IGNORECASE)  # rows of Canvas's


@dataclass(frozen=True)
class Person:
    """A member of the class; unknown fields are empty.

    Args:
        key: the name in reports, with the id if another has the same name.
        extra: time added to everyone's due date.
        handed_in: the table's time, for platforms whose files have none.
    """

    key: str
    name: str
    first: str
    last: str
    id: str
    login: str
    email: str
    number: str
    group: str
    extra: timedelta
    handed_in: str


@dataclass(frozen=True)
class Roster:
    """The whole class.

    Args:
        people: in the table's order.
        unknown: columns that we ignore and that no platform's table has.
        canvas: assignment's column in a gradebook of Canvas -> its points there, as text; None in other tables.
    """

    path: Path
    people: tuple[Person, ...]
    unknown: tuple[str, ...]
    canvas: dict[str, str] | None

    def canvas_column(self, exercise: str) -> str | None:
        """Return Canvas's column for an exercise, found by name or else by number; None if there isn't exactly one."""
        number = re.escape(exercise.partition("_")[0])
        titles = self.canvas or {}
        named = [each for each in titles if plain(exercise) in plain(each)]
        numbered = [each for each in titles if re.search(rf"(?<![\w(]){number}(?![\w)])", each.replace("_", " "))]
        found = named or numbered
        return found[0] if len(found) == 1 else None

    def find(self, who: str) -> Person | None:
        """Return the person with this key, id, login, address or name; None unless there is exactly one."""
        for field in ("key", "id", "login", "email"):
            if found := [each for each in self.people if getattr(each, field) and same(getattr(each, field), who)]:
                return found[0]
        found = [each for each in self.people if plain(who) in names_of(each)]
        return found[0] if len(found) == 1 else None


def roster_in(path: Path) -> Roster:
    """Read the class from a table.

    Raises:
        OSError, ValueError: it can't be read, or doesn't identify people; one line.
    """
    rows, header = table_in(path, KNOWN)
    # Canvas calls its own number ID, apart from the institution's.
    fields = set(header.values())
    titles = [name.lower() for name in header]
    canvas = "sis login id" in titles or titles[:2] == ["student", "id"] or titles[:2] == ["lastname", "firstname"]
    plain_id = "number" if canvas or "id" in fields else "id"
    if plain_id in fields and "plain id" in fields:
        raise ValueError(f"{path} has more than one column of {plain_id}s: remove one, or rename it")
    rows = [
        (line, {plain_id if field == "plain id" else field: composed(cell) for field, cell in cells.items()})
        for line, cells in rows
    ]
    fields = {plain_id if field == "plain id" else field for field in fields}
    if not fields & {"name", "last name", "first name", "id", "login", "email"}:
        raise ValueError(
            f"{path} has no column of names or ids, but {', '.join(list(header)[:8])}: call them name, id or email, "
            "or give what Canvas, Moodle or Gradescope export"
        )
    others = {name: "" for name in header if name and name in fields - KNOWN.keys()}
    ignored = {name.strip() for name in " ".join(NOT_READ.split()).split(";")}
    unknown = () if canvas else tuple(name for name in others if name.lower().rpartition(" - ")[2] not in ignored)
    lines, told = [], []
    for line, cells in rows:
        name = cells.get("name") or ", ".join(cells.get(field, "") for field in ("last name", "first name"))
        if NOBODY.search(name):
            others.update({column: cells[column] for column in others if "possible" in name.lower()})
        elif cells.get("name") or any(
            cells.get(field) for field in ("first name", "last name", "id", "login", "email")
        ):
            lines.append(line)
            told.append(cells)
        elif cells.get("group") or cells.get("extra time"):
            raise ValueError(f"{path}, line {line}: whose group or extra time is this? It has no name and no id")
    if not told:
        raise ValueError(f"{path} has no people below its columns")
    require_one_of_each(path, lines, told)
    return Roster(path, people_in(path, lines, told), unknown, others if canvas else None)


def require_one_of_each(path: Path, lines: list[int], told: list[Cells]) -> None:
    for field in UNIQUE:
        first: dict[str, int] = {}
        for line, cells in zip(lines, told, strict=True):
            value = cells.get(field, "").casefold()
            if re.fullmatch(r"\d(?:[.,]\d+)?e\+\d+", value):
                raise ValueError(
                    f"{path}, line {line}: {field} {cells[field]}: the spreadsheet rounded it; make it text"
                )
            if value and value in first:
                raise ValueError(
                    f"{path}: lines {first[value]} and {line} have one {field}, {cells[field]!r}: correct one"
                )
            first[value] = line


def people_in(path: Path, lines: list[int], told: list[Cells]) -> tuple[Person, ...]:
    names = [name_in(cells) for cells in told]
    namesakes = Counter(map(plain, names))
    people: dict[str, int] = {}
    found = []
    for line, cells, name in zip(lines, told, names, strict=True):
        mark = next((cells[field] for field in UNIQUE if cells.get(field)), "")
        key = f"{name} ({mark})" if namesakes[plain(name)] > 1 and mark and mark != name else name
        if key in people:
            raise ValueError(f"{path}: lines {people[key]} and {line} are both {key}: give each an id")
        people[key] = line
        try:
            extra = span_in(cells["extra time"]) if cells.get("extra time") else timedelta()
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: extra time {error}") from None
        last, _, first = name.partition(",")
        if not first:
            first, _, last = name.rpartition(" ")
        found.append(
            Person(
                key=key,
                name=name,
                first=cells.get("first name") or first.strip(),
                last=cells.get("last name") or last.strip(),
                number=(re.findall(r"\d+", cells.get("number", "")) or [""])[-1],
                extra=extra,
                handed_in=cells.get("handed in", "").strip("-"),
                **{field: cells.get(field, "") for field in ("id", "login", "email", "group")},
            )
        )
    return tuple(found)


def name_in(cells: Cells) -> str:
    """Return the name in the table, or another identifier if there is none."""
    split = " ".join(filter(None, (cells.get("first name", ""), cells.get("last name", ""))))
    return cells.get("name") or split or next(cells[field] for field in ("id", "login", "email") if cells.get(field))


def plain(name: str) -> str:
    """Return a name without accents, case, spaces and punctuation, as in file names."""
    decomposed = unicodedata.normalize("NFKD", name).casefold()
    return "".join(c for c in decomposed if c.isalnum())


def same(one: str, other: str) -> bool:
    return one.casefold() == other.strip().casefold()


def names_of(person: Person) -> set[str]:
    """Return the forms in which file names may have this name: "Ann Smith", "Smith, Ann", and Canvas's "smithann"."""
    ways = {person.name, person.first + person.last, person.last + person.first}
    return {plain(way) for way in ways} - {""}


def may_be(person: Person, name: str) -> bool:
    """Return whether a person on the roster has this name, possibly after a group, as in Moodle's "Group A-Ann Smith".

    A person without a name on the roster could be anyone.
    """
    parts = name.split("-")
    ways = {plain("".join(parts[start:])) for start in range(len(parts))}
    return person.name in (person.id, person.login, person.email) or bool(ways & names_of(person))


# Whose a hand-in is


def matched(roster: Roster, students: Class) -> dict[str, tuple[Person, ...]]:
    """Return student, by name in the class's folder -> people on the roster; empty for a student it doesn't have.

    Raises:
        ValueError: a name could belong to several people, or someone handed in an exercise twice; one line.
    """
    index = Index(roster)
    found = {each.student: index.people_of(each) for each in students.found}
    handed: dict[tuple[str, str], Found] = {}
    for each in students.found:
        for person in found[each.student]:
            other = handed.setdefault((person.key, each.exercise), each)
            if other is not each:
                raise ValueError(
                    f"{person.key} of {roster.path} has {each.exercise} twice, {other.path} and {each.path}: "
                    "remove one, or rename it"
                )
    return found


class Index:
    """The people on the roster, indexed by every identifier."""

    def __init__(self, roster: Roster):
        self.path = roster.path
        self.by: dict[str, dict[str, list[Person]]] = {}
        for field in (*UNIQUE, "key", "group"):
            self.by[field] = grouped((getattr(each, field).casefold(), each) for each in roster.people)
        self.by["name"] = grouped((name, each) for each in roster.people for name in names_of(each))

    def people_of(self, found: Found) -> tuple[Person, ...]:
        people = [self.person(each, found) for each in found.submitters]
        known = tuple(dict.fromkeys(filter(None, people)))
        # A folder with a group's name belongs to all its members.
        return known or tuple(self.by["group"].get(found.student.casefold(), ()))

    def person(self, submitter: Submitter, found: Found) -> Person | None:
        """Return the person by the most reliable identifier known: the platform's number, the address, the id, then the
        name.

        Raises:
            ValueError: number and name belong to different people, or several have the name; one line.
        """
        # A bare number may be anyone's id: Moodle's are small, and new for each assignment.
        alone = "" if submitter.number or submitter.email or submitter.sid else submitter.name
        sure = [
            ("number", submitter.number),
            ("email", submitter.email or alone),
            ("id", submitter.sid or alone),
            ("login", alone),
            ("key", alone),
        ]
        for field, value in sure:
            if value and (people := self.by[field].get(value.strip().casefold())):
                if field == "number" and not may_be(people[0], submitter.name):
                    raise ValueError(
                        f"{found.path} has the number of {people[0].key} and another name: is {self.path} of this "
                        "assignment? Correct the name there, or name the folder by the id"
                    )
                return people[0]
        people = self.by["name"].get(plain(submitter.name), [])
        if len(people) > 1:
            who = " or ".join(each.key for each in people)
            raise ValueError(
                f"{found.path} may be of {who} in {self.path}: name its folder by the id, or add to the roster a "
                f"column with the platform's number, ID in Canvas's gradebook, Identifier in Moodle's worksheet"
            )
        return people[0] if people else None


def grouped(pairs: Iterable[tuple[str, Person]]) -> dict[str, list[Person]]:
    found = defaultdict(list)
    for key, person in pairs:
        if key and person not in found[key]:
            found[key].append(person)
    return found
