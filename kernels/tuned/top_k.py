"""Tuned softmax_topk: find a row's k largest entries in the k groups of columns with the largest maxima.

The columns of a row form groups: neighbours in rows of up to 4096 columns, all columns that one lane reads in wider
rows. The k groups with the largest maxima contain all k winners, because each has an entry at least as large as
anything outside them. So k rounds over the maxima, which the softmax computes anyway, choose k groups. Their columns
are reread from the cache, and k rounds over these find the winners. The plain kernel's rounds go over whole rows. Rows
of any alignment are accessed 16 bytes at a time, except for their edges (segments.py).

Rows of more than 4096 columns are read twice: keeping them in registers leaves too few rows in flight. On an H200 in
bf16 with k = 8, reading twice reaches 77 % of copy bandwidth at 8192 columns and 82 % at 16384; keeping rows in
registers reaches 58 % and 50 %.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, cdiv, next_power_of_2
from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.rowwise.softmax_topk import largest, softmax_topk_results, sort_key
from kernels.tuned.segments import at_vector, edge, elements_before, in_edge, row_vectors
from kernels.tuned.wide_softmax import absorb_edge
from kernels.variants import tuned

MAX_HELD = 4096  # elements of a row that one program holds in registers


@triton.jit
def index_of(key):
    """Return the index in a key of sort_key."""
    HALF: tl.constexpr = key.dtype.primitive_bitwidth // 2
    return (((1 << HALF) - 1) - (key & ((1 << HALF) - 1))).to(tl.int32)


@triton.jit
def store_winners(
    x_ptr, values_ptr, indices_ptr, start, misalignment, cols, groups, top, scale,
    VECTOR: tl.constexpr, UNALIGNED: tl.constexpr,
    K: tl.constexpr, SLOTS: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Find a row's winners in the groups (SLOTS keys) and the edge, and store their probabilities and columns.

    The row starts at element `start` of x; a key's index counts cells of EACH columns starting at its first whole
    vector, after `misalignment` columns; the cells of one group are LANES apart.
    """
    KEY: tl.constexpr = groups.dtype
    MIN_KEY: tl.constexpr = -(1 << (KEY.primitive_bitwidth - 1))
    member = tl.arange(0, CHUNKS * EACH)[None, :]
    place = member // EACH * (LANES * EACH) + index_of(groups)[:, None] % LANES * EACH + member % EACH
    whole = at_vector(cols - misalignment, VECTOR)
    inside = (groups != MIN_KEY)[:, None] & (place < whole)
    x = tl.load(x_ptr + at_vector(start + misalignment, VECTOR) + place, mask=inside, other=-float("inf"))
    keys, others = tl.where(inside, sort_key(x, misalignment + place, KEY), MIN_KEY), None
    if UNALIGNED:
        col, inside = edge(misalignment, cols, VECTOR), in_edge(misalignment, whole, cols, VECTOR)
        x = tl.load(x_ptr + start + col, mask=inside, other=-float("inf"))
        others = tl.where(inside, sort_key(x, col, KEY), MIN_KEY)
    winners = largest(keys, K, SLOTS, others)
    slot = tl.arange(0, SLOTS)
    col = index_of(winners)
    x = tl.load(x_ptr + start + col, mask=slot < K).to(top.dtype)
    value = tl.exp2((x - top) * LOG2_E) * scale
    tl.store(values_ptr + slot, value.to(values_ptr.dtype.element_ty), mask=slot < K)
    tl.store(indices_ptr + slot, col.to(tl.int64), mask=slot < K)


@triton.jit
def softmax_topk_groups_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    values_ptr,  # (rows, K), contiguous
    indices_ptr,  # (rows, K) int64, contiguous
    cols,
    x_row_stride,
    VECTOR: tl.constexpr,  # elements of a 16-byte vector, and whether rows start or end within one:
    UNALIGNED: tl.constexpr,  # segments.py
    K: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two, at least K
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane, which are a group; LANES * EACH is at least cols
    KEY: tl.constexpr,  # int32 or int64: half for a value, half for a column
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    start = row * x_row_stride
    misalignment = elements_before(start, VECTOR, UNALIGNED)
    whole = at_vector(cols - misalignment, VECTOR)
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    first = x_ptr + at_vector(start + misalignment, VECTOR)
    x = tl.load(first + place, mask=place < whole, other=-float("inf")).to(tl.float32)
    peak = tl.max(tl.where(x != x, float("inf"), x), axis=1)  # of each group; tl.max would pass NaN over
    top = tl.max(peak, axis=0)
    if UNALIGNED:
        col, edge_mask = edge(misalignment, cols, VECTOR), in_edge(misalignment, whole, cols, VECTOR)
        x_edge = tl.load(x_ptr + start + col, mask=edge_mask, other=-float("inf")).to(tl.float32)
        top = tl.maximum(top, tl.max(tl.where(x_edge != x_edge, float("inf"), x_edge)))
    e = tl.exp2((x - top) * LOG2_E)
    total = tl.sum(tl.sum(e, axis=1), axis=0)
    if UNALIGNED:
        e_rim = tl.exp2((x_edge - top) * LOG2_E)
        total += tl.sum(e_rim)
    scale = 1.0 / total
    y_at = y_ptr + at_vector(row * cols + misalignment, VECTOR) + place
    tl.store(y_at, (e * scale).to(y_ptr.dtype.element_ty), mask=place < whole)
    if UNALIGNED:
        tl.store(y_ptr + row * cols + col, (e_rim * scale).to(y_ptr.dtype.element_ty), mask=edge_mask)

    MIN_KEY: tl.constexpr = -(1 << (KEY.primitive_bitwidth - 1))
    group = tl.arange(0, LANES)
    keys = tl.where(group * EACH < whole, sort_key(peak.to(x_ptr.dtype.element_ty), group, KEY), MIN_KEY)
    groups = largest(keys, K, SLOTS)
    store_winners(
        x_ptr, values_ptr + row * K, indices_ptr + row * K, start, misalignment, cols, groups, top, scale,
        VECTOR, UNALIGNED, K, SLOTS, LANES, EACH, CHUNKS=1,
    )  # fmt: skip


