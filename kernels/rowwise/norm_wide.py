"""Norms of rows beyond 32768 columns, which leave no room in registers: layer_norm, rms_norm, and both of x + residual.

A row is read from memory once, for its mean and variance; what comes last stays in registers, and the rest is read
again from its end back to its start. What was read last is still in the L1 cache, so that memory sees little of it.

Each lane takes the mean and variance of its own elements, one from each chunk, by Welford's update, and lanes meet once
for all chunks. A constant row's are exact: no lane ever moves.

Source: Welford, "Note on a method for calculating corrected sums of squares and products", Technometrics 4 (1962);
lanes are merged as in kernels/rowwise/normalise.py.
"""

import torch
import triton
import triton.language as tl

from kernels.activations import activate
from kernels.arguments import as_rows, given
from kernels.rowwise.normalise import over
from kernels.rowwise.pieces import arithmetic, elements_before, pieces_of
from kernels.rowwise.softmax_wide import rim


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
def load_chunks(x_ptr, residual_ptr, at, whole, NUMBER: tl.constexpr, POLICY: tl.constexpr, COMPUTE: tl.constexpr):
    """Chunks of x, or of x + residual in COMPUTE, the first of them `at` these places; 0 from `whole` on, if given."""
    OTHER: tl.constexpr = None if whole is None else 0.0
    chunks = ()
    for i in tl.static_range(NUMBER):
        place = at + i * at.shape[0]
        mask = None if whole is None else place < whole
        x = tl.load(x_ptr + place, mask=mask, other=OTHER, eviction_policy=POLICY)
        if residual_ptr is not None:
            more = tl.load(residual_ptr + place, mask=mask, other=OTHER, eviction_policy=POLICY)
            x = x.to(COMPUTE) + more.to(COMPUTE)
        chunks = chunks + (x,)
    return chunks


@triton.jit
def store_chunks(y_ptr, at, whole, y):
    """Chunks at the places of load_chunks."""
    for i in tl.static_range(len(y)):
        place = at + i * at.shape[0]
        mask = None if whole is None else place < whole
        # What is written should not drive out of the L1 cache what is still to be read again.
        tl.store(y_ptr + place, y[i].to(y_ptr.dtype.element_ty), mask=mask, eviction_policy="evict_first")


