"""`fusion grade` on a class: what is found, what is kept, what is reported, and what survives a run that stops."""

import copy
import csv
import json
import multiprocessing
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import answers
import attacks
import psutil
import pytest

from helpers.cli import main
from helpers.grading import atomic_files, class_folder, class_report, grade, run, sandbox, workers
from helpers.grading.exercise import exercises_in
from helpers.instruments.diagnosis import Diagnosis, bubblewrap

NAME = attacks.NAME
NOTEBOOK = f"{NAME}.ipynb"
ROOT = Path(__file__).parents[2]
needs_sandbox = pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")


def put(folder: Path, path: str, content: dict | bytes | None = None) -> Path:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    content = attacks.notebook() if content is None else content
    place.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return place


def found_in(root: Path, **options) -> dict[str, str]:
    """path -> student"""
    return {each.path: each.student for each in class_folder.class_in(root, exercises_in(), **options).found}


# Finding


@pytest.mark.parametrize(
    ("path", "student"),
    [
        (f"smith/{NOTEBOOK}", "smith"),
        (f"smith/{NAME}/{NOTEBOOK}", "smith"),
        (f"Ann Smith_123_assignsubmission_file_/{NOTEBOOK}", "Ann Smith"),
        (f"Ann Smith_123_assignsubmission_file_{NOTEBOOK}", "Ann Smith"),
        (f"smithann_123_456_{NOTEBOOK}", "smithann"),
        (f"smithann_LATE_123_456_{NAME}-1.ipynb", "smithann"),
        (f"smith_{NOTEBOOK}", "smith"),
        (f"{NAME}_smith.ipynb", "smith"),
        ("smith/my homework.ipynb", "smith"),
        ("smith/03_mine.ipynb", "smith"),
    ],
)
def test_students_are_read_from_the_path(tmp_path, path, student):
    put(tmp_path, path)
    put(tmp_path, f"other/{NOTEBOOK}")
    assert found_in(tmp_path)[path] == student


@pytest.mark.parametrize("name", [f"smith_1_2_{NOTEBOOK}", f"smith_1_assignsubmission_file_{NOTEBOOK}"])
def test_a_students_own_folder_speaks_for_nobody_else(tmp_path, name):
    put(tmp_path, f"smith/{NOTEBOOK}")
    put(tmp_path, f"zoe/{name}")
    put(tmp_path, f"Zoe B_7_assignsubmission_file_/{name}")
    assert sorted(found_in(tmp_path).values()) == ["Zoe B", "smith", "zoe"]


def test_a_folder_of_the_platforms_names_is_no_student(tmp_path):
    for name in (f"smith_1_2_{NOTEBOOK}", f"jones_3_4_{NOTEBOOK}"):
        put(tmp_path, f"download/{name}")
    assert sorted(found_in(tmp_path).values()) == ["jones", "smith"]


def test_a_pattern_of_ones_own(tmp_path):
    put(tmp_path, f"group-7/s123-{NOTEBOOK}")
    assert set(found_in(tmp_path, student=r"s(?P<student>\d+)-").values()) == {"123"}
    with pytest.raises(ValueError, match="has no group called student"):
        found_in(tmp_path, student=r"\d+")


def test_the_last_of_several_attempts_is_graded(tmp_path):
    for attempt in ("", "-2", "-10"):
        put(tmp_path, f"smith_1_2_{NAME}{attempt}.ipynb")
    students = class_folder.class_in(tmp_path, exercises_in())
    assert [each.path for each in students.found] == [f"smith_1_2_{NAME}-10.ipynb"]
    assert all("a later one is graded" in why for _, why in students.left)
    assert len(students.left) == 2


