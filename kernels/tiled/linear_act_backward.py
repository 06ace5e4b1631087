"""linear_act's gradients, from s = x W^T + bias, which training keeps:

    grad_s = grad_y act'(s)    grad_bias = sum of grad_s over rows    grad_x = grad_s W    grad_W = grad_s^T x

The first two come from one launch; the products have no epilogue and are left to PyTorch. On an H200 in bf16 the launch
and the sum over programs take 16 us for 1024 x 4096 and 171 us for 8192 x 11008, PyTorch's two operations 20 and 199.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.activations import activate_gradient
from kernels.arguments import as_matrix, cdiv, multiprocessors
from kernels.op import Work, like
from kernels.rowwise.sums import sums_of_programs


@triton.jit
def linear_act_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    sum_ptr,  # (rows, cols), contiguous
    grad_sum_ptr,  # (rows, cols), contiguous
    grad_bias_ptr,  # (programs along the second axis of the grid, cols), in COMPUTE: each program's part
    rows,
    cols,
    grad_y_row_stride,
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # One program owns some columns of every row that it walks over, so that their sums stay in registers.
    col = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    grad_bias = tl.zeros((BLOCK_ROWS, BLOCK_COLS), COMPUTE)
    for first in tl.range(tl.program_id(1) * BLOCK_ROWS, rows, tl.num_programs(1) * BLOCK_ROWS):
        row = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        s = tl.load(sum_ptr + row * cols + col, mask=inside, other=0.0).to(COMPUTE)
        grad = activate_gradient(grad_y, s, ACT)
        tl.store(grad_sum_ptr + row * cols + col, grad.to(grad_sum_ptr.dtype.element_ty), mask=inside)
        grad_bias += grad
    at = tl.program_id(1).to(tl.int64) * cols + col
    tl.store(grad_bias_ptr + at, tl.sum(grad_bias, axis=0, keep_dims=True), mask=col < cols)


def settings(dtype: torch.dtype) -> dict:
    """128-byte pieces of 16 rows in flight."""
    compute = tl.float64 if dtype == torch.float64 else tl.float32
    return {"COMPUTE": compute, "BLOCK_ROWS": 16, "BLOCK_COLS": 64, "num_warps": 4}


def gradient_of_sum(grad_y: Tensor, s: Tensor, act: str) -> tuple[Tensor, Tensor]:
    """The gradients of s, (..., cols), and, summed in fp32 but for fp64, of the bias, (cols,)."""
    grad_s = like(s)
    if s.numel() == 0:
        return grad_s, torch.zeros(s.shape[-1], dtype=s.dtype, device=s.device)
    grad_y = as_matrix(grad_y)
    rows, cols = grad_y.shape
    chosen = settings(s.dtype)
    tiles = cdiv(cols, chosen["BLOCK_COLS"])
    programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), cdiv(8 * multiprocessors(s), tiles))
    sums = torch.float64 if s.dtype == torch.float64 else torch.float32
    grad_bias = torch.empty(programs, cols, dtype=sums, device=s.device)
    with torch.cuda.device_of(s):
        linear_act_backward_kernel[(tiles, programs)](
            grad_y, s, grad_s, grad_bias, rows, cols, grad_y.stride(0), ACT=act, **chosen
        )
        (grad_bias,) = sums_of_programs((grad_bias,), (s.new_empty(cols),))
    return grad_s, grad_bias


def gradients(of_sum, needed, grad_y: Tensor, x: Tensor, weight: Tensor, s: Tensor, act: str | None) -> tuple:
    """Of x, weight, bias and residual, where they are needed; the products as precise as
    torch.backends.cuda.matmul says."""
    to_x, to_weight, to_bias, to_residual, *_ = needed
    if act is None:
        grad_s, grad_bias = grad_y, as_matrix(grad_y).sum(0) if to_bias else None
    else:
        grad_s, grad_bias = of_sum(grad_y, s, act)
    return (
        grad_s @ weight if to_x else None,
        as_matrix(grad_s).T @ as_matrix(x) if to_weight else None,
        grad_bias if to_bias else None,
        grad_y if to_residual else None,
    )


def work(shape: tuple[int, int, int], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the three gradients for (M, K, N): two products, and 20 operations an element of the
    result; grad_y, s, x and weight in once, the gradients out once."""
    m, k, n = shape
    read, written = 2 * m * n + m * k + n * k, m * k + n * k + n
    return Work(4 * m * k * n + 20 * m * n, read * dtype.itemsize, written * dtype.itemsize)
