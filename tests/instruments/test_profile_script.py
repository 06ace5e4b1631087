"""`fusion profile`: what is missing is said; a tool that is there is run, its page read, its refusals explained."""

import os
import stat

import pytest

from helpers.instruments import profile_script as module
from helpers.instruments.profile_script import METRICS, SECTIONS, SHOWN, commands, missing, profile_script

HEAD = '"ID","Kernel Name","Block Size","Grid Size","Section Name","Metric Name","Metric Unit","Metric Value"'


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("print('hello')\n")
    return path


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """Makes a stand-in for ncu of the shell lines it runs; `$log` is the file that it was told to write."""

    def make(lines: str):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        tool = folder / "ncu"
        tool.write_text(f'#!/bin/sh\nlog=$(echo "$@" | sed "s/.*--log-file \\([^ ]*\\).*/\\1/")\n{lines}\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setattr(module, "missing", lambda: ["no nsys: install Nsight Systems"])

    return make


def test_without_a_gpu_it_says_so(script, monkeypatch):
    monkeypatch.setattr(module.os.path, "exists", lambda path: False)
    assert missing()[0].startswith("no NVIDIA GPU")
    with pytest.raises(RuntimeError, match="no NVIDIA GPU"):
        profile_script(str(script))


def test_without_ncu_it_says_how_to_get_it(script, monkeypatch):
    monkeypatch.setattr(module, "tool", lambda name: None)
    monkeypatch.setattr(module.os.path, "exists", lambda path: True)
    with pytest.raises(FileNotFoundError, match="no ncu: install Nsight Compute"):
        profile_script(str(script))


def test_its_page_is_read(script, ncu):
    rows = "".join(
        f'"0","add","(128, 1, 1)","(8, 1, 1)","{section}","{name}","us","{value}"\\n'
        for value, (name, section) in enumerate(SHOWN, 1)
    )
    ncu(f"printf '{HEAD}\\n{rows}' > $log".replace("%", "%%"))
    said = profile_script(str(script))
    assert "1.0 us" in said
    assert "mine.ncu.csv" in said
    assert "no nsys" in said


def test_permission_is_explained(script, ncu):
    ncu('echo "==ERROR== ERR_NVGPUCTRPERM" > $log; exit 1')
    with pytest.raises(PermissionError, match="NVreg_RestrictProfilingToAdminUsers=0"):
        profile_script(str(script))


def test_a_failure_is_one_line(script, ncu):
    ncu('echo "no kernels were profiled" >&2; exit 3')
    with pytest.raises(RuntimeError, match="ncu ended with 3: no kernels were profiled"):
        profile_script(str(script))


def test_the_commands_name_every_section_and_counter(script):
    asked = commands(script, 7)
    assert all(section in asked["ncu"] for section in SECTIONS)
    assert ",".join(METRICS) in asked["ncu"]
    assert asked["ncu"][asked["ncu"].index("--launch-count") + 1] == "7"
    assert str(script) == asked["ncu"][-1] == asked["nsys"][-1]


def test_no_such_script():
    with pytest.raises(FileNotFoundError, match="no file"):
        profile_script("nowhere.py")
