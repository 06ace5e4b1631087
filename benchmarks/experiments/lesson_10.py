"""Lesson 10: attention built up in steps, decoding, and claims about attention.

FlashAttention built up in the steps of lesson 10, and the cost of its exponentials.

The kernels take contiguous fp16 tensors of (heads, tokens, D); a program owns M queries of a head and loops over its
keys, N at a time.

One token's attention to all previous tokens: the keys in 1 to 128 splits, merged by a second launch.

Source: Dao, Haziza, Massa and Sizov, "Flash-Decoding for long-context inference" (2023).

Published claims about attention's speedups, under conditions as close as possible to the claims' own.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch._inductor.config as inductor
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from helpers.instruments.timing import Timing, benchmark_together
from kernels.tiled.flash_attention import flash_attention

STEPS = {
    "every tile, masked": {"SKIPS": False, "SPLITS": False},
    "up to the diagonal": {"SKIPS": True, "SPLITS": False},
    "mask on the diagonal alone": {"SKIPS": True, "SPLITS": True},
}
HEADS = {64: 128, 128: 64}  # as many products for each head dim
TOKENS = 4096
RUNS = 20


@triton.jit
def tile(ptr, first, tokens, D: tl.constexpr, ROWS: tl.constexpr):
    row, col = first + tl.arange(0, ROWS), tl.arange(0, D)
    return tl.load(ptr + row[:, None] * D + col[None, :], mask=(row < tokens)[:, None], other=0.0)


@triton.jit
def put(ptr, x, first, tokens, D: tl.constexpr, ROWS: tl.constexpr):
    row, col = first + tl.arange(0, ROWS), tl.arange(0, D)
    tl.store(ptr + row[:, None] * D + col[None, :], x.to(ptr.dtype.element_ty), mask=(row < tokens)[:, None])


@triton.jit
def rescales(peak, total, acc, s, v):
    higher = tl.maximum(peak, tl.max(s, axis=1))
    shrink = tl.exp(peak - higher)
    p = tl.exp(s - higher[:, None])
    total = total * shrink + tl.sum(p, axis=1)
    return higher, total, tl.dot(p.to(v.dtype), v, acc * shrink[:, None])


@triton.jit
def one_tile(q, k_ptr, v_ptr, start, first, tokens, scale, peak, total, acc,
             MASKED: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    k, v = tile(k_ptr, first, tokens, D, N), tile(v_ptr, first, tokens, D, N)
    s = tl.dot(q, k.T) * scale
    if MASKED:
        key, query = first + tl.arange(0, N), start + tl.arange(0, M)
        s = tl.where(key[None, :] <= query[:, None], s, -float("inf"))
    return rescales(peak, total, acc, s, v)


@triton.jit
def causal_kernel(q_ptr, k_ptr, v_ptr, o_ptr, tokens, scale, SKIPS: tl.constexpr, SPLITS: tl.constexpr,
                  D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    start = tl.program_id(0) * M
    head = tl.program_id(1).to(tl.int64) * tokens * D
    q = tile(q_ptr + head, start, tokens, D, M)
    peak, total = tl.full((M,), -float("inf"), tl.float32), tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    end = tl.minimum(tokens, start + M) if SKIPS else tokens
    whole = (start + 1) // N * N if SPLITS else 0
    for first in range(0, whole, N):
        peak, total, acc = one_tile(
            q, k_ptr + head, v_ptr + head, start, first, tokens, scale, peak, total, acc, False, D, M, N
        )
    for first in range(whole, end, N):
        peak, total, acc = one_tile(
            q, k_ptr + head, v_ptr + head, start, first, tokens, scale, peak, total, acc, True, D, M, N
        )
    put(o_ptr + head, acc / total[:, None], start, tokens, D, M)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: str, m: int = 128, n: int = 64) -> torch.Tensor:
    """Compute causal attention of (heads, tokens, D) with one of STEPS."""
    heads, tokens, d = q.shape
    o = torch.empty_like(q)
    grid = (triton.cdiv(tokens, m), heads)
    causal_kernel[grid](q, k, v, o, tokens, d**-0.5, **STEPS[step], D=d, M=m, N=n, num_warps=4 if d <= 64 else 8)
    return o


@triton.jit
def from_the_unit(x):
    return tl.exp2(x)


@triton.jit
def by_polynomial(x):
    """2^x for x <= 0 without the special function units.

    2^whole goes into the exponent's bits. A cubic approximates 2^part, with part from 0 to 1.
    """
    x = tl.maximum(x, -126.0)
    whole = tl.floor(x)
    part = x - whole
    mantissa = 0.99992522 + part * (0.69583309 + part * (0.22606716 + part * 0.07802446))
    bits = mantissa.to(tl.int32, bitcast=True) + (whole.to(tl.int32) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def left_out(x):
    return x


EXPONENTIALS = {"special function units": from_the_unit, "polynomial": by_polynomial, "left out": left_out}


@triton.jit
def exponential_kernel(q_ptr, k_ptr, v_ptr, o_ptr, tokens, factor, EXP2: tl.constexpr,
                       D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    start = tl.program_id(0) * M
    head = tl.program_id(1).to(tl.int64) * tokens * D
    q = tile(q_ptr + head, start, tokens, D, M)
    peak, total = tl.full((M,), -float("inf"), tl.float32), tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    for first in range(0, tokens, N):
        k, v = tile(k_ptr + head, first, tokens, D, N), tile(v_ptr + head, first, tokens, D, N)
        s = tl.dot(q, k.T) * factor
        higher = tl.maximum(peak, tl.max(s, axis=1))
        shrink = tl.exp2(peak - higher)
        p = EXP2(s - higher[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
        peak = higher
    put(o_ptr + head, acc / total[:, None], start, tokens, D, M)


def exponentials(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, way: str, m: int = 128, n: int = 64):
    """Compute full attention of (heads, tokens, D), whole tiles of keys, with exponentials from one of EXPONENTIALS."""
    heads, tokens, d = q.shape
    o = torch.empty_like(q)
    grid = (triton.cdiv(tokens, m), heads)
    warps, factor = 4 if d <= 64 else 8, d**-0.5 * 1.4426950408889634
    exponential_kernel[grid](q, k, v, o, tokens, factor, EXP2=EXPONENTIALS[way], D=d, M=m, N=n, num_warps=warps)
    return o


def _inputs(d: int) -> list[torch.Tensor]:
    return [torch.randn(HEADS[d], TOKENS, d, dtype=torch.float16, device="cuda") for _ in range(3)]


def measure_causal() -> dict[int, dict[str, Timing]]:
    """Return head dim -> step -> time, for HEADS heads of 4096 tokens."""
    return {
        d: benchmark_together({step: partial(causal, *inputs, step) for step in STEPS}, runs=RUNS)
        for d in HEADS
        for inputs in [_inputs(d)]
    }


def measure_exponentials() -> dict[int, dict[str, Timing]]:
    """Return head dim -> source of p's exponentials -> time of full attention, for HEADS heads of 4096 tokens."""
    return {
        d: benchmark_together({way: partial(exponentials, *inputs, way) for way in EXPONENTIALS}, runs=RUNS)
        for d in HEADS
        for inputs in [_inputs(d)]
    }


