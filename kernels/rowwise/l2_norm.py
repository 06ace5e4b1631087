"""L2 normalisation of each row:  y = x / max(||x||, eps).

Written out in PyTorch, x is read twice and its squares are written and read between:

    unfused   x*x: read x, write squares | sum: read squares | x/norm: read x, write y    20 B/element in fp32
    fused     read x once, keep the row in registers, write y once                         8 B/element in fp32

The row is the unit of work: one program owns BLOCK_ROWS whole rows, so the sum never leaves its registers
and no two programs have to agree on anything. Rows beyond 32768 elements are in l2_norm_wide.py.

Source: torch.nn.functional.normalize (p=2).
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, check_alike, check_columns, multiprocessors
from kernels.fused_op import FusedOp, Work
from kernels.register import like, register
from kernels.rowwise import l2_norm_wide
from kernels.sizes import cdiv, next_power_of_2

WIDEST_BLOCK = 32768  # elements of a row that one program holds in registers


@triton.jit
def l2_norm_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous, x's dtype
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
    norm = tl.sqrt(tl.sum(x * x, axis=1, keep_dims=True))
    # tl.maximum would drop a NaN.
    y = x / tl.where(norm < eps, eps, norm)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@cache
def settings(cols: int, dtype: torch.dtype, few_rows: bool = False) -> dict:
    """Launch settings for rows of `cols` elements, at most WIDEST_BLOCK.

    32 elements a thread leave a thread at 64 registers or fewer, so that an SM holds 32 warps and some load while
    others compute. `few_rows`: no more than the GPU has SMs. Then each has a program of its own, and twice the warps.
    """
    block_cols = next_power_of_2(cols)
    elements = max(2048 if block_cols <= 2048 or few_rows else 16384, block_cols)
    return {
        "BLOCK_ROWS": elements // block_cols,
        "BLOCK_COLS": block_cols,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": min(32, elements // 512) if few_rows else elements // 1024,
    }


def _forward(x: torch.Tensor, eps: float) -> torch.Tensor:
    y = like(x)
    if y.numel() == 0:
        return y
    x = as_rows(x)
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            l2_norm_wide.forward(x, y, eps)
        else:
            chosen = settings(cols, x.dtype, few_rows=rows <= multiprocessors(x))
            l2_norm_kernel[(cdiv(rows, chosen["BLOCK_ROWS"]),)](x, y, rows, cols, x.stride(0), eps, **chosen)
    return y


l2_norm_op = register("l2_norm", _forward, lambda x, eps: like(x))


def l2_norm(x: torch.Tensor, eps: float = 1e-12) -> torch.Tensor:
    """Divide each row of `x` by its Euclidean norm, in one launch. Not differentiable.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.
        eps: the least divisor, as fp32; a row of zeros stays zero, and is NaN where eps is 0.

    Returns:
        A contiguous tensor of x's shape and dtype. The arithmetic is fp32 (fp64 for fp64 inputs), rounded once.

    Raises:
        TypeError: x is not a floating-point tensor.
        ValueError: x has no dimension, or is on the CPU where kernels run on a GPU.
    """
    check_alike("l2_norm", x=x)
    check_columns("l2_norm", x)
    return l2_norm_op(x, eps)


def l2_norm_reference(x: torch.Tensor, eps: float = 1e-12) -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    norm = (x * x).sum(dim=-1, keepdim=True).sqrt()
    return x / norm.clamp_min(eps)


def l2_norm_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: multiply, add and divide per element; x in once, y out once."""
    elements = torch.Size(shape).numel()
    return Work(flops=3 * elements, bytes_read=elements * dtype.itemsize, bytes_written=elements * dtype.itemsize)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor]:
    return (torch.randn(shape, **options),)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    rows, cols = shape
    x = torch.empty(shape, dtype=dtype, device="meta")
    # As on an H200, which has 132 SMs.
    return (x, x, rows, cols, cols, 1e-12), settings(cols, dtype, few_rows=rows <= 132)


OP = FusedOp(
    name="l2_norm",
    fused=l2_norm,
    reference=l2_norm_reference,
    work=l2_norm_work,
    kernel=l2_norm_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (32768, 8192), (32768, 16384)),
)
