"""Compute launches, bytes and times of exercise 18's short layer, and typical mistakes, with plain values in and out.

Each dictionary is for one check's `unlike`: a mistake's name -> a function of the same arguments that makes it.
"""

import math
from collections.abc import Callable

ITEMSIZE = 4


def _matmuls(width: int, hidden: int) -> int:
    """Return the elements of two one-row matmuls: a weight, a vector in and a vector out each."""
    return 2 * (hidden * width + hidden + width)


COUNT_MISTAKES: dict[str, Callable] = {
    "one launch per line of code": lambda width, hidden: (4, ITEMSIZE * (11 * width + _matmuls(width, hidden))),
    "matmuls that only move their weights": lambda width, hidden: (6, ITEMSIZE * (11 * width + 2 * hidden * width)),
    "silu and the gate in one launch": lambda width, hidden: (5, ITEMSIZE * (9 * width + _matmuls(width, hidden))),
    "elements instead of bytes": lambda width, hidden: (6, 11 * width + _matmuls(width, hidden)),
}


def fused_layer(width: int, hidden: int) -> tuple[int, int]:
    """Return the layer's launches and bytes, with elementwise operations fused with each other or with a matmul."""
    return 3, ITEMSIZE * (6 * width + _matmuls(width, hidden))


def _without_s(width: int, hidden: int) -> tuple[int, int]:
    return 3, ITEMSIZE * (5 * width + _matmuls(width, hidden))


FUSED_MISTAKES: dict[str, Callable] = {
    "a last addition that doesn't read s": _without_s,
    "a first kernel that doesn't write s": _without_s,
    "a last addition that loads the matmul's result again": lambda width, hidden: (
        3,
        ITEMSIZE * (7 * width + _matmuls(width, hidden)),
    ),
    "the whole layer in one launch": lambda width, hidden: (1, fused_layer(width, hidden)[1]),
    "the last addition in a launch of its own": lambda width, hidden: (
        4,
        ITEMSIZE * (8 * width + _matmuls(width, hidden)),
    ),
    "elements instead of bytes": lambda width, hidden: (3, 6 * width + _matmuls(width, hidden)),
}


def microseconds(launches: int, nbytes: float, call: float, gap: float, bandwidth: float, graph: bool) -> float:
    """Return the time of the launches, from Python or as one CUDA graph."""
    moved = nbytes / bandwidth
    return call + launches * gap + moved if graph else max(launches * call, launches * gap + moved)


def _time(launched: Callable | None = None, graphed: Callable | None = None) -> Callable:
    """Return the time function with another formula, of (launches, time of the bytes, call, gap), for one of the
    two."""

    def time(launches, nbytes, call, gap, bandwidth, graph):
        other = graphed if graph else launched
        if other is None:
            return microseconds(launches, nbytes, call, gap, bandwidth, graph)
        return other(launches, nbytes / bandwidth, call, gap)

    return time


TIME_MISTAKES: dict[str, Callable] = {
    "call and work added where they overlap": _time(lambda k, moved, call, gap: k * (call + gap) + moved),
    "the calls and the bytes added": _time(lambda k, moved, call, gap: k * call + moved),
    "no gaps between launches from Python": _time(lambda k, moved, call, gap: max(k * call, moved)),
    "all the bytes in every launch": _time(lambda k, moved, call, gap: k * max(call, gap + moved)),
    "a graph without gaps": _time(None, lambda k, moved, call, gap: call + moved),
    "a graph with a single gap": _time(None, lambda k, moved, call, gap: call + gap + moved),
    "a graph without its call": _time(None, lambda k, moved, call, gap: k * gap + moved),
    "a graph with a call per launch": _time(None, lambda k, moved, call, gap: k * (call + gap) + moved),
    "a graph whose call overlaps with its work": _time(None, lambda k, moved, call, gap: max(call, k * gap + moved)),
}


def most_launches(budget: float, nbytes: float, call: float, gap: float, bandwidth: float) -> int:
    """Return the launches of the longest graph that takes at most `budget`."""
    return max(0, _gaps_left(budget, nbytes, call, gap, bandwidth))


def _gaps_left(budget, nbytes, call, gap, bandwidth, rounded: Callable = math.floor) -> int:
    return rounded((budget - call - nbytes / bandwidth) / gap)


BUDGET_MISTAKES: dict[str, Callable] = {
    "a launch counted that only fits in part": lambda *given: max(0, _gaps_left(*given, math.ceil)),
    "fewer than 0 launches": _gaps_left,
    "a graph without its call": lambda budget, nbytes, call, gap, bandwidth: max(
        0, _gaps_left(budget, nbytes, 0.0, gap, bandwidth)
    ),
    "a graph that moves no bytes": lambda budget, nbytes, call, gap, bandwidth: max(
        0, _gaps_left(budget, 0.0, call, gap, bandwidth)
    ),
    "a call per launch": lambda budget, nbytes, call, gap, bandwidth: max(
        0, _gaps_left(budget, nbytes, 0.0, call + gap, bandwidth)
    ),
}