DECODE_HEADS, DECODE_DIM = 32, 128
KEYS = (4096, 65536)
KEY_HEADS = (32, 8, 1)
PARTS = (1, 4, 16, 64, 128)
N = 64  # keys per tile
ROWS = 16  # queries per tile: the fewest that tl.dot takes
BACKENDS = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


@triton.jit
def part_kernel(q_ptr, k_ptr, v_ptr, peaks_ptr, totals_ptr, accs_ptr, keys, each, scale,
                GROUP: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr):  # fmt: skip
    head, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    q = tile(q_ptr + head * GROUP * D, 0, GROUP, D, ROWS)  # the queries that share this head's keys
    kv = head.to(tl.int64) * keys * D
    peak, total = tl.full((ROWS,), -float("inf"), tl.float32), tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, D), tl.float32)
    end = tl.minimum(part * each + each, keys)
    for first in range(part * each, end, N):
        k, v = tile(k_ptr + kv, first, end, D, N), tile(v_ptr + kv, first, end, D, N)
        inside = first + tl.arange(0, N) < end
        s = tl.where(inside[None, :], tl.dot(q, k.T) * scale, -float("inf"))
        peak, total, acc = rescales(peak, total, acc, s, v)
    row = tl.arange(0, ROWS)
    at = (head * GROUP + row) * parts + part
    tl.store(peaks_ptr + at, peak, mask=row < GROUP)
    tl.store(totals_ptr + at, total, mask=row < GROUP)
    tl.store(accs_ptr + at[:, None] * D + tl.arange(0, D)[None, :], acc, mask=(row < GROUP)[:, None])