def test_links_and_foreign_files_are_left(tmp_path):
    real = put(tmp_path / "elsewhere", NOTEBOOK)
    root = tmp_path / "submissions"
    put(root, f"smith/{NOTEBOOK}")
    (root / "jones").mkdir()
    (root / "jones" / NOTEBOOK).symlink_to(real)
    (root / "folder").symlink_to(real.parent)
    os.mkfifo(root / "smith" / "05_pipe.ipynb")
    for name in ("conftest.py", "torch.py", "sitecustomize.py"):
        (root / "smith" / name).write_text("raise SystemExit('read')")
    students = class_folder.class_in(root, exercises_in())
    assert [each.path for each in students.found] == [f"smith/{NOTEBOOK}"]
    links = ["folder", f"jones/{NOTEBOOK}", "smith/05_pipe.ipynb"]
    assert [path for path, why in students.left if why == "a link, or not a regular file: not followed"] == links
    others = ["smith/conftest.py", "smith/sitecustomize.py", "smith/torch.py"]
    assert [path for path, why in students.left if why.startswith("no notebook: only .ipynb")] == others
    assert len(students.left) == 6


def test_a_zip_is_read_where_it_lies(tmp_path):
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as archive:
        archive.writestr(f"class/smith/{NOTEBOOK}", json.dumps(attacks.notebook()))
        archive.writestr(f"class/jones/{NOTEBOOK}", "{")
        archive.writestr(f"../../evil/{NOTEBOOK}", "{}")
        archive.writestr(f"/evil/{NOTEBOOK}", "{}")
        link = zipfile.ZipInfo(f"class/link/{NOTEBOOK}")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    students = class_folder.class_in(tmp_path / "class.zip", exercises_in())
    assert {each.path: each.student for each in students.found} == {
        f"class/smith/{NOTEBOOK}": "smith",
        f"class/jones/{NOTEBOOK}": "jones",
    }
    assert [why for _, why in students.left] == ["a path that leads out of the zip"] * 2 + ["a link: not followed"]
    assert sorted(os.listdir(tmp_path)) == ["class.zip"]


