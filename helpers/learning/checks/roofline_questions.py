"""Costs and limits of operations for the roofline exercise, as functions of plain values."""

import random
from collections.abc import Callable

from helpers.instruments.devices import DEVICES
from helpers.instruments.operations import OPERATIONS
from helpers.learning.checks import cases


def work_of(operation: str) -> Callable:
    """Return a function (rows, columns, itemsize, fused=True) -> (FLOP, bytes) for one of
    helpers.instruments.operations."""

    def work(rows: int, columns: int, itemsize: int, fused: bool = True) -> tuple[float, float]:
        versions = OPERATIONS[operation](rows, columns, itemsize)
        launches = [launch.work for launch in (versions.fused if fused else versions.unfused)]
        return sum(each.flops for each in launches), sum(each.bytes for each in launches)

    return work


def product_work(rows: int, inner: int, columns: int, itemsize: int) -> tuple[int, int]:
    """Return (FLOP, bytes) of (rows, inner) @ (inner, columns), where each matrix moves once."""
    elements = rows * inner + inner * columns + rows * columns
    return 2 * rows * inner * columns, elements * itemsize


def ridge(peak: float, bandwidth: float) -> float:
    """Return the ridge in FLOP/byte, from FLOP/s and bytes/s."""
    return peak / bandwidth


def bound(flops: float, nbytes: float, peak: float, bandwidth: float) -> str:
    """Return an operation's limit: "memory" left of the ridge, "compute" at or right of it."""
    return "memory" if flops / nbytes < ridge(peak, bandwidth) else "compute"


def compute_bound_on(flops: float, nbytes: float, gpus: dict[str, list[float]]) -> set[str]:
    """Return the names of the GPUs, {name: [peak, bandwidth]}, that leave an operation compute-bound."""
    return {name for name, (peak, bandwidth) in gpus.items() if bound(flops, nbytes, peak, bandwidth) == "compute"}


def seen_from_the_ridge(flops: float, nbytes: float, peak: float, bandwidth: float) -> tuple[str, str]:
    """Return an operation's intensity and the ridge in words, and where to look if its limit is wrong."""
    intensity, there = flops / nbytes, ridge(peak, bandwidth)
    if intensity == there:
        return (
            f"its intensity is exactly the ridge, {there:.4g} FLOP/byte",
            "what your comparison gives for equal numbers",
        )
    said = f"its intensity is {intensity:.4g} FLOP/byte, and the ridge {there:.4g}"
    return said, "which side of the ridge it is on"


def seen_on_one(name: str, flops: float, nbytes: float, gpus: dict[str, list[float]]) -> tuple[str, str]:
    """Return the same for one GPU of several; for an unknown name, list the GPUs."""
    if name not in gpus:
        return f"the GPUs are {', '.join(gpus)}", "where your function takes its names from"
    return seen_from_the_ridge(flops, nbytes, *gpus[name])


def memory_bound_on(flops: float, nbytes: float, gpus: dict[str, list[float]]) -> set[str]:
    """Return the names of the other GPUs: a mistake to recognise."""
    return gpus.keys() - compute_bound_on(flops, nbytes, gpus)


def fp16_gpus() -> dict[str, list[float]]:
    """Return the course's GPUs as {name: [peak, bandwidth]}: dense fp16 in FLOP/s, and memory in bytes/s."""
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
