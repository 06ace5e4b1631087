"""Find a class's notebooks in a folder or zip, and the student and exercise of each.

Nothing is unpacked, and links are not followed. The student's name comes from the path, as learning platforms write it:

    smith/03_fused_add_gelu.ipynb                                          nbgrader, Gradescope, by hand
    Ann Smith_123_assignsubmission_file_/03_fused_add_gelu.ipynb           Moodle, in folders or not
    smithann_LATE_123_456_03_fused_add_gelu-1.ipynb                        Canvas
    smith_03_fused_add_gelu.ipynb, 03_fused_add_gelu_smith.ipynb           by hand
    submission_123/03_fused_add_gelu.ipynb                                 Gradescope, names in submission_metadata.yml

A zip may replace a notebook. If two people share a name, the platform's number is appended.
"""

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from helpers.grading.archives import MAX_ARCHIVE, METADATA, Trail, contents_of, read
from helpers.grading.exercise import Exercise, number_of

MAX_FILES = 100_000
# Match at the start of the path: below that, in a student's own folder or archive, the student chooses the names.
MOODLE = re.compile(r"(?P<student>[^/]+?)_(?P<id>\d+)_assignsubmission_")
CANVAS = re.compile(
    r"(?P<student>[^/_]+)(?P<late>_LATE)?_(?P<id>\d+)_\d+_[^/]+(?:\.zip/.+)?$", re.IGNORECASE | re.DOTALL
)

# Spaces of no width, byte-order marks, soft hyphens, directions. Joiners stay: some scripts are read by them.
UNSEEN = re.compile("[\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")


@dataclass(frozen=True)
class Submitter:
    """A submitter as the platform names them: their name, the platform's number for them, and Gradescope's other
    data."""

    name: str
    number: str = ""
    email: str = ""
    sid: str = ""


@dataclass(frozen=True)
class Found:
    """A notebook to grade: its student, its exercise, and its path in the folder or zip.

    Args:
        submitters: one, or several in Gradescope.
        handed_in: Gradescope's time; the other platforms' downloads have none.
        late: whether Canvas marked it as late.
    """

    student: str
    exercise: str
    path: str
    submitters: tuple[Submitter, ...] = ()
    handed_in: str = ""
    late: bool = False


@dataclass(frozen=True)
class Class:
    """All notebooks of a class.

    Args:
        root: the folder or zip.
        found: notebooks to grade, one per student and exercise.
        left: other files, as (path, reason).
        trails: where each path leads, through nested zips.
        notes: remarks for the instructor, one line each.
    """

    root: Path
    found: tuple[Found, ...]
    left: tuple[tuple[str, str], ...]
    trails: dict[str, Trail]
    notes: tuple[str, ...] = ()

    def read(self, path: str) -> bytes:
        """Return a notebook's bytes, up to slightly more than the limit for grading; OSError if it can't be read."""
        return read(self.root, self.trails[path])


