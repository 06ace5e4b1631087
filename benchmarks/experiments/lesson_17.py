"""Lesson 17: serving, one token at a time.

Decode attention by number of splits and page size, with a batch and with several rows of q; and the steps around it:
rotation with the cache write, and sampling the next token.
"""

from collections.abc import Callable
from functools import partial
from itertools import cycle

import torch
import triton
import triton.language as tl
from torch.nn.functional import scaled_dot_product_attention

import kernels
from helpers.instruments.timing import Timing, benchmark_together
from kernels.elementwise.rope_cache import OP, rope_cache_reference
from kernels.rowwise.sample import sample_reference

HEADS, KEY_HEADS, DIM = 32, 8, 128  # of Llama 3 8B
RECORD = "h100_80gb_hbm3.json"  # where these are recorded, in benchmarks/results
SPLITS = (1, 2, 4, 8, 16, 32, 64)
REFERENCE_POINTS = ((1, 8192), (1, 65536), (16, 8192), (128, 4096))  # sequences, tokens in each cache
ROWS = (1, 2, 4, 8, 16)  # of q per sequence, as in speculative decoding
PAGES = (1, 4, 16, 64, 256)  # tokens
VOCABULARY = 131072
FLAT, PEAKED = 0.20, 0.96  # the probability of the 50 most probable tokens, about
SEEDS = 20  # a draw's number of passes depends on luck, so the timed draws differ
CHUNK = 64  # keys at a time


@triton.jit
def split_kernel(
    q_ptr,  # (batch, key heads, used, D): query heads that share a key head, and rows of speculation
    k_ptr,  # (batch, key heads, keys, D)
    v_ptr,  # (batch, key heads, keys, D)
    acc_ptr,  # (batch * key heads, splits, used, D) fp32
    stats_ptr,  # (batch * key heads, splits, 2, used) fp32: maximum, sum
    keys,
    splits,
    used,
    scale,
    GROUP: tl.constexpr,  # at least used, and 16, as tl.dot requires
    D: tl.constexpr,
    N: tl.constexpr,
):
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, d = tl.arange(0, GROUP), tl.arange(0, D)
    at = row[:, None] * D + d[None, :]
    q = tl.load(q_ptr + head * used * D + at, mask=row[:, None] < used, other=0.0)
    chunks = tl.cdiv(keys, N)
    first, last = split * chunks // splits * N, (split + 1) * chunks // splits * N
    peak = tl.full((GROUP,), -float("inf"), tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    acc = tl.zeros((GROUP, D), tl.float32)
    for start in range(first, last, N):
        key = start + tl.arange(0, N)
        here = head * keys * D + key[:, None] * D + d[None, :]
        k = tl.load(k_ptr + here, mask=key[:, None] < keys, other=0.0)
        s = tl.where(key[None, :] < keys, tl.dot(q, k.T) * scale, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, axis=1))
        p = tl.exp(s - higher[:, None])
        v = tl.load(v_ptr + here, mask=key[:, None] < keys, other=0.0)
        shrink = tl.exp(peak - higher)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        total = total * shrink + tl.sum(p, axis=1)
        peak = higher
    part = head * splits + split
    tl.store(acc_ptr + part * used * D + at, acc, mask=row[:, None] < used)
    tl.store(stats_ptr + part * 2 * used + row, peak, mask=row < used)
    tl.store(stats_ptr + part * 2 * used + used + row, total, mask=row < used)


