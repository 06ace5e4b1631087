"""Rows too wide for registers, read from memory once: what norm_wide.py and layer_norm_int8_wide.py have in common.

A row is seen in tiles of LANES neighbouring columns, GROUP of them at a time. Its last, KEPT tiles and the rim
(kernels/vectors.py), stay in registers; the others are read again, from its end back to its start. What was
read last is still in the L1 cache, so that memory sees little of it.
On an H200, 1024 rows of 131072 in bf16 take rms_norm 150 us, and 207 where both reads go to L2.

Each lane takes the mean and variance of its own elements, one from each tile, by Welford's update, and lanes meet once
for the whole row. A constant row's are exact: no lane ever moves.

Source: Welford, "Note on a method for calculating corrected sums of squares and products", Technometrics 4, 1962.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.rowwise.normalise import over
from kernels.vectors import VECTOR_BYTES, at_vector, inside_rim, rim


@triton.jit
def places(start, NUMBER: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr):
    """Where the elements of so many tiles are, counted from the row's first whole vector."""
    # Of more than a vector side by side a thread would store 16 bytes of int8, and load as many columns in two halves.
    lane = tl.max_contiguous(tl.multiple_of(tl.arange(0, LANES), VECTOR), VECTOR)
    at = ()
    for i in tl.static_range(NUMBER):
        at = at + (start + i * LANES + lane,)
    return at


@triton.jit
def last_places(end, lead, cols, VECTOR: tl.constexpr, RAGGED: tl.constexpr, LANES: tl.constexpr, KEPT: tl.constexpr):
    """Places of the tiles from `end` on, and of the rim of RAGGED rows; and which of these a row of `cols` has."""
    whole = at_vector(cols - lead, VECTOR)
    at = places(end, KEPT, LANES, VECTOR)
    inside = ()
    for i in tl.static_range(KEPT):
        inside = inside + (at[i] < whole,)
    if RAGGED:
        at, inside = at + (rim(lead, cols, VECTOR) - lead,), inside + (inside_rim(lead, whole, cols, VECTOR),)
    return at, inside


@triton.jit
def load_tiles(x_ptr, residual_ptr, at, inside, POLICY: tl.constexpr, COMPUTE: tl.constexpr):
    """Tiles of x, or of x + residual in COMPUTE, 0 where not `inside`, None if all are."""
    x = ()
    for i in tl.static_range(len(at)):
        mask = None if inside is None else inside[i]
        other = None if inside is None else 0.0
        tile = tl.load(x_ptr + at[i], mask=mask, other=other, eviction_policy=POLICY)
        if residual_ptr is not None:
            more = tl.load(residual_ptr + at[i], mask=mask, other=other, eviction_policy=POLICY)
            tile = tile.to(COMPUTE) + more.to(COMPUTE)
        x = x + (tile,)
    return x


@triton.jit
def store_tiles(y_ptr, at, inside, y):
    for i in tl.static_range(len(at)):
        mask = None if inside is None else inside[i]
        # What is written should not drive out of the L1 cache what is still to be read again.
        tl.store(y_ptr + at[i], y[i].to(y_ptr.dtype.element_ty), mask=mask, eviction_policy="evict_first")


@triton.jit
def with_element(mean, squares, x, count, CENTRED: tl.constexpr):
    """Mean, and sum of squares about it, of each lane's `count` elements, of which x is the last; about 0 unless
    CENTRED."""
    if CENTRED:
        moved = x - mean
        mean += moved * (1.0 / tl.cast(count, mean.dtype))
        squares += moved * (x - mean)
    else:
        squares += x * x
    return mean, squares


