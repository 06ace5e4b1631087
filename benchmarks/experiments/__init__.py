"""GPU experiments whose recorded results lessons show on machines without a GPU, one module per lesson.
benchmarks/run.py runs and records them.

Each module has the kernels that its lesson does not define itself, and EXPERIMENTS: name in the record -> a function
that returns nested dicts of Timing or numbers. Most are `timed`: named calls, timed together at one or several sizes.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable

from helpers.instruments.timing import Timing, benchmark_together

CLOCKS = {"gpu": {}, "call": {"launches": True}}  # the GPU's own time; a call in a sequence, by the host's clock


def timed(calls: Callable[..., dict], sizes: Iterable | None = None, *, clocks: Iterable[str] = (), **options):
    """Return a function that times calls together: the experiment.

    Args:
        calls: calls() -> {key: call}, or calls(size) if there are sizes; a tuple as key nests, outermost first.
        sizes: each is timed in its own run, and is the outermost key of the result.
        clocks: names in CLOCKS, which become keys of the result; by default, only the GPU's own time.
        options: of benchmark_together.
    """

    def once(functions: dict) -> dict:
        if clocks:
            return {clock: nested(benchmark_together(functions, **CLOCKS[clock], **options)) for clock in clocks}
        return nested(benchmark_together(functions, **options))

    def experiment() -> dict:
        return once(calls()) if sizes is None else {size: once(calls(size)) for size in sizes}

    return experiment


def nested(times: dict[object, Timing]) -> dict:
    """Return the same, with one nested dict per part of a key."""
    found = {}
    for key, time in times.items():
        *outer, last = key if isinstance(key, tuple) else (key,)
        functools.reduce(lambda inner, part: inner.setdefault(part, {}), outer, found)[last] = time
    return found


def experiments() -> dict[str, Callable[[], dict]]:
    """Return name -> function of every lesson's experiments."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        found |= importlib.import_module(f"{__name__}.{module.name}").EXPERIMENTS
    return found
