"""Lesson 15: Nsight Compute's counters for add+GELU, in two kernels and in one.

It counts twice: with caches flushed before each kernel, ncu's default, and with caches as the program leaves them,
where GELU may find the sum in L2.
"""

import csv
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional

from benchmarks.hardware_counters import MARKER, command, profiled
from kernels import add_gelu

RECORD = "h100_80gb_hbm3.json"  # where these are recorded, in benchmarks/results
ELEMENTS = (2**20, 2**25)  # the claim's million, and far more than any L2 holds
CACHES = {"emptied": "all", "as the program leaves them": "none"}
# Nsight Compute's metric -> its name here.
METRICS = {
    "gpu__time_duration.sum": "nanoseconds",
    "dram__bytes_read.sum": "DRAM read",
    "dram__bytes_write.sum": "DRAM written",
    "lts__t_sectors.sum": "L2 sectors",
    "lts__t_sectors_lookup_hit.sum": "L2 hits",
    "lts__t_sectors_op_read.sum": "L2 read",
    "lts__t_sectors_op_read_lookup_hit.sum": "L2 read hits",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
    "launch__registers_per_thread": "registers",
}


def add_then_gelu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.gelu(a + b, approximate="tanh")


def counted_calls() -> dict[tuple[int, str], Callable]:
    """Return (elements, way) -> a call."""
    found = {}
    for elements in ELEMENTS:
        a, b = torch.randn(2, elements, device="cuda")
        found |= {(elements, "unfused"): partial(add_then_gelu, a, b), (elements, "fused"): partial(add_gelu, a, b)}
    return found


def parse(text: str) -> list[list[dict[str, float]]]:
    """Return, for each call, its kernels in order: METRICS' names -> the counter."""
    found = []
    for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        if not row["ID"]:
            continue  # the line of units
        if MARKER in row["Kernel Name"]:
            found.append([])
        else:
            found[-1].append({name: float(row[metric].replace(",", "")) for metric, name in METRICS.items()})
    return found


def counted(control: str) -> list[list[dict[str, float]]]:
    """Return `parse` of ncu's output for this module's program, with --cache-control `control`."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        asked = command(str(log), "benchmarks.experiments.lesson_15", METRICS)
        asked[asked.index("--cache-control") + 1] = control
        done = subprocess.run(asked, capture_output=True, text=True)
        text = log.read_text() if log.exists() else ""
    if done.returncode:
        raise RuntimeError(f"ncu failed: {(done.stderr or text or done.stdout).strip()[-1500:]}")
    return parse(text)


def add_gelu_counters() -> dict:
    """Return caches -> elements -> way -> "1", "2": the kernels in order -> the counter."""
    calls = counted_calls()
    for call in calls.values():
        call()  # here too, so that the record knows which kernels were launched
    found = {}
    for caches, control in CACHES.items():
        for (elements, way), kernels in zip(calls, counted(control), strict=True):
            of_size = found.setdefault(caches, {}).setdefault(elements, {})
            of_size[way] = dict(enumerate(kernels, 1))
    return found


EXPERIMENTS = {"add_gelu_counters": add_gelu_counters}

if __name__ == "__main__":
    profiled(counted_calls().values())
