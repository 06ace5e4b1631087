"""Cross entropy of each row of logits with its label, without the probabilities:

    loss = log sum_j exp(x_j) - (1 - e) x_label - e mean_j x_j,    e the label smoothing

Written out in PyTorch, the log-probabilities, as large as the logits, go to memory and come back for one element a row:

    unfused   log_softmax: read x, write p | nll_loss: read one p a row        4 B/logit in 16 bits
    fused     read x once, keep a running maximum and sum                      2 B/logit, one launch

The backward pass recomputes the probabilities from the logits and the row's maximum and sum, which is all that the
forward keeps: grad_x = grad_loss (exp(x - max) / sum - target), read x, write grad_x, 4 B/logit in one launch.

Source: torch.nn.functional.cross_entropy; Szegedy et al., arXiv:1512.00567, for label smoothing; Milakov and
Gimelshein, arXiv:1805.02867, for the running maximum and sum.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from kernels.arguments import as_rows, check_alike, check_columns, multiprocessors
from kernels.fused_op import FusedOp, Work
from kernels.online_softmax import LOG2_E, absorb, combine
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
    """Launch settings of the forward for rows of `classes` logits.

    On an H200 (bf16, per cent of copy bandwidth, of which reading alone reaches 103): 4 warps 97 at 16384 classes and
    95 at 65536 and 131072, 8 warps 94, 96 and 96. The check of the labels, which `debug` turns on, costs nothing that
    could be measured; the checks of integer overflow that come with it are left out.

    `few_rows`: no more than the GPU has SMs. Then each has a program of its own and 32 warps: 128 rows of 32768 take
    6.4 us instead of 18.3.
    """
    warps = 32 if few_rows else 4 if classes <= 32768 else 8
    return {
        "LANES": 32 * warps,
        "EACH": 16 if few_rows else 8,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": warps,
        "debug": True,
        "sanitize_overflow": False,
    }


def backward_settings(dtype: torch.dtype) -> dict:
    """Launch settings of the backward: 93 per cent of copy bandwidth on an H200, 3 ahead of other blocks."""
    return {"BLOCK": 2048, "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32, "num_warps": 4}


def _statistics(logits: torch.Tensor, *values: int) -> torch.Tensor:
    """Memory for each row's values."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.empty((*logits.shape[:-1], *values), dtype=dtype, device=logits.device)


def _launch(logits, labels, losses, kept, ignore_index: int, label_smoothing: float) -> None:
    if losses.numel() == 0:
        return
    x = as_rows(logits)
    classes = x.shape[1]
    with torch.cuda.device_of(x):
        cross_entropy_kernel[(x.shape[0],)](
            x,
            labels.contiguous(),
            losses,
            kept,
            classes,
            x.stride(0),
            ignore_index,
            float(label_smoothing),
            SMOOTHED=label_smoothing != 0,
            **settings(classes, x.dtype, few_rows=x.shape[0] <= multiprocessors(x)),
        )


def _forward(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int, label_smoothing: float) -> torch.Tensor:
    losses = _statistics(logits)
    _launch(logits, labels, losses, None, ignore_index, label_smoothing)
    return losses


