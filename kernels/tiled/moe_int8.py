"""A layer of experts with int8 weights: each token goes through its top k of them, and their outputs are summed.

    y[t] = sum over the k experts e of token t of  gate[t, e] * act(scale[e] * (weight[e] x[t]))

The k experts are those of the largest logits, and the gates the softmax of these k logits. An expert is one linear
layer, without a bias, and the activation after it; its weights are int8 with one scale an output. (A transformer's
experts have a second linear layer before the sum; it is routed and gathered the same way.)

    unfused   an expert at a time: read its int8 weights, write them in 16 bits, read them; gather its tokens,
              linear, activation, product with the gates, sum into y; some ten launches an expert
    fused     int8 weights go to registers, become 16-bit floats there, exactly, and feed the tensor cores

What bounds it is the bytes of weights as long as an expert has few tokens: 64 experts of 2048 x 768 are 101 MB, 23 us
of an H200, which at 64 tokens is 8 tokens an expert. In 16 bits they would be twice that, and dequantised in a kernel
of its own, five times. One scale an output comes off the sum: acc * scale, in fp32, is one product an output where
dequantising takes one a weight.

On an H200 in bf16, 64 experts of 2048 x 768, top 8, launch gaps excluded, with the share of what the bytes (at 4.40
TB/s) or the arithmetic (at cuBLAS's 789 TFLOP/s) allow:

    tokens               1      2      4      8      16     64     512    8192
    microseconds         8.9    13.0   18.9   31.7   38.1   37.2   80     500
    share, per cent      32     44     60     72     61     62     29     52
    in PyTorch           1240                 5280          8400   8610   8960    an expert at a time, as below
    grouped matmul       583                  621           670    716    1730    all weights dequantised beforehand

(At 64 tokens a tile has room for 16 of an expert's, who gets 8 on average. Where the fullest has more, as in one
routing of eight, it reads its weights twice: 42.6 us, 54 per cent. Two tiles side by side would need registers of all
programs that few use.)

One token's 12.6 MB would take 3 us. An empty launch takes 2.6 and one that finds the experts 4.1; reading begins when
they are known. At 8192 tokens the experts take 456 us, the tensor cores busy for half of it, the sums over experts,
113 MB, 28, and the routing 13. Weights go from shared memory to registers, become floats there and are multiplied from
there; written back to shared memory, as the right matrix of a product must be, they take 510 us, or 492 with Triton's
own conversion. Tiles of 256 outputs or tokens, which read less but have a multiprocessor to themselves, take 538 to
590; weights read two at a time, for an x with even columns first, 474. All weights made floats beforehand take 75 us
and then 356, which 201 MB of memory for 5 per cent are not worth; with more tokens they would be.

Few tokens take one launch: a program finds the token's experts and reads some rows of all k, so that the sum over
experts never leaves its registers. A few more take two, and many four:

    route      many tokens only: ranks each token's experts; writes ranks and the logits of the chosen
    gather     many tokens only: one program an expert lists its tokens; no atomics, so that the order is always the
               same
    experts    one program a tile of an expert's outputs and tokens, which it gathers from x; writes h, one row for each
               token and expert. With few tokens a program finds those of its expert by itself. With many, no program
               knows beforehand how many tiles there are: the grid is for the worst case, and what is left over ends at
               once
    combine    each token's k rows of h, weighted and summed in the order of their ranks

Nothing comes back to the host, so that a CUDA graph can hold it.

Source: Shazeer et al., arXiv:1701.06538 (top-k gating); Jiang et al., arXiv:2401.04088 (softmax over the chosen
logits); Dettmers et al., arXiv:2208.07339 (int8 weights, one scale a row).
"""

from functools import lru_cache
from math import gcd

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import ACTIVATIONS, activate, check_activation
from kernels.arguments import FLOATS, as_rows, check_alike
from kernels.fused_op import FusedOp, Work
from kernels.sizes import cdiv, next_power_of_2

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FEW = 8  # tokens for which one launch is fastest
SMALL = 64  # tokens for which two are
# A byte u in the low bits of a 16-bit float is a denormal number, u times the smallest there is. Times a power of 2,
# less 128 units, it is the int8 weight u - 128 in units: one multiply-add, exact, for two weights at a time.
FACTOR = {torch.bfloat16: 2.0**127, torch.float16: 2.0**15, torch.float32: 1.0}
UNIT = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 1.0}


