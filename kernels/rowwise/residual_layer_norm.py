"""Residual addition and LayerNorm in one kernel:  s = x + residual,  y = layer_norm(s); it returns both.

Every layer of GPT-2 starts like this: y goes into the layer, s is the next layer's residual.

    unfused   add: read x, read residual, write s | layer_norm: read s, write y     20 B/element in fp32, two launches
    fused     read x, read residual, write s, normalise what is in registers        16 B/element, one launch
              already, write y

Rows are split into blocks as in kernels/rowwise/layer_norm.py and loaded from two tensors. Rows of more than 32768
columns are read twice, in chunks. s, x and residual have the same gradient. layer_norm's backward kernels, run on s
instead of x, add s's own gradient to the norm's before they write it: 16 B/element in fp32.

Source: Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450; torch.nn.functional.layer_norm.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import costs
from kernels.arguments import as_rows, cdiv, check_alike, check_columns, in_widest, ones_unless, zeros_unless
from kernels.op import FusedOp, like, planned, register, work_per_element
from kernels.rowwise.blocks import aligned, norm_settings
from kernels.rowwise.layer_norm import add_chunk, gradients, row_statistics


@triton.jit
def residual_layer_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    residual_ptr,  # the same, x's dtype
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    sum_ptr,  # (rows, cols), contiguous, x's dtype: x + residual, the next layer's residual
    mean_ptr,  # (rows,), in COMPUTE, or None where no backward pass will need it
    rstd_ptr,  # (rows,), in COMPUTE: 1 / sqrt(variance + eps), or None
    rows,
    cols,
    x_row_stride,
    residual_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,  # rows of one program
    HEAD: tl.constexpr,  # columns of the first block, which every row fills
    TAIL: tl.constexpr,  # columns of the second block, which is masked
    WIDE: tl.constexpr,  # whether there are more columns than HEAD + TAIL, read in chunks of TAIL
    EARLY: tl.constexpr,  # whether weight and bias are loaded before the reductions, so that nothing waits afterwards
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
    ALIGN: tl.constexpr,  # divides cols and the row strides; the compiler, told so, loads 16 bytes at a time
):
    cols = cols // ALIGN * ALIGN
    x_row_stride = x_row_stride // ALIGN * ALIGN
    residual_row_stride = residual_row_stride // ALIGN * ALIGN
    # int64 before the multiplications: row * stride may exceed 2**31.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col0 = tl.arange(0, HEAD)[None, :]
    col1 = HEAD + tl.arange(0, TAIL)[None, :]
    mask0 = row < rows
    mask1 = mask0 & (col1 < cols)
    x_ptr += row * x_row_stride
    residual_ptr += row * residual_row_stride
    y_ptr += row * cols
    sum_ptr += row * cols

    first = tl.load(x_ptr, mask=mask0, other=0.0).to(COMPUTE)
    first += tl.load(residual_ptr, mask=mask0, other=0.0).to(COMPUTE)
    s0 = tl.load(x_ptr + col0, mask=mask0, other=0.0).to(COMPUTE)
    s0 += tl.load(residual_ptr + col0, mask=mask0, other=0.0).to(COMPUTE)
    s1 = tl.load(x_ptr + col1, mask=mask1, other=0.0).to(COMPUTE)
    s1 += tl.load(residual_ptr + col1, mask=mask1, other=0.0).to(COMPUTE)
    if EARLY:
        weight0, bias0 = tl.load(weight_ptr + col0), tl.load(bias_ptr + col0)
        weight1, bias1 = tl.load(weight_ptr + col1, mask=col1 < cols), tl.load(bias_ptr + col1, mask=col1 < cols)
    tl.store(sum_ptr + col0, s0.to(sum_ptr.dtype.element_ty), mask=mask0)
    tl.store(sum_ptr + col1, s1.to(sum_ptr.dtype.element_ty), mask=mask1)
    # From here on as in layer_norm_kernel: s before it was rounded, less its first element.
    s0, s1 = s0 - first, s1 - first
    seen = HEAD + TAIL if WIDE else cols
    total = tl.sum(s0, axis=1, keep_dims=True) + tl.sum(tl.where(mask1, s1, 0.0), axis=1, keep_dims=True)
    mean = total / seen
    centred0, centred1 = s0 - mean, tl.where(mask1, s1 - mean, 0.0)
    squares = tl.sum(centred0 * centred0, axis=1, keep_dims=True) + tl.sum(centred1 * centred1, axis=1, keep_dims=True)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            inside = mask0 & (col < cols)
            s = tl.load(x_ptr + col, mask=inside, other=0.0).to(COMPUTE)
            s += tl.load(residual_ptr + col, mask=inside, other=0.0).to(COMPUTE)
            tl.store(sum_ptr + col, s.to(sum_ptr.dtype.element_ty), mask=inside)
            mean, squares = add_chunk(mean, squares, HEAD + start, cols, s - first, col < cols)
    rstd = tl.rsqrt(squares / cols + eps)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, first + mean, mask=mask0)
        tl.store(rstd_ptr + row, rstd, mask=mask0)

    if EARLY:
        y0 = (s0 - mean) * rstd * weight0.to(COMPUTE) + bias0.to(COMPUTE)
    else:
        y0 = (s0 - mean) * rstd * tl.load(weight_ptr + col0).to(COMPUTE) + tl.load(bias_ptr + col0).to(COMPUTE)
        weight1, bias1 = tl.load(weight_ptr + col1, mask=col1 < cols), tl.load(bias_ptr + col1, mask=col1 < cols)
    y1 = (s1 - mean) * rstd * weight1.to(COMPUTE) + bias1.to(COMPUTE)
    tl.store(y_ptr + col0, y0.to(y_ptr.dtype.element_ty), mask=mask0)
    tl.store(y_ptr + col1, y1.to(y_ptr.dtype.element_ty), mask=mask1)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            inside = mask0 & (col < cols)
            s = tl.load(x_ptr + col, mask=inside).to(COMPUTE)
            s += tl.load(residual_ptr + col, mask=inside).to(COMPUTE)
            weight = tl.load(weight_ptr + col, mask=col < cols).to(COMPUTE)
            bias = tl.load(bias_ptr + col, mask=col < cols).to(COMPUTE)
            y = (s - first - mean) * rstd * weight + bias
            tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=inside)


def settings(cols: int, dtype: torch.dtype, *strides: int) -> dict:
    """Return norm_settings and EARLY, which rows loaded element by element leave no registers for. Rows of 16385 to
    18432 columns take 8 warps: 362 us for 434 at 7282 x 18432 (H100)."""
    chosen, wide_loads = norm_settings(cols, dtype, *strides), aligned(cols, dtype.itemsize)
    chosen["EARLY"] = cols <= 1024 and wide_loads
    return chosen | ({"num_warps": 8} if 16384 < cols <= 18432 and wide_loads else {})


def _launch(x, residual, weight, bias, mean, rstd, eps: float) -> tuple[Tensor, Tensor]:
    """Return y and the sum, and write mean and rstd if given."""
    y, s = like(x), like(x)
    if y.numel():
        x, residual, weight, bias = as_rows(x), as_rows(residual), weight.contiguous(), bias.contiguous()
        rows, cols = x.shape
        strides = x.stride(0), residual.stride(0)
        chosen = settings(cols, x.dtype, *strides)
        with torch.cuda.device_of(x):
            residual_layer_norm_kernel[(cdiv(rows, chosen["BLOCK_ROWS"]),)](
                x, residual, weight, bias, y, s, mean, rstd, rows, cols, *strides, eps, **chosen
            )
    return y, s


def _forward(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _launch(x, residual, weight, bias, None, None, eps)


def _training(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, rstd = row_statistics(x)
    return *_launch(x, residual, weight, bias, mean, rstd, eps), mean, rstd


def _backward(
    grad_y: Tensor, grad_sum: Tensor | None, s: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return gradients(grad_y, s, weight, bias, mean, rstd, None, grad_sum)


def _of_each(backward, needed, *given) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_x, *of_vectors = backward(*given)
    return grad_x, grad_x, *of_vectors


residual_layer_norm_op = register(
    "residual_layer_norm",
    _forward,
    lambda x, residual, weight, bias, eps: (like(x), like(x)),
    training=_training,
    training_fake=lambda x, residual, weight, bias, eps: (like(x), like(x), *row_statistics(x)),
    keep=lambda arguments, results: (results[1], *arguments[2:4], *results[2:]),
    backward=_backward,
    backward_fake=lambda grad_y, grad_sum, s, weight, bias, mean, rstd: (like(s), like(weight), like(bias)),
    gradients=_of_each,
    results=2,
)


@planned
def residual_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Return LayerNorm of x + residual and the sum for the next layer, in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; a column stride other than 1 costs a copy.
        residual: tensor of x's shape, dtype and device. Under autocast the one with the narrower dtype is converted.
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
    """Compute the same in PyTorch, unfused."""
    s = x + residual
    return torch.nn.functional.layer_norm(s, s.shape[-1:], weight, bias, eps), s


def _inputs(*shape: int, **options) -> tuple[Tensor, ...]:
    return tuple(torch.randn(size, **options) for size in (shape, shape, shape[-1:], shape[-1:]))


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    return (x, x, x[0], x[0], x, x, None, None, rows, cols, cols, cols, 1e-5), settings(cols, dtype)


OP = FusedOp(
    name="residual_layer_norm",
    fused=residual_layer_norm,
    reference=residual_layer_norm_reference,
    work=work_per_element(1 + costs.LAYER_NORM, tensors=(2, 2), vectors=(2, 0)),
    kernel=residual_layer_norm_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=work_per_element(19, tensors=(3, 1), vectors=(1, 2)),
)
