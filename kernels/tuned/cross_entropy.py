"""Tuned cross entropy and its gradient: 16-byte accesses at any alignment, and a grid chosen by rows, width and SMs.

Each lane keeps its own maximum and sum, and the lanes combine them once, at the end of the row; the plain kernel
reduces every chunk. Rows whose size is not a multiple of 16 bytes, such as 50257 logits, are still accessed 16 bytes at
a time, except at their edges (segments.py). Short rows share a warp; if there are few rows, each gets more warps.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import MULTIPROCESSORS, as_rows, cdiv, largest_power_of_2, multiprocessors, next_power_of_2
from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.op import like
from kernels.rowwise.blocks import compute_dtype
from kernels.rowwise.cross_entropy import gradient, per_row
from kernels.tuned.segments import VECTOR_BYTES, at_vector, edge, elements_before, in_edge, row_vectors
from kernels.variants import tuned


@triton.jit
def seen_with(peak, total, plain, x, inside, origin, SMOOTHED: tl.constexpr):
    """Return each lane's peak, total and, if SMOOTHED, sum of x - origin with those of x included."""
    x = x.to(peak.dtype)
    peak, total = absorb(peak, total, x)
    if SMOOTHED:
        plain += tl.sum(tl.where(inside, x - origin[:, None, None], 0.0), axis=2)
    return peak, total, plain


