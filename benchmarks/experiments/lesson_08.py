"""Lesson 08: a linear layer with its epilogue, its steps, tiles, stages, orders and splits, and a feed-forward layer.

A linear layer with its epilogue, y = act(x W^T + bias), built up step by step: the kernels of lesson 08.

    one output      a program sums one element of y
    registers       a tile of y per program, its sums in registers; CUDA cores
    tiles           the same by tl.dot, on tensor cores; stages are its `num_stages`
    grouped         programs that run together make a block of tiles, not a strip
    descriptors     the copy engine (TMA) fetches the tiles
    persistent      one program per SM loops over tiles

and two that conflict with an epilogue: `parts` splits the sums along K, and `whole_rows` has an epilogue that needs a
whole row of y. x (M, K), W (N, K) and y (M, N) are row-major in one 16-bit dtype; bias is (N,).

The experiments time these steps, tiles, stages, orders and splits on a GPU, next to the library.

A feed-forward layer in one launch, which kernels/tiled/ffn.py rejects: y = gelu(x up^T) down^T.

A program owns BLOCK_H hidden values of BLOCK_M tokens. It computes them, keeps them in registers, multiplies them by
their columns of `down` and adds the products to every output of these tokens, in fp32 in memory. Each block of hidden
values has a program that adds. h is never written to memory, but hidden / BLOCK_H parts of y are.
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.experiments import timed
from benchmarks.hardware_counters import counters, profiled
from helpers.instruments.timing import Timing, benchmark_together
from kernels import CATALOGUE
from kernels.activations import ACTIVATIONS, activate
from kernels.arguments import multiprocessors
from kernels.rowwise.layer_norm import layer_norm
from kernels.tiled.ffn import ffn, ffn_reference
from kernels.tiled.linear_act import linear_act
from kernels.tuned.linear_descriptors import grouped_order

EPS = tl.constexpr(1e-5)


@triton.jit
def load_tile(ptr, row, col, rows, cols):
    at = row.to(tl.int64)[:, None] * cols + col[None, :]
    return tl.load(ptr + at, mask=(row < rows)[:, None] & (col < cols)[None, :], other=0.0)


@triton.jit
def finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT: tl.constexpr):
    s = acc + tl.load(bias_ptr + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    y = activate(s, ACT, y_ptr.dtype.element_ty).to(y_ptr.dtype.element_ty)
    at = row.to(tl.int64)[:, None] * N + col[None, :]
    tl.store(y_ptr + at, y, mask=(row < M)[:, None] & (col < N)[None, :])


@triton.jit
def output_kernel(x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, ACT: tl.constexpr, BLOCK_K: tl.constexpr):
    row, col = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    products = tl.zeros((BLOCK_K,), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + row * K + k, mask=k < K, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + col * K + k, mask=k < K, other=0.0).to(tl.float32)
        products += x * w
    s = tl.sum(products) + tl.load(bias_ptr + col).to(tl.float32)
    tl.store(y_ptr + row * N + col, activate(s, ACT).to(y_ptr.dtype.element_ty))


@triton.jit
def registers_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, ACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(K):
        x = tl.load(x_ptr + row.to(tl.int64) * K + k, mask=row < M, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + col.to(tl.int64) * K + k, mask=col < N, other=0.0).to(tl.float32)
        acc += x[:, None] * w[None, :]
    finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT)


@triton.jit
def tiles_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K,
    ACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = load_tile(x_ptr, row, k, M, K)
        w = load_tile(w_ptr, col, k, N, K)
        acc = tl.dot(x, w.T, acc)
    finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT)


@triton.jit
def grouped_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = grouped_order(tl.program_id(0), tiles_m, tiles_n, GROUP)
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = load_tile(x_ptr, row, k, M, K)
        w = load_tile(w_ptr, col, k, N, K)
        acc = tl.dot(x, w.T, acc)
    finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT)


@triton.jit
def one_tile(
    x_desc, w_desc, bias_ptr, y_desc, tile_m, tile_n, N, K,
    ACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        x = x_desc.load([row, start])
        w = w_desc.load([col, start])
        acc = tl.dot(x, w.T, acc)
    at = col + tl.arange(0, BLOCK_N)
    s = acc + tl.load(bias_ptr + at, mask=at < N, other=0.0).to(tl.float32)[None, :]
    y_desc.store([row, col], activate(s, ACT, y_desc.dtype).to(y_desc.dtype))


@triton.jit
def descriptors_kernel(
    x_desc, w_desc, bias_ptr, y_desc, M, N, K, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = grouped_order(tl.program_id(0), tiles_m, tiles_n, GROUP)
    one_tile(x_desc, w_desc, bias_ptr, y_desc, tile_m, tile_n, N, K, ACT, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit
def persistent_kernel(
    x_desc, w_desc, bias_ptr, y_desc, M, N, K, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped_order(tile, tiles_m, tiles_n, GROUP)
        one_tile(x_desc, w_desc, bias_ptr, y_desc, tile_m, tile_n, N, K, ACT, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit
def parts_kernel(
    x_ptr, w_ptr, parts_ptr, M, N, K,
    SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(2)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(part * BLOCK_K, K, SPLIT * BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        acc = tl.dot(load_tile(x_ptr, row, k, M, K), load_tile(w_ptr, col, k, N, K).T, acc)
    at = (part * M + row).to(tl.int64)[:, None] * N + col[None, :]
    tl.store(parts_ptr + at, acc, mask=(row < M)[:, None] & (col < N)[None, :])


@triton.jit
def join_kernel(parts_ptr, bias_ptr, y_ptr, M, N, ACT: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(bias_ptr + col, mask=col < N, other=0.0).to(tl.float32)
    for part in tl.static_range(SPLIT):
        s += tl.load(parts_ptr + (part * M + row) * N + col, mask=col < N, other=0.0)
    y = activate(s, ACT, y_ptr.dtype.element_ty).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * N + col, y, mask=col < N)


@triton.jit
def whole_rows_kernel(
    x_desc, w_desc, gamma_ptr, beta_ptr, y_desc, K,
    COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M
    acc = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
    for start in range(0, K, BLOCK_K):
        acc = tl.dot(x_desc.load([row, start]), w_desc.load([0, start]).T, acc)
    away = acc - (tl.sum(acc, 1) / COLUMNS)[:, None]
    scale = tl.rsqrt(tl.sum(away * away, 1) / COLUMNS + EPS)
    col = tl.arange(0, COLUMNS)
    gamma, beta = tl.load(gamma_ptr + col).to(tl.float32), tl.load(beta_ptr + col).to(tl.float32)
    y_desc.store([row, 0], (away * scale[:, None] * gamma[None, :] + beta[None, :]).to(y_desc.dtype))


def grid_of(kernel, m: int, n: int, programs: int, settings: dict) -> tuple[int, ...]:
    """Return a step's grid for an (m, n) result; `programs`: the maximum for a persistent kernel."""
    tiles = triton.cdiv(m, settings.get("BLOCK_M", 1)), triton.cdiv(n, settings.get("BLOCK_N", 1))
    if "GROUP" not in settings:
        return tiles
    # By name: lesson 08 defines the same kernel in a cell.
    every = tiles[0] * tiles[1]
    return (min(programs, every),) if kernel.fn.__name__ == "persistent_kernel" else (every,)


