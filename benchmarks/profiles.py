"""Record lesson 15's H200 results: Nsight Compute's pages, torch.profiler's traces, and the capstone's times.

    python -m benchmarks.profiles --out FILE [--seconds 170]

Each task is its own process with its own time limit, so that one that hangs or fails loses only its own figures.
    python -m benchmarks.profiles --take FILE     puts FILE into benchmarks/results/<gpu>_profiles, cut to what is read

FILE has all results and is written after each task. Everything is compiled first, in parallel, into Triton's and
Inductor's caches. max-autotune, which times while it compiles, runs last and alone.
"""

import argparse
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.hardware_counters import MARKER
from benchmarks.ncu_pages import COLUMNS, SOURCE_OF
from benchmarks.provenance import RESULTS, date_and_versions, file_name, provenance

WARM = [(way, tokens) for tokens in (8192, 512, 1) for way in ("torch.compile", "fused")]
# Name, time limit in seconds, module and arguments.
TASKS = (
    ("times", 90, "benchmarks.block", "times"),
    ("ncu pairs", 70, "benchmarks.ncu_pages", "pairs"),
    ("traces", 40, "benchmarks.block_traces"),
    ("parts", 30, "benchmarks.block", "parts"),
    ("ncu block", 60, "benchmarks.ncu_pages", "block"),
    ("max-autotune 1", 90, "benchmarks.block", "autotuned", "1"),
    ("max-autotune 8192", 120, "benchmarks.block", "autotuned", "8192"),
    ("max-autotune 512", 120, "benchmarks.block", "autotuned", "512"),
)


SHOWN = ("vectorized_elementwise_kernel<4, native::CUDAFunctor_add", SOURCE_OF)  # whose page is kept as ncu prints it
LONGEST_NAME = 100
OF_SOURCE = ("Source", "# Samples", "Instructions Executed", "stall_long_sb", "stall_drain", "stall_short_sb")


def cut_pages(plain: str, whole: str) -> str:
    """Return the CSV page without markers, with names cut, and with the stall reasons from the full page."""
    rows = list(csv.DictReader(io.StringIO(plain)))
    stalls = [row for row in csv.DictReader(io.StringIO(whole)) if row["Metric Name"].startswith("Stall ")]
    kept = io.StringIO()
    writer = csv.DictWriter(kept, COLUMNS, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writeheader()
    for row in sorted([*rows, *stalls], key=lambda row: int(row["ID"])):
        if MARKER not in row["Kernel Name"]:
            writer.writerow(row | {"Kernel Name": row["Kernel Name"][:LONGEST_NAME]})
    return kept.getvalue()


def cut_text(details: str) -> str:
    """Return ncu's own output for the kernels in SHOWN, each once."""
    pages = re.split(r"\n(?=  \S.*, Context \d+, Stream)", details)
    found = [next(page for page in pages if name in page.partition("\n")[0]) for name in SHOWN]
    return "\n".join(line.rstrip() for page in found for line in page.splitlines()) + "\n"


def cut_source(source: str) -> str:
    """Return the first kernel's lines of machine code, with their samples."""
    lines = source.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith('"Address"'))
    end = next((n for n, line in enumerate(lines) if n > start and not line.startswith('"0x')), len(lines))
    kept = io.StringIO()
    writer = csv.DictWriter(kept, OF_SOURCE, extrasaction="ignore", quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writeheader()
    writer.writerows(csv.DictReader(lines[start:end]))
    return kept.getvalue()


def with_short_names(found):
    """Return the same with kernel names cut."""
    if not isinstance(found, dict):
        return found
    if "kernels" in found:
        found = found | {"kernels": [[name[:LONGEST_NAME], time] for name, time in found["kernels"]]}
    return {key: with_short_names(value) for key, value in found.items()}


def take(content: dict) -> None:
    """Write the results to the folder that lesson 15 reads; anything not measured this time stays as it is."""
    folder = RESULTS / f"{file_name(content['gpu'])}_profiles"
    folder.mkdir(exist_ok=True)
    tasks, file = content["tasks"], folder / "block.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    found |= {name: content[name] for name in ("gpu", "date", "versions", "ceilings", "command")}
    if "ncu pairs" in tasks:
        pages = tasks["ncu pairs"]
        found["ncu"] = {"command": pages["command"], "version": pages["version"]}
        (folder / "ncu.csv").write_text(cut_pages(pages["csv"], pages["all"]))
        (folder / "ncu_details.txt").write_text(cut_text(pages["details"]))
        (folder / "ncu_source.csv").write_text(cut_source(pages["source"]))
    for name, trace in tasks.get("traces", {}).items():
        (folder / f"block_{re.sub('[^a-z]+', '_', name.lower())}.trace.json").write_text(json.dumps(trace) + "\n")
    for name in ("times", "parts", *(name for name in tasks if name.startswith("max-autotune"))):
        if name in tasks:
            found[name] = with_short_names(tasks[name])
    file.write_text(json.dumps(found, indent=1) + "\n")


def started(*words: str, threads: int = 16, log=None) -> subprocess.Popen:
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
    return subprocess.Popen(
        [sys.executable, "-m", *words], env=environment, stdout=log, stderr=log, start_new_session=True
    )


def ended(process: subprocess.Popen, seconds: float) -> bool:
    """Return whether it exited successfully; if it does not in time, stop it and its children."""
    try:
        return process.wait(timeout=max(1.0, seconds)) == 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--take", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=170, help="after which no further task is started")
    parser.add_argument("--tasks", default="", help="names, divided by commas; all by default")
    parser.add_argument("--small", action="store_true", help="a dry run, for a machine without a GPU")
    options = parser.parse_args()
    if options.take:
        take(json.loads(options.take.read_text()))
        return
    began, small = time.monotonic(), ["--small"] * options.small
    chosen = [task for task in TASKS if not options.tasks or task[0] in options.tasks.split(",")]

    def left() -> float:
        return options.seconds - (time.monotonic() - began)

    run = provenance() if torch.cuda.is_available() else {"gpu": None, **date_and_versions(), "ceilings": {}}
    content = {**run, "command": "python -m benchmarks.profiles", "tasks": {}, "took": {}}
    with tempfile.TemporaryDirectory() as folder:
        log = open(Path(folder) / "log", "w+")  # noqa: SIM115  (all processes write to it)
        warming = [
            started("benchmarks.block", "warm", way, str(tokens), *small, threads=4, log=log) for way, tokens in WARM
        ]
        until = min(45.0, left())
        for process in warming:
            ended(process, until - (time.monotonic() - began))
        print(f"warm: {time.monotonic() - began:.0f} s", flush=True)
        for name, limit, module, *words in chosen:
            file = Path(folder) / f"{name.replace(' ', '_')}.json"
            if left() < 5:
                content["took"][name] = "no time was left to start it"
                continue
            start = time.monotonic()
            well = ended(started(module, *words, str(file), *small, log=log), min(limit, left()))
            content["took"][name] = [round(time.monotonic() - start, 1), well]
            print(name, content["took"][name], flush=True)
            if file.exists() and file.stat().st_size:
                content["tasks"][name] = json.loads(file.read_text())
            log.flush()
            content["log"] = (Path(folder) / "log").read_text()[-20000:]
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(content))
    print(content["log"][-3000:])


if __name__ == "__main__":
    main()