@triton.jit
def cross_entropy_vectors_kernel(
    x_ptr,  # (rows, classes), any row stride, unit column stride
    labels_ptr,  # (rows,) int64
    losses_ptr,  # (rows,) COMPUTE
    sums_ptr,  # (rows, 2) COMPUTE: maximum, log2 of the sum; or None where no backward pass will ask for them
    rows,
    classes,
    x_row_stride,
    ignore_index,
    smoothing,
    SMOOTHED: tl.constexpr,  # whether smoothing is not 0
    VECTOR: tl.constexpr,  # elements of a 16-byte vector, and whether rows start or end within one:
    UNALIGNED: tl.constexpr,  # segments.py
    BLOCK_ROWS: tl.constexpr,
    LANES: tl.constexpr,  # which have a maximum and a sum of their own, of
    EACH: tl.constexpr,  # neighbouring columns at a time
    STAGES: tl.constexpr,  # blocks of columns in flight at once, plus one
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    label = tl.load(labels_ptr + row, mask=row < rows, other=0)
    here = (row < rows)[:, None, None]
    start = (row * x_row_stride)[:, None, None]
    misalignment = elements_before(start, VECTOR, UNALIGNED)
    whole = at_vector(classes - misalignment, VECTOR)
    at = x_ptr + at_vector(start + misalignment, VECTOR)
    place = tl.arange(0, LANES)[None, :, None] * EACH + tl.arange(0, EACH)[None, None, :]
    inside = here & (place < whole)
    x = tl.load(at + place, mask=inside, other=-float("inf"))  # in flight while the label's logit waits for the label
    known = (label >= 0) & (label < classes)
    tl.device_assert(known | (label == ignore_index), "a label is neither a class nor ignore_index")
    at_label = tl.load(x_ptr + row * x_row_stride + label, mask=known & (row < rows), other=0.0).to(COMPUTE)
    # All is measured from the label's logit: differences keep digits that large logits themselves would lose.
    origin = tl.where(tl.abs(at_label) == float("inf"), 0.0, at_label)
    zero = tl.zeros((BLOCK_ROWS, LANES), COMPUTE)
    seen = seen_with(zero - float("inf"), zero, zero, x, inside, origin, SMOOTHED)
    for first in tl.range(LANES * EACH, at_vector(classes, VECTOR), LANES * EACH, num_stages=STAGES):
        inside = here & (first + place < whole)
        x = tl.load(at + first + place, mask=inside, other=-float("inf"))
        seen = seen_with(*seen, x, inside, origin, SMOOTHED)
    if UNALIGNED:
        EDGE: tl.constexpr = (2 * VECTOR + LANES - 1) // LANES
        place = tl.arange(0, LANES)[None, :, None] * EDGE + tl.arange(0, EDGE)[None, None, :]
        col = tl.where(place < misalignment, place, classes - 2 * VECTOR + place)
        inside = here & ((place < misalignment) | (col >= misalignment + whole)) & (col < classes)
        x = tl.load(x_ptr + start + col, mask=inside, other=-float("inf"))
        seen = seen_with(*seen, x, inside, origin, SMOOTHED)
    top, total = combine(seen[0], seen[1])
    log_total = tl.log2(total)
    loss = top - origin + log_total / LOG2_E - (1.0 - smoothing) * (at_label - origin)
    if SMOOTHED:
        loss -= smoothing / classes * tl.sum(seen[2], axis=1)
    tl.store(losses_ptr + row, tl.where(label == ignore_index, 0.0, loss), mask=row < rows)
    if sums_ptr is not None:
        tl.store(sums_ptr + 2 * row, top, mask=row < rows)
        tl.store(sums_ptr + 2 * row + 1, log_total, mask=row < rows)


@cache
def settings(
    rows: int, classes: int, dtype: torch.dtype, sms: int, vector: int, unaligned: bool, smoothed: bool = False
) -> tuple[int, dict]:
    """Return the forward's number of programs, constexprs and launch options.

    Rows of up to 2 KB share a warp, which reads 4 KB at once, or 2 KB if the rows have edges. A wider row is read block
    by block: up to 16 KB by one warp, 2 KB at a time; up to 48 KB by 4 warps, 1 KB each (starting at 8 KB if there are
    few rows); above that by 16 warps, by 8 if blocks of 16 KB would leave more of the last one idle, or by up to 32 if
    there are too few rows for the SMs. Many aligned rows that nearly fill a block of 8 to 32 KB are read at once, 2 or
    4 KB per warp. Rows of 1 to 8 KB that would leave an eighth of such blocks idle share a warp, at most 1 KB of each
    at a time; if there are few, each has a warp of its own with the next 2 KB in flight. With few rows, a warp takes at
    most 4. `debug` checks labels, not overflow.
    """
    each, cached, whole = VECTOR_BYTES // dtype.itemsize, 2048 // dtype.itemsize, classes // vector * vector
    few, block = rows < 4096, max(each, next_power_of_2(whole))
    block_rows, warps, stages = 1, 1, 1
    if not few and not unaligned and 2 * cached < whole < 16 * cached and 5 * block <= 6 * whole:
        warps = min(8, block // cached)
    elif (cached if few else cached // 2) < whole <= 4 * cached and 8 * block > 9 * whole:
        block = cached // 2 if 4 * cached * cdiv(whole, cached // 2) <= 9 * whole else cached // 4
        block_rows, stages = (1, 3) if few else (cached // block, 1)
    elif block <= cached:
        block_rows = min(4, cached // block) if few else min(16, cached // block * (1 if unaligned else 2))
    elif sms < rows and few and 4 * cached < whole <= 8 * cached:
        block, warps = 2 * cached, 4
    else:
        widest = 16 if 16 * cdiv(whole, 8 * cached) * 8 * cached <= 17 * whole else 8
        most = 32 if rows <= sms else 1 if classes <= 8 * cached else 4 if classes <= 24 * cached else widest
        warps = min(most, 2 * block // cached)
        block = max(cached, cached // 2 * warps)
    block_rows = min(block_rows, largest_power_of_2(rows // ((2 if few else 4) * sms)))
    chosen = {"SMOOTHED": smoothed, "VECTOR": vector, "UNALIGNED": unaligned, "BLOCK_ROWS": block_rows}
    chosen |= {
        "STAGES": stages,
        "LANES": block // each,
        "EACH": each,
        "COMPUTE": compute_dtype(dtype),
        "num_warps": warps,
    }
    return cdiv(rows, block_rows), {**chosen, "debug": True, "sanitize_overflow": False}


@triton.jit
def cross_entropy_backward_vectors_kernel(
    grad_losses_ptr,  # (rows,)
    x_ptr,  # (rows, classes), any row stride, unit column stride
    labels_ptr,  # (rows,) int64
    sums_ptr,  # (rows, 2): maximum, log2 of the sum
    grad_x_ptr,  # (rows, classes), contiguous
    rows,
    classes,
    x_row_stride,
    ignore_index,
    smoothing,
    VECTOR: tl.constexpr,  # elements of a 16-byte vector, and whether rows start or end within one:
    UNALIGNED: tl.constexpr,  # segments.py
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,  # columns of a program, which shares its rows with others
):
    blocks_in_row = tl.cdiv(at_vector(classes, VECTOR), BLOCK)
    first = tl.program_id(0) % blocks_in_row * BLOCK
    row = (tl.program_id(0) // blocks_in_row).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    here = row < rows
    label = tl.load(labels_ptr + row, mask=here)
    top = tl.load(sums_ptr + 2 * row, mask=here)
    log_total = tl.load(sums_ptr + 2 * row + 1, mask=here)
    grad_loss = tl.load(grad_losses_ptr + row, mask=here).to(top.dtype)
    misalignment = elements_before(row * x_row_stride, VECTOR, UNALIGNED)
    whole = at_vector(classes - misalignment, VECTOR)
    place = first + tl.arange(0, BLOCK)[None, :]
    inside = here & (place < whole)
    x = tl.load(x_ptr + at_vector(row * x_row_stride + misalignment, VECTOR) + place, mask=inside)
    grad_x = gradient(x, misalignment + place, label, top, log_total, grad_loss, classes, ignore_index, smoothing)
    at = grad_x_ptr + at_vector(row * classes + misalignment, VECTOR) + place
    tl.store(at, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
    if UNALIGNED:
        col = edge(misalignment, classes, VECTOR)
        inside = here & (first == 0) & in_edge(misalignment, whole, classes, VECTOR)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=inside)
        grad_x = gradient(x, col, label, top, log_total, grad_loss, classes, ignore_index, smoothing)
        tl.store(grad_x_ptr + row * classes + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)


@cache
def backward_settings(rows: int, classes: int, dtype: torch.dtype, vector: int, unaligned: bool) -> tuple[int, dict]:
    """Return the backward's number of programs, constexprs and launch options. Its programs wait only for loads.

    A program takes 2 KB of a row, or 4 KB if rows have edges. If that leaves an eighth of it idle or more, it takes
    fewer columns of several rows instead, 2 KB in all with one warp. With only 2048 rows it takes four, or one with
    edges; up to 512 columns 256 bytes of eight rows with four warps: 4.7 us for 5.7 at 512 (H100).
    """
    cols, cached = classes // vector * vector, 4096 // dtype.itemsize
    widest = cached if unaligned else cached // 2
    sizes = widest, cached // 2, cached // 4, cached // 8, cached // 16
    block = next((size for size in sizes if cdiv(cols, size) * size <= 1.125 * cols), cached // 32)
    block_rows, warps = 1, 2
    if rows < 4096 and classes <= 512:
        block, block_rows, warps = cached // 16, 8, 4
    elif block != widest and rows < 4096:
        block_rows = min(cached // block, largest_power_of_2(rows // (2048 if unaligned else 512)))
    elif block != widest:
        block_rows, warps = cached // 2 // block, 1
    chosen = {"VECTOR": vector, "UNALIGNED": unaligned, "BLOCK_ROWS": block_rows, "BLOCK": block, "num_warps": warps}
    return cdiv(rows, block_rows) * cdiv(cols, block), chosen


def _launch(logits: Tensor, labels: Tensor, sums: Tensor | None, ignore_index: int, label_smoothing: float) -> Tensor:
    losses, x = per_row(logits), as_rows(logits)
    rows, classes = x.shape
    given = rows, classes, x.dtype, multiprocessors(x), *row_vectors(x)
    programs, chosen = settings(*given, smoothed=label_smoothing != 0)
    sizes = rows, classes, x.stride(0), ignore_index, float(label_smoothing)
    with torch.cuda.device_of(x):
        cross_entropy_vectors_kernel[(programs,)](x, labels.contiguous(), losses, sums, *sizes, **chosen)
    return losses


def _compile_arguments(*shape: int, dtype: torch.dtype):
    (rows, classes), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    losses, labels = (torch.empty(rows, dtype=kind, device="meta") for kind in (torch.float32, torch.int64))
    chosen = settings(rows, classes, dtype, MULTIPROCESSORS, *row_vectors(x))[1]
    return cross_entropy_vectors_kernel, (x, labels, losses, None, rows, classes, classes, -100, 0.0), chosen


def _takes(logits: Tensor, *_) -> bool:
    return logits.numel() > 0


GAIN = "1.16x at 2671 x 50257, 1.27x at 52429 x 2560, 1.5x at 2048 x 127; level at 8192 x 16384 (H100, bf16)"


@tuned("cross_entropy", "forward", takes=_takes, gain=GAIN, compile_arguments=_compile_arguments)
def forward(logits: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
    """Return the losses."""
    return _launch(logits, labels, None, ignore_index, label_smoothing)


@tuned("cross_entropy", "training", takes=_takes, gain=GAIN)
def training(logits: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the losses, and each row's maximum and log2 of the sum."""
    sums = per_row(logits, 2)
    return _launch(logits, labels, sums, ignore_index, label_smoothing), sums


@tuned(
    "cross_entropy",
    "backward",
    takes=lambda _, logits, *rest: logits.numel() > 0,
    gain="1.14x at 2048 x 50257, 1.5x at 130944 x 1025, 1.95x at 1056833 x 127; level at 32768 x 4096 (H100, bf16)",
)
def backward(
    grad_losses: Tensor, logits: Tensor, labels: Tensor, sums: Tensor, ignore_index: int, label_smoothing: float
) -> Tensor:
    """Return the gradient of the (..., classes) logits, given the gradient of the (...) losses."""
    grad_x, x = like(logits), as_rows(logits)
    rows, classes = x.shape
    programs, chosen = backward_settings(rows, classes, x.dtype, *row_vectors(x, as_rows(grad_x)))
    tensors = grad_losses.contiguous(), x, labels.contiguous(), sums, grad_x
    sizes = rows, classes, x.stride(0), ignore_index, float(label_smoothing)
    with torch.cuda.device_of(x):
        cross_entropy_backward_vectors_kernel[(programs,)](*tensors, *sizes, **chosen)
    return grad_x
