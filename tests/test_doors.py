"""The alternatives to `make lab`: the container, Binder and Colab setups, as far as they can be tested here."""

import json
import os
import re
import runpy
import subprocess
from pathlib import Path

import pytest
from lab_browser import ROOT

from helpers import colab, lab

PYPROJECT = (ROOT / "pyproject.toml").read_text()
DOCKERFILE = (ROOT / ".devcontainer/Dockerfile").read_text()
PINS = {colab.named(pin): pin for pin in colab.missing(PYPROJECT, set())}


def test_the_container_is_made_and_started_by_the_two_commands():
    assert re.findall(r"^RUN (\./.*)$", DOCKERFILE, re.MULTILINE) == ["./setup.sh"]
    [command] = re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)
    assert json.loads(command)[:2] == ["make", "lab"]
    asked = subprocess.run(["make", "-n", *json.loads(command)[1:]], cwd=ROOT, capture_output=True, text=True).stdout
    assert "fusion lab --ServerApp.ip=0.0.0.0" in asked
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).exists()
    assert f" AS {container['build']['target']}\n" in DOCKERFILE
    assert container["postCreateCommand"] == "./setup.sh"


def test_binders_jupyterlab_gets_what_the_courses_own_has(tmp_path, monkeypatch):
    """postBuild in an empty home, then in one with settings, which stay."""
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / ".jupyter/jupyter_server_config.json"  # where Jupyter looks; a folder of parts it does not read
    runpy.run_path(str(ROOT / "postBuild"))
    found = {
        f"{owner}.{trait}": value for owner, of in json.loads(config.read_text()).items() for trait, value in of.items()
    }
    assert found == lab.OF_COURSE
    config.write_text(json.dumps({"ServerApp": {"port": 9999}}))
    runpy.run_path(str(ROOT / "postBuild"))
    assert json.loads(config.read_text())["ServerApp"]["port"] == 9999
    assert (tmp_path / ".jupyter/custom/custom.css").exists()
    assert os.access(ROOT / "postBuild", os.X_OK)


def test_what_a_kernel_needs_is_installed_at_its_pin_and_a_server_is_not():
    assert PINS["torch"] == "torch==2.13.0"
    assert "ml-dtypes" in PINS
    assert {"jupyterlab", "ipykernel", "pytest", "nbval"}.isdisjoint(PINS)
    assert "bleach" not in PINS  # what these need in turn is pip's to find
    assert colab.missing(PYPROJECT, set(PINS) - {"anywidget"}) == [PINS["anywidget"]]
    assert colab.missing(PYPROJECT, set(PINS)) == []


def test_what_is_installed_is_kept(monkeypatch):
    asked = []

    def ran(command, **_):
        where = command.index("-c") + 1 if "-c" in command else None
        asked.append((command[command.index("--quiet") + 1 :], where and Path(command[where]).read_text()))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", ran)
    colab.install(["anywidget==0.11.0"], {"torch": "2.11.0+cu128"})
    assert asked[0][0][2:] == ["anywidget==0.11.0"]
    assert asked[0][1] == "torch==2.11.0+cu128\n"
    assert asked[1] == (["--no-deps", "--editable", str(ROOT)], None)


def test_what_pip_says_is_told(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", "no space"))
    with pytest.raises(RuntimeError, match="pip could not install the packages: no space"):
        colab.install([], {})


def test_a_widget_of_ipywidgets_7_gives_its_view(monkeypatch):
    import ipywidgets

    class Old:
        model_id = "abc"

    monkeypatch.setattr(ipywidgets, "DOMWidget", Old)
    colab.show_widgets()
    assert Old()._repr_mimebundle_()[colab.VIEW]["model_id"] == "abc"
