"""moe_int8 for up to FEW tokens in one launch, and for weights that no descriptor takes, however many tokens there are.

A program finds its token's experts by itself and reads some rows of all k, so that neither their list nor the sum over
experts leaves its registers: no other launch is waited for. Each token reads its experts' weights for itself.

On an H200, bf16, 64 experts of 2048 x 768, top 8: 8.9 us for one token, where finding the experts in a launch of its
own took 11.6.
"""

import torch
import triton
import triton.language as tl

from kernels.activations import activate
from kernels.arguments import cdiv, next_power_of_2
from kernels.routing import is_ahead, softmax

FEW = 8


@triton.jit
def moe_int8_few_kernel(
    x_ptr,  # (tokens, cols), any row stride, unit column stride
    logits_ptr,  # (tokens, experts), the same
    weight_ptr,  # (experts, out_cols, cols), int8, contiguous
    scale_ptr,  # (experts, out_cols), contiguous
    y_ptr,  # (tokens, out_cols), contiguous
    experts,
    cols,
    out_cols,
    x_row_stride,
    logits_row_stride,
    TOP_K: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,  # a power of two, at least experts
    BLOCK_SLOTS: tl.constexpr,  # a power of two, at least TOP_K
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    # int64 before the multiplications: offsets pass 2**31 on large tensors.
    token = tl.program_id(1).to(tl.int64)
    logits_row = logits_ptr + token * logits_row_stride
    e = tl.arange(0, BLOCK_EXPERTS)
    logits = tl.load(logits_row + e, mask=e < experts, other=-float("inf")).to(tl.float32)
    rank = tl.sum(is_ahead(logits[:, None], e[:, None], logits[None, :], e[None, :]).to(tl.int32), axis=0)
    slot = tl.arange(0, BLOCK_SLOTS)
    expert = tl.sum(tl.where(rank[None, :] == slot[:, None], e[None, :], 0), axis=1)
    # The rows of all k experts that make this program's outputs, one below the other.
    ROWS: tl.constexpr = BLOCK_SLOTS * BLOCK_OUT
    out = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, :]
    row = (expert[:, None].to(tl.int64) * out_cols + out).reshape(ROWS)
    inside = ((slot < TOP_K)[:, None] & (out < out_cols)).reshape(ROWS)
    scale = tl.load(scale_ptr + row, mask=inside, other=0.0).to(tl.float32)
    acc = tl.zeros((ROWS,), tl.float32)
    for start in range(0, cols, BLOCK_IN):
        col = start + tl.arange(0, BLOCK_IN)[None, :]
        x = tl.load(x_ptr + token * x_row_stride + col, mask=col < cols, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + row[:, None] * cols + col, mask=inside[:, None] & (col < cols), other=0)
        # 2**23 + 128 + weight, made of bits: a conversion instruction takes eight times as long.
        biased = (weight.to(tl.uint8, bitcast=True).to(tl.int32) ^ 0x4B000080).to(tl.float32, bitcast=True)
        acc += tl.sum((biased - 8388736.0) * x, axis=1)
    h = activate(acc * scale, ACT).reshape(BLOCK_SLOTS, BLOCK_OUT)
    used = slot < TOP_K
    gate = softmax(tl.load(logits_row + expert, mask=used, other=-float("inf")).to(tl.float32))
    y = tl.sum(tl.where(used[:, None], h * gate[:, None], 0.0), axis=0)[None, :]
    tl.store(y_ptr + token * out_cols + out, y.to(y_ptr.dtype.element_ty), mask=out < out_cols)


def few_settings(tokens: int, experts: int, top_k: int, cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of moe_int8_few_kernel: rows of 2048 weights in pieces, so that loads are always under way; few
    outputs a program where there are few programs."""
    block_out = min(8, 2 * next_power_of_2(tokens))
    return {
        "BLOCK_EXPERTS": next_power_of_2(experts),
        "BLOCK_SLOTS": next_power_of_2(top_k),
        "BLOCK_OUT": block_out,
        "BLOCK_IN": min(2048 // block_out, next_power_of_2(cols)),
        "num_warps": 4,
        "num_stages": 2 if tokens == 1 else 3,
    }


def few_arguments(x, logits, weight, scale, y, top_k: int, act: str) -> tuple[tuple, dict]:
    """The kernel's arguments and options; x and logits are rows."""
    experts, out_cols, cols = weight.shape
    sizes = experts, cols, out_cols, x.stride(0), logits.stride(0)
    chosen = few_settings(len(x), experts, top_k, cols, x.dtype)
    return (x, logits, weight, scale, y, *sizes), {"TOP_K": top_k, "ACT": act, **chosen}


def launch_few(x, logits, weight, scale, top_k: int, act: str, y: torch.Tensor) -> None:
    """Fill y; x and logits are rows."""
    arguments, options = few_arguments(x, logits, weight, scale, y, top_k, act)
    moe_int8_few_kernel[cdiv(weight.shape[1], options["BLOCK_OUT"]), len(x)](*arguments, **options)
