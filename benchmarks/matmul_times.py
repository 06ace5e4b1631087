"""What the steps of matmul_steps.py, its tiles, stages, orders and splits cost on a GPU, beside the library."""

from functools import partial

import torch

from benchmarks.hardware_counters import counters, profiled
from benchmarks.matmul_steps import (
    FEW_ROWS,
    STEPS,
    WHOLE_ROWS,
    WIDE,
    descriptors_kernel,
    grouped_kernel,
    linear_layer_norm,
    run,
    split,
    tiles_kernel,
)
from helpers.instruments.timing import Timing, benchmark_together
from kernels import CATALOGUE
from kernels.activations import ACTIVATIONS
from kernels.rowwise.layer_norm import layer_norm
from kernels.tiled.linear_act import linear_act

LARGE = (4096, 4096, 4096)  # M, K, N
ONE_TOKEN = (16, 4096, 4096)  # sixteen sequences, a token of each
NARROW = (16, 16384, 1024)  # as a feed-forward layer's way back
TALL = (8192, 4096, 8192)  # x and W together are twice an H200's L2
BEFORE_NORM = (8192, 1024, 1024)  # as an attention's last projection
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
    """x, W and bias for M, K, N, as linear_act's own benchmark has them."""
    return CATALOGUE["linear_act"].inputs(*shape, dtype=dtype, device=device)


def reference(x, w, bias, act: str = "gelu") -> torch.Tensor:
    return ACTIVATIONS[act](torch.nn.functional.linear(x, w, bias))


def checked(calls: dict, wanted: torch.Tensor) -> dict:
    """The calls, once each has been found to give `wanted` to within bf16's roundings.

    Raises:
        ValueError: one does not.
    """
    for name, call in calls.items():
        error = (call().float() - wanted.float()).abs().max() / wanted.float().abs().max()
        if not error < 0.02:
            raise ValueError(f"{name} is wrong by {error:.2g} of the largest element: time nothing that is not right")
    return calls


def measure_steps() -> dict[str, dict[str, Timing]]:
    """Shape -> step -> time on the GPU; the library's product with bias, the same and GELU, and linear_act beside."""
    found = {}
    for shape in (LARGE, ONE_TOKEN):
        x, w, bias = operands(shape)
        calls = {
            name: partial(run, kernel, x, w, bias, **settings)
            for name, (kernel, settings) in STEPS.items()
            # Of few rows, only those tiles that a small result can fill; the two first would show nothing new.
            if shape == LARGE or name not in ("one output a program", "a tile in registers")
        }
        if shape == ONE_TOKEN:
            calls["low tiles"] = partial(run, tiles_kernel, x, w, bias, **FEW_ROWS)
        calls["cuBLAS and GELU"] = partial(reference, x, w, bias)
        calls["linear_act"] = partial(linear_act, x, w, bias, act="gelu")
        checked(calls, reference(*(each.float() for each in (x, w, bias))))
        calls["cuBLAS alone"] = partial(torch.nn.functional.linear, x, w, bias)
        found["x".join(map(str, shape))] = benchmark_together(calls, runs=10)
    return found


def group_calls() -> dict[int, partial]:
    """GROUP -> a call of grouped_kernel in tiles of 128 x 128, on matrices that L2 does not hold."""
    x, w, bias = operands(TALL)
    return {group: partial(run, grouped_kernel, x, w, bias, **WIDE, num_stages=3, GROUP=group) for group in GROUPS}


def measure_groups() -> dict[int, Timing]:
    """GROUP -> time on the GPU."""
    return benchmark_together(group_calls(), runs=20)


def measure_group_counters() -> dict[int, dict[str, int]]:
    """GROUP -> bytes read from memory and sectors of L2, counted by Nsight Compute."""
    metrics = {"dram__bytes_read.sum": "dram_read", "lts__t_sectors.sum": "l2"}
    rows = counters("benchmarks.matmul_times", metrics)
    return {group: {name: row[name] for name in metrics.values()} for group, (row,) in zip(GROUPS, rows, strict=True)}


