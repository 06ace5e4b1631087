"""The timer's arithmetic and errors; that it agrees with the GPU's own counters is recorded elsewhere."""

import gc
import itertools
import time

import pytest
import torch

from helpers.instruments import timing as timing_module
from helpers.instruments.timing import Timing, _bytes_of, _gpu_sampler, _queued, benchmark, benchmark_together


@pytest.mark.skipif(torch.cuda.is_available(), reason="sleeping on the host takes no GPU time")
def test_it_measures_a_known_time():
    timing = benchmark(time.sleep, 0.01, runs=5)
    assert 0.01 <= timing.low <= timing.median <= timing.high
    assert timing.low < 1  # in seconds, however busy the machine is
    assert timing.runs == 5


def test_functions_take_turns():
    order = []
    benchmark_together({name: lambda name=name: order.append(name) for name in "ab"}, runs=4, graphs=False)
    turns = [name for name, _ in itertools.groupby(order)]  # on a GPU each makes several calls in its turn
    assert turns[-8:] == ["a", "b"] * 4


def test_rows_of_calls_count_every_call():
    calls = []
    benchmark(lambda: calls.append(1), runs=3, launches=True)
    assert len(calls) == 3 + 3 * 100


def test_nothing_is_collected_while_it_measures():
    found = []
    benchmark(lambda: found.append(gc.isenabled()), runs=3, launches=True)
    assert not any(found[3:])
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("timing", "text"),
    [
        (Timing(1.5, 1.0, 2.0, 7), "1.5 s (1 s to 2 s, 7 runs)"),
        (Timing(2.8e-4, 1e-4, 3e-3, 50), "280 us (100 us to 3 ms, 50 runs)"),
        (Timing(5e-9, 0.0, 1e-6, 3), "5 ns (0 ns to 1 us, 3 runs)"),
        (Timing(999.96e-6, 999.4e-6, 1e-3, 3), "1 ms (999 us to 1 ms, 3 runs)"),
        (Timing(-2e-8, -1e-7, 3e-8, 50), "too short to time: within the timer's noise of 100 ns (50 runs)"),
        (Timing(0.0, 0.0, 0.0, 50), "too short to time: within the timer's noise of 0 ns (50 runs)"),
    ],
)
def test_text(timing, text):
    assert repr(timing) == text


def test_bad_input():
    with pytest.raises(TypeError, match="benchmark takes a function, got Tensor: pass it without"):
        benchmark(torch.ones(3))
    with pytest.raises(ValueError, match="at least 3 runs, got 2"):
        benchmark(time.sleep, 0, runs=2)
    for runs in (3.5, float("nan"), "5", True):
        with pytest.raises(ValueError, match="whole number of at least 3 runs, got"):
            benchmark(time.sleep, 0, runs=runs)
    with pytest.raises(TypeError, match="takes name -> function, got list"):
        benchmark_together([time.sleep])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has a cache of its own")
def test_caches_are_cold_on_a_machine_with_large_ones(monkeypatch):
    sizes = []
    empty = torch.empty
    monkeypatch.setattr(timing_module, "last_level_cache", lambda: 80 * 2**20)
    monkeypatch.setattr(torch, "empty", lambda size, **options: sizes.append(size) or empty(size, **options))
    benchmark(time.sleep, 0, runs=3)
    assert sizes == [160 * 2**20]


def test_bytes_left_behind():
    x = torch.ones(3, 4)
    assert _bytes_of(None) == 0
    assert _bytes_of((x, [x, x.half()], {"a": torch.ones(5, dtype=torch.uint8)}, 7)) == 48 + 24 + 5
    assert _bytes_of(torch.empty(0)) == 0


@pytest.mark.parametrize(("late", "turns"), [(0, 1), (1, 2), (2, 3), (9, 3)])
def test_a_gpu_that_woke_too_early_waits_longer_and_starts_cold_again(monkeypatch, late, turns):
    done = []

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            pass

        def query(self):
            return done.count("work") <= late

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 7.0  # milliseconds

    monkeypatch.setattr(timing_module.torch.cuda, "Event", Event)
    monkeypatch.setattr(timing_module.torch.cuda, "_sleep", done.append, raising=False)
    seconds = _queued(lambda: done.append("work"), 1e-4, before=lambda: done.append("flush"))
    assert done == [each for cycles in (200_000, 800_000, 3_200_000)[:turns] for each in ("flush", cycles, "work")]
    assert seconds == 7e-3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU's L2")
def test_l2_is_cold():
    """What a copy finds in L2 it need not fetch."""
    x = torch.ones(2**22, device="cuda")  # 16 MB
    y = torch.empty_like(x)
    cold, warm = (benchmark(y.copy_, x, cold=cold).median for cold in (True, False))
    assert cold > 1.3 * warm


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU's memory")
def test_it_writes_to_memory_of_its_own():
    """CUDA graphs once went on writing to a buffer that had been given away."""
    x = torch.ones(2**20, dtype=torch.uint8, device="cuda")
    sample = _gpu_sampler(lambda: x * 2, cold=True, graphs=True)
    others = [torch.zeros(2**20, dtype=torch.uint8, device="cuda") for _ in range(200)]
    sample()
    assert not any(each.any() for each in others)
