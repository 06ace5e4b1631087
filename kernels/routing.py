"""Route tokens to their experts and back: each token's top k experts, each expert's tokens, the weighted sum.

    route      ranks each token's experts by their logits; writes ranks and the chosen logits
    gather     one program per expert lists its tokens; no atomics, so that the order is always the same
    combine    each token's k rows of the experts' results, weighted and summed in the order of their ranks

Nothing returns to the host, so a CUDA graph can capture it.

Source: Shazeer et al., arXiv:1701.06538 (top-k gating); Jiang et al., arXiv:2401.04088 (softmax over the chosen
logits).
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import FLOATS, cdiv, check_alike, check_option, next_power_of_2


@triton.jit
def is_ahead(theirs, their_expert, mine, my_expert):
    """Return whether their logit ranks before mine. NaN ranks first, so that its token cannot miss it; ties go to the
    first."""
    theirs = tl.where(theirs != theirs, float("inf"), theirs)
    mine = tl.where(mine != mine, float("inf"), mine)
    return (theirs > mine) | ((theirs == mine) & (their_expert < my_expert))


@triton.jit
def rank_experts(logits, expert, experts, TOP_K: tl.constexpr):
    """Return each expert's rank by its logit, ties in order, capped at TOP_K. All (tokens,
    BLOCK_EXPERTS)."""
    value = tl.where(logits != logits, float("inf"), logits + 0.0)  # NaN first, so that its token cannot miss it
    bits = value.to(tl.int32, bitcast=True)
    # Integers that sort like the floats, with the expert's number in the low bits, so that no two are equal.
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) * 65536 + (65535 - expert)
    least = -0x8000000000000000
    key = tl.where(expert < experts, key, least)
    rank = tl.full(key.shape, TOP_K, tl.int32)
    for i in tl.static_range(TOP_K):
        first = key == tl.max(key, axis=1, keep_dims=True)
        rank = tl.where(first, i, rank)
        key = tl.where(first, least, key)
    return rank


@triton.jit
def softmax(logits):
    e = tl.exp(logits - tl.max(logits, axis=0))
    return e / tl.sum(e, axis=0)


@triton.jit
def route_kernel(
    logits_ptr,  # (tokens, experts), any row stride, unit column stride
    rank_ptr,  # (experts, tokens), int16: the expert's rank for the token, TOP_K where it was not chosen
    chosen_ptr,  # (tokens, TOP_K), fp32: the logits of the chosen experts
    tokens,
    experts,
    logits_row_stride,
    TOP_K: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)[:, None]
    expert = tl.arange(0, BLOCK_EXPERTS)[None, :]
    inside = (token < tokens) & (expert < experts)
    logits = tl.load(logits_ptr + token * logits_row_stride + expert, mask=inside, other=-float("inf")).to(tl.float32)
    rank = rank_experts(logits, expert, experts, TOP_K)
    tl.store(rank_ptr + expert.to(tl.int64) * tokens + token, rank.to(tl.int16), mask=inside)
    tl.store(chosen_ptr + token * TOP_K + rank, logits, mask=inside & (rank < TOP_K))


@triton.jit
def gather_kernel(
    rank_ptr,  # (experts, tokens), int16
    entry_ptr,  # (experts, tokens), int32: the first count[e] of row e are token * TOP_K + rank of its tokens
    count_ptr,  # (experts,), int32
    tokens,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * tokens
    count = 0
    for start in range(0, tokens, BLOCK):
        token = start + tl.arange(0, BLOCK)
        rank = tl.load(rank_ptr + row + token, mask=token < tokens, other=TOP_K).to(tl.int32)
        chosen = (rank < TOP_K).to(tl.int32)
        place = count + tl.cumsum(chosen, axis=0) - chosen
        tl.store(entry_ptr + row + place, token * TOP_K + rank, mask=rank < TOP_K)
        count += tl.sum(chosen, axis=0)
    tl.store(count_ptr + tl.program_id(0), count)


@triton.jit
def combine_kernel(
    h_ptr,  # (tokens, TOP_K, out_cols), contiguous
    chosen_ptr,  # (tokens, TOP_K), fp32: the logits of the chosen experts
    y_ptr,  # (tokens, out_cols), contiguous
    out_cols,
    TOP_K: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, BLOCK_SLOTS)
    out = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, :]
    inside = (slot < TOP_K)[:, None] & (out < out_cols)
    gate = softmax(tl.load(chosen_ptr + token * TOP_K + slot, mask=slot < TOP_K, other=-float("inf")))
    h = tl.load(h_ptr + (token * TOP_K + slot)[:, None] * out_cols + out, mask=inside, other=0.0).to(tl.float32)
    y = tl.sum(h * gate[:, None], axis=0)[None, :]
    tl.store(y_ptr + token * out_cols + out, y.to(y_ptr.dtype.element_ty), mask=out < out_cols)


def routed(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each expert's entries, their count, and the logits of each token's chosen experts."""
    tokens, experts = logits.shape
    rank = torch.empty(experts, tokens, dtype=torch.int16, device=logits.device)
    entries = torch.empty(experts, tokens, dtype=torch.int32, device=logits.device)
    count = torch.empty(experts, dtype=torch.int32, device=logits.device)
    picked = torch.empty(tokens, top_k, dtype=torch.float32, device=logits.device)
    block_experts = next_power_of_2(experts)
    blocks = {"BLOCK_TOKENS": max(1, 1024 // block_experts), "BLOCK_EXPERTS": block_experts}
    grid = (cdiv(tokens, blocks["BLOCK_TOKENS"]),)
    route_kernel[grid](logits, rank, picked, tokens, experts, logits.stride(0), TOP_K=top_k, **blocks)
    block = min(4096, next_power_of_2(tokens))
    gather_kernel[(experts,)](rank, entries, count, tokens, TOP_K=top_k, BLOCK=block, num_warps=8)
    return entries, count, picked


def combine(h: torch.Tensor, picked: torch.Tensor, y: torch.Tensor) -> None:
    """Fill y, (tokens, out_cols), with the sum of each token's rows of h, weighted by the softmax of its logits,
    `picked`."""
    tokens, top_k = picked.shape
    slots, block = next_power_of_2(top_k), min(1024, next_power_of_2(h.shape[1]))
    grid = tokens, cdiv(h.shape[1], block)
    combine_kernel[grid](h, picked, y, h.shape[1], TOP_K=top_k, BLOCK_SLOTS=slots, BLOCK_OUT=block)


def check_experts(operation: str, x, logits, weight, scale, top_k: int) -> None:
    """Check the arguments of a mixture-of-experts layer with int8 weights.

    Raises:
        TypeError: an argument is not a tensor of a supported dtype.
        ValueError: shapes do not match, top_k is out of range, devices differ, or tensors are on the CPU while kernels
            run on a GPU.
    """
    check_alike(operation, (torch.float32, torch.float16, torch.bfloat16), x=x)
    check_alike(operation, FLOATS, logits=logits)
    check_alike(operation, (torch.int8,), weight=weight)
    check_alike(operation, FLOATS, scale=scale)
    shapes = tuple(tuple(tensor.shape) for tensor in (x, logits, weight, scale))
    fit = x.dim() > 0 and logits.dim() == x.dim() and weight.dim() == 3 and scale.shape == weight.shape[:2]
    if not fit or logits.shape != (*x.shape[:-1], len(weight)) or x.shape[-1] != weight.shape[2] or 0 in weight.shape:
        raise ValueError(
            f"{operation} takes x (..., cols), logits (..., experts), weight (experts, out_cols, cols) and scale "
            f"(experts, out_cols), got {', '.join(map(str, shapes))}: give them the same sizes, at least one each"
        )
    check_option(operation, "top_k", top_k, int)
    if not 1 <= top_k <= len(weight):
        raise ValueError(f"{operation} takes top_k of 1 to {len(weight)}, the number of experts, got {top_k}")
    if len({tensor.device for tensor in (x, logits, weight, scale)}) > 1:
        raise ValueError(f"{operation} takes tensors on one device, got several: move them with .to(x.device)")
