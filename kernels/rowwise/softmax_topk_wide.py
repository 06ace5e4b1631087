"""softmax_topk of rows beyond 4096 columns, read twice as in softmax_wide.py; a group is all that one lane sees.

Holding such a row leaves too few rows in flight. On an H200, bf16, k = 8, per cent of copy bandwidth against holding:
77 and 58 at 8192 columns, 82 and 50 at 16384; in the sweep 77 at 16384, 69 at 65536, 57 at 131072.
"""

import triton
import triton.language as tl

from kernels.arguments import cdiv, next_power_of_2
from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.rowwise.softmax_wide import absorb_rim
from kernels.top_k import largest, sort_key, store_winners
from kernels.vectors import at_vector, elements_before, inside_rim, rim


@triton.jit
def softmax_topk_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    values_ptr,  # (rows, K), contiguous
    indices_ptr,  # (rows, K) int64, contiguous
    cols,
    x_row_stride,
    VECTOR: tl.constexpr,  # elements of a vector of 16 bytes, and whether rows begin or end within one:
    RAGGED: tl.constexpr,  # kernels/vectors.py
    K: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two, at least K
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane
    CHUNKS: tl.constexpr,  # a power of two; LANES * EACH * CHUNKS is at least cols
    KEY: tl.constexpr,  # int32 or int64: half for a value, half for a column
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    start_of_row = row * x_row_stride
    lead = elements_before(start_of_row, VECTOR, RAGGED)
    whole = at_vector(cols - lead, VECTOR)
    x_first = x_ptr + at_vector(start_of_row + lead, VECTOR)
    y_first = y_ptr + at_vector(row * cols + lead, VECTOR)
    CHUNK: tl.constexpr = LANES * EACH
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    peak = tl.full((LANES,), -float("inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    first = tl.zeros((LANES,), tl.int32)  # the chunk that held a lane's peak first, for the order of ties
    for start in tl.range(0, whole, CHUNK, loop_unroll_factor=2):
        at = start + place
        x = tl.load(x_first + at, mask=at < whole, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        before = peak
        peak, total = absorb(peak, total, tl.where(x != x, float("inf"), x))
        first = tl.where(peak > before, start // CHUNK, first)
    top, total = combine(peak, total)
    if RAGGED:
        col, in_rim = rim(lead, cols, VECTOR), inside_rim(lead, whole, cols, VECTOR)
        x_rim = tl.load(x_ptr + start_of_row + col, mask=in_rim, other=-float("inf")).to(tl.float32)
        top, total = absorb_rim(top, total, tl.where(x_rim != x_rim, float("inf"), x_rim))
    scale = 1.0 / total
    if RAGGED:
        y_rim = tl.exp2((x_rim - top) * LOG2_E) * scale
        tl.store(y_ptr + row * cols + col, y_rim.to(y_ptr.dtype.element_ty), mask=in_rim)
    last = (tl.cdiv(whole, CHUNK) - 1) * CHUNK
    for back in tl.range(0, whole, CHUNK, loop_unroll_factor=2):
        at = last - back + place
        x = tl.load(x_first + at, mask=at < whole, eviction_policy="evict_first").to(tl.float32)
        y = tl.exp2((x - top) * LOG2_E) * scale
        tl.store(y_first + at, y.to(y_ptr.dtype.element_ty), mask=at < whole)

    cell = first * LANES + tl.arange(0, LANES)
    groups = largest(sort_key(peak.to(x_ptr.dtype.element_ty), cell, KEY), K, SLOTS)
    store_winners(
        x_ptr, values_ptr + row * K, indices_ptr + row * K, start_of_row, lead, cols, groups, top, scale,
        VECTOR, RAGGED, K, SLOTS, LANES, EACH, CHUNKS,
    )  # fmt: skip


def settings(cols: int) -> dict:
    """Launch settings for rows of `cols` elements: 64 a thread, and the most warps there are beyond 65536 columns."""
    warps = min(32, next_power_of_2(cols) // 2048)
    return {
        "LANES": 32 * warps,
        "EACH": 8,
        "CHUNKS": next_power_of_2(cdiv(cols, 256 * warps)),
        "num_warps": warps,
    }
