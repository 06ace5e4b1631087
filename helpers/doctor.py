"""Check what this machine has for the course, what's missing, and how to get it."""

import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from helpers.instruments.diagnosis import Diagnosis, bubblewrap

COURSE = Path(__file__).resolve().parent.parent
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OLDEST_GPU = (7, 5)  # compute capability that Triton compiles for
CAP_SYS_ADMIN = 21  # linux/capability.h
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")


def report() -> str:
    """Return the findings on this machine, one per line, each with its remedy on the line below."""
    checks = {"Course": course, "Python": python, "PyTorch": pytorch, "Triton": triton, "GPU": gpu, "Kernels": kernels}
    checks |= {"Counters": counters} if has_driver() else {}
    checks |= {"Chromium": chromium}
    if (COURSE / "helpers/grading").is_dir():  # not in a class's copy
        checks |= {"bubblewrap": bubblewrap}
    return "\n".join(str(_checked(subject, check)) for subject, check in checks.items())


def _checked(subject: str, check: Callable[[], Diagnosis]) -> Diagnosis:
    """Return the check's finding, or why it failed, so that one broken package doesn't hide the others."""
    try:
        return check()
    except Exception as error:  # of whatever is broken on this machine
        told = " ".join(str(error).split()) or type(error).__name__
        missing = isinstance(error, ModuleNotFoundError)
        return Diagnosis(subject, told if missing else f"cannot be checked: {told}", "./setup.sh installs it" * missing)


def _pinned(package: str) -> str:
    """Return a note if the installed version is not the course's."""
    try:
        pins = [re.match(rf"{package}==([\w.]+)", each) for each in requires("kernel-fusion-course") or ()]
    except PackageNotFoundError:
        return ""
    pin = next((found[1] for found in pins if found), None)
    other = pin and version(package).partition("+")[0] != pin
    return f"; the course was tested with {pin}" if other else ""


def course() -> Diagnosis:
    if (COURSE / "notebooks").is_dir():
        return Diagnosis("Course", str(COURSE))
    return Diagnosis("Course", f"no lessons in {COURSE}", "install it from its own folder: pip install -e .")


def python() -> Diagnosis:
    return Diagnosis("Python", f"{platform.python_version()} ({sys.executable})")


def pytorch() -> Diagnosis:
    import torch

    if torch.version.hip:
        return Diagnosis(
            "PyTorch", f"{torch.__version__}, the build for ROCm", "the course needs that for CUDA or CPUs"
        )
    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    return Diagnosis("PyTorch", f"{torch.__version__}, the build {build}{_pinned('torch')}")


def triton() -> Diagnosis:
    try:
        return Diagnosis("Triton", f"{version('triton')}{_pinned('triton')}")
    except PackageNotFoundError:
        return Diagnosis("Triton", "missing", "it only has Linux wheels: use the dev container, or WSL2 on Windows")


def gpu() -> Diagnosis:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        capability = (properties.major, properties.minor)
        shown, memory = ".".join(map(str, capability)), properties.total_memory / 2**30
        others = torch.cuda.device_count() - 1
        state = f"{properties.name}, compute capability {shown}, {memory:.0f} GiB" + f", and {others} more" * (
            others > 0
        )
        return Diagnosis("GPU", state, _too_old(capability))
    if not has_driver():
        return Diagnosis("GPU", "none: there is no NVIDIA driver; the course works without one")
    if torch.version.cuda is None:
        return Diagnosis("GPU", "there is a driver, but PyTorch is the CPU build", "make lab installs the CUDA build")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (not visible.strip() or visible.strip().startswith("-")):
        shown = visible.strip() or "empty"
        return Diagnosis("GPU", f"hidden: CUDA_VISIBLE_DEVICES is {shown}", "unset CUDA_VISIBLE_DEVICES")
    try:
        torch.cuda.init()
        reason = "the driver reports no device"
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
    if visible is not None:
        remedy = "unset it, or name GPUs that nvidia-smi lists"
        return Diagnosis("GPU", f"not usable with CUDA_VISIBLE_DEVICES={visible}: {reason}", remedy)
    return Diagnosis("GPU", f"not usable: {reason}", "check nvidia-smi; PyTorch's CUDA may need a newer driver")


def _too_old(capability: tuple[int, int]) -> str:
    """Return what to do about a GPU that this Triton or this PyTorch has no code for; empty if both have."""
    import torch

    interpreted = "set CUDA_VISIBLE_DEVICES= to run kernels in the interpreter instead"
    if capability < OLDEST_GPU:
        return f"Triton compiles for compute capability {OLDEST_GPU[0]}.{OLDEST_GPU[1]} and later: {interpreted}"
    # Code of sm_80 runs on 8.0 to 8.9; that of compute_80 is compiled by the driver for any later GPU.
    builds = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", arch) for arch in torch.cuda.get_arch_list()]
    codes = [(found[1], (int(found[2]), int(found[3]))) for found in builds if found]
    runs = any(code <= capability and (kind == "compute" or code[0] == capability[0]) for kind, code in codes)
    return "" if runs or not codes else f"this PyTorch has no code for it: install a build that has, or {interpreted}"


def has_driver() -> bool:
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None


def kernels() -> Diagnosis:
    from kernels.interpreter import runtime

    if not runtime.has_gpu():
        return Diagnosis("Kernels", "run in Triton's interpreter")
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return Diagnosis("Kernels", "cannot run: Triton needs a C compiler to launch one", "apt-get install gcc")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return Diagnosis(
            "Kernels", "cannot run: Triton needs Python's headers to launch one", "apt-get install python3-dev"
        )
    return Diagnosis("Kernels", "run compiled, on the GPU")


def counters() -> Diagnosis:
    """Check whether Nsight Compute may read the GPU's counters."""
    try:
        restricted = "RmProfilingAdminOnly: 1" in DRIVER_PARAMETERS.read_text()
    except OSError:
        return Diagnosis("Counters", "unknown: this driver doesn't list who may read them")
    if restricted and not _is_administrator():
        from helpers.instruments.profile_script import PERMISSION

        return Diagnosis("Counters", "Nsight Compute cannot read them", PERMISSION)
    return Diagnosis("Counters", "readable by Nsight Compute")


def _is_administrator() -> bool:
    """Return whether the driver takes this process for one: root in a container usually is not."""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(effective and int(effective[1], 16) >> CAP_SYS_ADMIN & 1)


def chromium() -> Diagnosis:
    for name in CHROMIUM:
        if path := shutil.which(name):
            return Diagnosis("Chromium", path)
    return Diagnosis("Chromium", "missing: JupyterLab's tests are skipped", "apt-get install chromium")
