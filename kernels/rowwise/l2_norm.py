"""L2 normalisation of each row:  y = x / max(||x||, eps).

Unfused, PyTorch reads x twice, and writes and rereads the squares in between:

    unfused   x*x: read x, write squares | sum: read squares | x/norm: read x, write y    20 B/element in fp32
    fused     read x once, keep the row in registers, write y once                         8 B/element in fp32

One program owns whole rows, so the sum never leaves its registers. A row is split into two blocks: a power of two that
every row fills, and a masked rest. Rows of more than 32768 columns are read twice, in chunks.

Source: torch.nn.functional.normalize (p=2).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_rows, cdiv, check_alike, check_columns, refuse
from kernels.op import FusedOp, like, planned, register, work_per_element
from kernels.rowwise.blocks import norm_settings, row_sum


@triton.jit
def l2_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous, x's dtype
    rows,
    cols,
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,  # rows of one program
    HEAD: tl.constexpr,  # columns of the first block, which every row fills
    TAIL: tl.constexpr,  # columns of the second block, which is masked
    WIDE: tl.constexpr,  # whether there are more columns than HEAD + TAIL, read in chunks of TAIL
    COMPUTE: tl.constexpr,  # dtype of the arithmetic
    ALIGN: tl.constexpr,  # divides cols and the row strides; the compiler, told so, loads 16 bytes at a time
):
    cols, x_row_stride = cols // ALIGN * ALIGN, x_row_stride // ALIGN * ALIGN
    # int64 before the multiplications: row * stride may exceed 2**31.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col0 = tl.arange(0, HEAD)[None, :]
    col1 = HEAD + tl.arange(0, TAIL)[None, :]
    mask0 = row < rows
    mask1 = mask0 & (col1 < cols)
    x_ptr += row * x_row_stride
    y_ptr += row * cols

    # Masked elements are 0, which adds nothing to a sum of squares.
    x0 = tl.load(x_ptr + col0, mask=mask0, other=0.0).to(COMPUTE)
    x1 = tl.load(x_ptr + col1, mask=mask1, other=0.0).to(COMPUTE)
    squares = row_sum(x0 * x0, x1 * x1)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            x = tl.load(x_ptr + col, mask=mask0 & (col < cols), other=0.0).to(COMPUTE)
            squares += tl.sum(x * x, axis=1, keep_dims=True)

    norm = tl.sqrt(squares)
    divisor = tl.where(norm < eps, eps, norm)  # tl.maximum would drop a NaN
    tl.store(y_ptr + col0, (x0 / divisor).to(y_ptr.dtype.element_ty), mask=mask0)
    tl.store(y_ptr + col1, (x1 / divisor).to(y_ptr.dtype.element_ty), mask=mask1)
    if WIDE:
        for start in range(TAIL, cols - HEAD, TAIL):
            col = start + col1
            x = tl.load(x_ptr + col, mask=mask0 & (col < cols)).to(COMPUTE)
            tl.store(y_ptr + col, (x / divisor).to(y_ptr.dtype.element_ty), mask=mask0 & (col < cols))


def _forward(x: Tensor, eps: float) -> Tensor:
    y = like(x)
    if y.numel():
        x = as_rows(x)
        rows, cols = x.shape
        chosen = norm_settings(cols, x.dtype, x.stride(0))
        with torch.cuda.device_of(x):
            l2_norm_kernel[(cdiv(rows, chosen["BLOCK_ROWS"]),)](x, y, rows, cols, x.stride(0), eps, **chosen)
    return y


l2_norm_op = register("l2_norm", _forward, lambda x, eps: like(x))


@planned
def l2_norm(x: Tensor, *, eps: float = 1e-12, **more) -> Tensor:
    """Divide each row of `x` by its Euclidean norm, in one launch. Not differentiable.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; a column stride other than 1 costs a copy.
        eps: the smallest divisor, as fp32; a row of zeros stays zero, or becomes NaN if eps is 0.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once.

    Raises:
        TypeError: x is not a floating-point tensor, or `more` is given.
        ValueError: x has no dimension, eps is negative or not a normal number in fp32, or x is on the CPU where
            kernels run on a GPU.
    """
    refuse("l2_norm", more)
    check_alike("l2_norm", x=x)
    check_columns("l2_norm", x)
    return l2_norm_op(x, eps)


def l2_norm_reference(x: Tensor, *, eps: float = 1e-12) -> Tensor:
    """Compute the same in PyTorch, unfused."""
    norm = (x * x).sum(dim=-1, keepdim=True).sqrt()
    return x / norm.clamp_min(eps)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    return (x, x, rows, cols, cols, 1e-12), norm_settings(cols, dtype)


OP = FusedOp(
    name="l2_norm",
    fused=l2_norm,
    reference=l2_norm_reference,
    work=work_per_element(3, tensors=(1, 1)),
    kernel=l2_norm_kernel,
    settings=norm_settings,
    inputs=lambda *shape, **options: (torch.randn(shape, **options),),
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
)
