"""Time each of the course's kernels against eager PyTorch, torch.compile and its peers, and on a GPU record the times.

    python benchmarks/run.py [KERNEL ...] [--experiments]
    python benchmarks/run.py [KERNEL ...] --only fused plain      without peers, whose recorded times stay
    python benchmarks/run.py --recorded          the table as it was recorded on the H200
    python benchmarks/run.py --sweep --help      the kernels at many more sizes: benchmarks/sweep/run.py

Each row has two times. `gpu` is GPU time with a cold L2, without launch gaps. `call` is the caller's time per call in a
sequence of calls, including Python and the launch, for work so short that it matters. Percentages are of the ceiling
measured in the same run: copy bandwidth on the minimum traffic, read-only or write-only bandwidth if almost all traffic
is reads or writes, and cuBLAS's bf16 matmul rate if arithmetic takes longer than the bytes. Our rows that miss their
target in benchmarks/targets.py come first, then those that trail any peer by more than 3 %, on the GPU and per call,
each with the attempts to fix it. Not counted as peers: cuBLAS's matmul without its epilogue, Liger's backward pass of
cross entropy, which only scales, and "plain", our plain kernel, timed where a tuned one takes the call.

The lessons' experiments (benchmarks/experiments/) run with all of the kernels, or with --experiments alone.

On a GPU the figures go to benchmarks/results/<gpu>.json. Every row and experiment names the run that measured it, with
its date, versions and ceilings. Anything not run keeps its old figures and run. On a CPU the same command runs small
sizes through the interpreter. That only shows that it works, and records nothing.
"""

import argparse
import json
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.calls import (
    backward_pass,
    fingerprints_of,
    forget_launched,
    launched_kernels,
    launches_of,
    least_time,
    plain,
    same_kernels,
)
from benchmarks.experiments import experiments
from benchmarks.peers import peers
from benchmarks.provenance import ceilings, date_and_versions, results_file
from benchmarks.targets import TARGETS, Target
from benchmarks.tried import TRIED, shared_by, wrapped
from helpers.instruments.devices import this_device
from helpers.instruments.fingerprints import fingerprints, is_current
from helpers.instruments.recordings import recorded
from helpers.instruments.resources import compile_for
from helpers.instruments.sweep_records import BEHIND, NOT_THE_SAME
from helpers.instruments.timing import Timing, benchmark_together
from kernels import CATALOGUE
from kernels.interpreter import runtime
from kernels.op import FusedOp, Work

SHORT = 2**24  # elements: below this, a call's cost to its caller is timed too
LONG = 1e-3  # seconds: for longer work, launch costs do not matter
RUNS = 30
# Sizes in their references depend on the routing or on lengths, so torch.compile leaves them to eager.
NOT_COMPILED = {"moe_int8", "paged_attention"}
FORWARD_ONLY = {"max-autotune", "cuBLAS alone"}  # their backward takes minutes to tune, or belongs to another operation
NO_GRADIENT = {("layer_norm", "QuACK")}


def measure_op(
    op: FusedOp, shape: tuple[int, ...], dtype: torch.dtype, limits: dict[str, float], only: Collection[str] = ()
) -> list[dict]:
    """Return one row per provider and direction: fused, plain if a tuned kernel takes the call, and eager; on a GPU
    also torch.compile and peers. All in one run; with `only`, ours alone."""
    inputs = op.inputs(*shape, dtype=dtype, device="cuda" if limits else "cpu")
    functions = {"fused": op.fused, "plain": plain(op.fused)}
    functions |= {} if only else {"eager": op.reference}
    compiled = {}
    if limits:
        torch._dynamo.reset()  # its recompilation limit would leave later sizes uncompiled, and flatter our rows
        if op.name not in NOT_COMPILED:
            functions["torch.compile"] = torch.compile(op.reference, dynamic=False)
        functions |= peers(op.name, inputs)
        arguments, options = op.compile_arguments(*shape, dtype=dtype)
        found = compile_for(op.kernel_for(*shape), *arguments, device=this_device(), **options)
        compiled = {"registers": found.registers, "spill_bytes": found.spill_bytes}
    forward = {provider: partial(function, *inputs) for provider, function in functions.items()}
    with torch.no_grad():
        short = inputs[0].numel() <= SHORT
        rows = timed_rows(op.name, shape, dtype, forward, op.work(shape, dtype), limits, short)
    next((row for row in rows if row["provider"] == "plain"), rows[0]).update(compiled)  # `op.kernel` is the plain one
    if op.backward_work is not None:
        backward = {
            provider: backward_pass(function, inputs)
            for provider, function in functions.items()
            if provider not in FORWARD_ONLY and (op.name, provider) not in NO_GRADIENT
        }
        backward["plain"] = plain(backward["plain"])
        work = op.backward_work(shape, dtype)
        rows += timed_rows(f"{op.name} backward", shape, dtype, backward, work, limits, short, graphs=False)
    return rows