def arguments(kernel, x, w, bias, y, settings: dict) -> tuple:
    """Return a step's arguments: matrices as they are, or as tile descriptors if it takes these."""
    sizes = x.shape[0], w.shape[0], x.shape[1]
    if not kernel.arg_names[0].endswith("_desc"):
        return x, w, bias, y, *sizes
    tile_m, tile_n, tile_k = (settings[f"BLOCK_{name}"] for name in "MNK")
    describe = TensorDescriptor.from_tensor
    return describe(x, [tile_m, tile_k]), describe(w, [tile_n, tile_k]), bias, describe(y, [tile_m, tile_n]), *sizes


def run(kernel, x, w, bias, act: str = "gelu", **settings) -> torch.Tensor:
    """Compute act(x w^T + bias) with one step's kernel, with its blocks, warps and stages as `settings`."""
    y = torch.empty(x.shape[0], w.shape[0], dtype=x.dtype, device=x.device)
    grid = grid_of(kernel, *y.shape, multiprocessors(x), settings)
    kernel[grid](*arguments(kernel, x, w, bias, y, settings), ACT=act, **settings)
    return y


WIDE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8}
WIDER = WIDE | {"BLOCK_N": 256}
# Step -> its kernel and settings, in the order of the lesson.
STEPS = {
    "one output per program": (output_kernel, {"BLOCK_K": 512, "num_warps": 4}),
    "a tile in registers": (registers_kernel, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}),
    "tensor cores": (tiles_kernel, WIDE | {"num_stages": 1}),
    "two stages": (tiles_kernel, WIDE | {"num_stages": 2}),
    "three stages": (tiles_kernel, WIDE | {"num_stages": 3}),
    "grouped tiles": (grouped_kernel, WIDE | {"num_stages": 3, "GROUP": 16}),
    "descriptors": (descriptors_kernel, WIDE | {"num_stages": 3, "GROUP": 16}),
    "tiles of 128 x 256": (descriptors_kernel, WIDER | {"num_stages": 3, "GROUP": 16}),
    "persistent": (persistent_kernel, WIDER | {"num_stages": 3, "GROUP": 16}),
}
# For a few rows: tiles no taller than these, and long steps of K, since nothing is reused.
FEW_ROWS = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 256, "num_warps": 4, "num_stages": 4}
# Rows of whole_rows_kernel's tile and columns -> its settings: what fits into an SM's registers and shared memory.
WHOLE_ROWS = {
    1024: {"BLOCK_M": 32, "BLOCK_K": 32, "num_warps": 16, "num_stages": 3},
    512: {"BLOCK_M": 64, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3},
}


