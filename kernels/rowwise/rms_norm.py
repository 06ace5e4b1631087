"""RMSNorm of each row:  y = x / rms(x) * weight,  rms(x) = sqrt(mean(x^2) + eps).

Written out in PyTorch, the squares and the scaled rows go to memory and come straight back:

    unfused   x*x: read x, write squares | mean: read squares | x*rstd: read x, write t | t*weight: read t, write y
                                                            28 B/element in fp32, six launches with eps and rsqrt
    fused     read x once, keep the row in registers, write y once           8 B/element in fp32, one launch

Every program reads the weight anew, from L2: DRAM gives it once. Training keeps 1 / rms of each row, one number; the
backward pass reads the gradient and x and writes x's gradient, 12 B/element in fp32. Rows too wide for this are in
rms_norm_wide.py, the backward pass of few rows in rms_norm_few_rows.py.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467; torch.nn.functional.rms_norm.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.affine import ones_unless, over_last
from kernels.arguments import as_rows, check_alike, check_columns, multiprocessors, shared_memory
from kernels.fused_op import FusedOp, Work
from kernels.register import like, register
from kernels.rowwise import rms_norm_few_rows, rms_norm_wide
from kernels.rowwise.l2_norm import WIDEST_BLOCK, settings
from kernels.sizes import cdiv, next_power_of_2

WIDEST_BACKWARD_BLOCK = 16384  # elements of a row, of its gradient and of a sum over rows, in one program's registers


@triton.jit
def rms_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    rstd_ptr,  # (rows,), in COMPUTE, or None where no backward pass will ask for it
    rows,
    cols,
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.arange(0, BLOCK_COLS)[None, :]
    inside = (row < rows) & (col < cols)
    # Lanes past the row's end hold 0, which adds nothing to a sum of squares.
    x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
    weight = tl.load(weight_ptr + col, mask=col < cols).to(COMPUTE)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / cols + eps)
    y = x * rstd * weight
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd, mask=row < rows)


@triton.jit
def rms_norm_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), in COMPUTE: 1 / rms of each row, from the forward
    grad_sum_ptr,  # (rows, cols), contiguous: added to grad_x where x is a sum that goes on as it is, or None
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs, cols), in COMPUTE: each program's sum over its rows
    rows,
    cols: tl.constexpr,  # known to the compiler: without masks fewer values wait in registers
    grad_y_row_stride,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    STAGES: tl.constexpr,  # rows on their way from memory at once, plus one
    COMPUTE: tl.constexpr,
):
    col = tl.arange(0, BLOCK_COLS)[None, :]
    grad_weight = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    step = tl.num_programs(0) * BLOCK_ROWS
    for first in tl.range(tl.program_id(0) * BLOCK_ROWS, rows, step, num_stages=STAGES):
        row = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        # Loaded for every row: kept, its registers would be missing for the sum.
        weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        # d rstd / dx = -rstd^3 x / cols reaches x through every column of its row.
        pull = tl.sum(grad_y * x * weight, axis=1, keep_dims=True) / cols * rstd * rstd
        grad_weight += grad_y * (x * rstd)
        grad_x = rstd * (grad_y * weight - x * pull)
        if grad_sum_ptr is not None:
            grad_x += tl.load(grad_sum_ptr + row * cols + col, mask=inside, other=0.0).to(COMPUTE)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
    total = tl.sum(grad_weight, axis=0, keep_dims=True)
    tl.store(grad_weight_ptr + tl.program_id(0).to(tl.int64) * cols + col, total, mask=col < cols)


@cache
def backward_settings(cols: int, dtype: torch.dtype, shared_memory: int = 227 * 2**10, rows_read: int = 2) -> dict:
    """Of the backward pass. Two rows are on their way while one is computed, where `shared_memory` bytes hold them, of
    each of `rows_read` tensors: x, the gradient, and a sum's."""
    block_cols = next_power_of_2(cols)
    elements = max(2048, block_cols)
    in_flight = (rows_read * dtype.itemsize + 4) * elements  # bytes of one stage, the weight's too
    return {
        "BLOCK_ROWS": elements // block_cols,
        "BLOCK_COLS": block_cols,
        "STAGES": 3 if 2 * in_flight < shared_memory else 1,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": min(16, elements // 512),
    }


