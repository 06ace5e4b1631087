"""Tuned backward pass of rms_norm and residual_rms_norm for wide 16-bit rows, reread from the L1 cache.

It takes rows of up to 32768 columns, in multiples of 16 bytes, that the plain backward pass cannot hold in registers
and so reads from memory twice, in two launches. Here each SM runs one program, which loops over rows. The program reads
a row and its gradient once for the sum over all columns, then rereads both from the L1 cache to write the result. Its
share of grad_weight stays in registers. That moves 6 B/element instead of 10, and 8 instead of 12 for
residual_rms_norm.

Times on an H200 in bf16, in us, with two launches in brackets: 4096 x 32768 takes 289 (337), with a residual 329 (405);
7282 x 18432 takes 317 (335), with a residual 359 (402). The sums spill 8 to 128 bytes per thread. Half as many threads
don't spill, but take 314 and 402 us at 32768 columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_rows, cdiv, multiprocessors
from kernels.op import like
from kernels.rowwise.rms_norm import fits_registers
from kernels.rowwise.sums import sums_of_programs
from kernels.variants import tuned

MAX_COLUMNS = 32768  # a row and its gradient take 128 KB of L1, the share of grad_weight the registers
TILE = 8192  # columns of a tile
NUM_WARPS = 32
GAIN = "1.06x at 7282 x 18432 to 1.23x at 4096 x 32768 with a residual, over two launches (H200, bf16)"


@triton.jit
def load_tile(ptr, start, cols, UNMASKED: tl.constexpr, TILE: tl.constexpr, POLICY: tl.constexpr):
    """Load TILE elements from `start`, as fp32; 0 past the row's end, which UNMASKED tiles do not reach in any row."""
    col = tl.max_contiguous(tl.multiple_of(tl.arange(0, TILE), 8), 8)
    if UNMASKED:
        x = tl.load(ptr + start + col, eviction_policy=POLICY)
    else:
        x = tl.load(ptr + start + col, mask=col < cols - start, other=0.0, eviction_policy=POLICY)
    return x.to(tl.float32)


@triton.jit
def store_tile(ptr, start, cols, x, UNMASKED: tl.constexpr, POLICY: tl.constexpr):
    col = tl.max_contiguous(tl.multiple_of(tl.arange(0, x.shape[0]), 8), 8)
    tl.store(
        ptr + start + col,
        x.to(ptr.dtype.element_ty),
        mask=None if UNMASKED else col < cols - start,
        eviction_policy=POLICY,
    )


@triton.jit
def rms_norm_reread_backward_kernel(
    grad_y_ptr,  # (rows, cols), rows and their stride whole 16-byte vectors, unit column stride, 16 bits per element
    x_ptr,  # the same
    weight_ptr,  # (cols,)
    rstd_ptr,  # (rows,), fp32: 1 / rms of each row, from the forward
    grad_sum_ptr,  # (rows, cols), contiguous, added to grad_x, or None
    grad_x_ptr,  # (rows, cols), contiguous, x's dtype
    grad_weight_ptr,  # (programs, cols), fp32: each program's sum over its rows
    rows,
    cols,
    grad_y_row_stride,
    x_row_stride,
    TILE: tl.constexpr,  # columns of a tile
    NUM_TILES: tl.constexpr,
    NUM_UNMASKED: tl.constexpr,  # tiles that every row fills
):
    cols = cols // 8 * 8  # unchanged, but now the compiler sees whole vectors
    grad_weight = ()
    for _ in tl.static_range(NUM_TILES):
        grad_weight = grad_weight + (tl.zeros((TILE,), tl.float32),)
    for number in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.cast(number, tl.int64)
        x_row, grad_y_row = x_ptr + row * x_row_stride // 8 * 8, grad_y_ptr + row * grad_y_row_stride // 8 * 8
        product = tl.zeros((TILE,), tl.float32)
        for start in tl.range(0, cols, TILE):
            x = load_tile(x_row, start, cols, False, TILE, "evict_last")
            grad_y = load_tile(grad_y_row, start, cols, False, TILE, "evict_last")
            product += grad_y * load_tile(weight_ptr, start, cols, False, TILE, "evict_last") * x
        rstd = tl.load(rstd_ptr + row)
        projection = tl.sum(product) / cols * rstd * rstd
        sums = ()
        for i in tl.static_range(NUM_TILES):
            x = load_tile(x_row, i * TILE, cols, i < NUM_UNMASKED, TILE, "evict_first")
            grad_y = load_tile(grad_y_row, i * TILE, cols, i < NUM_UNMASKED, TILE, "evict_first")
            weight = load_tile(weight_ptr, i * TILE, cols, i < NUM_UNMASKED, TILE, "evict_last")
            sums = sums + (grad_weight[i] + grad_y * (x * rstd),)
            grad_x = rstd * (grad_y * weight - x * projection)
            if grad_sum_ptr is not None:
                grad_x += load_tile(grad_sum_ptr + row * cols, i * TILE, cols, i < NUM_UNMASKED, TILE, "evict_first")
            store_tile(grad_x_ptr + row * cols, i * TILE, cols, grad_x, i < NUM_UNMASKED, "evict_first")
        grad_weight = sums
    for i in tl.static_range(NUM_TILES):
        mine = grad_weight_ptr + tl.program_id(0).to(tl.int64) * cols
        store_tile(mine, i * TILE, cols, grad_weight[i], i < NUM_UNMASKED, "evict_first")


