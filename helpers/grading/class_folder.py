"""Finds the notebooks of a class in a folder or a zip, and tells whose each is and what it answers.

Nothing is unpacked and no link is followed. The student is read from the path, as learning platforms write it:

    smith/03_fused_add_gelu.ipynb                                          nbgrader, Gradescope, by hand
    Ann Smith_123_assignsubmission_file_/03_fused_add_gelu.ipynb           Moodle, in folders or not
    smithann_LATE_123_456_03_fused_add_gelu-1.ipynb                        Canvas
    smith_03_fused_add_gelu.ipynb, 03_fused_add_gelu_smith.ipynb           by hand
"""

import json
import os
import re
import stat
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from helpers.grading.exercise import Exercise, number_of
from helpers.grading.grade import MOST_BYTES

MOST_FILES = 100_000
# From the path's start: what comes after it, in a student's own folder or archive, is the student's to name.
MOODLE = re.compile(r"(?P<student>[^/]+?)_\d+_assignsubmission_")
CANVAS = re.compile(r"(?P<student>[^/_]+)(?:_LATE)?_\d+_\d+_[^/]+$")


@dataclass(frozen=True)
class Found:
    """A notebook to be graded: whose it is, what it answers, and where it lies below the folder or in the zip."""

    student: str
    exercise: str
    path: str


@dataclass(frozen=True)
class Class:
    """The notebooks of a class.

    Args:
        root: the folder or zip.
        found: what is to be graded, one for each student and exercise.
        left: what is not, with the reason: (path, reason).
    """

    root: Path
    found: tuple[Found, ...]
    left: tuple[tuple[str, str], ...]

    def read(self, path: str) -> bytes:
        """A notebook's bytes, a little more than are graded at most; OSError where it cannot be read."""
        if self.root.is_dir():
            # A link that was put there since is not followed either.
            descriptor = os.open(self.root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                return file.read(MOST_BYTES + 1)
        try:
            with zipfile.ZipFile(self.root) as archive, archive.open(path) as file:
                return file.read(MOST_BYTES + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise OSError(f"the zip is damaged there, or of a kind that Python cannot read: {error}") from None


def class_in(root: Path, exercises: dict[str, Exercise], student: str | None = None) -> Class:
    """The notebooks in a folder or zip.

    Args:
        exercises: those to be graded, by name.
        student: a regular expression with a group `student`, searched in the path, instead of the usual ones.

    Raises:
        FileNotFoundError, ValueError: no such folder or zip, a pattern without its group, or no notebook in it.
    """
    pattern = compiled(student) if student else None
    if root.is_dir():
        paths, left = in_folder(root)
    elif root.is_file():
        paths, left = in_zip(root)
    else:
        raise FileNotFoundError(f"there is no folder or zip {root}: give the one with the submissions")
    if not paths and not left:
        raise ValueError(f"{root} holds no notebook: give the folder, or the zip, with the submissions")
    if len(paths) > MOST_FILES:
        raise ValueError(f"{root} holds {len(paths):,} notebooks: grade at most {MOST_FILES:,} at once")
    unsorted = Class(root, (), ())
    chosen: dict[tuple[str, str], str] = {}
    common = common_folder(paths)
    for path in sorted(paths, key=natural):
        exercise = exercise_of(path, unsorted, exercises)
        whose = student_of(path.removeprefix(common), exercise, pattern)
        if not exercise:
            left.append((path, "no exercise that is graded now: is its number in its name?"))
        elif not whose:
            left.append((path, "no student in its name: put it in a folder of the student's name, or give --student"))
        else:
            if earlier := chosen.get((whose, exercise)):
                left.append((earlier, f"a later one is graded: {path}"))
            chosen[whose, exercise] = path
    found = tuple(Found(whose, exercise, path) for (whose, exercise), path in sorted(chosen.items()))
    return Class(root, found, tuple(sorted(left)))


def compiled(student: str) -> re.Pattern:
    try:
        pattern = re.compile(student)
    except re.error as error:
        raise ValueError(f"--student {student!r} is no regular expression: {error}") from None
    if "student" not in pattern.groupindex:
        raise ValueError(f"--student {student!r} has no group called student: write (?P<student>...)")
    return pattern


def in_folder(root: Path) -> tuple[list[str], list[tuple[str, str]]]:
    paths, left = [], []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if not name.endswith(".ipynb") or name.startswith("."):
                continue
            path = Path(folder, name)
            relative = os.fsencode(path.relative_to(root)).decode(errors="replace")
            if relative != str(path.relative_to(root)):
                left.append((relative, "its name is not UTF-8: rename it"))
            elif stat.S_ISREG(path.lstat().st_mode):
                paths.append(relative)
            else:
                left.append((relative, "a link or no plain file: not followed"))
    return paths, left


def in_zip(root: Path) -> tuple[list[str], list[tuple[str, str]]]:
    try:
        with zipfile.ZipFile(root) as archive:
            entries = archive.infolist()
    except zipfile.BadZipFile:
        raise ValueError(f"{root} is no zip: give the folder, or the zip, with the submissions") from None
    paths, left = [], []
    for entry in entries:
        path = entry.filename
        if not path.endswith(".ipynb") or "__MACOSX" in path:
            continue
        if path.startswith("/") or ".." in path.split("/") or "\\" in path:
            left.append((path, "a path that leads out of the zip"))
        elif stat.S_ISLNK(entry.external_attr >> 16):
            left.append((path, "a link: not followed"))
        elif entry.flag_bits & 1:
            left.append((path, "encrypted"))
        else:
            paths.append(path)
    return sorted(set(paths)), left


def common_folder(paths: list[str]) -> str:
    """The folder that all paths are in and that is no student's: what a zip of a folder starts with."""
    parts = [path.split("/") for path in paths]
    alike = parts and len({part[0] for part in parts}) == 1 and all(len(part) > 1 for part in parts)
    of_folders = all(len(part) > 2 for part in parts)
    of_platform = any(MOODLE.match(part[1]) or CANVAS.match(part[1]) for part in parts if len(part) == 2)
    return parts[0][0] + "/" if alike and (of_folders or of_platform) else ""


def natural(path: str) -> list:
    """Sorts "x.ipynb" before "x-2.ipynb", and that before "x-10.ipynb"."""
    parts = re.split(r"([0-9]{1,9})", path.removesuffix(".ipynb"))
    return [(int(part), "") if part.isdecimal() and part.isascii() else (0, part) for part in parts]


def exercise_of(path: str, where: Class, exercises: dict[str, Exercise]) -> str:
    """The exercise that a notebook answers: by its name, or else by what it says of itself; empty where unknown."""
    stem = Path(path).stem
    if named := [name for name in exercises if name in stem]:
        return named[0]
    if number := number_of(stem):
        return next((name for name in exercises if name.startswith(f"{number}_")), "")
    try:
        claimed = json.loads(where.read(path))["metadata"]["kernel_fusion"]["exercise"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        claimed = None
    if isinstance(claimed, str) and claimed in exercises:
        return claimed
    return next(iter(exercises)) if len(exercises) == 1 and claimed is None else ""


def student_of(path: str, exercise: str, pattern: re.Pattern | None) -> str:
    if pattern:
        return (match["student"] or "").strip() if (match := pattern.search(path)) else ""
    for known in (MOODLE, CANVAS):
        if match := known.match(path):
            return match["student"].strip()
    if "/" in path:
        return path.split("/")[0].strip()
    return Path(path).stem.replace(exercise, "").strip("_- .") if exercise and exercise in path else ""
