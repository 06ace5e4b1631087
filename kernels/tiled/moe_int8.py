"""A mixture-of-experts layer with int8 weights: each token goes through its top k experts, and their outputs are
summed.

    y[t] = sum over the k experts e of token t of  gate[t, e] * act(scale[e] * (weight[e] x[t]))

The k experts are those with the largest logits, and the gates are the softmax of these k logits. An expert is one
linear layer without bias, followed by an activation. Its weights are int8 with one scale per output.

    unfused   one expert at a time: read its int8 weights, write them in 16 bits, read them; gather its tokens, linear,
              activation, product with the gates, sum into y; about ten launches per expert
    fused     int8 weights are converted in registers, exactly, and feed the tensor cores

With few tokens per expert, the weights' bytes are the bottleneck: 64 experts of 2048 x 768 are 101 MB, 23 us on an
H200. 16-bit weights are twice that, and dequantising in a separate kernel moves five times as many bytes. The scale is
applied to the sum, once per output instead of once per weight.

There are four launches. kernels/routing.py ranks each token's experts and lists each expert's tokens. In the kernel
here, each program computes one tile of an expert's outputs for tokens that it gathers from x, and writes one row per
token and expert. routing.py sums these rows. The host does not know how many tiles there are, so the grid covers the
worst case, and programs without a tile exit at once.

Source: kernels/routing.py; Dettmers et al., arXiv:2208.07339 (int8 weights, one scale per row).
"""

import torch
import triton
import triton.language as tl

from kernels.activations import ACTIVATIONS, activate, check_activation
from kernels.arguments import as_rows, cdiv, next_power_of_2
from kernels.op import FusedOp, Work, planned, register
from kernels.routing import check_experts, combine, routed