def split(x, w, bias, parts: int, act: str = "gelu", **settings) -> torch.Tensor:
    """Compute act(x w^T + bias) in two launches: `parts` sums of every element, then their sum and the epilogue."""
    m, n, k = x.shape[0], w.shape[0], x.shape[1]
    sums = torch.empty(parts, m, n, device=x.device)
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(m, settings["BLOCK_M"]), triton.cdiv(n, settings["BLOCK_N"])
    parts_kernel[(*tiles, parts)](x, w, sums, m, n, k, SPLIT=parts, **settings)
    join_kernel[m, triton.cdiv(n, 1024)](sums, bias, y, m, n, ACT=act, SPLIT=parts, BLOCK=1024)
    return y


def linear_layer_norm(x, w, gamma, beta, **settings) -> torch.Tensor:
    """Compute LayerNorm(x w^T) in one launch: a program sums whole rows of the result. M is a multiple of BLOCK_M, N a
    power of two."""
    y = torch.empty(x.shape[0], w.shape[0], dtype=x.dtype, device=x.device)
    tile_m, tile_k, columns = settings["BLOCK_M"], settings["BLOCK_K"], w.shape[0]
    describe = TensorDescriptor.from_tensor
    described = describe(x, [tile_m, tile_k]), describe(w, [columns, tile_k])
    grid = (triton.cdiv(len(x), tile_m),)
    whole_rows_kernel[grid](
        *described, gamma, beta, describe(y, [tile_m, columns]), x.shape[1], COLUMNS=columns, **settings
    )
    return y


LARGE = (4096, 4096, 4096)  # M, K, N
ONE_TOKEN = (16, 4096, 4096)  # sixteen sequences, one token each
NARROW = (16, 16384, 1024)  # as a feed-forward layer's down projection
TALL = (8192, 4096, 8192)  # x and W together are twice an H200's L2
BEFORE_NORM = (8192, 1024, 1024)  # as attention's output projection
SPLITS = (1, 2, 4, 8, 16)
GROUPS = (1, 2, 4, 8, 16, 32, 64)
STAGES = (1, 2, 3, 4)
# Blocks, warps and stages of grouped_kernel.
TILES = tuple(
    (block_m, block_n, 64, warps, stages)
    for block_m, block_n, warps, stages in (
        (32, 32, 4, 3),
        (64, 64, 4, 3),
        (64, 128, 4, 3),
        (128, 128, 4, 3),
        (128, 128, 8, 2),
        (128, 128, 8, 3),
        (128, 128, 8, 4),
        (128, 256, 8, 3),
        (128, 256, 4, 3),
        (256, 128, 8, 3),
        (256, 256, 8, 2),
    )
)
EPILOGUES = ("relu", "bias, relu", "bias, gelu")
CLAIMED_AT = ((1024,) * 3, (2048,) * 3, LARGE, (8192,) * 3, (8192, 512, 8192))


