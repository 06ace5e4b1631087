"""Residual addition and RMSNorm in one kernel:  s = x + residual,  y = s / rms(s) * weight; it returns both.

Every layer of Llama starts like this: y goes into the layer, s is the next layer's residual.

    unfused   add: read x, read residual, write s | rms_norm: read s, write y       20 B/element in fp32, two launches
    fused     read x, read residual, write s, normalise what is in registers        16 B/element, one launch
              already, write y

PyTorch's RMSNorm is one launch on a GPU; on a CPU it is unfused and moves more bytes. Every program rereads the weight
from L2, so DRAM supplies it once. Rows of more than 32768 columns don't fit in registers: they are read twice.

s, x and residual have the same gradient. rms_norm's backward kernel adds s's own gradient to the one through the norm
before it writes the result: 16 B/element in fp32.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467; torch.nn.functional.rms_norm.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_rows, cdiv, check_alike, check_columns, in_widest, ones_unless
from kernels.op import FusedOp, like, planned, register, work_per_element
from kernels.rowwise.blocks import MAX_COLUMNS, aligned, row_settings
from kernels.rowwise.rms_norm import gradients, one_per_row


@triton.jit
def residual_rms_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    residual_ptr,  # the same, x's dtype
    weight_ptr,  # (cols,)
    y_ptr,  # (rows, cols), contiguous, x's dtype
    sum_ptr,  # (rows, cols), contiguous, x's dtype: x + residual, the next layer's residual
    rstd_ptr,  # (rows,), in COMPUTE: 1 / rms of each row, or None where no backward pass will need it
    rows,
    cols,
    x_row_stride,
    residual_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,  # rows of one program
    HEAD: tl.constexpr,  # columns of the first block, which every row fills
    TAIL: tl.constexpr,  # columns of the second block, which is masked
    WIDE: tl.constexpr,  # whether there are more columns than HEAD + TAIL, read in chunks of TAIL
    EARLY: tl.constexpr,  # whether the weight is loaded before the reduction, so that nothing waits afterwards
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

    # Masked elements are 0, which adds nothing to a sum of squares. The sum is normalised before it is rounded.
    s0 = tl.load(x_ptr + col0, mask=mask0, other=0.0).to(COMPUTE)
    s1 = tl.load(x_ptr + col1, mask=mask1, other=0.0).to(COMPUTE)
    s0 += tl.load(residual_ptr + col0, mask=mask0, other=0.0).to(COMPUTE)
    s1 += tl.load(residual_ptr + col1, mask=mask1, other=0.0).to(COMPUTE)
    if EARLY:
        weight0, weight1 = tl.load(weight_ptr + col0), tl.load(weight_ptr + col1, mask=col1 < cols)
    tl.store(sum_ptr + col0, s0.to(sum_ptr.dtype.element_ty), mask=mask0)
    tl.store(sum_ptr + col1, s1.to(sum_ptr.dtype.element_ty), mask=mask1)
    squares = tl.sum(s0 * s0, axis=1, keep_dims=True) + tl.sum(s1 * s1, axis=1, keep_dims=True)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            s = tl.load(x_ptr + col, mask=mask0 & (col < cols), other=0.0).to(COMPUTE)
            s += tl.load(residual_ptr + col, mask=mask0 & (col < cols), other=0.0).to(COMPUTE)
            tl.store(sum_ptr + col, s.to(sum_ptr.dtype.element_ty), mask=mask0 & (col < cols))
            squares += tl.sum(s * s, axis=1, keep_dims=True)
    rstd = tl.rsqrt(squares / cols + eps)
    if rstd_ptr is not None:
        tl.store(rstd_ptr + row, rstd, mask=mask0)

    if not EARLY:
        weight0, weight1 = tl.load(weight_ptr + col0), tl.load(weight_ptr + col1, mask=col1 < cols)
    y0, y1 = s0 * rstd * weight0.to(COMPUTE), s1 * rstd * weight1.to(COMPUTE)
    tl.store(y_ptr + col0, y0.to(y_ptr.dtype.element_ty), mask=mask0)
    tl.store(y_ptr + col1, y1.to(y_ptr.dtype.element_ty), mask=mask1)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            s = tl.load(x_ptr + col, mask=mask0 & (col < cols)).to(COMPUTE)
            s += tl.load(residual_ptr + col, mask=mask0 & (col < cols)).to(COMPUTE)
            y = s * rstd * tl.load(weight_ptr + col, mask=col < cols).to(COMPUTE)
            tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=mask0 & (col < cols))


def settings(rows: int, cols: int, dtype: torch.dtype, *strides: int) -> dict:
    """Return the kernel's blocks and warps for rows of `cols` columns with these row strides. Half the warps, or half
    the rows per program, take 12.7 us for 14.5 at 2048 x 2048, and 380 for 398 at 1056833 x 127 (H100, bf16). Up to
    1024 columns there are registers for the weight during the reduction, unless rows are loaded element by element."""
    chosen, wide_loads = row_settings(cols, dtype, tensors=2, strides=strides), aligned(cols, dtype.itemsize)
    chosen |= {"WIDE": cols > MAX_COLUMNS, "EARLY": cols <= 1024 and wide_loads}
    if cols == 2048:
        chosen["num_warps"] //= 2
    elif not wide_loads:
        chosen["BLOCK_ROWS"] = max(1, chosen["BLOCK_ROWS"] // 2)
    elif rows < 4096 and cols <= 128:
        chosen |= {"BLOCK_ROWS": 8, "num_warps": 4}
    return chosen


def _launch(x: Tensor, residual: Tensor, weight: Tensor, rstd: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    y, s = like(x), like(x)
    if y.numel():
        x, residual = as_rows(x), as_rows(residual)
        rows, cols = x.shape
        tensors, strides = (x, residual, weight.contiguous(), y, s, rstd), (x.stride(0), residual.stride(0))
        chosen = settings(rows, cols, x.dtype, *strides)
        with torch.cuda.device_of(x):
            residual_rms_norm_kernel[(cdiv(rows, chosen["BLOCK_ROWS"]),)](*tensors, rows, cols, *strides, eps, **chosen)
    return y, s


def _forward(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _launch(x, residual, weight, None, eps)


def _training(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    rstd = one_per_row(x)
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
    training_fake=lambda x, residual, weight, eps: (like(x), like(x), one_per_row(x)),
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
    """Return RMSNorm of x + residual and the sum for the next layer, in one launch; differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; a column stride other than 1 costs a copy.
        residual: tensor of x's shape, dtype and device. Under autocast the one with the narrower dtype is converted.
        weight: (cols,), of any floating-point dtype, on x's device; if not given, a small launch makes ones.
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
    """Compute the same in PyTorch, unfused."""
    s = x + residual
    return torch.nn.functional.rms_norm(s, s.shape[-1:], weight, eps), s


def _inputs(*shape: int, **options) -> tuple[Tensor, ...]:
    return tuple(torch.randn(size, **options) for size in (shape, shape, shape[-1:]))


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    return (x, x, x[0], x, x, None, rows, cols, cols, cols, 1e-6), settings(rows, cols, dtype)


OP = FusedOp(
    name="residual_rms_norm",
    fused=residual_rms_norm,
    reference=residual_rms_norm_reference,
    work=work_per_element(5, tensors=(2, 2), vectors=(1, 0)),
    kernel=residual_rms_norm_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
    backward_work=work_per_element(13, tensors=(3, 1), vectors=(1, 1)),
)
