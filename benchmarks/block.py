"""Measure a transformer block at Llama 3 8B's sizes, in every way of running it: times, errors, memory, launches.

    python -m benchmarks.block warm WAY TOKENS        compile what `times` would, and leave it in the caches
    python -m benchmarks.block times FILE             all of WAYS at all of TOKENS, written to FILE as they come
    python -m benchmarks.block parts FILE             the block's parts, each by every implementation
    python -m benchmarks.block autotuned TOKENS FILE  the block under max-autotune, next to ours in the same run

Run it from the repository root on a GPU; benchmarks/profiles.py runs all of it. `--small` shrinks it for a dry run on a
CPU.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.block_traces import kernels_of
from benchmarks.calls import fingerprints_of, launches_of
from helpers.instruments.timing import benchmark_together
from kernels.elementwise.swiglu import swiglu
from kernels.rowwise.rms_norm import rms_norm
from kernels.tiled.ffn import gated_op
from kernels.tiled.flash_attention import flash_attention, flash_attention_reference
from kernels.tiled.linear_act import linear_act
from kernels.transformer_block import (
    split_heads,
    transformer_block,
    transformer_block_inputs,
    transformer_block_reference,
)
from kernels.tuned.linear_few_rows import linear_one_row

SIZES = {"width": 4096, "heads": 32, "key_heads": 8, "hidden": 14336}  # Llama 3 8B: Dubey et al., arXiv:2407.21783
SMALL = {"width": 64, "heads": 4, "key_heads": 2, "hidden": 96}
TOKENS = (8192, 1, 512)
PROFILED = ("eager", "libraries", "torch.compile", "max-autotune", "fused")  # their kernels are listed
small = "--small" in sys.argv
RUNS = 3 if small else 7
sizes = SMALL if small else SIZES
device = "cuda" if torch.cuda.is_available() else "cpu"
HEADS = sizes["heads"], sizes["key_heads"]


def attend(q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend | None = None, repeat: bool = False) -> Tensor:
    """Run PyTorch's own attention with its default backend or this one; `repeat`: for one without grouped heads."""
    if repeat:
        k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
    attention = partial(functional.scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=not repeat)
    if backend is None:
        return attention()
    with sdpa_kernel(backend):
        return attention()


def by_libraries(x: Tensor, attention_norm, qkv, out, ffn_norm, gate, up, down, **attention):
    """Run the block with PyTorch's best: its fused norm and attention, cuBLAS."""
    linear = functional.linear
    heads = split_heads(linear(functional.rms_norm(x, x.shape[-1:], attention_norm, 1e-6), qkv), *HEADS)
    seen = attend(*heads, **attention)
    s = x + linear(seen.transpose(1, 2).flatten(2), out)
    h = functional.rms_norm(s, s.shape[-1:], ffn_norm, 1e-6)
    return s + linear(functional.silu(linear(h, gate)) * linear(h, up), down)


def by_kernels_and_cublas(x: Tensor, attention_norm, qkv, out, ffn_norm, gate, up, down):
    """Run the block with our kernels for everything except the matmuls."""
    linear = functional.linear
    seen = flash_attention(*split_heads(linear(rms_norm(x, attention_norm), qkv), *HEADS), causal=True)
    s = x + linear(seen.transpose(1, 2).flatten(2), out)
    h = rms_norm(s, ffn_norm)
    return s + linear(swiglu(linear(h, gate), linear(h, up)), down)


def fused(*tensors: Tensor) -> Tensor:
    return transformer_block(*tensors, *HEADS)


def eager(*tensors: Tensor) -> Tensor:
    return transformer_block_reference(*tensors, *HEADS)


