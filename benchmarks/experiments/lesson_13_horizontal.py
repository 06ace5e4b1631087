"""Lesson 13: independent operations side by side, small tensors in one optimizer step, and what compiling costs.

Horizontal fusion puts operations that do not depend on each other into one launch. Timed here: linear layers on inputs
of their own, convolutions, and RMSNorms, each one after the other, on a stream each, and as one kernel.
"""

import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from triton import knobs

import kernels
from benchmarks.experiments import lesson_18
from helpers.instruments import compile_for
from helpers.instruments.timing import Timing, benchmark_together
from kernels.tiled.decoder_layer import OP

RECORD = "h100_80gb_hbm3.json"  # where these are recorded, in benchmarks/results
COUNT = 8  # independent operations
LINEAR = {"64 rows": (64, 1024), "4096 rows": (4096, 1024)}  # rows; columns of x and of the result
IMAGES = (4, 64, 28, 28)  # of each convolution, 3 x 3, 64 filters
NORMS = (128, 1024)  # rows, columns
SMALL = [(256, 64), (64,), (512,), (128, 128), (1024,)] * 60  # 300 parameters


def on_streams(calls: list[Callable[[], Tensor]]) -> Callable[[], list[Tensor]]:
    """Return a call of all, each on a stream of its own, joined at the end."""
    streams = [torch.cuda.Stream() for _ in calls]

    def together() -> list[Tensor]:
        now, found = torch.cuda.current_stream(), []
        for stream, call in zip(streams, calls, strict=True):
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                found.append(call())
        for stream in streams:
            now.wait_stream(stream)
        return found

    return together


def timed(ways: dict[str, Callable[[], object]], calls: bool = True) -> dict[str, dict[str, Timing]]:
    """Way -> "gpu": the GPU's time, cold L2; "call": the caller's, in a row of calls."""
    with torch.no_grad():
        clocks = {"gpu": benchmark_together(ways, runs=20)}
        if calls:
            clocks["call"] = benchmark_together(ways, runs=10, launches=True)
    return {way: {clock: of[way] for clock, of in clocks.items()} for way in ways}


def linears(rows: int, cols: int) -> dict[str, Callable[[], object]]:
    """COUNT linear layers in bf16, with inputs and weights of their own."""
    x, weight = (torch.randn(COUNT, size, cols, dtype=torch.bfloat16, device="cuda") for size in (rows, cols))
    each = [lambda i=i: functional.linear(x[i], weight[i]) for i in range(COUNT)]
    return {
        "one by one": lambda: [call() for call in each],
        "streams": on_streams(each),
        "one kernel": lambda: torch.bmm(x, weight.mT),
    }


def convolutions() -> dict[str, Callable[[], object]]:
    """COUNT 3 x 3 convolutions in bf16, channels last; as one kernel: with groups, on concatenated channels."""
    options = {"dtype": torch.bfloat16, "device": "cuda"}
    channels, last = IMAGES[1], torch.channels_last
    x = [torch.randn(IMAGES, **options).to(memory_format=last) for _ in range(COUNT)]
    weight = [torch.randn(channels, channels, 3, 3, **options).to(memory_format=last) for _ in range(COUNT)]
    all_x = torch.cat(x, dim=1).to(memory_format=last)
    all_weights = torch.cat(weight).to(memory_format=last)
    each = [lambda i=i: functional.conv2d(x[i], weight[i], padding=1) for i in range(COUNT)]
    return {
        "one by one": lambda: [call() for call in each],
        "streams": on_streams(each),
        "one kernel": lambda: functional.conv2d(all_x, all_weights, padding=1, groups=COUNT),
    }


def norms() -> dict[str, Callable[[], object]]:
    """COUNT RMSNorms in bf16 by torch.compile: a kernel each, and as Inductor's combo kernel."""
    xs = [torch.randn(NORMS, dtype=torch.bfloat16, device="cuda") for _ in range(COUNT)]
    weights = [torch.randn(NORMS[1], dtype=torch.bfloat16, device="cuda") for _ in range(COUNT)]

    def separate(*given: Tensor) -> list[Tensor]:
        return [functional.rms_norm(x, x.shape[-1:], w) for x, w in zip(given[:COUNT], given[COUNT:], strict=True)]

    ways = {"one by one": lambda: separate(*xs, *weights)}
    torch._dynamo.reset()
    for way, combo in (("compiled", False), ("one kernel", True)):
        # As options, not by patching the configuration: else both ways are one entry of Dynamo's cache.
        made = torch.compile(separate, dynamic=False, options={"combo_kernels": combo})
        ways[way] = lambda made=made: made(*xs, *weights)
    each = [lambda x=x, w=w: functional.rms_norm(x, x.shape[-1:], w) for x, w in zip(xs, weights, strict=True)]
    return ways | {"streams": on_streams(each)}


