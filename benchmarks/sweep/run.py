"""Run the sweep: time every kernel at many sizes, with its plain variant and its peers.

    fusion bench --sweep [KERNEL ...] [--seconds N] [--share N/M] [--lines FILE] [--anew] [--changed]
    fusion bench --sweep [KERNEL ...] --only fused plain        without peers, or with those named; the others' stay
    fusion bench --recorded --sweep [KERNEL ...]     the table as it was recorded on the H200; --gpu NAME: another
    fusion bench --sweep --record FILE ...           lines of runs into benchmarks/results/<gpu>_sweep.json

Compiling takes longer than measuring. So each GPU has several processes (benchmarks/sweep/worker.py) that each build a
point at the same time, then time them one after another, while no process builds on that GPU. Times are GPU times with
a cold L2, the median of RUNS, or of more for short work. At a few sizes calls are timed as well, by the host's clock
with warm caches, forward calls without gradients and next to a bare launch of an empty kernel with the same arguments.
These points come first, because no process may build on any GPU while one is timed. Percentages are of the ceilings
that the same GPU reached at the start of the run. max-autotune and torch.compile's tuning of pointwise kernels run
while other processes build on the same GPU, so they may choose differently than they would alone; benchmarks/run.py
times them alone. Otherwise torch.compile is in its default mode, without CUDA graphs. Peers' results are not checked
here.

"fused" is the GPU's default kernel; "plain" is the plain kernel, timed where a tuned one takes the point. A point
records the fingerprints of the kernels that it launched, so that a table can count points from an earlier version of a
kernel; --changed times only these.

Each point is written to FILE as a line as soon as it is measured, even if it fails. Points already in FILE are not
measured again, so the same command resumes a stopped run. On a CPU, sizes are tiny, kernels are interpreted and times
mean nothing.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path

import torch

from benchmarks.provenance import RESULTS, date_and_versions, file_name
from benchmarks.sweep import points as row_wise
from benchmarks.sweep import tiled
from benchmarks.sweep.points import Point, interleaved
from benchmarks.tried import SWEPT, shared_by, wrapped
from helpers.instruments.fingerprints import fingerprints
from helpers.instruments.sweep_records import RecordedSweep, is_earlier, is_earlier_plain, key_of, recorded_sweep
from kernels import CATALOGUE
from kernels.interpreter import runtime

RUNS = 10
WORKERS = 20  # processes per GPU
OURS = ("fused", "plain")
START_SECONDS, BUILD_SECONDS, TIME_SECONDS = 180, 75, 60  # after which a process is abandoned
ROOT = Path(__file__).resolve().parents[2]


def points() -> list[Point]:
    """Return every point of the sweep, the most informative first."""
    return interleaved(row_wise.POINTS, tiled.POINTS)


def tiny(point: Point) -> Point:
    """Return the point at a size for the interpreter, to show that the code runs."""
    if point.kernel in tiled.PROVIDERS:
        return tiled.tiny(point)
    if point.kernel in row_wise.SERVING:
        return replace(point, shape=min(CATALOGUE[point.kernel].interpreter_shapes, key=math.prod))
    return replace(
        point, shape=tuple(min(n, 3 if i == 0 and len(point.shape) > 1 else 130) for i, n in enumerate(point.shape))
    )


class Process:
    """A worker and its messages. `limits`: the ceilings of its GPU, once they are known."""

    def __init__(self, gpu: int, log):
        self.gpu, self.log, self.limits = gpu, log, {}
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        if runtime.has_gpu():
            seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            environment["CUDA_VISIBLE_DEVICES"] = seen[gpu] if seen[0] else str(gpu)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sweep.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            bufsize=0,
        )
        self.rest = b""

    def tell(self, **request) -> None:
        with contextlib.suppress(BrokenPipeError):  # the missing answer shows that it has ended
            self.process.stdin.write(json.dumps(request).encode() + b"\n")

    def again(self) -> "Process":
        """Return itself, or a replacement if it has ended."""
        if self.process.poll() is None:
            return self
        other = Process(self.gpu, self.log)
        other.answer(time.monotonic() + START_SECONDS)
        other.take(self.limits)
        return other

    def take(self, limits: dict) -> None:
        """Send it the ceilings that another process of its GPU measured."""
        self.tell(ceilings=limits)
        self.answer(time.monotonic() + TIME_SECONDS)
        self.limits = limits

    def answer(self, deadline: float) -> dict:
        """Return its next answer; {"failed": why} if none comes by `deadline`, and then kill the process."""
        pipe = self.process.stdout
        while b"\n" not in self.rest:
            ready, _, _ = select.select([pipe], [], [], max(0, deadline - time.monotonic()))
            read = os.read(pipe.fileno(), 2**16) if ready else b""
            if not read:
                self.end()
                return {"failed": "the process ended" if ready else "it took too long"}
            self.rest += read
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Sweep:
    """The remaining points, and the file for their lines; shared by one thread per GPU.

    only: the providers to time; all of them if it is empty.
    """

    def __init__(self, left: list[Point], lines: Path, stop_at: float, only: list[str]):
        self.left, self.lines, self.stop_at, self.only = left, lines, stop_at, only
        self.lock = threading.Lock()
        self.done = self.failed = 0
        self.log = (lines.parent / (lines.stem + ".log")).open("a")

    def write(self, **line) -> None:
        with self.lock, self.lines.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _some(self, number: int, calls: bool) -> list[Point]:
        with self.lock:
            if calls:
                number = min(number, sum(point.call for point in self.left))
            taken, self.left[:] = self.left[:number], self.left[number:]
        return taken

    def start(self, gpu: int, number: int) -> list[Process]:
        """Start `number` processes on one GPU, and measure its ceilings."""
        processes = [Process(gpu, self.log) for _ in range(number)]
        names = [each.answer(time.monotonic() + START_SECONDS) for each in processes]
        processes[0].tell(ceilings=True)
        limits = processes[0].answer(time.monotonic() + TIME_SECONDS)
        for each in processes:
            each.take(limits)
        run = date_and_versions() | {"kernels": fingerprints("kernels"), "ceilings": limits}
        self.write(run=run, gpu=names[0].get("ready"))
        return processes

    def go_on(self, processes: list[Process], calls: bool = False) -> None:
        """Measure points in these processes until no points or no time is left; with `calls`, only points whose calls
        are timed, which come first."""
        while time.monotonic() < self.stop_at and (batch := self._some(len(processes), calls)):
            processes[:] = [each.again() for each in processes]
            self.round(list(zip(processes, batch, strict=False)))

    def round(self, pairs: list[tuple[Process, Point]]) -> None:
        """Build a point in each process at the same time, then time one after another."""
        for process, point in pairs:
            process.tell(build={"point": asdict(point), "only": self.only})
        deadline = time.monotonic() + BUILD_SECONDS
        built = [process.answer(deadline) for process, _ in pairs]
        for (process, point), answer in zip(pairs, built, strict=True):
            if "failed" not in answer:
                process.tell(time=RUNS if runtime.has_gpu() else 3)
                answer = process.answer(time.monotonic() + TIME_SECONDS)
            failed = "failed" in answer
            fields = asdict(point)
            del fields["call"]
            self.write(**(fields | answer if failed else answer))
            with self.lock:
                self.done, self.failed = self.done + 1, self.failed + failed


def measure(chosen: list[Point], lines: Path, seconds: float, gpus: int, workers: int, only: list[str]) -> Sweep:
    """Measure the points, a thread per GPU, for about so many seconds; each line goes to the file at `lines`."""
    sweep = Sweep(sorted(chosen, key=lambda point: not point.call), lines, time.monotonic() + seconds, only)
    with ThreadPoolExecutor(gpus) as pool:
        of_gpus = list(pool.map(lambda gpu: sweep.start(gpu, workers), range(gpus)))
        everyone = [process for same in zip(*of_gpus, strict=True) for process in same]  # one point per GPU, in turns
        sweep.go_on(everyone, calls=True)
        print(f"{sweep.done} points with calls measured, {sweep.failed} of them failed", flush=True)
        of_gpus = [[process for process in everyone if process.gpu == gpu] for gpu in range(gpus)]
        running = [pool.submit(sweep.go_on, processes) for processes in of_gpus]
        while wait(running, 20).not_done:
            print(f"{sweep.done} points measured, {sweep.failed} of them failed, {len(sweep.left)} left", flush=True)
        for process in itertools.chain(*of_gpus):
            process.end()
        for each in running:
            each.result()
    return sweep


def read(files: list[Path]) -> Iterator[dict]:
    """Yield the lines of runs, except one that a kill cut short."""
    for path in files:
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def point_of(line: dict, run: int) -> dict:
    """Return a line in the record's form: "kernels" are those of our time next to the peers; plain's are in "ours"."""
    if "failed" in line:
        return line | {"run": run}
    kernels = line["kernels"]
    ours = {"run": run, "kernels": kernels.get("plain", kernels.get("fused"))}
    for clock in ("gpu", "calls"):
        ours[clock] = {name: line[clock][name] for name in OURS if name in line[clock]}
        line[clock].pop("plain", None)
    if why := line["refused"].pop("plain", None):
        ours["refused"] = why
    return line | {"run": run, "kernels": kernels.get("fused"), "ours": ours}


def merged(point: dict, line: dict, runs: list[dict], only: Collection[str] = OURS) -> dict:
    """Return a recorded point with a newer measurement of the providers `only`; the others' times stay.

    Our time next to them stays too if it is of today's kernels or, for a point without recorded kernels, if its run had
    them. Otherwise the newer one replaces it, with its run as "fused_run". Calls keep the earlier run's times, all by
    one clock: a launch's cost to the host hardly depends on the kernel."""
    peers = {name: times for name, times in line["gpu"].items() if name not in OURS}
    found = point | {"kernels": line["kernels"], "gpu": point["gpu"] | peers}
    if "plain" in only:
        found["ours"] = line["ours"]
    refused = {name: why for name, why in point["refused"].items() if name not in peers}
    found["refused"] = refused | {name: why for name, why in line["refused"].items() if name not in OURS}
    of_run = runs[point.get("fused_run", point["run"])].get("kernels", {})
    if not set(line["kernels"]) <= set(point["kernels"] or of_run.values()):
        found |= {"gpu": found["gpu"] | {"fused": line["gpu"]["fused"]}, "fused_run": line["run"]}
    return found