WAYS = {
    "eager": lambda: eager,
    "libraries": lambda: by_libraries,
    "libraries, cuDNN": lambda: partial(by_libraries, backend=SDPBackend.CUDNN_ATTENTION),
    "libraries, cuDNN, heads repeated": lambda: partial(by_libraries, backend=SDPBackend.CUDNN_ATTENTION, repeat=True),
    "torch.compile": lambda: torch.compile(by_libraries, dynamic=False),
    "fused": lambda: fused,
    "fused, cuBLAS": lambda: by_kernels_and_cublas,
}


def autotuned() -> Callable:
    return torch.compile(by_libraries, mode="max-autotune-no-cudagraphs", dynamic=False)


def inputs(tokens: int) -> tuple[Tensor, ...]:
    torch.manual_seed(tokens)
    return transformer_block_inputs(tokens, **sizes, device=device, dtype=torch.bfloat16)


def forward(function: Callable, tensors: tuple) -> Tensor:
    with torch.no_grad():
        return function(*tensors)


def step(function: Callable, tensors: tuple, upstream: Tensor) -> tuple[Tensor, ...]:
    """Run forward and backward, and return the gradients of x and of every weight."""
    leaves = [each.detach().requires_grad_() for each in tensors]
    return torch.autograd.grad(function(*leaves), leaves, upstream)


def wanted(tensors: tuple) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the result and the gradients in fp32, with unfused attention."""
    wide = [each.float() for each in tensors]
    y = forward(eager, wide)
    gradients = step(eager, wide, torch.ones_like(y))
    torch.cuda.empty_cache()
    return y, gradients


def error_of(found: tuple[Tensor, ...], oracle: tuple[Tensor, ...]) -> float:
    """Return the largest relative difference, by norm, of the results."""
    return max(((a.float() - b).norm() / b.norm()).item() for a, b in zip(found, oracle, strict=True))


def peak_of(call: Callable) -> int:
    """Return the peak memory of a call in bytes, beyond what was allocated before."""
    if device == "cpu":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def attempted(name: str, measure: Callable) -> dict:
    """Return `measure`'s result, or its error, so that one failure does not stop the others."""
    try:
        return measure()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}"[:500], flush=True)
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def timed_together(calls: dict[str, Callable], runs: int = RUNS, **options) -> dict[str, dict]:
    """Return way -> Timing as a dict; if not all can be timed in turns, each alone."""
    try:
        found = benchmark_together(calls, runs=runs, **options)
    except Exception as error:
        print(f"not together: {error}"[:300], flush=True)
        found = {}
        for way, call in calls.items():
            with contextlib.suppress(Exception):
                found |= benchmark_together({way: call}, runs=runs, **options)
    return {way: asdict(timing) for way, timing in found.items()}


def rows_of(tokens: int, ways: dict[str, Callable], save: Callable[[dict], None]) -> None:
    """Measure direction -> way -> gpu and call times, error, peak bytes, kernels with their microseconds, fingerprints
    of ours; save after each direction."""
    tensors = inputs(tokens)
    y, gradients = wanted(tensors)
    upstream = torch.ones_like(y, dtype=torch.bfloat16)
    found = {}
    for direction, oracle in (("forward", (y,)), ("step", gradients)):
        calls, rows = {}, {}
        for way, function in ways.items():
            if direction == "forward":
                call = partial(forward, function, tensors)
            else:
                call = partial(step, function, tensors, upstream)

            def described(call=call, way=way, oracle=oracle):
                result = call()
                result = result if isinstance(result, tuple) else (result,)
                kernels = kernels_of(call) if way in PROFILED else []
                ours = fingerprints_of(launch.kernel for launch in launches_of(call))
                return {
                    "error": error_of(result, oracle),
                    "peak": peak_of(call),
                    "kernels": kernels,
                    "fingerprints": ours,
                }

            rows[way] = attempted(f"{direction} {tokens} {way}", described)
            if "failed" not in rows[way]:
                calls[way] = call
        for way, timing in timed_together(calls, graphs=direction == "forward").items():
            rows[way]["gpu"] = timing
        if (tokens == 1 or (tokens == 512 and direction == "forward")) and not small:  # short work, where it matters
            for way, timing in timed_together(calls, runs=3, launches=True).items():
                rows[way]["call"] = timing
        found[direction] = rows
        save(found)