@triton.jit
def moe_int8_kernel(
    x_ptr,  # (tokens, cols), any row stride, unit column stride
    weight_ptr,  # (experts, out_cols, cols), int8, contiguous
    scale_ptr,  # (experts, out_cols), contiguous
    entry_ptr,  # (experts, tokens), int32, as gather_kernel in kernels/routing.py writes it
    count_ptr,  # (experts,), int32
    h_ptr,  # (tokens * TOP_K, out_cols), contiguous, fp32
    tokens,
    experts,
    cols,
    out_cols,
    x_row_stride,
    TOP_K: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,  # a power of two, at least experts
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    # Tiles of the same tokens follow one another: they run together, and share x in L2.
    tiles_out = tl.cdiv(out_cols, BLOCK_OUT)
    tile = tl.program_id(0) // tiles_out
    e = tl.arange(0, BLOCK_EXPERTS)
    tiles = tl.cdiv(tl.load(count_ptr + e, mask=e < experts, other=0), BLOCK_TOKENS)
    expert = tl.sum((tl.cumsum(tiles, axis=0) <= tile).to(tl.int32), axis=0)
    if expert < experts:
        place = (tile - tl.sum(tl.where(e < expert, tiles, 0), axis=0)) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
        inside = place < tl.load(count_ptr + expert)
        # Past the expert's last token the tile computes token 0, and does not store it.
        entry = tl.load(entry_ptr + expert.to(tl.int64) * tokens + place, mask=inside, other=0)
        out = tl.program_id(0) % tiles_out * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        # int64 before the multiplications: offsets pass 2**31 on large tensors.
        x_row = x_ptr + (entry // TOP_K).to(tl.int64)[:, None] * x_row_stride
        weight_row = weight_ptr + (expert.to(tl.int64) * out_cols + out)[:, None] * cols
        acc = tl.zeros((BLOCK_TOKENS, BLOCK_OUT), tl.float32)
        for start in range(0, cols, BLOCK_IN):
            col = start + tl.arange(0, BLOCK_IN)[None, :]
            x = tl.load(x_row + col, mask=col < cols, other=0.0)
            weight = tl.load(weight_row + col, mask=(out < out_cols)[:, None] & (col < cols), other=0)
            acc = tl.dot(x, weight.to(x.dtype).T, acc, input_precision="ieee")
        scale = tl.load(scale_ptr + expert.to(tl.int64) * out_cols + out, mask=out < out_cols, other=0.0)
        h = activate(acc * scale.to(tl.float32)[None, :], ACT)
        h_tile = h_ptr + entry.to(tl.int64)[:, None] * out_cols + out[None, :]
        tl.store(h_tile, h, mask=inside[:, None] & (out < out_cols)[None, :])


def settings(tokens: int, experts: int, top_k: int, dtype: torch.dtype) -> dict:
    """Return launch settings: as many tokens per tile as an expert has on average, 32 to 128. fp32 doesn't use tensor
    cores, so its tiles are small."""
    block_tokens = min(128, max(32, next_power_of_2(cdiv(tokens * top_k, experts))))
    tile = {"BLOCK_TOKENS": block_tokens, "BLOCK_OUT": 128, "BLOCK_IN": 64, "num_warps": 8 if block_tokens > 32 else 4}
    if dtype == torch.float32:
        tile = {"BLOCK_TOKENS": 16, "BLOCK_OUT": 32, "BLOCK_IN": 32, "num_warps": 4}
    return {"BLOCK_EXPERTS": next_power_of_2(experts), **tile, "num_stages": 3}


def _arguments(x, weight, scale, entries, count, h, top_k: int, act: str) -> tuple[tuple, dict]:
    (experts, out_cols, cols), tokens = weight.shape, len(x)
    options = {"TOP_K": top_k, "ACT": act, **settings(tokens, experts, top_k, x.dtype)}
    return (x, weight, scale, entries, count, h, tokens, experts, cols, out_cols, x.stride(0)), options


def worst_grid(x, weight, top_k: int, options: dict) -> tuple[int]:
    """Return the grid for a batch in which the last tile of every expert has one token."""
    (experts, out_cols, _), pairs = weight.shape, len(x) * top_k
    tiles = min(experts, pairs) + pairs // options["BLOCK_TOKENS"]
    return (tiles * cdiv(out_cols, options["BLOCK_OUT"]),)


def _launch(x, logits, weight, scale, top_k: int, act: str, y: torch.Tensor) -> None:
    h = torch.empty(len(x) * top_k, weight.shape[1], dtype=torch.float32, device=x.device)
    entries, count, picked = routed(logits, top_k)
    arguments, options = _arguments(x, weight, scale, entries, count, h, top_k, act)
    moe_int8_kernel[worst_grid(x, weight, top_k, options)](*arguments, **options)
    combine(h, picked, y)


def run(x, logits, weight, scale, top_k: int, act: str, launch=_launch) -> torch.Tensor:
    """Return y after launch(x, logits, weight, scale, top_k, act, y), with x and logits as rows."""
    y = _like(x, logits, weight)
    if y.numel():
        with torch.cuda.device_of(x):
            launch(as_rows(x), as_rows(logits), weight.contiguous(), scale.contiguous(), top_k, act, y)
    return y


def _forward(
    x: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, top_k: int, act: str
) -> torch.Tensor:
    return run(x, logits, weight, scale, top_k, act)


def _like(x, logits, weight, *_) -> torch.Tensor:
    return torch.empty(*x.shape[:-1], weight.shape[1], dtype=x.dtype, device=x.device)


moe_int8_op = register("moe_int8", _forward, _like)


@planned
def moe_int8(
    x: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, top_k: int = 8, act: str = "silu"
) -> torch.Tensor:
    """Compute the weighted sum of act(x W^T) over each token's top_k experts, W in int8 with one scale per output.

    Args:
        x: fp32, fp16 or bf16 tensor (..., cols), any strides; non-adjacent columns are copied first.
        logits: (..., experts), floating-point: the router's scores of x's tokens. The largest top_k choose the experts,
            the first ones on a tie; their softmax gives the weights.
        weight: (experts, out_cols, cols), int8.
        scale: (experts, out_cols), floating-point: the layer's weights are weight * scale[..., None].
        top_k: experts per token, 1 to experts.
        act: "relu", "gelu" (exact), "gelu_tanh" or "silu".

    Returns:
        A contiguous tensor (..., out_cols) of x's dtype, bitwise identical in every run. All sums are fp32; with more
        than 8 tokens, tuned kernels round an expert's output to x's dtype. A token with a NaN logit gets NaN.

    Raises:
        TypeError: an argument is not a tensor of one of these dtypes.
        ValueError: shapes do not match, top_k is out of range, act is unknown, devices differ, or tensors are on the
            CPU while kernels run on a GPU.
    """
    check_activation("moe_int8", act)
    check_experts("moe_int8", x, logits, weight, scale, top_k)
    return moe_int8_op(x, logits, weight, scale, top_k, act)


def moe_int8_reference(
    x: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, top_k: int = 8, act: str = "silu"
) -> torch.Tensor:
    """Compute the same as one writes it in PyTorch: one dequantised expert at a time, over the tokens that chose it."""
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
    """Return FLOPs and minimum traffic: one multiply-add per token, expert and weight; x, logits, and the weights and
    scales of as many experts as the tokens can choose read once, y written once."""
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
    # An expert's sums are then of order 1: weights of -127 to 127 have a variance of 73^2.
    scale = (torch.rand(experts, out_cols, dtype=dtype, **options) + 0.5) / (73 * max(1, cols) ** 0.5)
    return x, logits, weight, scale


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    tokens, _, _, experts = shape
    x, _, weight, scale = _inputs(*shape, dtype=dtype, device="meta")
    entries = torch.empty(experts, tokens, dtype=torch.int32, device="meta")
    return _arguments(x, weight, scale, entries, entries, x.float(), min(8, experts), "silu")


OP = FusedOp(
    name="moe_int8",
    fused=moe_int8,
    reference=moe_int8_reference,
    work=moe_int8_work,
    kernel=moe_int8_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 16, 1, 8), (8, 7, 5, 9), (9, 33, 3, 8), (9, 48, 20, 12), (65, 48, 20, 12)),
    gpu_shapes=tuple((tokens, 2048, 768, 64) for tokens in (1, 8, 64, 512, 8192)),
)