def record(files: list[Path], results: Path = RESULTS) -> Path:
    """Merge runs' lines into <gpu>_sweep.json of the folder `results`; a point's newest measurement replaces others.

    Lines of --only leave the other peers' times of a recorded point as they are: see `merged`."""
    lines = list(read(files))
    gpu = next(line["gpu"] for line in lines if "run" in line)
    path = results / f"{file_name(gpu)}_sweep.json"
    content = json.loads(path.read_text()) if path.exists() else {"gpu": gpu, "runs": [], "points": []}
    found = {key_of(point): point for point in content["points"]}
    number = None
    for line in lines:
        if "run" in line:
            run = line["run"]
            # GPUs of one host and day, with the same kernels, are one run: the ceilings of the first are shown, each
            # share is of its own GPU's.
            alike = ("date", "versions", "kernels")
            same = [i for i, known in enumerate(content["runs"]) if all(known.get(k) == run.get(k) for k in alike)]
            if not same:
                content["runs"].append(run)
            number = same[0] if same else len(content["runs"]) - 1
        elif "failed" not in line or key_of(line) not in found:
            only, key, point = line.pop("only", None), key_of(line), point_of(line, number)
            alone = only and "fused" in found.get(key, {}).get("gpu", {}) and "fused" in line.get("gpu", {})
            found[key] = merged(found[key], point, content["runs"], only) if alone else point
    order = {key: i for i, key in enumerate(sorted(found))}
    content["points"] = sorted(found.values(), key=lambda point: order[key_of(point)])
    rows = ",\n".join(json.dumps(point, separators=(",", ":")) for point in content["points"])
    head = json.dumps({"gpu": gpu, "runs": content["runs"]}, indent=1)[:-2]
    path.write_text(f'{head},\n "points": [\n{rows}\n ]\n}}\n')
    return path


