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

On an H200 in bf16, 64 experts of 2048 x 768, top 8, launch gaps excluded, with the share of what the bytes (at 4.43
TB/s) or the arithmetic (at cuBLAS's 792 TFLOP/s) allow:

    tokens               1      2      4      16     64     512    2048   8192
    microseconds         11.6   14.2   21.3   42.5   45.6   92     191    539
    share, per cent      25     40     54     54     50     25     34     48
    in PyTorch           1149                        6873                 7199    an expert at a time, as below
    grouped matmul       598                         688    732           1734    all weights dequantised beforehand

One token's 12.6 MB would take 3 us, and a launch that finds its experts and reads an eighth of that takes 5 already. At
8192 tokens the experts take 482 us, the tensor cores busy for half of it: a step's weights are converted, written to
shared memory and multiplied in turn, and two programs on a multiprocessor hide only some of that. The sums over
experts, 113 MB, add 33 us.

Few tokens take one launch: a program finds the token's experts and reads some rows of all k, so that the sum over
experts never leaves its registers. Otherwise four:

    route      ranks each token's experts; writes ranks and gates
    gather     one program an expert lists its tokens; no atomics, so that the order is always the same
    experts    one program a tile of an expert's outputs and tokens, which it gathers from x; writes h, one row for each
               token and expert. No program knows beforehand how many tiles there are: the grid is for the worst case,
               and what is left over ends at once
    combine    each token's k rows of h, weighted and summed in the order of their ranks

Nothing comes back to the host, so that a CUDA graph can hold it.

Source: Shazeer et al., arXiv:1701.06538 (top-k gating); Jiang et al., arXiv:2401.04088 (softmax over the chosen
logits); Dettmers et al., arXiv:2208.07339 (int8 weights, one scale a row).
"""

from functools import cache
from math import gcd

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import ACTIVATIONS, activate, check_activation
from kernels.arguments import FLOATS, as_rows, check_alike
from kernels.fused_op import FusedOp, Work

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FEW = 8  # tokens for which one launch is faster than four: on an H200, 36 us against 40 for 8 tokens


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
def softmax_of(logits, chosen):
    """The softmax over axis 1 of the chosen logits; 0 elsewhere."""
    top = tl.max(tl.where(chosen, logits, -float("inf")), axis=1, keep_dims=True)
    e = tl.where(chosen, tl.exp(logits - top), 0.0)
    return e / tl.sum(e, axis=1, keep_dims=True)


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
    e = tl.arange(0, BLOCK_EXPERTS)[None, :]
    logits = tl.load(logits_ptr + token * logits_row_stride + e, mask=e < experts, other=-float("inf")).to(tl.float32)
    slot = tl.arange(0, BLOCK_SLOTS)
    here = rank_experts(logits, e, experts, TOP_K) == slot[:, None]
    expert = tl.sum(tl.where(here, e, 0), axis=1)
    gate = softmax_of(tl.sum(tl.where(here, logits, 0.0), axis=1)[None, :], (slot < TOP_K)[None, :])
    # The rows of all k experts that make this program's outputs, one below the other.
    ROWS: tl.constexpr = BLOCK_SLOTS * BLOCK_OUT
    out = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, :]
    row = (expert[:, None].to(tl.int64) * out_cols + out).reshape(ROWS)
    inside = ((slot < TOP_K)[:, None] & (out < out_cols)).reshape(ROWS)
    first = tl.arange(0, 16)[:, None] == 0  # tensor cores take no fewer than 16 tokens: the others are zeros
    acc = tl.zeros((16, ROWS), tl.float32)
    for start in range(0, cols, BLOCK_IN):
        col = start + tl.arange(0, BLOCK_IN)[None, :]
        weight = tl.load(weight_ptr + row[:, None] * cols + col, mask=inside[:, None] & (col < cols), other=0)
        x_tile = tl.broadcast_to(x_ptr + token * x_row_stride + col, (16, BLOCK_IN))
        x = tl.load(x_tile, mask=first & (col < cols), other=0.0)
        acc = tl.dot(x, weight.to(x.dtype).T, acc, input_precision="ieee")
    scale = tl.load(scale_ptr + row, mask=inside, other=0.0).to(tl.float32)
    h = activate(tl.sum(acc, axis=0) * scale, ACT).reshape(BLOCK_SLOTS, BLOCK_OUT)
    y = tl.sum(tl.where((slot < TOP_K)[:, None], h * gate.reshape(BLOCK_SLOTS, 1), 0.0), axis=0)[None, :]
    tl.store(y_ptr + token * out_cols + out, y.to(y_ptr.dtype.element_ty), mask=out < out_cols)


@triton.jit
def route_kernel(
    logits_ptr,  # (tokens, experts), any row stride, unit column stride
    rank_ptr,  # (experts, tokens), int16: the expert's rank for the token, TOP_K where it was not chosen
    gate_ptr,  # (tokens, TOP_K), fp32
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
    chosen = inside & (rank < TOP_K)
    tl.store(gate_ptr + token * TOP_K + rank, softmax_of(logits, chosen), mask=chosen)


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
        x_tile = x_ptr + (entry // TOP_K).to(tl.int64)[:, None] * x_row_stride + tl.arange(0, BLOCK_IN)[None, :]
        acc = tl.zeros((BLOCK_TOKENS, BLOCK_OUT), tl.float32)
        for start in range(0, cols, BLOCK_IN):
            weight = weight_desc.load([expert, first_out, start]).reshape(BLOCK_OUT, BLOCK_IN)
            x = tl.load(x_tile)
            # int8 has no more digits than bf16: the conversion is exact.
            acc = tl.dot(x, weight.to(x.dtype).T, acc, input_precision="ieee")
            x_tile += BLOCK_IN
        out = first_out + tl.arange(0, BLOCK_OUT)
        scale = tl.load(scale_ptr + expert.to(tl.int64) * out_cols + out, mask=out < out_cols, other=0.0)
        h = activate(acc * scale.to(tl.float32)[None, :], ACT)
        h_tile = h_ptr + entry.to(tl.int64)[:, None] * out_cols + out[None, :]
        tl.store(h_tile, h.to(h_ptr.dtype.element_ty), mask=inside[:, None] & (out < out_cols)[None, :])


@triton.jit
def combine_kernel(
    h_ptr,  # (tokens, TOP_K, out_cols), contiguous
    gate_ptr,  # (tokens, TOP_K), fp32
    y_ptr,  # (tokens, out_cols), contiguous
    out_cols,
    TOP_K: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, BLOCK_SLOTS)[:, None]
    out = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)[None, :]
    inside = (slot < TOP_K) & (out < out_cols)
    gate = tl.load(gate_ptr + token * TOP_K + slot, mask=slot < TOP_K, other=0.0)
    h = tl.load(h_ptr + (token * TOP_K + slot) * out_cols + out, mask=inside, other=0.0).to(tl.float32)
    y = tl.sum(h * gate, axis=0)[None, :]
    tl.store(y_ptr + token * out_cols + out, y.to(y_ptr.dtype.element_ty), mask=out < out_cols)


def few_settings(tokens: int, experts: int, top_k: int, cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of moe_int8_few_kernel.

    On an H200, bf16, 64 experts of 2048 x 768, top 8: 11.6 us for one token, 14.2 for two, 21.3 for four. With 8
    outputs a program two tokens take 1.6 us more; with 4, four tokens take 4 us more.
    """
    return {
        "BLOCK_EXPERTS": triton.next_power_of_2(experts),
        "BLOCK_SLOTS": triton.next_power_of_2(top_k),
        "BLOCK_OUT": 4 if tokens <= 2 else 8,
        "BLOCK_IN": min(32 if dtype == torch.float32 else 256, max(16, triton.next_power_of_2(cols))),
        "num_warps": 4,
        "num_stages": 4,
    }


@cache
def settings(tokens: int, experts: int, top_k: int, cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of moe_int8_kernel, for as many tokens a tile as an expert has on average, 16 to 128.

    On an H200, bf16, 64 experts of 2048 x 768, top 8, this kernel alone: 37 us for 64 tokens with tiles of 16, 39 with
    tiles of 32; 64 us for 512 with tiles of 64, 79 with 128; 482 us for 8192 with 128, 563 with 64. Two tiles of 128
    outputs and tokens fit on a multiprocessor, and one converts weights while the other's products run; tiles of 256
    of either, which read less, have it to themselves: 572.
    """
    block_tokens = min(128, max(16, triton.next_power_of_2(triton.cdiv(tokens * top_k, experts))))
    few = block_tokens <= 32
    chosen = {
        "BLOCK_EXPERTS": triton.next_power_of_2(experts),
        "BLOCK_TOKENS": block_tokens,
        "BLOCK_OUT": 128,
        "BLOCK_IN": gcd(cols, 128 if few else 64),
        "num_warps": 4,
        "num_stages": 3 if block_tokens == 128 else 4,
    }
    if dtype == torch.float32:  # no tensor cores: small tiles, so that the products fit in registers
        return chosen | {"BLOCK_TOKENS": 16, "BLOCK_OUT": 32, "BLOCK_IN": gcd(cols, 32), "num_stages": 2}
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
            grid = triton.cdiv(out_cols, chosen["BLOCK_OUT"]), tokens
            sizes = experts, cols, out_cols, x.stride(0), logits.stride(0)
            moe_int8_few_kernel[grid](x, logits, weight, scale, y, *sizes, TOP_K=top_k, ACT=act, **chosen)
            return y
        entries, count, gate = _routed(logits, top_k)
        h = torch.empty(tokens * top_k, out_cols, dtype=x.dtype, device=x.device)
        chosen = settings(tokens, experts, top_k, cols, x.dtype)
        described = TensorDescriptor.from_tensor(weight, [1, chosen["BLOCK_OUT"], chosen["BLOCK_IN"]])
        # At worst every expert's last tile has one token.
        tiles = min(experts, tokens * top_k) + tokens * top_k // chosen["BLOCK_TOKENS"]
        sizes = tokens, experts, cols, out_cols, x.stride(0)
        moe_int8_kernel[(tiles * triton.cdiv(out_cols, chosen["BLOCK_OUT"]),)](
            x, described, scale, entries, count, h, *sizes, TOP_K=top_k, ACT=act, **chosen
        )
        slots, block = triton.next_power_of_2(top_k), min(1024, triton.next_power_of_2(out_cols))
        grid = tokens, triton.cdiv(out_cols, block)
        combine_kernel[grid](h, gate, y, out_cols, TOP_K=top_k, BLOCK_SLOTS=slots, BLOCK_OUT=block)
    return y


def _routed(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each expert's entries and their count, each token's gates."""
    tokens, experts = logits.shape
    rank = torch.empty(experts, tokens, dtype=torch.int16, device=logits.device)
    entries = torch.empty(experts, tokens, dtype=torch.int32, device=logits.device)
    count = torch.empty(experts, dtype=torch.int32, device=logits.device)
    gate = torch.empty(tokens, top_k, dtype=torch.float32, device=logits.device)
    block_experts = triton.next_power_of_2(experts)
    blocks = {"BLOCK_TOKENS": max(1, 1024 // block_experts), "BLOCK_EXPERTS": block_experts}
    grid = (triton.cdiv(tokens, blocks["BLOCK_TOKENS"]),)
    route_kernel[grid](logits, rank, gate, tokens, experts, logits.stride(0), TOP_K=top_k, **blocks)
    block = min(4096, triton.next_power_of_2(tokens))
    gather_kernel[(experts,)](rank, entries, count, tokens, TOP_K=top_k, BLOCK=block, num_warps=8)
    return entries, count, gate


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
    chosen = settings(tokens, experts, 8, cols, dtype)
    described = TensorDescriptor.from_tensor(weight, [1, chosen["BLOCK_OUT"], chosen["BLOCK_IN"]])
    entries = torch.empty(experts, tokens, dtype=torch.int32, device="meta")
    return (x, described, scale, entries, entries, x, tokens, experts, cols, out_cols, cols), options | chosen


OP = FusedOp(
    name="moe_int8",
    fused=moe_int8,
    reference=moe_int8_reference,
    work=moe_int8_work,
    kernel=moe_int8_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 16, 1, 8), (FEW, 7, 5, 9), (FEW + 1, 33, 3, 8), (9, 48, 20, 12)),
    gpu_shapes=tuple((tokens, 2048, 768, 64) for tokens in (1, 8, 64, 512, 8192)),
    kernel_for=lambda tokens, *_: moe_int8_few_kernel if tokens <= FEW else moe_int8_kernel,
)