def timed_rows(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    providers: dict[str, Callable],
    work: Work,
    limits: dict[str, float],
    short: bool,
    graphs: bool = True,
) -> list[dict]:
    """Time the providers together, the GPU alone and, for `short` work, the whole call.

    "plain" is left out if it launches what "fused" does; otherwise its row also has our time."""
    launches = {name: launches_of(providers[name]) for name in ("fused", "plain")}
    kernels = {name: fingerprints_of(x.kernel for x in those) for name, those in launches.items()}
    if same_kernels(*launches.values()):
        providers = {name: call for name, call in providers.items() if name != "plain"}
    del launches  # and with them the tensors that they were given
    runs = RUNS if limits else 3
    gpu = benchmark_together(providers, runs=runs, graphs=graphs)
    call = {}
    if limits and short and max(timing.median for timing in gpu.values()) < LONG:
        call = benchmark_together(providers, runs=runs, launches=True)
    ceiling, least_seconds = least_time(work, limits) if limits else (None, None)
    rows = [
        {
            "kernel": name,
            "shape": list(shape),
            "dtype": str(dtype).removeprefix("torch."),
            "provider": provider,
            "least_bytes": work.bytes,
            "flops": work.flops,
            "ceiling": ceiling,
            "least_seconds": least_seconds,
            "gpu": asdict(gpu[provider]),
            "call": asdict(call[provider]) if provider in call else None,
        }
        | ({"kernels": kernels[provider]} if provider in kernels else {})
        for provider in providers
    ]
    beside = {clock: rows[0][clock] for clock in ("gpu", "call")}
    return [row | ({"fused": beside} if row["provider"] == "plain" else {}) for row in rows]


def share(row: dict) -> float:
    """Return the fraction of its ceiling that a row reaches."""
    return row["least_seconds"] / row["gpu"]["median"]


def target_of(row: dict) -> Target:
    return TARGETS.get((row["kernel"], tuple(row["shape"])), Target())


def misses_of(row: dict, peers: dict[str, float]) -> list[str]:
    """Return which parts of its target a row of ours misses; `peers` are the others' times in seconds, by provider."""
    target, median, missed = target_of(row), row["gpu"]["median"], []
    if share(row) < target.share:
        missed.append(f"{share(row):.1%} of the ceiling, not {target.share:.0%}")
    if row["flops"] / median < target.flops_per_second:
        reached, wanted = row["flops"] / median / 1e12, target.flops_per_second / 1e12
        missed.append(f"{reached:.0f} TFLOP/s, not {wanted:.0f}")
    for provider, ratio in target.ahead.items():
        if peers[provider] < ratio * median:
            missed.append(f"{peers[provider] / median:.2f} times as fast as {provider}, not {ratio}")
    return missed


def peers_of(row: dict, rows: list[dict], time: str = "gpu") -> dict[str, float]:
    """Return provider -> seconds of the others for the same work, if that time was measured."""
    same = [other for other in rows if all(other[name] == row[name] for name in ("kernel", "shape", "dtype"))]
    return {other["provider"]: other[time]["median"] for other in same if other is not row and other[time]}


def rivals_of(row: dict, rows: list[dict], time: str = "gpu") -> dict[str, float]:
    """Return `peers_of` without those of another operation."""
    name, _, direction = row["kernel"].partition(" ")
    of = (name, direction or "forward")
    if time == "call":  # the host's clock differs between runs
        rows = [other for other in rows if other.get("run") == row.get("run")]
    others = peers_of(row, rows, time)
    return {peer: others[peer] for peer in others if peer != "plain" and (*of, peer) not in NOT_THE_SAME}


