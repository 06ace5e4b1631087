"""What platforms give and learners hand in: zips in zips, other files, namesakes; a row for each, never nothing."""

import io
import json
import zipfile
from pathlib import Path

import attacks
import pytest

from helpers.grading import archives, class_folder, class_report
from helpers.grading.exercise import exercises_in
from helpers.grading.grade import INVALID, grade
from helpers.grading.gradebook import Rules, gradebook
from helpers.learning.submission import parsed_notebook
from helpers.learning.submission_policy.screening import screened

NAME = attacks.NAME
NOTEBOOK = f"{NAME}.ipynb"
CONTENT = json.dumps(attacks.notebook()).encode()


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return content.getvalue()


def handed_in(root: Path, files: dict[str, bytes], how: str = "folder") -> class_folder.Class:
    """A class that handed in `files`, in a folder or in a zip."""
    where = root / "class.zip" if how == "zip" else root / "class"
    if how == "zip":
        where.write_bytes(zipped(files))
    else:
        for path, data in files.items():
            place = where / path
            (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
            if not path.endswith("/"):
                place.write_bytes(data)
    return class_folder.class_in(where, exercises_in())


def students_of(students: class_folder.Class) -> dict[str, str]:
    return {each.path: each.student for each in students.found}


both = pytest.mark.parametrize("how", ["folder", "zip"])


@both
@pytest.mark.parametrize(
    ("path", "student"),
    [
        ("smithann_123_456_homework.zip", "smithann"),
        ("smithann_LATE_123_456_homework-1.ZIP", "smithann"),
        ("Ann Smith_123_assignsubmission_file_/homework.zip", "Ann Smith"),
        ("Ann Smith_123_assignsubmission_file_homework.zip", "Ann Smith"),
        ("smith/homework.zip", "smith"),
        ("smith.zip", "smith"),
        (f"{NAME}_smith.zip", "smith"),
    ],
)
def test_a_zip_in_place_of_a_notebook_is_read(tmp_path, how, path, student):
    inner = zipped({f"homework/{NOTEBOOK}": CONTENT, f"homework/jones_1_2_{NOTEBOOK}": b"{"})
    students = handed_in(tmp_path, {path: inner, f"other/{NOTEBOOK}": b"{"}, how)
    assert set(students_of(students).values()) == {"other", student}
    attempts = [each for each in students.trails if each.startswith(path)]
    assert f"{path}/homework/{NOTEBOOK}" in attempts
    assert students.read(f"{path}/homework/{NOTEBOOK}") == CONTENT


@both
def test_a_zip_in_a_zip_is_read(tmp_path, how):
    inner = zipped({"deeper.zip": zipped({NOTEBOOK: CONTENT})})
    students = handed_in(tmp_path, {"smith_1_2_all.zip": inner, f"jones_3_4_{NOTEBOOK}": b"{"}, how)
    assert students_of(students) == {
        f"smith_1_2_all.zip/deeper.zip/{NOTEBOOK}": "smith",
        f"jones_3_4_{NOTEBOOK}": "jones",
    }
    assert students.read(f"smith_1_2_all.zip/deeper.zip/{NOTEBOOK}") == CONTENT
    assert not students.left


def test_the_last_zip_of_several_is_graded(tmp_path):
    files = {f"smith_1_2_hw{attempt}.zip": zipped({NOTEBOOK: CONTENT}) for attempt in ("", "-2", "-10")}
    assert students_of(handed_in(tmp_path, files)) == {f"smith_1_2_hw-10.zip/{NOTEBOOK}": "smith"}


@both
def test_what_is_not_graded_has_a_row(tmp_path, how):
    damaged = bytearray(zipped({NOTEBOOK: CONTENT}, zipfile.ZIP_STORED))
    files = {
        f"right/{NOTEBOOK.replace('.ipynb', '.IPYNB')}": CONTENT,
        "word/answer.docx": b"",
        "script/03_fused_add_gelu.py": b"raise SystemExit",
        "packed/answer.rar": b"",
        "nothing/": b"",
        "only_hidden/.ipynb_checkpoints/03_fused_add_gelu-checkpoint.ipynb": CONTENT,
        "empty/hw.zip": zipped({}),
        "hidden/hw.zip": zipped({f".ipynb_checkpoints/{NOTEBOOK}": CONTENT, f"__MACOSX/._{NOTEBOOK}": b""}),
        "folder/hw.zip": zipped({f"homework/.ipynb_checkpoints/{NOTEBOOK}": CONTENT}),
        "no_zip/hw.zip": b"PK",
        "cut/hw.zip": bytes(damaged[: len(damaged) // 2]),
        "out/hw.zip": zipped({f"../../{NOTEBOOK}": CONTENT}),
        "lzma/hw.zip": zipped({NOTEBOOK: CONTENT}, zipfile.ZIP_LZMA),
        "right/timestamp.txt": b"2026-11-01",
    }
    students = handed_in(tmp_path, files, how)
    assert set(students_of(students).values()) == {"right"}
    why = dict(students.left)
    no_notebook = "no notebook: only .ipynb files are graded, and zips of them"
    empty = "an empty folder: nothing was handed in"
    assert why == {
        "word/answer.docx": no_notebook,
        "script/03_fused_add_gelu.py": no_notebook,
        "packed/answer.rar": no_notebook,
        "nothing": empty,
        "only_hidden": empty,
        "empty/hw.zip": "an empty zip",
        "hidden/hw.zip": "an empty zip",
        "folder/hw.zip/homework": empty,
        "no_zip/hw.zip": "not a zip, or damaged: recreate it",
        "cut/hw.zip": "not a zip, or damaged: recreate it",
        f"out/hw.zip/../../{NOTEBOOK}": "a path that leads out of the zip",
        f"lzma/hw.zip/{NOTEBOOK}": "unsupported compression: recreate the zip",
    }
    table = class_report.table(tmp_path, students, {}, gradebook(students, {}, exercises_in(), Rules()))
    assert all(f"not graded: {path}: {reason}" in table for path, reason in why.items())


@both
def test_checkpoints_take_nobodys_place(tmp_path, how):
    copy = f"smith/.ipynb_checkpoints/{NAME}-checkpoint.ipynb"
    students = handed_in(tmp_path, {f"smith/{NOTEBOOK}": CONTENT, copy: b"{", f"jones/{NOTEBOOK}": b"{"}, how)
    assert sorted(students_of(students)) == [f"jones/{NOTEBOOK}", f"smith/{NOTEBOOK}"]
    assert not students.left


MANY = zipped({f"{number}.ipynb": b"" for number in range(200)})


def nested(times: int) -> bytes:
    content = zipped({NOTEBOOK: CONTENT})
    for _ in range(times):
        content = zipped({"hw.zip": content})
    return content


@both
@pytest.mark.parametrize(
    ("bomb", "why"),
    [
        (nested(archives.MAX_NESTED), "more than 3 zips in one another"),
        (zipped({f"{number}.ipynb": b"" for number in range(301)}), "more than 300 files"),
        (
            zipped({f"{number}.zip": MANY for number in range(9)}),
            "more than 300 files",
        ),
        (zipped({"large.zip": bytes(archives.MAX_ARCHIVE + 1)}), "more than 50,000,000 bytes"),
        (zipped({f"{number}.zip": bytes(20_000_000) for number in range(5)}), "more than 50,000,000 bytes"),
    ],
    ids=["deep", "wide", "wide in all", "large", "large in all"],
)
def test_a_bomb_is_left_and_its_neighbour_graded(tmp_path, how, bomb, why):
    students = handed_in(tmp_path, {"smith/hw.zip": bomb, f"jones/{NOTEBOOK}": CONTENT}, how)
    assert [each.student for each in students.found if each.exercise == NAME] == ["jones"]
    assert any(reason.startswith(why) for path, reason in students.left if path.startswith("smith/hw.zip"))


def test_a_notebook_that_swells_in_a_zip_is_read_no_further_than_is_graded(tmp_path):
    students = handed_in(tmp_path, {"smith/hw.zip": zipped({NOTEBOOK: bytes(40_000_000)})})
    assert len(students.read(f"smith/hw.zip/{NOTEBOOK}")) == archives.MAX_BYTES + 1


def test_a_zip_damaged_inside_is_told(tmp_path):
    inner = zipped({NOTEBOOK: b"x" * 1000}, zipfile.ZIP_STORED).replace(b"x" * 1000, b"y" * 1000)
    students = handed_in(tmp_path, {"smith/hw.zip": inner})
    with pytest.raises(OSError, match="the zip is damaged there"):
        students.read(f"smith/hw.zip/{NOTEBOOK}")


# Whose it is


@both
@pytest.mark.parametrize("path", ["Ann Smith_{}_assignsubmission_file_/" + NOTEBOOK, "annsmith_{}_9_" + NOTEBOOK])
def test_namesakes_stay_apart(tmp_path, how, path):
    name = path.split("_")[0]
    students = handed_in(tmp_path, {path.format(number): CONTENT for number in (12, 34)}, how)
    assert students_of(students) == {
        path.format(12): f"{name} (12)",
        path.format(34): f"{name} (34)",
    }
    assert not students.left


@pytest.mark.parametrize(
    "path",
    [
        f"evil_LATE_106_9006_x_106_assignsubmission_file_{NOTEBOOK}",
        f"evil_106_9006_x_107_assignsubmission_file_{NOTEBOOK}",
    ],
)
def test_a_file_on_canvas_that_is_called_as_on_moodle_is_nobodys(tmp_path, path):
    students = handed_in(tmp_path, {path: CONTENT, f"ok_107_9007_{NOTEBOOK}": CONTENT})
    assert [each.student for each in students.found] == ["ok"]
    assert "no student in its name, or two" in dict(students.left)[path]


@both
def test_one_who_hands_in_alone_names_nobody_else(tmp_path, how):
    path = f"Ann Smith_1_assignsubmission_file_/victim_2_assignsubmission_file_{NOTEBOOK}"
    assert students_of(handed_in(tmp_path, {path: CONTENT}, how)) == {path: "Ann Smith"}


def test_a_name_is_one_however_its_accents_are_written(tmp_path):
    files = {f"Jos\u00e9/{NOTEBOOK}": CONTENT, "Jose\u0301/05_layer_norm.ipynb": CONTENT}
    assert set(students_of(handed_in(tmp_path, files)).values()) == {"Jos\u00e9"}


@pytest.mark.parametrize("other", ["a\u200blice", "alice ", "al\u00adice"])
def test_a_name_that_reads_like_anothers_replaces_nobodys_work(tmp_path, other):
    """Folders named by hand: a blank or a character that does not show makes another hand-in."""
    with pytest.raises(ValueError, match="names that look the same: rename one folder, or remove one hand-in"):
        handed_in(tmp_path, {f"alice/{NOTEBOOK}": CONTENT, f"{other}/{NOTEBOOK}": CONTENT})


def test_a_name_written_in_two_ways_is_flagged(tmp_path):
    found = handed_in(tmp_path, {f"alice/{NOTEBOOK}": CONTENT, "a\u200blice/05_layer_norm.ipynb": CONTENT})
    [note] = found.notes
    assert note.startswith("taken for one student, though written")
    assert "'a\\u200blice'" in note


def test_attempts_of_one_student_are_no_namesakes(tmp_path):
    students = handed_in(tmp_path, {f"smith_1_{attempt}_{NOTEBOOK}": CONTENT for attempt in (2, 3)})
    assert students_of(students) == {f"smith_1_3_{NOTEBOOK}": "smith"}


METADATA = """---
submission_11:
  :submitters:
  - :name: Ann Smith
    :sid: '0012'
    :email: ann@example.org
  :created_at: 2026-11-01 10:00:00.000000000 Z
  :score: 0.0
  :results: !ruby/hash:ActiveSupport::HashWithIndifferentAccess {}
submission_12:
  :submitters:
  - :name: Bo Lee
    :sid:
    :email: bo@example.org
  - :name: Cy Ng
    :sid: '7'
    :email: cy@example.org
submission_13:
  :submitters:
  - :name: Ann Smith
    :sid: '13'
    :email: ann.b@example.org
submission_14:
  :submitters:
  - :name: Di Foy
    :email: di@example.org
"""


@both
@pytest.mark.parametrize("top", ["", "assignment_5_export/"])
def test_gradescope_says_who_handed_in(tmp_path, how, top):
    files = {f"{top}submission_{number}/{NOTEBOOK}": CONTENT for number in (11, 12, 13, 15)}
    files[f"{top}submission_14/answer.pdf"] = b""
    files[f"{top}submission_15/submission_metadata.yml"] = METADATA.replace("_11", "_15").encode()
    files[f"{top}submission_metadata.yml"] = METADATA.encode()
    students = handed_in(tmp_path, files, how)
    assert {Path(path).parent.name: name for path, name in students_of(students).items()} == {
        "submission_11": "Ann Smith (ann@example.org)",
        "submission_12": "Bo Lee, Cy Ng",
        "submission_13": "Ann Smith (ann.b@example.org)",
        "submission_15": "submission_15",
    }
    assert [(path, why.endswith("(of Di Foy)")) for path, why in students.left] == [
        (f"{top}submission_14/answer.pdf", True)
    ]


@pytest.mark.parametrize(
    "content",
    [b"", b"[1, 2]", b"a: b", b"\xff\xfe\xff", b"- " * 3000, b"a: &a [*a]", b"submission_1: {:submitters: [1]}"],
)
def test_metadata_that_make_no_sense_name_nobody(tmp_path, content):
    students = handed_in(tmp_path, {f"submission_1/{NOTEBOOK}": CONTENT, archives.METADATA: content})
    assert students_of(students) == {f"submission_1/{NOTEBOOK}": "submission_1"}


# What it says


def test_a_byte_order_mark_is_no_error():
    assert parsed_notebook(b"\xef\xbb\xbf" + CONTENT, NOTEBOOK) == parsed_notebook(CONTENT, NOTEBOOK)


def test_another_exercise_in_the_file_is_named(tmp_path):
    other = json.loads(CONTENT)
    other["metadata"]["kernel_fusion"]["exercise"] = "05_layer_norm"

    class Judge:
        exercise = exercises_in()[NAME]

    result = grade(json.dumps(other).encode(), NOTEBOOK, Judge)
    assert {check.state for check in result.checks} == {INVALID}
    assert result.checks[0].message.startswith(f"{NOTEBOOK} holds exercise 05_layer_norm, not {NAME}: ")
    (tmp_path / "smith").mkdir()
    (tmp_path / "smith" / "homework.ipynb").write_bytes(json.dumps(other).encode())
    students = class_folder.class_in(tmp_path, exercises_in(only="03"))
    assert students.left == (("smith/homework.ipynb", "it holds exercise 05_layer_norm, which isn't being graded now"),)


@pytest.mark.parametrize("name", exercises_in())
def test_a_syntax_error_is_not_refused(name):
    exercise = exercises_in()[name]
    answers = {cell["id"]: cell["source"] for cell in exercise.cells if cell["answer"]}
    for answer in answers:
        found = screened(answers | {answer: "def (:\n"}, exercise.cells)
        assert list(found.unreadable) == [answer]
        assert not found.refusals


def test_a_syntax_error_hides_no_refusal():
    exercise = exercises_in()["01_roofline"]
    answers = {cell["id"]: cell["source"] for cell in exercise.cells if cell["answer"]}
    first, *_, last = answers
    found = screened(answers | {first: "def (:\n", last: "def f():\n    return unheard_of\n"}, exercise.cells)
    assert [refusal.answer for refusal in found.refusals] == [first, last]