def parts_of(tokens: int) -> dict[str, dict[str, dict]]:
    """Return part -> way -> GPU time of a forward pass; "eager" is the reference's code."""
    x, norm, qkv, out, _, gate, up, down = inputs(tokens)
    linear, width = functional.linear, (x.shape[-1],)
    heads = split_heads(linear(x, qkv), *HEADS)
    hidden, cudnn = linear(x, up), SDPBackend.CUDNN_ATTENTION
    found = {
        "norm": {
            "eager": lambda: functional.rms_norm(x, width, norm, 1e-6),
            "fused": lambda: rms_norm(x, norm),
        },
        "qkv": {"eager": lambda: linear(x, qkv), "fused": lambda: linear_act(x, qkv, act=None)},
        "attention": {
            "eager": lambda: flash_attention_reference(*heads, causal=True),
            "fused": lambda: flash_attention(*heads, causal=True),
            "library": lambda: attend(*heads),
            "cuDNN": lambda: attend(*heads, backend=cudnn),
            "cuDNN, heads repeated": lambda: attend(*heads, backend=cudnn, repeat=True),
        },
        "heads side by side": {"eager": lambda: heads[0].contiguous()},
        "out and residual": {
            "eager": lambda: x + linear(x, out),
            "fused": lambda: linear_act(x, out, residual=x, act=None),
            "library": lambda: torch.addmm(x[0], x[0], out.T),
        },
        "gate, up and SwiGLU": {
            "eager": lambda: functional.silu(linear(x, gate)) * linear(x, up),
            "fused": lambda: gated_op(x, gate, up, "silu"),
            "cuBLAS, SwiGLU fused": lambda: swiglu(linear(x, gate), linear(x, up)),
        },
        "down and residual": {
            "eager": lambda: x + linear(hidden, down),
            "fused": lambda: linear_act(hidden, down, residual=x, act=None),
            "library": lambda: torch.addmm(x[0], hidden[0], down.T),
        },
    }
    if tokens == 1:
        one = linear_one_row
        found["qkv"]["one row, norm fused"] = lambda: one(x, qkv, norm)
        found["out and residual"]["one row"] = lambda: one(x, out, residual=x)
        found["gate, up and SwiGLU"]["one row, norm fused"] = lambda: one(x, up, norm, gate)
        found["down and residual"]["one row"] = lambda: one(hidden, down, residual=x)
    timed = {}
    with torch.no_grad():
        for part, ways in found.items():
            able = {way: call for way, call in ways.items() if isinstance(attempted(way, call), Tensor)}
            timed[part] = timed_together(able)
    return timed


def warm(way: str, tokens: int) -> None:
    """Compile forward and step: Triton's and Inductor's caches then hold them for other processes."""
    tensors, function = inputs(tokens), WAYS[way]()
    y = forward(function, tensors)
    step(function, tensors, torch.ones_like(y))


def main() -> None:
    task, *rest = [each for each in sys.argv[1:] if not each.startswith("--")]
    if task == "warm":
        warm(rest[0], int(rest[1]))
        return
    *rest, file = rest
    found = {}

    def save(tokens: int, rows: dict) -> None:
        found[tokens] = rows
        Path(file).write_text(json.dumps(found))
        print(task, tokens, list(rows), flush=True)

    for tokens in [int(each) for each in rest] or ((4, 1) if small else TOKENS):
        if task == "parts":
            save(tokens, parts_of(tokens))
        elif task == "times":
            rows_of(tokens, {way: make() for way, make in WAYS.items()}, partial(save, tokens))
        else:
            ways = {"max-autotune": autotuned(), "fused": fused, "libraries": by_libraries}
            rows_of(tokens, ways, partial(save, tokens))


if __name__ == "__main__":
    main()
