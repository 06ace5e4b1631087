"""`fusion profile script.py`: run your script under the profilers that this machine has."""

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.instruments.ncu_pages import LAUNCH, OCCUPANCY, SPEED, NcuKernel, read_ncu

SECTIONS = (
    "SpeedOfLight",
    "MemoryWorkloadAnalysis",
    "ComputeWorkloadAnalysis",
    "LaunchStats",
    "Occupancy",
    "WarpStateStats",
    "SourceCounters",
)
METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
)
PLACES = {"ncu": "/opt/nvidia/nsight-compute/*/ncu", "nsys": "/opt/nvidia/nsight-systems/*/bin/nsys"}
TOOLS = {"ncu": "Nsight Compute, package nsight-compute", "nsys": "Nsight Systems, package nsight-systems-cli"}
PERMISSION = (
    "the driver lets only administrators read its counters: as root, put `options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0` into a file in /etc/modprobe.d and restart, or run this command as root; "
    "in a container, start it with --cap-add=SYS_ADMIN"
)
NO_GPU = "no NVIDIA GPU: the recorded pages are in lesson 15"
SHOWN = (
    ("Duration", SPEED),
    ("DRAM Throughput", SPEED),
    ("Registers Per Thread", LAUNCH),
    ("Achieved Occupancy", OCCUPANCY),
)


def tool(name: str) -> str | None:
    """Return the path of "ncu" or "nsys", found on PATH or in its package's folder; None if missing."""
    return shutil.which(name) or next(iter(sorted(glob.glob(PLACES[name]), reverse=True)), None)


def commands(script: Path, launches: int) -> dict[str, list[str]]:
    """Return tool -> its command for this script, with the output next to it; ncu keeps the first `launches`
    kernels."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    program = [sys.executable, str(script)]
    page = ["--csv", "--page", "details", "--print-units", "base", "--log-file", str(script.with_suffix(".ncu.csv"))]
    trace = ["-o", str(script.with_suffix("")), "--force-overwrite", "true", "--stats", "true"]
    return {
        "ncu": ["ncu", "--launch-count", str(launches), *sections, "--metrics", ",".join(METRICS), *page, *program],
        "nsys": ["nsys", "profile", "--trace", "cuda,nvtx", *trace, *program],
    }


def missing() -> list[str]:
    """Return what stops the profilers from running here, one line each, with the fix; empty if nothing does."""
    found = [f"no {name}: install {what}, or put it on the path" for name, what in TOOLS.items() if tool(name) is None]
    if not os.path.exists("/dev/nvidiactl"):
        found.insert(0, NO_GPU)
    return found


def table(kernels: tuple[NcuKernel, ...]) -> str:
    """Return a table with one line per kernel: the counters to look at first."""
    heads = ("time", "of DRAM's rate", "registers", "achieved occupancy")
    lines = [f"{'kernel':40} " + "  ".join(f"{head:>18}" for head in heads)]
    for kernel in kernels:
        time, dram, registers, occupancy = (kernel.counter(*each) for each in SHOWN)
        cells = f"{1e6 * time:.1f} us", f"{dram:.1f} %", f"{registers:.0f}", f"{occupancy:.1f} %"
        lines.append(f"{kernel.name[:40]:40} " + "  ".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def profile_script(script: str, launches: int = 50) -> str:
    """Run the script under ncu, and nsys if installed, and report their files and findings.

    Args:
        script: a Python file that launches its kernels when run.
        launches: how many kernels ncu profiles; it runs each of them a dozen times or more.

    Raises:
        FileNotFoundError: no such script, or no ncu.
        PermissionError: the driver restricts its counters to administrators.
        RuntimeError: there is no GPU, or the profiler or the script failed.
    """
    path = Path(script)
    if not path.is_file():
        raise FileNotFoundError(f"no file {script}: pass a Python script that launches kernels")
    lacks = missing()
    if NO_GPU in lacks:
        raise RuntimeError("; ".join(lacks))
    if tool("ncu") is None:
        raise FileNotFoundError("; ".join(lacks))
    asked = commands(path, launches)
    said = [f"$ {' '.join(asked['ncu'])}"]
    page = path.with_suffix(".ncu.csv")
    page.unlink(missing_ok=True)
    done = subprocess.run([tool("ncu"), *asked["ncu"][1:]], capture_output=True, text=True)
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr + text:
        raise PermissionError(PERMISSION)
    if done.returncode:
        last = (done.stderr.strip() or text.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"ncu ended with {done.returncode}: {last}; run `python {script}` alone first")
    said += [table(read_ncu(page)), f"{page}: all counters, for read_ncu"]
    if nsys := tool("nsys"):
        done = subprocess.run([nsys, *asked["nsys"][1:]], capture_output=True, text=True)
        report = path.with_suffix(".nsys-rep")
        said.append(
            f"{report}: open it in Nsight Systems" if report.exists() else f"nsys wrote no report: {done.stderr}"
        )
    return "\n".join([*said, *lacks])
