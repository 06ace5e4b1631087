"""A linear layer with its epilogue, y = act(x W^T + bias), grown step by step: the kernels that lesson 08 writes.

    one output      a program sums one element of y
    registers       a tile of y a program, its sums in registers; ordinary cores
    tiles           the same by tl.dot, on tensor cores; stages are its `num_stages`
    grouped         programs that run together make a block of tiles, not a strip
    descriptors     the copy engine (TMA) fetches the tiles
    persistent      one program an SM walks over tiles

and beside them, what fights an epilogue: `parts`, which splits the sums along K, and `whole_rows`, whose epilogue wants
a row of y at once. x (M, K), W (N, K) and y (M, N) lie row after row, of one 16-bit dtype; bias (N,).
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import activate
from kernels.arguments import multiprocessors
from kernels.tuned.linear_descriptors import grouped_order

EPS = tl.constexpr(1e-5)


@triton.jit
def load_tile(ptr, row, col, rows, cols):
    at = row.to(tl.int64)[:, None] * cols + col[None, :]
    return tl.load(ptr + at, mask=(row < rows)[:, None] & (col < cols)[None, :], other=0.0)


@triton.jit
def finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT: tl.constexpr):
    s = acc + tl.load(bias_ptr + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    y = activate(s, ACT, y_ptr.dtype.element_ty).to(y_ptr.dtype.element_ty)
    at = row.to(tl.int64)[:, None] * N + col[None, :]
    tl.store(y_ptr + at, y, mask=(row < M)[:, None] & (col < N)[None, :])


@triton.jit
def output_kernel(x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, ACT: tl.constexpr, BLOCK_K: tl.constexpr):
    row, col = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    products = tl.zeros((BLOCK_K,), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + row * K + k, mask=k < K, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + col * K + k, mask=k < K, other=0.0).to(tl.float32)
        products += x * w
    s = tl.sum(products) + tl.load(bias_ptr + col).to(tl.float32)
    tl.store(y_ptr + row * N + col, activate(s, ACT).to(y_ptr.dtype.element_ty))


@triton.jit
def registers_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, ACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(K):
        x = tl.load(x_ptr + row.to(tl.int64) * K + k, mask=row < M, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + col.to(tl.int64) * K + k, mask=col < N, other=0.0).to(tl.float32)
        acc += x[:, None] * w[None, :]
    finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT)


@triton.jit
def tiles_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K,
    ACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = load_tile(x_ptr, row, k, M, K)
        w = load_tile(w_ptr, col, k, N, K)
        acc = tl.dot(x, w.T, acc)
    finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT)


@triton.jit
def grouped_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = grouped_order(tl.program_id(0), tiles_m, tiles_n, GROUP)
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = load_tile(x_ptr, row, k, M, K)
        w = load_tile(w_ptr, col, k, N, K)
        acc = tl.dot(x, w.T, acc)
    finish(acc, bias_ptr, y_ptr, row, col, M, N, ACT)


@triton.jit
def one_tile(
    x_desc, w_desc, bias_ptr, y_desc, tile_m, tile_n, N, K,
    ACT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        x = x_desc.load([row, start])
        w = w_desc.load([col, start])
        acc = tl.dot(x, w.T, acc)
    at = col + tl.arange(0, BLOCK_N)
    s = acc + tl.load(bias_ptr + at, mask=at < N, other=0.0).to(tl.float32)[None, :]
    y_desc.store([row, col], activate(s, ACT, y_desc.dtype).to(y_desc.dtype))


@triton.jit
def descriptors_kernel(
    x_desc, w_desc, bias_ptr, y_desc, M, N, K, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = grouped_order(tl.program_id(0), tiles_m, tiles_n, GROUP)
    one_tile(x_desc, w_desc, bias_ptr, y_desc, tile_m, tile_n, N, K, ACT, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit
def persistent_kernel(
    x_desc, w_desc, bias_ptr, y_desc, M, N, K, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped_order(tile, tiles_m, tiles_n, GROUP)
        one_tile(x_desc, w_desc, bias_ptr, y_desc, tile_m, tile_n, N, K, ACT, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit
def parts_kernel(
    x_ptr, w_ptr, parts_ptr, M, N, K,
    SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(2)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(part * BLOCK_K, K, SPLIT * BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        acc = tl.dot(load_tile(x_ptr, row, k, M, K), load_tile(w_ptr, col, k, N, K).T, acc)
    at = (part * M + row).to(tl.int64)[:, None] * N + col[None, :]
    tl.store(parts_ptr + at, acc, mask=(row < M)[:, None] & (col < N)[None, :])


@triton.jit
def join_kernel(parts_ptr, bias_ptr, y_ptr, M, N, ACT: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(bias_ptr + col, mask=col < N, other=0.0).to(tl.float32)
    for part in tl.static_range(SPLIT):
        s += tl.load(parts_ptr + (part * M + row) * N + col, mask=col < N, other=0.0)
    y = activate(s, ACT, y_ptr.dtype.element_ty).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * N + col, y, mask=col < N)


@triton.jit
def whole_rows_kernel(
    x_desc, w_desc, gamma_ptr, beta_ptr, y_desc, K,
    COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M
    acc = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
    for start in range(0, K, BLOCK_K):
        acc = tl.dot(x_desc.load([row, start]), w_desc.load([0, start]).T, acc)
    away = acc - (tl.sum(acc, 1) / COLUMNS)[:, None]
    scale = tl.rsqrt(tl.sum(away * away, 1) / COLUMNS + EPS)
    col = tl.arange(0, COLUMNS)
    gamma, beta = tl.load(gamma_ptr + col).to(tl.float32), tl.load(beta_ptr + col).to(tl.float32)
    y_desc.store([row, 0], (away * scale[:, None] * gamma[None, :] + beta[None, :]).to(y_desc.dtype))


def grid_of(kernel, m: int, n: int, programs: int, settings: dict) -> tuple[int, ...]:
    """How many programs a step launches for an (m, n) result; `programs`: the most of a persistent kernel."""
    tiles = triton.cdiv(m, settings.get("BLOCK_M", 1)), triton.cdiv(n, settings.get("BLOCK_N", 1))
    if "GROUP" not in settings:
        return tiles
    # By name: lesson 08 writes the same kernel in a cell of its own.
    every = tiles[0] * tiles[1]
    return (min(programs, every),) if kernel.fn.__name__ == "persistent_kernel" else (every,)


def arguments(kernel, x, w, bias, y, settings: dict) -> tuple:
    """A step's arguments: matrices as they are, or described in tiles where its parameters are descriptors."""
    sizes = x.shape[0], w.shape[0], x.shape[1]
    if not kernel.arg_names[0].endswith("_desc"):
        return x, w, bias, y, *sizes
    tile_m, tile_n, tile_k = (settings[f"BLOCK_{name}"] for name in "MNK")
    describe = TensorDescriptor.from_tensor
    return describe(x, [tile_m, tile_k]), describe(w, [tile_n, tile_k]), bias, describe(y, [tile_m, tile_n]), *sizes


