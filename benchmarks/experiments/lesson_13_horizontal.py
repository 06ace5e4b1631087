"""Lesson 13: independent work one launch at a time, on streams, and in one launch; one step of AdamW over many tensors;
compile time of one large kernel and of several small ones.

Matmuls: GROUPS times x @ weight, with all groups' rows of x in one tensor, so that every version reads the same memory.
They also run as one batched matmul; unequal groups are padded to the largest for it. Loops: GROUPS matrix-vector
products, each a sum over a row, the kind of loop that Inductor's combo kernels merge; Inductor leaves matmuls to the
library. Convolutions: GROUPS of them, and one with groups.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton import knobs

import kernels
from benchmarks.experiments import lesson_18, timed
from helpers.instruments import compile_for
from helpers.instruments.timing import Timing, benchmark_together
from kernels.tiled.decoder_layer import OP

RECORD = "h100_80gb_hbm3.json"  # where these are recorded, in benchmarks/results
GROUPS = 8
K, N = 1024, 1024
ROWS = {  # of each group
    "small": (128,) * GROUPS,
    "unequal": (1024, 512, 256, 128, 64, 32, 16, 16),
    "large": (8192,) * GROUPS,
}
VECTORS = {"small": 512, "large": 8192}  # square matrices, in fp32
CHANNELS, SIDE = 64, {"small": 28, "large": 224}  # per group; images of so many pixels squared
SMALL = [(256, 64), (64,), (512,), (128, 128), (1024,)] * 60  # 300 parameters
# GPT-2's, small: 124 million elements in 148 parameters
LARGE = [(50257, 768), (1024, 768), (768,), (768,)] + 12 * [
    *((768,), (768,), (2304, 768), (2304,), (768, 768), (768,)),
    *((768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)),
]
TILE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}


@triton.jit
def grouped_kernel(
    x_ptr,  # (rows of all groups, k)
    weight_ptr,  # (groups, k, n)
    y_ptr,  # (rows of all groups, n)
    tile_ptr,  # (tiles, 3) int32: group, first row, the group's end
    k,
    n,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    entry = tile_ptr + 3 * tl.program_id(1)
    group, first, end = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    row = first + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    weight_ptr += group.to(tl.int64) * k * n
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + row * k + depth[None, :], mask=(row < end) & (depth[None, :] < k), other=0.0)
        weight = tl.load(weight_ptr + depth[:, None] * n + col, mask=(depth[:, None] < k) & (col < n), other=0.0)
        acc = tl.dot(x, weight, acc)
    tl.store(y_ptr + row * n + col, acc.to(y_ptr.dtype.element_ty), mask=(row < end) & (col < n))


def tiles_of(rows: tuple[int, ...], device: str = "cpu") -> Tensor:
    """Return the kernel's table: one line per tile of BLOCK_M rows, which never spans two groups."""
    found, begin = [], 0
    for group, count in enumerate(rows):
        found += [(group, begin + first, begin + count) for first in range(0, count, TILE["BLOCK_M"])]
        begin += count
    return torch.tensor(found, dtype=torch.int32, device=device)


def grouped(x: Tensor, weight: Tensor, tiles: Tensor, y: Tensor) -> Tensor:
    """Compute all groups' products in one launch."""
    k, n = weight.shape[1:]
    grouped_kernel[(triton.cdiv(n, TILE["BLOCK_N"]), len(tiles))](x, weight, y, tiles, k, n, num_warps=8, **TILE)
    return y