def test_a_zip_bomb_is_read_no_further_than_is_graded(tmp_path):
    with zipfile.ZipFile(tmp_path / "class.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"smith/{NOTEBOOK}", b" " * 200_000_000)
    students = class_folder.class_in(tmp_path / "class.zip", exercises_in())
    assert len(students.read(students.found[0].path)) == grade.MAX_BYTES + 1


@pytest.mark.parametrize("name", ["none", "text.zip"])
def test_no_submissions_are_told_in_one_line(tmp_path, capsys, name, monkeypatch):
    monkeypatch.setattr(run, "require_sandbox", lambda: None)
    (tmp_path / "text.zip").write_text("text")
    assert main(["grade", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    assert re.fullmatch(r"fusion: .*(no folder or zip|is not a zip).*\n", capsys.readouterr().err)


# A run


FORMULA = "=HYPERLINK(1)"


@pytest.fixture(scope="module")
def graded_class(tmp_path_factory):
    """Six submissions graded by the command, which was killed at its first result and told to go on: folder, report."""
    root = tmp_path_factory.mktemp("class")
    submissions, out = root / "submissions", root / "report"
    put(submissions, f"right/{NOTEBOOK}")
    put(submissions, f"forged/{NOTEBOOK}", attacks.FORGED["all of it"].content())
    put(submissions, f"broken/{NOTEBOOK}", b"{")
    put(submissions, f"{FORMULA}/{NOTEBOOK}", b"{")
    put(submissions, f"<script>alert(1)<script>/{NOTEBOOK}", attacks.notebook(launcher="import os"))
    loud = attacks.notebook(launcher="def add_gelu(a, b):\n    raise ValueError('<script>' + chr(27) + '[2J]]>')\n")
    put(submissions, f"loud/{NOTEBOOK}", loud)
    for name in ("conftest.py", "torch.py", "sitecustomize.py"):
        (submissions / "right" / name).write_text("raise SystemExit('read')")
    arguments = ["grade", str(submissions), "--out", str(out), "--seed", "5", "--jobs", "2"]
    first = subprocess.Popen([sys.executable, "-c", f"from helpers.cli import main; main({arguments})"])
    deadline = time.monotonic() + 100
    while not list(out.glob("results/*/*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.wait()
    outliving = psutil.wait_procs(workers, timeout=100)[1]
    alive = [each for each in outliving if each.status() != psutil.STATUS_ZOMBIE]
    assert not alive, "a worker or a sandbox outlives the grader"
    assert main([*arguments, "--jobs", "1", "--resume"]) == 0
    return submissions, out


def results(out: Path) -> dict[str, dict]:
    kept = [json.loads(path.read_text()) for path in sorted(out.glob(f"results/*/{NAME}.json"))]
    return {each["student"]: each["result"] for each in kept}


@needs_sandbox
def test_a_class_gets_what_is_due(graded_class):
    earned = {student: (result["earned"], result["points"]) for student, result in results(graded_class[1]).items()}
    assert earned == {
        "right": (15, 15),
        "forged": (0, 15),
        "broken": (0, 15),
        FORMULA: (0, 15),
        "<script>alert(1)<script>": (0, 15),
        "loud": (0, 15),
    }
    forged = results(graded_class[1])["forged"]
    assert {check["state"] for check in forged["checks"]} == {"not attempted"}
    assert forged["left_out"] > 0


@needs_sandbox
def test_no_report_runs_what_a_submission_wrote(graded_class):
    _, out = graded_class
    pages = [out / "report.html", *out.glob("feedback/*.html"), *out.glob("answers/*.html")]
    assert len(pages) == 8
    for path in pages:
        text = path.read_text()
        assert "<script" not in text
        assert "Content-Security-Policy" in text
        assert "\x1b" not in text
    assert "\x1b" not in (out / "junit.xml").read_text()
    rows = list(csv.reader((out / "grades.csv").read_text().splitlines()))
    assert rows[0][:5] == ["student", "exercise", "earned", "points", "flags"]
    assert f"'{FORMULA}" in [row[0] for row in rows]
    assert not [cell for row in rows for cell in row if cell[:1] in tuple("=+-@\t\r")]


@needs_sandbox
def test_students_do_not_see_hidden_checks(graded_class):
    _, out = graded_class
    # Twice for each public check, in its message and in the line to look at; not for the hidden one; once in the code.
    for path, told in (("feedback/loud.html", 9), ("results/loud/results.json", 8)):
        text = (out / path).read_text()
        assert "other-values" in text
        assert text.count("ValueError") == told
        assert "kept for the grading" in text
    scores = json.loads((out / "results" / "right" / "results.json").read_text())
    assert scores["score"] == 15
    assert [test["max_score"] for test in scores["tests"]] == [5, 3, 3, 1, 3]
    assert [test["visibility"] for test in scores["tests"]] == ["visible"] * 4 + ["after_published"]


@needs_sandbox
def test_junit_is_nbvals(graded_class):
    suites = ElementTree.parse(graded_class[1] / "junit.xml").getroot().findall("testsuite")
    counts = {suite.get("name"): (suite.get("tests"), suite.get("failures")) for suite in suites}
    assert counts[f"right/{NAME}"] == ("12", "0")
    assert counts[f"forged/{NAME}"] == ("12", "5")
    assert set(counts) == {f"{student}/{NAME}" for student in ("right", "forged", "loud")}


@needs_sandbox
def test_a_run_that_was_stopped_goes_on(graded_class, tmp_path, capsys):
    submissions, out = graded_class
    before = {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    assert main(["grade", str(submissions), "--out", str(out)]) == 2
    assert "add --resume to continue it" in capsys.readouterr().err
    # What a kill leaves: one result absent, one half written beside its place, one that is not JSON.
    (out / "results" / "right" / f"{NAME}.json").unlink()
    (out / "results" / "loud" / f".{NAME}.json.writing").write_text("{")
    (out / "results" / "broken" / f"{NAME}.json").write_text("{")
    assert main(["grade", str(submissions), "--out", str(out), "--jobs", "1", "--resume"]) == 0
    told = capsys.readouterr()
    # Done, of all, time so far, time left.
    assert re.search(r"[3-5]/6 \[\d\d:\d\d<\d\d:\d\d,", told.err)
    printed = re.sub(" +  ", "  ", told.out)
    assert f"right  {NAME}  15 of 15\n" in printed
    assert printed.endswith(f"\n6 graded; read {out / 'report.html'}\n")
    assert json.loads((out / "run.json").read_text()) == {"seed": 5}

    def without_times(content: bytes) -> str:
        text = re.sub(r'"seconds": [\d.]+|time="[\d.]+"|timestamp="[^"]+"|<td>\d+\.\d</td>', "", content.decode())
        return re.sub(r"<h2>Slowest.*", "", text, flags=re.DOTALL)

    for path, content in before.items():
        now = path.read_bytes()
        assert now == content if path.suffix == ".zip" else without_times(now) == without_times(content), path


@needs_sandbox
def test_an_appeal_is_graded_again_exactly(graded_class, tmp_path, capsys):
    submissions, out = graded_class
    shutil.copytree(submissions / "loud", tmp_path / "appeal" / "loud")
    arguments = ["grade", str(tmp_path / "appeal"), "--out", str(tmp_path / "again"), "--only", "03"]
    assert main([*arguments, "--seed", str(json.loads((out / "run.json").read_text())["seed"])]) == 0
    (first, again) = (results(folder)["loud"] for folder in (out, tmp_path / "again"))
    assert first | {"seconds": 0} == again | {"seconds": 0}


@needs_sandbox
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_class_of_20_is_graded_twice_with_equal_results(tmp_path, monkeypatch, capsys):
    """In another order, and with other numbers of jobs: of right and wrong answers, and of refused and damaged ones."""
    handed_in = class_of_20(tmp_path / "class")
    grade_all = ["grade", str(tmp_path / "class"), "--seed", "20"]
    assert main([*grade_all, "--out", str(tmp_path / "first"), "--jobs", "2"]) == 0
    in_order = run.class_in

    def shuffled(*given):
        students = in_order(*given)
        found = random.Random(0).sample(students.found, len(students.found))
        assert found != list(students.found)
        return replace(students, found=tuple(found))

    monkeypatch.setattr(run, "class_in", shuffled)
    assert main([*grade_all, "--out", str(tmp_path / "second"), "--jobs", "1"]) == 0
    first, second = (graded_json(tmp_path / each) for each in ("first", "second"))
    assert len(first) == len(handed_in) == 20
    assert first == second
    assert {check["state"] for each in first.values() for check in each["result"]["checks"]} >= {
        "pass", "fail", "not attempted", "refused", "invalid",
    }  # fmt: skip
    for name in ("grades.csv", "totals.csv"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def class_of_20(folder: Path) -> list[Path]:
    """Five hand-ins of each of four exercises: the model answer, the stub, a damaged one, and two wrong or refused."""
    handed_in = []
    for exercise in ("01_roofline", "02_count_the_bytes", "03_fused_add_gelu", "07_register_budget"):
        model, stub = (
            json.loads((ROOT / kind / f"{exercise}.ipynb").read_text()) for kind in ("solutions", "exercises")
        )
        wrong, other = [each for each in answers.answers_in(answers.FOLDER / exercise) if each.wrong][:2]
        refused = {name: f"import os\n{source}" for name, source in other.cells.items()}
        contents = {
            "model": model,
            "stub": stub,
            "damaged": json.dumps(model).encode()[:-100],
            "wrong": answers_in_notebook(stub, wrong.cells),
            "refused": answers_in_notebook(stub, refused),
        }
        handed_in += [put(folder, f"{who} {exercise[:2]}/{exercise}.ipynb", what) for who, what in contents.items()]
    return handed_in


def answers_in_notebook(notebook: dict, cells: dict[str, str]) -> dict:
    """The notebook with these answers in it, grade_id -> source."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook["cells"]:
        cell["source"] = cells.get(cell["metadata"].get("nbgrader", {}).get("grade_id"), cell["source"])
    return notebook


def graded_json(out: Path) -> dict[str, dict]:
    """Student -> the result as it is kept, without its times."""
    found = {}
    for path in (out / "results").glob("*/*_*.json"):
        kept = json.loads(path.read_text())
        kept["result"].pop("seconds")
        found[kept["student"]] = kept
    return found


def test_only_one_exercise():
    assert set(exercises_in(only="05")) == {"05_layer_norm"}
    assert set(exercises_in(only="05b_residual_rms_norm")) == {"05b_residual_rms_norm"}
    assert len(exercises_in()) > 2
    with pytest.raises(FileNotFoundError, match="is '5': choose from 01_"):
        exercises_in(only="5")


def test_a_notebook_that_cannot_be_read_is_told_and_left(tmp_path):
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as archive:
        for student in ("a", "b"):
            archive.writestr(f"{student}/{NOTEBOOK}", "x" * 1000)
    damaged = (tmp_path / "class.zip").read_bytes().replace(b"x" * 1000, b"y" * 1000, 1)
    (tmp_path / "class.zip").write_bytes(damaged)
    students, unread = class_folder.class_in(tmp_path / "class.zip", exercises_in()), {}
    tasks = list(run.tasks_of(list(students.found), students, exercises_in(), 1, unread))
    assert [task.found.student for task in tasks] == ["b"]
    assert list(unread) == [f"a/{NOTEBOOK}"]
    assert unread[f"a/{NOTEBOOK}"].startswith("cannot be read: the zip is damaged there")


# What must not happen


def test_without_a_sandbox_nothing_is_graded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sandbox, "bubblewrap", lambda: Diagnosis("bubblewrap", "missing", "apt-get install bubblewrap"))
    sandbox.require_sandbox.cache_clear()
    put(tmp_path, f"submissions/smith/{NOTEBOOK}")
    assert main(["grade", str(tmp_path / "submissions"), "--out", str(tmp_path / "out")]) == 2
    sandbox.require_sandbox.cache_clear()
    told = capsys.readouterr().err
    assert told == "fusion: nothing is graded without a sandbox; bubblewrap is missing: apt-get install bubblewrap\n"
    assert not (tmp_path / "out").exists()


def test_a_report_that_cannot_be_written_is_told_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "require_sandbox", lambda: None)
    put(tmp_path, f"submissions/smith/{NOTEBOOK}")
    (tmp_path / "out").write_text("a file")
    assert main(["grade", str(tmp_path / "submissions"), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert re.fullmatch(r"fusion: .*run.json cannot be written: (Not a directory|File exists); make room.*\n", told), (
        told
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    atomic_files.write_whole(path, "old")
    (tmp_path / ".result.json.writing").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device; make room"):
        atomic_files.write_whole(path, "new")
    assert path.read_text() == "old"


def die(*_):
    os.kill(os.getpid(), 9)


def answer_or_die(task):
    if task.found.student == "killer":
        die()
    return {"path": task.found.path}, ""


def test_a_notebook_that_ends_the_grader_harms_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "work", answer_or_die)
    # Forks of this process, which has imported everything already.
    monkeypatch.setattr(workers, "get_context", lambda _: multiprocessing.get_context("fork"))
    for student in ("a", "b", "killer", "c", "d"):
        put(tmp_path, f"{student}/{NOTEBOOK}")
    students = class_folder.class_in(tmp_path, exercises_in())
    tasks = run.tasks_of(list(students.found), students, exercises_in(), 1, {})
    ended = {task.found.student: done for task, done in workers.graded_here(tasks, jobs=2)}
    assert ended.pop("killer") == "the grader's process ended, twice: look at this notebook by hand"
    assert ended == {student: ({"path": f"{student}/{NOTEBOOK}"}, "") for student in "abcd"}


@pytest.mark.parametrize("name", ["smith", "../../etc", "..", "", "a/b", "x" * 300, "Ann Smith", "=1", "\x1b[2J", "é"])
def test_a_students_folder_is_in_the_report(tmp_path, name):
    folder = class_report.folder_of(tmp_path, name)
    assert folder.parent == tmp_path / "results"
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,80}", folder.name)
    assert folder.name not in (".", "..")


def test_no_name_takes_anothers_folder(tmp_path):
    taken = class_report.folder_of(tmp_path, "Jane Doe").name
    assert class_report.folder_of(tmp_path, taken).name != taken
    assert class_report.folder_of(tmp_path, "Jane-Doe").name == "Jane-Doe"


def test_names_made_plain_stay_apart(tmp_path):
    names = ["a b", "a  b", "a-b", "a_b", "A b", "a b "]
    assert len({class_report.folder_of(tmp_path, name) for name in names}) == len(names)
