"""Softmax of each row:  y = exp(x - max x) / sum exp(x - max x).

Written out in PyTorch, every step goes through memory:

    unfused   max: read x | subtract: read x, write s | exp: read s, write e | sum: read e | divide: read e, write y
                                                                              16 B/element in 16 bits, five launches
    fused     read x once, keep the exponentials in registers, write y         4 B/element, one launch

A row of up to 16384 columns stays in the registers of the program that owns it; wider rows are in softmax_wide.py.

The backward pass needs y alone: grad_x = y (grad_y - sum(y grad_y)), 6 B/element. Beyond 8192 columns y and its
gradient are asked for again after the sum, and the L1 cache answers: held in registers, they would leave an SM half the
warps.

Source: torch.nn.functional.softmax; Milakov and Gimelshein, arXiv:1805.02867.
"""

import torch
import triton
import triton.language as tl

from kernels import costs
from kernels.arguments import as_rows, check_alike, check_columns
from kernels.fused_op import FusedOp, Work
from kernels.online_softmax import LOG2_E
from kernels.register import like, register
from kernels.rowwise import softmax_wide
from kernels.sizes import cdiv, next_power_of_2

WIDEST_BLOCK = 16384  # elements of a row that one program holds in registers


@triton.jit
def softmax_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.arange(0, BLOCK_COLS)[None, :]
    inside = (row < rows) & (col < cols)
    # Lanes past the row's end hold -inf, whose exponential adds nothing.
    x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=-float("inf")).to(COMPUTE)
    e = tl.exp2((x - tl.max(x, axis=1)[:, None]) * LOG2_E)
    y = e * (1.0 / tl.sum(e, axis=1))[:, None]
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def softmax_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    grad_y_row_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    AGAIN: tl.constexpr,  # whether to ask for the row again instead of holding it
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    col = tl.arange(0, BLOCK_COLS)[None, :]
    inside = (row < rows) & (col < cols)
    first: tl.constexpr = "evict_last" if AGAIN else ""
    grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0, eviction_policy=first)
    grad_y = grad_y.to(COMPUTE)
    y = tl.load(y_ptr + row * cols + col, mask=inside, other=0.0, eviction_policy=first).to(COMPUTE)
    mean = tl.sum(y * grad_y, axis=1)[:, None]
    if AGAIN:
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, eviction_policy="evict_first")
        grad_y = grad_y.to(COMPUTE)
        y = tl.load(y_ptr + row * cols + col, mask=inside, eviction_policy="evict_first").to(COMPUTE)
    last: tl.constexpr = "evict_first" if AGAIN else ""  # what is written should not drive out what is asked for again
    grad_x = (y * (grad_y - mean)).to(grad_x_ptr.dtype.element_ty)
    tl.store(grad_x_ptr + row * cols + col, grad_x, mask=inside, eviction_policy=last)


def settings(cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of the forward for rows of `cols` elements, at most WIDEST_BLOCK.

    32 elements a thread, 16 in rows of 8192 columns: an SM holds several programs, and some load while others compute.
    Rows of up to 2048 columns share one.
    """
    block_cols = next_power_of_2(cols)
    return {
        "BLOCK_ROWS": max(1, 2048 // block_cols),
        "BLOCK_COLS": block_cols,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": 2 if block_cols <= 2048 else 4 if block_cols <= 4096 else 16,
    }


def backward_settings(cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of the backward, which holds two rows: 16 elements of each a thread beyond 2048 columns."""
    block_cols = next_power_of_2(cols)
    return {
        "BLOCK_ROWS": max(1, 2048 // block_cols),
        "BLOCK_COLS": block_cols,
        "AGAIN": block_cols > 8192,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": 2 if block_cols <= 2048 else 8 if block_cols <= 4096 else 16 if block_cols <= 8192 else 32,
    }


def _forward(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x = as_rows(x)
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            softmax_wide.forward(x, y)
        else:
            chosen = settings(cols, x.dtype)
            softmax_kernel[(cdiv(rows, chosen["BLOCK_ROWS"]),)](x, y, rows, cols, x.stride(0), **chosen)
    return y


def _backward(grad_y: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    grad_x = torch.empty_like(y)
    if y.numel() == 0:
        return grad_x
    grad_y = as_rows(grad_y)
    rows, cols = grad_y.shape
    with torch.cuda.device_of(y):
        if cols > WIDEST_BLOCK:
            softmax_wide.backward(grad_y, y, grad_x)
        else:
            chosen = backward_settings(cols, y.dtype)
            grid = (cdiv(rows, chosen["BLOCK_ROWS"]),)
            softmax_backward_kernel[grid](grad_y, y, grad_x, rows, cols, grad_y.stride(0), **chosen)
    return grad_x


softmax_op = register(
    "softmax",
    _forward,
    like,
    keep=lambda arguments, y: (y,),
    backward=_backward,
    backward_fake=lambda grad_y, y: like(y),
)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """The softmax over the last dimension in one launch, differentiable once.

    Args:
        x: floating-point tensor of shape (..., cols), any strides; columns that are not side by side are copied first.

    Returns:
        A contiguous tensor of x's shape and dtype, whatever autocast says. The arithmetic is fp32 (fp64 for fp64
        inputs), rounded once. A row of nothing but -inf, with NaN or with inf in it is NaN, as in PyTorch.

    Raises:
        TypeError: x is not a floating-point tensor.
        ValueError: x has no dimension, or is on the CPU where kernels run on a GPU.
    """
    check_alike("softmax", x=x)
    check_columns("softmax", x)
    return softmax_op(x)


def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch, whose own softmax is one launch already."""
    return torch.nn.functional.softmax(x, dim=-1)


def softmax_unfused(x: torch.Tensor) -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
    e = (x - x.amax(dim=-1, keepdim=True)).exp()
    return e / e.sum(dim=-1, keepdim=True)


def softmax_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: a comparison, subtraction, exponential, addition and product each; x in, y out, once."""
    elements = torch.Size(shape).numel()
    moved = elements * dtype.itemsize
    return Work(flops=costs.SOFTMAX * elements, bytes_read=moved, bytes_written=moved)


def softmax_backward_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the gradient: two products, an addition, a subtraction; two tensors in, one out."""
    elements = torch.Size(shape).numel()
    return Work(flops=4 * elements, bytes_read=2 * elements * dtype.itemsize, bytes_written=elements * dtype.itemsize)


def _inputs(*shape: int, **options) -> tuple[torch.Tensor]:
    return (torch.randn(shape, **options),)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    rows, cols = shape
    x = torch.empty(shape, dtype=dtype, device="meta")
    if cols > WIDEST_BLOCK:
        return (x, x, cols, cols), softmax_wide.settings(cols, dtype)
    return (x, x, rows, cols, cols), settings(cols, dtype)


OP = FusedOp(
    name="softmax",
    fused=softmax,
    reference=softmax_reference,
    work=softmax_work,
    kernel=softmax_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1), (5, 127), (1, 40000), (2, 1025), (2, 3, 65)),
    gpu_shapes=(
        (128, 8192),
        (32768, 1024),
        (32768, 4096),
        (32768, 8192),
        (32768, 16384),
        (16384, 32768),
        (8192, 65536),
        (4096, 131072),
    ),
    backward_work=softmax_backward_work,
    kernel_for=lambda *shape: softmax_kernel if shape[-1] <= WIDEST_BLOCK else softmax_wide.softmax_wide_kernel,
)
