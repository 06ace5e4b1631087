"""Compare the predictions with the times recorded on a GPU, one line per point.

python benchmarks/predictions.py

Points are grouped, because only held-out ones show what to expect for your own kernel. Fitted: sizes and kernels that
were known when the model was made, and half of the sweep's points (chosen by a hash of the point). Held out: the
sweep's other half, and random shapes (benchmarks/held_out.py). Nothing was or will be fitted to them, so large errors
there stay. Each point has both of our tiers: the plain kernel, and the tuned one that takes it. Tiled kernels are a
group of their own, because one constant was fitted to flash attention. moe_int8 is left out: how its tokens are shared
among experts depends on the data, which a prediction does not have.
"""

import functools
import hashlib
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from benchmarks import held_out
from benchmarks.sweep.points import DTYPES
from benchmarks.validation import COVERED, recorded_validation
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.prediction import Prediction, prediction_of
from helpers.instruments.recordings import recorded
from helpers.instruments.sweep_records import recorded_sweep
from kernels import CATALOGUE

TILED = [name for name, op in CATALOGUE.items() if op.group == "tiled" and name != "moe_int8"]
FAR = 0.30  # of the measured time: an error above it must be explained

# (kernel, version, bytes of the first argument) -> why the model is so far off.
_SMALL = "nine launches of PyTorch's, each a microsecond or so over its constant"
_TOP_K = "PyTorch's top-k of few rows took from 16 to 55 us at the widths of the constants, 60 to 70 at these"
_BOTH = "PyTorch's {} took as long on an H200 ({} us), as if its SMs bound it; the constants are shares of bandwidth"
EXPLAINED = {
    ("layer_norm_int8", "eager", 2**16): _SMALL,
    ("softmax", "eager", 2**28): _BOTH.format("softmax", 253),
    ("softmax_topk", "eager", 2**16): _TOP_K,
    ("softmax_topk", "eager", 2**19): _TOP_K,
    ("softmax_topk", "eager", 2**28): _BOTH.format("softmax and top-k", 1298),
}


@dataclass(frozen=True)
class Row:
    """One recorded time and its prediction, in seconds."""

    kernel: str
    version: str
    bytes: int
    shape: tuple[int, ...]
    measured: float
    prediction: Prediction
    current: bool = True  # whether today's kernel is the one that was timed

    @property
    def error(self) -> float:
        """Return the error relative to the measured time; positive if the prediction is too long."""
        return self.prediction.time / self.measured - 1


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return every time recorded on the H100 of the catalogue's kernels, at the sizes of benchmarks/validate.py."""
    return recorded_rows(sorted(COVERED))


def recorded_rows(kernels: Iterable[str]) -> tuple[Row, ...]:
    """Return those of these kernels."""
    record = recorded_validation("h100_80gb_hbm3")
    device, known = held_out.device_of(record.gpu), record.code_by == held_out.COMPILER
    predicted = set(kernels) - set(held_out.UNPREDICTED)
    rows = (_row(entry, device) for entry in record.times if entry["kernel"] in predicted)
    return tuple(row if known else replace(row, current=False) for row in rows)


@functools.cache
def tiled_rows(most_flops: float = math.inf) -> tuple[Row, ...]:
    """Return every time that `fusion bench` recorded for a tiled forward kernel of at most `most_flops` FLOPs."""
    record = recorded()
    entries = [
        {**entry, "version": entry["provider"]}
        for entry in record.rows
        if entry["kernel"] in TILED and entry["provider"] in ("fused", "eager") and entry["flops"] <= most_flops
    ]
    return tuple(_row(entry, held_out.device_of(record.gpu)) for entry in entries)


@functools.cache
def held_out_rows(kind: str) -> tuple[Row, ...]:
    """Return every time recorded by benchmarks/held_out.py; of tiled kernels if `kind` is "_tiled", of rows if ""."""
    record = held_out.record(kind)
    known = record["code_by"] == held_out.COMPILER
    rows = (_row(entry, held_out.device_of(record["gpu"])) for entry in record["times"])
    return tuple(row if known else replace(row, current=False) for row in rows)


def as_timed(rows: tuple[Row, ...]) -> list[Row]:
    """Return the rows of our kernels whose machine code today is that which was timed.

    Empty if another Triton is installed than the one that the record's hashes are from.
    """
    return [row for row in rows if row.version != "eager" and row.current]


