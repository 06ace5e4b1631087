"""`fusion release`: what a class gets works on its own and gives nothing away."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from helpers.cli import main
from helpers.grading import release as released
from helpers.grading.exercise import exercises_in
from helpers.learning.submission import answers_in, left_out_of, read_notebook, read_submission

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    out = tmp_path_factory.mktemp("release") / "student"
    assert main(["release", str(out)]) == 0
    return out


def test_what_a_class_gets(tree):
    assert sorted(os.listdir(tree)) == sorted(
        ".devcontainer .gitignore LICENSE Makefile README.md benchmarks docs environment.yml exercises helpers kernels "
        "notebooks postBuild pyproject.toml requirements.lock setup.sh".split()
    )
    assert sorted(path.name for path in (tree / "helpers").iterdir()) == sorted(
        "__init__.py cli.py colab.py course_contents.py doctor.py figures instruments jupyterlab lab.py learning "
        "prompt_websocket.py style.py".split()
    )
    for folder in ("notebooks", "exercises", "kernels"):
        assert files_in(tree / folder) == files_in(ROOT / folder)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in (".py", ".ipynb"))


def test_nothing_is_given_away(tree):
    assert not {"solutions", "source", "tests", ".git"} & set(os.listdir(tree))
    answers = [cell for path in sorted((ROOT / "solutions").glob("*.ipynb")) for cell in answers_and_hidden(path)]
    assert len(answers) >= 3
    for path in tree.rglob("*"):
        if path.suffix in (".ipynb", ".py", ".md", ".json"):
            text = path.read_text(encoding="utf-8")
            held = json.dumps(json.loads(text)) if path.suffix == ".ipynb" else text
            assert not [line for line in answers if line in held], path
    assert not [path for path in tree.rglob("*") if path.name == "__pycache__" or path.is_symlink()]


def answers_and_hidden(solution: Path) -> list[str]:
    """A telling line of each answer and hidden check."""
    told = []
    for cell in json.loads(solution.read_text())["cells"]:
        source = "".join(cell["source"])
        if region := re.search(r"BEGIN (?:SOLUTION|HIDDEN TESTS)\n(.*?)\n *# END", source, re.DOTALL):
            told.append(max(region[1].splitlines(), key=len).strip())
    return told


def test_the_makefile_opens_the_lab(tree):
    told = subprocess.run(["make", "-n", "lab", "bench"], cwd=tree, capture_output=True, text=True, timeout=30)
    assert told.returncode == 0, told.stderr
    assert "fusion lab" in told.stdout
    assert subprocess.run(["make", "-n", "test"], cwd=tree, capture_output=True, timeout=30).returncode
    assert os.access(tree / "setup.sh", os.X_OK)


def test_the_readme_speaks_of_what_is_there(tree):
    text = (tree / "README.md").read_text()
    for path in re.findall(r"\]\(([^)]+)\)|`([a-z]+/[^` ]*)`", text):
        for each in filter(None, path):
            file, _, anchor = each.partition("#")
            page = tree / (file or "README.md")
            assert page.exists(), each
            headings = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE) if anchor else ()
            assert not anchor or anchor in [heading.lower().replace(" ", "-") for heading in headings], each
    assert "make test" not in text
    assert "git clone" not in text, "it is a class's own copy"
    assert "make lab" in text


def test_its_pages_link_what_is_there(tree):
    for page in sorted((tree / "docs").glob("*.md")):
        links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name


def test_its_exercises_are_taken_whole(tree):
    for path in sorted((tree / "exercises").glob("*.ipynb")):
        assert read_submission(path).left_out == 0


def run_in(tree: Path, *command: str) -> subprocess.CompletedProcess:
    """A Python command in the class's copy, which finds no other copy of the course."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run([sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True)


def test_every_module_of_it_is_imported_without_the_grader_and_its_own_command_runs(tree):
    commands = ["check none.ipynb", "grade all --out report", "release student", "new-exercise 1"]
    code = (
        "import importlib, pkgutil, helpers, kernels\n"
        "from helpers.cli import main\n"
        f"ended = [main(command.split()) for command in {commands}]\n"
        "assert ended == [2, 2, 2, 2], ended\n"
        "for package in (helpers, kernels):\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        print(importlib.import_module(module.name).__file__)\n"
    )
    run = run_in(tree, "-c", code)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) > 80
    assert all(Path(line).is_relative_to(tree) for line in run.stdout.split())
    own, *told = run.stderr.splitlines()
    assert "no notebook none.ipynb: choose one of exercises/" in own
    needs = "fusion: {} needs helpers/grading, which is not in {}: run it in the course's repository"
    assert told == [needs.format(command.split()[0], tree) for command in commands[1:]]


def test_its_package_names_nothing_that_it_lacks(tree):
    given, ours = (tomllib.loads((folder / "pyproject.toml").read_text()) for folder in (tree, ROOT))
    assert ours["project"].pop("entry-points")
    assert given == ours


SAMPLE = {"exercises/01_roofline.ipynb"}
NOTEBOOKS = [
    pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.long)
    for folder in ("notebooks", "exercises")
    for name in (f"{folder}/{file}" for file in files_in(ROOT / folder))
]


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_its_lessons_and_exercises_run(tree, notebook):
    options = ["--nbval", "--nbval-current-env", f"--nbval-sanitize-with={ROOT / 'tests/nbval_sanitize.cfg'}"]
    run = run_in(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, notebook)
    assert run.returncode == 0, run.stdout


def test_a_notebook_as_given_out_has_nothing_that_is_left_out_of_the_grading():
    for name, exercise in exercises_in().items():
        notebook = read_notebook(ROOT / "exercises" / f"{name}.ipynb")
        assert left_out_of(notebook, answers_in(notebook, exercise.asked, name), exercise.given) == 0


def test_an_exercise_that_holds_an_answer_is_not_released(tmp_path, monkeypatch, capsys):
    (tmp_path / "course/exercises").mkdir(parents=True)
    (tmp_path / "course/exercises/03_x.ipynb").write_text("# BEGIN HIDDEN TESTS")
    monkeypatch.setattr(released, "COURSE", tmp_path / "course")
    assert main(["release", str(tmp_path / "out")]) == 2
    assert "holds an answer or a hidden check: run `make notebooks`" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    assert main(["release", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"fusion: {tmp_path} is not empty: choose a new folder\n"
    assert os.listdir(tmp_path) == ["mine"]
