"""Time calls: medians with their spread, by CUDA events on a GPU, by the host's clock on a CPU.

On a GPU every run starts with a cold L2: the timer reads a buffer of twice its size, then writes as many bytes as the
timed call returns. So no call finds its inputs in L2, and each writes back as many dirty lines as it leaves for the
next: a call that only reads does not wait for another's writes, and no call writes for free. Work under 100 us is
captured in a CUDA graph with several calls per replay (or queued several calls at a time, if it cannot be captured), so
neither the gaps between launches nor the timer's own cost counts. Functions measured together alternate, so clock drift
affects all of them. `launches=True` measures the caller's cost per call instead, Python and launch included, over a row
of calls.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils._pytree import tree_leaves
from tqdm.auto import tqdm

from helpers.instruments.devices import last_level_cache

GRAPH_BELOW = 100e-6  # seconds
CALLS_PER_GRAPH = 10
CALLS_PER_ROW = 100
CYCLES_PER_SECOND = 2e9  # of current GPUs, about
QUEUEING_SECONDS = 1e-4, 5e-3  # GPU wait while work is queued: minimum, and initial maximum
CPU_CACHE = 64 * 2**20  # bytes: more than the last-level cache of common laptops; or twice this machine's


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median of `runs` runs, and the 10th and 90th percentiles."""

    median: float
    low: float
    high: float
    runs: int

    def __repr__(self):
        if self.median <= 0:  # a difference between two times, each with its noise
            least = max(abs(self.low), abs(self.high))
            return f"too short to time: within the timer's noise of {_readable(least)} ({self.runs} runs)"
        return f"{_readable(self.median)} ({_readable(self.low)} to {_readable(self.high)}, {self.runs} runs)"


def _readable(seconds: float) -> str:
    for unit, scale in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= 0.9995 * scale:  # three digits of it are rounded up to 1
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def benchmark(fn: Callable, *args, **options) -> Timing:
    """Time `fn(*args)`, with the options and errors of `benchmark_together`."""
    _check_callable(fn)
    return benchmark_together({"it": lambda: fn(*args)}, **options)["it"]


def benchmark_together(
    functions: dict[str, Callable], runs: int = 50, cold: bool = True, launches: bool = False, graphs: bool = True
) -> dict[str, Timing]:
    """Time several functions without arguments, taking turns.

    Args:
        functions: name -> function. Each is called a few times first to compile and warm up. On a GPU only the current
            stream is timed: work on another counts if the function makes the current stream wait for it. Otherwise its
            time is missing, and nothing reports that. A function should return the tensors that it writes: the writes
            of others, up to the size of L2, are not counted.
        runs: measurements of each, at least 3.
        cold: start each run with a cold L2 (on a CPU: cold caches); with `launches`, caches stay as calls leave them.
        graphs: False for GPU work that a CUDA graph cannot capture, such as a backward pass.
        launches: time rows of 100 calls on the host until their work is done, and report the time per call.

    Returns:
        name -> Timing, in seconds. A progress bar appears after two seconds.

    Raises:
        TypeError: a function is not callable, or no dict of them.
        ValueError: fewer than 3 runs, or not a whole number of them.
    """
    if not isinstance(functions, Mapping):
        raise TypeError(f"benchmark_together takes name -> function, got {type(functions).__name__}")
    for function in functions.values():
        _check_callable(function)
    if not isinstance(runs, int) or runs < 3:
        raise ValueError(f"benchmark takes a whole number of at least 3 runs, got {runs!r}: fewer have no median")

    on_gpu = torch.cuda.is_available()
    if launches:
        samplers = {name: _row(function) for name, function in functions.items()}
    elif on_gpu:
        samplers = {name: _gpu_sampler(function, cold, graphs) for name, function in functions.items()}
    else:
        samplers = {name: _cpu_sampler(function, cold) for name, function in functions.items()}

    samples = {name: [] for name in functions}
    with _no_garbage_collection():
        for _ in tqdm(range(runs), desc="timing", unit="run", delay=2, leave=False):
            for name, sample in samplers.items():
                samples[name].append(sample())
    return {name: _summary(values) for name, values in samples.items()}


@contextmanager
def _no_garbage_collection():
    """Disable garbage collection, as timeit does: a collection between queued backward passes counted as GPU time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check_callable(function) -> None:
    if not callable(function):
        raise TypeError(f"benchmark takes a function, got {type(function).__name__}: pass it without calling it")


def _summary(samples: list[float]) -> Timing:
    deciles = statistics.quantiles(samples, n=10, method="inclusive")
    return Timing(statistics.median(samples), deciles[0], deciles[-1], len(samples))


def _row(function: Callable) -> Callable[[], float]:
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(3):
        function()

    def sample() -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(CALLS_PER_ROW):
            function()
        synchronize()
        return (time.perf_counter() - start) / CALLS_PER_ROW

    return sample


def _cpu_sampler(function: Callable, cold: bool) -> Callable[[], float]:
    cache = torch.empty(max(CPU_CACHE, 2 * last_level_cache()) if cold else 0, dtype=torch.uint8)
    function()

    def sample() -> float:
        cache.fill_(1)
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return sample


def _seconds_to_queue(work: Callable) -> float:
    """Return how long the GPU should wait while Python queues the work: twice the current queueing time, and a
    little."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    least, most = QUEUEING_SECONDS
    return min(most, least + 2 * (time.perf_counter() - start))


def _queued(work: Callable, seconds: float, before: Callable = lambda: None) -> float:
    """Time the GPU alone: after `before` it waits that many seconds while Python queues the work.

    If it wakes before all work is queued, gaps would be timed too, so it waits longer. Work that itself waits for the
    GPU can never be queued in time, and is timed as it is.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for longer in (1, 4, 16):
        before()
        torch.cuda._sleep(round(longer * seconds * CYCLES_PER_SECOND))
        start.record()
        work()
        end.record()
        in_time = not start.query()
        end.synchronize()
        if in_time:
            break
    return start.elapsed_time(end) * 1e-3


def _bytes_of(result) -> int:
    """Return the bytes of all tensors in a function's result, each counted once."""
    tensors = {each.data_ptr(): each for each in tree_leaves(result) if isinstance(each, torch.Tensor)}
    return sum(each.numel() * each.itemsize for each in tensors.values())


def _gpu_sampler(function: Callable, cold: bool, graphs: bool) -> Callable[[], float]:
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    others = torch.zeros(2 * l2_bytes // 4 if cold else 0, device="cuda")
    left = torch.empty(min(l2_bytes, _bytes_of(function())) if cold else 0, dtype=torch.uint8, device="cuda")

    def flush() -> None:
        others.sum()
        left.fill_(1)

    for _ in range(5):
        flush()
        function()

    once = _seconds_to_queue(function)

    def one_call() -> float:
        return _queued(function, once, before=flush)

    if statistics.median(one_call() for _ in range(5)) >= GRAPH_BELOW:
        return one_call

    def flush_and_call() -> None:
        flush()
        function()

    def several(work: Callable) -> Callable[[], float]:
        queue = _graph(work).replay if graphs else lambda: [work() for _ in range(CALLS_PER_GRAPH)]
        return partial(_queued, queue, _seconds_to_queue(queue))

    with_calls, without = several(flush_and_call), several(flush)

    def sample() -> float:
        return (with_calls() - without()) / CALLS_PER_GRAPH

    sample.memory = others, left  # a graph doesn't keep its tensors alive: others would get their memory
    return sample


def _graph(function: Callable) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS_PER_GRAPH):
            function()
    graph.replay()
    return graph
