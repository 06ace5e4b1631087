"""Tuned linear_act with tensor descriptors, for more than 32 rows in 16 bits (or tf32) on compute capability 9.0 and
10.0.

Rows of x and weight must start at multiples of 16 bytes; if the matmul is large, other rows are copied to padded ones
first. With bias and GELU in bf16 on an H200 it is 1.28x to 1.37x faster than the plain kernel at the three sizes below.
At 1023 x 4097 x 4099, with copies, it is 4.7x faster: 75 us, 25 of them the copies, against 352 for the plain kernel
and 105 for torch.compile, which copies too. TFLOP/s from one run, step by step:

                                                                          8192^3   4096^3   8192 x 4096 x 11008
    the plain kernel, tiles of 128 x 128                                     572      578      568
    tensor descriptors: the copy engine (TMA) fetches whole tiles into       705      700      682
        shared memory and checks the bounds; no registers spent on
        addresses and masks, so that tiles of 128 x 256 fit
    grouped order: tiles that run together form a block of the result,       756      714      741
        not a strip, and share x and W in L2
    persistent programs: one per SM loops over tiles, and the next           774      734      771
        tile's loads overlap this tile's epilogue
    a shorter epilogue: GELU with one special instruction per element        778      741      779
        instead of two, and the bias loaded once per tile, coalesced
    cuBLAS and a GELU kernel                                                 748      686      704
    cuBLAS, linear and bias alone                                            793      762      783

Without an activation it matches cuBLAS (789, 762 and 799). With GELU the tensor cores idle for 1.2 of a tile's 46 us at
4096^3: GELU's eight instructions per element keep an SM's four schedulers busy for 2048 cycles.

Source: Triton's tutorials 03 (order of tiles) and 09 (persistent loop).
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import activate
from kernels.arguments import cdiv, multiprocessors, shared_memory
from kernels.descriptors import ALIGNMENT, LARGE_TILES, described_rows, takes_descriptors
from kernels.tiled.linear_act import run
from kernels.variants import tuned

FEW_ROWS = 32  # linear_few_rows.py takes calls of up to this many

# Rows and columns of a tile, warps, microseconds per round of one tile per SM at K = 4096 (H200, bf16).
TILES = ((128, 256, 8, 45.4), (256, 128, 8, 47.0), (128, 128, 8, 26.7), (64, 128, 4, 20.3), (64, 64, 4, 12.2))


@triton.jit
def grouped_order(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Return row and column of the tile-th tile, GROUP rows of tiles at a time and column by column within them."""
    group = tile // (GROUP * tiles_n)
    rows = tl.minimum(tiles_m - group * GROUP, GROUP)
    within = tile % (GROUP * tiles_n)
    return group * GROUP + within % rows, within // rows


