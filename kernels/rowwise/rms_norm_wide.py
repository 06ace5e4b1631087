"""Gradients of rms_norm for rows beyond 16384 columns, where the sum over rows for the weight has no room beside a row.

A first kernel reduces each row to one number more and a second one reads it again, 20 B/element in fp32. Held in
registers, a bf16 row of 32768 spills 6508 bytes a thread; here nothing does. Rows of up to 32768 columns of 16 bits
that are whole vectors of 16 bytes are in rms_norm_again.py.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, cdiv, given, multiprocessors
from kernels.rowwise import rms_norm_again
from kernels.rowwise.pieces import (
    along,
    arithmetic,
    columns_inside,
    in_step,
    load_columns,
    load_pieces,
    pieces_of,
    pointers,
    row_sum,
    rows_alike,
    rows_from,
)
from kernels.vectors import VECTOR_BYTES, elements_before


@triton.jit
def rms_norm_row_pulls_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), in COMPUTE: 1 / rms of each row, from the forward
    pull_ptr,  # (rows,), in COMPUTE: rstd^2 mean(grad_y weight x)
    cols,
    grad_y_row_stride,
    x_row_stride,
    PIECES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lead = elements_before(row * x_row_stride, PIECES[2], PIECES[3])
    rstd = tl.load(rstd_ptr + row)
    total = tl.cast(0.0, COMPUTE)
    for chunk in tl.range(0, cols, PIECES[0]):
        inside = columns_inside(lead, cols, PIECES, chunk)
        at = pointers(x_ptr + chunk, row * x_row_stride, lead, cols, PIECES)
        x = load_pieces(at, inside, True, 0.0)
        at = pointers(grad_y_ptr + chunk, row * grad_y_row_stride, lead, cols, PIECES)
        grad_y = load_pieces(at, inside, True, 0.0)
        weight = load_columns(along(weight_ptr + chunk, lead, cols, PIECES), inside)
        product = ()
        for i in tl.static_range(len(x)):
            product = product + (grad_y[i].to(COMPUTE) * weight[i].to(COMPUTE) * x[i].to(COMPUTE),)
        total += row_sum(product)
    pull = total / cols * rstd * rstd
    tl.store(pull_ptr + row, pull)


@triton.jit
def rms_norm_wide_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), as above
    pull_ptr,  # (rows,), as above
    grad_sum_ptr,  # (rows, cols), contiguous, to be added to grad_x, or None
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs along the second axis of the grid, cols)
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    STAGES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    # One program owns some columns of every row that it walks over, so that their sum fits in registers.
    chunk = tl.program_id(0) * PIECES[0]
    start, APART = rows_alike(BLOCK_ROWS, PIECES, 1)
    lead = elements_before(tl.cast(start, tl.int64) * x_row_stride, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES, chunk)
    weight = load_columns(along(weight_ptr + chunk, lead, cols, PIECES), inside)
    grad_weight = ()
    for i in tl.static_range(len(inside)):
        grad_weight = grad_weight + (tl.zeros((BLOCK_ROWS, inside[i].shape[1]), dtype=COMPUTE),)
    for first in tl.range(start, rows, tl.num_programs(1) * BLOCK_ROWS, num_stages=STAGES):
        row = rows_from(first, BLOCK_ROWS, APART)
        here = row < rows
        x = load_pieces(pointers(x_ptr + chunk, row * x_row_stride, lead, cols, PIECES), inside, here, 0.0)
        at = pointers(grad_y_ptr + chunk, row * grad_y_row_stride, lead, cols, PIECES)
        grad_y = load_pieces(at, inside, here, 0.0)
        rstd = tl.load(rstd_ptr + row, mask=here, other=0.0)
        pull = tl.load(pull_ptr + row, mask=here, other=0.0)
        out = pointers(grad_x_ptr + chunk, row * cols, lead, cols, PIECES)
        sums = ()
        for i in tl.static_range(len(x)):
            sums = sums + (grad_weight[i] + grad_y[i].to(COMPUTE) * (x[i].to(COMPUTE) * rstd),)
            grad_x = rstd * (grad_y[i].to(COMPUTE) * weight[i].to(COMPUTE) - x[i].to(COMPUTE) * pull)
            if grad_sum_ptr is not None:
                also = pointers(grad_sum_ptr + chunk, row * cols, lead, cols, PIECES)
                grad_x += tl.load(also[i], mask=here & inside[i], other=0.0).to(COMPUTE)
            tl.store(out[i], grad_x.to(grad_x_ptr.dtype.element_ty), mask=here & inside[i])
        grad_weight = sums
    mine = along(grad_weight_ptr + tl.program_id(1).to(tl.int64) * cols + chunk, lead, cols, PIECES)
    for i in tl.static_range(len(inside)):
        tl.store(mine[i], tl.sum(grad_weight[i], axis=0, keep_dims=True), mask=inside[i])


@cache
def backward_launch_of(rows: int, cols: int, sms: int) -> tuple[int, int, dict]:
    """How many columns a program has, how many programs share the rows of these, and their settings."""
    programs = min(cdiv(rows, 2), cdiv(4 * sms, cdiv(cols, 1024)))
    return 1024, programs, {"BLOCK_ROWS": 2, "STAGES": 3, "num_warps": 4}


def backward(grad_y, x, weight, rstd, grad_sum: torch.Tensor | None, grad_x) -> torch.Tensor:
    """Write grad_x, (rows, cols), and return sums, (programs, cols), whose own sum is the gradient of weight."""
    rows, cols = x.shape
    pieces = pieces_of(x, grad_y, *map(as_rows, given(grad_sum=grad_sum, grad_x=grad_x).values()))
    if pieces[2:] == (8, False) and cols <= rms_norm_again.WIDEST and weight.data_ptr() % VECTOR_BYTES == 0:
        return rms_norm_again.backward(grad_y, x, weight, rstd, grad_sum, grad_x)
    columns, programs, chosen = backward_launch_of(rows, cols, multiprocessors(x))
    programs = in_step(programs, rows, chosen["BLOCK_ROWS"], pieces)
    pull, sums = torch.empty_like(rstd), torch.empty(programs, cols, dtype=rstd.dtype, device=x.device)
    inputs, strides = (grad_y, x, weight, rstd), (grad_y.stride(0), x.stride(0))
    compute = arithmetic(x.dtype)
    rms_norm_row_pulls_kernel[(rows,)](
        *inputs, pull, cols, *strides, PIECES=(4096, 0, *pieces[2:]), COMPUTE=compute, num_warps=4
    )
    rms_norm_wide_backward_kernel[(cdiv(cols, columns), programs)](
        *(*inputs, pull, grad_sum, grad_x, sums, rows, cols, *strides),
        PIECES=(columns, 0, *pieces[2:]),
        COMPUTE=compute,
        **chosen,
    )
    return sums