def operands(shape: tuple[int, int, int], device: str = "cuda", dtype=torch.bfloat16) -> tuple[torch.Tensor, ...]:
    """Return x, W and bias for M, K, N, as in linear_act's own benchmark."""
    return CATALOGUE["linear_act"].inputs(*shape, dtype=dtype, device=device)


def reference(x, w, bias, act: str = "gelu") -> torch.Tensor:
    return ACTIVATIONS[act](torch.nn.functional.linear(x, w, bias))


def checked(calls: dict, wanted: torch.Tensor) -> dict:
    """Return the calls, after checking that each returns `wanted` to within bf16's rounding.

    Raises:
        ValueError: one does not.
    """
    for name, call in calls.items():
        error = (call().float() - wanted.float()).abs().max() / wanted.float().abs().max()
        if not error < 0.02:
            raise ValueError(f"{name} is wrong by {error:.2g} of the largest element: time only correct results")
    return calls


def measure_steps() -> dict[str, dict[str, Timing]]:
    """Time shape -> step on the GPU, next to the library's matmul with bias, the same and GELU, and linear_act."""
    found = {}
    for shape in (LARGE, ONE_TOKEN):
        x, w, bias = operands(shape)
        calls = {
            name: partial(run, kernel, x, w, bias, **settings)
            for name, (kernel, settings) in STEPS.items()
            # With few rows, only tiles that a small result can fill; the first two would show nothing new.
            if shape == LARGE or name not in ("one output per program", "a tile in registers")
        }
        if shape == ONE_TOKEN:
            calls["short tiles"] = partial(run, tiles_kernel, x, w, bias, **FEW_ROWS)
        calls["cuBLAS and GELU"] = partial(reference, x, w, bias)
        calls["linear_act"] = partial(linear_act, x, w, bias, act="gelu")
        checked(calls, reference(*(each.float() for each in (x, w, bias))))
        calls["cuBLAS alone"] = partial(torch.nn.functional.linear, x, w, bias)
        found["x".join(map(str, shape))] = benchmark_together(calls, runs=10)
    return found


def group_calls() -> dict[int, partial]:
    """Return GROUP -> a call of grouped_kernel with tiles of 128 x 128, on matrices that do not fit in L2."""
    x, w, bias = operands(TALL)
    return {group: partial(run, grouped_kernel, x, w, bias, **WIDE, num_stages=3, GROUP=group) for group in GROUPS}


def measure_group_counters() -> dict[int, dict[str, int]]:
    """Return GROUP -> bytes read from memory and sectors of L2, counted by Nsight Compute."""
    metrics = {"dram__bytes_read.sum": "dram_read", "lts__t_sectors.sum": "l2"}
    for call in group_calls().values():
        call()  # here too, so that the record knows which kernels were launched
    rows = counters("benchmarks.experiments.lesson_08", metrics)
    return {group: {name: row[name] for name in metrics.values()} for group, (row,) in zip(GROUPS, rows, strict=True)}


def stage_calls() -> dict[tuple[str, int], partial]:
    """Return (kernel, num_stages) -> call, with tiles of 128 x 128."""
    x, w, bias = operands(LARGE)
    kernels = {"pointers": grouped_kernel, "descriptors": descriptors_kernel}
    return {
        (name, stages): partial(run, kernel, x, w, bias, **WIDE, GROUP=16, num_stages=stages)
        for name, kernel in kernels.items()
        for stages in STAGES
    }


def tile_calls() -> dict[str, partial]:
    """Return "BLOCK_M x BLOCK_N, warps, stages" -> a call of grouped_kernel."""
    x, w, bias = operands(LARGE)
    names = "BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"
    return {
        f"{tile[0]}x{tile[1]}, {tile[3]}, {tile[4]}": partial(
            run, grouped_kernel, x, w, bias, **dict(zip(names, tile, strict=True)), GROUP=16
        )
        for tile in TILES
    }


