"""A transformer block made of the course's kernels:  s = x + out(attention(rms_norm(x))),  y = s + ffn(rms_norm(s)).

Pre-norm, causal grouped-query attention, SwiGLU, no biases: a Llama 3 layer without rotary embedding. In unfused
PyTorch (`transformer_block_reference`), every operation goes through memory; here:

    rms_norm | q, k, v in one product | attention | product, residual | rms_norm | gate, up, SwiGLU | down, residual

That is seven launches, and a copy that puts a token's heads side by side. One token without a gradient takes five,
because the matmuls' programs normalise x themselves (kernels/tuned/linear_few_rows.py). Each kernel has its own
backward pass, and PyTorch adds up the gradients of tensors that are used twice.

Source: Touvron et al., arXiv:2302.13971, section 2.2; grouped heads: Ainslie et al., arXiv:2305.13245.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.rowwise.rms_norm import rms_norm, rms_norm_reference
from kernels.tiled.ffn import gated_op
from kernels.tiled.flash_attention import flash_attention, flash_attention_reference
from kernels.tiled.linear_act import linear_act
from kernels.tuned.linear_few_rows import linear_one_row

WEIGHTS = ("attention_norm", "qkv", "out", "ffn_norm", "gate", "up", "down")


def split_heads(qkv: Tensor, heads: int, key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return views of q (batch, heads, tokens, dim) and of k and v (batch, key_heads, tokens, dim)."""
    dim = qkv.shape[-1] // (heads + 2 * key_heads)
    return qkv.unflatten(-1, (-1, dim)).transpose(1, 2).split((heads, key_heads, key_heads), dim=1)


def transformer_block(
    x: Tensor,
    attention_norm: Tensor,
    qkv: Tensor,
    out: Tensor,
    ffn_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    heads: int,
    key_heads: int,
) -> Tensor:
    """Compute the fused block, differentiable once; a drop-in replacement for transformer_block_reference.

    Args:
        x: floating-point tensor of shape (batch, tokens, width).
        attention_norm, ffn_norm: (width,). All weights have x's dtype and device.
        qkv: ((heads + 2 key_heads) dim, width): the rows of q, then of k, then of v.
        out: (width, heads dim).
        gate, up: (hidden, width).
        down: (width, hidden).
        heads, key_heads: number of query heads, and of key and value heads; heads is a multiple of key_heads.

    Returns:
        A contiguous tensor of x's shape and dtype. Results passed between launches are rounded to x's dtype.

    Raises:
        TypeError, ValueError: as rms_norm, linear_act, flash_attention and ffn.
    """
    weights = attention_norm, qkv, out, ffn_norm, gate, up, down
    tracked = torch.is_grad_enabled() and any(each.requires_grad for each in (x, *weights))
    if x.shape[:-1].numel() == 1 and not tracked:
        return _one_token(x, *weights, heads, key_heads)
    heads_of = split_heads(linear_act(rms_norm(x, attention_norm), qkv, act=None), heads, key_heads)
    seen = flash_attention(*heads_of, causal=True).transpose(1, 2).flatten(2)
    s = linear_act(seen, out, residual=x, act=None)
    hidden = gated_op(rms_norm(s, ffn_norm), gate, up, "silu")
    return linear_act(hidden, down, residual=s, act=None)


def _one_token(x, attention_norm, qkv, out, ffn_norm, gate, up, down, heads: int, key_heads: int) -> Tensor:
    heads_of = split_heads(linear_one_row(x, qkv, attention_norm), heads, key_heads)
    seen = flash_attention(*heads_of, causal=True).transpose(1, 2).flatten(2)
    s = linear_one_row(seen, out, residual=x)
    return linear_one_row(linear_one_row(s, up, ffn_norm, gate), down, residual=s)


def transformer_block_reference(
    x, attention_norm, qkv, out, ffn_norm, gate, up, down, heads: int, key_heads: int
) -> Tensor:
    """Compute the same in plain PyTorch, one operation at a time."""
    linear = functional.linear
    heads_of = split_heads(linear(rms_norm_reference(x, attention_norm), qkv), heads, key_heads)
    s = x + linear(flash_attention_reference(*heads_of, causal=True).transpose(1, 2).flatten(2), out)
    h = rms_norm_reference(s, ffn_norm)
    return s + linear(functional.silu(linear(h, gate)) * linear(h, up), down)


def transformer_block_inputs(
    tokens: int, width: int, heads: int, key_heads: int, hidden: int, batch: int = 1, **options
) -> tuple[Tensor, ...]:
    """Return random x and weights. Weights are scaled like a trained layer's, so that results are as large as x."""
    dim = width // heads
    shapes = ((heads + 2 * key_heads) * dim, width), (width, heads * dim), (hidden, width), (hidden, width)
    qkv, out, gate, up = (torch.randn(shape, **options) / shape[1] ** 0.5 for shape in shapes)
    down = torch.randn(width, hidden, **options) / hidden**0.5
    norms = (1 + torch.randn(width, **options) / 8 for _ in range(2))
    return torch.randn(batch, tokens, width, **options), next(norms), qkv, out, next(norms), gate, up, down