def settings(cols: int) -> dict:
    """Return the tiles and warps for rows of `cols` columns."""
    tiles = {"TILE": TILE, "NUM_TILES": cdiv(cols, TILE), "NUM_UNMASKED": cols // TILE}
    return {**tiles, "num_warps": NUM_WARPS, "maxnreg": 64}


def _in_vectors(x: Tensor) -> bool:
    """Return whether x's rows start and end at multiples of 16 bytes; as_rows copies x if no view exists."""
    return x.data_ptr() % 16 == 0 and all(size % 8 == 0 for size in (*x.stride()[:-1], x.shape[-1]))


def _takes(grad_y: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, grad_sum: Tensor | None = None) -> bool:
    return (
        x.shape[-1] <= MAX_COLUMNS
        and not fits_registers(x.shape[-1], x.itemsize)
        and rstd.numel() > 0
        and x.itemsize == 2
        and weight.data_ptr() % 16 == 0
        and all(map(_in_vectors, (grad_y, x) if grad_sum is None else (grad_y, x, grad_sum)))
    )


def _takes_residual(grad_y: Tensor, grad_sum: Tensor | None, s: Tensor, weight: Tensor, rstd: Tensor) -> bool:
    return _takes(grad_y, s, weight, rstd, grad_sum)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple | None:
    (rows, cols), x = shape, torch.empty(shape, dtype=dtype, device="meta")
    if dtype.itemsize != 2 or cols % 8 or cols > MAX_COLUMNS or fits_registers(cols, dtype.itemsize):
        return None
    rstd, sums = torch.empty(rows, device="meta"), torch.empty(1, cols, device="meta")
    return rms_norm_reread_backward_kernel, (x, x, x[0], rstd, None, x, sums, rows, cols, cols, cols), settings(cols)


@tuned("rms_norm", "backward", takes=_takes, gain=GAIN, compile_arguments=_compile_arguments)
def backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, grad_sum: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and weight; grad_sum, if given, is added to x's."""
    grad_x, weight = like(x), weight.contiguous()
    grad_y, x, grad_sum = as_rows(grad_y), as_rows(x), None if grad_sum is None else grad_sum.contiguous()
    rows, cols = x.shape
    sums = torch.empty(min(rows, multiprocessors(x)), cols, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        rms_norm_reread_backward_kernel[(sums.shape[0],)](
            *(grad_y, x, weight, rstd, grad_sum, grad_x, sums, rows, cols, grad_y.stride(0), x.stride(0)),
            **settings(cols),
        )
        return grad_x, *sums_of_programs((sums,), (weight,))


@tuned("residual_rms_norm", "backward", takes=_takes_residual, gain=GAIN)
def residual_backward(
    grad_y: Tensor, grad_sum: Tensor | None, s: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of s and weight."""
    return backward(grad_y, s, weight, rstd, grad_sum)
