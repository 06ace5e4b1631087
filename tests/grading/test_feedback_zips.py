"""Feedback goes back in one step: the zips that Moodle and Canvas read, by their own rules for names."""

import io
import zipfile

import pytest

from helpers.grading.feedback_zips import named_pages, pages_for, zipped


def moodles_participant(path: str, before_4_1: bool = False) -> str | None:
    """As is_valid_filename_for_import of moodle/moodle has it: the first part with an id and a plugin's name."""
    for part in path.split("/"):
        info = part.split("_", 4)
        if len(info) >= 4 + before_4_1 and info[1].isdecimal() and info[2:4] == ["assignsubmission", "file"]:
            return info[1]
    return None


def canvas_user_and_attachment(name: str) -> tuple[str, str]:
    """As infer_comment_context_from_filename of instructure/canvas-lms has it."""
    parts = name.split("_")
    at = 2 if parts[1].upper() == "LATE" else 1
    return parts[at], parts[at + 1]


@pytest.mark.parametrize(
    "path",
    [
        "Ann Smith_123_assignsubmission_file_/03_fused_add_gelu.ipynb",
        "Ann Smith_123_assignsubmission_file/03_fused_add_gelu.ipynb",
        "Ann Smith_123_assignsubmission_file_03_fused_add_gelu.ipynb",
        "download/Ann Smith_123_assignsubmission_file_/my_work_1_2_3.zip/a.ipynb",
    ],
)
def test_moodle_finds_the_participant(path):
    [name] = pages_for("moodle", {"Ann Smith": "page"}, {"Ann Smith": [path]})
    assert moodles_participant(name) == "123"
    assert moodles_participant(name, before_4_1=True) == (None if "file/" in path else "123")  # 4.1 left the "_" out
    assert name.endswith("feedback.html")


@pytest.mark.parametrize("late", ["", "_LATE"])
def test_canvas_finds_the_user_and_the_attachment(late):
    path = f"smithann{late}_12_345_03_fused_add_gelu-1.ipynb"
    [name] = pages_for("canvas", {"Ann": "page"}, {"Ann": [path]})
    assert canvas_user_and_attachment(name) == ("12", "345")


def test_a_path_that_no_platform_named_is_in_neither():
    for platform in ("moodle", "canvas"):
        assert pages_for(platform, {"Ann": "page"}, {"Ann": ["ann/03_fused_add_gelu.ipynb"]}) == {}


def test_pages_are_named_after_the_students():
    files = named_pages({"Bob Stone": "1", "bob stone": "2", "a/../b": "3", "..": "4", "José": "5"})
    assert files == {
        "Bob Stone.html": "1",
        "bob stone 2.html": "2",
        "a-..-b.html": "3",
        "student.html": "4",
        "José.html": "5",
    }


def test_the_same_pages_give_the_same_zip():
    content = zipped({"José.html": "<p>é</p>", "\udc80.html": "x"})
    assert content == zipped({"José.html": "<p>é</p>", "\udc80.html": "x"})
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.read("José.html").decode() == "<p>é</p>"
        assert archive.testzip() is None
