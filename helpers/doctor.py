"""Check what this machine has for the course, what's missing, and how to get it."""

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from helpers.instruments.diagnosis import Diagnosis, bubblewrap

COURSE = Path(__file__).resolve().parent.parent
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def report() -> str:
    """Return the findings on this machine, one per line, each with its remedy on the line below."""
    findings = [course(), python(), pytorch(), triton(), gpu(), kernels(), chromium()]
    if (COURSE / "helpers/grading").is_dir():  # not in a class's copy
        findings.append(bubblewrap())
    return "\n".join(str(finding) for finding in findings)


def course() -> Diagnosis:
    if (COURSE / "notebooks").is_dir():
        return Diagnosis("Course", str(COURSE))
    return Diagnosis("Course", f"no lessons in {COURSE}", "install it from its own folder: pip install -e .")


def python() -> Diagnosis:
    return Diagnosis("Python", f"{platform.python_version()} ({sys.executable})")


def pytorch() -> Diagnosis:
    import torch

    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    return Diagnosis("PyTorch", f"{torch.__version__}, the build {build}")


def triton() -> Diagnosis:
    try:
        return Diagnosis("Triton", version("triton"))
    except PackageNotFoundError:
        return Diagnosis("Triton", "missing", "it only has Linux wheels: use the dev container, or WSL2 on Windows")


def gpu() -> Diagnosis:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        capability = f"{properties.major}.{properties.minor}"
        memory = properties.total_memory / 2**30
        return Diagnosis("GPU", f"{properties.name}, compute capability {capability}, {memory:.0f} GiB")
    if not has_driver():
        return Diagnosis("GPU", "none: there is no NVIDIA driver; the course works without one")
    if torch.version.cuda is None:
        return Diagnosis("GPU", "there is a driver, but PyTorch is the CPU build", "make lab installs the CUDA build")
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return Diagnosis("GPU", "hidden: CUDA_VISIBLE_DEVICES is empty", "unset CUDA_VISIBLE_DEVICES")
    try:
        torch.cuda.init()
        reason = "the driver reports no device"
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
    return Diagnosis("GPU", f"not usable: {reason}", "check nvidia-smi; PyTorch's CUDA may need a newer driver")


def has_driver() -> bool:
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None


def kernels() -> Diagnosis:
    from kernels.interpreter import runtime

    return Diagnosis("Kernels", "run compiled, on the GPU" if runtime.has_gpu() else "run in Triton's interpreter")


def chromium() -> Diagnosis:
    for name in CHROMIUM:
        if path := shutil.which(name):
            return Diagnosis("Chromium", path)
    return Diagnosis("Chromium", "missing: JupyterLab's tests are skipped", "apt-get install chromium")
