"""FlashAttention grown in steps, as lesson 10 grows it, and what its exponentials cost.

The kernels take contiguous fp16 tensors of (heads, tokens, D); a program has M queries of a head and walks over its
keys, N at a time.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from helpers.instruments.timing import Timing, benchmark_together

STEPS = {
    "every tile, masked": {"SKIPS": False, "SPLITS": False},
    "up to the diagonal": {"SKIPS": True, "SPLITS": False},
    "mask on the diagonal alone": {"SKIPS": True, "SPLITS": True},
}
HEADS = {64: 128, 128: 64}  # as many products for each size of head
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
    """Causal attention of (heads, tokens, D) by one of STEPS."""
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

    2^whole is an exponent's bits, 2^part a cubic in 0 to 1.
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
    """Full attention of (heads, tokens, D), whole tiles of keys, with p's exponentials from one of EXPONENTIALS."""
    heads, tokens, d = q.shape
    o = torch.empty_like(q)
    grid = (triton.cdiv(tokens, m), heads)
    warps, factor = 4 if d <= 64 else 8, d**-0.5 * 1.4426950408889634
    exponential_kernel[grid](q, k, v, o, tokens, factor, EXP2=EXPONENTIALS[way], D=d, M=m, N=n, num_warps=warps)
    return o


def _inputs(d: int) -> list[torch.Tensor]:
    return [torch.randn(HEADS[d], TOKENS, d, dtype=torch.float16, device="cuda") for _ in range(3)]


def measure_causal() -> dict[int, dict[str, Timing]]:
    """Size of head -> step -> time, for HEADS heads of 4096 tokens."""
    return {
        d: benchmark_together({step: partial(causal, *inputs, step) for step in STEPS}, runs=RUNS)
        for d in HEADS
        for inputs in [_inputs(d)]
    }


def measure_exponentials() -> dict[int, dict[str, Timing]]:
    """Size of head -> where p's exponentials come from -> time of full attention, for HEADS heads of 4096 tokens."""
    return {
        d: benchmark_together({way: partial(exponentials, *inputs, way) for way in EXPONENTIALS}, runs=RUNS)
        for d in HEADS
        for inputs in [_inputs(d)]
    }