def missed_targets(rows: list[dict]) -> set[tuple[str, tuple[int, ...]]]:
    """Return kernel and shape of each of our rows that misses its target, as MISSED in benchmarks/targets.py."""
    ours = [row for row in rows if row["provider"] == "fused"]
    return {(row["kernel"], tuple(row["shape"])) for row in ours if misses_of(row, peers_of(row, rows))}


def shortfalls(rows: list[dict]) -> list[str]:
    """Return one line for each of our rows that misses its target, or is over 3 % behind the best peer in the same run,
    on the GPU or as a call of short work, Python and launch included.

    Missed targets come first, and after a kernel's rows the attempts; last the notes that several attempts share.
    """
    found = []
    for row in (row for row in rows if row["provider"] == "fused"):
        what = f"{'x'.join(map(str, row['shape']))} {row['dtype']}"
        missed = misses_of(row, peers_of(row, rows))
        found += [(0, row["kernel"], f"under its target: {row['kernel']} {what}: {miss}") for miss in missed]
        for order, time, text in ((1, "gpu", "behind"), (2, "call", "a call behind")):
            rivals = rivals_of(row, rows, time)
            best = min(rivals, key=rivals.get, default=None)
            if best and row[time] and row[time]["median"] > BEHIND * rivals[best]:
                ratio = row[time]["median"] / rivals[best]
                found.append(
                    (order, row["kernel"], f"{text} {best}: {row['kernel']} {what}: {ratio:.2f} times its time")
                )
    lines = []
    kernel_of = itemgetter(0, 1)  # what it is, and the kernel
    for (_, kernel), misses in groupby(sorted(found, key=kernel_of), key=kernel_of):
        lines += [line for *_, line in misses]
        if kernel in TRIED:
            lines += wrapped(f"tried: {TRIED[kernel]}")
    return [*lines, *shared_by(TRIED[kernel] for kernel in {name for _, name, _ in found} if kernel in TRIED)]


LEGEND = (
    "Times: the median (10th to 90th percentile), the GPU's own with cold L2, a call's by the host's clock. GB/s: the\n"
    "least bytes in that time. share: of the ceiling named: copy, read or write, by the bytes; matrix, by the FLOPs.\n"
    "Registers a thread and bytes spilled are those of our kernel."
)


def table(rows: list[dict]) -> str:
    """Return the rows as text, one line each, below the legend and column names."""
    heading = f"{'kernel':30} {'shape':>18} {'dtype':8} {'provider':24} {'GPU time':>34}  {'GB/s':>5} {'TFLOP/s':>7} "
    lines = [LEGEND, heading + f"{'share':>6} of      registers, spills; a call"]
    for row in rows:
        gpu = Timing(**row["gpu"])
        what = f"{row['kernel']:30} {'x'.join(map(str, row['shape'])):>18} {row['dtype']:8} {row['provider']:24}"
        rate = f"{row['least_bytes'] / gpu.median / 1e9:5.0f} {row['flops'] / gpu.median / 1e12:7.1f}"
        reached = f"{share(row):6.1%} {row['ceiling']:6}" if row["least_seconds"] else " " * 13
        code = f"{row['registers']}, {row['spill_bytes']} B" if "registers" in row else ""
        call = f"; {Timing(**row['call'])}" if row["call"] else ""
        lines.append(f"{what} {gpu!r:>34}  {rate} {reached}  {code}{call}")
    return "\n".join(lines)


def as_json(timings):
    """Return nested dicts of Timing, or of numbers, as JSON stores them."""
    if isinstance(timings, Timing):
        return asdict(timings)
    if isinstance(timings, int | float):
        return timings
    return {str(key): as_json(value) for key, value in timings.items()}


def measured(experiment: Callable) -> dict:
    """Run an experiment; return its measurements and the fingerprints of the project's kernels that it launches."""
    forget_launched()
    times = experiment()
    return {"times": times, "kernels": fingerprints_of(launched_kernels())}


def merged(old: list[dict], new: list[dict], runs: list[dict], number: int) -> list[dict]:
    """Merge newer rows of ours alone into the old ones: plain's replace plain's, and the peers' stay unchanged.

    So does a row of ours whose run had today's kernels; otherwise the newer one replaces it."""

    def of(row):
        return row["kernel"], tuple(row["shape"]), row["dtype"]

    newer = {(of(row), row["provider"]): row | {"run": number} for row in new}
    found = []
    for row in old:
        ours = newer.get((of(row), "fused"))
        if ours is None or row["provider"] not in ("fused", "plain"):
            found.append(row)
        elif row["provider"] == "fused":
            same = {*ours["kernels"]} <= {*runs[row["run"]].get("kernels", {}).values()}
            found.append(row | {"kernels": ours["kernels"]} if same else ours)
            found += [newer[of(row), "plain"]] if (of(row), "plain") in newer else []
    return found


