"""The gradient of cross entropy by the logits, from them and from a row's maximum and sum, which the forward keeps:

    grad_x = grad_loss (exp(x - max) / sum - target)          read x, write grad_x: 4 B/logit in 16 bits, one launch

The probabilities are computed again; no logit waits for another, so that a row may be shared by many programs.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_rows, cdiv, largest_power_of_2
from kernels.online_softmax import LOG2_E
from kernels.op import Work, like
from kernels.vectors import at_vector, elements_before, inside_rim, rim, vectors_of_rows


@triton.jit
def gradient(x, col, label, top, log_total, grad_loss, classes, ignore_index, smoothing):
    """Of the logits x in columns `col` by the row's loss, times grad_loss; 0 where the row is ignored."""
    probability = tl.exp2((x.to(top.dtype) - top) * LOG2_E - log_total)
    target = tl.where(col == label, 1.0 - smoothing, 0.0) + smoothing / classes
    return tl.where(label == ignore_index, 0.0, grad_loss * (probability - target))


@triton.jit
def cross_entropy_backward_kernel(
    grad_losses_ptr,  # (rows,)
    x_ptr,  # (rows, classes), any row stride, unit column stride
    labels_ptr,  # (rows,) int64
    kept_ptr,  # (rows, 2): maximum, log2 of the sum
    grad_x_ptr,  # (rows, classes), contiguous
    rows,
    classes,
    x_row_stride,
    ignore_index,
    smoothing,
    VECTOR: tl.constexpr,  # elements of a vector of 16 bytes, and whether rows begin or end within one:
    RAGGED: tl.constexpr,  # kernels/vectors.py
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,  # columns of a program, which shares its rows with others
):
    blocks_in_row = tl.cdiv(at_vector(classes, VECTOR), BLOCK)
    first = tl.program_id(0) % blocks_in_row * BLOCK
    row = (tl.program_id(0) // blocks_in_row).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    here = row < rows
    label = tl.load(labels_ptr + row, mask=here)
    top = tl.load(kept_ptr + 2 * row, mask=here)
    log_total = tl.load(kept_ptr + 2 * row + 1, mask=here)
    grad_loss = tl.load(grad_losses_ptr + row, mask=here).to(top.dtype)
    lead = elements_before(row * x_row_stride, VECTOR, RAGGED)
    whole = at_vector(classes - lead, VECTOR)
    place = first + tl.arange(0, BLOCK)[None, :]
    inside = here & (place < whole)
    x = tl.load(x_ptr + at_vector(row * x_row_stride + lead, VECTOR) + place, mask=inside)
    grad_x = gradient(x, lead + place, label, top, log_total, grad_loss, classes, ignore_index, smoothing)
    at = grad_x_ptr + at_vector(row * classes + lead, VECTOR) + place
    tl.store(at, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
    if RAGGED:
        col = rim(lead, classes, VECTOR)
        inside = here & (first == 0) & inside_rim(lead, whole, classes, VECTOR)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=inside)
        grad_x = gradient(x, col, label, top, log_total, grad_loss, classes, ignore_index, smoothing)
        tl.store(grad_x_ptr + row * classes + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)


@cache
def backward_launch_of(rows: int, classes: int, dtype: torch.dtype, vector: int, ragged: bool) -> tuple[int, dict]:
    """How many programs, their constexprs and launch options; there is nothing to wait for but loads.

    A program takes 2 KB of a row, 4 KB where rows have rims, or fewer columns of several rows, 2 KB in all and by one
    warp, where that leaves less than an eighth of it idle. Of but 2048 rows it takes four, or one with rims.
    """
    cols, held = classes // vector * vector, 4096 // dtype.itemsize
    widest = held if ragged else held // 2
    sizes = widest, held // 2, held // 4, held // 8, held // 16
    block = next((size for size in sizes if cdiv(cols, size) * size <= 1.125 * cols), held // 32)
    block_rows, warps = 1, 2
    if block != widest and rows < 4096:
        block_rows = min(held // block, largest_power_of_2(rows // (2048 if ragged else 512)))
    elif block != widest:
        block_rows, warps = held // 2 // block, 1
    chosen = {"VECTOR": vector, "RAGGED": ragged, "BLOCK_ROWS": block_rows, "BLOCK": block, "num_warps": warps}
    return cdiv(rows, block_rows) * cdiv(cols, block), chosen


def backward(
    grad_losses: Tensor, logits: Tensor, labels: Tensor, kept: Tensor, ignore_index: int, label_smoothing: float
) -> Tensor:
    """The gradient of (..., classes) logits by losses of (...); `kept` is what the forward stored."""
    grad_x = like(logits)
    if grad_x.numel() == 0:
        return grad_x
    x = as_rows(logits)
    rows, classes = x.shape
    programs, chosen = backward_launch_of(rows, classes, x.dtype, *vectors_of_rows(x, as_rows(grad_x)))
    tensors = grad_losses.contiguous(), x, labels.contiguous(), kept, grad_x
    sizes = rows, classes, x.stride(0), ignore_index, float(label_smoothing)
    with torch.cuda.device_of(x):
        cross_entropy_backward_kernel[(programs,)](*tensors, *sizes, **chosen)
    return grad_x


def backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 4 operations a logit; logits, labels, three fp32 values a row in, the gradient out."""
    elements, rows = torch.Size(shape).numel(), torch.Size(shape[:-1]).numel()
    return Work(4 * elements, elements * dtype.itemsize + 20 * rows, elements * dtype.itemsize)