def measure_stages() -> dict[str, dict[int, Timing]]:
    """Kernel -> num_stages -> time on the GPU, tiles of 128 x 128."""
    x, w, bias = operands(LARGE)
    kernels = {"pointers": grouped_kernel, "descriptors": descriptors_kernel}
    calls = {
        (name, stages): partial(run, kernel, x, w, bias, **WIDE, GROUP=16, num_stages=stages)
        for name, kernel in kernels.items()
        for stages in STAGES
    }
    found = benchmark_together(calls, runs=10)
    return {name: {stages: found[name, stages] for stages in STAGES} for name in kernels}


def measure_tiles() -> dict[str, Timing]:
    """ "BLOCK_M x BLOCK_N, warps, stages" -> time on the GPU of grouped_kernel."""
    x, w, bias = operands(LARGE)
    names = "BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"
    calls = {
        f"{tile[0]}x{tile[1]}, {tile[3]}, {tile[4]}": partial(
            run, grouped_kernel, x, w, bias, **dict(zip(names, tile, strict=True)), GROUP=16
        )
        for tile in TILES
    }
    return benchmark_together(calls, runs=10)


def measure_splits(shape: tuple[int, int, int] = ONE_TOKEN) -> dict[int, Timing]:
    """Parts along K -> time on the GPU of sixteen rows; 0: no split, one launch with its epilogue."""
    x, w, bias = operands(shape)
    calls = {0: partial(run, tiles_kernel, x, w, bias, **FEW_ROWS)}
    calls |= {parts: partial(split, x, w, bias, parts, **FEW_ROWS) for parts in SPLITS}
    checked(calls, reference(*(each.float() for each in (x, w, bias))))
    return benchmark_together(calls, runs=20)


def measure_narrow_splits() -> dict[int, Timing]:
    """The same of a result so narrow that its tiles are fewer than multiprocessors."""
    return measure_splits(NARROW)


def measure_layer_norm() -> dict[int, dict[str, Timing]]:
    """Columns -> way -> time on the GPU: a linear layer and LayerNorm in one launch and in two."""
    found = {}
    for columns, settings in WHOLE_ROWS.items():
        x, w, beta = operands((*BEFORE_NORM[:2], columns))
        norm = torch.ones_like(beta), beta
        library = partial(torch.nn.functional.linear, x, w)
        calls = {
            "one launch": partial(linear_layer_norm, x, w, *norm, **settings),
            "two launches": lambda x=x, w=w, norm=norm: layer_norm(linear_act(x, w, act=None), *norm),
            "cuBLAS and LayerNorm": lambda library=library, norm=norm: layer_norm(library(), *norm),
        }
        wide = x.float() @ w.float().T
        checked(calls, torch.nn.functional.layer_norm(wide, (columns,), *(each.float() for each in norm)))
        found[columns] = benchmark_together(calls | {"cuBLAS alone": library}, runs=20)
    return found


def written_out(x, w, bias, epilogue: str) -> torch.Tensor:
    """A launch for each operation."""
    s = x @ w.T
    if "bias" in epilogue:
        s = s + bias
    return ACTIVATIONS[epilogue.split(", ")[-1]](s)


def ways(x, w, bias, epilogue: str, autotuned: bool = False) -> dict[str, partial]:
    """Way -> a call that computes the product with this epilogue, each checked; but for the last, without one."""
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
    """Epilogue -> shape -> way -> time on the GPU."""
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
    """Epilogue -> way -> time on the GPU, max-autotune among the ways: at LARGE, where it tunes for half a minute."""
    with torch.no_grad():
        x, w, bias = operands(LARGE)
        return {
            epilogue: benchmark_together(ways(x, w, bias, epilogue, autotuned=True), runs=20) for epilogue in EPILOGUES
        }


def measure_activations() -> dict[str, Timing]:
    """Epilogue of the persistent kernel -> time on the GPU: what a longer one costs, nothing else changed."""
    x, w, bias = operands(LARGE)
    calls = {"none": partial(linear_act, x, w, act=None), "bias": partial(linear_act, x, w, bias, act=None)}
    calls |= {act: partial(linear_act, x, w, bias, act=act) for act in ("relu", "silu", "gelu")}
    return benchmark_together(calls, runs=20)


if __name__ == "__main__":
    profiled(group_calls().values())
