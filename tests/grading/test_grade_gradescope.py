"""The autograder for Gradescope: what is in its zip, and what it does in a container that can sandbox or cannot."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import attacks
import pytest

from helpers.cli import main
from helpers.grading import gradescope
from helpers.grading.exercise import exercises_in
from helpers.grading.variants import drawn
from helpers.instruments.diagnosis import bubblewrap

NAME = attacks.NAME
needs_root = pytest.mark.skipif(
    bool(os.getuid() or bubblewrap().remedy), reason="needs bubblewrap and root, as Gradescope's containers have it"
)


def made(folder: Path, *options: str) -> Path:
    """The zip unpacked as Gradescope unpacks it, below `folder`."""
    assert main(["gradescope", str(folder / "autograder.zip"), "--only", "03", *options]) == 0
    source = folder / "autograder" / "source"
    with zipfile.ZipFile(folder / "autograder.zip") as archive:
        archive.extractall(source)
        for entry in archive.infolist():
            (source / entry.filename).chmod(entry.external_attr >> 16)
    for name in ("submission", "results"):
        (folder / "autograder" / name).mkdir()
    return folder / "autograder"


def hand_in(folder: Path, notebook: dict, name: str = "my homework.ipynb") -> None:
    (folder / "submission" / name).write_text(json.dumps(notebook))


def in_container(folder: Path, *options: str) -> subprocess.CompletedProcess:
    """run_autograder in a root of its own: an empty home, no environment, no course but the zip's, this Python."""
    command = (
        "bwrap --unshare-pid --unshare-ipc --unshare-uts --clearenv --die-with-parent --dev /dev --proc /proc".split()
    )
    for place in ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64"):
        if Path(place).is_symlink():
            command += ["--symlink", os.readlink(place), place]
        elif Path(place).exists():
            command += ["--ro-bind", place, place]
    command += [
        "--perms",
        "1777",
        "--tmpfs",
        "/tmp",
        "--perms",
        "0755",
        "--tmpfs",
        "/root",
        "--bind",
        str(folder),
        "/autograder",
    ]
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        for parent in reversed(Path(sys.base_prefix).parents[:-1]):  # bubblewrap's own would be for root alone
            command += ["--perms", "0755", "--dir", str(parent)]
        command += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    venv = folder / "source" / "course" / ".venv"
    venv.mkdir(exist_ok=True)
    command += ["--ro-bind", sys.prefix, "/autograder/source/course/.venv"]
    command += "--setenv HOME /root --setenv PATH /usr/local/bin:/usr/bin:/bin --chdir /autograder".split()
    command += [*options, "/autograder/source/run_autograder"]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def test_the_zip_holds_the_grader_and_the_exercise_alone(tmp_path):
    folder = made(tmp_path)
    source = folder / "source"
    assert sorted(os.listdir(source)) == ["course", "run_autograder", "setup.sh"]
    assert all(os.access(source / name, os.X_OK) for name in ("run_autograder", "setup.sh", "course/setup.sh"))
    assert os.listdir(source / "course" / "solutions") == [f"{NAME}.ipynb"]
    assert not {"tests", "source", ".git", "exercises", "notebooks"} & set(os.listdir(source / "course"))
    for script in ("run_autograder", "setup.sh"):
        subprocess.run(["bash", "-n", str(source / script)], check=True, timeout=30)
    assert main(["gradescope", str(tmp_path / "autograder.zip")]) == 2


def test_the_zip_of_public_checks_has_nothing_to_hide(tmp_path):
    folder = made(tmp_path, "--public-checks", "--variant", "autumn")
    course = folder / "source" / "course"
    assert not (course / "solutions").exists()
    assert not (course / "source").exists()
    given = json.loads((course / "exercises" / f"{NAME}.ipynb").read_text())
    assert given["metadata"]["kernel_fusion"]["variant"] == drawn("autumn", NAME).name
    assert "BEGIN" not in json.dumps(given)
    assert "--public-checks" in (folder / "source" / "run_autograder").read_text()


def test_no_sandbox_no_score(tmp_path, monkeypatch, capsys):
    def refuse():
        raise RuntimeError("nothing is graded without a sandbox")

    monkeypatch.setattr(gradescope, "require_sandbox", refuse)
    (tmp_path / "submission").mkdir()
    assert gradescope.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == "not graded: nothing is graded without a sandbox\n"
    assert not (tmp_path / "results").exists()


@pytest.mark.skipif(bool(bubblewrap().remedy), reason="needs bubblewrap: apt-get install bubblewrap")
def test_what_is_handed_in_is_told_where_nothing_can_be_graded(tmp_path, monkeypatch):
    monkeypatch.setattr(gradescope, "exercises_in", lambda folder: exercises_in(folder, only="03"))
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / "report <b>.docx").write_text("")
    assert gradescope.main([str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    assert results["score"] == 0
    assert results["output"].startswith("not graded: report <b>.docx: no notebook")
    assert results["output_format"] == "text"
    assert [test["max_score"] for test in results["tests"]] == [5, 3, 3, 1, 3]
    assert "no notebook of this exercise was handed in" in results["tests"][0]["output"]


@needs_root
@pytest.mark.long
def test_a_submission_is_graded_in_a_container_that_can_sandbox(tmp_path):
    folder = made(tmp_path)
    hand_in(folder, attacks.notebook())
    run = in_container(folder)
    assert run.returncode == 0, run.stderr
    results = json.loads((folder / "results" / "results.json").read_text())
    assert results["score"] == 15
    assert [test["visibility"] for test in results["tests"]] == ["visible"] * 4 + ["after_published"]
    assert results["stdout_visibility"] == "hidden"
    assert f"graded {NAME}; seed " in run.stdout


# Docker's own settings: root without CAP_SYS_ADMIN, in a namespace that can make no others.
AS_DOCKER = "--unshare-user --uid 0 --gid 0 --disable-userns --cap-drop CAP_SYS_ADMIN".split()


@needs_root
@pytest.mark.long
def test_a_container_that_cannot_sandbox_refuses_and_writes_no_score(tmp_path):
    folder = made(tmp_path)
    hand_in(folder, attacks.notebook())
    run = in_container(folder, *AS_DOCKER)
    assert run.returncode == 1, run.stdout
    assert run.stderr.startswith("not graded: nothing is graded without a sandbox; bubblewrap is not usable")
    assert os.listdir(folder / "results") == []


REFUSED = attacks.before("import os\nos.write(1, b'[]')\nos._exit(0)")


@needs_root
@pytest.mark.long
@pytest.mark.parametrize(("notebook", "earned"), [(attacks.notebook(), 12), (attacks.notebook(launcher=REFUSED), 0)])
def test_public_checks_say_that_they_can_be_forged(tmp_path, notebook, earned):
    folder = made(tmp_path, "--public-checks")
    # What a notebook says of its own checks is not believed.
    for cell in notebook["metadata"]["kernel_fusion"]["original"]:
        if "points" in cell:
            cell |= {"source": "None", "points": 100, "pass": []}
    hand_in(folder, notebook)
    tmp_path.chmod(0o755)
    run = in_container(folder)
    assert run.returncode == 0, run.stderr
    results = json.loads((folder / "results" / "results.json").read_text())
    assert results["score"] == earned, results
    assert "whose points a submission could forge" in results["output"]
    assert [test["max_score"] for test in results["tests"]] == [5, 3, 3, 1]
