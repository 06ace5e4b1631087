"""Residual addition and LayerNorm in one kernel:  s = x + residual,  y = layer_norm(s); both are results.

Every layer of a GPT-2 begins so: y goes into the layer, s is the residual of the next one.

    unfused   add: read x, read residual, write s | layer_norm: read s, write y     20 B/element in fp32, two launches
    fused     read x, read residual, write s, normalise what is in registers        16 B/element, one launch
              already, write y

Every program reads weight and bias anew, from L2: DRAM gives them once. Rows beyond 32768 elements are in
residual_layer_norm_wide.py.

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
from kernels.affine import ones_unless, zeros_unless
from kernels.arguments import as_rows, check_alike, check_columns, in_widest
from kernels.fused_op import FusedOp, Work
from kernels.register import like, register
from kernels.rowwise.layer_norm_backward import gradients
from kernels.rowwise.normalise import normalise
from kernels.rowwise.residual_layer_norm_wide import residual_layer_norm_wide_kernel
from kernels.sizes import cdiv, next_power_of_2
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
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
    num_warps: tl.constexpr,
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.arange(0, BLOCK_COLS)[None, :]
    inside = col < cols
    if BLOCK_ROWS > 1:  # else there are as many programs as rows
        inside = inside & (row < rows)
    x = widen(tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0), COMPUTE)
    residual = widen(tl.load(residual_ptr + row * residual_row_stride + col, mask=inside, other=0.0), COMPUTE)
    s = x + residual
    tl.store(sum_ptr + row * cols + col, s.to(sum_ptr.dtype.element_ty), mask=inside)
    x_hat = normalise(s, cols, eps, 128 // x_ptr.dtype.element_ty.primitive_bitwidth, num_warps, EXACT=False)
    # Loaded only now: held during the reduction, their registers would cost every second program on the SM.
    weight = tl.load(weight_ptr + col, mask=col < cols)
    bias = tl.load(bias_ptr + col, mask=col < cols)
    y = x_hat * widen(weight, COMPUTE) + widen(bias, COMPUTE)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@cache
def settings(cols: int, dtype: torch.dtype) -> dict:
    """Launch settings for rows of `cols` elements.

    32 elements a thread in 64 registers let an SM hold 32 warps, so that some load while others compute.
    """
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    if cols > WIDEST_BLOCK:
        return {"BLOCK_COLS": 16384, "COMPUTE": compute, "num_warps": 16}
    block_cols = next_power_of_2(cols)
    elements = max(2048 if block_cols <= 2048 else 16384, block_cols)
    return {
        "BLOCK_ROWS": elements // block_cols,
        "BLOCK_COLS": block_cols,
        "COMPUTE": compute,
        "num_warps": elements // 1024,
        "maxnreg": 64 if dtype.itemsize == 2 else None,
    }


def _forward(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    y, s = like(x), like(x)
    if y.numel() == 0:
        return y, s
    x, residual, weight, bias = as_rows(x), as_rows(residual), weight.contiguous(), bias.contiguous()
    rows, cols = x.shape
    chosen = settings(cols, x.dtype)
    strides = x.stride(0), residual.stride(0)
    with torch.cuda.device_of(x):
        if cols <= WIDEST_BLOCK:
            grid = (cdiv(rows, chosen["BLOCK_ROWS"]),)
            residual_layer_norm_kernel[grid](x, residual, weight, bias, y, s, rows, cols, *strides, eps, **chosen)
        else:
            residual_layer_norm_wide_kernel[(rows,)](x, residual, weight, bias, y, s, cols, *strides, eps, **chosen)
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
    rows, cols = shape
    x, weight = torch.empty(shape, dtype=dtype, device="meta"), torch.empty(cols, dtype=dtype, device="meta")
    return (x, x, weight, weight, x, x, rows, cols, cols, cols, 1e-5), settings(cols, dtype)


OP = FusedOp(
    name="residual_layer_norm",
    fused=residual_layer_norm,
    reference=residual_layer_norm_reference,
    work=residual_layer_norm_work,
    kernel=residual_layer_norm_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=residual_layer_norm_backward_work,
)
