"""`fusion doctor` on machines that lack something."""

import os
import re
import shutil
import subprocess
import sysconfig
from types import SimpleNamespace

import pytest
import torch
from lab_browser import FUSION, ROOT

from helpers import doctor

PINS = dict(re.findall(r'^    "(torch|triton)==([\w.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))


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


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_missing_package_does_not_hide_the_other_findings(package, tmp_path):
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{package}'\")\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run([FUSION, "doctor"], cwd="/", capture_output=True, text=True, env=environment)
    assert (run.returncode, run.stderr) == (0, "")
    assert f"Kernels     No module named '{package}'\n            -> ./setup.sh installs it\n" in run.stdout
    assert "bubblewrap" in run.stdout


def test_a_check_that_fails_is_one_line(monkeypatch):
    def broken():
        raise OSError("libcudart.so.13: cannot open\nshared object file")

    monkeypatch.setattr(doctor, "kernels", broken)
    assert "Kernels     cannot be checked: libcudart.so.13: cannot open shared object file\n" in doctor.report()


def test_a_sandbox_that_never_ends_or_cannot_run(monkeypatch, tmp_path):
    bwrap = tmp_path / "bwrap"
    bwrap.write_bytes(b"\x7fELF of another processor")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.bubblewrap().state.startswith("not usable: [Errno 8] Exec format error")

    def hangs(command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hangs)
    finding = doctor.bubblewrap()
    assert finding.state == "not usable: it does not end: 30 s"
    assert finding.remedy


@pytest.mark.parametrize(
    ("visible", "state"),
    [
        ("-1", "hidden: CUDA_VISIBLE_DEVICES is -1"),
        (" ", "hidden: CUDA_VISIBLE_DEVICES is empty"),
        ("7", "not usable with CUDA_VISIBLE_DEVICES=7: the driver reports no device"),
    ],
)
def test_a_variable_that_hides_the_gpu_is_named(monkeypatch, visible, state):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(doctor, "has_driver", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    finding = doctor.gpu()
    assert finding.state == state
    assert finding.remedy.startswith("unset")


@pytest.mark.parametrize(
    ("capability", "codes", "remedy"),
    [
        ((9, 0), ["sm_75", "sm_80", "sm_90"], ""),
        ((8, 9), ["sm_75", "sm_80", "sm_90"], ""),  # code of sm_80 runs there
        ((12, 1), ["sm_90", "sm_120", "compute_120"], ""),
        ((13, 0), ["sm_90", "compute_120"], ""),
        ((7, 0), ["sm_70"], "Triton compiles for compute capability 7.5 and later"),
        ((7, 5), ["sm_80", "sm_90a"], "this PyTorch has no code for it"),
        ((12, 0), ["sm_80", "sm_100a"], "this PyTorch has no code for it"),
    ],
)
def test_a_gpu_that_nothing_compiles_for_is_named(monkeypatch, capability, codes, remedy):
    found = SimpleNamespace(name="X", major=capability[0], minor=capability[1], total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: codes)
    finding = doctor.gpu()
    assert finding.state == f"X, compute capability {capability[0]}.{capability[1]}, 80 GiB, and 1 more"
    assert finding.remedy.startswith(remedy)
    assert bool(finding.remedy) == bool(remedy)


def test_a_gpu_without_a_compiler_for_triton(monkeypatch, tmp_path):
    from kernels.interpreter import runtime

    monkeypatch.setattr(runtime, "has_gpu", lambda: True)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.kernels().state == "cannot run: Triton needs a C compiler to launch one"
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert doctor.kernels().state == "cannot run: Triton needs Python's headers to launch one"
    (tmp_path / "Python.h").touch()
    assert doctor.kernels().state == "run compiled, on the GPU"


def test_counters_that_only_administrators_may_read(monkeypatch, tmp_path):
    parameters = tmp_path / "params"
    monkeypatch.setattr(doctor, "DRIVER_PARAMETERS", parameters)
    assert doctor.counters().state.startswith("unknown")
    parameters.write_text("RmProfilingAdminOnly: 0\n")
    assert not doctor.counters().remedy
    parameters.write_text("RmProfilingAdminOnly: 1\n")
    for administrator in (True, False):
        monkeypatch.setattr(doctor, "_is_administrator", lambda answer=administrator: answer)
        assert bool(doctor.counters().remedy) is not administrator
    monkeypatch.setattr(doctor, "has_driver", lambda: True)
    assert "\nCounters    Nsight Compute cannot read them\n            -> the driver lets only" in doctor.report()


def test_other_versions_than_the_courses_are_named(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda package: f"{PINS[package]}+cpu")
    assert doctor._pinned("torch") == doctor._pinned("triton") == ""
    monkeypatch.setattr(doctor, "version", lambda package: "3.6.0+cu130")
    assert doctor._pinned("triton") == f"; the course was tested with {PINS['triton']}"


def test_a_build_for_amd_is_not_called_one_for_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    finding = doctor.pytorch()
    assert finding.state.endswith("the build for ROCm")
    assert finding.remedy
