"""Cross entropy of each row of logits with its label, without materialising the probabilities:

    loss = log sum_j exp(x_j) - (1 - e) x_label - e mean_j x_j,    e the label smoothing

Unfused, PyTorch writes the log-probabilities, as large as the logits, to memory, only to read one element per row:

    unfused   log_softmax: read x, write p | nll_loss: read one p per row      4 B/logit in 16 bits
    fused     read x once, keep a running maximum and sum                      2 B/logit, one launch

The backward pass recomputes the probabilities from the logits and from each row's maximum and sum, saved by the
forward. It needs no reduction, so many programs can share a row:

    grad_x = grad_loss (exp(x - max) / sum - target)          read x, write grad_x: 4 B/logit in 16 bits, one launch

Source: torch.nn.functional.cross_entropy; Szegedy et al., arXiv:1512.00567; Milakov and Gimelshein, arXiv:1805.02867.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_rows, check_labels, next_power_of_2, refuse
from kernels.online_softmax import LOG2_E, absorb
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise.blocks import compute_dtype

BLOCK, BACKWARD_BLOCK = 4096, 2048  # columns that a program reads at a time


@triton.jit
def cross_entropy_kernel(
    x_ptr,  # (rows, classes), any row stride, unit column stride
    labels_ptr,  # (rows,) int64
    losses_ptr,  # (rows,) COMPUTE
    sums_ptr,  # (rows, 2) COMPUTE: maximum, log2 of the sum; None without a backward pass
    rows,
    classes,
    x_row_stride,
    ignore_index,
    smoothing,
    SMOOTHED: tl.constexpr,  # smoothing is not 0
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,  # columns at a time
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
):
    # int64 before the multiplication: row numbers and row * stride pass 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    x_ptr += row * x_row_stride
    label = tl.load(labels_ptr + row, mask=row < rows, other=0)
    known = (label >= 0) & (label < classes)
    tl.device_assert(known | (label == ignore_index), "a label is neither a class nor ignore_index")
    at_label = tl.load(x_ptr + label, mask=known & (row < rows), other=0.0).to(COMPUTE)
    # All is measured from the label's logit: differences keep digits that large logits themselves would lose.
    origin = tl.where(tl.abs(at_label) == float("inf"), 0.0, at_label)
    peak = tl.full((BLOCK_ROWS,), -float("inf"), COMPUTE)
    total, distances = tl.zeros((BLOCK_ROWS,), COMPUTE), tl.zeros((BLOCK_ROWS,), COMPUTE)
    for start in range(0, classes, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows)[:, None] & (col < classes)
        x = tl.load(x_ptr[:, None] + col, mask=inside, other=-float("inf")).to(COMPUTE)
        peak, total = absorb(peak, total, x)
        if SMOOTHED:
            distances += tl.sum(tl.where(inside, x - origin[:, None], 0.0), axis=1)
    log_total = tl.log2(total)
    loss = peak - origin + log_total / LOG2_E - (1.0 - smoothing) * (at_label - origin)
    if SMOOTHED:
        loss -= smoothing / classes * distances
    tl.store(losses_ptr + row, tl.where(label == ignore_index, 0.0, loss), mask=row < rows)
    if sums_ptr is not None:
        tl.store(sums_ptr + 2 * row, peak, mask=row < rows)
        tl.store(sums_ptr + 2 * row + 1, log_total, mask=row < rows)


def settings(classes: int, dtype: torch.dtype, smoothed: bool = False) -> dict:
    """Return the forward's constexprs and launch options: 32 elements per thread. `debug` checks labels."""
    block = min(BLOCK, next_power_of_2(classes))
    block_rows = max(1, 1024 // block)
    return {
        "SMOOTHED": smoothed,
        "BLOCK_ROWS": block_rows,
        "BLOCK": block,
        "COMPUTE": compute_dtype(dtype),
        "num_warps": block_rows * block // 1024,
        "debug": True,
        "sanitize_overflow": False,
    }


def per_row(logits: Tensor, *values: int) -> Tensor:
    """Allocate `values` per row, in fp32 (fp64 for fp64 logits)."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.empty((*logits.shape[:-1], *values), dtype=dtype, device=logits.device)


def _launch(logits: Tensor, labels: Tensor, sums: Tensor | None, ignore_index: int, label_smoothing: float) -> Tensor:
    losses = per_row(logits)
    if losses.numel() == 0:
        return losses
    x = as_rows(logits)
    rows, classes = x.shape
    chosen = settings(classes, x.dtype, label_smoothing != 0)
    programs = triton.cdiv(rows, chosen["BLOCK_ROWS"])
    sizes = rows, classes, x.stride(0), ignore_index, float(label_smoothing)
    with torch.cuda.device_of(x):
        cross_entropy_kernel[(programs,)](x, labels.contiguous(), losses, sums, *sizes, **chosen)
    return losses


def _forward(logits: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
    return _launch(logits, labels, None, ignore_index, label_smoothing)


def _training(logits: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float) -> tuple[Tensor, Tensor]:
    sums = per_row(logits, 2)
    return _launch(logits, labels, sums, ignore_index, label_smoothing), sums


@triton.jit
def gradient(x, col, label, top, log_total, grad_loss, classes, ignore_index, smoothing):
    """Return the gradient of logits x in columns `col` of rows: 0 where a row is ignored."""
    probability = tl.exp2((x.to(top.dtype) - top) * LOG2_E - log_total)
    target = tl.where(col == label, 1.0 - smoothing, 0.0) + smoothing / classes
    return tl.where(label == ignore_index, 0.0, grad_loss * (probability - target))


@triton.jit
def cross_entropy_backward_kernel(
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
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,  # columns of a program, which shares its rows with others
):
    blocks_in_row = tl.cdiv(classes, BLOCK)
    row = (tl.program_id(0) // blocks_in_row).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.program_id(0) % blocks_in_row * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < classes)
    label = tl.load(labels_ptr + row, mask=row < rows)
    top = tl.load(sums_ptr + 2 * row, mask=row < rows)
    log_total = tl.load(sums_ptr + 2 * row + 1, mask=row < rows)
    grad_loss = tl.load(grad_losses_ptr + row, mask=row < rows).to(top.dtype)
    x = tl.load(x_ptr + row * x_row_stride + col, mask=inside)
    grad_x = gradient(x, col, label, top, log_total, grad_loss, classes, ignore_index, smoothing)
    tl.store(grad_x_ptr + row * classes + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)


def backward_settings(classes: int) -> dict:
    """Return the backward's constexprs and num_warps: a program has 2048 elements of one or several rows."""
    block = min(BACKWARD_BLOCK, next_power_of_2(classes))
    return {"BLOCK_ROWS": BACKWARD_BLOCK // block, "BLOCK": block, "num_warps": 4}


def _backward(
    grad_losses: Tensor, logits: Tensor, labels: Tensor, sums: Tensor, ignore_index: int, label_smoothing: float
) -> Tensor:
    grad_x = like(logits)
    if grad_x.numel() == 0:
        return grad_x
    x = as_rows(logits)
    (rows, classes), chosen = x.shape, backward_settings(x.shape[1])
    programs = triton.cdiv(rows, chosen["BLOCK_ROWS"]) * triton.cdiv(classes, chosen["BLOCK"])
    tensors = grad_losses.contiguous(), x, labels.contiguous(), sums, grad_x
    sizes = rows, classes, x.stride(0), ignore_index, float(label_smoothing)
    with torch.cuda.device_of(x):
        cross_entropy_backward_kernel[(programs,)](*tensors, *sizes, **chosen)
    return grad_x


cross_entropy_op = register(
    "cross_entropy",
    _forward,
    lambda logits, labels, ignore_index, label_smoothing: per_row(logits),
    training=_training,
    training_fake=lambda logits, labels, ignore_index, label_smoothing: (per_row(logits), per_row(logits, 2)),
    keep=lambda arguments, result: (*arguments[:2], result[1], *arguments[2:]),
    backward=_backward,
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
    """Compute each row's cross entropy with its label in one launch, differentiable once with respect to the logits.

    Args:
        logits: floating-point tensor of shape (..., classes), any strides; non-adjacent columns are copied first.
        labels: int64 tensor of shape (...), each a class or ignore_index.
        ignore_index: the label of rows to ignore: their loss and gradient are 0.
        label_smoothing: the part of the target spread evenly over all classes, 0 to 1, as fp32.
        reduction: "mean" over the rows not ignored, or "sum", each in small launches of its own; "none" for one loss
            per row.

    Returns:
        Losses of shape (...), or one loss, in fp32 (fp64 for fp64 logits), as is the arithmetic, even under autocast.
        The loss of a row of only -inf, or one that contains NaN or inf, is NaN, as in PyTorch.

    Raises:
        TypeError: logits are not a floating-point tensor, labels are not int64, or `more` is given.
        ValueError: shapes or devices do not match, there are no classes, label_smoothing is not within 0 to 1, or
            reduction is unknown. A label that is neither a class nor ignore_index is never used as an index.
            Interpreted, it raises InterpreterError; compiled, it fails a device-side assertion, as in PyTorch, raised
            at the next synchronisation.
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
    """Compute the same in PyTorch, with losses in at least fp32."""
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
    losses = torch.nn.functional.cross_entropy(logits[None].flatten(0, -2), labels.flatten(), **options)
    losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
    return losses.view(labels.shape) if reduction == "none" else losses


def cross_entropy_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic: 4 operations per logit; logits and labels in, an fp32 loss per row out."""
    elements, rows = torch.Size(shape).numel(), torch.Size(shape[:-1]).numel()
    return Work(flops=4 * elements, bytes_read=elements * dtype.itemsize + 8 * rows, bytes_written=4 * rows)


def cross_entropy_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic: 4 operations per logit; logits, labels, three fp32 values per row in."""
    elements, rows = torch.Size(shape).numel(), torch.Size(shape[:-1]).numel()
    return Work(4 * elements, elements * dtype.itemsize + 20 * rows, elements * dtype.itemsize)


def _inputs(*shape: int, device="cpu", **options) -> tuple:
    labels = torch.randint(max(shape[-1], 1), shape[:-1], device=device)
    return torch.randn(shape, device=device, **options), labels, -100, 0.0, "none"


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, classes), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    losses, labels = (torch.empty(rows, dtype=kind, device="meta") for kind in (torch.float32, torch.int64))
    return (x, labels, losses, None, rows, classes, classes, -100, 0.0), settings(classes, dtype)


OP = FusedOp(
    name="cross_entropy",
    fused=cross_entropy,
    reference=cross_entropy_reference,
    work=cross_entropy_work,
    kernel=cross_entropy_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 32768), (32768, 16384), (8192, 65536), (4096, 131072)),
    backward_work=cross_entropy_backward_work,
)
