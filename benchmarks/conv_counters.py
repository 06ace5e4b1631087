"""What Nsight Compute counts of lesson 09's convolution: what its taps ask of L2, and of memory.

`python -m benchmarks.conv_counters` is the program that is profiled, one kernel after each marker.
"""

from functools import partial

import torch

from benchmarks.convolutions import conv_bn_relu, folded
from benchmarks.hardware_counters import counters, profiled
from kernels.tiled.conv_bn_act import OP, conv_bn_act

SHAPE = (64, 128, 56, 56, 256, 3)
METRICS = {
    "lts__t_sectors_op_read.sum": "l2_read",  # sectors of 32 bytes
    "dram__bytes_read.sum": "dram_read",
    "gpu__time_duration.sum": "nanoseconds",
}


def calls() -> dict[tuple[str, int], callable]:
    """(who and layout, stride) -> a launch, in bf16."""
    x, w, *vectors = OP.inputs(*SHAPE, dtype=torch.bfloat16, device="cuda")
    scale, shift = folded(*vectors)
    last, first = w.permute(0, 2, 3, 1).contiguous(), x.contiguous()
    found = {}
    for stride in (1, 2):
        found["channels last", stride] = partial(conv_bn_relu, x, last, scale, shift, stride)
        found["channels first", stride] = partial(conv_bn_relu, first, last, scale, shift, stride)
        found["catalogue", stride] = partial(conv_bn_act, x, w, *vectors, "relu", stride)
    return found


def measure() -> dict[str, dict[int, dict[str, int]]]:
    """Who and layout -> stride -> METRICS' names -> the counter."""
    found = {}
    for (who, stride), (row,) in zip(calls(), counters("benchmarks.conv_counters", METRICS), strict=True):
        found.setdefault(who, {})[stride] = {name: row[name] for name in METRICS.values()}
    return found


if __name__ == "__main__":
    profiled(calls().values())
