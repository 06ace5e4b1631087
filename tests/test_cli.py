"""The `fusion` command: what it runs, and that its errors are one line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import cli


@pytest.mark.parametrize("error", [ValueError, TypeError, FileNotFoundError, RuntimeError])
def test_an_error_is_one_line_and_status_2(error, monkeypatch, capsys):
    def fail(*_):
        raise error("7 is odd: give an even number")

    monkeypatch.setattr(cli, "run", fail)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "fusion: 7 is odd: give an even number\n"


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "the following arguments are required: command; see fusion --help"),
        (["check"], "the following arguments are required: notebook; see fusion check --help"),
        (["lab", "--port", "many"], "argument --port: invalid int value: 'many'; see fusion lab --help"),
        (["doctor", "--quick"], "unrecognized arguments: --quick; see fusion --help"),
    ],
)
def test_a_command_line_that_cannot_be_read(argv, complaint, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"fusion: {complaint}\n"


def test_lab_passes_on_what_jupyterlab_understands(monkeypatch):
    calls = []
    monkeypatch.setattr("helpers.lab.open_lab", lambda **options: calls.append(options))
    assert cli.main(["lab", "--port", "9000", "--no-browser", "--ServerApp.ip=0.0.0.0"]) == 0
    assert calls == [{"port": 9000, "browser": False, "options": ["--ServerApp.ip=0.0.0.0"]}]


def test_an_installed_package_says_what_needs_the_repository(tmp_path):
    for package in ("helpers", "kernels"):
        shutil.copytree(Path(cli.COURSE, package), tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    needed = {
        "bench --recorded": "benchmarks/run.py",
        "grade all --out report": "solutions",
        "release student": "solutions",
        "new-exercise 11_mine": "source/exercises",
    }
    code = f"from helpers.cli import main; print([main(command.split()) for command in {list(needed)}])"
    start = [sys.executable, "-c", code]
    run = subprocess.run(start, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    assert run.stderr.splitlines() == [
        f"fusion: {command.split()[0]} needs {part}, which is not in {tmp_path}: run it in the course's repository"
        for command, part in needed.items()
    ]
    assert run.stdout == "[2, 2, 2, 2]\n"


class Shown(str):
    configurations = ()


def test_inspect_names_a_kernel_and_what_it_is_called_with(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(
        "helpers.instruments.resources.inspect_kernel",
        lambda *arguments: calls.append(arguments) or Shown("32 registers"),
    )
    assert cli.main(["inspect", "mine:kernel", "*bf16", "8192", "BLOCK=1024", "--device", "A100"]) == 0
    assert calls == [("mine:kernel", ["*bf16", "8192", "BLOCK=1024"], "A100")]
    assert capsys.readouterr().out == "32 registers\n"


def test_inspect_of_what_does_not_exist_is_one_line(capsys):
    assert cli.main(["inspect", "kernels.elementwise.add_gelu:add_geul"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fusion: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["no_such.ipynb", "broken.ipynb"])
def test_check_of_what_is_no_notebook_is_one_line(name, tmp_path, capsys):
    (tmp_path / "broken.ipynb").write_text("not JSON")
    assert cli.main(["check", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fusion: ")
    assert error.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error():
    start = "import sys; from helpers.cli import main; sys.exit(main())"
    command = f"{sys.executable} -c '{start}' bench --recorded | head -n 1"
    run = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert run.stderr == ""
    assert len(run.stdout.splitlines()) == 1