@triton.jit
def of_lanes(mean, squares, others, in_others, whole, cols, CENTRED: tl.constexpr):
    """Mean and variance of a row from its lanes', which share `whole` elements, and its `others`, a rim or None."""
    if CENTRED:
        LANES: tl.constexpr = mean.shape[0]
        count = ((whole - tl.arange(0, LANES) + LANES - 1) // LANES).to(mean.dtype)  # a lane without elements has 0
        origin = tl.sum(mean, axis=0) / tl.minimum(whole, LANES)
        moved = tl.where(count > 0, mean - origin, 0.0)
        off, total = tl.sum(moved * count, axis=0), tl.sum(squares + moved * moved * count, axis=0)
        if others is not None:
            apart = tl.where(in_others, others - origin, 0.0)
            off, total = off + tl.sum(apart), total + tl.sum(apart * apart)
        off = over(off, tl.cast(cols, off.dtype))
        middle = origin + off
        variance = tl.maximum(total / cols - off * off, 0.0, propagate_nan=tl.PropagateNan.ALL)
    else:
        total = tl.sum(squares, axis=0)
        if others is not None:
            total += tl.sum(others * others)
        middle, variance = tl.cast(0.0, mean.dtype), total / cols
    return middle, variance


@triton.jit
def read_row(
    x_ptr,  # to the first whole vector of a row, as the next two, which may be None
    residual_ptr,
    sum_ptr,  # where x + residual is written
    lead,  # elements before that vector
    cols,
    VECTOR: tl.constexpr,  # of rows: kernels/vectors.py
    RAGGED: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
    KEPT: tl.constexpr,
    CENTRED: tl.constexpr,  # else the mean is 0, and the mean square stands for the variance
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    """Mean and variance of x, or of x + residual; where what is to be read again ends; and what is not: its places,
    which of them the row has, and its tiles."""
    whole = at_vector(cols - lead, VECTOR)
    # At most KEPT tiles are left, of which the last may be empty.
    end = tl.cdiv(tl.maximum(tl.cdiv(whole, LANES) - KEPT, 0), GROUP) * (GROUP * LANES)
    mean, squares = tl.zeros((LANES,), COMPUTE), tl.zeros((LANES,), COMPUTE)
    for start in tl.range(0, end, GROUP * LANES):
        at = places(start, GROUP, LANES, VECTOR)
        x = load_tiles(x_ptr, residual_ptr, at, None, "evict_last", COMPUTE)
        if residual_ptr is not None:
            store_tiles(sum_ptr, at, None, x)
        for i in tl.static_range(GROUP):
            mean, squares = with_element(mean, squares, x[i].to(COMPUTE), start // LANES + i + 1, CENTRED)
    last, inside = last_places(end, lead, cols, VECTOR, RAGGED, LANES, KEPT)
    kept = load_tiles(x_ptr, residual_ptr, last, inside, "evict_first", COMPUTE)
    if residual_ptr is not None:
        store_tiles(sum_ptr, last, inside, kept)
    for i in tl.static_range(KEPT):
        tile = kept[i].to(COMPUTE)
        if CENTRED:  # a lane without an element there has its mean in its place, which changes nothing
            tile = tl.where(inside[i], tile, mean)
        mean, squares = with_element(mean, squares, tile, end // LANES + i + 1, CENTRED)
    others, in_others = None, None
    if RAGGED:
        others, in_others = kept[KEPT].to(COMPUTE), inside[KEPT]
    middle, variance = of_lanes(mean, squares, others, in_others, whole, cols, CENTRED)
    return middle, variance, end, last, inside, kept


@triton.jit
def scaled(x, mean, rstd, weight_ptr, bias_ptr, at, inside, COMPUTE: tl.constexpr):
    """(x - mean) rstd weight + bias, in COMPUTE, of tiles; bias_ptr may be None."""
    weight = load_tiles(weight_ptr, None, at, inside, "evict_first", COMPUTE)
    if bias_ptr is not None:
        bias = load_tiles(bias_ptr, None, at, inside, "evict_first", COMPUTE)
    y = ()
    for i in tl.static_range(len(x)):
        tile = (x[i].to(COMPUTE) - mean) * rstd * weight[i].to(COMPUTE)
        if bias_ptr is not None:
            tile += bias[i].to(COMPUTE)
        y = y + (tile,)
    return y


@cache
def settings(cols: int, dtype: torch.dtype, ragged: bool, tensors: int = 1) -> dict:
    """LANES, GROUP, KEPT, num_warps and maxnreg, where a row is the sum of so many `tensors`' rows.

    An SM has as many rows at once as its L1 cache and registers hold: two of up to 128 KB, or one; two of RAGGED ones
    in 16 bits, whose weights come in single elements. A thread asks for 64 bytes at once, and keeps as many; 32 where
    what is kept is a sum, or weights take the registers.
    """
    narrow, vector = dtype.itemsize == 2, VECTOR_BYTES // dtype.itemsize
    warps = 16 if (ragged and narrow) or cols * dtype.itemsize * tensors <= 2**17 else 32
    tiles = (32 if narrow and tensors == 1 and not ragged else 16) // vector
    return {"LANES": 32 * vector * warps, "GROUP": tiles, "KEPT": tiles, "num_warps": warps, "maxnreg": 64}
