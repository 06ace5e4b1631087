"""List the contents of a folder or a zip, including nested zips, without unpacking anything or following any link.

A path in a zip is written as if the zip were a folder: `smith/homework.zip/03_fused_add_gelu.ipynb`.
"""

import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from helpers.grading.grade import MAX_BYTES

# Limits of a student's zip, with nested zips.
MAX_ARCHIVE = 50_000_000  # bytes
MAX_IN_ARCHIVE = 300  # files
MAX_NESTED = 3  # zips in one another
# LZMA takes as much memory as the zip asks for.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
METADATA = "submission_metadata.yml"
OF_PLATFORMS = {METADATA, "timestamp.txt", "Thumbs.db", "desktop.ini"}

Trail = tuple[str, ...]  # names that lead to a file: of each zip in turn, then its own in the last
Left = list[tuple[str, str]]  # path, reason


@dataclass
class Room:
    """The remaining limits for a student's zip: files, and bytes of nested zips."""

    files: int = MAX_IN_ARCHIVE
    size: int = MAX_ARCHIVE


def contents_of(root: Path) -> tuple[dict[str, Trail], Left]:
    """Return the notebooks in a folder or zip, path -> trail, and the other files, each with a reason.

    Raises:
        ValueError: `root` is a file, but not a zip.
    """
    paths, left = in_folder(root) if root.is_dir() else in_zip(root)
    trails = {}
    for path in paths:
        sort_out(root, (path,), trails, left)
    return trails, left


def sort_out(root: Path, trail: Trail, trails: dict[str, Trail], left: Left, room: Room | None = None) -> None:
    """Sort one file, or each file of a zip, into notebooks and others."""
    shown = "/".join(trail)
    suffix = Path(shown).suffix.lower()
    if suffix == ".zip":
        look_into(root, trail, trails, left, room or Room())
    elif suffix != ".ipynb":
        left.append((shown, "no notebook: only .ipynb files are graded, and zips of them"))
    elif shown in trails:
        left.append((shown, "two files with this name"))
    else:
        trails[shown] = trail


def look_into(root: Path, trail: Trail, trails: dict[str, Trail], left: Left, room: Room) -> None:
    shown = "/".join(trail)
    try:
        if len(trail) > MAX_NESTED:
            raise ValueError(f"more than {MAX_NESTED} zips in one another: unpack it")
        content = read(root, trail, room.size)
        room.size -= len(content)
        if room.size < 0:
            raise ValueError(f"more than {MAX_ARCHIVE:,} bytes: unpack it")
        paths, unread = in_zip(io.BytesIO(content))
        room.files -= len(paths) + len(unread)
        if room.files < 0:
            raise ValueError(f"more than {MAX_IN_ARCHIVE} files: unpack it")
    except (OSError, ValueError) as error:
        left.append((shown, str(error)))
        return
    if not paths and not unread:
        left.append((shown, "an empty zip"))
    left += [(f"{shown}/{path}", why) for path, why in unread]
    for path in paths:
        sort_out(root, (*trail, path), trails, left, room)


def read(root: Path, trail: Trail, most: int = MAX_BYTES) -> bytes:
    """Return a file's bytes, up to one more than `most`; OSError if it can't be read."""
    *archives, last = trail
    source = root
    for archive in archives:
        source = io.BytesIO(read_one(source, archive, MAX_ARCHIVE))
    return read_one(source, last, most)


def read_one(source: Path | io.BytesIO, name: str, most: int) -> bytes:
    if isinstance(source, Path) and source.is_dir():
        # Don't follow a link that was put there in the meantime either.
        descriptor = os.open(source / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            return file.read(most + 1)
    try:
        with zipfile.ZipFile(source) as archive, archive.open(name) as file:
            return file.read(most + 1)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, RuntimeError, ValueError) as error:
        raise OSError(f"the zip is damaged there, or has a format that Python can't read: {error}") from None


def in_folder(root: Path) -> tuple[list[str], Left]:
    """Return the files below a folder, and the other entries, each with a reason."""
    paths, below, left = [], [], []
    for folder, folders, files in os.walk(root):
        names = sorted(name for name in files + folders if not is_hidden(name))
        folders.clear()
        for name in names:
            path = Path(folder, name)
            relative = os.fsencode(path.relative_to(root)).decode(errors="replace")
            if relative != str(path.relative_to(root)):
                left.append((relative, "its name is not UTF-8: rename it"))
            elif stat.S_ISDIR(mode := path.lstat().st_mode):
                below.append(relative)
                folders.append(name)
            elif stat.S_ISREG(mode):
                paths.append(relative)
            else:
                left.append((relative, "a link, or not a regular file: not followed"))
    left += empty(below, [*paths, *(path for path, _ in left)])
    return without_platforms(paths), left


def in_zip(source: Path | io.BytesIO) -> tuple[list[str], Left]:
    """Return the files in a zip, and the other entries, each with a reason; ValueError if it's not a zip."""
    try:
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, struct.error, NotImplementedError, ValueError):
        raise ValueError("not a zip, or damaged: recreate it") from None
    paths, below, left = set(), [], []
    for entry in entries:
        path = entry.filename
        folder, _, name = path.rpartition("/")
        if any(map(is_hidden, path.split("/"))):
            below.append(visible(folder))
        elif path.startswith("/") or ".." in path.split("/") or "\\" in path:
            left.append((path, "a path that leads out of the zip"))
        elif not name:
            below.append(folder)
        elif stat.S_ISLNK(entry.external_attr >> 16):
            left.append((path, "a link: not followed"))
        elif entry.flag_bits & 1:
            left.append((path, "encrypted"))
        elif entry.compress_type not in METHODS:
            left.append((path, "unsupported compression: recreate the zip"))
        else:
            paths.add(path)
    left += empty(filter(None, below), [*paths, *(path for path, _ in left)])
    return without_platforms(sorted(paths)), left


def is_hidden(name: str) -> bool:
    """Return whether an editor or system created it: `.ipynb_checkpoints`, `.git`, `__MACOSX`."""
    return (name.startswith(".") and name != "..") or name in ("__MACOSX", "__pycache__")


def visible(folder: str) -> str:
    """Return the folder itself, or the nearest parent that is not hidden."""
    parts = folder.split("/")
    shown = next((place for place, name in enumerate(parts) if is_hidden(name)), len(parts))
    return "/".join(parts[:shown])


def empty(folders: Iterable[str], files: Iterable[str]) -> Left:
    """Return the folders that contain nothing we look at."""
    folders = set(folders)
    filled = {str(above) for path in [*folders, *files] for above in Path(path).parents}
    return [(folder, "an empty folder: nothing was handed in") for folder in sorted(folders - filled)]


def without_platforms(paths: list[str]) -> list[str]:
    return [path for path in paths if path.rpartition("/")[2] not in OF_PLATFORMS]