def _launch(x: Tensor, weight: Tensor, rstd: Tensor | None, eps: float) -> Tensor:
    y = like(x)
    if y.numel() == 0:
        return y
    x, weight = as_rows(x), weight.contiguous()
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            rms_norm_wide.forward(x, None, weight, y, None, rstd, eps)
        else:
            chosen = settings(cols, x.dtype, few_rows=rows <= multiprocessors(x))
            grid = (cdiv(rows, chosen["BLOCK_ROWS"]),)
            rms_norm_kernel[grid](x, weight, y, rstd, rows, cols, x.stride(0), eps, **chosen)
    return y


def _forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch(x, weight, None, eps)


def number_a_row(x: Tensor) -> Tensor:
    """Uninitialised: one value a row of x, in the dtype of the arithmetic."""
    return x.new_empty(x.shape[:-1].numel(), dtype=torch.promote_types(x.dtype, torch.float32))


def _forward_keeping_rstd(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rstd = number_a_row(x)
    return _launch(x, weight, rstd, eps), rstd


def gradients(
    grad_y: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, grad_sum: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradients of x and weight; `grad_sum` is added to x's."""
    grad_x = like(x)
    if grad_x.numel() == 0:
        return grad_x, torch.zeros_like(weight)
    grad_y, x, grad_sum = as_rows(grad_y), as_rows(x), None if grad_sum is None else grad_sum.contiguous()
    (rows, cols), tensors = x.shape, (grad_y, x, weight.contiguous(), rstd, grad_sum, grad_x)
    with torch.cuda.device_of(x):
        if cols > WIDEST_BACKWARD_BLOCK:
            sums = rms_norm_wide.backward(*tensors)
        elif rows <= min(rms_norm_few_rows.MOST_ROWS, multiprocessors(x)):
            return grad_x, rms_norm_few_rows.backward(*tensors)
        else:
            chosen = backward_settings(cols, x.dtype, shared_memory(x), 2 if grad_sum is None else 3)
            per_multiprocessor = max(1, 8192 // (chosen["BLOCK_ROWS"] * chosen["BLOCK_COLS"]))
            programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), per_multiprocessor * multiprocessors(x))
            sums = torch.empty(programs, cols, dtype=rstd.dtype, device=x.device)
            rms_norm_backward_kernel[(programs,)](*tensors, sums, rows, cols, grad_y.stride(0), x.stride(0), **chosen)
    return grad_x, sums.sum(0).to(weight.dtype)


rms_norm_op = register(
    "rms_norm",
    _forward,
    lambda x, weight, eps: like(x),
    training=_forward_keeping_rstd,
    training_fake=lambda x, weight, eps: (like(x), number_a_row(x)),
    keep=lambda arguments, result: (*arguments[:2], result[1]),
    backward=gradients,
    backward_fake=lambda grad_y, x, weight, rstd: (like(x), like(weight)),
)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Divide each row of `x` by its root mean square and scale its columns, in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        weight: (cols,), of any floating-point dtype, on x's device; ones where not given, by a small launch.
        eps: added to the mean square, as fp32; a row of zeros stays zero, and is NaN where eps is 0. The default is
            Llama's; torch.nn.functional.rms_norm's is that of x's dtype, torch.finfo(x.dtype).eps.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once. The
        gradient of weight is summed in fp32 too, in an order that depends on the GPU alone: no atomics.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: x has no dimension, weight is not (cols,), the devices differ or are not the one of kernels.
    """
    check_alike("rms_norm", x=x)
    weight = ones_unless(weight, x)
    check_columns("rms_norm", x, weight=weight)
    return rms_norm_op(x, weight, eps)


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, run by rms_norm; its eps of None is the dtype's own, as there."""

    def forward(self, x: Tensor) -> Tensor:
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return over_last(rms_norm, self.normalized_shape, x, self.weight, eps=eps)


def rms_norm_reference(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """The same in PyTorch, whose own kernel is fused on a GPU; on a CPU it is written out in PyTorch."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def rms_norm_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 4 operations an element; x and weight in once, y out once."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(flops=4 * elements, bytes_read=(elements + shape[-1]) * size, bytes_written=elements * size)


def rms_norm_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of both gradients: 12 operations an element; gradient, x and weight in, two out."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(12 * elements, (2 * elements + shape[-1]) * size, (elements + shape[-1]) * size)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    return (x, x[0], x, None, rows, cols, cols, 1e-6), settings(cols, dtype, few_rows=rows <= 132)  # SMs of an H200


OP = FusedOp(
    name="rms_norm",
    fused=rms_norm,
    reference=rms_norm_reference,
    work=rms_norm_work,
    kernel=rms_norm_kernel,
    settings=settings,
    inputs=lambda *shape, **options: (torch.randn(shape, **options), torch.randn(shape[-1:], **options)),
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=rms_norm_backward_work,
)
