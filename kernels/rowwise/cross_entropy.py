"""Cross entropy of each row of logits with its label, without the probabilities:

    loss = log sum_j exp(x_j) - (1 - e) x_label - e mean_j x_j,    e the label smoothing

Written out in PyTorch, the log-probabilities, as large as the logits, go to memory and come back for one element a row:

    unfused   log_softmax: read x, write p | nll_loss: read one p a row        4 B/logit in 16 bits
    fused     read x once, keep a running maximum and sum                      2 B/logit, one launch

The backward pass recomputes the probabilities from the logits and the row's maximum and sum, which is all that the
forward keeps: grad_x = grad_loss (exp(x - max) / sum - target), read x, write grad_x, 4 B/logit in one launch.

Source: torch.nn.functional.cross_entropy; Szegedy et al., arXiv:1512.00567; Milakov and Gimelshein, arXiv:1805.02867.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_rows, check_labels, multiprocessors
from kernels.fused_op import FusedOp, Work
from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.options import refuse
from kernels.register import like, register
from kernels.sizes import cdiv


@triton.jit
def cross_entropy_kernel(
    x_ptr,  # (rows, classes), any row stride, unit column stride
    labels_ptr,  # (rows,) int64
    losses_ptr,  # (rows,) COMPUTE
    kept_ptr,  # (rows, 2) COMPUTE: maximum, log2 of the sum; or None where no backward pass will ask for them
    classes,
    x_row_stride,
    ignore_index,
    smoothing,
    SMOOTHED: tl.constexpr,  # whether smoothing is not 0
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row_stride
    label = tl.load(labels_ptr + row)
    known = (label >= 0) & (label < classes)
    tl.device_assert(known | (label == ignore_index), "a label is neither a class nor ignore_index")
    at_label = tl.load(x_ptr + label, mask=known, other=0.0).to(COMPUTE)
    # All is measured from the label's logit: differences keep digits that large logits themselves would lose.
    origin = tl.where(tl.abs(at_label) == float("inf"), 0.0, at_label)
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    peak = tl.full((LANES,), -float("inf"), COMPUTE)
    total = tl.zeros((LANES,), COMPUTE)
    plain = tl.zeros((LANES,), COMPUTE)
    for start in tl.range(0, classes, LANES * EACH, loop_unroll_factor=4):
        col = start + place
        x = tl.load(x_ptr + col, mask=col < classes, other=-float("inf")).to(COMPUTE)
        peak, total = absorb(peak, total, x)
        if SMOOTHED:
            plain += tl.sum(tl.where(col < classes, x - origin, 0.0), axis=1)
    top, total = combine(peak, total)
    log_total = tl.log2(total)
    loss = top - origin + log_total / LOG2_E - (1.0 - smoothing) * (at_label - origin)
    if SMOOTHED:
        loss -= smoothing / classes * tl.sum(plain, axis=0)
    tl.store(losses_ptr + row, tl.where(label == ignore_index, 0.0, loss))
    if kept_ptr is not None:
        tl.store(kept_ptr + 2 * row, top)
        tl.store(kept_ptr + 2 * row + 1, log_total)


@triton.jit
def cross_entropy_backward_kernel(
    grad_losses_ptr,  # (rows,)
    x_ptr,  # (rows, classes), any row stride, unit column stride
    labels_ptr,  # (rows,) int64
    kept_ptr,  # (rows, 2): maximum, log2 of the sum
    grad_x_ptr,  # (rows, classes), contiguous
    classes,
    x_row_stride,
    ignore_index,
    smoothing,
    blocks_in_row,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    row = block // blocks_in_row
    col = block % blocks_in_row * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(labels_ptr + row)
    grad_loss = tl.load(grad_losses_ptr + row).to(COMPUTE)
    x = tl.load(x_ptr + row * x_row_stride + col, mask=col < classes).to(COMPUTE)
    probability = tl.exp2((x - tl.load(kept_ptr + 2 * row)) * LOG2_E - tl.load(kept_ptr + 2 * row + 1))
    target = tl.where(col == label, 1.0 - smoothing, 0.0) + smoothing / classes
    grad_x = tl.where(label == ignore_index, 0.0, grad_loss * (probability - target))
    tl.store(grad_x_ptr + row * classes + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=col < classes)


def settings(classes: int, dtype: torch.dtype, few_rows: bool = False) -> dict:
    """Of the forward. `few_rows`, no more than the GPU has SMs, have 32 warps each. `debug` turns on the check of the
    labels; the checks of integer overflow that come with it are left out."""
    warps = 32 if few_rows else 4 if classes <= 32768 else 8
    lanes = {"LANES": 32 * warps, "EACH": 16 if few_rows else 8, "num_warps": warps}
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    return {**lanes, "COMPUTE": compute, "debug": True, "sanitize_overflow": False}


def backward_settings(dtype: torch.dtype) -> dict:
    """Of the backward: 16 elements a thread, and nothing that a program waits for but its loads."""
    return {"BLOCK": 2048, "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32, "num_warps": 4}


def _statistics(logits: Tensor, *values: int) -> Tensor:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.empty((*logits.shape[:-1], *values), dtype=dtype, device=logits.device)


def _launch(logits, labels, kept, ignore_index: int, label_smoothing: float) -> Tensor:
    losses = _statistics(logits)
    if losses.numel() == 0:
        return losses
    x = as_rows(logits)
    rows, classes = x.shape
    chosen = settings(classes, x.dtype, few_rows=rows <= multiprocessors(x))
    options = ignore_index, float(label_smoothing), label_smoothing != 0
    with torch.cuda.device_of(x):
        cross_entropy_kernel[(rows,)](x, labels.contiguous(), losses, kept, classes, x.stride(0), *options, **chosen)
    return losses


def _forward(logits: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
    return _launch(logits, labels, None, ignore_index, label_smoothing)


def _training(logits: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float) -> tuple[Tensor, Tensor]:
    kept = _statistics(logits, 2)
    return _launch(logits, labels, kept, ignore_index, label_smoothing), kept


def _backward(
    grad_losses: Tensor, logits: Tensor, labels: Tensor, kept: Tensor, ignore_index: int, label_smoothing: float
) -> Tensor:
    grad_x = like(logits)
    if grad_x.numel() == 0:
        return grad_x
    x = as_rows(logits)
    rows, classes = x.shape
    chosen = backward_settings(x.dtype)
    blocks = cdiv(classes, chosen["BLOCK"])
    tensors = grad_losses.contiguous(), x, labels.contiguous(), kept, grad_x
    sizes = classes, x.stride(0), ignore_index, float(label_smoothing), blocks
    with torch.cuda.device_of(x):
        cross_entropy_backward_kernel[(rows * blocks,)](*tensors, *sizes, **chosen)
    return grad_x


cross_entropy_op = register(
    "cross_entropy",
    _forward,
    lambda logits, labels, ignore_index, label_smoothing: _statistics(logits),
    training=_training,
    training_fake=lambda logits, labels, ignore_index, label_smoothing: (_statistics(logits), _statistics(logits, 2)),
    keep=lambda arguments, result: (*arguments[:2], result[1], *arguments[2:]),
    backward=_backward,
    backward_fake=lambda grad_losses, logits, *_: like(logits),
)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "none",
    **more,
) -> Tensor:
    """The cross entropy of each row of logits with its label in one launch, differentiable once by the logits.

    Args:
        logits: floating-point tensor of shape (..., classes), any strides; columns not side by side are copied first.
        labels: int64 tensor of shape (...), each a class or ignore_index.
        ignore_index: the label of rows that count nothing: their loss and gradient are 0.
        label_smoothing: the share of the target that all classes have in common, 0 to 1, as fp32.
        reduction: "none" for a loss a row; "sum", or "mean" over the rows not ignored, add small launches of their own.

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


