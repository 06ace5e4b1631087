"""The `fusion` command: what it runs, and that its errors are one line."""

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
