"""Tuned softmax_dropout and its gradient for rows of more than 8192 columns, partly packed in registers.

Rows are cached as in wide_softmax.py, but with registers left over for Philox; the rest of a row is read twice. The
mask is computed when y is written. The gradient is cached with its dropped elements already set to 0, so only columns
that are read twice need their mask twice. Rows of any alignment are accessed 16 bytes at a time, except for their edges
(segments.py).
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows
from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.op import like
from kernels.philox import begin_fours, kept_at, kept_eights, scale_of_kept
from kernels.rowwise.blocks import compute_dtype
from kernels.rowwise.softmax_dropout import sums_of
from kernels.tuned.packed import load_words, opaque_zero, pack, unpack
from kernels.tuned.segments import at_vector, edge, elements_before, in_edge, row_vectors
from kernels.tuned.wide_softmax import absorb_edge, chunks
from kernels.variants import tuned

MIN_COLUMNS = 8193


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
    VECTOR: tl.constexpr,  # elements of a 16-byte vector, and whether rows start or end within one:
    UNALIGNED: tl.constexpr,  # segments.py
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane: 8
    NUM_CACHED: tl.constexpr,  # chunks that stay in registers, NUM_UNMASKED of them full in every row
    NUM_UNMASKED: tl.constexpr,
    REREADS: tl.constexpr,  # whether there are more, which are read again
    FOURS: tl.constexpr,  # whether vectors begin with four neighbours of one evaluation: kernels/philox.py
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
):
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    CHUNK: tl.constexpr = LANES * EACH
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    misalignment = elements_before(row * x_row_stride, VECTOR, UNALIGNED)
    whole = at_vector(cols - misalignment, VECTOR)
    within = (row * cols % 4).to(tl.int32)
    x_first = x_ptr + at_vector(row * x_row_stride + misalignment, VECTOR)
    y_first = y_ptr + at_vector(row * cols + misalignment, VECTOR)
    group = tl.arange(0, LANES)[:, None] * EACH
    place = group + tl.arange(0, EACH)[None, :]
    cached = load_words(x_first, whole, -float("inf"), VECTOR, LANES, EACH, NUM_CACHED, NUM_UNMASKED)
    seed = tl.load(seed_ptr)
    peak = tl.full((LANES,), -float("inf"), COMPUTE)
    total = tl.zeros((LANES,), COMPUTE)
    for i in tl.static_range(NUM_CACHED):
        peak, total = absorb(peak, total, unpack(cached[i], 0, DTYPE, COMPUTE))
    if REREADS:
        for start in tl.range(NUM_CACHED * CHUNK, whole, CHUNK):
            at = start + place
            x = tl.load(x_first + at, mask=at < whole, other=-float("inf"), eviction_policy="evict_last").to(COMPUTE)
            peak, total = absorb(peak, total, x)
    top, total = combine(peak, total)
    if UNALIGNED:
        col, edge_mask = edge(misalignment, cols, VECTOR), in_edge(misalignment, whole, cols, VECTOR)
        x_edge = tl.load(x_ptr + row * x_row_stride + col, mask=edge_mask, other=-float("inf")).to(COMPUTE)
        top, total = absorb_edge(top, total, x_edge)
    if sums_ptr is not None:
        tl.store(sums_ptr + 2 * row, top)
        tl.store(sums_ptr + 2 * row + 1, tl.log2(total))
    # A product, as in PyTorch: NaN stays seen where it is dropped.
    if_kept, if_dropped = scale / total, 0.0 / total
    if UNALIGNED:
        kept_edge = kept_at(seed, row, within + col, p, 1, 2 * VECTOR)
        y_edge = tl.exp2((x_edge - top) * LOG2_E) * tl.where(kept_edge, if_kept, if_dropped)
        tl.store(y_ptr + row * cols + col, y_edge.to(y_ptr.dtype.element_ty), mask=edge_mask)
    if REREADS:
        end = tl.cdiv(whole, CHUNK) * CHUNK
        for back in tl.range(0, end - NUM_CACHED * CHUNK, CHUNK):
            first = end - CHUNK - back
            at = first + place
            x = tl.load(x_first + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
            keep = kept_eights(seed, row, misalignment + first + group, within, p, FOURS)
            y = tl.exp2((x - top) * LOG2_E) * tl.where(keep, if_kept, if_dropped)
            tl.store(y_first + at, y.to(y_ptr.dtype.element_ty), mask=at < whole, eviction_policy="evict_first")
    zero = opaque_zero(top, cols)
    for i in tl.static_range(NUM_CACHED):
        at = i * CHUNK + place
        x = unpack(cached[i], zero, DTYPE, COMPUTE)
        keep = kept_eights(seed, row, misalignment + i * CHUNK + group, within, p, FOURS)
        y = tl.exp2((x - top) * LOG2_E) * tl.where(keep, if_kept, if_dropped)
        y = y.to(y_ptr.dtype.element_ty)
        tl.store(y_first + at, y, mask=None if i < NUM_UNMASKED else at < whole, eviction_policy="evict_first")


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
    UNALIGNED: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    NUM_CACHED: tl.constexpr,
    NUM_UNMASKED: tl.constexpr,
    REREADS: tl.constexpr,
    FOURS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    CHUNK: tl.constexpr = LANES * EACH
    row = tl.program_id(0).to(tl.int64)
    misalignment = elements_before(row * cols, VECTOR, UNALIGNED)
    whole = at_vector(cols - misalignment, VECTOR)
    within = (row * cols % 4).to(tl.int32)
    grad_y_first = grad_y_ptr + at_vector(row * grad_y_row_stride + misalignment, VECTOR)
    x_first = x_ptr + at_vector(row * x_row_stride + misalignment, VECTOR)
    grad_x_first = grad_x_ptr + at_vector(row * cols + misalignment, VECTOR)
    group = tl.arange(0, LANES)[:, None] * EACH
    place = group + tl.arange(0, EACH)[None, :]
    top, log_total = tl.load(sums_ptr + 2 * row), tl.load(sums_ptr + 2 * row + 1)
    seed = tl.load(seed_ptr)
    cached_x = load_words(x_first, whole, -float("inf"), VECTOR, LANES, EACH, NUM_CACHED, NUM_UNMASKED)
    loaded = load_words(grad_y_first, whole, 0.0, VECTOR, LANES, EACH, NUM_CACHED, NUM_UNMASKED)
    sums = tl.zeros((LANES,), COMPUTE)
    passed = ()
    for i in tl.static_range(NUM_CACHED):
        keep = kept_eights(seed, row, misalignment + i * CHUNK + group, within, p, FOURS)
        grad_y = unpack(loaded[i], 0, DTYPE, COMPUTE) * tl.where(keep, 1.0, 0.0)
        sums += tl.sum(tl.exp2((unpack(cached_x[i], 0, DTYPE, COMPUTE) - top) * LOG2_E - log_total) * grad_y, axis=1)
        passed = passed + (pack(grad_y, DTYPE),)
    if REREADS:
        for start in tl.range(NUM_CACHED * CHUNK, whole, CHUNK):
            at = start + place
            grad_y = tl.load(grad_y_first + at, mask=at < whole, other=0.0, eviction_policy="evict_last").to(COMPUTE)
            x = tl.load(x_first + at, mask=at < whole, other=-float("inf"), eviction_policy="evict_last").to(COMPUTE)
            keep = kept_eights(seed, row, misalignment + start + group, within, p, FOURS)
            sums += tl.sum(tl.exp2((x - top) * LOG2_E - log_total) * grad_y * tl.where(keep, 1.0, 0.0), axis=1)
    mean = tl.sum(sums, axis=0) * scale
    if UNALIGNED:
        col, edge_mask = edge(misalignment, cols, VECTOR), in_edge(misalignment, whole, cols, VECTOR)
        kept_edge = kept_at(seed, row, within + col, p, 1, 2 * VECTOR)
        grad_edge = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=edge_mask, other=0.0).to(COMPUTE)
        grad_edge *= tl.where(kept_edge, scale, 0.0)
        x_edge = tl.load(x_ptr + row * x_row_stride + col, mask=edge_mask, other=-float("inf")).to(COMPUTE)
        softmax_edge = tl.exp2((x_edge - top) * LOG2_E - log_total)
        mean += tl.sum(softmax_edge * grad_edge)
        grad_edge = (softmax_edge * (grad_edge - mean)).to(grad_x_ptr.dtype.element_ty)
        tl.store(grad_x_ptr + row * cols + col, grad_edge, mask=edge_mask)
    if REREADS:
        end = tl.cdiv(whole, CHUNK) * CHUNK
        for back in tl.range(0, end - NUM_CACHED * CHUNK, CHUNK):
            first = end - CHUNK - back
            at = first + place
            grad_y = tl.load(grad_y_first + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
            x = tl.load(x_first + at, mask=at < whole, eviction_policy="evict_first").to(COMPUTE)
            keep = kept_eights(seed, row, misalignment + first + group, within, p, FOURS)
            softmax = tl.exp2((x - top) * LOG2_E - log_total)
            grad_x = (softmax * (grad_y * tl.where(keep, scale, 0.0) - mean)).to(grad_x_ptr.dtype.element_ty)
            tl.store(grad_x_first + at, grad_x, mask=at < whole, eviction_policy="evict_first")
    zero = opaque_zero(mean, cols)
    for i in tl.static_range(NUM_CACHED):
        at = i * CHUNK + place
        softmax = tl.exp2((unpack(cached_x[i], zero, DTYPE, COMPUTE) - top) * LOG2_E - log_total)
        grad_x = softmax * (unpack(passed[i], zero, DTYPE, COMPUTE) * scale - mean)
        grad_x = grad_x.to(grad_x_ptr.dtype.element_ty)
        mask = None if i < NUM_UNMASKED else at < whole
        tl.store(grad_x_first + at, grad_x, mask=mask, eviction_policy="evict_first")


def _chosen(cols: int, dtype: torch.dtype, vector: int, unaligned: bool, lanes: int, cached: int) -> dict:
    if dtype.itemsize != 2 or vector == 1:
        lanes, cached = 1024, 0
    chosen = chunks(cols, vector, unaligned, lanes, 8, cached)
    return {**chosen, "FOURS": begin_fours(cols, vector), "COMPUTE": compute_dtype(dtype)}


@cache
def settings(cols: int, dtype: torch.dtype, vector: int, unaligned: bool) -> dict:
    """Return the forward's constexprs and launch options, by trial on an H200: with few cached chunks, more rows fit
    per SM."""
    lanes, cached = (256, 10 if cols <= 20480 else 8) if cols <= 32768 else (512, 2)
    return _chosen(cols, dtype, vector, unaligned, lanes, cached)


@cache
def backward_settings(cols: int, dtype: torch.dtype, vector: int, unaligned: bool) -> dict:
    """Return the backward's constexprs and launch options: registers for two rows per SM, for one beyond 57344
    columns."""
    lanes, cached = (256, 5) if cols <= 10240 else (512, 4 if cols <= 16384 else 5 if cols <= 20480 else 3)
    if cols > 57344:
        lanes = 1024
    chosen = _chosen(cols, dtype, vector, unaligned, lanes, cached)
    return {**chosen, "maxnreg": 64} if chosen["LANES"] == 512 else chosen


def _launch(x: torch.Tensor, sums: torch.Tensor | None, seed: torch.Tensor, p: float) -> torch.Tensor:
    y, x = like(x), as_rows(x)
    rows, cols = x.shape
    vectors = row_vectors(x, as_rows(y))
    sizes = cols, x.stride(0), float(p), scale_of_kept(p)
    with torch.cuda.device_of(x):
        softmax_dropout_wide_kernel[(rows,)](x, y, sums, seed, *sizes, *vectors, **settings(cols, x.dtype, *vectors))
    return y


def _compile_arguments(*shape: int, dtype: torch.dtype):
    x, seed = torch.empty(shape, dtype=dtype, device="meta"), torch.empty((), dtype=torch.int64, device="meta")
    cols, vectors = shape[-1], row_vectors(x)
    if cols < MIN_COLUMNS:
        return None
    arguments = x, x, None, seed, cols, cols, 0.1, scale_of_kept(0.1), *vectors
    return softmax_dropout_wide_kernel, arguments, settings(cols, dtype, *vectors)


def _takes(x: torch.Tensor, *_) -> bool:
    return x.shape[-1] >= MIN_COLUMNS and x.numel() > 0


GAIN = "1.1x at 2048 x 32000, 1.4x at 2048 x 12288, 2.5x at 2048 x 50257 (H100, bf16)"


@tuned("softmax_dropout", "forward", takes=_takes, gain=GAIN, compile_arguments=_compile_arguments)
def forward(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    """Return dropout(softmax(x))."""
    return _launch(x, None, seed, p)


@tuned("softmax_dropout", "training", takes=_takes, gain=GAIN)
def training(x: torch.Tensor, seed: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dropout(softmax(x)), each row's maximum, and log2 of its sum."""
    sums = sums_of(x)
    return _launch(x, sums, seed, p), sums


@tuned(
    "softmax_dropout",
    "backward",
    takes=lambda _, x, *rest: _takes(x),
    gain="1.3x at 4194 x 32000, 1.5x at 10923 x 12288, 1.9x at 2670 x 50264 (H100, bf16)",
)
def backward(grad_y: torch.Tensor, x: torch.Tensor, sums: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    """Return the gradient of x."""
    grad_x, x, grad_y = like(x), as_rows(x), as_rows(grad_y)
    rows, cols = x.shape
    vectors = row_vectors(grad_y, x, as_rows(grad_x))
    sizes = cols, grad_y.stride(0), x.stride(0), float(p), scale_of_kept(p)
    chosen = backward_settings(cols, x.dtype, *vectors)
    with torch.cuda.device_of(x):
        softmax_dropout_backward_wide_kernel[(rows,)](grad_y, x, sums, seed, grad_x, *sizes, *vectors, **chosen)
    return grad_x
