"""Residual addition and LayerNorm in one kernel:  s = x + residual,  y = layer_norm(s); both are results.

Every layer of a GPT-2 begins so: y goes into the layer, s is the residual of the next one.

    unfused   add: read x, read residual, write s | layer_norm: read s, write y     20 B/element in fp32, two launches
    fused     read x, read residual, write s, normalise what is in registers        16 B/element, one launch
              already, write y

Every program reads weight and bias anew, from L2: DRAM gives them once. Rows beyond 32768 elements are in
norm_wide.py.

The gradient of s, of x and of residual are one. layer_norm's backward kernels recompute mean and variance from s
and add its own gradient to what comes through the norm before they write it: 16 B/element in fp32.

Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450; torch.nn.functional.layer_norm.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import costs
from kernels.arguments import (
    as_rows,
    cdiv,
    check_alike,
    check_columns,
    in_widest,
    multiprocessors,
    ones_unless,
    shared_memory,
    zeros_unless,
)
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise import layer_norm, norm_wide
from kernels.rowwise.layer_norm_backward import gradients
from kernels.rowwise.normalise import normalise, plus, widened
from kernels.rowwise.pieces import (
    along,
    arithmetic,
    columns_inside,
    few_and_narrow,
    load_columns,
    load_pieces,
    pieces_of,
    pointers,
    rows_alike,
    rows_from,
)
from kernels.vectors import elements_before
from kernels.widen import widen

WIDEST_BLOCK = 32768  # elements of a row that one program holds in registers


@triton.jit
def residual_layer_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    residual_ptr,  # the same, x's dtype
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    sum_ptr,  # (rows, cols), contiguous, x's dtype: x + residual, the next layer's residual
    rows,
    cols: tl.constexpr,  # known to the compiler: a mask that is always true costs nothing
    x_row_stride,
    residual_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,
    PIECES: tl.constexpr,  # of a row: kernels/rowwise/pieces.py
    STAGES: tl.constexpr,  # rows on their way from memory at once, plus one
    VECTORS_FIRST: tl.constexpr,  # weight and bias are asked for once, before any row
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
    num_warps: tl.constexpr,
):
    start, APART = rows_alike(BLOCK_ROWS, PIECES)
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    lead = elements_before(start.to(tl.int64) * cols, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    weight_at, bias_at = along(weight_ptr, lead, cols, PIECES), along(bias_ptr, lead, cols, PIECES)
    if VECTORS_FIRST:
        weight, bias = load_columns(weight_at, inside), load_columns(bias_at, inside)
    VECTOR: tl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth
    step = tl.num_programs(0) * BLOCK_ROWS
    turns = 1 if STAGES == 1 else tl.cdiv(rows - start, step)  # as in layer_norm
    for turn in tl.range(0, turns, num_stages=STAGES):
        row = rows_from(start + turn * step, BLOCK_ROWS, APART)
        here = row >= 0 if BLOCK_ROWS == 1 and not PIECES[3] else row < rows
        s = widened(load_pieces(pointers(x_ptr, row * x_row_stride, lead, cols, PIECES), inside, here, 0.0), COMPUTE)
        at = pointers(residual_ptr, row * residual_row_stride, lead, cols, PIECES)
        s = plus(s, widened(load_pieces(at, inside, here, 0.0), COMPUTE))
        at = pointers(sum_ptr, row * cols, lead, cols, PIECES)
        for i in tl.static_range(len(s)):
            tl.store(at[i], s[i].to(sum_ptr.dtype.element_ty), mask=here & inside[i])
        x_hat = normalise(s, inside, cols, eps, VECTOR, num_warps, EXACT=False)
        if not VECTORS_FIRST:  # held during the reduction, their registers would cost every second program on the SM
            weight, bias = load_columns(weight_at, inside), load_columns(bias_at, inside)
        at = pointers(y_ptr, row * cols, lead, cols, PIECES)
        for i in tl.static_range(len(s)):
            y = x_hat[i] * widen(weight[i], COMPUTE) + widen(bias[i], COMPUTE)
            tl.store(at[i], y.to(y_ptr.dtype.element_ty), mask=here & inside[i])


@cache
def launch_of(
    rows: int, cols: int, dtype: torch.dtype, sms: int, pieces: tuple, shared_memory: int
) -> tuple[int, dict]:
    """As layer_norm's, but for rows that fill their block: 32 elements a thread in 64 registers let an SM hold 32
    warps, so that some load while others compute; few narrow ones are there all at once."""
    if cols != pieces[0] or pieces[3] or few_and_narrow(rows, pieces):
        return layer_norm.launch_of(rows, cols, dtype, sms, pieces, shared_memory, tensors=2)
    elements = max(2048 if cols <= 2048 else 16384, cols)
    chosen = {"BLOCK_ROWS": elements // cols, "STAGES": 1, "VECTORS_FIRST": False, "num_warps": elements // 1024}
    if dtype.itemsize == 2:
        chosen["maxnreg"] = 64
    return cdiv(rows, elements // cols), chosen


def _forward(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    y, s = like(x), like(x)
    if y.numel() == 0:
        return y, s
    x, residual, weight, bias = as_rows(x), as_rows(residual), weight.contiguous(), bias.contiguous()
    rows, cols = x.shape
    given = x, residual, weight, bias, y, s
    with torch.cuda.device_of(x):
        if cols <= WIDEST_BLOCK:
            pieces = pieces_of(x, residual, as_rows(y), as_rows(s))
            programs, chosen = launch_of(rows, cols, x.dtype, multiprocessors(x), pieces, shared_memory(x))
            constants, strides = {"PIECES": pieces, "COMPUTE": arithmetic(x.dtype)}, (x.stride(0), residual.stride(0))
            residual_layer_norm_kernel[(programs,)](*given, rows, cols, *strides, eps, **constants, **chosen)
        else:
            norm_wide.forward(*given, None, eps, True)
    return y, s


def _backward(
    grad_y: Tensor, grad_sum: Tensor | None, s: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return gradients(grad_y, s, weight, bias, None, eps, grad_sum)


def _of_each(backward, needed, *given) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_x, *of_vectors = backward(*given)
    return grad_x, grad_x, *of_vectors


residual_layer_norm_op = register(
    "residual_layer_norm",
    _forward,
    lambda x, residual, weight, bias, eps: (like(x), like(x)),
    keep=lambda arguments, results: (results[1], *arguments[2:]),
    backward=_backward,
    backward_fake=lambda grad_y, grad_sum, s, weight, bias, eps: (like(s), like(weight), like(bias)),
    gradients=_of_each,
    results=2,
)


@planned
def residual_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """LayerNorm of x + residual, and the sum itself for the next layer, in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        residual: tensor of x's shape, dtype and device. Under autocast the narrower of the two is converted.
        weight, bias: as in layer_norm.
        eps: as in layer_norm.

    Returns:
        The normalised rows and the sum, contiguous tensors of x's shape and dtype. The arithmetic is fp32 (fp64 for
        fp64 inputs); the sum is normalised before it is rounded. Both have gradients.

    Raises:
        TypeError: an argument is not a floating-point tensor, or x and residual differ in dtype.
        ValueError: x has no dimension, residual has another shape, weight or bias is not (cols,), the devices differ,
            or the tensors are on the CPU where kernels run on a GPU.
    """
    x, residual = in_widest(x, residual)
    check_alike("residual_layer_norm", x=x, residual=residual)
    weight, bias = ones_unless(weight, x), zeros_unless(bias, x)
    check_columns("residual_layer_norm", x, weight=weight, bias=bias)
    return residual_layer_norm_op(x, residual, weight, bias, eps)


def residual_layer_norm_reference(
    x: Tensor, residual: Tensor, weight=None, bias=None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """The same, as one writes it in PyTorch before thinking of memory."""
    s = x + residual
    return torch.nn.functional.layer_norm(s, s.shape[-1:], weight, bias, eps), s


def residual_layer_norm_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 8 operations an element; all four inputs in once, y and the sum out once."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(
        flops=(1 + costs.LAYER_NORM) * elements,
        bytes_read=(2 * elements + 2 * shape[-1]) * size,
        bytes_written=2 * elements * size,
    )


def residual_layer_norm_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the gradients: 19 operations an element; both results' gradients, the sum and weight in,
    the gradients of sum, weight and bias out."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(19 * elements, (3 * elements + shape[-1]) * size, (elements + 2 * shape[-1]) * size)


def _inputs(*shape: int, **options) -> tuple[Tensor, ...]:
    return tuple(torch.randn(size, **options) for size in (shape, shape, shape[-1:], shape[-1:]))


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    pieces = pieces_of(x)
    _, chosen = launch_of(rows, cols, dtype, 132, pieces, 227 * 2**10)
    constants = {"PIECES": pieces, "COMPUTE": arithmetic(dtype)}
    return (x, x, x[0], x[0], x, x, rows, cols, cols, cols, 1e-5), {**constants, **chosen}


OP = FusedOp(
    name="residual_layer_norm",
    fused=residual_layer_norm,
    reference=residual_layer_norm_reference,
    work=residual_layer_norm_work,
    kernel=residual_layer_norm_kernel,
    settings=launch_of,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=residual_layer_norm_backward_work,
)