def class_in(root: Path, exercises: dict[str, Exercise], student: str | None = None) -> Class:
    """Return the notebooks in a folder or zip.

    Args:
        exercises: those to grade, by name.
        student: a regular expression with a group `student`, searched in the path, instead of the usual ones.

    Raises:
        FileNotFoundError, ValueError: no such folder or zip, a pattern without its group, nothing in it, or two
            hand-ins whose names, given by hand, differ only in ways that one does not see.
    """
    pattern = compiled(student) if student else None
    if not root.exists():
        raise FileNotFoundError(f"no folder or zip {root}: pass the one with the submissions")
    try:
        trails, left = contents_of(root)
    except ValueError:
        raise ValueError(f"{root} is not a zip: pass the folder, or the zip, with the submissions") from None
    if not trails and not left:
        raise ValueError(f"{root} holds no notebook: pass the folder, or the zip, with the submissions")
    if len(trails) + len(left) > MAX_FILES:
        raise ValueError(f"{root} holds more than {MAX_FILES:,} files: grade them in several parts")
    metadata = metadata_of_gradescope(root, METADATA)
    common = "" if metadata else common_folder(list(trails), [path for path, _ in left])
    metadata = metadata or metadata_of_gradescope(root, common + METADATA)
    names = {folder: named(submitters) for folder, (submitters, _) in metadata.items()}
    answered, written = [], defaultdict(dict)
    for path in sorted(trails, key=natural):
        exercise, why = exercise_of(path, lambda path: read(root, trails[path]), exercises)
        name, number = student_of(path.removeprefix(common), exercise, pattern, names)
        whose = composed(name), number
        if whose[0] and not number:
            written[whose[0]].setdefault(name, path)
        if not exercise:
            left.append((path, why))
        elif not whose[0]:
            why = "no student in its name, or two: put it in a folder of the student's name, or give --student"
            left.append((path, why))
        else:
            answered.append((path, exercise, whose, name))
    shown = told_apart({whose for _, _, whose, _ in answered})
    chosen: dict[tuple[str, str], str] = {}
    spelled: dict[tuple[str, str], str] = {}
    for path, exercise, whose, name in answered:
        # Without a platform's number to distinguish them, one would replace the other's work.
        before = spelled.setdefault((shown[whose], exercise), name)
        if before != name and not whose[1]:
            raise ValueError(
                f"{root} has {exercise} of {before!a} and of {name!a}, names that look the same: "
                "rename one folder, or remove one hand-in"
            )
        if earlier := chosen.get((shown[whose], exercise)):
            left.append((earlier, f"a later one is graded: {path}"))
        chosen[shown[whose], exercise] = path
    told_of = {path: whose for path, _, whose, _ in answered}
    found = tuple(
        found_at(student, exercise, path, path.removeprefix(common), told_of[path], {} if pattern else metadata)
        for (student, exercise), path in sorted(chosen.items())
    )
    told = []
    for path, why in left:
        name = names.get(path.removeprefix(common).split("/")[0])
        told.append((path, f"{why} (of {name[0]})" if name else why))
    notes = tuple(
        f"taken for one student, though written {' and '.join(map(ascii, spellings))}: {', '.join(spellings.values())}"
        for spellings in written.values()
        if len(spellings) > 1
    )
    return Class(root, found, tuple(sorted(told)), trails, notes)


def found_at(student: str, exercise: str, path: str, below: str, whose: tuple[str, str], metadata: dict) -> Found:
    """Return the notebook at `path`, `below` the common folder, with the platform's data about it."""
    submitters, handed_in = metadata.get(below.split("/")[0], ((Submitter(*whose),), ""))
    canvas = None if handed_in else CANVAS.match(below)
    return Found(student, exercise, path, submitters, handed_in, bool(canvas and canvas["late"]))


def compiled(student: str) -> re.Pattern:
    try:
        pattern = re.compile(student)
    except re.error as error:
        raise ValueError(f"--student {student!r} is not a regular expression: {error}") from None
    if "student" not in pattern.groupindex:
        raise ValueError(f"--student {student!r} has no group called student: write (?P<student>...)")
    return pattern


def common_folder(notebooks: list[str], others: list[str]) -> str:
    """Return the common folder of all paths that is not a student's, such as the top folder of a zip."""
    parts = [path.split("/") for path in notebooks]
    tops = {part[0] for part in parts} | {path.split("/")[0] for path in others if "/" in path}
    alike = parts and len(tops - {"", ".."}) == 1 and all(len(part) > 1 for part in parts)
    if alike and MOODLE.match(parts[0][0]):
        return ""  # a class of one, who chose the names below it
    of_folders = all(len(part) > 2 for part in parts)
    of_platform = any(MOODLE.match(part[1]) or CANVAS.match(part[1]) for part in parts if len(part) == 2)
    return parts[0][0] + "/" if alike and (of_folders or of_platform) else ""


