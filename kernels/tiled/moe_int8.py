"""A layer of experts with int8 weights: each token goes through its top k of them, and their outputs are summed.

    y[t] = sum over the k experts e of token t of  gate[t, e] * act(scale[e] * (weight[e] x[t]))

The k experts are those of the largest logits, and the gates the softmax of these k logits. An expert is one linear
layer, without a bias, and the activation after it; its weights are int8 with one scale an output.

    unfused   an expert at a time: read its int8 weights, write them in 16 bits, read them; gather its tokens,
              linear, activation, product with the gates, sum into y; some ten launches an expert
    fused     int8 weights go to registers, become 16-bit floats there, exactly, and feed the tensor cores

What bounds it is the bytes of weights as long as an expert has few tokens: 64 experts of 2048 x 768 are 101 MB, 23 us
of an H200, in 16 bits twice that, and dequantised in a kernel of its own, five times. One scale an output comes off the
sum: acc * scale, in fp32, is one product an output where dequantising takes one a weight.

Four launches: kernels/routing.py ranks each token's experts and lists each expert's tokens; the kernel here takes a
tile of an expert's outputs and tokens, which it gathers from x, and writes a row for each token and expert; routing.py
sums them. No program knows beforehand how many tiles there are: the grid is for the worst case, and what is left over
ends at once. Up to 8 tokens take one launch (moe_int8_few.py), up to 64 two (moe_int8_small.py).

Source: kernels/routing.py; Dettmers et al., arXiv:2208.07339 (int8 weights, one scale a row).
"""

from functools import lru_cache
from math import gcd

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.activations import ACTIVATIONS, activate, check_activation
from kernels.arguments import as_rows, cdiv, next_power_of_2
from kernels.int8 import FACTOR, UNIT, in_units, takes_descriptors
from kernels.op import FusedOp, Work, planned, register
from kernels.routing import check_experts, combine, routed
from kernels.tiled.moe_int8_few import FEW, few_arguments, launch_few, moe_int8_few_kernel
from kernels.tiled.moe_int8_small import SMALL, launch_small, moe_int8_small_kernel, small_arguments