@triton.jit
def join_kernel(peaks_ptr, totals_ptr, accs_ptr, o_ptr, D: tl.constexpr, PARTS: tl.constexpr):
    head, col = tl.program_id(0), tl.arange(0, D)
    at = head * PARTS + tl.arange(0, PARTS)
    peaks = tl.load(peaks_ptr + at)
    share = tl.exp(peaks - tl.max(peaks))
    total = tl.sum(tl.load(totals_ptr + at) * share)
    acc = tl.sum(tl.load(accs_ptr + at[:, None] * D + col[None, :]) * share[:, None], axis=0)
    tl.store(o_ptr + head * D + col, (acc / total).to(o_ptr.dtype.element_ty))


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, parts: int) -> torch.Tensor:
    """Compute attention of one token: q (heads, D), k and v (key heads, keys, D), fp16, contiguous.

    heads is a multiple of key heads, up to 16 times; parts a power of two, and each part must have a key.
    """
    (heads, d), (key_heads, keys, _) = q.shape, k.shape
    peaks, totals = torch.empty(2, heads, parts, device=q.device)
    accs, o = torch.empty(heads, parts, d, device=q.device), torch.empty_like(q)
    each = triton.cdiv(keys, parts * N) * N  # whole tiles
    group = heads // key_heads
    rows = max(ROWS, group)
    part_kernel[(key_heads, parts)](
        q, k, v, peaks, totals, accs, keys, each, d**-0.5, GROUP=group, D=d, ROWS=rows, N=N, num_warps=4, num_stages=3
    )
    join_kernel[(heads,)](peaks, totals, accs, o, D=d, PARTS=parts)
    return o


