"""Cross entropy of each row of logits with its label, without the probabilities:

    loss = log sum_j exp(x_j) - (1 - e) x_label - e mean_j x_j,    e the label smoothing

Written out in PyTorch, the log-probabilities, as large as the logits, go to memory and come back for one element a row:

    unfused   log_softmax: read x, write p | nll_loss: read one p a row        4 B/logit in 16 bits
    fused     read x once, keep a running maximum and sum                      2 B/logit, one launch

The backward pass, in cross_entropy_backward.py, needs the logits and the row's maximum and sum besides.

Source: torch.nn.functional.cross_entropy; Szegedy et al., arXiv:1512.00567; Milakov and Gimelshein, arXiv:1805.02867.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import (
    MULTIPROCESSORS,
    as_rows,
    cdiv,
    check_labels,
    largest_power_of_2,
    multiprocessors,
    next_power_of_2,
    refuse,
)
from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise.cross_entropy_backward import backward, backward_work
from kernels.rowwise.pieces import arithmetic
from kernels.vectors import VECTOR_BYTES, at_vector, elements_before, vectors_of_rows


@triton.jit
def seen_with(peak, total, plain, x, inside, origin, SMOOTHED: tl.constexpr):
    """Of each lane the peak, the total and, if SMOOTHED, the plain sum of x - origin, after x beside those before."""
    x = x.to(peak.dtype)
    peak, total = absorb(peak, total, x)
    if SMOOTHED:
        plain += tl.sum(tl.where(inside, x - origin[:, None, None], 0.0), axis=2)
    return peak, total, plain


@triton.jit
def cross_entropy_kernel(
    x_ptr,  # (rows, classes), any row stride, unit column stride
    labels_ptr,  # (rows,) int64
    losses_ptr,  # (rows,) COMPUTE
    kept_ptr,  # (rows, 2) COMPUTE: maximum, log2 of the sum; or None where no backward pass will ask for them
    rows,
    classes,
    x_row_stride,
    ignore_index,
    smoothing,
    SMOOTHED: tl.constexpr,  # whether smoothing is not 0
    VECTOR: tl.constexpr,  # elements of a vector of 16 bytes, and whether rows begin or end within one:
    RAGGED: tl.constexpr,  # kernels/vectors.py
    BLOCK_ROWS: tl.constexpr,
    LANES: tl.constexpr,  # which have a maximum and a sum of their own, of
    EACH: tl.constexpr,  # neighbouring columns at a time
    STAGES: tl.constexpr,  # times as many columns on their way at once, plus one
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    label = tl.load(labels_ptr + row, mask=row < rows, other=0)
    here = (row < rows)[:, None, None]
    start = (row * x_row_stride)[:, None, None]
    lead = elements_before(start, VECTOR, RAGGED)
    whole = at_vector(classes - lead, VECTOR)
    at = x_ptr + at_vector(start + lead, VECTOR)
    place = tl.arange(0, LANES)[None, :, None] * EACH + tl.arange(0, EACH)[None, None, :]
    inside = here & (place < whole)
    x = tl.load(at + place, mask=inside, other=-float("inf"))  # on its way while the label's logit waits for the label
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
    if RAGGED:
        RIM: tl.constexpr = (2 * VECTOR + LANES - 1) // LANES
        place = tl.arange(0, LANES)[None, :, None] * RIM + tl.arange(0, RIM)[None, None, :]
        col = tl.where(place < lead, place, classes - 2 * VECTOR + place)
        inside = here & ((place < lead) | (col >= lead + whole)) & (col < classes)
        x = tl.load(x_ptr + start + col, mask=inside, other=-float("inf"))
        seen = seen_with(*seen, x, inside, origin, SMOOTHED)
    top, total = combine(seen[0], seen[1])
    log_total = tl.log2(total)
    loss = top - origin + log_total / LOG2_E - (1.0 - smoothing) * (at_label - origin)
    if SMOOTHED:
        loss -= smoothing / classes * tl.sum(seen[2], axis=1)
    tl.store(losses_ptr + row, tl.where(label == ignore_index, 0.0, loss), mask=row < rows)
    if kept_ptr is not None:
        tl.store(kept_ptr + 2 * row, top, mask=row < rows)
        tl.store(kept_ptr + 2 * row + 1, log_total, mask=row < rows)


@cache
def launch_of(
    rows: int, classes: int, dtype: torch.dtype, sms: int, vector: int, ragged: bool, smoothed: bool = False
) -> tuple[int, dict]:
    """The forward's programs, and their constexprs and launch options.

    Rows of up to 2 KB share a warp, which takes 4 KB at once, or 2 KB where they have rims besides. A wider row is
    taken in one block after another: by a single warp, 2 KB at a time, up to 16 KB; by 4 warps, 1 KB each, up to 64 KB
    (of 8 KB on where rows are few); then by 8, or by up to 32 where rows are too few for the SMs. Rows of 1 to 8 KB
    that leave an eighth of such blocks idle share a warp, too, 1 KB or less of each at a time; if few, each has one,
    and the next 2 KB on their way. Of few narrow ones a warp has at most 4 rows. `debug` checks labels, not overflow.
    """
    each, held, whole = VECTOR_BYTES // dtype.itemsize, 2048 // dtype.itemsize, classes // vector * vector
    few, block = rows < 4096, max(each, next_power_of_2(whole))
    block_rows, warps, stages = 1, 1, 1
    if (held if few else held // 2) < whole <= 4 * held and 8 * block > 9 * whole:
        block = held // 2 if 4 * held * cdiv(whole, held // 2) <= 9 * whole else held // 4
        block_rows, stages = (1, 3) if few else (held // block, 1)
    elif block <= held:
        block_rows = min(4, held // block) if few else min(16, held // block * (1 if ragged else 2))
    elif sms < rows and few and 4 * held < whole <= 8 * held:
        block, warps = 2 * held, 4
    else:
        most = 32 if rows <= sms else 1 if classes <= 8 * held else 4 if classes <= 32 * held else 8
        warps = min(most, 2 * block // held)
        block = max(held, held // 2 * warps)
    block_rows = min(block_rows, largest_power_of_2(rows // ((2 if few else 4) * sms)))
    chosen = {"SMOOTHED": smoothed, "VECTOR": vector, "RAGGED": ragged, "BLOCK_ROWS": block_rows, "STAGES": stages}
    chosen |= {"LANES": block // each, "EACH": each, "COMPUTE": arithmetic(dtype), "num_warps": warps}
    return cdiv(rows, block_rows), {**chosen, "debug": True, "sanitize_overflow": False}


def _statistics(logits: Tensor, *values: int) -> Tensor:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.empty((*logits.shape[:-1], *values), dtype=dtype, device=logits.device)


def _launch(logits, labels, kept, ignore_index: int, label_smoothing: float) -> Tensor:
    losses = _statistics(logits)
    if losses.numel() == 0:
        return losses
    x = as_rows(logits)
    rows, classes = x.shape
    given = rows, classes, x.dtype, multiprocessors(x), *vectors_of_rows(x)
    programs, chosen = launch_of(*given, smoothed=label_smoothing != 0)
    sizes = rows, classes, x.stride(0), ignore_index, float(label_smoothing)
    with torch.cuda.device_of(x):
        cross_entropy_kernel[(programs,)](x, labels.contiguous(), losses, kept, *sizes, **chosen)
    return losses


def _forward(logits: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
    return _launch(logits, labels, None, ignore_index, label_smoothing)


def _training(logits: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float) -> tuple[Tensor, Tensor]:
    kept = _statistics(logits, 2)
    return _launch(logits, labels, kept, ignore_index, label_smoothing), kept


cross_entropy_op = register(
    "cross_entropy",
    _forward,
    lambda logits, labels, ignore_index, label_smoothing: _statistics(logits),
    training=_training,
    training_fake=lambda logits, labels, ignore_index, label_smoothing: (_statistics(logits), _statistics(logits, 2)),
    keep=lambda arguments, result: (*arguments[:2], result[1], *arguments[2:]),
    backward=backward,
    backward_fake=lambda grad_losses, logits, *_: like(logits),
)


@planned
def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    **more,
) -> Tensor:
    """The cross entropy of rows of logits with their labels in one launch, differentiable once by the logits.

    Args:
        logits: floating-point tensor of shape (..., classes), any strides; columns not side by side are copied first.
        labels: int64 tensor of shape (...), each a class or ignore_index.
        ignore_index: the label of rows that count nothing: their loss and gradient are 0.
        label_smoothing: the share of the target that all classes have in common, 0 to 1, as fp32.
        reduction: "mean" over the rows not ignored, or "sum": small launches of their own; "none" for a loss a row.

    Returns:
        Losses of shape (...), or one, in fp32 (fp64 for fp64 logits), as is the arithmetic, whatever autocast says. A
        row of nothing but -inf, with NaN or with inf in it has the loss NaN, as in PyTorch.

    Raises:
        TypeError: logits are not a floating-point tensor, labels not one of int64, or `more` is given.
        ValueError: shapes or devices that do not fit, no classes, label_smoothing not of 0 to 1, another reduction.
        A label that is neither a class nor ignore_index is not read: InterpreterError where interpreted; compiled, a
        device-side assertion, as in PyTorch, which the next synchronisation raises.
    """
    refuse("cross_entropy", more)
    check_labels("cross_entropy", logits, labels)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"cross_entropy takes reduction of none, mean or sum, got {reduction!r}: choose one of them")
    losses = cross_entropy_op(logits, labels, ignore_index, label_smoothing)
    if reduction == "mean":
        return losses.sum() / (labels != ignore_index).sum()
    return losses.sum() if reduction == "sum" else losses


def cross_entropy_reference(logits, labels, ignore_index=-100, label_smoothing=0.0, reduction="mean") -> Tensor:
    """The same in PyTorch, the losses in fp32 at least."""
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
    losses = torch.nn.functional.cross_entropy(logits[None].flatten(0, -2), labels.flatten(), **options)
    losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
    return losses.view(labels.shape) if reduction == "none" else losses


def cross_entropy_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of a loss a row: 4 operations a logit; logits and labels in once, fp32 losses out once."""
    elements, rows = torch.Size(shape).numel(), torch.Size(shape[:-1]).numel()
    return Work(flops=4 * elements, bytes_read=elements * dtype.itemsize + 8 * rows, bytes_written=4 * rows)


def _inputs(*shape: int, device="cpu", **options) -> tuple:
    labels = torch.randint(max(shape[-1], 1), shape[:-1], device=device)
    return torch.randn(shape, device=device, **options), labels, -100, 0.0, "none"


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, classes), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    losses, labels = (torch.empty(rows, dtype=kind, device="meta") for kind in (torch.float32, torch.int64))
    chosen = launch_of(rows, classes, dtype, MULTIPROCESSORS, *vectors_of_rows(x))[1]
    return (x, labels, losses, None, rows, classes, classes, -100, 0.0), chosen


OP = FusedOp(
    name="cross_entropy",
    fused=cross_entropy,
    reference=cross_entropy_reference,
    work=cross_entropy_work,
    kernel=cross_entropy_kernel,
    settings=launch_of,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 32768), (32768, 16384), (8192, 65536), (4096, 131072)),
    backward_work=backward_work,
)