def split_calls(shape: tuple[int, int, int] = ONE_TOKEN) -> dict[int, partial]:
    """Return parts along K -> call, with sixteen rows; 0: no split, one launch with its epilogue."""
    x, w, bias = operands(shape)
    calls = {0: partial(run, tiles_kernel, x, w, bias, **FEW_ROWS)}
    calls |= {parts: partial(split, x, w, bias, parts, **FEW_ROWS) for parts in SPLITS}
    return checked(calls, reference(*(each.float() for each in (x, w, bias))))


def layer_norm_calls(columns: int) -> dict[str, Callable]:
    """Return way -> call: a linear layer and LayerNorm in one launch and in two."""
    x, w, beta = operands((*BEFORE_NORM[:2], columns))
    norm = torch.ones_like(beta), beta
    library = partial(torch.nn.functional.linear, x, w)
    calls = {
        "one launch": partial(linear_layer_norm, x, w, *norm, **WHOLE_ROWS[columns]),
        "two launches": lambda: layer_norm(linear_act(x, w, act=None), *norm),
        "cuBLAS and LayerNorm": lambda: layer_norm(library(), *norm),
    }
    wide = x.float() @ w.float().T
    checked(calls, torch.nn.functional.layer_norm(wide, (columns,), *(each.float() for each in norm)))
    return calls | {"cuBLAS alone": library}


def written_out(x, w, bias, epilogue: str) -> torch.Tensor:
    """Compute the same with one launch per operation."""
    s = x @ w.T
    if "bias" in epilogue:
        s = s + bias
    return ACTIVATIONS[epilogue.split(", ")[-1]](s)


def ways(x, w, bias, epilogue: str, autotuned: bool = False) -> dict[str, partial]:
    """Return way -> a checked call that computes the matmul with this epilogue; the last one is without it."""
    given, act = bias if "bias" in epilogue else None, epilogue.split(", ")[-1]
    whole = partial(written_out, epilogue=epilogue)
    calls = {"a launch each": partial(whole, x, w, bias)}
    if autotuned:
        tuned = torch.compile(whole, mode="max-autotune-no-cudagraphs", dynamic=False)
        calls["max-autotune"] = partial(tuned, x, w, bias)
    else:
        calls["bias by cuBLAS"] = partial(reference, x, w, given, act)
        calls["torch.compile"] = partial(torch.compile(whole, dynamic=False), x, w, bias)
    calls["ours"] = partial(linear_act, x, w, given, act=act)
    checked(calls, whole(*(each.float() for each in (x, w, bias))))
    return calls | {"cuBLAS alone": partial(torch.nn.functional.linear, x, w, given)}


def measure_epilogues() -> dict[str, dict[str, dict[str, Timing]]]:
    """Return epilogue -> shape -> way -> time on the GPU."""
    found = {}
    with torch.no_grad():
        for epilogue in EPILOGUES:
            found[epilogue] = {}
            for shape in CLAIMED_AT:
                torch._dynamo.reset()
                calls = ways(*operands(shape), epilogue)
                found[epilogue]["x".join(map(str, shape))] = benchmark_together(calls, runs=20)
    return found


def measure_autotuned() -> dict[str, dict[str, Timing]]:
    """Time epilogue -> way on the GPU, including max-autotune: at LARGE, where it tunes for half a minute."""
    with torch.no_grad():
        x, w, bias = operands(LARGE)
        return {
            epilogue: benchmark_together(ways(x, w, bias, epilogue, autotuned=True), runs=20) for epilogue in EPILOGUES
        }


def activation_calls() -> dict[str, partial]:
    """Return epilogue of the persistent kernel -> call, to show a longer one's cost, all else equal."""
    x, w, bias = operands(LARGE)
    calls = {"none": partial(linear_act, x, w, act=None), "bias": partial(linear_act, x, w, bias, act=None)}
    return calls | {act: partial(linear_act, x, w, bias, act=act) for act in ("relu", "silu", "gelu")}


