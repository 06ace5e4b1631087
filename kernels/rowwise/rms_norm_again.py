"""Gradients of rms_norm for rows of 16385 to 32768 columns of 16 bits: a row and its gradient are read again from L1.

A program, alone on its SM, walks over rows. It reads one for the sum that reaches all its columns, then again to write,
and keeps its share of the weight's gradient in registers: of memory 6 B/element, of x + residual 8, for 10 and 12 of
rms_norm_wide.py's. On an H200, bf16, us (rms_norm_wide.py): 4096 x 32768 289 (337), of x + residual 329 (405); 7282 x
18432 317 (335), 359 (402). Some sums have no register, 8 to 128 bytes a thread: half as many threads, which have, take
314 and 402 at 32768 columns.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import cdiv, multiprocessors

WIDEST = 32768  # columns: of a row and its gradient 128 KB stay in an SM's L1 cache, of the weight's sums in registers
LANES, WARPS = 8192, 32


@triton.jit
def load_tile(ptr, start, cols, WHOLE: tl.constexpr, LANES: tl.constexpr, POLICY: tl.constexpr):
    """LANES elements from `start` on, in fp32; 0 past the row's end, unless the tile is WHOLE in every row."""
    lane = tl.max_contiguous(tl.multiple_of(tl.arange(0, LANES), 8), 8)
    if WHOLE:
        x = tl.load(ptr + start + lane, eviction_policy=POLICY)
    else:
        x = tl.load(ptr + start + lane, mask=lane < cols - start, other=0.0, eviction_policy=POLICY)
    return x.to(tl.float32)


@triton.jit
def store_tile(ptr, start, cols, x, WHOLE: tl.constexpr, POLICY: tl.constexpr):
    lane = tl.max_contiguous(tl.multiple_of(tl.arange(0, x.shape[0]), 8), 8)
    tl.store(
        ptr + start + lane,
        x.to(ptr.dtype.element_ty),
        mask=None if WHOLE else lane < cols - start,
        eviction_policy=POLICY,
    )


@triton.jit
def rms_norm_again_backward_kernel(
    grad_y_ptr,  # (rows, cols), rows and their stride whole vectors of 16 bytes, unit column stride, 16 bits an element
    x_ptr,  # the same
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), fp32: 1 / rms of each row, from the forward
    grad_sum_ptr,  # (rows, cols), contiguous, to be added to grad_x, or None
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs, cols), fp32: each program's sum over its rows
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    LANES: tl.constexpr,  # columns of a tile
    TILES: tl.constexpr,
    WHOLE: tl.constexpr,  # tiles that are in every row whole
):
    cols = cols // 8 * 8  # as it is, so that the compiler sees whole vectors
    grad_weight = ()
    for _ in tl.static_range(TILES):
        grad_weight = grad_weight + (tl.zeros((LANES,), tl.float32),)
    for number in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.cast(number, tl.int64)
        x_row, grad_y_row = x_ptr + row * x_row_stride // 8 * 8, grad_y_ptr + row * grad_y_row_stride // 8 * 8
        product = tl.zeros((LANES,), tl.float32)
        for start in tl.range(0, cols, LANES):
            x = load_tile(x_row, start, cols, False, LANES, "evict_last")
            grad_y = load_tile(grad_y_row, start, cols, False, LANES, "evict_last")
            product += grad_y * load_tile(weight_ptr, start, cols, False, LANES, "evict_last") * x
        rstd = tl.load(rstd_ptr + row)
        pull = tl.sum(product) / cols * rstd * rstd
        sums = ()
        for i in tl.static_range(TILES):
            x = load_tile(x_row, i * LANES, cols, i < WHOLE, LANES, "evict_first")
            grad_y = load_tile(grad_y_row, i * LANES, cols, i < WHOLE, LANES, "evict_first")
            weight = load_tile(weight_ptr, i * LANES, cols, i < WHOLE, LANES, "evict_last")
            sums = sums + (grad_weight[i] + grad_y * (x * rstd),)
            grad_x = rstd * (grad_y * weight - x * pull)
            if grad_sum_ptr is not None:
                grad_x += load_tile(grad_sum_ptr + row * cols, i * LANES, cols, i < WHOLE, LANES, "evict_first")
            store_tile(grad_x_ptr + row * cols, i * LANES, cols, grad_x, i < WHOLE, "evict_first")
        grad_weight = sums
    for i in tl.static_range(TILES):
        mine = grad_weight_ptr + tl.program_id(0).to(tl.int64) * cols
        store_tile(mine, i * LANES, cols, grad_weight[i], i < WHOLE, "evict_first")


def backward(grad_y, x, weight, rstd, grad_sum: torch.Tensor | None, grad_x) -> torch.Tensor:
    """As rms_norm_wide.backward, of rows of 16 bits, aligned to 16 bytes as weight is, at most WIDEST columns."""
    rows, cols = x.shape
    sums = torch.empty(min(rows, multiprocessors(x)), cols, dtype=torch.float32, device=x.device)
    rms_norm_again_backward_kernel[(sums.shape[0],)](
        *(grad_y, x, weight, rstd, grad_sum, grad_x, sums, rows, cols, grad_y.stride(0), x.stride(0)),
        LANES=LANES,
        TILES=cdiv(cols, LANES),
        WHOLE=cols // LANES,
        num_warps=WARPS,
        maxnreg=64,
    )
    return sums
