"""How far the predictions are from the times recorded on a GPU, a line for each, and why where it is far.

python benchmarks/predictions.py
"""

import functools
import statistics
import sys
from dataclasses import dataclass

import torch

from benchmarks.validation import COVERED, Record, recorded_validation
from helpers.instruments.prediction import Prediction, predict

FAR = 0.30  # of the measured time: an error above it must be explained

# (kernel, version, bytes of the first argument) -> why the model is so far off.
_STRAIGHT = "the ramp charges each instruction a latency, too much where so many are independent; larger grids hide it"
_TOP_K = "PyTorch's top-k took from 16 to 55 us at the widths of the constants, 60 here: one constant stands for all"
EXPLAINED = {
    ("layer_norm_int8", "fused", 2**16): _STRAIGHT,
    ("layer_norm_int8", "fused", 2**19): _STRAIGHT,
    ("softmax_topk", "fused", 2**16): _STRAIGHT,
    ("softmax_topk", "fused", 2**19): _STRAIGHT,
    ("softmax_topk", "fused", 2**22): _STRAIGHT,
    ("softmax_topk", "eager", 2**16): _TOP_K,
    ("softmax_topk", "eager", 2**19): _TOP_K,
}


@dataclass(frozen=True)
class Row:
    """One recorded time beside its prediction, in seconds."""

    kernel: str
    version: str
    bytes: int
    shape: tuple[int, ...]
    measured: float
    prediction: Prediction

    @property
    def error(self) -> float:
        """Of the measured time; positive where the prediction is too long."""
        return self.prediction.time / self.measured - 1


@functools.cache
def rows() -> tuple[Row, ...]:
    """Every recorded time of a kernel that is in the catalogue."""
    record = recorded_validation()
    return tuple(_row(entry, record) for entry in record.times if entry["kernel"] in COVERED)


def _row(entry: dict, record: Record) -> Row:
    op = COVERED[entry["kernel"]]
    function = op.fused if entry["version"] == "fused" else op.reference
    inputs = op.inputs(*entry["shape"], dtype=getattr(torch, entry["dtype"]), device="meta")
    with torch.no_grad():
        prediction = predict(function, *inputs, device=record.device)
    shape, measured = tuple(entry["shape"]), entry["gpu"]["median"]
    return Row(entry["kernel"], entry["version"], entry["bytes"], shape, measured, prediction)


def summary(errors: list[float]) -> tuple[float, float]:
    """Median and 90th percentile of the errors' sizes."""
    sizes = [abs(error) for error in errors]
    return statistics.median(sizes), statistics.quantiles(sizes, n=10, method="inclusive")[-1]


def table() -> str:
    """Every row, the summary, the errors that are far off with their reasons, and what is not recorded."""
    lines = [f"{'kernel':22} {'version':7} {'shape':>16} {'measured':>11} {'predicted':>11} {'error':>7}  bound by"]
    for row in rows():
        shape, predicted = "x".join(map(str, row.shape)), row.prediction
        lines.append(
            f"{row.kernel:22} {row.version:7} {shape:>16} {row.measured * 1e6:8.1f} us {predicted.time * 1e6:8.1f} us"
            f" {row.error:+7.1%}  {predicted.bound}"
        )
    median, most = summary([row.error for row in rows()])
    lines.append(f"{len(rows())} times on {recorded_validation().label}")
    lines.append(f"error: median {median:.1%}, 90th percentile {most:.1%}")
    for row in rows():
        if abs(row.error) > FAR:
            reason = EXPLAINED.get((row.kernel, row.version, row.bytes), "not explained")
            lines.append(f"  {row.error:+.0%} {row.kernel} {row.version} {'x'.join(map(str, row.shape))}: {reason}")
    if missing := [name for name in COVERED if name not in {row.kernel for row in rows()}]:
        lines.append(f"not recorded: {', '.join(missing)}; on a GPU, run python benchmarks/validate.py")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
    sys.exit()
