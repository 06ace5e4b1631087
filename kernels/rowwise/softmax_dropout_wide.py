"""softmax_dropout of rows beyond 8192 columns, and their gradients, part of which waits in registers as it came.

A row is held as in softmax_wide.py, with registers left for Philox, and what is left of it read twice; its mask is
computed with y. The gradient is held with what is dropped set to 0 already: only what is read twice needs its mask
twice, too.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows
from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.philox import begin_fours, kept_at, kept_eights
from kernels.rowwise.packed import load_words, narrow, widen, zero_after
from kernels.rowwise.pieces import arithmetic
from kernels.rowwise.softmax_wide import absorb_rim, chunks
from kernels.vectors import at_vector, elements_before, inside_rim, rim, vectors_of_rows


@triton.jit
def softmax_dropout_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    sums_ptr,  # (rows, 2) COMPUTE: maximum, log2 of the sum; or None where no backward pass will ask for them
    seed_ptr,  # (1,) int64
    cols,
    x_row_stride,
    p,
    scale,  # 1 / (1 - p)
    VECTOR: tl.constexpr,  # elements of a vector of 16 bytes, and whether rows begin or end within one:
    RAGGED: tl.constexpr,  # kernels/vectors.py
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane: 8
    HELD: tl.constexpr,  # chunks that stay in registers, FULL of them full in every row
    FULL: tl.constexpr,
    AGAIN: tl.constexpr,  # whether there are more, which are read again
    FOURS: tl.constexpr,  # whether vectors begin with four neighbours of one evaluation: kernels/philox.py
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    CHUNK: tl.constexpr = LANES * EACH
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * x_row_stride, VECTOR, RAGGED)
    whole = at_vector(cols - lead, VECTOR)
    within = (row * cols % 4).to(tl.int32)
    x_first = x_ptr + at_vector(row * x_row_stride + lead, VECTOR)
    y_first = y_ptr + at_vector(row * cols + lead, VECTOR)
    group = tl.arange(0, LANES)[:, None] * EACH
    place = group + tl.arange(0, EACH)[None, :]
    held = load_words(x_first, whole, -float("inf"), VECTOR, LANES, EACH, HELD, FULL)
    seed = tl.load(seed_ptr)
    peak = tl.full((LANES,), -float("inf"), COMPUTE)
    total = tl.zeros((LANES,), COMPUTE)
    for i in tl.static_range(HELD):
        peak, total = absorb(peak, total, widen(held[i], 0, DTYPE, COMPUTE))
    if AGAIN:
        for start in tl.range(HELD * CHUNK, whole, CHUNK):
            at = start + place
            x = tl.load(x_first + at, mask=at < whole, other=-float("inf"), eviction_policy="evict_last").to(COMPUTE)
            peak, total = absorb(peak, total, x)
    top, total = combine(peak, total)
    if RAGGED:
        col, in_rim = rim(lead, cols, VECTOR), inside_rim(lead, whole, cols, VECTOR)
        x_rim = tl.load(x_ptr + row * x_row_stride + col, mask=in_rim, other=-float("inf")).to(COMPUTE)
        top, total = absorb_rim(top, total, x_rim)
    if sums_ptr is not None:
        tl.store(sums_ptr + 2 * row, top)
        tl.store(sums_ptr + 2 * row + 1, tl.log2(total))
    # A product, as in PyTorch: NaN stays seen where it is dropped.
    if_kept, if_dropped = scale / total, 0.0 / total
    if RAGGED:
        kept_rim = kept_at(seed, row, within + col, p, 1, 2 * VECTOR)
        y_rim = tl.exp2((x_rim - top) * LOG2_E) * tl.where(kept_rim, if_kept, if_dropped)
        tl.store(y_ptr + row * cols + col, y_rim.to(y_ptr.dtype.element_ty), mask=in_rim)
    if AGAIN:
        end = tl.cdiv(whole, CHUNK) * CHUNK
        for back in tl.range(0, end - HELD * CHUNK, CHUNK):
            first = end - CHUNK - back
            at = first + place
            x = tl.load(x_first + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
            keep = kept_eights(seed, row, lead + first + group, within, p, FOURS)
            y = tl.exp2((x - top) * LOG2_E) * tl.where(keep, if_kept, if_dropped)
            tl.store(y_first + at, y.to(y_ptr.dtype.element_ty), mask=at < whole, eviction_policy="evict_first")
    zero = zero_after(top, cols)
    for i in tl.static_range(HELD):
        at = i * CHUNK + place
        x = widen(held[i], zero, DTYPE, COMPUTE)
        keep = kept_eights(seed, row, lead + i * CHUNK + group, within, p, FOURS)
        y = tl.exp2((x - top) * LOG2_E) * tl.where(keep, if_kept, if_dropped)
        y = y.to(y_ptr.dtype.element_ty)
        tl.store(y_first + at, y, mask=None if i < FULL else at < whole, eviction_policy="evict_first")


@triton.jit
def softmax_dropout_backward_wide_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    sums_ptr,  # (rows, 2) COMPUTE
    seed_ptr,  # (1,) int64
    grad_x_ptr,  # (rows, cols), contiguous
    cols,
    grad_y_row_stride,
    x_row_stride,
    p,
    scale,
    VECTOR: tl.constexpr,
    RAGGED: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    HELD: tl.constexpr,
    FULL: tl.constexpr,
    AGAIN: tl.constexpr,
    FOURS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    CHUNK: tl.constexpr = LANES * EACH
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * cols, VECTOR, RAGGED)
    whole = at_vector(cols - lead, VECTOR)
    within = (row * cols % 4).to(tl.int32)
    grad_y_first = grad_y_ptr + at_vector(row * grad_y_row_stride + lead, VECTOR)
    x_first = x_ptr + at_vector(row * x_row_stride + lead, VECTOR)
    grad_x_first = grad_x_ptr + at_vector(row * cols + lead, VECTOR)
    group = tl.arange(0, LANES)[:, None] * EACH
    place = group + tl.arange(0, EACH)[None, :]
    top, log_total = tl.load(sums_ptr + 2 * row), tl.load(sums_ptr + 2 * row + 1)
    seed = tl.load(seed_ptr)
    held_x = load_words(x_first, whole, -float("inf"), VECTOR, LANES, EACH, HELD, FULL)
    loaded = load_words(grad_y_first, whole, 0.0, VECTOR, LANES, EACH, HELD, FULL)
    sums = tl.zeros((LANES,), COMPUTE)
    passed = ()
    for i in tl.static_range(HELD):
        keep = kept_eights(seed, row, lead + i * CHUNK + group, within, p, FOURS)
        grad_y = widen(loaded[i], 0, DTYPE, COMPUTE) * tl.where(keep, 1.0, 0.0)
        sums += tl.sum(tl.exp2((widen(held_x[i], 0, DTYPE, COMPUTE) - top) * LOG2_E - log_total) * grad_y, axis=1)
        passed = passed + (narrow(grad_y, DTYPE),)
    if AGAIN:
        for start in tl.range(HELD * CHUNK, whole, CHUNK):
            at = start + place
            grad_y = tl.load(grad_y_first + at, mask=at < whole, other=0.0, eviction_policy="evict_last").to(COMPUTE)
            x = tl.load(x_first + at, mask=at < whole, other=-float("inf"), eviction_policy="evict_last").to(COMPUTE)
            keep = kept_eights(seed, row, lead + start + group, within, p, FOURS)
            sums += tl.sum(tl.exp2((x - top) * LOG2_E - log_total) * grad_y * tl.where(keep, 1.0, 0.0), axis=1)
    mean = tl.sum(sums, axis=0) * scale
    if RAGGED:
        col, in_rim = rim(lead, cols, VECTOR), inside_rim(lead, whole, cols, VECTOR)
        kept_rim = kept_at(seed, row, within + col, p, 1, 2 * VECTOR)
        grad_rim = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=in_rim, other=0.0).to(COMPUTE)
        grad_rim *= tl.where(kept_rim, scale, 0.0)
        x_rim = tl.load(x_ptr + row * x_row_stride + col, mask=in_rim, other=-float("inf")).to(COMPUTE)
        softmax_rim = tl.exp2((x_rim - top) * LOG2_E - log_total)
        mean += tl.sum(softmax_rim * grad_rim)
        grad_rim = (softmax_rim * (grad_rim - mean)).to(grad_x_ptr.dtype.element_ty)
        tl.store(grad_x_ptr + row * cols + col, grad_rim, mask=in_rim)
    if AGAIN:
        end = tl.cdiv(whole, CHUNK) * CHUNK
        for back in tl.range(0, end - HELD * CHUNK, CHUNK):
            first = end - CHUNK - back
            at = first + place
            grad_y = tl.load(grad_y_first + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
            x = tl.load(x_first + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
            keep = kept_eights(seed, row, lead + first + group, within, p, FOURS)
            softmax = tl.exp2((x - top) * LOG2_E - log_total)
            grad_x = (softmax * (grad_y * tl.where(keep, scale, 0.0) - mean)).to(grad_x_ptr.dtype.element_ty)
            tl.store(grad_x_first + at, grad_x, mask=at < whole, eviction_policy="evict_first")
    zero = zero_after(mean, cols)
    for i in tl.static_range(HELD):
        at = i * CHUNK + place
        softmax = tl.exp2((widen(held_x[i], zero, DTYPE, COMPUTE) - top) * LOG2_E - log_total)
        grad_x = softmax * (widen(passed[i], zero, DTYPE, COMPUTE) * scale - mean)
        grad_x = grad_x.to(grad_x_ptr.dtype.element_ty)
        tl.store(grad_x_first + at, grad_x, mask=None if i < FULL else at < whole, eviction_policy="evict_first")


def _chosen(cols: int, dtype: torch.dtype, vector: int, ragged: bool, lanes: int, held: int) -> dict:
    held_chunks = chunks(cols, vector, ragged, lanes, 8, held)
    return {**held_chunks, "FOURS": begin_fours(cols, vector), "COMPUTE": arithmetic(dtype)}


@cache
def settings(cols: int, dtype: torch.dtype, vector: int, ragged: bool) -> dict:
    """Of the forward, by trial on an H200: constexprs and launch options. Few chunks held let an SM have more rows."""
    lanes, held = (256, 10 if cols <= 20480 else 8) if cols <= 32768 else (512, 2)
    if dtype.itemsize != 2 or vector == 1:
        lanes, held = 1024, 0
    return _chosen(cols, dtype, vector, ragged, lanes, held)


@cache
def backward_settings(cols: int, dtype: torch.dtype, vector: int, ragged: bool) -> dict:
    """Of the backward: no more registers than let an SM have two rows at a time, or one beyond 57344 columns."""
    if dtype.itemsize != 2 or vector == 1:
        lanes, held = 1024, 0
    elif cols <= 57344:
        lanes, held = (256, 5) if cols <= 10240 else (512, 4 if cols <= 16384 else 5 if cols <= 20480 else 3)
    else:
        lanes, held = 1024, 3
    chosen = _chosen(cols, dtype, vector, ragged, lanes, held)
    return {**chosen, "maxnreg": 64} if lanes == 512 else chosen


def forward(
    x: torch.Tensor, y: torch.Tensor, sums: torch.Tensor | None, seed: torch.Tensor, p: float, scale: float
) -> None:
    """Write y and, where it is given, sums; x is (rows, cols), columns side by side."""
    rows, cols = x.shape
    whole = vectors_of_rows(x, as_rows(y))
    chosen = settings(cols, x.dtype, *whole)
    softmax_dropout_wide_kernel[(rows,)](x, y, sums, seed, cols, x.stride(0), p, scale, *whole, **chosen)


def backward(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    sums: torch.Tensor,
    seed: torch.Tensor,
    grad_x: torch.Tensor,
    p: float,
    scale: float,
) -> None:
    """Write grad_x; grad_y and x are (rows, cols), columns side by side."""
    rows, cols = x.shape
    whole = vectors_of_rows(grad_y, x, as_rows(grad_x))
    sizes = cols, grad_y.stride(0), x.stride(0)
    softmax_dropout_backward_wide_kernel[(rows,)](
        grad_y, x, sums, seed, grad_x, *sizes, p, scale, *whole, **backward_settings(cols, x.dtype, *whole)
    )
