"""The backward pass of layer_norm for bf16 rows of 8193 to 16384 columns, kept two elements to a register.

In fp32, x's row, the gradient's and two sums over rows no longer fit in the registers of a program; as pairs of bf16
they do, and each row is read once instead of twice. It serves more rows than the GPU has SMs, of an even number of
columns, each from an even address on, without an activation; what layer_norm_backward.py holds as it is, goes there.

32768 rows of 16384 on an H200 take 945 us, 79 % of copy bandwidth; read twice, as kernels/rowwise/layer_norm_wide.py
does, they reach 59 %. At 12000 columns it is 66 % against 57 %.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import multiprocessors
from kernels.rowwise.normalise import mean_of

COLUMNS = range(8193, 16385)


@triton.jit
def widen_pairs(pairs, sixteen):
    """The bfloat16 of pairs, two in an int32, as float32 side by side: twice as many elements along the last axis.

    A kernel that needs a row several times keeps it so, in half the registers, and widens it at each use. Where
    `sixteen` is a constant, the compiler (Triton 3.6 and 3.7) widens once and keeps the result: a sum that is 16 only
    in the end, another one for each use, such as 16 + (rows < 0).to(tl.int32), keeps it from that.
    """
    low = (pairs << sixteen).to(tl.float32, bitcast=True)
    high = (pairs & (-1 << sixteen)).to(tl.float32, bitcast=True)
    return tl.interleave(low, high)


@triton.jit
def layer_norm_pairs_backward_kernel(
    grad_y_ptr,  # (rows, cols), bf16 from an even address on, even row stride, unit column stride
    x_ptr,  # the same
    weight_ptr,  # (cols,), bf16 from an even address on
    grad_x_ptr,  # (rows, cols), contiguous, bf16
    grad_weight_ptr,  # (programs, cols), fp32: each program's sum over its rows
    grad_bias_ptr,  # (programs, cols), fp32
    rows,
    cols: tl.constexpr,  # even
    grad_y_row_stride,
    x_row_stride,
    eps,
    BLOCK_COLS: tl.constexpr,  # a power of two, at least cols
):
    PAIRS: tl.constexpr = tl.pointer_type(tl.int32)
    pair = tl.arange(0, BLOCK_COLS // 2)
    col = tl.arange(0, BLOCK_COLS)
    in_row = pair < cols // 2
    some = tl.arange(0, BLOCK_COLS // 32) * 32
    # Neither is ever other than 16; see widen_pairs.
    again = 16 + (rows < 0).to(tl.int32)
    once_more = 16 + (rows < -1).to(tl.int32)
    grad_weight = tl.zeros((BLOCK_COLS,), dtype=tl.float32)
    grad_bias = tl.zeros((BLOCK_COLS,), dtype=tl.float32)
    for first in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.cast(first, tl.int64)
        x = tl.load((x_ptr + row * x_row_stride).to(PAIRS) + pair, mask=in_row, other=0)
        grad_y = tl.load((grad_y_ptr + row * grad_y_row_stride).to(PAIRS) + pair, mask=in_row, other=0)
        # An element every 64 bytes brings the next row to L2 while this one is computed. Nobody waits for the elements,
        # and the compiler keeps a load that nobody uses if it is volatile.
        after = row + tl.num_programs(0)
        touched = (some < cols) & (after < rows)
        tl.load(x_ptr + after * x_row_stride + some, mask=touched, volatile=True)
        tl.load(grad_y_ptr + after * grad_y_row_stride + some, mask=touched, volatile=True)
        mean = mean_of(tl.sum(widen_pairs(x, 16), axis=0), cols)
        centred = tl.where(col < cols, widen_pairs(x, again) - mean, 0.0)
        weight = tl.load(weight_ptr.to(PAIRS) + pair, mask=in_row, other=0)
        grad_x_hat = widen_pairs(grad_y, again) * widen_pairs(weight, 16)
        shift = tl.sum(grad_x_hat, axis=0) / cols
        variance, slope = tl.split(tl.sum(tl.join(centred * centred, grad_x_hat * centred), axis=0) / cols)
        rstd = tl.rsqrt(variance + eps)
        wide_grad_y = widen_pairs(grad_y, once_more)
        x_hat = (widen_pairs(x, once_more) - mean) * rstd
        weight = tl.load(weight_ptr.to(PAIRS) + pair, mask=in_row, other=0, eviction_policy="evict_last")
        grad_x_hat = wide_grad_y * widen_pairs(weight, once_more)
        # The mean's and the variance's dependence on x: what is left is orthogonal to ones and to x_hat.
        grad_x = rstd * (grad_x_hat - shift - x_hat * (slope * rstd))
        tl.store(grad_x_ptr + row * cols + col, grad_x.to(grad_x_ptr.dtype.element_ty), mask=col < cols)
        grad_weight += wide_grad_y * x_hat
        grad_bias += wide_grad_y
    at = tl.program_id(0).to(tl.int64) * cols + col
    tl.store(grad_weight_ptr + at, grad_weight, mask=col < cols)
    tl.store(grad_bias_ptr + at, grad_bias, mask=col < cols)


def fits(grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether this pass takes them: enough rows of such a width, all in pairs of bf16 at multiples of four bytes."""
    return (
        x.shape[-1] in COLUMNS
        and x.shape[0] > multiprocessors(x)
        and all(
            each.dtype == torch.bfloat16
            and each.data_ptr() % 4 == 0
            and each.shape[-1] % 2 == 0
            and all(stride % 2 == 0 for stride in each.stride()[:-1])
            for each in (grad_y, x, weight)
        )
    )


def backward_in_pairs(grad_y, x, weight, grad_x, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Write grad_x, (rows, cols) like grad_y and x, and return grad_weight and grad_bias of each program."""
    rows, cols = x.shape
    programs = min(rows, multiprocessors(x))
    grad_weight, grad_bias = torch.empty(2, programs, cols, dtype=torch.float32, device=x.device)
    layer_norm_pairs_backward_kernel[(programs,)](
        *(grad_y, x, weight, grad_x, grad_weight, grad_bias, rows, cols, grad_y.stride(0), x.stride(0), eps),
        BLOCK_COLS=COLUMNS[-1],
        num_warps=16,
    )
    return grad_weight, grad_bias