def natural(path: str) -> list:
    """Sort key that puts "x.ipynb" before "x-2.ipynb", and that before "x-10.ipynb"; also for the contents of "x.zip"
    and "x-2.zip"."""
    names = re.sub(r"\.(zip|ipynb)(?=/|$)", "", path, flags=re.IGNORECASE).split("/")
    split = [re.split(r"([0-9]{1,9})", name) for name in names]
    return [
        [(int(part), "") if part.isdecimal() and part.isascii() else (0, part) for part in parts] for parts in split
    ]


def exercise_of(path: str, read: Callable[[str], bytes], exercises: dict[str, Exercise]) -> tuple[str, str]:
    """Return the exercise that a notebook answers, according to its name or else its metadata; or the reason if there
    is none."""
    stem = Path(path).stem.lower()
    if named := [name for name in exercises if name in stem]:
        return named[0], ""
    if number := number_of(stem):
        found = next((name for name in exercises if name.startswith(f"{number}_")), "")
        return found, f"exercise {number} is not being graded now"
    try:
        claimed = json.loads(read(path))["metadata"]["kernel_fusion"]["exercise"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        claimed = None
    if isinstance(claimed, str):
        return (
            claimed if claimed in exercises else "",
            f"it holds exercise {claimed[:60]}, which isn't being graded now",
        )
    return next(iter(exercises)) if len(exercises) == 1 else "", "no exercise in it: is its number in its name?"


def student_of(
    path: str, exercise: str, pattern: re.Pattern | None, names: dict[str, tuple[str, str]]
) -> tuple[str, str]:
    """Return the student's name as written, and the platform's number or address; empty if unknown."""
    if pattern:
        return (match["student"] or "") if (match := pattern.search(path)) else "", ""
    first, _, below = path.partition("/")
    if below and first in names:
        return names[first]
    if told := [match for known in (MOODLE, CANVAS) if (match := known.match(path))]:
        # A file uploaded to Canvas may have the name that Moodle would give another student's.
        return (told[0]["student"], told[0]["id"]) if len(told) == 1 else ("", "")
    if below and not first.lower().endswith(".zip"):
        return first, ""
    stem = Path(first).stem
    without = re.sub(re.escape(exercise), "", stem, flags=re.IGNORECASE) if exercise else stem
    return without.strip("_- .") if below or without != stem else "", ""


def composed(name: str) -> str:
    """Normalise a name, however its accents and spaces are encoded, and drop invisible characters."""
    return " ".join(unicodedata.normalize("NFC", UNSEEN.sub("", name)).split())


def told_apart(students: set[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return (name, number) -> the name to display, with the number added if several students share the name."""
    numbers = defaultdict(set)
    for name, number in students:
        numbers[name].add(number)
    return {
        (name, number): f"{name} ({number})" if number and len(numbers[name]) > 1 else name for name, number in students
    }


def metadata_of_gradescope(root: Path, metadata: str) -> dict[str, tuple[tuple[Submitter, ...], str]]:
    """Return folder -> who handed it in and when, from Gradescope's own file; empty if there is no such file."""
    try:
        # Tags in the file create no objects: everything is text.
        entries = yaml.load(read(root, (metadata,), MAX_ARCHIVE), Loader=yaml.CBaseLoader)
        found = {folder: (submitters_in(entry), entry.get(":created_at") or "") for folder, entry in entries.items()}
    except (OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError, RecursionError):
        return {}
    return {
        folder: (submitters, when if isinstance(when, str) else "")
        for folder, (submitters, when) in found.items()
        if named(submitters)[0]
    }


def submitters_in(entry: dict) -> tuple[Submitter, ...]:
    keys = (":name", ":email", ":sid")
    told = [[each.get(key) or "" for key in keys] for each in entry[":submitters"]]
    if not all(isinstance(value, str) for values in told for value in values):
        raise TypeError("a submitter's data is text")
    return tuple(Submitter(composed(name), "", composed(email), composed(sid)) for name, email, sid in told)


def named(submitters: tuple[Submitter, ...]) -> tuple[str, str]:
    """Return the names, and the numbers that distinguish equal names."""
    names, addresses = [each.name for each in submitters], [each.email for each in submitters]
    return ", ".join(filter(None, names)), ", ".join(filter(None, addresses))
