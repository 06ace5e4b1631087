"""Lesson 06: cross entropy with rows split over programs, and softmax with top-k as in the paper that fused them.

Few rows: 1 to 16 programs share a row, and a second launch merges their parts.

Softmax and top-k: unfused, safe softmax reads its input three times and writes probabilities, which top-k reads: five
passes. Fused, the probabilities are not written: two passes, one for the maximum, one for the sum and the winners.
Online, one pass. Source: Milakov and Gimelshein, arXiv:1805.02867, section 5.2: 4000 rows of up to 25000 columns, k =
5, fp32.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from benchmarks.experiments import timed
from kernels import online_softmax
from kernels.online_softmax import LOG2_E, combine
from kernels.rowwise.softmax_topk import largest, sort_key
from kernels.tuned.top_k import index_of

COLUMNS = 32768
PARTS = (1, 2, 4, 8, 16)
BLOCK = 2048


@triton.jit
def absorb(peak, total, x):
    higher = tl.maximum(peak, tl.max(x))
    return higher, total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher))


@triton.jit
def part_kernel(x_ptr, peaks_ptr, totals_ptr, columns, each, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    peak, total = -float("inf"), 0.0
    for start in range(part * each, tl.minimum(part * each + each, columns), BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + col, mask=col < columns, other=-float("inf"))
        peak, total = absorb(peak, total, x.to(tl.float32))
    place = row * tl.num_programs(1) + part
    tl.store(peaks_ptr + place, peak)
    tl.store(totals_ptr + place, total)


@triton.jit
def join_kernel(x_ptr, labels_ptr, peaks_ptr, totals_ptr, losses_ptr, columns, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = row * PARTS + tl.arange(0, PARTS)
    peaks, totals = tl.load(peaks_ptr + part), tl.load(totals_ptr + part)
    peak = tl.max(peaks)
    total = tl.sum(totals * tl.exp(peaks - peak))
    at_label = tl.load(x_ptr + row * columns + tl.load(labels_ptr + row)).to(tl.float32)
    tl.store(losses_ptr + row, peak + tl.log(total) - at_label)


def split_loss(x: torch.Tensor, labels: torch.Tensor, parts: int) -> torch.Tensor:
    """Return each row's cross entropy, (rows,) fp32, for (rows, columns) and (rows,). `parts` is a power of two."""
    rows, columns = x.shape
    peaks, totals = torch.empty(2, rows, parts, device=x.device)
    losses = torch.empty(rows, device=x.device)
    each = triton.cdiv(columns, parts * BLOCK) * BLOCK  # whole blocks
    part_kernel[(rows, parts)](x, peaks, totals, columns, each, BLOCK=BLOCK)
    join_kernel[(rows,)](x, labels, peaks, totals, losses, columns, PARTS=parts)
    return losses


def split_rows(rows: int) -> dict:
    """Return parts per row -> call, of both launches, for rows of COLUMNS in bf16."""
    x = torch.randn(rows, COLUMNS, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(COLUMNS, (rows,), device="cuda")
    return {parts: partial(split_loss, x, labels, parts) for parts in PARTS}


TOP_K_ROWS, K = 4000, 5
LANES, EACH = tl.constexpr(256), tl.constexpr(4)
NUM_WARPS = 8


@triton.jit
def columns_from(start):
    return start + tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]


@triton.jit
def load(x_ptr, col, cols):
    return tl.load(x_ptr + col, mask=col < cols, other=-float("inf")).to(tl.float32)


@triton.jit
def maximum_of(x_ptr, cols):
    peak = tl.full((LANES,), -float("inf"), tl.float32)
    for start in tl.range(0, cols, LANES * EACH):
        peak = tl.maximum(peak, tl.max(load(x_ptr, columns_from(start), cols), axis=1))
    return tl.max(peak)


@triton.jit
def safe_softmax_kernel(x_ptr, y_ptr, cols):
    x_ptr += tl.program_id(0).to(tl.int64) * cols
    y_ptr += tl.program_id(0).to(tl.int64) * cols
    peak = maximum_of(x_ptr, cols)
    total = tl.zeros((LANES,), tl.float32)
    for start in tl.range(0, cols, LANES * EACH):
        total += tl.sum(tl.exp2((load(x_ptr, columns_from(start), cols) - peak) * LOG2_E), axis=1)
    scale = 1.0 / tl.sum(total)
    for start in tl.range(0, cols, LANES * EACH):
        col = columns_from(start)
        y = tl.exp2((load(x_ptr, col, cols) - peak) * LOG2_E) * scale
        tl.store(y_ptr + col, y, mask=col < cols)