def report(found: RecordedSweep, kernels: list[str]) -> str:
    """Return the tables of the kernels named, or a summary of all; then points behind, with reasons, or failed."""
    tables = [found.table(kernel) for kernel in kernels] or [found.summary()]
    late = [name for name in found.passes_behind(kernels) if name in SWEPT]
    tried = [line for name in late for line in wrapped(f"{name}: {SWEPT[name]}")]
    tried += shared_by(SWEPT[name] for name in late)
    lists = (found.behind(kernels), tried, found.over_bare(kernels), found.fallen(kernels), found.failures(kernels))
    return "\n".join([*tables, *(line for lines in lists for line in lines)])


def _share(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise argparse.ArgumentTypeError(f"a share is N/M such as 1/4, got {text!r}")
    return int(number), int(of)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fusion bench --sweep", description="Time the kernels at many more sizes.")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="names in the catalogue; all of them by default")
    parser.add_argument("--seconds", type=float, default=3600, help="start nothing new after so many (default: 3600)")
    parser.add_argument("--share", type=_share, default=(1, 1), metavar="N/M", help="every M-th point from the N-th")
    parser.add_argument("--lines", type=Path, default=Path("sweep.jsonl"), metavar="FILE", help="one line per point")
    parser.add_argument("--anew", action="store_true", help="also measure points already in FILE")
    parser.add_argument("--only", nargs="+", metavar="PROVIDER", default=[], help="time these, such as fused plain")
    parser.add_argument("--changed", action="store_true", help="points recorded with an earlier version of a kernel")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"processes per GPU (default: {WORKERS})")
    parser.add_argument("--recorded", action="store_true", help="measure nothing; show what was recorded on a GPU")
    parser.add_argument("--gpu", default="h100_80gb_hbm3", metavar="NAME", help="whose record (default: %(default)s)")
    parser.add_argument("--record", nargs="+", type=Path, metavar="FILE", help="measure nothing; merge these lines")
    options = parser.parse_args(arguments)
    if options.record:
        print(f"recorded in {record(options.record)}")
        return 0
    if options.recorded:
        print(report(recorded_sweep(options.gpu), options.kernels))
        return 0
    every = points()
    known = sorted({point.kernel for point in every})
    unknown = [name for name in options.kernels if name not in known]
    if unknown:
        raise ValueError(f"the sweep has no kernel {', '.join(unknown)}: it has {', '.join(known)}")
    options.lines.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if options.anew:
        options.lines.unlink(missing_ok=True)
    if options.lines.exists():
        done = {key_of(line) for line in read([options.lines]) if "kernel" in line}
    chosen = [point for point in every if not options.kernels or point.kernel in options.kernels]
    if options.changed:
        found = recorded_sweep(file_name(torch.cuda.get_device_name()))
        earlier = {key_of(point) for point in found.points if is_earlier(point) or is_earlier_plain(point)}
        chosen = [point for point in chosen if key_of(asdict(point)) in earlier]
    number, of = options.share
    chosen = [point for point in chosen[number - 1 :: of] if key_of(asdict(point)) not in done]
    gpus = torch.cuda.device_count() if runtime.has_gpu() else 1
    if not runtime.has_gpu():
        print("No GPU: kernels are interpreted, sizes are tiny; these times say nothing about speed.")
        chosen = [tiny(point) for point in chosen]
    started = time.monotonic()
    sweep = measure(chosen, options.lines, options.seconds, gpus, options.workers, options.only)
    took = time.monotonic() - started
    print(f"{sweep.done} points in {took:.0f} s, {sweep.failed} failed, GPUs: {gpus}; lines in {options.lines}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