SHAPE = (8192, 4096, 11008)  # tokens, width, hidden: kernels.tiled.ffn's benchmark
BLOCK = 128  # tokens, hidden values and outputs per tile: both accumulators fit in registers


@triton.jit
def ffn_one_launch_kernel(
    x_desc,  # (tokens, width) in tiles of (BLOCK_M, BLOCK_K)
    up_desc,  # (hidden, width) in tiles of (BLOCK_H, BLOCK_K)
    down_desc,  # (width, hidden) in tiles of (BLOCK_N, BLOCK_H)
    y_ptr,  # (tokens, width), fp32, zeros at first
    tokens,
    width,
    hidden,
    BLOCK_M: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    blocks = tl.cdiv(hidden, BLOCK_H)
    first = tl.program_id(0) // blocks * BLOCK_M
    at = tl.program_id(0) % blocks * BLOCK_H
    s = tl.zeros((BLOCK_M, BLOCK_H), tl.float32)
    for step in range(tl.cdiv(width, BLOCK_K)):
        s = tl.dot(x_desc.load([first, step * BLOCK_K]), up_desc.load([at, step * BLOCK_K]).T, s)
    h = activate(s, "gelu_tanh").to(x_desc.dtype)
    row = first.to(tl.int64) + tl.arange(0, BLOCK_M)[:, None]
    for start in range(0, width, BLOCK_N):
        part = tl.dot(h, down_desc.load([start, at]).T)
        col = start + tl.arange(0, BLOCK_N)[None, :]
        tl.atomic_add(y_ptr + row * width + col, part, mask=(row < tokens) & (col < width), sem="relaxed")


def ffn_one_launch(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Compute gelu(x up^T) down^T for contiguous 16-bit matrices: (tokens, width), (hidden, width), (width, hidden) ->
    (tokens, width) in fp32, added in nondeterministic order."""
    (tokens, width), hidden = x.shape, up.shape[0]
    y = torch.zeros(tokens, width, device=x.device)
    of_x, of_up = (TensorDescriptor.from_tensor(each, [BLOCK, 64]) for each in (x, up))
    of_down = TensorDescriptor.from_tensor(down, [BLOCK, BLOCK])
    tiles = {"BLOCK_M": BLOCK, "BLOCK_H": BLOCK, "BLOCK_N": BLOCK, "BLOCK_K": 64}
    grid = (triton.cdiv(tokens, BLOCK) * triton.cdiv(hidden, BLOCK),)
    ffn_one_launch_kernel[grid](of_x, of_up, of_down, y, tokens, width, hidden, **tiles, num_warps=8, num_stages=3)
    return y


def measure_ffn_one_launch() -> dict[str, Timing]:
    """Time the layer in one launch, in two, and by torch.compile, together on a GPU, bf16."""
    tokens, width, hidden = SHAPE
    shapes = (tokens, width), (hidden, width), (width, hidden)
    x, up, down = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) / shape[1] ** 0.5 for shape in shapes)
    compiled = torch.compile(ffn_reference, dynamic=False)
    with torch.no_grad():
        return benchmark_together(
            {
                "one launch": lambda: ffn_one_launch(x, up, down),
                "two launches": lambda: ffn(x, up, down),
                "torch.compile": lambda: compiled(x, up, down),
            },
            runs=20,
        )


EXPERIMENTS = {
    "matmul_steps": measure_steps,
    "matmul_groups": timed(group_calls, runs=20),
    "matmul_group_counters": measure_group_counters,
    "matmul_stages": timed(stage_calls, runs=10),
    "matmul_tiles": timed(tile_calls, runs=10),
    "matmul_splits": timed(split_calls, runs=20),
    "matmul_narrow_splits": timed(partial(split_calls, NARROW), runs=20),
    "matmul_layer_norm": timed(layer_norm_calls, WHOLE_ROWS, runs=20),
    "matmul_activations": timed(activation_calls, runs=20),
    "matmul_epilogues": measure_epilogues,
    "matmul_autotuned": measure_autotuned,
    "ffn_one_launch": measure_ffn_one_launch,
}

if __name__ == "__main__":
    profiled(group_calls().values())
