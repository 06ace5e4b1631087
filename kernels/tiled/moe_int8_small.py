"""moe_int8 for 9 to SMALL tokens in two launches, this one and the sum over experts.

A program owns outputs of one expert and ranks the experts for all tokens by itself, which with so few costs less than
launches that do it once. On an H200, bf16, 64 experts of 2048 x 768, top 8: 35 us for 9 tokens, 38 for 32 and 36 for
64, in four launches 48, 56 and 53. At 128 tokens it no longer pays.
"""

from functools import lru_cache
from math import gcd

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import activate
from kernels.arguments import cdiv, next_power_of_2
from kernels.int8 import FACTOR, UNIT, in_units
from kernels.routing import combine, is_ahead

SMALL = 64


@triton.jit
def moe_int8_small_kernel(
    x_ptr,  # (tokens, cols), any row stride, unit column stride
    logits_ptr,  # (tokens, experts), the same
    weight_desc,  # (experts, out_cols, cols), int8, in blocks of (1, BLOCK_OUT, BLOCK_IN)
    scale_ptr,  # (experts, out_cols), contiguous
    h_ptr,  # (tokens * TOP_K, out_cols), contiguous
    chosen_ptr,  # (tokens, TOP_K), fp32: the logits of the chosen experts
    tokens,
    experts,
    cols,  # a multiple of BLOCK_IN
    out_cols,
    x_row_stride,
    logits_row_stride,
    TOP_K: tl.constexpr,
    ACT: tl.constexpr,
    ALL_TOKENS: tl.constexpr,  # a power of two, at least tokens
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    FACTOR: tl.constexpr,
    UNIT: tl.constexpr,
):
    expert = tl.program_id(1)
    first_out = tl.program_id(0) * BLOCK_OUT
    out = first_out + tl.arange(0, BLOCK_OUT)
    token = tl.arange(0, ALL_TOKENS)
    logits_row = logits_ptr + token.to(tl.int64) * logits_row_stride
    mine = tl.load(logits_row + expert, mask=token < tokens, other=0.0).to(tl.float32)
    rank = tl.zeros((ALL_TOKENS,), tl.int32)
    for start in range(0, experts, BLOCK_EXPERTS):
        e = start + tl.arange(0, BLOCK_EXPERTS)[None, :]
        here = (token < tokens)[:, None] & (e < experts)
        theirs = tl.load(logits_row[:, None] + e, mask=here, other=-float("inf")).to(tl.float32)
        rank += tl.sum(is_ahead(theirs, e, mine[:, None], expert).to(tl.int32), axis=1)
    chosen = (rank < TOP_K) & (token < tokens)
    entry_of = token * TOP_K + rank
    tl.store(chosen_ptr + entry_of, mine, mask=chosen & (first_out == 0))
    place = tl.where(chosen, tl.cumsum(chosen.to(tl.int32), axis=0), 0) - 1
    count = tl.sum(chosen.to(tl.int32), axis=0)
    for first in range(0, count, BLOCK_TOKENS):
        slot = first + tl.arange(0, BLOCK_TOKENS)
        entry = tl.sum(tl.where(place[None, :] == slot[:, None], entry_of[None, :], 0), axis=1)
        x_tile = x_ptr + (entry // TOP_K).to(tl.int64)[:, None] * x_row_stride + tl.arange(0, BLOCK_IN)[None, :]
        acc = tl.zeros((BLOCK_TOKENS, BLOCK_OUT), tl.float32)
        for start in range(0, cols, BLOCK_IN):
            weight = weight_desc.load([expert, first_out, start]).reshape(BLOCK_OUT, BLOCK_IN)
            x = tl.load(x_tile)
            acc = tl.dot(x, in_units(weight, x.dtype, FACTOR, UNIT).T, acc, input_precision="ieee")
            x_tile += BLOCK_IN
        scale = tl.load(scale_ptr + expert.to(tl.int64) * out_cols + out, mask=out < out_cols, other=0.0)
        h = activate(acc * (scale.to(tl.float32) / UNIT)[None, :], ACT, h_ptr.dtype.element_ty)
        h_tile = h_ptr + entry.to(tl.int64)[:, None] * out_cols + out[None, :]
        tl.store(h_tile, h.to(h_ptr.dtype.element_ty), mask=(slot < count)[:, None] & (out < out_cols)[None, :])


@lru_cache(maxsize=1024)  # batches come in many sizes
def small_settings(tokens: int, experts: int, top_k: int, cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of moe_int8_small_kernel: as many tokens a tile as an expert has on average."""
    mean = cdiv(tokens * top_k, experts)
    chosen = {
        "ALL_TOKENS": next_power_of_2(tokens),
        "BLOCK_EXPERTS": min(64, next_power_of_2(experts)),
        "BLOCK_TOKENS": min(64, max(16, next_power_of_2(mean))),
        "BLOCK_OUT": 128,
        "BLOCK_IN": gcd(cols, 128),
        "FACTOR": FACTOR[dtype],
        "UNIT": UNIT[dtype],
        "num_warps": 4,
        "num_stages": 3,
    }
    if dtype == torch.float32:  # no tensor cores: small tiles, so that the products fit in registers
        return chosen | {"BLOCK_TOKENS": 16, "BLOCK_OUT": 32, "BLOCK_IN": gcd(cols, 32), "num_stages": 2}
    return chosen


def small_arguments(x, logits, weight, scale, h, picked, top_k: int, act: str) -> tuple[tuple, dict]:
    """The kernel's arguments and options; x and logits are rows."""
    experts, out_cols, cols = weight.shape
    chosen = small_settings(len(x), experts, top_k, cols, x.dtype)
    described = TensorDescriptor.from_tensor(weight, [1, chosen["BLOCK_OUT"], chosen["BLOCK_IN"]])
    sizes = len(x), experts, cols, out_cols, x.stride(0), logits.stride(0)
    return (x, logits, described, scale, h, picked, *sizes), {"TOP_K": top_k, "ACT": act, **chosen}


def launch_small(x, logits, weight, scale, top_k: int, act: str, y: torch.Tensor) -> None:
    """Fill y; x and logits are rows."""
    experts, out_cols, _ = weight.shape
    h = torch.empty(len(x) * top_k, out_cols, dtype=x.dtype, device=x.device)
    picked = torch.empty(len(x), top_k, dtype=torch.float32, device=x.device)
    arguments, options = small_arguments(x, logits, weight, scale, h, picked, top_k, act)
    moe_int8_small_kernel[cdiv(out_cols, options["BLOCK_OUT"]), experts](*arguments, **options)
    combine(h, picked, y)
