"""Put all students' pages in one zip, named as the platform expects for a feedback upload.

    feedback.zip           by name, to send or unpack
    feedback_moodle.zip    Assignment > Upload multiple feedback files in a zip
    feedback_canvas.zip    Assignment > Upload Submissions

Moodle reads the part of a path that has the form name_participant_assignsubmission_file (importziplib.php of
moodle/moodle, mod/assign/feedback/file); before version 4.1 it also wants the "_" that its own downloads have after it.
Canvas reads name_user_attachment_rest, with _LATE after the name for a late hand-in, and only accepts attachments that
came from Canvas (infer_comment_context_from_filename of instructure/canvas-lms). So each platform gets back the
prefixes that it gave the files.
"""

import io
import re
import zipfile
from collections.abc import Iterable

PREFIXES = {
    "moodle": re.compile(r"(?:^|/)([^/]+_\d+_assignsubmission_file(?:_/|_|/))"),
    "canvas": re.compile(r"(?:^|/)([^/_]+(?:_LATE)?_\d+_\d+_)[^/]*$", re.IGNORECASE),
}
THE_SAME_TIME = (1980, 1, 1, 0, 0, 0)  # so that the same pages give the same zip


def prefixes(platform: str, paths: Iterable[str]) -> list[str]:
    """Return the prefixes that a platform gave these files; none if they came from elsewhere."""
    found = (PREFIXES[platform].search(path) for path in paths)
    return list(dict.fromkeys(match[1] for match in found if match))


def named_pages(pages: dict[str, str]) -> dict[str, str]:
    """Return file name -> page, given student -> page: the student's own name, with a number if two would collide."""
    files: dict[str, str] = {}
    taken: set[str] = set()
    for student, page in pages.items():
        name = re.sub(r'[\x00-\x1f\x7f<>:"/\\|?*]+', "-", student).strip(" .") or "student"
        number, unique = 1, name
        while unique.casefold() in taken:
            number += 1
            unique = f"{name} {number}"
        taken.add(unique.casefold())
        files[f"{unique}.html"] = page
    return files


def pages_for(platform: str, pages: dict[str, str], paths: dict[str, list[str]]) -> dict[str, str]:
    """Return file name in the platform's zip -> page.

    Args:
        pages: student -> page.
        paths: student -> the paths of the hand-ins, as the platform's download named them.
    """
    return {
        f"{prefix}feedback.html": page
        for student, page in pages.items()
        for prefix in prefixes(platform, paths.get(student, ()))
    }


def zipped(files: dict[str, str]) -> bytes:
    """Return a zip of texts under the given names."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name.encode(errors="replace").decode(), THE_SAME_TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, text.encode(errors="replace"))
    return content.getvalue()