@triton.jit
def in_units(weight, dtype: tl.constexpr, FACTOR: tl.constexpr, UNIT: tl.constexpr):
    """int8 weights times UNIT in a dtype of tensor cores, exactly."""
    if dtype == tl.float32:
        made = weight.to(dtype)
    else:
        byte = (weight.to(tl.int16) & 0xFF) ^ 0x80
        made = byte.to(dtype, bitcast=True) * FACTOR - 128 * UNIT
    return made


@triton.jit
def is_ahead(theirs, their_expert, mine, my_expert):
    """Whether their logit ranks before mine: NaN first, so that its token cannot miss it; of equals the first."""
    theirs = tl.where(theirs != theirs, float("inf"), theirs)
    mine = tl.where(mine != mine, float("inf"), mine)
    return (theirs > mine) | ((theirs == mine) & (their_expert < my_expert))


@triton.jit
def rank_experts(logits, expert, experts, TOP_K: tl.constexpr):
    """Each expert's rank by its logit, of equals the first before; TOP_K from there on. All (tokens, BLOCK_EXPERTS)."""
    value = tl.where(logits != logits, float("inf"), logits + 0.0)  # NaN first, so that its token cannot miss it
    bits = value.to(tl.int32, bitcast=True)
    # Integers in the order of the floats, the expert's number below them, so that no two are equal.
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
        h = activate(acc * (scale.to(tl.float32) / UNIT)[None, :], ACT)
        h_tile = h_ptr + entry.to(tl.int64)[:, None] * out_cols + out[None, :]
        tl.store(h_tile, h.to(h_ptr.dtype.element_ty), mask=(slot < count)[:, None] & (out < out_cols)[None, :])


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
def moe_int8_kernel(
    x_ptr,  # (tokens, cols), any row stride, unit column stride
    weight_desc,  # (experts, out_cols, cols), int8, in blocks of (1, BLOCK_OUT, BLOCK_IN)
    scale_ptr,  # (experts, out_cols), contiguous
    entry_ptr,  # (experts, tokens), int32, as gather_kernel writes it
    count_ptr,  # (experts,), int32
    h_ptr,  # (tokens * TOP_K, out_cols), contiguous
    tokens,
    experts,
    cols,  # a multiple of BLOCK_IN
    out_cols,
    x_row_stride,
    TOP_K: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    FACTOR: tl.constexpr,
    UNIT: tl.constexpr,
):
    # Tiles of the same tokens come one after another: they run together, and L2 gives them x once.
    tiles_out = tl.cdiv(out_cols, BLOCK_OUT)
    tile = tl.program_id(0) // tiles_out
    e = tl.arange(0, BLOCK_EXPERTS)
    tiles = tl.cdiv(tl.load(count_ptr + e, mask=e < experts, other=0), BLOCK_TOKENS)
    expert = tl.sum((tl.cumsum(tiles, axis=0) <= tile).to(tl.int32), axis=0)
    if expert < experts:
        place = (tile - tl.sum(tl.where(e < expert, tiles, 0), axis=0)) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
        inside = place < tl.load(count_ptr + expert)
        # Past the expert's last token stands token 0: what it gives is not stored, and no load needs a mask.
        entry = tl.load(entry_ptr + expert.to(tl.int64) * tokens + place, mask=inside, other=0)
        first_out = tl.program_id(0) % tiles_out * BLOCK_OUT
        # Weights are the left matrix of the product: tensor cores take that from registers, and conversion leaves them
        # there.
        x_tile = x_ptr + (entry // TOP_K).to(tl.int64)[None, :] * x_row_stride + tl.arange(0, BLOCK_IN)[:, None]
        acc = tl.zeros((BLOCK_OUT, BLOCK_TOKENS), tl.float32)
        for start in range(0, cols, BLOCK_IN):
            weight = weight_desc.load([expert, first_out, start]).reshape(BLOCK_OUT, BLOCK_IN)
            x = tl.load(x_tile)
            product = tl.dot(in_units(weight, x.dtype, FACTOR, UNIT), x, acc, input_precision="ieee")
            # Always so, and it keeps products of two steps from overlapping: the compiler (Triton 3.6) then writes
            # a step's weights into registers from which tensor cores still read.
            acc = tl.where(start < cols, product, acc)
            x_tile += BLOCK_IN
        out = first_out + tl.arange(0, BLOCK_OUT)
        scale = tl.load(scale_ptr + expert.to(tl.int64) * out_cols + out, mask=out < out_cols, other=0.0)
        h = activate(acc * (scale.to(tl.float32) / UNIT)[:, None], ACT).to(h_ptr.dtype.element_ty)
        h_tile = h_ptr + entry.to(tl.int64)[:, None] * out_cols + out[None, :]
        tl.store(h_tile, h.T, mask=inside[:, None] & (out < out_cols)[None, :])


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


def few_settings(tokens: int, experts: int, top_k: int, cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of moe_int8_few_kernel: rows of 2048 weights in pieces, so that loads are always under way.

    On an H200, bf16, 64 experts of 2048 x 768, top 8: 8.5 us for one token with 2 outputs a program, 10.3 with 4,
    12 with 8 warps; 12.9 for two tokens with 4 outputs; 18.8 for four and 31.9 for eight with 8 outputs, 20.5 and 34.2
    with 4. Products on tensor cores, which need 16 rows for the one there is, took 11 us for one token.
    """
    block_out = min(8, 2 * next_power_of_2(tokens))
    return {
        "BLOCK_EXPERTS": next_power_of_2(experts),
        "BLOCK_SLOTS": next_power_of_2(top_k),
        "BLOCK_OUT": block_out,
        "BLOCK_IN": min(2048 // block_out, next_power_of_2(cols)),
        "num_warps": 4,
        "num_stages": 2 if tokens == 1 else 3,
    }


@lru_cache(maxsize=1024)  # batches come in many sizes
def small_settings(tokens: int, experts: int, top_k: int, cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of moe_int8_small_kernel.

    On an H200, bf16, 64 experts of 2048 x 768, top 8, 64 tokens, both launches: 36.0 us with three stages, 37.9 with
    four, 45 with five; 43 and more with 64 outputs a program, or 256 columns a step. Ranks and lists in launches of
    their own took 4 us more. At 128 tokens finding them in every program costs as much as it saves.
    """
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


@lru_cache(maxsize=1024)  # batches come in many sizes
def settings(tokens: int, experts: int, top_k: int, cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of moe_int8_kernel, by how many tokens an expert has on average.

    On an H200, bf16, 64 experts of 2048 x 768, top 8. This kernel alone, 8192 tokens: 456 us, two programs on a
    multiprocessor; 459 with three stages, 470 with 4 warps; 512 tokens: 68 us; 73 with tiles of 64 tokens and 256
    outputs, 79 of 64 and 128, 131 of 128 tokens. All launches, 256 tokens: 59 us, 68 with 256 outputs, 73 with tiles of
    64; 2048: 178 with tiles of 64 tokens and 128 outputs, 189 with 128 of both.
    """
    mean = cdiv(tokens * top_k, experts)
    if mean <= 64:
        block_tokens, block_out, block_in, warps, stages = 32, 128, 128, 4, 3
    elif mean <= 256:
        block_tokens, block_out, block_in, warps, stages = 64, 256, 64, 8, 4
    else:
        block_tokens, block_out, block_in, warps, stages = 128, 128, 64, 8, 4
    chosen = {
        "BLOCK_EXPERTS": next_power_of_2(experts),
        "BLOCK_TOKENS": block_tokens,
        "BLOCK_OUT": block_out,
        "BLOCK_IN": gcd(cols, block_in),
        "FACTOR": FACTOR[dtype],
        "UNIT": UNIT[dtype],
        "num_warps": warps,
        "num_stages": stages,
    }
    if dtype == torch.float32:
        small = {"BLOCK_TOKENS": 16, "BLOCK_OUT": 32, "BLOCK_IN": gcd(cols, 32), "num_warps": 4, "num_stages": 2}
        return chosen | small
    return chosen


def _takes_descriptors(weight: torch.Tensor) -> bool:
    """Whether moe_int8_kernel can: a copy engine, rows of weights in multiples of its 16 bytes."""
    has_engine = not weight.is_cuda or torch.cuda.get_device_capability(weight.device) >= (9, 0)
    return has_engine and weight.shape[2] % 16 == 0 and weight.data_ptr() % 16 == 0


def _forward(
    x: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, top_k: int, act: str
) -> torch.Tensor:
    experts, out_cols, cols = weight.shape
    y = torch.empty(*x.shape[:-1], out_cols, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x, logits, weight, scale = as_rows(x), as_rows(logits), weight.contiguous(), scale.contiguous()
    tokens = x.shape[0]
    with torch.cuda.device_of(x):
        if tokens <= FEW or not _takes_descriptors(weight):
            chosen = few_settings(tokens, experts, top_k, cols, x.dtype)
            grid = cdiv(out_cols, chosen["BLOCK_OUT"]), tokens
            sizes = experts, cols, out_cols, x.stride(0), logits.stride(0)
            moe_int8_few_kernel[grid](x, logits, weight, scale, y, *sizes, TOP_K=top_k, ACT=act, **chosen)
            return y
        h = torch.empty(tokens * top_k, out_cols, dtype=x.dtype, device=x.device)
        small = tokens <= SMALL
        chosen = (small_settings if small else settings)(tokens, experts, top_k, cols, x.dtype)
        described = TensorDescriptor.from_tensor(weight, [1, chosen["BLOCK_OUT"], chosen["BLOCK_IN"]])
        sizes = tokens, experts, cols, out_cols, x.stride(0)
        tiles_out = cdiv(out_cols, chosen["BLOCK_OUT"])
        if small:
            picked = torch.empty(tokens, top_k, dtype=torch.float32, device=x.device)
            moe_int8_small_kernel[tiles_out, experts](
                x, logits, described, scale, h, picked, *sizes, logits.stride(0), TOP_K=top_k, ACT=act, **chosen
            )
        else:
            entries, count, picked = _routed(logits, top_k)
            # At worst every expert's last tile has one token.
            tiles = min(experts, tokens * top_k) + tokens * top_k // chosen["BLOCK_TOKENS"]
            moe_int8_kernel[(tiles * tiles_out,)](
                x, described, scale, entries, count, h, *sizes, TOP_K=top_k, ACT=act, **chosen
            )
        slots, block = next_power_of_2(top_k), min(1024, next_power_of_2(out_cols))
        grid = tokens, cdiv(out_cols, block)
        combine_kernel[grid](h, picked, y, out_cols, TOP_K=top_k, BLOCK_SLOTS=slots, BLOCK_OUT=block)
    return y


def _routed(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each expert's entries and their count, the logits of each token's."""
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


# For autograd, which finds no gradient here and says so, and for torch.compile.
moe_int8_op = torch.library.custom_op("kernel_fusion::moe_int8", _forward, mutates_args=())


@moe_int8_op.register_fake
def _(x, logits, weight, scale, top_k, act):
    return x.new_empty(*x.shape[:-1], weight.shape[1])


def moe_int8(
    x: torch.Tensor,
    logits: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    top_k: int = 8,
    act: str = "silu",
) -> torch.Tensor:
    """The weighted sum over each token's top_k experts of act(x W^T), W of int8 with a scale an output.

    Args:
        x: fp32, fp16 or bf16 tensor (..., cols), any strides; columns that are not side by side are copied first.
        logits: (..., experts), floating point, the router's scores of x's tokens. The largest top_k choose, of equals
            the first; their softmax weights.
        weight: (experts, out_cols, cols), int8.
        scale: (experts, out_cols), floating point: the layer's weights are weight * scale[..., None].
        top_k: experts a token, 1 to experts.
        act: "relu", "gelu" (by the error function), "gelu_tanh" or "silu".

    Returns:
        A contiguous tensor (..., out_cols) of x's dtype. Sums are fp32; an expert's output is rounded to x's dtype
        before the sum over experts where there are more than FEW tokens. A token with NaN among its logits gets NaN.
        The same inputs give the same bits.

    Raises:
        TypeError: an argument is not a tensor of such a dtype.
        ValueError: shapes that do not fit each other, top_k out of range, another `act`, two devices, or tensors on the
            CPU where kernels run on a GPU.
    """
    _check(x, logits, weight, scale, top_k, act)
    tensors = x, logits, weight, scale
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return moe_int8_op(*tensors, top_k, act)
    return _forward(*tensors, top_k, act)


def _check(x, logits, weight, scale, top_k: int, act: str) -> None:
    check_activation("moe_int8", act)
    check_alike("moe_int8", DTYPES, x=x)
    check_alike("moe_int8", FLOATS, logits=logits)
    check_alike("moe_int8", (torch.int8,), weight=weight)
    check_alike("moe_int8", FLOATS, scale=scale)
    shapes = tuple(tuple(tensor.shape) for tensor in (x, logits, weight, scale))
    fit = x.dim() > 0 and logits.dim() == x.dim() and weight.dim() == 3 and scale.shape == weight.shape[:2]
    if not fit or logits.shape != (*x.shape[:-1], len(weight)) or x.shape[-1] != weight.shape[2] or 0 in weight.shape:
        raise ValueError(
            f"moe_int8 takes x (..., cols), logits (..., experts), weight (experts, out_cols, cols) and scale "
            f"(experts, out_cols), got {', '.join(map(str, shapes))}: give them the same sizes, at least one each"
        )
    if not 1 <= top_k <= len(weight):
        raise ValueError(f"moe_int8 takes top_k of 1 to {len(weight)}, the number of experts, got {top_k}")
    if len({tensor.device for tensor in (x, logits, weight, scale)}) > 1:
        raise ValueError("moe_int8 takes tensors on one device, got several: move them with .to(x.device)")


def moe_int8_reference(
    x: torch.Tensor,
    logits: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    top_k: int = 8,
    act: str = "silu",
) -> torch.Tensor:
    """The same, as one writes it in PyTorch: an expert at a time, dequantised, over the tokens that chose it."""
    rows = x.reshape(-1, x.shape[-1])
    values, chosen = logits.reshape(-1, len(weight)).to(torch.promote_types(logits.dtype, torch.float32)).topk(top_k)
    gates = values.softmax(dim=-1).to(x.dtype)
    y = rows.new_zeros(len(rows), weight.shape[1])
    for expert in chosen.unique().tolist():
        token, slot = (chosen == expert).nonzero(as_tuple=True)
        dequantised = weight[expert].to(x.dtype) * scale[expert, :, None].to(x.dtype)
        h = ACTIVATIONS[act](torch.nn.functional.linear(rows[token], dequantised))
        y.index_add_(0, token, h * gates[token, slot, None])
    return y.reshape(*x.shape[:-1], weight.shape[1])


def moe_int8_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes: a multiply-add a token, expert and weight; x, logits, and the weights and scales of as
    many experts as tokens can choose in, y out once.
    """
    tokens, cols, out_cols, experts = shape
    top_k = min(8, experts)
    weights = min(experts, tokens * top_k) * out_cols * (cols + dtype.itemsize)
    read = weights + tokens * (cols + experts) * dtype.itemsize
    flops = tokens * top_k * out_cols * (2 * cols + 8)
    return Work(flops, read, tokens * out_cols * dtype.itemsize)


def _inputs(*shape: int, dtype: torch.dtype, **options) -> tuple[torch.Tensor, ...]:
    tokens, cols, out_cols, experts = shape
    x, logits = (torch.randn(tokens, size, dtype=dtype, **options) for size in (cols, experts))
    weight = torch.randint(-127, 128, (experts, out_cols, cols), dtype=torch.int8, **options)
    # So that an expert's sums are of order 1: weights of -127 to 127 have a variance of 73^2.
    scale = (torch.rand(experts, out_cols, dtype=dtype, **options) + 0.5) / (73 * max(1, cols) ** 0.5)
    return x, logits, weight, scale


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    tokens, cols, out_cols, experts = shape
    x, logits, weight, scale = (tensor.to("meta") for tensor in _inputs(1, cols, out_cols, experts, dtype=dtype))
    options = {"TOP_K": 8, "ACT": "silu"}
    if tokens <= FEW:
        sizes = experts, cols, out_cols, cols, experts
        return (x, logits, weight, scale, x, *sizes), options | few_settings(tokens, experts, 8, cols, dtype)
    small = tokens <= SMALL
    chosen = (small_settings if small else settings)(tokens, experts, 8, cols, dtype)
    described = TensorDescriptor.from_tensor(weight, [1, chosen["BLOCK_OUT"], chosen["BLOCK_IN"]])
    entries = torch.empty(experts, tokens, dtype=torch.int32, device="meta")
    sizes = tokens, experts, cols, out_cols, cols
    if small:
        picked = torch.empty(tokens, 8, dtype=torch.float32, device="meta")
        return (x, logits, described, scale, x, picked, *sizes, experts), options | chosen
    return (x, described, scale, entries, entries, x, *sizes), options | chosen


def _kernel_for(tokens: int, *_):
    return moe_int8_few_kernel if tokens <= FEW else moe_int8_small_kernel if tokens <= SMALL else moe_int8_kernel


OP = FusedOp(
    name="moe_int8",
    fused=moe_int8,
    reference=moe_int8_reference,
    work=moe_int8_work,
    kernel=moe_int8_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=(
        (1, 16, 1, 8),
        (FEW, 7, 5, 9),
        (FEW + 1, 33, 3, 8),
        (FEW + 1, 48, 20, 12),
        (SMALL + 1, 48, 20, 12),
    ),
    gpu_shapes=tuple((tokens, 2048, 768, 64) for tokens in (1, 8, 64, 512, 8192)),
    kernel_for=_kernel_for,
)