@triton.jit
def merge_kernel(acc_ptr, stats_ptr, y_ptr, splits, used, D: tl.constexpr, SPLITS: tl.constexpr):
    head, row = tl.program_id(0).to(tl.int64), tl.program_id(1)  # one program per row of q
    split, d = tl.arange(0, SPLITS), tl.arange(0, D)
    inside, part = split < splits, head * splits + split
    peak = tl.load(stats_ptr + part * 2 * used + row, mask=inside, other=-float("inf"))
    total = tl.load(stats_ptr + part * 2 * used + used + row, mask=inside, other=0.0)
    share = tl.exp(peak - tl.max(peak, axis=0))
    acc = tl.load(acc_ptr + (part[:, None] * used + row) * D + d[None, :], mask=inside[:, None], other=0.0)
    y = tl.sum(acc * share[:, None], axis=0) / tl.sum(total * share, axis=0)
    tl.store(y_ptr + (head * used + row) * D + d, y.to(y_ptr.dtype.element_ty))


def split_decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, splits: int) -> torch.Tensor:
    """Attend with q (batch, heads, rows, dim) to all of k and v (batch, key heads, keys, dim), the keys in splits.

    Rows of q see every key: several rows show speculation's cost in time, without its causal mask.
    """
    batch, heads, rows, dim = q.shape
    key_heads, keys = k.shape[1:3]
    used = heads // key_heads * rows
    grid, group = (batch * key_heads, splits), max(16, triton.next_power_of_2(used))
    acc = torch.empty(*grid, used, dim, device=q.device)
    stats = torch.empty(*grid, 2, used, device=q.device)
    y = torch.empty_like(q)
    split_kernel[grid](q, k, v, acc, stats, keys, splits, used, dim**-0.5, GROUP=group, D=dim, N=CHUNK)
    merge_kernel[grid[0], used](acc, stats, y, splits, used, D=dim, SPLITS=triton.next_power_of_2(splits))
    return y


def cache_inputs(batch: int, keys: int, rows: int = 1, device="cuda", dtype=torch.bfloat16) -> tuple[torch.Tensor, ...]:
    """Return q (batch, HEADS, rows, DIM), k and v (batch, KEY_HEADS, keys, DIM)."""
    q = torch.randn(batch, HEADS, rows, DIM, device=device, dtype=dtype)
    return q, *torch.randn(2, batch, KEY_HEADS, keys, DIM, device=device, dtype=dtype)


def measure_splits() -> dict[str, dict[int | str, Timing]]:
    """Return sequences x tokens -> splits, or "PyTorch" -> time of a layer's decode, copies of q's rows included."""
    found = {}
    for batch, keys in REFERENCE_POINTS:
        q, k, v = cache_inputs(batch, keys)
        theirs = partial(scaled_dot_product_attention, q, k, v, enable_gqa=True)
        torch.testing.assert_close(split_decode(q, k, v, 8), theirs(), atol=2e-2, rtol=2e-2)
        ways = {splits: partial(split_decode, q, k, v, splits) for splits in SPLITS}
        found[f"{batch} x {keys}"] = benchmark_together({**ways, "PyTorch": theirs}, runs=20)
    return found


def measure_rows() -> dict[int, dict[str, Timing]]:
    """Return rows of q -> way -> time of one layer's attention to 16 caches of 8192 tokens: speculation's cost."""
    found = {}
    for rows in ROWS:
        q, k, v = cache_inputs(16, 8192, rows)
        ways = {
            "8 splits": partial(split_decode, q, k, v, 8),
            "PyTorch": partial(scaled_dot_product_attention, q, k, v, enable_gqa=True),
        }
        found[rows] = benchmark_together(ways, runs=20)
    return found


def measure_rope_cache() -> dict[int, dict[str, Timing]]:
    """Return tokens -> way -> time of norm, rotation and cache write, in bf16."""
    found = {}
    for tokens in (1, 64, 4096):
        given = OP.inputs(tokens, HEADS, KEY_HEADS, DIM, dtype=torch.bfloat16, device="cuda")
        compiled = torch.compile(rope_cache_without_checks, dynamic=False)
        ways = {"eager": rope_cache_reference, "torch.compile": compiled, "one kernel": kernels.rope_cache}
        found[tokens] = benchmark_together({way: partial(call, *given) for way, call in ways.items()}, runs=20)
    return found


