"""The gradients of rms_norm and residual_rms_norm, of x and of weight:  r = 1 / rms(x),  g = grad_y weight,

    grad_x = r (g - x r^2 mean(g x))          grad_weight = sum over rows of grad_y x r

One pass: a program walks over rows, keeps the sums for its share of grad_weight in registers, and reads each row and
its gradient once, 12 B/element in fp32; a second, small launch adds the programs' sums up. Rows too wide for this are
in rms_norm_wide.py, few rows in rms_norm_few_rows.py.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_rows, cdiv, given, largest_power_of_2, multiprocessors, next_power_of_2, shared_memory
from kernels.op import like
from kernels.rowwise import rms_norm_few_rows, rms_norm_wide
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
from kernels.rowwise.sums import folded, no_sums, sums_of_programs
from kernels.vectors import elements_before

WIDEST_BLOCK = 16384  # elements of a row, of its gradient and of a sum over rows, in one program's registers


@triton.jit
def rms_norm_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), in COMPUTE: 1 / rms of each row, from the forward
    grad_sum_ptr,  # (rows, cols), contiguous: added to grad_x where x is a sum that goes on as it is, or None
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs, cols), in COMPUTE: each program's sum over its rows
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    BLOCK_ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    STAGES: tl.constexpr,
    COMPUTE: tl.constexpr,
    num_warps: tl.constexpr,
):
    start, APART = rows_alike(BLOCK_ROWS, PIECES)
    lead = elements_before(tl.cast(start, tl.int64) * x_row_stride, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    weight = load_columns(along(weight_ptr, lead, cols, PIECES), inside)
    grad_weight = no_sums(inside, BLOCK_ROWS, PIECES[2], num_warps, COMPUTE)
    for first in tl.range(start, rows, tl.num_programs(0) * BLOCK_ROWS, num_stages=STAGES):
        row = rows_from(first, BLOCK_ROWS, APART)
        here = row < rows
        x = load_pieces(pointers(x_ptr, row * x_row_stride, lead, cols, PIECES), inside, here, 0.0)
        at = pointers(grad_y_ptr, row * grad_y_row_stride, lead, cols, PIECES)
        grad_y = load_pieces(at, inside, here, 0.0)
        if grad_sum_ptr is not None and STAGES < 2:
            grad_sum = load_pieces(pointers(grad_sum_ptr, row * cols, lead, cols, PIECES), inside, here, 0.0)
        rstd = tl.load(rstd_ptr + row + tl.zeros((BLOCK_ROWS, 1), tl.int32), mask=here, other=0.0)
        product = ()
        for i in tl.static_range(len(x)):
            product = product + (grad_y[i].to(COMPUTE) * x[i].to(COMPUTE) * weight[i].to(COMPUTE),)
        # d rstd / dx = -rstd^3 x / cols reaches x through every column of its row.
        pull = row_sum(product) / cols * rstd * rstd
        out = pointers(grad_x_ptr, row * cols, lead, cols, PIECES)
        sums = ()
        for i in tl.static_range(len(x)):
            own = grad_y[i].to(COMPUTE) * (x[i].to(COMPUTE) * rstd)
            sums = sums + (grad_weight[i] + folded(own, grad_weight[i].shape[0]),)
            grad_x = rstd * (grad_y[i].to(COMPUTE) * weight[i].to(COMPUTE) - x[i].to(COMPUTE) * pull)
            if grad_sum_ptr is not None:
                if STAGES < 2:
                    grad_x += grad_sum[i].to(COMPUTE)
                else:  # it waits in shared memory
                    also = pointers(grad_sum_ptr, row * cols, lead, cols, PIECES)
                    grad_x += tl.load(also[i], mask=here & inside[i], other=0.0).to(COMPUTE)
            tl.store(out[i], grad_x.to(grad_x_ptr.dtype.element_ty), mask=here & inside[i])
        grad_weight = sums
    mine = along(grad_weight_ptr + tl.program_id(0).to(tl.int64) * cols, lead, cols, PIECES)
    for i in tl.static_range(len(inside)):
        tl.store(mine[i], tl.sum(grad_weight[i], axis=0, keep_dims=True), mask=inside[i])


@cache
def backward_launch_of(
    rows: int, cols: int, pieces: tuple, dtype: torch.dtype, sms: int, shared_memory: int, tensors: int = 2
) -> tuple[int, dict]:
    """How many programs, and their PIECES, BLOCK_ROWS, STAGES and num_warps: a thread has 16 to 36 elements of a row.

    Two rows are on their way while one is computed, if `shared_memory` bytes hold them, of each of `tensors` that are
    read: x, the gradient, and a sum's. Rows of up to 1024 columns come several at a time instead, in one block: a
    smaller one beside it would lie in threads differently, and each sum be brought from one to the other. The widest
    leave no registers for it; a third tensor has to wait in either case.
    """
    pieces = (next_power_of_2(cols // pieces[2] * pieces[2]), 0, *pieces[2:]) if cols <= 1024 else pieces
    held, ragged = sum(pieces[:2]), pieces[3]
    elements = 1024 if ragged else 4096 if tensors == 2 else 2048
    block_rows = max(1, min(16, elements // held)) if cols <= 1024 else 1
    if ragged and tensors > 2 and held > 256:
        block_rows = 1
    warps = largest_power_of_2(block_rows * held // (1024 if ragged else 512))
    warps = min(16, max(1, warps) if ragged else max(4, warps) if block_rows == 1 else 4)
    per_sm = max(1, (8 if ragged else 16) // warps)
    in_flight = per_sm * tensors * dtype.itemsize * block_rows * held  # bytes of one stage
    alone = (block_rows > 1 and ragged) or (tensors == 2 and (block_rows > 1 or held > 12288))
    stages = 1 if alone else max(1, min(3, 1 + shared_memory // in_flight))
    if dtype.itemsize == 2 and held <= 512:  # as many as registers allow
        if ragged and held > 256:
            per_sm = 12 if rows >= 32 * sms else 8
        elif not ragged and held <= 64 and tensors == 2:
            per_sm = 8
        elif not ragged and 64 < held <= 128:
            per_sm, stages = 6, 1
    programs = in_step(min(cdiv(rows, block_rows), per_sm * sms), rows, block_rows, pieces)
    chosen = {"PIECES": pieces, "BLOCK_ROWS": block_rows, "STAGES": stages, "num_warps": warps}
    return programs, {**chosen, "COMPUTE": arithmetic(dtype)}


def gradients(
    grad_y: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, grad_sum: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradients of x and weight; `grad_sum` is added to x's."""
    grad_x = like(x)
    if grad_x.numel() == 0:
        return grad_x, torch.zeros_like(weight)
    grad_y, x, grad_sum = as_rows(grad_y), as_rows(x), None if grad_sum is None else grad_sum.contiguous()
    (rows, cols), tensors = x.shape, (grad_y, x, weight.contiguous(), rstd, grad_sum, grad_x)
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            sums = rms_norm_wide.backward(*tensors)
        elif rows <= min(rms_norm_few_rows.MOST_ROWS, multiprocessors(x)):
            return grad_x, rms_norm_few_rows.backward(*tensors)
        else:
            pieces = pieces_of(x, grad_y, *map(as_rows, given(grad_sum=grad_sum, grad_x=grad_x).values()))
            room, read = (multiprocessors(x), shared_memory(x)), 2 if grad_sum is None else 3
            programs, chosen = backward_launch_of(rows, cols, pieces, x.dtype, *room, read)
            sums = torch.empty(programs, cols, dtype=rstd.dtype, device=x.device)
            strides = grad_y.stride(0), x.stride(0)
            rms_norm_backward_kernel[(programs,)](*tensors, sums, rows, cols, *strides, **chosen)
        return grad_x, *sums_of_programs((sums,), (weight,))
