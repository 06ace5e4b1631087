"""softmax of rows beyond 12288 columns, and gradients of rows beyond 10240: what leaves no room for another program.

A row is read once for its maximum and sum, which one pass finds together (kernels/online_softmax.py), and is wanted
again to write y. 16-bit elements wait in registers as they came, two to each, a chunk after another, in rows of up to
20480 columns; beyond 65536 the last waits, not packed. The rest is read again from its end back, and is mostly still in
the L1 cache: by an H200's counters 16 % of a second read of 65536 columns goes beyond. A few rows, and gradients of
those beyond 65536 columns, are shared by clusters of programs where a GPU has them: softmax_clusters.py.

On an H200, bf16, us (with nothing held, or in fp32): 9362 x 14336 take 136 (147), 7282 x 18432 136 (151). Wider rows
held wholly leave an SM one program and nothing to do between its reads and writes: 2048 x 65536 take 175 (142).
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, cdiv
from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.rowwise import clusters, softmax_clusters
from kernels.rowwise.packed import load_words, widen, zero_after
from kernels.rowwise.pieces import arithmetic
from kernels.vectors import at_vector, elements_before, inside_rim, rim, vectors_of_rows


@triton.jit
def absorb_rim(top, total, x):
    """A row's maximum and sum after those outside of its whole vectors, x."""
    higher = tl.maximum(top, tl.max(x))
    return higher, total * tl.exp2((top - higher) * LOG2_E) + tl.sum(tl.exp2((x - higher) * LOG2_E))


