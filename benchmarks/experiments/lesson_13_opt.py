"""Lesson 13: forward pass of one OPT-13B layer, in five versions.

Pre-norm, attention with as many key heads as query heads, a feed-forward layer with ReLU, biases everywhere. Weights
are random, because time does not depend on them. The model is 40 such layers, an embedding and a head, but only one
layer is timed. Its weights (629 MB in bf16) are far larger than any L2, so 40 calls of one layer read as much from DRAM
as 40 layers would.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

import kernels
from helpers.instruments.timing import Timing, benchmark_together

# Zhang et al., "OPT: Open Pre-trained Transformer Language Models", arXiv:2205.01068, table 1.
WIDTH, HEADS, HIDDEN, LAYERS = 5120, 40, 20480, 40
RECORD = "h100_80gb_hbm3.json"  # where these are recorded, in benchmarks/results
TOKENS = (64, 512, 2048)
EPS = 1e-5
NAMES = (
    "hidden attention_weight attention_bias qkv qkv_bias out out_bias ffn_weight ffn_bias up up_bias down down_bias"
).split()


def layer_inputs(tokens: int, width: int = WIDTH, hidden: int = HIDDEN, **options) -> tuple[Tensor, ...]:
    """Return x (1, tokens, width), then in the order of NAMES: the hidden scores' mask, once per model; the weights.

    Weights are scaled so that all results are about equally large."""

    def matrix(rows: int, cols: int) -> tuple[Tensor, Tensor]:
        return torch.randn(rows, cols, **options) / cols**0.5, torch.randn(rows, **options) / 8

    def norm() -> tuple[Tensor, Tensor]:
        return 1 + torch.randn(width, **options) / 8, torch.randn(width, **options) / 8

    weights = *norm(), *matrix(3 * width, width), *matrix(width, width)
    weights += (*norm(), *matrix(hidden, width), *matrix(width, hidden))
    hidden = torch.full((tokens, tokens), torch.finfo(weights[0].dtype).min, **options).triu(1)
    return torch.randn(1, tokens, width, **options), hidden, *weights


def heads_of(qkv: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Return q, k and v, each (1, heads, tokens, dim)."""
    return qkv.unflatten(-1, (3 * heads, -1)).transpose(1, 2).chunk(3, dim=1)


def attention_by_operator(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """Compute causal attention with the matrix of scores, softmax in fp32: transformers' "eager"."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + hidden
    return functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def attention_of_pytorch(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def layer(attention: Callable, heads: int, x: Tensor, *weights: Tensor) -> Tensor:
    """Run the layer in eager PyTorch."""
    w = dict(zip(NAMES, weights, strict=True))
    h = functional.layer_norm(x, x.shape[-1:], w["attention_weight"], w["attention_bias"], EPS)
    seen = attention(*heads_of(functional.linear(h, w["qkv"], w["qkv_bias"]), heads), w["hidden"])
    x = x + functional.linear(seen.transpose(1, 2).flatten(2), w["out"], w["out_bias"])
    h = functional.layer_norm(x, x.shape[-1:], w["ffn_weight"], w["ffn_bias"], EPS)
    h = functional.relu(functional.linear(h, w["up"], w["up_bias"]))
    return x + functional.linear(h, w["down"], w["down_bias"])


def fused_layer(heads: int, x: Tensor, *weights: Tensor) -> Tensor:
    """Run the layer with the course's kernels: seven launches, and the copy that puts a token's heads side by side."""
    w = dict(zip(NAMES, weights, strict=True))
    h = kernels.layer_norm(x, w["attention_weight"], w["attention_bias"], EPS)
    q, k, v = heads_of(kernels.linear_act(h, w["qkv"], w["qkv_bias"], act=None), heads)
    seen = kernels.flash_attention(q, k, v, causal=True).transpose(1, 2).flatten(2)
    x = kernels.linear_act(seen, w["out"], w["out_bias"], residual=x, act=None)
    h = kernels.layer_norm(x, w["ffn_weight"], w["ffn_bias"], EPS)
    h = kernels.linear_act(h, w["up"], w["up_bias"], act="relu")
    return kernels.linear_act(h, w["down"], w["down_bias"], residual=x, act=None)


WAYS = {
    "by operator": partial(layer, attention_by_operator),
    "libraries": partial(layer, attention_of_pytorch),
    "ours": fused_layer,
}


def opt_layer(tokens: int) -> dict[str, dict[str, Timing]]:
    """Return clock -> way -> time of a layer: the GPU's own, cold L2, and that of back-to-back calls."""
    torch._dynamo.reset()
    given = layer_inputs(tokens, dtype=torch.bfloat16, device="cuda")
    functions = dict(WAYS)
    for way in ("by operator", "libraries"):
        functions[f"{way}, torch.compile"] = torch.compile(WAYS[way], dynamic=False)
    calls = {way: partial(function, HEADS, *given) for way, function in functions.items()}
    with torch.no_grad():
        return {
            "gpu": benchmark_together(calls, runs=20),
            "call": benchmark_together(calls, runs=3, launches=True),
        }


EXPERIMENTS = {f"opt_layer_{tokens}": partial(opt_layer, tokens) for tokens in TOKENS}