def horizontal() -> dict[str, dict]:
    """Operations -> way -> clock -> Timing."""
    found = {f"{COUNT} linear layers, {name}": timed(linears(*sizes)) for name, sizes in LINEAR.items()}
    found[f"{COUNT} convolutions"] = timed(convolutions())
    found[f"{COUNT} RMSNorms"] = timed(norms())
    return found


def small_parameters() -> dict[str, dict[str, Timing]]:
    """A step of AdamW over the 300 tensors of SMALL in fp32, by each implementation."""
    params = [torch.randn(shape, device="cuda", requires_grad=True) for shape in SMALL]
    for each in params:
        each.grad = torch.randn_like(each)
    grads = [each.grad for each in params]
    state = [[torch.zeros_like(each) for each in params] for _ in range(2)]
    data = [each.detach() for each in params]
    step = torch.ones((), device="cuda")
    fused = torch.optim.AdamW(params, fused=True, capturable=True)
    foreach = torch.optim.AdamW(params, foreach=True, capturable=True)
    ways = {
        "ours": lambda: kernels.adamw(data, grads, *state, step.reshape(1)),
        "torch.optim, fused": lambda: fused.step(),
        "torch.optim, foreach": lambda: foreach.step(),
    }
    return timed(ways)


def layer_kernels(width: int, heads: int, key_heads: int, hidden: int, keys: int) -> list[tuple]:
    """Return (kernel, arguments, options) of lesson 18's kernel per step, for a layer of these sizes."""

    def of(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    dim, options = 64, {"PDL": False, "LATE": False, "num_warps": 8}
    tiles = {"BLOCK_N": lesson_18.BLOCK_N, "BLOCK_K": lesson_18.BLOCK_K, **options}
    x, found, seen, between = of(width), of((heads + 2 * key_heads) * dim), of(heads * dim), of(hidden)
    rows, eps, cache = lesson_18.rows_kernel, lesson_18.EPS, of(keys, key_heads, dim)

    def product(weight, other, given, residual, norm, y, first=None, second=None) -> tuple:
        return rows, (weight, other, given, residual, norm, y, first, second, *weight.shape, eps), tiles

    return [
        product(of(len(found), width), None, x, x, x, found),
        (
            lesson_18.one_query_kernel,
            (found, cache, cache, seen, heads, key_heads, keys, dim**-0.5),
            {"D": dim, "BLOCK_KEYS": 64, **options},
        ),
        product(of(width, len(seen)), None, seen, None, None, x, x, x),
        product(of(hidden, width), of(hidden, width), x, None, x, between),
        product(of(width, hidden), None, between, None, None, x),
    ]


def compile_seconds(runs: int = 5) -> dict[str, dict[str, float]]:
    """Way -> middle, lowest and highest of `runs` times, in seconds, to compile for an H100, uncached: one decoder
    layer's kernel, and those of its steps, one after another."""
    shape, found = lesson_18.SHAPES["small"], {}
    ways = {"one kernel": [(OP.kernel, *OP.compile_arguments(*shape, dtype=torch.bfloat16))]}
    ways["a kernel per step"] = layer_kernels(*shape)
    taken = {way: [] for way in ways}
    for _ in range(runs):
        for way, those in ways.items():
            with tempfile.TemporaryDirectory() as folder, knobs.cache.scope():
                knobs.cache.dir = folder
                start = time.perf_counter()
                for kernel, given, options in those:
                    compile_for(kernel, *given, device="H100", **options)
                taken[way].append(time.perf_counter() - start)
    for way, seconds in taken.items():
        found[way] = {"middle": statistics.median(seconds), "lowest": min(seconds), "highest": max(seconds)}
    return found


EXPERIMENTS = {
    "horizontal_fusion": horizontal,
    "adamw_small": small_parameters,
    "compile_seconds": compile_seconds,
}
