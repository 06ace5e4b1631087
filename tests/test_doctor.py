"""`fusion doctor` on machines that lack something."""

import os
import shutil
import subprocess

import pytest
import torch
from lab_browser import FUSION, ROOT

from helpers import doctor


def test_report_of_this_machine():
    run = subprocess.run([FUSION, "doctor"], cwd="/", capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert torch.__version__ in run.stdout
    assert str(ROOT) in run.stdout


def test_each_finding_has_its_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = doctor.report().splitlines()
    subjects = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert subjects == ["Course", "Python", "PyTorch", "Triton", "GPU", "Kernels", "Chromium", "bubblewrap"]
    assert f"{'':<12}-> apt-get install chromium" in lines
    assert f"{'':<12}-> apt-get install bubblewrap" in lines


def test_sandbox_that_may_not_start(monkeypatch, tmp_path):
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    finding = doctor.bubblewrap()
    assert finding.state == "not usable: bwrap: No permissions to create new namespace"
    assert "user namespaces" in finding.remedy
    monkeypatch.setattr(os, "getuid", lambda: 0)
    finding = doctor.bubblewrap()
    assert finding.state == "not usable by this root: bwrap: No permissions to create new namespace"
    assert finding.remedy == "grade as another user, who is not root"


@pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap: apt-get install bubblewrap")
def test_root_is_told_that_submissions_are_nobodys():
    finding = doctor.bubblewrap()
    assert bool(finding.remedy) or ("the user nobody" in finding.state) == (os.getuid() == 0)


@pytest.mark.parametrize(
    ("driver", "cuda", "visible", "state"),
    [
        (False, None, None, "none: there is no NVIDIA driver"),
        (True, None, None, "there is a driver, but PyTorch is the CPU build"),
        (True, "13.0", "", "hidden: CUDA_VISIBLE_DEVICES is empty"),
        (True, "13.0", None, "not usable: the driver is too old"),
    ],
)
def test_why_there_is_no_gpu(driver, cuda, visible, state, monkeypatch):
    def too_old():
        raise RuntimeError("the driver is too old\n(and more)")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", too_old)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(doctor, "has_driver", lambda: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    finding = doctor.gpu()
    assert finding.state.startswith(state)
    assert bool(finding.remedy) == driver
