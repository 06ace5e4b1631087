"""The gradients of layer_norm, and of layer_norm_act and residual_layer_norm, which are that and something more.

    read the gradient and x, recompute mean and variance, write x's gradient; sum weight's and bias's over the rows of a
    program, and a second, small launch over the programs                     12 B/element in fp32

Where what is normalised is a sum that goes on as it is, the sum's own gradient is read and added too: 16 B/element.
Rows too wide for registers, or very few, are in layer_norm_wide.py, wide ones of bf16 in layer_norm_pairs.py.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_rows, multiprocessors, shared_memory
from kernels.register import like
from kernels.rowwise import layer_norm_pairs, layer_norm_wide
from kernels.rowwise.normalise import through_normalise
from kernels.sizes import cdiv, next_power_of_2

WIDEST_BLOCK = 8192  # elements of a row in registers, beside three others


@triton.jit
def layer_norm_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    bias_ptr,  # (cols,)
    grad_sum_ptr,  # (rows, cols), contiguous, to be added to grad_x, or None
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs, cols), in COMPUTE: each program's sum over its rows
    grad_bias_ptr,  # (programs, cols), in COMPUTE
    rows,
    cols: tl.constexpr,
    grad_y_row_stride,
    x_row_stride,
    eps,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
    STAGES: tl.constexpr,  # rows on their way from memory at once, plus one
    ACT: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    col = tl.arange(0, BLOCK_COLS)[None, :]
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
    bias = None if ACT is None else tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(COMPUTE)
    grad_weight = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    grad_bias = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=COMPUTE)
    step = tl.num_programs(0) * BLOCK_ROWS
    EXACT: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth == 16
    for first in tl.range(tl.program_id(0) * BLOCK_ROWS, rows, step, num_stages=STAGES):
        row = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        x = tl.load(x_ptr + row * x_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_y = tl.load(grad_y_ptr + row * grad_y_row_stride + col, mask=inside, other=0.0).to(COMPUTE)
        grad_z, x_hat, grad_x = through_normalise(grad_y, x, weight, bias, cols, eps, ACT, EXACT)
        if grad_sum_ptr is not None:
            grad_x += tl.load(grad_sum_ptr + row * cols + col, mask=inside, other=0.0).to(COMPUTE)
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
        grad_weight += grad_z * x_hat
        grad_bias += grad_z
    at = tl.program_id(0).to(tl.int64) * cols + col
    tl.store(grad_weight_ptr + at, tl.sum(grad_weight, axis=0, keep_dims=True), mask=col < cols)
    tl.store(grad_bias_ptr + at, tl.sum(grad_bias, axis=0, keep_dims=True), mask=col < cols)


@cache
def backward_settings(cols: int, dtype: torch.dtype, shared_memory: int = 227 * 2**10, rows_read: int = 2) -> dict:
    """The same of the backward pass; two rows are on their way while one is computed, if `shared_memory` holds them, of
    each of `rows_read` tensors: x, the gradient, and a sum's."""
    elements = max(2048, next_power_of_2(cols))
    return {
        "BLOCK_ROWS": elements // next_power_of_2(cols),
        "BLOCK_COLS": next_power_of_2(cols),
        "STAGES": 3 if 2 * rows_read * dtype.itemsize * elements < shared_memory else 1,
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "num_warps": elements // 512,
    }


def gradients(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    act: str | None,
    eps: float,
    grad_sum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias; `grad_sum` is added to x's."""
    grad_x = like(x)
    if grad_x.numel() == 0:
        return grad_x, torch.zeros_like(weight), torch.zeros_like(bias)
    grad_y, x, weight, bias = as_rows(grad_y), as_rows(x), weight.contiguous(), bias.contiguous()
    tensors = grad_y, x, weight, bias, None if grad_sum is None else grad_sum.contiguous(), grad_x
    (rows, cols), sms = x.shape, multiprocessors(x)
    with torch.cuda.device_of(x):
        if cols <= WIDEST_BLOCK and rows > sms:
            chosen = backward_settings(cols, x.dtype, shared_memory(x), 2 if grad_sum is None else 3)
            programs = min(cdiv(rows, chosen["BLOCK_ROWS"]), sms * max(1, 16 // chosen["num_warps"]))
            sums = torch.float64 if x.dtype == torch.float64 else torch.float32
            grad_weight, grad_bias = torch.empty(2, programs, cols, dtype=sums, device=x.device)
            layer_norm_backward_kernel[(programs,)](
                *tensors, grad_weight, grad_bias, rows, cols, grad_y.stride(0), x.stride(0), eps, ACT=act, **chosen
            )
        elif act is None and grad_sum is None and layer_norm_pairs.fits(grad_y, x, weight):
            grad_weight, grad_bias = layer_norm_pairs.backward_in_pairs(grad_y, x, weight, grad_x, eps)
        else:
            grad_weight, grad_bias = layer_norm_wide.backward_in_two(*tensors, act, eps)
    sums = ((total[0] if rows <= sms else total.sum(0)) for total in (grad_weight, grad_bias))
    return grad_x, *(total.to(vector.dtype) for total, vector in zip(sums, (weight, bias), strict=True))
