"""The backward pass of layer_norm for bf16 rows of 8193 to 16384 columns, kept two elements to a register.

In fp32, x's row, the gradient's and two sums over rows no longer fit in the registers of a program; as pairs of bf16
they do, and each row is read once instead of twice. It serves more rows than the GPU has SMs, of an even number of
columns, each from an even address on, without an activation.

32768 rows of 16384 on an H200 take 945 us, 79 % of copy bandwidth; read twice, as kernels/rowwise/layer_norm_wide.py
does, they reach 59 %. At 12000 columns it is 66 % against 57 %.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import multiprocessors
from kernels.rowwise.normalise import less, mean_of, plus, products, row_sums
from kernels.rowwise.pieces import (
    VECTOR_BYTES,
    along,
    columns_inside,
    elements_before,
    in_step,
    pieces_of,
    pointers,
    row_sum,
    rows_alike,
)

COLUMNS = range(8193, 16385)
BF16 = torch.bfloat16


@triton.jit
def widened(x, sixteen):
    """A row in pieces, two bfloat16 in an int32, as float32 side by side: twice as many elements along the last axis.

    A kernel that needs a row several times keeps it so, in half the registers, and widens it at each use. Where
    `sixteen` is a constant, the compiler (Triton 3.6 and 3.7) widens once and keeps the result: a sum that is 16 only
    in the end, another one for each use, such as 16 + (rows < 0).to(tl.int32), keeps it from that.

    The rim, of float32 as it is, stays.
    """
    wide = ()
    for i in tl.static_range(len(x)):
        if x[i].dtype == tl.int32:
            low = (x[i] << sixteen).to(tl.float32, bitcast=True)
            high = (x[i] & (-1 << sixteen)).to(tl.float32, bitcast=True)
            wide = wide + (tl.interleave(low, high),)
        else:
            wide = wide + (x[i],)
    return wide


@triton.jit
def load_pairs(ptr, start, lead, cols: tl.constexpr, inside, PIECES: tl.constexpr, POLICY: tl.constexpr):
    """The row that begins at `start` as `widened` takes it."""
    whole = (cols - lead) // PIECES[2] * (PIECES[2] // 2)  # pairs in the row's whole vectors
    first = (ptr + (start + lead) // PIECES[2] * PIECES[2]).to(tl.pointer_type(tl.int32))
    pair = tl.arange(0, PIECES[0] // 2)[None, :]
    x = (tl.load(first + pair, mask=pair < whole, other=0, eviction_policy=POLICY),)
    if PIECES[1]:
        pair = PIECES[0] // 2 + tl.arange(0, PIECES[1] // 2)[None, :]
        x = x + (tl.load(first + pair, mask=pair < whole, other=0, eviction_policy=POLICY),)
    if PIECES[3]:
        at = pointers(ptr, start, lead, cols, PIECES)
        x = x + (tl.load(at[-1], mask=inside[-1], other=0.0).to(tl.float32),)
    return x


@triton.jit
def pairs_along(at, inside):
    """A vector of columns as load_pairs gives a row, `along` a row that is RAGGED: two bytes at a time."""
    x = ()
    for i in tl.static_range(len(at) - 1):
        element = tl.load(at[i], mask=inside[i], other=0.0).to(tl.int16, bitcast=True).to(tl.int32)
        low, high = tl.split(tl.reshape(element, (1, inside[i].shape[1] // 2, 2)))
        x = x + ((low & 0xFFFF) | (high << 16),)
    return x + (tl.load(at[-1], mask=inside[-1], other=0.0).to(tl.float32),)


@triton.jit
def layer_norm_pairs_backward_kernel(
    grad_y_ptr,  # (rows, cols), bf16 from an even address on, even row stride unless RAGGED, unit column stride
    x_ptr,  # the same
    weight_ptr,  # (cols,), bf16 from an even address on
    grad_x_ptr,  # (rows, cols), contiguous, bf16
    grad_weight_ptr,  # (programs, cols), fp32: each program's sum over its rows
    grad_bias_ptr,  # (programs, cols), fp32
    rows,
    cols: tl.constexpr,
    grad_y_row_stride,
    x_row_stride,
    eps,
    PIECES: tl.constexpr,  # of a row: kernels/rowwise/pieces.py
):
    start, _ = rows_alike(1, PIECES)
    lead = elements_before(start.to(tl.int64) * cols, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    some = tl.arange(0, PIECES[0] // 16) * 32
    # Neither is ever other than 16; see widened.
    again = 16 + (rows < 0).to(tl.int32)
    once_more = 16 + (rows < -1).to(tl.int32)
    grad_weight = ()
    for i in tl.static_range(len(inside)):
        grad_weight = grad_weight + (tl.zeros((1, inside[i].shape[1]), dtype=tl.float32),)
    grad_bias = grad_weight
    if PIECES[3]:
        held = pairs_along(along(weight_ptr, lead, cols, PIECES), inside)
    for first in range(start, rows, tl.num_programs(0)):
        row = tl.cast(first, tl.int64)
        x = load_pairs(x_ptr, row * x_row_stride, lead, cols, inside, PIECES, "")
        grad_y = load_pairs(grad_y_ptr, row * grad_y_row_stride, lead, cols, inside, PIECES, "")
        # An element every 64 bytes brings the next row to L2 while this one is computed. Nobody waits for the elements,
        # and the compiler keeps a load that nobody uses if it is volatile.
        after = row + tl.num_programs(0)
        touched = (some < cols) & (after < rows)
        tl.load(x_ptr + after * x_row_stride + some, mask=touched, volatile=True)
        tl.load(grad_y_ptr + after * grad_y_row_stride + some, mask=touched, volatile=True)
        mean = mean_of(row_sum(widened(x, 16)), cols)
        centred = less(widened(x, again), mean, inside)
        weight = held if PIECES[3] else load_pairs(weight_ptr, 0, 0, cols, inside, PIECES, "")
        grad_x_hat = products(widened(grad_y, again), widened(weight, 16))
        shift = row_sum(grad_x_hat) / cols
        variance, slope = row_sums(products(centred, centred), products(grad_x_hat, centred))
        rstd = tl.rsqrt(variance / cols + eps)
        slope = slope / cols * rstd
        wide_x, wide_grad_y = widened(x, once_more), widened(grad_y, once_more)
        if not PIECES[3]:
            weight = load_pairs(weight_ptr, 0, 0, cols, inside, PIECES, "evict_last")
        wide_weight = widened(weight, once_more)
        at = pointers(grad_x_ptr, row * cols, lead, cols, PIECES)
        for_weight = ()
        for i in tl.static_range(len(x)):
            x_hat = (wide_x[i] - mean) * rstd
            # The mean's and the variance's dependence on x: what is left is orthogonal to ones and to x_hat.
            grad_x = rstd * (wide_grad_y[i] * wide_weight[i] - shift - x_hat * slope)
            tl.store(at[i], grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside[i])
            for_weight = for_weight + (wide_grad_y[i] * x_hat,)
        grad_weight, grad_bias = plus(grad_weight, for_weight), plus(grad_bias, wide_grad_y)
    program = tl.program_id(0).to(tl.int64) * cols
    to_weight = along(grad_weight_ptr + program, lead, cols, PIECES)
    to_bias = along(grad_bias_ptr + program, lead, cols, PIECES)
    for i in tl.static_range(len(inside)):
        tl.store(to_weight[i], grad_weight[i], mask=inside[i])
        tl.store(to_bias[i], grad_bias[i], mask=inside[i])


def pieces_in_pairs(grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, grad_x: torch.Tensor) -> tuple | None:
    """PIECES for this pass, or None where it does not take them: a few rows, other widths, or no pairs of bf16 at
    multiples of four bytes."""
    rows, cols = x.shape
    if cols not in COLUMNS or rows <= multiprocessors(x) or {each.dtype for each in (grad_y, x, weight)} != {BF16}:
        return None
    if weight.data_ptr() % VECTOR_BYTES:
        return None
    pieces = pieces_of(grad_y, x, grad_x)
    if pieces[2] > 1:
        return pieces
    even = all(each.data_ptr() % 4 == 0 and each.stride(0) % 2 == 0 for each in (grad_y, x, grad_x))
    return (*pieces[:2], 2, False) if even and cols % 2 == 0 else None


def backward_in_pairs(grad_y, x, weight, grad_x, eps: float, pieces: tuple) -> tuple[torch.Tensor, torch.Tensor]:
    """Write grad_x, (rows, cols) like grad_y and x, and return grad_weight and grad_bias of each program."""
    rows, cols = x.shape
    programs = in_step(min(rows, multiprocessors(x)), rows, 1, pieces)
    grad_weight, grad_bias = torch.empty(2, programs, cols, dtype=torch.float32, device=x.device)
    layer_norm_pairs_backward_kernel[(programs,)](
        *(grad_y, x, weight, grad_x, grad_weight, grad_bias, rows, cols, grad_y.stride(0), x.stride(0), eps),
        PIECES=pieces,
        num_warps=16,
    )
    return grad_weight, grad_bias