@triton.jit
def finish(
    acc, residual, y, s, row, col, m, n, ACT: tl.constexpr, PARTS: tl.constexpr, DESCRIBED: tl.constexpr
):  # fmt: skip
    """Apply the epilogue to fp32 sums in registers, and store them in PARTS, side by side, one after another."""
    ROWS: tl.constexpr = acc.shape[0]
    COLS: tl.constexpr = acc.shape[1]
    if PARTS > 1:
        left, right = tl.split(tl.permute(tl.reshape(acc, (ROWS, 2, COLS // 2)), (0, 2, 1)))
        finish(left, residual, y, s, row, col, m, n, ACT, PARTS // 2, DESCRIBED)
        finish(right, residual, y, s, row, col + COLS // 2, m, n, ACT, PARTS // 2, DESCRIBED)
    elif DESCRIBED:
        if s is not None:
            s.store([row, col], acc.to(s.dtype))
        result = acc if ACT is None else activate(acc, ACT, y.dtype)
        if residual is not None:
            result += residual.load([row, col]).to(tl.float32)
        y.store([row, col], result.to(y.dtype))
    else:
        at_row, at_col = row + tl.arange(0, ROWS)[:, None], col + tl.arange(0, COLS)[None, :]
        inside = (at_row < m) & (at_col < n)
        at = at_row.to(tl.int64) * n + at_col  # passes 2**31 on large tensors
        if s is not None:
            tl.store(s + at, acc.to(s.dtype.element_ty), mask=inside)
        result = acc if ACT is None else activate(acc, ACT, y.dtype.element_ty)
        if residual is not None:
            result += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + at, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def linear_act_descriptors_kernel(
    x_desc,  # (m, k) in tiles of (BLOCK_M, BLOCK_K)
    weight_desc,  # (n, k) in tiles of (BLOCK_N, BLOCK_K)
    bias_ptr,  # (n,), or None
    residual,  # (m, n) in tiles of (BLOCK_M, BLOCK_N // PARTS), or None; a pointer unless DESCRIBED, as the next two
    y,  # the same
    s,  # the same, or None if no backward pass needs it
    m,
    n,
    k,
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    PRECISION: tl.constexpr,  # of fp32 products; "ieee" for 16 bits, where it has no effect
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,  # in which a tile is stored through shared memory: fewer would leave no room for loads
    DESCRIBED: tl.constexpr,  # whether residual, y and s are descriptors
):
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped_order(tile, tiles_m, tiles_n, GROUP)
        row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(k, BLOCK_K)):
            x = x_desc.load([row, step * BLOCK_K])
            weight = weight_desc.load([col, step * BLOCK_K])
            acc = tl.dot(x, weight.T, acc, input_precision=PRECISION)
        if bias_ptr is not None:
            # For all parts at once: a single wait for memory, which overlaps the last product.
            at = col + tl.arange(0, BLOCK_N)
            acc += tl.load(bias_ptr + at, mask=at < n, other=0.0).to(tl.float32)[None, :]
        finish(acc, residual, y, s, row, col, m, n, ACT, PARTS, DESCRIBED)


@lru_cache(maxsize=1024)  # batches come in many sizes
def settings(
    m: int, n: int, dtype: torch.dtype, residual: bool = False, keep_sum: bool = False, multiprocessors: int = 132
) -> dict:
    """Return launch settings for an (m, n) result; `residual` is also read; with `keep_sum`, the sum is also written.

    Large tiles read fewer bytes from L2 (128 x 256 reads 3/4 as many as 128 x 128). But SMs take tiles in waves, and a
    last wave with few tiles takes as long as a full one, so the choice from TILES is the one whose waves add up to the
    shortest time. A step along K is 128 bytes of a row, the span of TMA's swizzle; tiles of 64 rows, which are
    memory-bound, take two. There are as many load stages as fit next to the part of the tile being stored, up to four,
    or six for tiles of up to 128 x 128. A tile is stored through addresses, in quarters, or in eighths for 4-byte
    elements: 0 to 4 % faster than through descriptors (H100). Where a second tensor needs registers too, descriptors
    take its tiles and the result's, in quarters. If rows of the result are not a multiple of 16 bytes, only addresses
    can: twice as many parts, and no large tiles for two tensors. A group is 16 rows of tiles, or 8 of 256 rows, so that
    132 tiles cover roughly a square.
    """

    def time(tile: tuple) -> float:
        block_m, block_n, _, of_a_round = tile
        return cdiv(cdiv(m, block_m) * cdiv(n, block_n), multiprocessors) * of_a_round

    several = residual or keep_sum
    described = several and n * dtype.itemsize % ALIGNMENT == 0
    block_m, block_n, warps, _ = min(TILES if described or not several else TILES[2:], key=time)
    small = block_m == 64
    block_k = (256 if small else 128) // dtype.itemsize
    parts = (4 if several or dtype.itemsize == 4 else 2) * (1 if described else 2)
    stage = (block_m + block_n) * block_k * dtype.itemsize
    passing = (2 if residual else 1) * block_m * block_n // parts * dtype.itemsize
    return {
        "PRECISION": "tf32" if dtype == torch.float32 else "ieee",
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "GROUP": 8 if block_m == 256 else 16,
        "PARTS": parts,
        "DESCRIBED": described,
        "num_warps": warps,
        "num_stages": min(6 if block_m * block_n <= 2**14 else 4, (LARGE_TILES - 1024 - passing) // stage),
    }


def operands(x, weight, bias, residual, y, s, chosen: dict) -> tuple:
    """Return the kernel's arguments for these matrices and settings; residual and s may be None."""
    tile_m, tile_n, tile_k = chosen["BLOCK_M"], chosen["BLOCK_N"], chosen["BLOCK_K"]
    part = [tile_m, tile_n // chosen["PARTS"]]
    describe = TensorDescriptor.from_tensor
    of_x, of_weight = describe(x, [tile_m, tile_k]), describe(weight, [tile_n, tile_k])
    results = residual, y, s
    if chosen["DESCRIBED"]:
        results = [None if each is None else describe(each, part) for each in results]
    return of_x, of_weight, bias, *results, x.shape[0], weight.shape[0], x.shape[1]


@triton.jit
def copy_row(source_ptr, padded_ptr, cols, padded_stride, BLOCK: tl.constexpr):
    for start in range(0, padded_stride, BLOCK):
        col = start + tl.arange(0, BLOCK)
        value = tl.load(source_ptr + col, mask=col < cols, other=0.0)
        tl.store(padded_ptr + col, value, mask=col < padded_stride)


@triton.jit
def pad_rows_kernel(
    x_ptr,  # (m, k), any row stride, unit column stride
    weight_ptr,  # (n, k), the same
    padded_x_ptr,  # (m, padded_stride), contiguous
    padded_weight_ptr,  # (n, padded_stride), contiguous
    m,
    k,
    x_row_stride,
    weight_row_stride,
    padded_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # int64: offsets pass 2**31 on large tensors
    if row < m:
        copy_row(x_ptr + row * x_row_stride, padded_x_ptr + row * padded_stride, k, padded_stride, BLOCK)
    else:
        row -= m
        source, target = weight_ptr + row * weight_row_stride, padded_weight_ptr + row * padded_stride
        copy_row(source, target, k, padded_stride, BLOCK)


def padded(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy both in one launch, to rows that start at multiples of 32 bytes and end in zeros."""
    (m, k), n = x.shape, weight.shape[0]
    stride = cdiv(k, 16) * 16
    copies = x.new_empty(m, stride), weight.new_empty(n, stride)
    strides = x.stride(0), weight.stride(0), stride
    pad_rows_kernel[(m + n,)](x, weight, *copies, m, k, *strides, BLOCK=2048, num_warps=8)
    return copies


def worth_padding(m: int, k: int, n: int, itemsize: int, multiprocessors: int) -> bool:
    """Return whether copying x and weight is faster than the plain kernel. With rows that are not aligned to 16 bytes,
    the plain kernel takes 0.042 us per column of x and round of tiles. Copies take 10 us, including the second launch,
    plus their bytes at 3.4 TB/s (H200, bf16)."""
    rounds = cdiv(cdiv(m, 128) * cdiv(n, 128), multiprocessors)
    return 0.042 * rounds * k > 10 + 2 * (m + n) * k * itemsize / 3.4e6


def takes(x, weight, bias, residual, act: str | None, tf32: bool) -> bool:
    """Return whether a kernel with descriptors takes the call, with few rows or many."""
    n, k = weight.shape
    if not ((x.itemsize == 2 or tf32) and n and x.numel() and shared_memory(x) >= LARGE_TILES):
        return False
    if described_rows(x) and described_rows(weight):
        return True
    return worth_padding(x.numel() // k, k, n, x.itemsize, multiprocessors(x))


def as_descriptors_take(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrices x and weight if descriptors take both as they are, else padded copies."""
    return (x, weight) if takes_descriptors(x, weight) else padded(x, weight)


def _launch(x, weight, bias, residual, y, s, act: str | None, tf32: bool) -> None:
    (m, n), programs = y.shape, multiprocessors(x)
    x, weight = as_descriptors_take(x, weight)
    chosen = settings(m, n, x.dtype, residual is not None, s is not None, programs)
    if residual is not None and residual.data_ptr() % ALIGNMENT:
        chosen = chosen | {"DESCRIBED": False}
    grid = (min(programs, cdiv(m, chosen["BLOCK_M"]) * cdiv(n, chosen["BLOCK_N"])),)
    arguments = operands(x, weight, bias, residual, y, s, chosen)
    linear_act_descriptors_kernel[grid](*arguments, ACT=act, **chosen)


def compile_arguments(m: int, k: int, n: int, *, dtype: torch.dtype, bias: bool = True):
    """Return compile arguments as kernels.variants.Tuned defines them."""
    if m <= FEW_ROWS or dtype.itemsize != 2 or k % 8:
        return None
    chosen = settings(m, n, dtype)
    x, weight, y = (torch.empty(size, dtype=dtype, device="meta") for size in ((m, k), (n, k), (m, n)))
    arguments = operands(x, weight, y[0] if bias else None, None, y, None, chosen)
    return linear_act_descriptors_kernel, arguments, {"ACT": "gelu_tanh", **chosen}


def _takes_many(x, weight, *others) -> bool:
    return x.numel() > FEW_ROWS * x.shape[-1] and takes(x, weight, *others)


GAIN = "1.28x to 1.37x at 8192^3, 4096^3 and 8192 x 4096 x 11008, 4.7x at 1023 x 4097 x 4099 (H200, bf16)"


@tuned("linear_act", "forward", takes=_takes_many, gain=GAIN, compile_arguments=compile_arguments)
def _forward(*arguments) -> torch.Tensor:
    return run(*arguments, keep_sum=False, launch=_launch)[0]


@tuned("linear_act", "training", takes=_takes_many, gain=GAIN)
def _training(x, weight, bias, residual, act, tf32) -> tuple[torch.Tensor, torch.Tensor]:
    y, s = run(x, weight, bias, residual, act, tf32, keep_sum=act is not None, launch=_launch)
    return y, x.new_empty(0) if s is None else s