def cross_entropy_reference(logits, labels, ignore_index=-100, label_smoothing=0.0, reduction="none") -> Tensor:
    """The same in PyTorch, the losses in fp32 at least."""
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
    losses = torch.nn.functional.cross_entropy(logits[None].flatten(0, -2), labels.flatten(), **options)
    losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
    return losses.view(labels.shape) if reduction == "none" else losses


def cross_entropy_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 4 operations a logit; logits and labels in once, fp32 losses out once."""
    elements, rows = torch.Size(shape).numel(), torch.Size(shape[:-1]).numel()
    return Work(flops=4 * elements, bytes_read=elements * dtype.itemsize + 8 * rows, bytes_written=4 * rows)


def cross_entropy_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """The same of the gradient: 4 operations a logit; logits, labels, three fp32 values a row in, the gradient out."""
    elements, rows = torch.Size(shape).numel(), torch.Size(shape[:-1]).numel()
    return Work(4 * elements, elements * dtype.itemsize + 20 * rows, elements * dtype.itemsize)


def _inputs(*shape: int, device="cpu", **options) -> tuple[Tensor, Tensor]:
    return torch.randn(shape, device=device, **options), torch.randint(max(shape[-1], 1), shape[:-1], device=device)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, classes), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    losses, labels = (torch.empty(rows, dtype=kind, device="meta") for kind in (torch.float32, torch.int64))
    chosen = settings(classes, dtype, few_rows=rows <= 132)  # as on an H200, which has 132 SMs
    return (x, labels, losses, None, classes, classes, -100, 0.0), {"SMOOTHED": False, **chosen}


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