def _peers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable]:
    q, k, v = q[None, :, None], k[None], v[None]

    def by(backend):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])

    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    found = {name: partial(by, backend) for name, backend in BACKENDS.items()}
    found["Flex"] = lambda: compiled(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
    for name, function in list(found.items()):
        try:
            benchmark_together({name: function}, runs=3)
        except Exception:  # leave out a peer that does not support these inputs, or a CUDA graph
            del found[name]
    return found


def measure_decode() -> dict[int, dict[int, dict[int | str, Timing]]]:
    """Return keys -> key heads -> parts, or a peer's name -> time of both launches, for a token of 32 heads of 128."""
    found = {}
    for keys in KEYS:
        found[keys] = {}
        for key_heads in KEY_HEADS:
            q = torch.randn(DECODE_HEADS, DECODE_DIM, dtype=torch.float16, device="cuda")
            k, v = (torch.randn(key_heads, keys, DECODE_DIM, dtype=torch.float16, device="cuda") for _ in range(2))
            ways = {parts: partial(decode, q, k, v, parts) for parts in PARTS if keys >= parts * N}
            with torch.no_grad():
                found[keys][key_heads] = benchmark_together(ways | _peers(q, k, v), runs=20)
    return found


# flash-attention's README, "Speedup and Memory Savings": similar to BERT-base.
BATCH, CLAIM_HEADS, CLAIM_DIM = 8, 12, 64
TRAINING_TOKENS = (128, 256, 512, 1024, 2048, 4096)
CLAIM_TOKENS = (512, 1024, 2048, 4096)
COMPILED = (512, 2048)
LENGTHS = tuple(2**power for power in range(7, 18))
LONG_HEADS, LONG_DIM = 16, 128


def three_operations(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute matmul, softmax, matmul; q is already scaled."""
    return torch.softmax(q @ k.mT, dim=-1) @ v


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute the same, including the scaling, in plain PyTorch."""
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute the causal version in plain PyTorch."""
    unseen = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax((q @ k.mT * q.shape[-1] ** -0.5).masked_fill(unseen, -torch.inf), dim=-1) @ v


def flash2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """Run PyTorch's FlashAttention-2."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


def _claim_inputs(tokens: int, training: bool = False) -> list[torch.Tensor]:
    shape = BATCH, CLAIM_HEADS, tokens, CLAIM_DIM
    return [torch.randn(shape, dtype=torch.float16, device="cuda", requires_grad=training) for _ in range(3)]


def measure_three() -> dict[int, dict[str, Timing]]:
    """Return tokens -> version -> time of the forward pass, q scaled beforehand."""
    found = {}
    for tokens in CLAIM_TOKENS:
        q, k, v = _claim_inputs(tokens)
        ways = {
            "three operations": lambda q=q, k=k, v=v: three_operations(q, k, v),
            "fused": lambda q=q, k=k, v=v: flash_attention(q, k, v, False, 1.0),
        }
        with torch.no_grad():
            found[tokens] = benchmark_together(ways, runs=20)
    return found


def measure_compiled() -> dict[int, dict[str, Timing]]:
    """Return tokens -> version -> time of the unfused forward pass, full and causal, eager and compiled; "patterns" are
    those that torch.compile replaces with scaled_dot_product_attention."""
    found = {}
    for tokens in COMPILED:
        inputs = _claim_inputs(tokens)
        ways: dict[str, Callable] = {}
        for name, function in (("full", written_out), ("causal", masked)):
            ways[name] = lambda function=function, inputs=inputs: function(*inputs)
            for label, patterns in (("compiled", True), ("compiled, no patterns", False)):
                torch._dynamo.reset()
                with inductor.patch(pattern_matcher=patterns, force_disable_caches=True), torch.no_grad():
                    compiled = torch.compile(function, dynamic=False)
                    compiled(*inputs)
                graph = torch.cuda.CUDAGraph()  # keeps the compiled version, whatever the settings are later
                with torch.no_grad(), torch.cuda.graph(graph):
                    compiled(*inputs)
                ways[f"{name}, {label}"] = graph.replay
        with torch.no_grad():
            found[tokens] = benchmark_together(ways, runs=20, graphs=False)
    return found


def measure_training() -> dict[int, dict[str, Timing]]:
    """Return tokens -> version -> time of forward and backward pass together."""
    found = {}
    for tokens in TRAINING_TOKENS:
        inputs = _claim_inputs(tokens, training=True)
        grad = torch.randn_like(inputs[0])

        def both(function, inputs=inputs, grad=grad):
            return lambda: torch.autograd.grad(function(*inputs), inputs, grad)

        ways = {
            "full, eager": both(written_out),
            "full, FlashAttention-2": both(flash2),
            "full, ours": both(lambda q, k, v: flash_attention(q, k, v)),
            "causal, eager": both(masked),
            "causal, FlashAttention-2": both(lambda q, k, v: flash2(q, k, v, True)),
            "causal, ours": both(lambda q, k, v: flash_attention(q, k, v, True)),
        }
        found[tokens] = benchmark_together(ways, runs=15, graphs=False)
    return found


def measure_lengths() -> dict[int, dict[str, Timing | int]]:
    """Return tokens -> "eager", "fused": time of 16 heads of 128 in bf16; "... memory": bytes beyond the inputs.

    Versions that do not fit in memory are left out.
    """
    found = {}
    for tokens in LENGTHS:
        shape = 1, LONG_HEADS, tokens, LONG_DIM
        q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        found[tokens] = {}
        for name, function in (("eager", written_out), ("fused", flash_attention)):
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            try:
                with torch.no_grad():
                    function(q, k, v)
                    used = torch.cuda.max_memory_allocated() - before
                    time = benchmark_together({name: lambda f=function, q=q, k=k, v=v: f(q, k, v)}, runs=7)[name]
            except torch.cuda.OutOfMemoryError:
                continue
            found[tokens] |= {name: time, f"{name} memory": used}
    torch.cuda.empty_cache()
    return found


EXPERIMENTS = {
    "attention_causal": measure_causal,
    "attention_exponentials": measure_exponentials,
    "attention_decode": measure_decode,
    "attention_three": measure_three,
    "attention_compiled": measure_compiled,
    "attention_training": measure_training,
    "attention_lengths": measure_lengths,
}
