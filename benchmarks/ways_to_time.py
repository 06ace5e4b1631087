"""The same work timed in ways that give different answers: waiting or not, L2 cold or warm, clocks rested or not."""

import itertools
import statistics
import time
from collections.abc import Callable

import torch

from helpers.instruments.timing import Timing, benchmark_together
from kernels import add_gelu

SIZES = (2**20, 100_000_000)
MATRIX_SIZE = 8192
REST, LOAD = 3, 3  # seconds: idle before, and under load until the clocks have settled
FIRST = 5  # calls


def host_clock(function: Callable, wait: bool, runs: int = 30) -> Timing:
    """Seconds a call by the host's clock, waiting for the GPU to finish or not."""
    samples = []
    for _ in range(runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        if wait:
            torch.cuda.synchronize()
        samples.append(time.perf_counter() - start)
    return _timing(samples)


def _timing(samples: list[float]) -> Timing:
    deciles = statistics.quantiles(samples, n=10, method="inclusive")
    return Timing(statistics.median(samples), deciles[0], deciles[-1], len(samples))


def product_times() -> dict[str, Timing]:
    """A large bf16 product: its first calls after a rest, and its calls once the GPU has been busy for a while."""
    left, right = torch.randn(2, MATRIX_SIZE, MATRIX_SIZE, device="cuda", dtype=torch.bfloat16)
    left @ right
    torch.cuda.synchronize()
    time.sleep(REST)
    samples, began = [], time.perf_counter()
    while time.perf_counter() - began < LOAD:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(FIRST + 1)]
        events[0].record()
        for event in events[1:]:
            left @ right
            event.record()
        torch.cuda.synchronize()
        samples += [1e-3 * a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return {"first calls": _timing(samples[:FIRST]), "later calls": _timing(samples[-20 * FIRST :])}


def measure() -> dict:
    """Elements of add+GELU -> way -> time, and "product" -> when -> time."""
    found = {}
    for elements in SIZES:
        a, b = torch.randn(2, elements, device="cuda")

        def call(a=a, b=b):
            return add_gelu(a, b)

        call()
        found[elements] = {
            "host, not waited": host_clock(call, wait=False),
            "host, waited": host_clock(call, wait=True),
            "GPU, L2 warm": benchmark_together({"it": call}, cold=False)["it"],
            "GPU, L2 cold": benchmark_together({"it": call})["it"],
        }
    return found | {"product": product_times()}