def record(path: Path, run: dict, rows: list[dict], experiments: dict[str, dict], only: Collection[str] = ()) -> None:
    """Write what `run` measured to the file at `path`; everything else there stays as it is, with its own run.

    experiments: name -> {"times", "kernels"}. With `only`, rows of ours alone, which are merged into those there."""
    content = json.loads(path.read_text()) if path.exists() else {"runs": [], "experiments": {}, "rows": []}
    if run not in content["runs"]:
        content["runs"].append(run)
    number = content["runs"].index(run)
    measured = {row["kernel"] for row in rows}
    content["experiments"] |= {
        name: {"run": number, "kernels": found["kernels"], "times": as_json(found["times"])}
        for name, found in experiments.items()
    }
    if only:
        content["rows"] = merged(content["rows"], rows, content["runs"], number)
    else:
        content["rows"] = [row for row in content["rows"] if row["kernel"] not in measured]
        content["rows"] += [row | {"run": number} for row in rows]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), **content}, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fusion bench", description="Time the kernels of the catalogue.")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="names in the catalogue; all of them by default")
    parser.add_argument("--experiments", action="store_true", help="also time the lessons' experiments")
    parser.add_argument("--only", nargs="+", choices=("fused", "plain"), default=[], help="time no peer")
    parser.add_argument("--changed", action="store_true", help="only experiments recorded with an earlier kernel")
    parser.add_argument("--recorded", action="store_true", help="measure nothing; show what was recorded on an H200")
    parser.add_argument("--sweep", action="store_true", help="the kernels at many more sizes; see --sweep --help")
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--sweep" in arguments:
        from benchmarks.sweep.run import main as sweep  # which takes a while to import

        return sweep([argument for argument in arguments if argument != "--sweep"])
    options = parser.parse_args(arguments)
    if options.recorded:
        h200 = recorded("h200")
        print("\n".join([h200.label, *shortfalls(h200.rows), table(h200.rows)]))
        return 0
    chosen = options.kernels or ([] if options.experiments else list(CATALOGUE))
    unknown = [name for name in chosen if name not in CATALOGUE]
    if unknown:
        raise ValueError(f"no kernel named {', '.join(unknown)}: the catalogue has {', '.join(CATALOGUE)}")

    gpu = runtime.has_gpu()
    limits = ceilings() if gpu else {}
    run = {**date_and_versions(), "kernels": fingerprints("kernels"), "ceilings": limits}
    plan = []
    for op in (CATALOGUE[name] for name in chosen):
        shapes, dtypes = (op.gpu_shapes, op.gpu_dtypes) if gpu else (op.interpreter_shapes[-1:], op.dtypes[:1])
        plan += [(op, shape, dtype) for shape in shapes for dtype in dtypes]
    rows = []
    for op, shape, dtype in tqdm(plan, desc="benchmark", unit="size", delay=2, disable=not sys.stderr.isatty()):
        rows += measure_op(op, shape, dtype, limits, options.only)
        if gpu and (shape, dtype) == (op.gpu_shapes[-1], op.gpu_dtypes[-1]):
            its = [row for row in rows if row["kernel"].split()[0] == op.name]
            record(results_file(), run, its, {}, options.only)  # nothing done is lost

    if gpu:
        if rows and not options.only:
            print("\n".join(shortfalls(rows)) or "every kernel reaches its target and keeps up with its peers")
        print(", ".join(f"{name} {value:.4g}" for name, value in limits.items()))
    else:
        print("No GPU: kernels are interpreted, sizes are small; these times say nothing about speed. Not recorded.")
    print(table(rows))
    if gpu:
        wanted = experiments() if options.experiments or (len(chosen) == len(CATALOGUE) and not options.only) else {}
        if options.changed:
            known = recorded(results_file().stem).experiments
            wanted = {name: wanted[name] for name in wanted if not is_current(known.get(name, {}).get("kernels"))}
        for name, experiment in wanted.items():
            record(results_file(), run, [], {name: measured(experiment)})  # one by one, so that no result is lost
        print(f"recorded in {results_file().name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