@triton.jit
def of_row(mean, squares, of_rim, in_rim, place, whole, cols, RAGGED: tl.constexpr, CENTRED: tl.constexpr):
    """Mean and variance of a row from its lanes' and its rim; lane `place` has every LANES-th of `whole` elements."""
    LANES: tl.constexpr = mean.shape[0]
    if CENTRED:
        origin = tl.sum(mean, axis=0) / LANES
        count = ((whole - place + LANES - 1) // LANES).to(mean.dtype)
        apart = mean - origin
        off, squares = tl.sum(apart * count, axis=0), tl.sum(squares + apart * apart * count, axis=0)
        if RAGGED:
            apart_rim = tl.where(in_rim, of_rim - origin, 0.0)
            off += tl.sum(apart_rim, axis=0)
            squares += tl.sum(apart_rim * apart_rim, axis=0)
        off = over(off, tl.cast(cols, off.dtype))
        middle = origin + off
        variance = tl.maximum(squares / cols - off * off, 0.0, propagate_nan=tl.PropagateNan.ALL)
    else:
        total = tl.sum(squares, axis=0)
        if RAGGED:
            total += tl.sum(of_rim * of_rim, axis=0)
        middle, variance = tl.cast(0.0, mean.dtype), total / cols
    return middle, variance


@triton.jit
def scaled(x, mean, rstd, weight_ptr, bias_ptr, at, whole, ACT: tl.constexpr, DTYPE: tl.constexpr):
    """What is stored, in DTYPE, of the columns of chunks; weight and bias begin with the first place's, and bias_ptr
    may be None."""
    COMPUTE: tl.constexpr = mean.dtype
    weight = load_chunks(weight_ptr, None, at, whole, len(x), "", COMPUTE)
    if bias_ptr is not None:
        bias = load_chunks(bias_ptr, None, at, whole, len(x), "", COMPUTE)
    y = ()
    for i in tl.static_range(len(x)):
        z = (x[i].to(COMPUTE) - mean) * rstd * weight[i].to(COMPUTE)
        if bias_ptr is not None:
            z += bias[i].to(COMPUTE)
        y = y + (z.to(DTYPE) if ACT is None else activate(z, ACT, DTYPE).to(DTYPE),)
    return y


@triton.jit
def norm_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    residual_ptr,  # the same, x's dtype, or None where nothing is added to x
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,), or None
    y_ptr,  # (rows, cols), contiguous, x's dtype
    sum_ptr,  # (rows, cols), contiguous, x's dtype: x + residual, or None
    rstd_ptr,  # (rows,), in COMPUTE: 1 / sqrt(variance + eps), or None
    cols,
    x_row_stride,
    residual_row_stride,
    eps,
    VECTOR: tl.constexpr,  # elements of a vector of 16 bytes, and whether rows begin or end within one:
    RAGGED: tl.constexpr,  # kernels/rowwise/pieces.py
    LANES: tl.constexpr,  # elements of a chunk
    GROUP: tl.constexpr,  # chunks that are asked for at once
    KEPT: tl.constexpr,  # the last chunks, fewer than a row has, that stay in registers
    CENTRED: tl.constexpr,  # the mean is subtracted; or not, and the mean square stands for the variance
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    lead = elements_before(row * x_row_stride, VECTOR, RAGGED)
    whole = (cols - lead) // VECTOR * VECTOR
    x_first = x_ptr + (row * x_row_stride + lead) // VECTOR * VECTOR
    y_first = y_ptr + (row * cols + lead) // VECTOR * VECTOR
    residual_first = None
    if residual_ptr is not None:
        residual_first = residual_ptr + (row * residual_row_stride + lead) // VECTOR * VECTOR
        sum_first = sum_ptr + (row * cols + lead) // VECTOR * VECTOR
    place = tl.arange(0, LANES)
    # Of what is read twice, and what is left: at most the KEPT, of which the last may be empty.
    chunks = tl.cdiv(tl.cdiv(whole, LANES) - KEPT, GROUP) * GROUP
    mean, squares = tl.zeros((LANES,), COMPUTE), tl.zeros((LANES,), COMPUTE)
    for chunk in tl.range(0, chunks, GROUP):
        at = chunk * LANES + place
        x = load_chunks(x_first, residual_first, at, None, GROUP, "evict_last", COMPUTE)
        if residual_ptr is not None:
            store_chunks(sum_first, at, None, x)
        for i in tl.static_range(GROUP):
            mean, squares = with_element(mean, squares, x[i].to(COMPUTE), chunk + i + 1, CENTRED)
    at = chunks * LANES + place
    kept = load_chunks(x_first, residual_first, at, whole, KEPT, "evict_first", COMPUTE)
    if residual_ptr is not None:
        store_chunks(sum_first, at, whole, kept)
    for i in tl.static_range(KEPT):
        # A lane without an element there has its mean in its place, which changes nothing.
        last = kept[i].to(COMPUTE)
        if CENTRED:
            last = tl.where(at + i * LANES < whole, last, mean)
        mean, squares = with_element(mean, squares, last, chunks + i + 1, CENTRED)
    of_rim, in_rim = 0.0, False
    if RAGGED:
        col, in_rim = rim(cols, lead, whole, VECTOR)
        of_rim = tl.load(x_ptr + row * x_row_stride + col, mask=in_rim, other=0.0).to(COMPUTE)
        if residual_ptr is not None:
            of_rim += tl.load(residual_ptr + row * residual_row_stride + col, mask=in_rim, other=0.0).to(COMPUTE)
            tl.store(sum_ptr + row * cols + col, of_rim.to(DTYPE), mask=in_rim)
    middle, variance = of_row(mean, squares, of_rim, in_rim, place, whole, cols, RAGGED, CENTRED)
    rstd = tl.rsqrt(variance + eps)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd)
    weight_first, bias_first = weight_ptr + lead, None
    if bias_ptr is not None:
        bias_first = bias_ptr + lead
    if RAGGED:
        y_rim = scaled((of_rim,), middle, rstd, weight_ptr, bias_ptr, tl.where(in_rim, col, 0), None, ACT, DTYPE)
        tl.store(y_ptr + row * cols + col, y_rim[0], mask=in_rim)
    store_chunks(y_first, at, whole, scaled(kept, middle, rstd, weight_first, bias_first, at, whole, ACT, DTYPE))
    for back in tl.range(GROUP, chunks + GROUP, GROUP):
        at = (chunks - back) * LANES + place
        x = load_chunks(x_first, residual_first, at, None, GROUP, "evict_first", COMPUTE)
        store_chunks(y_first, at, None, scaled(x, middle, rstd, weight_first, bias_first, at, None, ACT, DTYPE))


def settings(cols: int, dtype: torch.dtype, tensors: int) -> dict:
    """LANES, GROUP, KEPT and num_warps: as many rows at once on an SM as its L1 cache and registers can have again.

    A thread keeps 64 bytes, and has at most 64 registers.
    """
    warps, vector = 16 if cols * dtype.itemsize * tensors <= 2**17 else 32, 16 // dtype.itemsize
    kept = 32 if dtype.itemsize == 2 and tensors == 1 else 16
    chosen = {"LANES": 32 * vector * warps, "GROUP": 16 // vector, "KEPT": kept // vector}
    return {**chosen, "num_warps": warps, "maxnreg": 64}


def forward(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    y: torch.Tensor,
    total: torch.Tensor | None,
    rstd: torch.Tensor | None,
    eps: float,
    centred: bool,
    act: str | None = None,
) -> None:
    """Write y and, where they are given, x + residual into total and each row's 1 / sqrt(variance + eps) into rstd."""
    rows, cols = x.shape
    of_rows = given(residual=residual, y=y, total=total).values()
    _, _, vector, ragged = pieces_of(x, *map(as_rows, of_rows))
    norm_wide_kernel[(rows,)](
        *(x, residual, weight, bias, y, total, rstd, cols, x.stride(0), 0 if residual is None else residual.stride(0)),
        eps,
        *(vector, ragged),
        CENTRED=centred,
        ACT=act,
        COMPUTE=arithmetic(x.dtype),
        **settings(cols, x.dtype, 1 if residual is None else 2),
    )
