"""linear_act on tensor cores of compute capability 9.0 and 10.0, for rows that start at multiples of 16 bytes.

The same tiles, sums and epilogue as linear_act's own kernel, in four steps; with bias and GELU in bf16 on an H200, in
TFLOP/s of one run:

                                                                          8192^3   4096^3   8192 x 4096 x 11008
    linear_act_kernel, tiles of 128 x 128                                    572      578      568
    tensor descriptors: the copy engine (TMA) fetches whole tiles into       705      700      682
        shared memory and checks the bounds; no registers spent on
        addresses and masks, so that tiles of 128 x 256 fit
    grouped order: tiles that run together form a block of the result,       756      714      741
        not a strip, and share x and W in L2
    persistent programs: one a multiprocessor walks over tiles, and the      774      734      771
        next tile's loads run under this tile's epilogue
    a shorter epilogue: GELU with one special instruction an element         778      741      779
        instead of two, and the bias loaded once a tile, coalesced
    cuBLAS and a GELU kernel                                                 748      686      704
    cuBLAS, linear and bias alone                                            793      762      783

Without an activation it is level with cuBLAS (789, 762 and 799). With it the tensor cores wait 1.2 us of the 46 that a
tile takes at 4096^3: the GELU's eight instructions an element keep a multiprocessor's four schedulers for 2048 cycles.

Rows of x and weight that begin elsewhere are copied first where the product is large: 1023 x 4097 x 4099 takes 75 us
then, 25 of them the copies, linear_act_kernel 352 and torch.compile, which copies too, 105; 777 x 300 x 5000 takes 23,
55 and 45 us.

Source: the order of tiles and the persistent loop after Triton's tutorials 03 and 09.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import activate
from kernels.arguments import cdiv, multiprocessors, shared_memory
from kernels.descriptors import ALIGNMENT, LARGE_TILES
from kernels.tiled.padded import pad

# Rows and columns of a tile, warps, microseconds of a round of one tile a multiprocessor at K = 4096 (H200, bf16).
TILES = (
    (128, 256, 8, 45.4),
    (256, 128, 8, 47.0),
    (128, 128, 8, 26.7),
    (64, 128, 4, 20.3),
    (64, 64, 4, 12.2),
)


@triton.jit
def grouped_order(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of the tile-th tile, GROUP rows of tiles at a time and column by column within them."""
    group = tile // (GROUP * tiles_n)
    rows = tl.minimum(tiles_m - group * GROUP, GROUP)
    within = tile % (GROUP * tiles_n)
    return group * GROUP + within % rows, within // rows


@triton.jit
def finish(
    acc, residual, y, s, row, col, m, n, ACT: tl.constexpr, PARTS: tl.constexpr, DESCRIBED: tl.constexpr
):  # fmt: skip
    """The epilogue, from fp32 sums in registers to memory, in PARTS side by side one after another."""
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
    residual,  # (m, n) in tiles of (BLOCK_M, BLOCK_N // PARTS), or None; not DESCRIBED a pointer, as the next two
    y,  # the same
    s,  # the same, or None where no backward pass will ask for it
    m,
    n,
    k,
    ACT: tl.constexpr,  # a name in kernels.activations, or None
    PRECISION: tl.constexpr,  # of products of fp32; "ieee" for 16 bits, where it says nothing
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PARTS: tl.constexpr,  # in which a tile leaves, by way of shared memory: with fewer there is no room for loads
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
            # For all parts at once: its way from memory is waited for once, and under the last product.
            at = col + tl.arange(0, BLOCK_N)
            acc += tl.load(bias_ptr + at, mask=at < n, other=0.0).to(tl.float32)[None, :]
        finish(acc, residual, y, s, row, col, m, n, ACT, PARTS, DESCRIBED)


