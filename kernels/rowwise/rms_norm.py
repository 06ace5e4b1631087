"""RMSNorm of each row:  y = x / rms(x) * weight,  rms(x) = sqrt(mean(x^2) + eps).

Written out in PyTorch, the squares and the scaled rows go to memory and come straight back:

    unfused   x*x: read x, write squares | mean: read squares | x*rstd: read x, write t | t*weight: read t, write y
                                                            28 B/element in fp32, six launches with eps and rsqrt
    fused     read x once, keep the row in registers, write y once           8 B/element in fp32, one launch

Every program reads the weight anew, from L2: DRAM gives it once. Many rows of 10241 to 32768 columns of 16 bits are in
rms_norm_packed.py, rows too wide for registers in norm_wide.py. Training keeps 1 / rms of each row, one number, for
rms_norm_backward.py.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467; torch.nn.functional.rms_norm.
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
    check_alike,
    check_columns,
    multiprocessors,
    next_power_of_2,
    ones_unless,
    over_last,
)
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise import norm_wide, rms_norm_packed
from kernels.rowwise.pieces import (
    along,
    arithmetic,
    columns_inside,
    in_step,
    load_columns,
    load_pieces,
    pieces_of,
    pointers,
    row_sum,
    rows_alike,
    rows_from,
)
from kernels.rowwise.rms_norm_backward import gradients
from kernels.vectors import elements_before

WIDEST_BLOCK = 32768  # elements of a row that one program holds in registers


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
        # Lanes past the row's end hold 0, which adds nothing to a sum of squares.
        x = load_pieces(pointers(x_ptr, row * x_row_stride, lead, cols, PIECES), inside, row < rows, 0.0)
        squares = ()
        for i in tl.static_range(len(x)):
            squares = squares + (x[i].to(COMPUTE) * x[i].to(COMPUTE),)
        rstd = tl.rsqrt(row_sum(squares) / cols + eps)
        out = pointers(y_ptr, row * cols, lead, cols, PIECES)
        for i in tl.static_range(len(x)):
            y = x[i].to(COMPUTE) * rstd * weight[i].to(COMPUTE)
            tl.store(out[i], y.to(y_ptr.dtype.element_ty), mask=(row < rows) & inside[i])
        if rstd_ptr is not None:
            tl.store(rstd_ptr + row, rstd, mask=row < rows)


@cache
def launch_of(rows: int, cols: int, pieces: tuple, dtype: torch.dtype, sms: int, tensors: int = 1) -> tuple[int, dict]:
    """How many programs, and their BLOCK_ROWS, STAGES and num_warps, for rows of at most WIDEST_BLOCK elements of each
    of `tensors`.

    A thread has at most 128 bytes of the tensors, 32 where rows are no more than SMs; 144 where an SM then holds two
    programs of 8 warps in place of one of 16. Rows of up to 512 columns share a program. Where rows are ragged, the
    weight comes in single elements: beyond 8192 of them a program asks for it once and walks over rows, of which the
    next are on their way; 16 warps of programs that walk have to be on an SM at once.
    """
    (held, ragged), many = (sum(pieces[:2]), pieces[3]), rows > sms
    block_rows = max(1, 1024 // next_power_of_2(held)) if many else 1
    row_bytes = held * tensors * dtype.itemsize
    warps = min(32, max(1 if many else 2, next_power_of_2(cdiv(block_rows * row_bytes, 4096 if many else 1024))))
    if many and row_bytes <= 36 * 2**10:
        warps = min(8, warps)
    programs, stages, per_sm = cdiv(rows, block_rows), 1, max(1, 16 // warps)
    if ragged and held > 8192 and warps <= 16 and programs > per_sm * sms:
        stages = max(1, min(3, 1 + 216 * 2**10 // (per_sm * row_bytes)))
    chosen = {"PIECES": pieces, "BLOCK_ROWS": block_rows, "STAGES": stages, "num_warps": warps}
    if stages > 1:
        programs, chosen["maxnreg"] = per_sm * sms, 128
    return in_step(programs, rows, block_rows, pieces), {**chosen, "COMPUTE": arithmetic(dtype)}


def _launch(x: Tensor, weight: Tensor, rstd: Tensor | None, eps: float) -> Tensor:
    y = like(x)
    if y.numel() == 0:
        return y
    x, weight = as_rows(x), weight.contiguous()
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            norm_wide.forward(x, None, weight, None, y, None, rstd, eps, False)
        elif rms_norm_packed.take(x, weight, pieces := pieces_of(x, as_rows(y)), multiprocessors(x)):
            rms_norm_packed.forward(x, weight, y, rstd, eps)
        else:
            programs, chosen = launch_of(rows, cols, pieces, x.dtype, multiprocessors(x))
            rms_norm_kernel[(programs,)](x, weight, y, rstd, rows, cols, x.stride(0), eps, **chosen)
    return y


def _forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch(x, weight, None, eps)


def number_a_row(x: Tensor) -> Tensor:
    """Uninitialised: one value a row of x, in the dtype of the arithmetic."""
    return x.new_empty(x.shape[:-1].numel(), dtype=torch.promote_types(x.dtype, torch.float32))


def _forward_keeping_rstd(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rstd = number_a_row(x)
    return _launch(x, weight, rstd, eps), rstd


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


@planned
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
    chosen = launch_of(rows, cols, pieces_of(x), dtype, MULTIPROCESSORS)[1]
    return (x, x[0], x, None, rows, cols, cols, 1e-6), chosen


OP = FusedOp(
    name="rms_norm",
    fused=rms_norm,
    reference=rms_norm_reference,
    work=rms_norm_work,
    kernel=rms_norm_kernel,
    settings=launch_of,
    inputs=lambda *shape, **options: (torch.randn(shape, **options), torch.randn(shape[-1:], **options)),
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=rms_norm_backward_work,
)