def sweep_entries(fitted: bool) -> list[dict]:
    """Return the forward times of our memory-bound kernels, plain and tuned, in one half of the H100's sweep."""
    found = []
    for point in recorded_sweep().points:
        name, shape = point["kernel"], point["shape"]
        if "failed" in point or point["direction"] != "forward" or name not in COVERED or name in held_out.UNPREDICTED:
            continue
        half = int(hashlib.sha256(repr((name, shape, point["dtype"])).encode()).hexdigest(), 16) % 2
        if (half == 0) != fitted:
            continue
        times = point["ours"]["gpu"]  # without a "plain" of its own, ours is the plain kernel
        tiers = {"plain": times.get("plain", times["fused"])} | ({"fused": times["fused"]} if "plain" in times else {})
        for version, (median, *_) in tiers.items():
            dtype = str(DTYPES[point["dtype"]]).removeprefix("torch.")
            gpu = {"median": median * 1e-6}
            found.append({"kernel": name, "shape": shape, "dtype": dtype, "version": version, "gpu": gpu})
    return found


@functools.cache
def sweep_rows(fitted: bool, every: int = 1) -> tuple[Row, ...]:
    """Return the times of every `every`-th of `sweep_entries` with their predictions."""
    return tuple(_row(entry, DEVICES["H100"]) for entry in sweep_entries(fitted)[::every])


def _row(entry: dict, device: Device) -> Row:
    launches = held_out.rehearsed(entry, device)
    current = "code" not in entry or entry["code"] == held_out.machine_code(launches, device)
    shape, measured = tuple(entry["shape"]), entry["gpu"]["median"]
    nbytes = entry.get("bytes", math.prod(shape) * getattr(torch, entry["dtype"]).itemsize)
    return Row(entry["kernel"], entry["version"], nbytes, shape, measured, prediction_of(launches, device), current)


def grouped() -> dict[str, tuple[Row, ...]]:
    """Return the rows by group: fitted and held out, tiled and all others."""
    return {
        "fitted": rows(),
        "sweep, fitted": sweep_rows(fitted=True),
        "sweep, held out": sweep_rows(fitted=False),
        "held out": held_out_rows(""),
        "tiled": tiled_rows(),
        "tiled, held out": held_out_rows("_tiled"),
    }


def summary(errors: list[float]) -> tuple[float, float]:
    """Return the median and 90th percentile of the absolute errors."""
    sizes = [abs(error) for error in errors]
    return statistics.median(sizes), statistics.quantiles(sizes, n=10, method="inclusive")[-1]


def table(groups: dict[str, tuple[Row, ...]]) -> str:
    """Return every row by group, each group's summary, the large errors with their reasons, and what is missing."""
    lines = []
    for group, its in groups.items():
        lines.append(
            f"{group:22} {'version':7} {'shape':>16} {'measured':>11} {'predicted':>11} {'error':>7}  bound by"
        )
        for row in its:
            shape, predicted = "x".join(map(str, row.shape)), row.prediction
            lines.append(
                f"{row.kernel:22} {row.version:7} {shape:>16} {row.measured * 1e6:8.1f} us"
                f" {predicted.time * 1e6:8.1f} us {row.error:+7.1%}  {predicted.bound}"
            )
    for group, its in groups.items():
        median, most = summary([row.error for row in its])
        worst = max(its, key=lambda row: abs(row.error))
        what = f"{worst.kernel} {worst.version} {'x'.join(map(str, worst.shape))}"
        lines.append(f"{group}: {len(its)} times, error: median {median:.1%}, 90th percentile {most:.1%}")
        lines.append(f"  worst {worst.error:+.0%}: {what}")
    for row in rows():
        if abs(row.error) > FAR:
            reason = EXPLAINED.get((row.kernel, row.version, row.bytes), "not explained")
            reason = reason if row.current else "the time is an earlier kernel's"
            lines.append(f"  {row.error:+.0%} {row.kernel} {row.version} {'x'.join(map(str, row.shape))}: {reason}")
    days = " and ".join(held_out.record(kind)["date"] for kind in ("", "_tiled"))
    lines.append(f"on {recorded_validation('h100_80gb_hbm3').label}; held out: {days}")
    if missing := sorted(set(COVERED) - {row.kernel for row in rows()} - set(held_out.UNPREDICTED)):
        lines.append(f"not recorded: {', '.join(missing)}; on a GPU, run python benchmarks/validate.py")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(grouped()))
    sys.exit()
