"""Compute ffn's gated hidden values in 16 bits with tensor descriptors, on compute capability 9.0 and 10.0.

    h = act(x gate^T) * x up^T

Rows of x, gate, up and h must start at multiples of 16 bytes. The kernel is linear_descriptors.py's, persistent
programs in grouped order, with two accumulators per tile. With one matmul that is 1.28x to 1.37x faster than a kernel
that computes addresses (linear_descriptors.py). The two gated kernels have not been timed side by side.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import activate
from kernels.arguments import cdiv, multiprocessors, shared_memory
from kernels.descriptors import ALIGNMENT, LARGE_TILES, described_rows
from kernels.tiled.ffn import run
from kernels.tuned import linear_descriptors
from kernels.tuned.linear_descriptors import grouped_order
from kernels.variants import tuned


@triton.jit
def gated_kernel(
    x_desc,  # (m, k) in tiles of (BLOCK_M, BLOCK_K)
    gate_desc,  # (n, k) in tiles of (BLOCK_N, BLOCK_K)
    up_desc,  # the same
    h_desc,  # (m, n) in tiles of (BLOCK_M, BLOCK_N)
    g_desc,  # the same: x gate^T, kept for the backward pass, or None
    u_desc,  # the same: x up^T, or None
    m,
    n,
    k,
    ACT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        tile_m, tile_n = grouped_order(tile, tiles_m, tiles_n, GROUP)
        row, col = tile_m * BLOCK_M, tile_n * BLOCK_N
        g = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        u = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(k, BLOCK_K)):
            x = x_desc.load([row, step * BLOCK_K])
            g = tl.dot(x, gate_desc.load([col, step * BLOCK_K]).T, g)
            u = tl.dot(x, up_desc.load([col, step * BLOCK_K]).T, u)
        h_desc.store([row, col], (activate(g, ACT, h_desc.dtype) * u).to(h_desc.dtype))
        if g_desc is not None:
            g_desc.store([row, col], g.to(g_desc.dtype))
            u_desc.store([row, col], u.to(u_desc.dtype))


def settings(m: int, n: int, multiprocessors: int = 132) -> dict:
    """Return launch settings. Two accumulators of 128 x 128 take as many registers and bytes as linear_act's 128 x
    256."""
    size = 128 if 4 * cdiv(m, 128) * cdiv(n, 128) >= 3 * multiprocessors else 64
    tile = {"BLOCK_M": size, "BLOCK_N": size, "BLOCK_K": 64, "GROUP": 16}
    return {**tile, "num_warps": size // 16, "num_stages": 4}


def operands(x, gate, up, h, g, u, chosen: dict) -> tuple:
    tile_m, tile_n, tile_k = chosen["BLOCK_M"], chosen["BLOCK_N"], chosen["BLOCK_K"]
    describe = TensorDescriptor.from_tensor
    operands = describe(x, [tile_m, tile_k]), describe(gate, [tile_n, tile_k]), describe(up, [tile_n, tile_k])
    results = [None if each is None else describe(each, [tile_m, tile_n]) for each in (h, g, u)]
    return *operands, *results, x.shape[0], gate.shape[0], x.shape[1]


def _launch(x, gate, up, h, g, u, act: str) -> None:
    (m, n), programs = h.shape, multiprocessors(x)
    chosen = settings(m, n, programs)
    grid = (min(programs, cdiv(m, chosen["BLOCK_M"]) * cdiv(n, chosen["BLOCK_N"])),)
    gated_kernel[grid](*operands(x, gate, up, h, g, u, chosen), ACT=act, **chosen)


def takes(x: Tensor, gate: Tensor, up: Tensor, act: str) -> bool:
    """Return whether the kernel takes the call."""
    n = gate.shape[0]
    whole = x.itemsize == 2 and n > 0 and n * x.itemsize % ALIGNMENT == 0 and x.numel() > 0
    return whole and all(map(described_rows, (x, gate, up))) and shared_memory(x) >= LARGE_TILES


def compile_arguments(tokens: int, width: int, hidden: int, gated: bool = False, *, dtype: torch.dtype):
    """Return compile arguments as kernels.variants.Tuned defines them."""
    if not gated:
        return linear_descriptors.compile_arguments(tokens, width, hidden, dtype=dtype, bias=False)
    if dtype.itemsize != 2 or width % 8 or hidden % 8:
        return None
    chosen = settings(tokens, hidden)
    sizes = (tokens, width), (hidden, width), (tokens, hidden)
    x, weight, h = (torch.empty(size, dtype=dtype, device="meta") for size in sizes)
    arguments = operands(x, weight, weight, h, None, None, chosen)
    return gated_kernel, arguments, {"ACT": "gelu_tanh", **chosen}


GAIN = "1.37x for one of its products, 8192 x 4096 x 11008 (H200, bf16); not timed as a whole"


@tuned("ffn", "forward", takes=takes, gain=GAIN, compile_arguments=compile_arguments)
def _forward(*arguments) -> Tensor:
    return run(*arguments, keep_products=False, launch=_launch)[0]


@tuned("ffn", "training", takes=takes, gain=GAIN)
def _training(*arguments) -> tuple[Tensor, Tensor, Tensor]:
    return run(*arguments, keep_products=True, launch=_launch)