# Tokens an expert has on average, at most: BLOCK_TOKENS, BLOCK_OUT, BLOCK_IN, warps, stages.
TILES = {
    64: (32, 128, 128, 4, 3),  # weights are what is read: little room for tokens that are not there
    256: (64, 256, 64, 8, 4),
    float("inf"): (128, 128, 64, 8, 4),  # two programs on a multiprocessor: one converts while the other multiplies
}


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
        # Weights are the product's left matrix: tensor cores take that from registers, where conversion leaves it.
        x_tile = x_ptr + (entry // TOP_K).to(tl.int64)[None, :] * x_row_stride + tl.arange(0, BLOCK_IN)[:, None]
        acc = tl.zeros((BLOCK_OUT, BLOCK_TOKENS), tl.float32)
        for start in range(0, cols, BLOCK_IN):
            weight = weight_desc.load([expert, first_out, start]).reshape(BLOCK_OUT, BLOCK_IN)
            x = tl.load(x_tile)
            product = tl.dot(in_units(weight, x.dtype, FACTOR, UNIT), x, acc, input_precision="ieee")
            # Always so, and it keeps products of two steps from overlapping: Triton 3.6 and 3.7 would write a step's
            # weights into registers from which tensor cores still read.
            acc = tl.where(start < cols, product, acc)
            x_tile += BLOCK_IN
        out = first_out + tl.arange(0, BLOCK_OUT)
        scale = tl.load(scale_ptr + expert.to(tl.int64) * out_cols + out, mask=out < out_cols, other=0.0)
        h = activate(acc * (scale.to(tl.float32) / UNIT)[:, None], ACT, h_ptr.dtype.element_ty)
        h_tile = h_ptr + entry.to(tl.int64)[:, None] * out_cols + out[None, :]
        tl.store(h_tile, h.to(h_ptr.dtype.element_ty).T, mask=inside[:, None] & (out < out_cols)[None, :])


@lru_cache(maxsize=1024)  # batches come in many sizes
def settings(tokens: int, experts: int, top_k: int, cols: int, dtype: torch.dtype) -> dict:
    """Launch settings of moe_int8_kernel, by TILES; fp32 has no tensor cores, and products that fit in registers."""
    tile = next(tile for most, tile in TILES.items() if cdiv(tokens * top_k, experts) <= most)
    block_tokens, block_out, block_in, warps, stages = (16, 32, 32, 4, 2) if dtype == torch.float32 else tile
    return {
        "BLOCK_EXPERTS": next_power_of_2(experts),
        "BLOCK_TOKENS": block_tokens,
        "BLOCK_OUT": block_out,
        "BLOCK_IN": gcd(cols, block_in),
        "FACTOR": FACTOR[dtype],
        "UNIT": UNIT[dtype],
        "num_warps": warps,
        "num_stages": stages,
    }


def _forward(
    x: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, top_k: int, act: str
) -> torch.Tensor:
    y = _like(x, logits, weight)
    if y.numel() == 0:
        return y
    tensors = x, logits, weight, scale = as_rows(x), as_rows(logits), weight.contiguous(), scale.contiguous()
    few = len(x) <= FEW or not takes_descriptors(weight)
    with torch.cuda.device_of(x):
        (launch_few if few else launch_small if len(x) <= SMALL else _launch)(*tensors, top_k, act, y)
    return y


def _arguments(x, weight, scale, entries, count, h, top_k: int, act: str) -> tuple[tuple, dict]:
    """The kernel's arguments and options."""
    (experts, out_cols, cols), tokens = weight.shape, len(x)
    options = {"TOP_K": top_k, "ACT": act, **settings(tokens, experts, top_k, cols, x.dtype)}
    described = TensorDescriptor.from_tensor(weight, [1, options["BLOCK_OUT"], options["BLOCK_IN"]])
    return (x, described, scale, entries, count, h, tokens, experts, cols, out_cols, x.stride(0)), options


def _launch(x, logits, weight, scale, top_k: int, act: str, y: torch.Tensor) -> None:
    (experts, out_cols, _), pairs = weight.shape, len(x) * top_k
    h = torch.empty(pairs, out_cols, dtype=x.dtype, device=x.device)
    entries, count, picked = routed(logits, top_k)
    arguments, options = _arguments(x, weight, scale, entries, count, h, top_k, act)
    # At worst every expert's last tile has one token.
    tiles = min(experts, pairs) + pairs // options["BLOCK_TOKENS"]
    moe_int8_kernel[(tiles * cdiv(out_cols, options["BLOCK_OUT"]),)](*arguments, **options)
    combine(h, picked, y)


def _like(x, logits, weight, *_) -> torch.Tensor:
    return torch.empty(*x.shape[:-1], weight.shape[1], dtype=x.dtype, device=x.device)


moe_int8_op = register("moe_int8", _forward, _like)


@planned
def moe_int8(
    x: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, top_k: int = 8, act: str = "silu"
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
        A contiguous tensor (..., out_cols) of x's dtype, the same bits each time. Sums are fp32; with more than FEW
        tokens an expert's output is rounded to x's dtype before. A token with NaN among its logits gets NaN.

    Raises:
        TypeError: an argument is not a tensor of such a dtype.
        ValueError: misfit shapes, top_k out of range, another `act`, two devices, or tensors on the CPU beside a GPU.
    """
    check_activation("moe_int8", act)
    check_experts("moe_int8", x, logits, weight, scale, top_k)
    return moe_int8_op(x, logits, weight, scale, top_k, act)


def moe_int8_reference(
    x: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, top_k: int = 8, act: str = "silu"
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
    many experts as tokens can choose in, y out once."""
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
    tokens, _, _, experts = shape
    x, logits, weight, scale = _inputs(*shape, dtype=dtype, device="meta")
    if tokens <= FEW:
        return few_arguments(x, logits, weight, scale, x, 8, "silu")
    if tokens <= SMALL:
        return small_arguments(x, logits, weight, scale, x, logits.float(), 8, "silu")
    entries = torch.empty(experts, tokens, dtype=torch.int32, device="meta")
    return _arguments(x, weight, scale, entries, entries, x, 8, "silu")


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
    interpreter_shapes=((1, 16, 1, 8), (FEW, 7, 5, 9), (9, 33, 3, 8), (9, 48, 20, 12), (SMALL + 1, 48, 20, 12)),
    gpu_shapes=tuple((tokens, 2048, 768, 64) for tokens in (1, 8, 64, 512, 8192)),
    kernel_for=_kernel_for,
)
