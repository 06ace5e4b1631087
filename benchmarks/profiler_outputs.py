"""Record the profiler outputs that lesson 15 shows besides its pages: a full page, a timeline with a gap, Python
stacks.

    python -m benchmarks.profiler_outputs [FOLDER]     into benchmarks/results/<gpu>_profiles where no folder is named

    ncu_full.txt       `ncu --set full` of one launch of add+GELU, as it is printed
    ncu_sets.txt       `ncu --list-sets`
    gap.trace.json     torch.profiler's trace of `steps`, with_stack=True: kernels, launches, operators, Python's calls
    gap_nsys.csv       the same by Nsight Systems, where it is installed: QUERY on its SQLite export
    outputs.json       the commands, the versions, the day, the GPU; and the error of a tool that failed

`python -m benchmarks.profiler_outputs program NAME` is the program that ncu and nsys profile.
"""

import csv
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks.block_traces import CALL, last_begin, whole_trace
from benchmarks.hardware_counters import profiler
from benchmarks.provenance import RESULTS, file_name, provenance
from helpers.instruments.profile_script import tool

PAGES = ("outputs.json", "ncu_sets.txt", "ncu_full.txt", "gap.trace.json")
ELEMENTS = 2**25
STEPS, WIDTH = 3, 4096
# Each kernel with the time of its launch, as the SQLite export of nsys has them.
QUERY = """\
SELECT name.value AS kernel, k.start, k."end", r.start AS launched
FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r ON r.correlationId = k.correlationId
JOIN StringIds AS name ON name.id = k.shortName
ORDER BY k.start"""
KEPT = ("cpu_op", "kernel", "cuda_runtime", "cuda_driver", "python_function")


def clip(grad: torch.Tensor, most: float) -> torch.Tensor:
    """Scale a gradient down to a norm of `most`; the comparison waits for the GPU."""
    norm = grad.norm()
    if norm.item() > most:
        grad = grad * (most / norm)
    return grad


def update(weight: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    return weight - 0.1 * clip(grad, 1.0)


def steps(weight: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    for _ in range(STEPS):
        weight = update(weight, grad)
    return weight


def run_steps() -> None:
    weight, grad = torch.randn(2, WIDTH, WIDTH, device="cuda" if torch.cuda.is_available() else "cpu")
    for _ in range(3):
        steps(weight, grad)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        with torch.cuda.nvtx.range(CALL):
            steps(weight, grad)
        torch.cuda.synchronize()


def run_add_gelu() -> None:
    from kernels import add_gelu

    a, b = torch.randn(2, ELEMENTS, device="cuda")
    for _ in range(2):
        add_gelu(a, b)
    torch.cuda.synchronize()


PROGRAMS = {"steps": run_steps, "add_gelu": run_add_gelu}


def trace() -> dict:
    """Return the last call of `steps` by torch.profiler, with stacks; microseconds from its start."""
    on_gpu = torch.cuda.is_available()
    weight, grad = torch.randn(2, WIDTH if on_gpu else 64, WIDTH, device="cuda" if on_gpu else "cpu")
    return last_call(whole_trace(partial(steps, weight, grad), with_stack=True))


def last_call(trace: dict) -> dict:
    """Cut a trace to the last CALL, and of Python's calls to those of this file's functions."""
    events = trace["traceEvents"]
    begin = last_begin(events)
    kept = []
    for each in events:
        if each.get("ph") != "X" or each.get("cat") not in KEPT or each["ts"] < begin:
            continue
        if each["cat"] == "python_function" and Path(__file__).name not in each["name"]:
            continue
        arguments = {name: value for name, value in each.get("args", {}).items() if name in ("correlation", "stream")}
        name = each["name"].rpartition("/")[2] if each["cat"] == "python_function" else each["name"][:200]
        kept.append(each | {"name": name, "ts": round(each["ts"] - begin, 3), "args": arguments})
    return {"displayTimeUnit": "ns", "traceEvents": sorted(kept, key=lambda each: each["ts"])}


def printed(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr + done.stdout).strip()[-600:])
    return done.stdout


def full_page() -> str:
    """Return what ncu prints of the second launch of add+GELU with all its sections."""
    chosen = "--set full --clock-control none --kernel-name regex:add_gelu --launch-skip 1 --launch-count 1".split()
    text = printed(profiler(), *chosen, sys.executable, "-m", "benchmarks.profiler_outputs", "program", "add_gelu")
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith("==")]
    return "\n".join(lines).strip("\n") + "\n"


def nsys_rows() -> list[dict]:
    """Return QUERY's rows for the kernels of the range CALL, times in nanoseconds from the first launch of it."""
    nsys = tool("nsys")
    if nsys is None:
        raise FileNotFoundError("nsys is not installed")
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/gap"
        program = [sys.executable, "-m", "benchmarks.profiler_outputs", "program", "steps"]
        printed(nsys, "profile", "--trace", "cuda,nvtx", "-o", report, "--force-overwrite", "true", *program)
        printed(nsys, "export", "--type", "sqlite", "-o", f"{report}.sqlite", f"{report}.nsys-rep")
        base = sqlite3.connect(f"{report}.sqlite")
        base.row_factory = sqlite3.Row
        ((begin, end),) = base.execute('SELECT start, "end" FROM NVTX_EVENTS WHERE text = ?', (CALL,)).fetchall()[-1:]
        rows = [dict(row) for row in base.execute(QUERY) if begin <= row["launched"] <= end]
        base.close()
    first = rows[0]["launched"]
    return [row | {name: row[name] - first for name in ("start", "end", "launched")} for row in rows]


def main() -> None:
    if sys.argv[1:2] == ["program"]:
        PROGRAMS[sys.argv[2]]()
        return
    run = provenance() if torch.cuda.is_available() else {"gpu": "none"}
    folder = Path(sys.argv[1]) if sys.argv[1:] else RESULTS / f"{file_name(run['gpu'])}_profiles"
    folder.mkdir(parents=True, exist_ok=True)
    about, errors = {**run, "query": QUERY}, {}

    def attempt(name: str, write) -> None:
        try:
            write()
        except Exception as error:  # each tool may be missing, or forbidden
            errors[name] = f"{type(error).__name__}: {str(error)[-600:]}"
        file = folder / "outputs.json"
        file.write_text(json.dumps(about | {"errors": errors}, indent=1) + "\n")

    def write_trace():
        (folder / "gap.trace.json").write_text(json.dumps(trace()) + "\n")

    def write_sets():
        text = printed(profiler(), "--list-sets")
        (folder / "ncu_sets.txt").write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")
        about["ncu"] = printed(profiler(), "--version").strip().splitlines()[-1]

    def write_full():
        (folder / "ncu_full.txt").write_text(full_page())

    def write_nsys():
        rows = nsys_rows()
        about["nsys"] = printed(tool("nsys"), "--version").strip()
        with (folder / "gap_nsys.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    for name, write in (
        ("trace", write_trace), ("ncu sets", write_sets), ("ncu full", write_full), ("nsys", write_nsys)
    ):  # fmt: skip
        attempt(name, write)
    about["host compiler"] = shutil.which("g++") or "none"
    attempt("compiler", lambda: None)
    print(errors or "all written")


if __name__ == "__main__":
    main()