@lru_cache(maxsize=1024)  # batches come in many sizes
def settings(
    m: int, n: int, dtype: torch.dtype, residual: bool = False, keep_sum: bool = False, multiprocessors: int = 132
) -> dict:
    """Tiles for an (m, n) result, with a residual read or the sum written beside it.

    Large tiles ask L2 for fewer bytes (128 x 256 for 3/4 of what 128 x 128 does), but multiprocessors take tiles in
    rounds, and a last round for a few tiles takes as long as a full one: the fastest are those of TILES whose rounds
    add up to the least time. A step of K is 128 bytes of a row, what the copy engine's swizzle spans; tiles of 64 rows,
    which wait for memory and not for tensor cores, take two. Stages of loads are as many as fit beside a part of the
    tile on its way out, up to four, for tiles of 64 rows up to six. A tile leaves in halves; in quarters where a second
    tensor needs registers that halves would spill, and for 4-byte elements. Rows of a result that are no multiple of 16
    bytes leave by address, which takes registers: in twice as many parts, and of large tiles one result alone. 16 rows
    of tiles make a group: 132 tiles of 128 x 256 are about a square then.
    """

    def time(tile: tuple) -> float:
        block_m, block_n, _, of_a_round = tile
        return cdiv(cdiv(m, block_m) * cdiv(n, block_n), multiprocessors) * of_a_round

    described = n * dtype.itemsize % ALIGNMENT == 0
    several = residual or keep_sum
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
        "GROUP": 16,
        "PARTS": parts,
        "DESCRIBED": described,
        "num_warps": warps,
        "num_stages": min(6 if small else 4, (LARGE_TILES - 1024 - passing) // stage),
    }


def operands(x, weight, bias, residual, y, s, chosen: dict) -> tuple:
    """The kernel's arguments for matrices in tiles of these settings; residual and s may be None."""
    tile_m, tile_n, tile_k = chosen["BLOCK_M"], chosen["BLOCK_N"], chosen["BLOCK_K"]
    part = [tile_m, tile_n // chosen["PARTS"]]
    describe = TensorDescriptor.from_tensor
    of_x, of_weight = describe(x, [tile_m, tile_k]), describe(weight, [tile_n, tile_k])
    results = residual, y, s
    if chosen["DESCRIBED"]:
        results = [None if each is None else describe(each, part) for each in results]
    return of_x, of_weight, bias, *results, x.shape[0], weight.shape[0], x.shape[1]


def worth_padding(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether linear_act_kernel takes longer for x and weight as they are than their copies do. Where rows begin
    between multiples of 16 bytes it took 0.042 us for each of K and a round of tiles; copies take 10 us, the second
    launch among them, and their bytes at 3.4 TB/s (H200, bf16)."""
    if not shared_memory(x) >= LARGE_TILES:
        return False
    (m, k), n = x.shape, weight.shape[0]
    rounds = cdiv(cdiv(m, 128) * cdiv(n, 128), multiprocessors(x))
    return 0.042 * rounds * k > 10 + 2 * (m + n) * k * x.itemsize / 3.4e6


def padded(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both with zeros after their columns, so that rows begin at multiples of 32 bytes."""
    k = cdiv(x.shape[1], 16) * 16
    pixels = (each.contiguous()[:, None, :, None] for each in (x, weight))
    return tuple(each.view(-1, k) for each in pad(*pixels, *((each.shape[0], 1, k, 1) for each in (x, weight))))


def launch(x, weight, bias, residual, y, s, act: str | None) -> None:
    """Write y, (m, n), and s where it is not None, for matrices that descriptors can tell of."""
    (m, n), programs = y.shape, multiprocessors(x)
    chosen = settings(m, n, x.dtype, residual is not None, s is not None, programs)
    if residual is not None and residual.data_ptr() % ALIGNMENT:
        chosen = chosen | {"DESCRIBED": False}
    grid = (min(programs, cdiv(m, chosen["BLOCK_M"]) * cdiv(n, chosen["BLOCK_N"])),)
    arguments = operands(x, weight, bias, residual, y, s, chosen)
    linear_act_descriptors_kernel[grid](*arguments, ACT=act, **chosen)


def compile_arguments(m: int, k: int, n: int, dtype: torch.dtype, bias: bool = True) -> tuple[tuple, dict]:
    """As FusedOp.compile_arguments."""
    chosen = settings(m, n, dtype)
    x, weight, y = (torch.empty(size, dtype=dtype, device="meta") for size in ((m, k), (n, k), (m, n)))
    return operands(x, weight, y[0] if bias else None, None, y, None, chosen), {"ACT": "gelu_tanh", **chosen}