def rope_cache_without_checks(q, k, v, cos_sin, positions, slots, key_cache, value_cache, q_weight, k_weight):
    """Run rope_cache_reference when every token has a slot: without searching for these, for which the CPU waits."""

    def rotate(x, weight):
        x = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)
        cos, sin = cos_sin[positions].to(x.dtype)[:, None].chunk(2, dim=-1)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)

    page, place = slots // key_cache.shape[2], slots % key_cache.shape[2]
    key_cache[page, :, place] = rotate(k, k_weight)
    value_cache[page, :, place] = v
    return rotate(q, q_weight)


def paged_inputs(sequences: int, keys: int, page: int, device="cuda", dtype=torch.bfloat16) -> tuple:
    """Return paged_attention's inputs: a cache of shuffled pages, each with all key heads of token after token."""
    q = torch.randn(sequences, HEADS, 1, DIM, device=device, dtype=dtype)
    pages = sequences * keys // page
    k, v = torch.randn(2, pages, page, KEY_HEADS, DIM, device=device, dtype=dtype).transpose(2, 3)
    table = torch.randperm(pages, device=device).int().view(sequences, -1)
    return q, k, v, table, torch.full((sequences,), keys, device=device, dtype=torch.int32)


def measure_pages() -> dict[str, dict[str, Timing]]:
    """Return sequences x tokens -> tokens per page, or one page per sequence -> time of paged_attention."""
    found = {}
    for sequences, keys in REFERENCE_POINTS:
        sizes = {str(page): page for page in PAGES} | {"one page": keys}
        ways = {
            name: partial(kernels.paged_attention, *paged_inputs(sequences, keys, page)) for name, page in sizes.items()
        }
        found[f"{sequences} x {keys}"] = benchmark_together(ways, runs=20)
    return found


def flat_logits(rows: int, device="cuda") -> torch.Tensor:
    """Return logits whose top 50 have about FLAT of the probability: far less than usual for a language model."""
    return (2.5 * torch.randn(rows, VOCABULARY, device=device)).bfloat16()


def peaked_logits(rows: int, device="cuda") -> torch.Tensor:
    """Return logits whose top 50 have about PEAKED: the n-th most probable token has a share of n to the -1.75."""
    rank = torch.stack([torch.randperm(VOCABULARY, device=device) for _ in range(rows)]) + 1
    return (-1.75 * rank.log()).bfloat16()


def measure_sample() -> dict[str, dict[str, Timing]]:
    """Return rows, filters and logits -> way -> time of a draw from VOCABULARY logits in bf16."""
    found = {}
    filtered = 1.0, 50, 0.9  # temperature, top_k, top_p
    cases = {
        "no filter": (flat_logits, (1.0, 0, 1.0)),
        "filtered, flat": (flat_logits, filtered),
        "filtered, peaked": (peaked_logits, filtered),
    }
    for rows in (1, 64):
        for name, (make, options) in cases.items():
            logits = make(rows)
            compiled = torch.compile(sample_reference, dynamic=False)
            ways = {"eager": sample_reference, "torch.compile": compiled, "one kernel": kernels.sample}
            calls = {way: drawing(call, logits, options) for way, call in ways.items()}
            found[f"{rows} row{'s' * (rows > 1)}, {name}"] = benchmark_together(calls, runs=20)
    return found


def drawing(call: Callable, logits: torch.Tensor, options: tuple) -> Callable[[], torch.Tensor]:
    """Return a function that draws with the next of SEEDS seeds each time."""
    seeds = cycle([torch.tensor(seed, device=logits.device) for seed in range(SEEDS)])
    return lambda: call(logits, next(seeds), *options)


EXPERIMENTS = {
    "serving_splits": measure_splits,
    "serving_pages": measure_pages,
    "serving_rows": measure_rows,
    "serving_rope_cache": measure_rope_cache,
    "serving_sample": measure_sample,
}