def on_streams(calls: list[Callable[[], Tensor]], streams: list[torch.cuda.Stream]) -> list[Tensor]:
    """Run each call on its own stream, after all work queued before and before all work queued later."""
    current = torch.cuda.current_stream()
    results = []
    for call, stream in zip(calls, streams, strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            results.append(call())
    for stream in streams:
        current.wait_stream(stream)
    return results


def sequence_and_streams(calls: list[Callable[[], Tensor]]) -> dict[str, Callable]:
    found = {"one after another": lambda: [call() for call in calls]}
    if torch.cuda.is_available():
        found["streams"] = partial(on_streams, calls, [torch.cuda.Stream() for _ in calls])
    return found


def only_good(functions: dict[str, Callable]) -> dict[str, Callable]:
    """Return the functions that run; print and leave out ways that this PyTorch or GPU does not support."""
    good = {}
    for name, function in functions.items():
        try:
            function()
            good[name] = function
        except Exception as error:
            print(f"{name} is left out: {type(error).__name__}: {str(error).splitlines()[:1]}")
    return good


def products(rows: tuple[int, ...], k: int = K, n: int = N, device: str = "cuda") -> dict[str, Callable]:
    """Return way -> call of all products, in bf16; results are (rows of all groups, n), except the padded one."""
    options = {"dtype": torch.bfloat16, "device": device}
    x, weight = torch.randn(sum(rows), k, **options), torch.randn(len(rows), k, n, **options) / k**0.5
    y = torch.empty(sum(rows), n, **options)
    parts, results = x.split(rows), y.split(rows)
    calls = [partial(torch.mm, one, each, out=to) for one, each, to in zip(parts, weight, results, strict=True)]
    padded = torch.zeros(len(rows), max(rows), k, **options)
    for group, part in enumerate(parts):
        padded[group, : len(part)] = part
    to, tiles = torch.empty(len(rows), max(rows), n, **options), tiles_of(rows, device)
    ends = torch.tensor(rows, device=device).cumsum(0).to(torch.int32)
    transposed = weight.transpose(1, 2).contiguous().transpose(1, 2)  # as grouped_mm prefers it
    functions = sequence_and_streams(calls) | {
        "one batched product": lambda: torch.bmm(padded, weight, out=to),
        "grouped_mm": lambda: functional.grouped_mm(x, transposed, offs=ends),
        "one grouped kernel": lambda: grouped(x, weight, tiles, y),
    }
    return only_good(functions)


def vector_sums(matrices: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    """Multiply each matrix by its vector, in a loop that Inductor compiles and merges."""
    return [(matrix * vector).sum(1) for matrix, vector in zip(matrices, vectors, strict=True)]


def vectors(side: int, device: str = "cuda") -> dict[str, Callable]:
    """Return way -> call of GROUPS matrix-vector products."""
    stacked, vector = torch.randn(GROUPS, side, side, device=device), torch.randn(GROUPS, side, device=device)
    matrices, given = list(stacked), list(vector)
    to = torch.empty(GROUPS, side, device=device)
    calls = [partial(torch.mv, *pair, out=y) for *pair, y in zip(matrices, given, to, strict=True)]
    apart = torch.compile(vector_sums, dynamic=False, options={"combo_kernels": False})
    anyhow = {"combo_kernels": True}
    if hasattr(torch._inductor.config, "combo_kernel_peak_memory_pct_threshold"):
        anyhow["combo_kernel_peak_memory_pct_threshold"] = None
    torch._dynamo.reset()
    combo = torch.compile(partial(vector_sums), dynamic=False, options=anyhow)
    functions = sequence_and_streams(calls) | {
        "one batched product": lambda: torch.bmm(stacked, vector[:, :, None], out=to[:, :, None]),
        "torch.compile": lambda: apart(matrices, given),
        "combo kernel": lambda: combo(matrices, given),
    }
    return only_good(functions)


def convolutions(side: int, device: str = "cuda") -> dict[str, Callable]:
    """Return way -> call of GROUPS convolutions of 3 x 3 taps on separate images, channels last, in bf16."""
    options = {"dtype": torch.bfloat16, "device": device}
    last = {"memory_format": torch.channels_last}
    images = [torch.randn(1, CHANNELS, side, side, **options).to(**last) for _ in range(GROUPS)]
    weights = [(torch.randn(CHANNELS, CHANNELS, 3, 3, **options) / (9 * CHANNELS) ** 0.5).to(**last) for _ in images]
    together, weight = torch.cat(images, 1).to(**last), torch.cat(weights).to(**last)
    calls = [partial(functional.conv2d, x, w, padding=1) for x, w in zip(images, weights, strict=True)]
    functions = sequence_and_streams(calls) | {
        "one grouped convolution": lambda: functional.conv2d(together, weight, padding=1, groups=GROUPS),
    }
    return only_good(functions)


def adamw_step(shapes: list[tuple[int, ...]]) -> dict[str, dict[str, Timing]]:
    """Time a step of AdamW over parameters of these shapes in fp32, by each implementation."""
    params = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
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
    clocks = {"gpu": benchmark_together(ways, runs=20), "call": benchmark_together(ways, runs=10, launches=True)}
    return {way: {clock: of[way] for clock, of in clocks.items()} for way in ways}


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
    """Return way -> median, minimum and maximum of `runs` times, in seconds, to compile for an H100, uncached: a
    decoder layer's kernel, and its steps' kernels, one after another."""
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


def of_sizes(calls: Callable, sizes: dict) -> Callable:
    return timed(lambda size: calls(sizes[size]), sizes, clocks=("gpu", "call"), runs=12)


EXPERIMENTS = {
    "horizontal_products": of_sizes(products, ROWS),
    "horizontal_vectors": of_sizes(vectors, VECTORS),
    "horizontal_convolutions": of_sizes(convolutions, SIDE),
    "adamw_small": partial(adamw_step, SMALL),
    "adamw_large": partial(adamw_step, LARGE),
    "compile_seconds": compile_seconds,
}