@triton.jit
def winning_columns(x_ptr, cols, peak, first, K: tl.constexpr, SLOTS: tl.constexpr, CHUNKS: tl.constexpr):
    """Return the K largest columns, from the K lanes that saw the largest numbers (kernels/tuned/top_k.py)."""
    LEAST: tl.constexpr = -(1 << 63)
    lanes = largest(sort_key(peak, first * LANES + tl.arange(0, LANES), tl.int64), K, SLOTS)
    member = tl.arange(0, CHUNKS * EACH)[None, :]
    col = member // EACH * (LANES * EACH) + index_of(lanes)[:, None] % LANES * EACH + member % EACH
    inside = (lanes != LEAST)[:, None] & (col < cols)
    x = tl.load(x_ptr + col, mask=inside, other=-float("inf"))
    return index_of(largest(tl.where(inside, sort_key(x, col, tl.int64), LEAST), K, SLOTS))


@triton.jit
def top_k_kernel(
    x_ptr, values_ptr, indices_ptr, cols, SOFTMAX: tl.constexpr,
    K: tl.constexpr, SLOTS: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Write the top k. SOFTMAX: "no" uses x as it is, "safe" reads it twice, "online" once."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * cols
    top = maximum_of(x_ptr, cols) if SOFTMAX == "safe" else 0.0
    peak = tl.full((LANES,), -float("inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    first = tl.zeros((LANES,), tl.int32)  # the first chunk that held a lane's peak, to order ties
    for start in tl.range(0, cols, LANES * EACH):
        x = load(x_ptr, columns_from(start), cols)
        before = peak
        if SOFTMAX == "online":
            peak, total = online_softmax.absorb(peak, total, x)
        else:
            peak = tl.maximum(peak, tl.max(x, axis=1))
            if SOFTMAX == "safe":
                total += tl.sum(tl.exp2((x - top) * LOG2_E), axis=1)
        first = tl.where(peak > before, start // (LANES * EACH), first)
    col = winning_columns(x_ptr, cols, peak, first, K, SLOTS, CHUNKS)
    slot = tl.arange(0, SLOTS)
    value = tl.load(x_ptr + col, mask=slot < K).to(tl.float32)
    if SOFTMAX == "online":
        top, sum_of_all = combine(peak, total)
        value = tl.exp2((value - top) * LOG2_E) / sum_of_all
    elif SOFTMAX == "safe":
        value = tl.exp2((value - top) * LOG2_E) / tl.sum(total)
    tl.store(values_ptr + row * K + slot, value, mask=slot < K)
    tl.store(indices_ptr + row * K + slot, col.to(tl.int64), mask=slot < K)


def top_k(softmax: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the K largest of each row of (rows, columns), and their indices; `softmax` as in the kernel."""
    rows, cols = x.shape
    values = torch.empty(rows, K, device=x.device)
    indices = torch.empty(rows, K, device=x.device, dtype=torch.int64)
    chunks = triton.next_power_of_2(triton.cdiv(cols, LANES.value * EACH.value))
    options = {"K": K, "SLOTS": triton.next_power_of_2(K), "CHUNKS": chunks, "num_warps": NUM_WARPS}
    top_k_kernel[(rows,)](x, values, indices, cols, SOFTMAX=softmax, **options)
    return values, indices


def unfused(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute safe softmax, then top-k of its result, in two launches."""
    y = torch.empty_like(x)
    safe_softmax_kernel[(len(x),)](x, y, x.shape[1], num_warps=NUM_WARPS)
    return top_k("no", y)


VERSIONS = {
    "safe softmax, then top-k": unfused,
    "safe, fused": partial(top_k, "safe"),
    "online, fused": partial(top_k, "online"),
}


def top_k_parts(columns: int) -> dict:
    """Return version -> call, in fp32; PyTorch's two operators next to ours."""
    x = torch.randn(TOP_K_ROWS, columns, device="cuda")
    versions = {name: partial(version, x) for name, version in VERSIONS.items()}
    return versions | {"PyTorch": lambda: torch.topk(torch.softmax(x, -1), K)}


EXPERIMENTS = {"split_rows": timed(split_rows, (8, 128, 4096)), "top_k_parts": timed(top_k_parts, (1000, 25000))}