def run(kernel, x, w, bias, act: str = "gelu", **settings) -> torch.Tensor:
    """act(x w^T + bias) by one of the steps' kernels, with its blocks, warps and stages as `settings`."""
    y = torch.empty(x.shape[0], w.shape[0], dtype=x.dtype, device=x.device)
    grid = grid_of(kernel, *y.shape, multiprocessors(x), settings)
    kernel[grid](*arguments(kernel, x, w, bias, y, settings), ACT=act, **settings)
    return y


WIDE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8}
WIDER = WIDE | {"BLOCK_N": 256}
# Step -> its kernel and settings, in the order of the lesson.
STEPS = {
    "one output a program": (output_kernel, {"BLOCK_K": 512, "num_warps": 4}),
    "a tile in registers": (registers_kernel, {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}),
    "tensor cores": (tiles_kernel, WIDE | {"num_stages": 1}),
    "two stages": (tiles_kernel, WIDE | {"num_stages": 2}),
    "three stages": (tiles_kernel, WIDE | {"num_stages": 3}),
    "grouped tiles": (grouped_kernel, WIDE | {"num_stages": 3, "GROUP": 16}),
    "descriptors": (descriptors_kernel, WIDE | {"num_stages": 3, "GROUP": 16}),
    "tiles of 128 x 256": (descriptors_kernel, WIDER | {"num_stages": 3, "GROUP": 16}),
    "persistent": (persistent_kernel, WIDER | {"num_stages": 3, "GROUP": 16}),
}
# For a few rows: tiles no taller than they are, and a step of K that is long, since nothing is used twice.
FEW_ROWS = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 256, "num_warps": 4, "num_stages": 4}
# Rows of whole_rows_kernel's tile and columns -> its settings: what fits into an SM's registers and shared memory.
WHOLE_ROWS = {
    1024: {"BLOCK_M": 32, "BLOCK_K": 32, "num_warps": 16, "num_stages": 3},
    512: {"BLOCK_M": 64, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3},
}


def split(x, w, bias, parts: int, act: str = "gelu", **settings) -> torch.Tensor:
    """act(x w^T + bias) in two launches: `parts` sums of every element, then their sum and the epilogue."""
    m, n, k = x.shape[0], w.shape[0], x.shape[1]
    sums = torch.empty(parts, m, n, device=x.device)
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(m, settings["BLOCK_M"]), triton.cdiv(n, settings["BLOCK_N"])
    parts_kernel[(*tiles, parts)](x, w, sums, m, n, k, SPLIT=parts, **settings)
    join_kernel[m, triton.cdiv(n, 1024)](sums, bias, y, m, n, ACT=act, SPLIT=parts, BLOCK=1024)
    return y


def linear_layer_norm(x, w, gamma, beta, **settings) -> torch.Tensor:
    """LayerNorm(x w^T) in one launch: a program sums whole rows of the result. M is a multiple of BLOCK_M, N a power of
    two."""
    y = torch.empty(x.shape[0], w.shape[0], dtype=x.dtype, device=x.device)
    tile_m, tile_k, columns = settings["BLOCK_M"], settings["BLOCK_K"], w.shape[0]
    describe = TensorDescriptor.from_tensor
    described = describe(x, [tile_m, tile_k]), describe(w, [columns, tile_k])
    grid = (triton.cdiv(len(x), tile_m),)
    whole_rows_kernel[grid](
        *described, gamma, beta, describe(y, [tile_m, columns]), x.shape[1], COLUMNS=columns, **settings
    )
    return y
