"""Collect Nsight Compute's counters for each of the course's plain kernels and its reference, on data much larger than
L2.

`python -m benchmarks.hardware_counters` is the profiled program: it runs each of them once, after a marker.
"""

import csv
import gc
import glob
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch

from benchmarks.calls import plain
from benchmarks.validation import COVERED
from kernels.op import FusedOp

BYTES = 2**30  # of the first argument; twice that is the largest for which PyTorch launches an operator once
MARKER = "spin_kernel"  # what torch.cuda._sleep launches
# Nsight Compute's metric -> its name here.
METRICS = {
    "dram__bytes_read.sum": "dram_read",
    "dram__bytes_write.sum": "dram_written",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "sectors_read",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "sectors_written",
}


def shape_of(op: FusedOp, nbytes: int) -> tuple[int, ...]:
    """Return the operation's middle benchmark shape, scaled so that the first argument has about `nbytes`."""
    inner = op.gpu_shapes[len(op.gpu_shapes) // 2][1:]
    return (max(1, nbytes // (torch.Size(inner).numel() * op.gpu_dtypes[-1].itemsize)), *inner)


def sections(nbytes: int):
    """Yield (operation, version, shape, function, arguments) of every version of every kernel, in order."""
    for op in COVERED.values():
        shape = shape_of(op, nbytes)
        inputs = op.inputs(*shape, dtype=op.gpu_dtypes[-1], device="cuda")
        for version, function in (("fused", plain(op.fused)), ("eager", op.reference)):
            yield op, version, shape, function, inputs
        del inputs
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    profiled(partial(function, *inputs) for _, _, _, function, inputs in sections(BYTES))


def profiled(functions: Iterable[Callable]) -> None:
    """Call each function once unprofiled, to compile it and load its library, then again after a marker."""
    with torch.no_grad():
        for function in functions:
            function()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            torch.cuda._sleep(1)
            function()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def profiler() -> str:
    """Return Nsight Compute's command line.

    Raises:
        FileNotFoundError: it is not installed.
    """
    found = shutil.which("ncu") or next(iter(sorted(glob.glob("/opt/nvidia/nsight-compute/*/ncu"), reverse=True)), None)
    if found is None:
        raise FileNotFoundError("no ncu on the path or in /opt/nvidia/nsight-compute: install Nsight Compute")
    return found


def command(log: str, module: str = "benchmarks.hardware_counters", metrics: Iterable[str] = METRICS) -> list[str]:
    """Return the profiler's command; clocks stay unlocked, and every kernel starts with cold caches."""
    options = "--clock-control none --cache-control all --profile-from-start off --csv --page raw --print-units base"
    program = [sys.executable, "-m", module]
    return [profiler(), *options.split(), "--metrics", ",".join(metrics), "--log-file", log, *program]


def counters(module: str, metrics: dict[str, str]) -> list[list[dict]]:
    """Return, for each function that a module's program has `profiled`, its kernels in order with their counters.

    Args:
        module: run as a program, from the folder that this one runs in.
        metrics: Nsight Compute's metric -> its name here.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "log")
        done = subprocess.run(command(log, module, metrics), capture_output=True, text=True)
        text = Path(log).read_text() if Path(log).exists() else ""
    if done.returncode:
        raise RuntimeError(f"ncu failed: {(done.stderr or text or done.stdout).strip().splitlines()[-1]}")
    return parse(text, metrics)


def read() -> list[dict]:
    """Return one row per version: its kernels in order, with their counters, in bytes and 32-byte sectors."""
    rows = counters("benchmarks.hardware_counters", METRICS)
    versions = [(op, version) for op in COVERED.values() for version in ("fused", "eager")]
    return [
        {
            "kernel": op.name,
            "version": version,
            "shape": list(shape_of(op, BYTES)),
            "dtype": str(op.gpu_dtypes[-1]).removeprefix("torch."),
            "kernels": kernels,
        }
        for (op, version), kernels in zip(versions, rows, strict=True)
    ]


def parse(text: str, metrics: dict[str, str] = METRICS) -> list[list[dict]]:
    """Parse Nsight Compute's table: the kernels after each marker, with their counters."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found = []
    for row in csv.DictReader(lines):
        if not row["ID"]:
            continue  # the line of units
        if MARKER in row["Kernel Name"]:
            found.append([])
        else:
            counts = {name: round(float(row[metric].replace(",", ""))) for metric, name in metrics.items()}
            found[-1].append({"name": row["Kernel Name"], **counts})
    return found


if __name__ == "__main__":
    main()
