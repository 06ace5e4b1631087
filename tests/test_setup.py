"""Two machines get the same course: pinned packages, one environment, installed completely or not at all."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from lab_browser import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

LOCK = ROOT / "requirements.lock"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS = {
    "course": PYPROJECT["project"]["dependencies"],
    **PYPROJECT["project"]["optional-dependencies"],
    "build": PYPROJECT["build-system"]["requires"],
}
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())


@pytest.mark.parametrize("group", GROUPS)
def test_requirements_are_exact_and_listed_once(group):
    requirements = [Requirement(line) for line in GROUPS[group]]
    for requirement in requirements:
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), f"{requirement} is not pinned"
    names = [canonicalize_name(requirement.name) for requirement in requirements]
    assert sorted(set(names)) == sorted(names)


def locked() -> dict[str, str]:
    """Package -> version in requirements.lock, whatever Python or system it is for."""
    requirements = [Requirement(line.partition("#")[0]) for line in LOCK.read_text().splitlines() if line[0] != "#"]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in requirements}


def test_the_lock_has_every_direct_dependency_at_its_pin():
    """After a change in pyproject.toml, `make lock`."""
    pinned = {}
    for line in (line for group, lines in GROUPS.items() if group != "build" for line in lines):
        requirement = Requirement(line)
        version = str(requirement.specifier).removeprefix("==")
        assert pinned.setdefault(canonicalize_name(requirement.name), version) == version, f"{line}: two versions"
    assert {name: version for name, version in pinned.items() if locked().get(name) != version} == {}


def test_the_lock_names_no_index():
    assert "://" not in LOCK.read_text()


def test_what_is_installed_is_what_is_locked():
    # Asked of a new process: in this one, setuptools may have put the packages inside it on the path.
    program = "from importlib.metadata import distributions as d; [print(each.name, each.version) for each in d()]"
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    installed = {
        canonicalize_name(name): version.split("+")[0] for name, version in map(str.split, listed.splitlines())
    }
    # The course itself, and the installer, which comes with Python.
    for name in ("kernel-fusion-course", "pip"):
        installed.pop(name, None)
    assert {name: version for name, version in installed.items() if locked().get(name) != version} == {}


@pytest.mark.parametrize("version", ["3.11.0", "3.12.0", "3.13.0", "3.14.0"])
def test_pins_hold_for_each_python(version):
    """Debian 12 has Python 3.11.2, for one: the first release of each line must do."""
    needs = {each.name: need for each in distributions() if (need := each.metadata.get("Requires-Python"))}
    assert {name: need for name, need in needs.items() if version not in SpecifierSet(need)} == {}


def test_conda_environment_takes_its_packages_from_pyproject():
    *conda, pip = ENVIRONMENT["dependencies"]
    assert pip == {"pip": ["--constraint requirements.lock", "--editable ."]}
    assert [package.split("=")[0] for package in conda] == ["python", "pip"]
    assert conda[0].split("=")[1] in SpecifierSet(PYPROJECT["project"]["requires-python"])


@pytest.mark.long
def test_conda_environment_installs_into_an_empty_one(tmp_path):
    python = tmp_path / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    options = " ".join(ENVIRONMENT["dependencies"][-1]["pip"]).split()
    # Compiled to bytecode only where imported: half the time.
    subprocess.run([*pip, "install", "--quiet", "--no-compile", *options], cwd=ROOT, check=True)
    subprocess.run([*pip, "check"], check=True)
    doctor = subprocess.run([tmp_path / "bin" / "fusion", "doctor"], capture_output=True, text=True, cwd="/")
    assert doctor.returncode == 0
    assert str(ROOT) in doctor.stdout


FAKE_PYTHON = r"""#!/bin/sh
# Answers as Python, venv and pip would, and writes down what pip was asked for.
case "$*" in
    --version) echo "Python 3.11.99" ;;
    -c*ensurepip*) [ ! -e no-venv ] ;;
    -c*print*) echo 3.11 ;;
    -c*) [ ! -e old-python ] ;;
    "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo made >>asked ;;
    *--dry-run*) [ ! -e no-cpu-build ] ;;
    *"pip "*install*--constraint\ requirements.lock*)
        echo "${*#*--editable }" >>asked; echo "words of pip"; [ ! -e pip-fails ] ;;