@triton.jit
def softmax_topk_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    values_ptr,  # (rows, K), contiguous
    indices_ptr,  # (rows, K) int64, contiguous
    cols,
    x_row_stride,
    VECTOR: tl.constexpr,  # elements of a 16-byte vector, and whether rows start or end within one:
    UNALIGNED: tl.constexpr,  # segments.py
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
    misalignment = elements_before(start_of_row, VECTOR, UNALIGNED)
    whole = at_vector(cols - misalignment, VECTOR)
    x_first = x_ptr + at_vector(start_of_row + misalignment, VECTOR)
    y_first = y_ptr + at_vector(row * cols + misalignment, VECTOR)
    CHUNK: tl.constexpr = LANES * EACH
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    peak = tl.full((LANES,), -float("inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    first = tl.zeros((LANES,), tl.int32)  # the chunk that cached a lane's peak first, for the order of ties
    for start in tl.range(0, whole, CHUNK, loop_unroll_factor=2):
        at = start + place
        x = tl.load(x_first + at, mask=at < whole, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        before = peak
        peak, total = absorb(peak, total, tl.where(x != x, float("inf"), x))
        first = tl.where(peak > before, start // CHUNK, first)
    top, total = combine(peak, total)
    if UNALIGNED:
        col, edge_mask = edge(misalignment, cols, VECTOR), in_edge(misalignment, whole, cols, VECTOR)
        x_edge = tl.load(x_ptr + start_of_row + col, mask=edge_mask, other=-float("inf")).to(tl.float32)
        top, total = absorb_edge(top, total, tl.where(x_edge != x_edge, float("inf"), x_edge))
    scale = 1.0 / total
    if UNALIGNED:
        y_edge = tl.exp2((x_edge - top) * LOG2_E) * scale
        tl.store(y_ptr + row * cols + col, y_edge.to(y_ptr.dtype.element_ty), mask=edge_mask)
    last = (tl.cdiv(whole, CHUNK) - 1) * CHUNK
    for back in tl.range(0, whole, CHUNK, loop_unroll_factor=2):
        at = last - back + place
        x = tl.load(x_first + at, mask=at < whole, eviction_policy="evict_first").to(tl.float32)
        y = tl.exp2((x - top) * LOG2_E) * scale
        tl.store(y_first + at, y.to(y_ptr.dtype.element_ty), mask=at < whole)

    cell = first * LANES + tl.arange(0, LANES)
    groups = largest(sort_key(peak.to(x_ptr.dtype.element_ty), cell, KEY), K, SLOTS)
    store_winners(
        x_ptr, values_ptr + row * K, indices_ptr + row * K, start_of_row, misalignment, cols, groups, top, scale,
        VECTOR, UNALIGNED, K, SLOTS, LANES, EACH, CHUNKS,
    )  # fmt: skip


def settings(cols: int, k: int, dtype: torch.dtype, vector: int = 1) -> dict:
    """Return constexprs and num_warps for the k largest of `cols` elements per row, read in vectors of `vector`.

    A single warp needs no barrier in its 2 k rounds, so rows of up to 1024 columns have one each. In 16 bits, groups of
    32 give rows of 4096 columns fewer maxima to compare. Wide rows have 64 elements per thread and at most 32 warps.
    """
    key = tl.int32 if dtype.itemsize == 2 and cols <= 2**16 else tl.int64
    chosen = {"K": k, "SLOTS": next_power_of_2(k), "KEY": key}
    if cols > MAX_HELD:
        warps = min(32, next_power_of_2(cols) // 2048)
        chunks = next_power_of_2(cdiv(cols, 256 * warps))
        return {**chosen, "LANES": 32 * warps, "EACH": 8, "CHUNKS": chunks, "num_warps": warps}
    each = 16 if cols <= 2048 or dtype.itemsize == 4 else 32
    lanes = max(1, next_power_of_2(cols // vector * vector) // each)
    return {**chosen, "LANES": lanes, "EACH": each, "num_warps": max(1, lanes // 64 if each == 16 else lanes // 32)}


def _kernel(cols: int):
    return softmax_topk_groups_kernel if cols <= MAX_HELD else softmax_topk_wide_kernel


def _compile_arguments(*shape: int, dtype: torch.dtype):
    x = torch.empty(shape, dtype=dtype, device="meta")
    indices = torch.empty((shape[0], 8), dtype=torch.int64, device="meta")
    cols, vectors = shape[-1], row_vectors(x)
    return _kernel(cols), (x, x, x, indices, cols, cols, *vectors), settings(cols, 8, dtype, vectors[0])


@tuned(
    "softmax_topk",
    "forward",
    takes=lambda x, k: x.numel() > 0,
    gain="1.9x at 32768 x 4096, 2.1x at 8192 x 16384, 3.8x at 2671 x 50257; 0.8x at 2048 x 127 (H100, bf16)",
    compile_arguments=_compile_arguments,
)
def forward(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the probabilities, the k largest of each row, and their indices."""
    y, values, indices = softmax_topk_results(x, k)
    x = as_rows(x)
    rows, cols = x.shape
    vectors = row_vectors(x, as_rows(y))
    chosen = settings(cols, k, x.dtype, vectors[0])
    with torch.cuda.device_of(x):
        _kernel(cols)[(rows,)](x, y, values, indices, cols, x.stride(0), *vectors, **chosen)
    return y, values, indices
