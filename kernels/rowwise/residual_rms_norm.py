"""Residual addition and RMSNorm in one kernel:  s = x + residual,  y = s / rms(s) * weight; both are results.

Every layer of a Llama begins so: y goes into the layer, s is the residual of the next one.

    unfused   add: read x, read residual, write s | rms_norm: read s, write y       20 B/element in fp32, two launches
    fused     read x, read residual, write s, normalise what is in registers        16 B/element, one launch
              already, write y

PyTorch's RMSNorm is one launch on a GPU; on a CPU it is written out and moves more. Every program reads the weight
anew, from L2: DRAM gives it once. Rows beyond 32768 elements are in norm_wide.py.

The gradient of s, of x and of residual are one. rms_norm's backward kernels add s's own to what comes through the norm
before they write it: 16 B/element in fp32.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467; torch.nn.functional.rms_norm.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import (
    MULTIPROCESSORS,
    as_rows,
    check_alike,
    check_columns,
    in_widest,
    multiprocessors,
    ones_unless,
)
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise import norm_wide
from kernels.rowwise.pieces import (
    along,
    columns_inside,
    load_columns,
    load_pieces,
    pieces_of,
    pointers,
    row_sum,
    rows_alike,
    rows_from,
)
from kernels.rowwise.rms_norm import WIDEST_BLOCK, launch_of, number_a_row
from kernels.rowwise.rms_norm_backward import gradients
from kernels.vectors import elements_before


@triton.jit
def residual_rms_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    residual_ptr,  # the same, x's dtype
    weight_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    sum_ptr,  # (rows, cols), contiguous, x's dtype: x + residual, the next layer's residual
    rstd_ptr,  # (rows,), in COMPUTE, or None where no backward pass will ask for it
    rows,
    cols,
    x_row_stride,
    residual_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,
    PIECES: tl.constexpr,  # of a row: kernels/rowwise/pieces.py
    STAGES: tl.constexpr,  # rows on their way from memory at once, plus one; 1: it has one block of rows
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    first, APART = rows_alike(BLOCK_ROWS, PIECES)
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    lead = elements_before(tl.cast(first, tl.int64) * x_row_stride, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    weight = load_columns(along(weight_ptr, lead, cols, PIECES), inside)
    step = tl.num_programs(0) * BLOCK_ROWS
    turns = 1 if STAGES == 1 else tl.cdiv(rows - first, step)
    for turn in tl.range(0, turns, num_stages=STAGES):
        row = rows_from(first + turn * step, BLOCK_ROWS, APART)
        here = row < rows
        # Lanes past the row's end hold 0, which adds nothing to a sum of squares.
        x = load_pieces(pointers(x_ptr, row * x_row_stride, lead, cols, PIECES), inside, here, 0.0)
        residual = load_pieces(pointers(residual_ptr, row * residual_row_stride, lead, cols, PIECES), inside, here, 0.0)
        out = pointers(sum_ptr, row * cols, lead, cols, PIECES)
        s, squares = (), ()
        for i in tl.static_range(len(x)):
            s = s + (x[i].to(COMPUTE) + residual[i].to(COMPUTE),)
            squares = squares + (s[i] * s[i],)
            tl.store(out[i], s[i].to(sum_ptr.dtype.element_ty), mask=here & inside[i])
        rstd = tl.rsqrt(row_sum(squares) / cols + eps)
        out = pointers(y_ptr, row * cols, lead, cols, PIECES)
        for i in tl.static_range(len(x)):
            y = s[i] * rstd * weight[i].to(COMPUTE)
            tl.store(out[i], y.to(y_ptr.dtype.element_ty), mask=here & inside[i])
        if rstd_ptr is not None:
            tl.store(rstd_ptr + row, rstd, mask=here)


def _launch(x: Tensor, residual: Tensor, weight: Tensor, rstd: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    y, s = like(x), like(x)
    if y.numel() == 0:
        return y, s
    x, residual, weight = as_rows(x), as_rows(residual), weight.contiguous()
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            norm_wide.forward(x, residual, weight, None, y, s, rstd, eps, False)
        else:
            pieces = pieces_of(x, residual, as_rows(y))
            programs, chosen = launch_of(rows, cols, pieces, x.dtype, multiprocessors(x), 2)
            tensors, strides = (x, residual, weight, y, s, rstd), (x.stride(0), residual.stride(0))
            residual_rms_norm_kernel[(programs,)](*tensors, rows, cols, *strides, eps, **chosen)
    return y, s


def _forward(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _launch(x, residual, weight, None, eps)


def _training(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    rstd = number_a_row(x)
    return *_launch(x, residual, weight, rstd, eps), rstd


def _backward(
    grad_y: Tensor, grad_sum: Tensor | None, s: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    return gradients(grad_y, s, weight, rstd, grad_sum)


def _of_each(backward, needed, *given) -> tuple[Tensor, Tensor, Tensor]:
    grad_x, grad_weight = backward(*given)
    return grad_x, grad_x, grad_weight


residual_rms_norm_op = register(
    "residual_rms_norm",
    _forward,
    lambda x, residual, weight, eps: (like(x), like(x)),
    training=_training,
    training_fake=lambda x, residual, weight, eps: (like(x), like(x), number_a_row(x)),
    keep=lambda arguments, results: (results[1], arguments[2], results[2]),
    backward=_backward,
    backward_fake=lambda grad_y, grad_sum, s, weight, rstd: (like(s), like(weight)),
    gradients=_of_each,
    results=2,
)


@planned
def residual_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """RMSNorm of x + residual, and the sum itself for the next layer, in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        residual: tensor of x's shape, dtype and device. Under autocast the narrower of the two is converted.
        weight: (cols,), of any floating-point dtype, on x's device; ones where not given, by a small launch.
        eps: as in rms_norm.

    Returns:
        The normalised rows and the sum, contiguous tensors of x's shape and dtype. The arithmetic is fp32 (fp64 for
        fp64 inputs); the sum is normalised before it is rounded. Both have gradients.

    Raises:
        TypeError: an argument is not a floating-point tensor, or x and residual differ in dtype.
        ValueError: x has no dimension, residual has another shape, weight is not (cols,), the devices differ, or
            the tensors are on the CPU where kernels run on a GPU.
    """
    x, residual = in_widest(x, residual)
    check_alike("residual_rms_norm", x=x, residual=residual)
    weight = ones_unless(weight, x)
    check_columns("residual_rms_norm", x, weight=weight)
    return residual_rms_norm_op(x, residual, weight, eps)


def residual_rms_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """The same, as one writes it in PyTorch before thinking of memory."""
    s = x + residual
    return torch.nn.functional.rms_norm(s, s.shape[-1:], weight, eps), s


def residual_rms_norm_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 5 operations an element; x, residual and weight in once, y and the sum out once."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(
        flops=5 * elements,
        bytes_read=(2 * elements + shape[-1]) * size,
        bytes_written=2 * elements * size,
    )


def residual_rms_norm_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the gradients: 13 operations an element; both results' gradients, the sum and weight in,
    the gradients of sum and weight out."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(13 * elements, (3 * elements + shape[-1]) * size, (elements + shape[-1]) * size)


def _inputs(*shape: int, **options) -> tuple[Tensor, ...]:
    return tuple(torch.randn(size, **options) for size in (shape, shape, shape[-1:]))


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    rows, cols = shape
    x, weight = torch.empty(shape, dtype=dtype, device="meta"), torch.empty(cols, dtype=dtype, device="meta")
    chosen = launch_of(rows, cols, pieces_of(x), dtype, MULTIPROCESSORS, 2)[1]
    return (x, x, weight, x, x, None, rows, cols, cols, cols, 1e-6), chosen


OP = FusedOp(
    name="residual_rms_norm",
    fused=residual_rms_norm,
    reference=residual_rms_norm_reference,
    work=residual_rms_norm_work,
    kernel=residual_rms_norm_kernel,
    settings=launch_of,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=residual_rms_norm_backward_work,
)