esac
"""

needs_no_gpu = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU on this machine")


@pytest.fixture
def folder(tmp_path):
    """A copy of the course's set-up, on a machine with a Python of our own making and little else."""
    course, tools = tmp_path / "course", tmp_path / "tools"
    course.mkdir()
    tools.mkdir()
    for name in ("setup.sh", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, course)
    for name in "bash sh cat cp dirname flock mkdir rm sed sha256sum tail uname".split():
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text(FAKE_PYTHON)
    (tools / "python3").chmod(0o755)
    return course


def set_up(folder: Path, *extras: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PATH": str(folder.parent / "tools")}
    return subprocess.run([folder / "setup.sh", *extras], env=environment, cwd="/", capture_output=True, text=True)


def asked(folder: Path) -> list[str]:
    """What was asked for since the last time: "made" for a new .venv, then what pip should install."""
    lines = (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []
    (folder / "asked").unlink(missing_ok=True)
    return lines


@needs_no_gpu
def test_made_once_with_a_line_for_each_step(folder):
    first = set_up(folder)
    assert first.returncode == 0, first.stderr
    assert re.fullmatch(
        r"Making \.venv with Python 3\.11\.99 \(.*/tools/python3\)\n"
        r"No GPU found: PyTorch 2\.13\.0 for the CPU\n"
        r"Installing the course and its packages \(some minutes; progress in \.venv/setup\.log\)\n"
        r"Set up in \d+ s\n",
        first.stdout,
    )
    assert asked(folder) == ["made", ". torch==2.13.0+cpu"]
    again = set_up(folder)
    assert (again.returncode, again.stdout, again.stderr, asked(folder)) == (0, "", "", [])


@needs_no_gpu
def test_authors_packages_are_added_not_made_anew(folder):
    set_up(folder)
    asked(folder)
    set_up(folder, "dev")
    assert asked(folder) == [".[dev] torch==2.13.0+cpu"]
    set_up(folder)
    assert asked(folder) == []


@needs_no_gpu
def test_without_a_cpu_build_says_that_the_other_is_large(folder):
    (folder / "no-cpu-build").touch()
    assert "no CPU build of PyTorch 2.13.0 here: the build with CUDA (several GB" in set_up(folder).stdout
    assert asked(folder) == ["made", ". torch===2.13.0"]


def test_with_a_gpu_the_cuda_build_replaces_the_cpu_build(folder):
    set_up(folder)
    asked(folder)
    smi = folder.parent / "tools" / "nvidia-smi"
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    with_gpu = set_up(folder, "dev")
    if not Path("/dev/nvidiactl").exists():
        assert "GPU found: PyTorch 2.13.0 with CUDA (several GB" in with_gpu.stdout
        assert asked(folder) == ["made", ".[dev] torch===2.13.0"]
    # The home folder of a cluster, seen from a node without a GPU.
    smi.unlink()
    set_up(folder)
    assert "made" not in asked(folder)


def test_stale_when_the_pins_the_folder_or_the_python_change(folder):
    set_up(folder)
    asked(folder)
    for name in ("pyproject.toml", "requirements.lock"):
        with (folder / name).open("a") as file:
            file.write("# changed\n")
        set_up(folder)
        assert asked(folder)[0] == "made", name
    moved = folder.rename(folder.parent / "moved")
    set_up(moved)
    assert asked(moved)[0] == "made"
    (moved / ".venv/bin/python").unlink()
    set_up(moved)
    assert asked(moved)[0] == "made"


def test_failed_set_up_shows_why_and_is_not_taken_for_finished(folder):
    (folder / "pip-fails").touch()
    failed = set_up(folder)
    assert failed.returncode == 2
    assert failed.stderr.startswith("words of pip\nsetup: pip could not install the packages")
    asked(folder)
    (folder / "pip-fails").unlink()
    assert set_up(folder).returncode == 0
    assert asked(folder)[0] == "made"


def test_python_that_cannot_make_environments(folder):
    (folder / "no-venv").touch()
    run = set_up(folder)
    assert run.returncode == 2
    assert run.stderr == ("setup: python3 has no venv module; on Debian or Ubuntu: apt-get install python3.11-venv\n")


def test_no_python_that_is_new_enough(folder):
    (folder / "old-python").touch()
    run = set_up(folder)
    assert run.returncode == 2
    assert run.stderr == (
        "setup: no Python 3.11 to 3.14 found; on Debian or Ubuntu: apt-get install python3 python3-venv\n"
    )


def test_not_linux(folder):
    uname = folder.parent / "tools" / "uname"
    uname.unlink()
    uname.write_text("#!/bin/sh\necho Darwin\n")
    uname.chmod(0o755)
    run = set_up(folder)
    assert run.returncode == 2
    assert run.stderr.startswith("setup: Triton runs on Linux only: ")