@triton.jit
def softmax_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    cols,
    x_row_stride,
    VECTOR: tl.constexpr,  # elements of a vector of 16 bytes, and whether rows begin or end within one:
    RAGGED: tl.constexpr,  # kernels/vectors.py
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane
    HELD: tl.constexpr,  # chunks that stay in registers, the last ones
    FULL: tl.constexpr,  # of them, those that are full in every row
    AGAIN: tl.constexpr,  # whether there are more, which are read again
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    CHUNK: tl.constexpr = LANES * EACH
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * x_row_stride, VECTOR, RAGGED)
    whole = at_vector(cols - lead, VECTOR)
    x_first = x_ptr + at_vector(row * x_row_stride + lead, VECTOR)
    y_first = y_ptr + at_vector(row * cols + lead, VECTOR)
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    peak = tl.full((LANES,), -float("inf"), COMPUTE)
    total = tl.zeros((LANES,), COMPUTE)
    end = 0  # of what is read twice
    if AGAIN:
        end = (tl.cdiv(at_vector(cols, VECTOR), CHUNK) - HELD) * CHUNK
        for start in tl.range(0, end, CHUNK):
            at = start + place
            x = tl.load(x_first + at, mask=at < whole, other=-float("inf"), eviction_policy="evict_last").to(COMPUTE)
            peak, total = absorb(peak, total, x)
    if AGAIN:  # packing pays where a whole row waits
        held = ()
        for i in tl.static_range(HELD):
            at = end + i * CHUNK + place
            x = tl.load(x_first + at, mask=at < whole, other=-float("inf"), eviction_policy="evict_first")
            held = held + (x,)
    else:
        held = load_words(x_first, whole, -float("inf"), VECTOR, LANES, EACH, HELD, FULL)
    for i in tl.static_range(HELD):
        peak, total = absorb(peak, total, widen(held[i], 0, DTYPE, COMPUTE))
    top, total = combine(peak, total)
    if RAGGED:
        col, in_rim = rim(lead, cols, VECTOR), inside_rim(lead, whole, cols, VECTOR)
        x_rim = tl.load(x_ptr + row * x_row_stride + col, mask=in_rim, other=-float("inf")).to(COMPUTE)
        top, total = absorb_rim(top, total, x_rim)
    shift = tl.log2(total)  # dividing by the total is subtracting its logarithm, and costs no operation more
    if RAGGED:
        y_rim = tl.exp2((x_rim - top) * LOG2_E - shift)
        tl.store(y_ptr + row * cols + col, y_rim.to(y_ptr.dtype.element_ty), mask=in_rim)
    zero = zero_after(shift, cols)
    for i in tl.static_range(HELD):
        x = widen(held[i], zero, DTYPE, COMPUTE)
        y = tl.exp2((x - top) * LOG2_E - shift).to(y_ptr.dtype.element_ty)
        at = end + i * CHUNK + place
        tl.store(y_first + at, y, mask=None if i < FULL else at < whole, eviction_policy="evict_first")
    if AGAIN:
        for back in tl.range(0, end, CHUNK):
            at = end - CHUNK - back + place
            x = tl.load(x_first + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
            y = tl.exp2((x - top) * LOG2_E - shift).to(y_ptr.dtype.element_ty)
            # What is written should not drive out of the L1 cache what is still to be read again.
            tl.store(y_first + at, y, mask=at < whole, eviction_policy="evict_first")


@triton.jit
def softmax_backward_wide_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    cols,
    grad_y_row_stride,
    VECTOR: tl.constexpr,
    RAGGED: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    HELD: tl.constexpr,  # here the first ones
    FULL: tl.constexpr,
    AGAIN: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    CHUNK: tl.constexpr = LANES * EACH
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * cols, VECTOR, RAGGED)
    whole = at_vector(cols - lead, VECTOR)
    grad_y_first = grad_y_ptr + at_vector(row * grad_y_row_stride + lead, VECTOR)
    offset = at_vector(row * cols + lead, VECTOR)
    y_first, grad_x_first = y_ptr + offset, grad_x_ptr + offset
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    held_grad_y = load_words(grad_y_first, whole, 0.0, VECTOR, LANES, EACH, HELD, FULL)
    held_y = load_words(y_first, whole, 0.0, VECTOR, LANES, EACH, HELD, FULL)
    sums = tl.zeros((LANES,), COMPUTE)
    for i in tl.static_range(HELD):
        sums += tl.sum(widen(held_grad_y[i], 0, DTYPE, COMPUTE) * widen(held_y[i], 0, DTYPE, COMPUTE), axis=1)
    if AGAIN:
        for start in tl.range(HELD * CHUNK, whole, CHUNK):
            at = start + place
            grad_y = tl.load(grad_y_first + at, mask=at < whole, other=0.0, eviction_policy="evict_last").to(COMPUTE)
            y = tl.load(y_first + at, mask=at < whole, other=0.0, eviction_policy="evict_last").to(COMPUTE)
            sums += tl.sum(grad_y * y, axis=1)
    mean = tl.sum(sums, axis=0)
    if RAGGED:
        col, in_rim = rim(lead, cols, VECTOR), inside_rim(lead, whole, cols, VECTOR)
        grad_y_rim = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=in_rim, other=0.0).to(COMPUTE)
        y_rim = tl.load(y_ptr + row * cols + col, mask=in_rim, other=0.0).to(COMPUTE)
        mean += tl.sum(grad_y_rim * y_rim)
        grad_x_rim = (y_rim * (grad_y_rim - mean)).to(grad_x_ptr.dtype.element_ty)
        tl.store(grad_x_ptr + row * cols + col, grad_x_rim, mask=in_rim)
    if AGAIN:
        end = tl.cdiv(whole, CHUNK) * CHUNK
        for back in tl.range(0, end - HELD * CHUNK, CHUNK):
            at = end - CHUNK - back + place
            grad_y = tl.load(grad_y_first + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
            y = tl.load(y_first + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
            grad_x = (y * (grad_y - mean)).to(grad_x_ptr.dtype.element_ty)
            tl.store(grad_x_first + at, grad_x, mask=at < whole, eviction_policy="evict_first")
    zero = zero_after(mean, cols)
    for i in tl.static_range(HELD):
        y = widen(held_y[i], zero, DTYPE, COMPUTE)
        grad_x = (y * (widen(held_grad_y[i], zero, DTYPE, COMPUTE) - mean)).to(grad_x_ptr.dtype.element_ty)
        at = i * CHUNK + place
        tl.store(grad_x_first + at, grad_x, mask=None if i < FULL else at < whole, eviction_policy="evict_first")


def chunks(cols: int, vector: int, ragged: bool, lanes: int, each: int, held: int) -> dict:
    """LANES, EACH, HELD, FULL and AGAIN for rows of `cols` columns, at most `held` chunks in registers from the first.

    Only in whole vectors of 16-bit elements are there two to a register; of others there is room for half as many.
    """
    least = (cols - (2 * vector - 2 if ragged else 0)) // vector * vector
    there = cdiv(cols // vector * vector, lanes * each)
    chosen = {"LANES": lanes, "EACH": each, "HELD": min(held, there), "FULL": min(held, least // (lanes * each))}
    return {**chosen, "AGAIN": there > held, "num_warps": lanes // 32}


@cache
def settings(cols: int, dtype: torch.dtype, vector: int, ragged: bool) -> dict:
    """Of the forward, by trial on an H200: constexprs and launch options.

    Rows of up to 20480 columns are held, by 8 warps each: an SM has four of them. Wider, as many rows at once on an SM
    as its L1 cache can have again, and at least 32 warps; one beyond 65536 columns, whose last 32768 are held.
    """
    if dtype.itemsize == 2 and vector > 1 and (cols <= 20480 or cols > 65536):
        if cols <= 20480:
            return {**chunks(cols, vector, ragged, 256, 8, 10), "maxnreg": 64}
        return {**chunks(cols, vector, ragged, 1024, 32, 1), "FULL": 0}
    if dtype.itemsize == 4 and vector > 1 and cols <= 16384:
        return chunks(cols, vector, ragged, 512, 4, 8)
    return chunks(cols, vector, ragged, 512 if cols <= 32768 else 1024, 16, 0)


@cache
def backward_settings(cols: int, dtype: torch.dtype, vector: int, ragged: bool) -> dict:
    """Of the backward, by trial on an H200: in 16 bits both rows are held up to 32768 columns, which leaves an SM two
    programs up to 20480; of wider ones 49152 columns, or 40960 beside rims."""
    if dtype.itemsize != 2 or vector == 1:
        return chunks(cols, vector, ragged, 1024, 16, 0)
    if cols <= 20480:
        return chunks(cols, vector, ragged, 512, 8, 5)
    if cols <= 32768:
        return chunks(cols, vector, ragged, 1024, 8, 4)
    return {**chunks(cols, vector, ragged, 1024, 8, 5 if ragged else 6), "maxnreg": 64}


def forward(x: torch.Tensor, y: torch.Tensor) -> None:
    """Write y; x is (rows, cols), columns side by side."""
    rows, cols = x.shape
    vector, ragged = vectors_of_rows(x, as_rows(y))
    if clusters.take(x, vector, ragged):
        softmax_clusters.forward(x, y)
    else:
        chosen = settings(cols, x.dtype, vector, ragged)
        softmax_wide_kernel[(rows,)](x, y, cols, x.stride(0), vector, ragged, COMPUTE=arithmetic(x.dtype), **chosen)


def backward(grad_y: torch.Tensor, y: torch.Tensor, grad_x: torch.Tensor) -> None:
    """Write grad_x; grad_y is (rows, cols), columns side by side."""
    rows, cols = grad_y.shape
    vector, ragged = vectors_of_rows(grad_y, as_rows(y), as_rows(grad_x))
    if clusters.take(grad_y, vector, ragged, tensors=2):
        softmax_clusters.backward(grad_y, y, grad_x)
    else:
        softmax_backward_wide_kernel[(rows,)](
            *(grad_y, y, grad_x, cols, grad_y.stride(0), vector, ragged),
            COMPUTE=arithmetic(y.dtype),
            **backward_settings(cols, y.dtype, vector, ragged),
        )
