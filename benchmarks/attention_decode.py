"""One token's attention to all that came before it: the keys in 1 to 128 parts, and a second launch to join them.

Source: Dao, Haziza, Massa and Sizov, "Flash-Decoding for long-context inference" (2023).
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention_steps import rescales, tile
from helpers.instruments.timing import Timing, benchmark_together

HEADS, DIM = 32, 128
KEYS = (4096, 65536)
KEY_HEADS = (32, 8, 1)
PARTS = (1, 4, 16, 64, 128)
N = 64  # keys a tile
ROWS = 16  # queries a tile: the fewest that tl.dot takes
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
    """Attention of one token: q (heads, D), k and v (key heads, keys, D), fp16, contiguous.

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
        except Exception:  # a peer that does not take these, or that no graph takes, is not compared with
            del found[name]
    return found


def measure() -> dict[int, dict[int, dict[int | str, Timing]]]:
    """Keys -> key heads -> parts, or a peer's name -> time of both launches, for one token of 32 heads of 128."""
    found = {}
    for keys in KEYS:
        found[keys] = {}
        for key_heads in KEY_HEADS:
            q = torch.randn(HEADS, DIM, dtype=torch.float16, device="cuda")
            k, v = (torch.randn(key_heads, keys, DIM, dtype=torch.float16, device="cuda") for _ in range(2))
            ways = {parts: partial(decode, q, k, v, parts) for parts in PARTS if keys >= parts * N}
            with torch.no_grad():
                found[keys][key_heads] = benchmark_together(ways | _peers(q, k, v), runs=20)
    return found
