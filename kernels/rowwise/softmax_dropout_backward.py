"""The gradient of softmax_dropout, from x, from each row's maximum and sum, which the forward keeps, and from the seed:

    grad_x = softmax (passed - sum(softmax passed)),    passed = grad_y mask / (1 - p)

Probabilities and mask are computed again: read x, read grad_y, write grad_x, 6 B/element in 16 bits, one launch.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, cdiv, largest_power_of_2, next_power_of_2
from kernels.online_softmax import LOG2_E
from kernels.op import like
from kernels.philox import begin_fours, scale_of_kept
from kernels.rowwise import softmax_dropout_wide
from kernels.rowwise.pieces import (
    arithmetic,
    columns_inside,
    kept_pieces,
    load_pieces,
    pieces_of,
    pointers,
    row_sum,
    rows_from,
)
from kernels.vectors import elements_before

WIDEST_BLOCK = 8192  # elements of a row that one program holds in registers


@triton.jit
def softmax_dropout_backward_kernel(
    grad_y_ptr,  # (rows, cols), any row stride, unit column stride
    x_ptr,  # (rows, cols), any row stride, unit column stride
    sums_ptr,  # (rows, 2) COMPUTE
    seed_ptr,  # (1,) int64
    grad_x_ptr,  # (rows, cols), contiguous
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    p,
    scale,
    BLOCK_ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    FOURS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    row = rows_from(tl.program_id(0) * BLOCK_ROWS, BLOCK_ROWS)
    here = row < rows
    lead = elements_before(row * cols, PIECES[2], PIECES[3])
    inside = columns_inside(lead, cols, PIECES)
    x = load_pieces(pointers(x_ptr, row * x_row_stride, lead, cols, PIECES), inside, here, -float("inf"))
    grad_y = load_pieces(pointers(grad_y_ptr, row * grad_y_row_stride, lead, cols, PIECES), inside, here, 0.0)
    top = tl.load(sums_ptr + 2 * row, mask=here)
    log_total = tl.load(sums_ptr + 2 * row + 1, mask=here)
    keep = kept_pieces(tl.load(seed_ptr), row, lead, cols, p, BLOCK_ROWS, PIECES, FOURS)
    softmax, passed, both = (), (), ()
    for i in tl.static_range(len(x)):
        softmax = softmax + (tl.exp2((x[i].to(COMPUTE) - top) * LOG2_E - log_total),)
        passed = passed + (grad_y[i].to(COMPUTE) * tl.where(keep[i], scale, 0.0),)
        both = both + (softmax[i] * passed[i],)
    mean = row_sum(both)
    out = pointers(grad_x_ptr, row * cols, lead, cols, PIECES)
    for i in tl.static_range(len(x)):
        grad_x = softmax[i] * (passed[i] - mean)
        tl.store(out[i], grad_x.to(grad_x_ptr.dtype.element_ty), mask=here & inside[i])


@cache
def launch_of(rows: int, cols: int, pieces: tuple[int, int, int, bool]) -> tuple[int, dict]:
    """How many programs of either direction, their constexprs and num_warps.

    About 32 elements a thread, 16 where rows are wider than 6144: more do not fit beside Philox. 8 where rows are few
    and narrow, which a thread would be long with.
    """
    head, tail, vector, ragged = pieces
    head, tail = max(8, head), tail and max(8, tail)
    block_rows = max(1, 1024 // next_power_of_2(head + tail))
    few = rows < 4096 and head + tail <= 256
    block_rows = min(block_rows, 4) if few else block_rows
    held = block_rows * (head + tail)
    warps = min(32, largest_power_of_2(held // (256 if few else 1024 if held <= 6144 else 512)))
    chosen = {"BLOCK_ROWS": block_rows, "PIECES": (head, tail, vector, ragged), "FOURS": begin_fours(cols, vector)}
    return cdiv(rows, block_rows), {**chosen, "num_warps": warps}


def backward(grad_y: torch.Tensor, x: torch.Tensor, sums: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    """The gradient of (..., cols) x by y's, which is grad_y; `sums` is what the forward stored."""
    grad_x = like(x)
    if x.numel() == 0:
        return grad_x
    x, grad_y = as_rows(x), as_rows(grad_y)
    rows, cols = x.shape
    tensors, dropout = (grad_y, x, sums, seed, grad_x), (float(p), scale_of_kept(p))
    with torch.cuda.device_of(x):
        if cols > WIDEST_BLOCK:
            softmax_dropout_wide.backward(*tensors, *dropout)
        else:
            programs, chosen = launch_of(rows, cols, pieces_of(x, grad_y, as_rows(grad_x)))
            sizes = rows, cols, grad_y.stride(0), x.stride(0)
            softmax_dropout_backward_kernel[(programs,)](
                *tensors, *sizes, *dropout, COMPUTE=arithmetic(x.dtype), **chosen
            )
    return grad_x
