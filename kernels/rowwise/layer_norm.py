"""LayerNorm of each row:  y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias.

    unfused   mean: read x | x-mean: read x, write c | c*c: read c, write squares | mean: read squares |
              c*rstd: read c, write t | t*weight: read t, write u | u+bias: read u, write y
                                                            48 B/element in fp32, nine launches with eps and rsqrt
    fused     read x once, keep the row in registers, write y once           8 B/element in fp32, one launch

The backward pass, in layer_norm_backward.py, recomputes mean and variance from x, which it reads anyway: 12 B/element
in fp32. The arithmetic of both is in normalise.py. Rows too wide for registers are in layer_norm_wide.py.

Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450; torch.nn.functional.layer_norm.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import costs
from kernels.activations import activate
from kernels.affine import ones_unless, over_last, zeros_unless
from kernels.arguments import as_rows, check_alike, check_columns, multiprocessors
from kernels.fused_op import FusedOp, Work
from kernels.register import like, register
from kernels.rowwise import layer_norm_wide
from kernels.rowwise.layer_norm_backward import gradients
from kernels.rowwise.normalise import normalise
from kernels.sizes import cdiv, next_power_of_2
from kernels.widen import widen

WIDEST_BLOCK = 32768  # elements of a row that one program holds in registers


@triton.jit
def layer_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    rows,
    cols: tl.constexpr,  # known to the compiler: a mask that is always true costs nothing
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    VECTORS_FIRST: tl.constexpr,  # weight and bias are asked for together with the row
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
    num_warps: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]  # times stride, past 2**31
    col = tl.arange(0, BLOCK_COLS)[None, :]
    inside = (col < cols) & (row < rows) if BLOCK_ROWS > 1 else col < cols  # of one row a program, none is too many
    x = widen(tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0), COMPUTE)
    if VECTORS_FIRST:
        weight, bias = tl.load(weight_ptr + col, mask=col < cols), tl.load(bias_ptr + col, mask=col < cols)
    BITS: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth
    x_hat = normalise(x, cols, eps, 128 // BITS, num_warps, EXACT=BITS == 16)
    if not VECTORS_FIRST:
        weight, bias = tl.load(weight_ptr + col, mask=col < cols), tl.load(bias_ptr + col, mask=col < cols)
    z = x_hat * widen(weight, COMPUTE) + widen(bias, COMPUTE)
    y = z if ACT is None else activate(z, ACT, y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@cache
def settings(cols: int, dtype: torch.dtype, few_rows: bool = False, act: str | None = None) -> dict:
    """Launch settings for rows of `cols` elements; `few_rows`: no more than the GPU has SMs.

    32 elements a thread leave it 64 registers or fewer: an SM then holds 32 warps, and some load while others compute.
    An activation should not wait for a second row. Alone on its SM, a program takes twice the warps, and weight and
    bias before it reduces; held in registers meanwhile, they would cost every second program on an SM.
    """
    block_cols = next_power_of_2(cols)
    elements = max(2048 if block_cols <= 2048 or few_rows or act else 8192, block_cols)
    return {
        "BLOCK_ROWS": elements // block_cols,
        "BLOCK_COLS": block_cols,
        "VECTORS_FIRST": few_rows and block_cols <= 16384,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": min(32, elements // 512) if few_rows else elements // 1024,
    }


def _forward(x: Tensor, weight: Tensor, bias: Tensor, act: str | None, eps: float) -> Tensor:
    y = like(x)
    if y.numel() == 0:
        return y
    x, weight, bias = as_rows(x), weight.contiguous(), bias.contiguous()
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            layer_norm_wide.forward(x, weight, bias, y, act, eps)
        else:
            chosen = settings(cols, x.dtype, rows <= multiprocessors(x), act)
            programs = cdiv(rows, chosen["BLOCK_ROWS"])
            layer_norm_kernel[(programs,)](x, weight, bias, y, rows, cols, x.stride(0), eps, ACT=act, **chosen)
    return y


layer_norm_op = register(
    "layer_norm",
    _forward,
    lambda x, weight, bias, act, eps: like(x),
    keep=lambda arguments, y: arguments,
    backward=gradients,
    backward_fake=lambda grad_y, x, weight, bias, act, eps: (like(x), like(weight), like(bias)),
)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Bring each row of `x` to mean 0 and variance 1, scale and shift its columns, in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        weight, bias: (cols,), of any floating-point dtype, on x's device; ones and zeros where not given, by a small
            launch each.
        eps: added to the variance, as fp32; a constant row becomes bias, or NaN where eps is 0.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once. The
        gradients of weight and bias are summed in fp32 too, in an order that depends on the GPU alone: no atomics.

    Raises:
        TypeError: an argument is not a floating-point tensor.
        ValueError: x has no dimension, weight or bias is not (cols,), or devices differ or run no kernels here.
    """
    check_alike("layer_norm", x=x)
    weight, bias = ones_unless(weight, x), zeros_unless(bias, x)
    check_columns("layer_norm", x, weight=weight, bias=bias)
    return layer_norm_op(x, weight, bias, None, eps)


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, run by layer_norm."""

    def forward(self, x: Tensor) -> Tensor:
        return over_last(layer_norm, self.normalized_shape, x, self.weight, self.bias, eps=self.eps)


def layer_norm_reference(x: Tensor, weight=None, bias=None, eps: float = 1e-5) -> Tensor:
    """The same in PyTorch, whose own kernel is fused too."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def layer_norm_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: 7 operations an element; x, weight and bias in once, y out once."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(costs.LAYER_NORM * elements, (elements + 2 * shape[-1]) * size, elements * size)


def layer_norm_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the three gradients: 18 operations an element; gradient, x and weight in, three out."""
    elements, size = torch.Size(shape).numel(), dtype.itemsize
    return Work(18 * elements, (2 * elements + shape[-1]) * size, (elements + 2 * shape[-1]) * size)


def compile_arguments(*shape: int, dtype: torch.dtype, act: str | None = None) -> tuple[tuple, dict]:
    """layer_norm_kernel's arguments and settings at a shape, as on an H200, which has 132 SMs."""
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    return (x, x[0], x[0], x, rows, cols, cols, 1e-5), {"ACT": act, **settings(cols, dtype, rows <= 132, act)}


OP = FusedOp(
    name="layer_norm",
    fused=layer_norm,
    reference=layer_norm_reference,
    work=layer_norm_work,
    kernel=layer_norm_kernel,
    settings=settings,
    inputs=lambda *shape, **options: tuple(torch.randn(size, **options) for size in (shape, shape[-1:], shape[-1:])),
    compile_arguments=compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=layer_norm_backward_work,
)