def _forward_keeping_sums(
    logits: torch.Tensor, labels: torch.Tensor, ignore_index: int, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    losses, kept = _statistics(logits), _statistics(logits, 2)
    _launch(logits, labels, losses, kept, ignore_index, label_smoothing)
    return losses, kept


def _backward(
    grad_losses: torch.Tensor,
    logits: torch.Tensor,
    labels: torch.Tensor,
    kept: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> torch.Tensor:
    grad_x = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if grad_x.numel() == 0:
        return grad_x
    x = as_rows(logits)
    rows, classes = x.shape
    chosen = backward_settings(x.dtype)
    blocks = cdiv(classes, chosen["BLOCK"])
    with torch.cuda.device_of(x):
        cross_entropy_backward_kernel[(rows * blocks,)](
            grad_losses.contiguous(),
            x,
            labels.contiguous(),
            kept,
            grad_x,
            classes,
            x.stride(0),
            ignore_index,
            float(label_smoothing),
            blocks,
            **chosen,
        )
    return grad_x


def _keep_sums(ctx, inputs, output):
    logits, labels, ctx.ignore_index, ctx.label_smoothing = inputs
    ctx.set_materialize_grads(False)  # no zeros for what is kept, which nobody differentiates
    ctx.save_for_backward(logits, labels, output[1])


class CrossEntropy(torch.autograd.Function):
    """The losses and what the gradient needs, for autograd. It costs Python less than the registered operator does."""

    forward = staticmethod(_forward_keeping_sums)
    setup_context = staticmethod(_keep_sums)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_losses, _):
        if grad_losses is None:
            return None, None, None, None
        return _backward(grad_losses, *ctx.saved_tensors, ctx.ignore_index, ctx.label_smoothing), None, None, None


# The same for torch.compile, which does not look inside registered operators.
cross_entropy_op = torch.library.custom_op("kernel_fusion::cross_entropy", _forward, mutates_args=())
cross_entropy_training_op = torch.library.custom_op(
    "kernel_fusion::cross_entropy_training", _forward_keeping_sums, mutates_args=()
)
cross_entropy_backward_op = torch.library.custom_op("kernel_fusion::cross_entropy_backward", _backward, mutates_args=())


def _gradients(ctx, grad_losses, _):
    if grad_losses is None:
        return None, None, None, None
    grad = cross_entropy_backward_op(grad_losses, *ctx.saved_tensors, ctx.ignore_index, ctx.label_smoothing)
    return grad, None, None, None


cross_entropy_op.register_fake(lambda logits, labels, ignore_index, label_smoothing: _statistics(logits))
cross_entropy_training_op.register_fake(
    lambda logits, labels, ignore_index, label_smoothing: (_statistics(logits), _statistics(logits, 2))
)
cross_entropy_backward_op.register_fake(
    lambda grad_losses, logits, *_: torch.empty_like(logits, memory_format=torch.contiguous_format)
)
cross_entropy_training_op.register_autograd(_gradients, setup_context=_keep_sums)


def _check(logits, labels, label_smoothing: float, reduction: str) -> None:
    check_alike("cross_entropy", logits=logits)
    check_columns("cross_entropy", logits)
    if not isinstance(labels, torch.Tensor) or labels.dtype != torch.int64:
        kind = labels.dtype if isinstance(labels, torch.Tensor) else type(labels).__name__
        raise TypeError(f"cross_entropy takes labels in a tensor of torch.int64, got {kind}: convert with .long()")
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"cross_entropy takes a label a row, {tuple(logits.shape[:-1])}, got {tuple(labels.shape)}: "
            f"give it logits of (..., classes) and labels of (...)"
        )
    if labels.device != logits.device:
        raise ValueError(
            f"cross_entropy takes tensors on one device, got logits on {logits.device} and labels on {labels.device}: "
            f"move one with .to(device)"
        )
    if logits.shape[-1] == 0 and labels.numel():
        raise ValueError("cross_entropy takes at least 1 class, got logits of 0 columns: no label can be right")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy takes label_smoothing of 0 to 1, got {label_smoothing}: 0.1 is usual")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"cross_entropy takes reduction of none, mean or sum, got {reduction!r}: choose one of them")


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "none",
) -> torch.Tensor:
    """The cross entropy of each row of logits with its label in one launch, differentiable once by the logits.

    Args:
        logits: floating-point tensor of shape (..., classes), any strides; columns not side by side are copied first.
        labels: int64 tensor of shape (...), each a class or ignore_index.
        ignore_index: the label of rows that count nothing: their loss and gradient are 0.
        label_smoothing: the share of the target that all classes have in common, 0 to 1.
        reduction: "none" for a loss a row; "sum", or "mean" over the rows not ignored, add small launches of their own.

    Returns:
        Losses of shape (...), or one, in fp32 (fp64 for fp64 logits), as is the arithmetic, whatever autocast says.
        A row of nothing but -inf, with NaN or with inf in it has the loss NaN, as in PyTorch.

    Raises:
        TypeError: logits are not a floating-point tensor, labels not one of int64.
        ValueError: the shapes or devices do not fit, there are no classes, label_smoothing is not of 0 to 1, another
            reduction, or the tensors are on the CPU where kernels run on a GPU.
        A label that is neither a class nor ignore_index is not read. Interpreted, it raises InterpreterError; compiled,
        it stops the GPU with a device-side assertion, as in PyTorch, which the next synchronisation raises.
    """
    _check(logits, labels, label_smoothing, reduction)
    tracked = torch.is_grad_enabled() and logits.requires_grad
    if torch.compiler.is_compiling():
        operation = cross_entropy_training_op if tracked else cross_entropy_op
    else:
        operation = CrossEntropy.apply if tracked else _forward
    losses = operation(logits, labels, ignore_index, label_smoothing)
    losses = losses[0] if tracked else losses
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / (labels != ignore_index).sum()


def cross_entropy_reference(
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "none",
) -> torch.Tensor:
    """The same in PyTorch, the losses in fp32 at least."""
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2) if logits.dim() > 1 else logits,
        labels.flatten() if labels.dim() else labels,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
    losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
    return losses.view(labels.shape) if reduction == "none" else losses


def cross_entropy_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: a comparison, subtraction, exponential and addition a logit; logits and labels in once,
    fp32 losses out once."""
    elements = torch.Size(shape).numel()
    rows = elements // shape[-1] if elements else 0
    return Work(flops=4 * elements, bytes_read=elements * dtype.itemsize + 8 * rows, bytes_written=4 * rows)


def cross_entropy_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the gradient: subtraction, exponential, subtraction, product; logits, labels, three
    fp32 values a row in once, the gradient out once."""
    elements = torch.Size(shape).numel()
    rows = elements // shape[-1] if elements else 0
    return Work(
        flops=4 * elements, bytes_read=elements * dtype.itemsize + 20 * rows, bytes_written=elements * dtype.itemsize
    )


def _inputs(*shape: int, device: str | torch.device = "cpu", **options) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(max(shape[-1], 1), shape[:-1], device=device)
    return torch.randn(shape, device=device, **options), labels


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    x = torch.empty(shape, dtype=dtype, device="meta")
    labels, losses = torch.empty(shape[0], dtype=torch.int64, device="meta"), torch.empty(shape[0], device="meta")
    rows, classes = shape
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
