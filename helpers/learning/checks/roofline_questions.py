"""Compute costs and limits of operations for the exercise on rooflines, with plain values in and out."""

import random
from collections.abc import Callable

from helpers.instruments.devices import DEVICES
from helpers.instruments.operations import OPERATIONS
from helpers.learning.checks import cases


def work_of(operation: str) -> Callable:
    """Return (rows, columns, itemsize, fused=True) -> (FLOP, bytes) of an operation in
    helpers.instruments.operations."""

    def work(rows: int, columns: int, itemsize: int, fused: bool = True) -> tuple[float, float]:
        versions = OPERATIONS[operation](rows, columns, itemsize)
        launches = [launch.work for launch in (versions.fused if fused else versions.unfused)]
        return sum(each.flops for each in launches), sum(each.bytes for each in launches)

    return work


def product_work(rows: int, inner: int, columns: int, itemsize: int) -> tuple[int, int]:
    """Return (FLOP, bytes) of (rows, inner) @ (inner, columns): each matrix crosses the bus once."""
    elements = rows * inner + inner * columns + rows * columns
    return 2 * rows * inner * columns, elements * itemsize


def ridge(peak: float, bandwidth: float) -> float:
    """Return the ridge point in FLOP/byte, from FLOP/s and bytes/s."""
    return peak / bandwidth


def bound(flops: float, nbytes: float, peak: float, bandwidth: float) -> str:
    """Return an operation's limit: "memory" left of the ridge, "compute" at or right of it."""
    return "memory" if flops / nbytes < ridge(peak, bandwidth) else "compute"


def compute_bound_on(flops: float, nbytes: float, gpus: dict[str, list[float]]) -> set[str]:
    """Return the names of the GPUs, from {name: [peak, bandwidth]}, on which an operation is compute-bound."""
    return {name for name, (peak, bandwidth) in gpus.items() if bound(flops, nbytes, peak, bandwidth) == "compute"}


def fp16_gpus() -> dict[str, list[float]]:
    """Return {name: [peak, bandwidth]} of the device list: dense fp16 in FLOP/s, memory in bytes/s."""
    return {name: [device.peak_flops["fp16"], device.memory_bandwidth] for name, device in DEVICES.items()}


def products_and_gpus(seed: int, count: int) -> list[tuple]:
    """Return (flops, nbytes, gpus) of matmuls from small to large, on made-up GPUs."""
    draw = random.Random(seed + (cases.draw << 16))
    found = []
    for number in range(count):
        size = draw.randrange(64, 256) * 2**number
        gpus = {
            f"GPU {letter}": [draw.randrange(20, 2000) * 1e12, draw.randrange(200, 8000) * 1e9] for letter in "ABCDE"
        }
        found.append((*product_work(size, size, size, 2), gpus))
    return found
