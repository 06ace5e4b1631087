"""A feed-forward layer in one launch, which kernels/tiled/ffn.py rejects: y = gelu(x up^T) down^T.

A program owns BLOCK_H hidden values of BLOCK_M tokens. It computes them, keeps them in registers, multiplies them with
their columns of `down` and adds the products to every output of those tokens, in fp32 and in memory, where as many
programs add as there are blocks of hidden values. h never goes to memory; hidden / BLOCK_H parts of y do.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from helpers.instruments.timing import Timing, benchmark_together
from kernels.activations import activate
from kernels.tiled.ffn import ffn, ffn_reference

SHAPE = (8192, 4096, 11008)  # tokens, width, hidden: kernels.tiled.ffn's benchmark
BLOCK = 128  # tokens, hidden values and outputs of a tile: what leaves registers for both sums


@triton.jit
def ffn_one_launch_kernel(
    x_desc,  # (tokens, width) in tiles of (BLOCK_M, BLOCK_K)
    up_desc,  # (hidden, width) in tiles of (BLOCK_H, BLOCK_K)
    down_desc,  # (width, hidden) in tiles of (BLOCK_N, BLOCK_H)
    y_ptr,  # (tokens, width), fp32, zeros at first
    tokens,
    width,
    hidden,
    BLOCK_M: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    blocks = tl.cdiv(hidden, BLOCK_H)
    first = tl.program_id(0) // blocks * BLOCK_M
    at = tl.program_id(0) % blocks * BLOCK_H
    s = tl.zeros((BLOCK_M, BLOCK_H), tl.float32)
    for step in range(tl.cdiv(width, BLOCK_K)):
        s = tl.dot(x_desc.load([first, step * BLOCK_K]), up_desc.load([at, step * BLOCK_K]).T, s)
    h = activate(s, "gelu_tanh").to(x_desc.dtype)
    row = first.to(tl.int64) + tl.arange(0, BLOCK_M)[:, None]
    for start in range(0, width, BLOCK_N):
        part = tl.dot(h, down_desc.load([start, at]).T)
        col = start + tl.arange(0, BLOCK_N)[None, :]
        tl.atomic_add(y_ptr + row * width + col, part, mask=(row < tokens) & (col < width), sem="relaxed")


def ffn_one_launch(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """gelu(x up^T) down^T for contiguous 16-bit matrices: (tokens, width), (hidden, width), (width, hidden) -> (tokens,
    width) in fp32, the order of its additions left to chance."""
    (tokens, width), hidden = x.shape, up.shape[0]
    y = torch.zeros(tokens, width, device=x.device)
    of_x, of_up = (TensorDescriptor.from_tensor(each, [BLOCK, 64]) for each in (x, up))
    of_down = TensorDescriptor.from_tensor(down, [BLOCK, BLOCK])
    tiles = {"BLOCK_M": BLOCK, "BLOCK_H": BLOCK, "BLOCK_N": BLOCK, "BLOCK_K": 64}
    grid = (triton.cdiv(tokens, BLOCK) * triton.cdiv(hidden, BLOCK),)
    ffn_one_launch_kernel[grid](of_x, of_up, of_down, y, tokens, width, hidden, **tiles, num_warps=8, num_stages=3)
    return y


def measure() -> dict[str, Timing]:
    """The layer in one launch, in two, and by torch.compile, timed together on a GPU, bf16."""
    tokens, width, hidden = SHAPE
    shapes = (tokens, width), (hidden, width), (width, hidden)
    x, up, down = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) / shape[1] ** 0.5 for shape in shapes)
    compiled = torch.compile(ffn_reference, dynamic=False)
    with torch.no_grad():
        return benchmark_together(
            {
                "one launch": lambda: ffn_one_launch(x, up, down),
                "two launches": lambda: ffn(x, up, down),
                "torch.compile": lambda: compiled(x, up, down),
            },
            runs=20,
        )
