"""Formulas with one mistake each. If an answer computes one of them, the check names its mistake.

Each dictionary is for `check_values(unlike=...)` of one exercise: the mistaken formula's name -> the formula, as a
function of the exercise's own arguments. Only answers that differ from the reference are compared with them.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from helpers.learning.checks.dropout import kept_elements

ACTIVATIONS = {"relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu}
SLICES = (16, 32, 64, 128)  # products along K that a tile of the usual sizes holds
TILES = (16, 32, 64, 128)  # keys that a tile of the usual sizes holds


# Exercise 03: (a, b)


def _gate(s, factor: float = 2.0, root: float = (2 / math.pi) ** 0.5, cubic: float = 0.044715, power: int = 3):
    """Return s sigmoid(factor u), with u = root (s + cubic s^power); the default numbers give GELU in its tanh form."""
    return s * (factor * root * (s + cubic * s**power)).sigmoid()


ADD_GELU_MISTAKES: dict[str, Callable] = {
    "the sum without GELU": lambda a, b: a + b,
    "GELU in its exact form, with erf": lambda a, b: functional.gelu(a + b),
    "s sigmoid(1.702 s)": lambda a, b: (a + b) * (1.702 * (a + b)).sigmoid(),
    "s sigmoid(u) instead of s sigmoid(2u)": lambda a, b: _gate(a + b, factor=1.0),
    "s tanh(u)": lambda a, b: (a + b) * (2 * (_gate(a + b) / (a + b)) - 1),
    "the formula without its factor 1/2": lambda a, b: 2 * _gate(a + b),
    "the formula without sqrt(2/pi)": lambda a, b: _gate(a + b, root=1.0),
    "the formula with 2/pi instead of its root": lambda a, b: _gate(a + b, root=2 / math.pi),
    "the formula with 0.44715 for 0.044715": lambda a, b: _gate(a + b, cubic=0.44715),
    "the formula with s^2 instead of s^3": lambda a, b: _gate(a + b, power=2),
    "GELU of a alone": lambda a, b: _gate(a),
    "GELU of b alone": lambda a, b: _gate(b),
    "GELU of a + a": lambda a, b: _gate(a + a),
    "GELU of a, plus b": lambda a, b: _gate(a) + b,
    "GELU of a - b": lambda a, b: _gate(a - b),
    "GELU of a times b": lambda a, b: _gate(a * b),
}


# Exercise 04, forward: (x, bias, residual, p, seed)


def _dropout(x, p, seed):
    kept = kept_elements(seed, x.numel(), p, x.device).view(x.shape)
    return torch.where(kept, x / (1 - p), 0)


DROPOUT_MISTAKES: dict[str, Callable] = {
    "the formula without the bias": lambda x, b, r, p, seed: r + _dropout(x, p, seed),
    "the formula without the residual": lambda x, b, r, p, seed: _dropout(x + b, p, seed),
    "the formula with the bias added after dropout": lambda x, b, r, p, seed: r + b + _dropout(x, p, seed),
    "the formula with the bias not divided by 1 - p": lambda x, b, r, p, seed: (
        r + _dropout(x, p, seed) + (1 - p) * _dropout(b.expand_as(x), p, seed)
    ),
    "the formula with the residual dropped": lambda x, b, r, p, seed: _dropout(x + b + r, p, seed),
    "the formula with the residual scaled": lambda x, b, r, p, seed: r / (1 - p) + _dropout(x + b, p, seed),
    "the formula with nothing dropped": lambda x, b, r, p, seed: x + b + r,
    "the formula with kept elements not divided by 1 - p": lambda x, b, r, p, seed: (
        r + (1 - p) * _dropout(x + b, p, seed)
    ),
}


# Exercise 05: (x, weight, bias, eps)


def _layer_norm(x, weight, bias, eps, mean=None, mean_square=None):
    """Normalise with this mean and this mean of squares, by default the right ones."""
    x = x - (x.mean(dim=-1, keepdim=True) if mean is None else mean)
    squares = x.square().mean(dim=-1, keepdim=True) if mean_square is None else mean_square(x)
    return x * (squares + eps).rsqrt() * weight + bias


def _not_centred(x, weight, bias, eps):
    return x * (x.var(dim=-1, keepdim=True, correction=0) + eps).rsqrt() * weight + bias


def _bias_before_weight(x, weight, bias, eps):
    return (_layer_norm(x, 1, 0, eps) + bias) * weight


def _variance_without_root(x, weight, bias, eps):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + eps) * weight + bias


def _times_deviation(x, weight, bias, eps):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred * (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight + bias


LAYER_NORM_MISTAKES: dict[str, Callable] = {
    "the formula without the weight": lambda x, w, b, eps: _layer_norm(x, 1, b, eps),
    "the formula without the bias": lambda x, w, b, eps: _layer_norm(x, w, 0, eps),
    "the formula with the bias added before the weight": _bias_before_weight,
    "the formula with the sum of squares divided by n - 1": lambda x, w, b, eps: _layer_norm(
        x, w, b, eps, mean_square=lambda centred: centred.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)
    ),
    "the formula with the sum of squares not divided by n": lambda x, w, b, eps: _layer_norm(
        x, w, b, eps, mean_square=lambda centred: centred.square().sum(-1, keepdim=True)
    ),
    "the formula with the row's sum for its mean": lambda x, w, b, eps: _layer_norm(
        x, w, b, eps, mean=x.sum(-1, keepdim=True)
    ),
    "RMSNorm, which doesn't subtract the mean": lambda x, w, b, eps: _layer_norm(x, w, b, eps, mean=0),
    "the formula with x for x - mean in the numerator": _not_centred,
    "the formula with the variance for its root": _variance_without_root,
    "the formula multiplied by the root instead of divided by it": _times_deviation,
}


# Exercise 05b: (x, residual, weight, eps)


def _rms_norm(s, weight, eps, power: float = -0.5, mean: Callable = torch.mean):
    return s * (mean(s.square(), dim=-1, keepdim=True) + eps) ** power * weight


def _square_of_another(other: Callable):
    """Normalise the sum with the mean square of another tensor."""

    def norm(x, residual, weight, eps):
        s, t = x + residual, other(x, residual)
        return s * (t.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight, s

    return norm


RESIDUAL_NORM_MISTAKES: dict[str, Callable] = {
    "the formula without the weight": lambda x, r, w, eps: (_rms_norm(x + r, 1, eps), x + r),
    "the norm of x alone": lambda x, r, w, eps: (_rms_norm(x, w, eps), x + r),
    "the norm of the residual alone": lambda x, r, w, eps: (_rms_norm(r, w, eps), x + r),
    "the formula with the mean square of x for that of s": _square_of_another(lambda x, r: x),
    "the formula with the mean square of the residual for that of s": _square_of_another(lambda x, r: r),
    "LayerNorm, which subtracts the mean": lambda x, r, w, eps: (_layer_norm(x + r, w, 0, eps), x + r),
    "the formula with the mean square for its root": lambda x, r, w, eps: (_rms_norm(x + r, w, eps, power=-1), x + r),
    "the formula multiplied by the root instead of divided by it": lambda x, r, w, eps: (
        _rms_norm(x + r, w, eps, power=0.5),
        x + r,
    ),
    "the formula with the sum of squares not divided by n": lambda x, r, w, eps: (
        _rms_norm(x + r, w, eps, mean=torch.sum),
        x + r,
    ),
    "the two results, exchanged": lambda x, r, w, eps: (x + r, _rms_norm(x + r, w, eps)),
    "y twice": lambda x, r, w, eps: (_rms_norm(x + r, w, eps),) * 2,
    "y and the residual as it was": lambda x, r, w, eps: (_rms_norm(x + r, w, eps), r),
    "y and x": lambda x, r, w, eps: (_rms_norm(x + r, w, eps), x),
}


# Exercise 06: (x, k)


def _top(p, k, of=None, descending: bool = True):
    indices = (p if of is None else of).sort(dim=-1, descending=descending, stable=True).indices[..., :k]
    return p, p.gather(-1, indices), indices


def _elements_for_probabilities(x, k):
    p, _, indices = _top(x.softmax(dim=-1), k)
    return p, x.gather(-1, indices), indices


TOPK_MISTAKES: dict[str, Callable] = {
    "exponentials not divided by their sum": lambda x, k: _top((x - x.amax(dim=-1, keepdim=True)).exp(), k),
    "the softmax over the rows, not over each row's columns": lambda x, k: _top(x.softmax(dim=0), k),
    "the logarithm of the softmax": lambda x, k: _top(x.log_softmax(dim=-1), k),
    "p and the smallest k": lambda x, k: _top(x.softmax(dim=-1), k, descending=False),
    "the elements of x where their probabilities belong": _elements_for_probabilities,
}


# Exercise 08: (x, weight, bias, activation)


def _linear(x, weight, bias, activation, first: int | None = None, last: int | None = None):
    """Return act(x weight^T + bias), where each sum has only its first or its last products."""
    part = slice(0, first) if last is None else slice((x.shape[1] - 1) // last * last, None)
    return ACTIVATIONS[activation](functional.linear(x[:, part], weight[:, part], bias))


def _gelu_as_silu(x, weight, bias, activation):
    other = {"relu": "relu", "gelu": "silu", "silu": "gelu"}[activation]
    return ACTIVATIONS[other](functional.linear(x, weight, bias))


def _sigmoid_for_silu(x, weight, bias, activation):
    s = functional.linear(x, weight, bias)
    return s.sigmoid() if activation == "silu" else ACTIVATIONS[activation](s)


def _other_gate(x, weight, bias, activation):
    s = functional.linear(x, weight, bias)
    return s * (1.702 * s).sigmoid() if activation == "silu" else ACTIVATIONS[activation](s)


def _first_slice_again(x, weight, bias, activation, slice_of: int):
    """The first products of each sum as often as the sum has slices."""
    s = functional.linear(x[:, :slice_of], weight[:, :slice_of]) * -(-x.shape[1] // slice_of)
    return ACTIVATIONS[activation](s + bias)


def _twice_gelu(x, weight, bias, activation):
    s = functional.linear(x, weight, bias)
    return ACTIVATIONS[activation](s) * (2 if activation == "gelu" else 1)


LINEAR_MISTAKES: dict[str, Callable] = {
    "the formula without the bias": lambda x, w, b, act: ACTIVATIONS[act](functional.linear(x, w)),
    "the formula without the activation": lambda x, w, b, act: functional.linear(x, w, b),
    "the formula with the bias added after the activation": (
        lambda x, w, b, act: ACTIVATIONS[act](functional.linear(x, w)) + b
    ),
    "sigmoid(s) instead of s sigmoid(s)": _sigmoid_for_silu,
    "s sigmoid(1.702 s) instead of s sigmoid(s)": _other_gate,
    "the formula with silu and gelu exchanged": _gelu_as_silu,
    "the formula without gelu's factor 1/2": _twice_gelu,
    **{f"the first slice of {n} products in every step": partial(_first_slice_again, slice_of=n) for n in SLICES},
    **{f"a sum over the first {n} products alone": partial(_linear, first=n) for n in SLICES},
    **{f"a sum over the last slice of {n} products alone": partial(_linear, last=n) for n in SLICES},
}


# Exercise 09: (x, weight, bias, gamma, beta, mean, var, stride, padding, eps)


def _norm(s, mean, var, gamma, beta, eps):
    return functional.batch_norm(s, mean.to(s.dtype), var.to(s.dtype), gamma.to(s.dtype), beta.to(s.dtype), eps=eps)


def _of_channels(vector, s):
    return vector.to(s.dtype)[:, None, None]


def _variance_for_deviation(x, w, b, gamma, beta, mean, var, stride, padding, eps):
    s = functional.conv2d(x, w, b, stride, padding)
    scale = gamma / (var + eps)
    return torch.relu((s - _of_channels(mean, s)) * _of_channels(scale, s) + _of_channels(beta, s))


def _root_and_eps(x, w, b, gamma, beta, mean, var, stride, padding, eps):
    s = functional.conv2d(x, w, b, stride, padding)
    scale = gamma / (var.sqrt() + eps)
    return torch.relu((s - _of_channels(mean, s)) * _of_channels(scale, s) + _of_channels(beta, s))


def _larger_of_variance_and_eps(x, w, b, gamma, beta, mean, var, stride, padding, eps):
    return torch.relu(_norm(functional.conv2d(x, w, b, stride, padding), mean, var.clamp(min=eps), gamma, beta, 0.0))


def _mean_not_scaled(x, w, b, gamma, beta, mean, var, stride, padding, eps):
    s = functional.conv2d(x, w, b, stride, padding)
    scale = gamma / (var + eps).sqrt()
    return torch.relu(s * _of_channels(scale, s) - _of_channels(mean - beta, s))


def _no_beta(x, w, b, gamma, beta, mean, var, stride, padding, eps):
    return torch.relu(_norm(functional.conv2d(x, w, b, stride, padding), mean, var, gamma, torch.zeros_like(beta), eps))


def _no_gamma(x, w, b, gamma, beta, mean, var, stride, padding, eps):
    return torch.relu(_norm(functional.conv2d(x, w, b, stride, padding), mean, var, torch.ones_like(gamma), beta, eps))


def _no_relu(x, w, b, gamma, beta, mean, var, stride, padding, eps):
    return _norm(functional.conv2d(x, w, b, stride, padding), mean, var, gamma, beta, eps)


def _relu_first(x, w, b, gamma, beta, mean, var, stride, padding, eps):
    return _norm(torch.relu(functional.conv2d(x, w, b, stride, padding)), mean, var, gamma, beta, eps)


def _no_bias(x, w, b, gamma, beta, mean, var, stride, padding, eps):
    return torch.relu(_norm(functional.conv2d(x, w, None, stride, padding), mean, var, gamma, beta, eps))


def _bias_after_norm(x, w, b, gamma, beta, mean, var, stride, padding, eps):
    y = _norm(functional.conv2d(x, w, None, stride, padding), mean, var, gamma, beta, eps)
    return torch.relu(y + _of_channels(b, y))


def _flipped(x, w, b, gamma, beta, mean, var, stride, padding, eps):
    return torch.relu(_norm(functional.conv2d(x, w.flip(2, 3), b, stride, padding), mean, var, gamma, beta, eps))


CONV_MISTAKES: dict[str, Callable] = {
    "the formula without ReLU": _no_relu,
    "ReLU first, then batch norm": _relu_first,
    "the formula without the convolution's bias": _no_bias,
    "the formula with the convolution's bias added after batch norm": _bias_after_norm,
    "the formula without beta": _no_beta,
    "the formula without gamma": _no_gamma,
    "the formula with the variance for the deviation": _variance_for_deviation,
    "the formula with eps outside the root": _root_and_eps,
    "the formula with the larger of variance and eps": _larger_of_variance_and_eps,
    "the formula with the mean subtracted after scaling": _mean_not_scaled,
    "a convolution with the filter turned by 180 degrees": _flipped,
}


# Exercises 10, (q, k, valid), and 10b, (q, k, v, causal)


def _wide(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _scores(q, k, scale: Callable[[int], float] = lambda dim: dim**-0.5):
    return _wide(q) @ _wide(k).mT * scale(q.shape[-1])


def _earlier(s, diagonal: int = 0):
    return torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(diagonal)


def _weights(s, seen, base: float = torch.e, divided: bool = True):
    """Return the softmax of the visible scores; rows that see none are 0."""
    s = s.masked_fill(~seen, -torch.inf)
    top = s.amax(-1, keepdim=True).clamp(min=torch.finfo(s.dtype).min) if s.shape[-1] else s
    e = torch.as_tensor(base, dtype=s.dtype, device=s.device) ** (s - top)
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0) if divided else e


def _masked(q, k, valid, scale=lambda dim: dim**-0.5, seen=None, **kind):
    s = _scores(q, k, scale)
    keys = valid[:, None, None, :]
    return _weights(s, (keys & _earlier(s)) if seen is None else seen(s, keys), **kind)


SCALES = {
    "the formula without 1/sqrt(dim)": lambda dim: 1.0,
    "the formula with sqrt(dim) for 1/sqrt(dim)": lambda dim: dim**0.5,
    "the formula with 1/dim for 1/sqrt(dim)": lambda dim: 1 / dim,
}
SEEN = {  # scores, which keys are valid -> which keys each query sees
    "the formula without the causal mask": lambda s, keys: keys.expand_as(s),
    "the formula with j < i for j <= i": lambda s, keys: keys & _earlier(s, -1),
    "the formula with j >= i for j <= i": lambda s, keys: keys & _earlier(s).mT,
    "the formula without valid": lambda s, keys: _earlier(s).expand_as(s),
    "the formula with valid taken for the queries' mask": lambda s, keys: keys.mT & _earlier(s),
}
NOT_DIVIDED, BASE_2 = "the formula without the division by the sum", "the formula with 2^s for e^s"

SCORES_MISTAKES: dict[str, Callable] = {
    **{said: partial(_masked, scale=scale) for said, scale in SCALES.items()},
    **{said: partial(_masked, seen=seen) for said, seen in SEEN.items()},
    NOT_DIVIDED: partial(_masked, divided=False),
    BASE_2: partial(_masked, base=2.0),
    "the formula with the keys that are not valid": lambda q, k, valid: _masked(q, k, valid == 0),
    "the formula with queries and keys exchanged in the result": lambda q, k, valid: _masked(q, k, valid).mT,
}


def _attention(q, k, v, causal, scale=lambda dim: dim**-0.5, diagonal: int = 0, **kind):
    s = _scores(q, k, scale)
    seen = _earlier(s, diagonal) if causal else torch.ones_like(s, dtype=torch.bool)
    return (_weights(s, seen, **kind) @ _wide(v)).to(v.dtype)


def _in_tiles(q, k, v, causal, keys: int, order: str):
    """Compute flash attention with a mistake in the state carried from one tile of keys to the next."""
    s = _scores(q, k)
    if causal:
        s = s.masked_fill(~_earlier(s), -torch.inf)
    top = torch.full_like(s[..., :1], -torch.inf)
    total, acc = torch.zeros_like(top), torch.zeros_like(_wide(q))
    for start in range(0, s.shape[-1], keys):
        tile, values = s[..., start : start + keys], _wide(v)[..., start : start + keys, :]
        grown = torch.maximum(top, tile.amax(-1, keepdim=True))
        e, shrink = torch.exp(tile - grown), torch.exp(top - grown)
        top, new, added = grown, e @ values, e.sum(-1, keepdim=True)
        match order:
            case "shrunk after adding":
                total, acc = (total + added) * shrink, (acc + new) * shrink
            case "acc shrunk after adding":
                total, acc = total * shrink + added, (acc + new) * shrink
            case "divided in each tile":
                total = total * shrink + added
                acc = (acc * shrink + new) / total
            case "acc not shrunk":
                total, acc = total * shrink + added, acc + new
            case "sum not shrunk":
                total, acc = total + added, acc * shrink + new
            case "nothing shrunk":
                total, acc = total + added, acc + new
            case "last tile":
                total, acc = added, new
    return (acc if order == "divided in each tile" else acc / total).to(v.dtype)


TOLD_ORDERS = {
    "acc and sum multiplied by f after the new tile was added": "shrunk after adding",
    "acc multiplied by f after the new tile was added": "acc shrunk after adding",
    "acc divided by the sum in every tile": "divided in each tile",
    "acc never multiplied by f": "acc not shrunk",
    "the sum never multiplied by f": "sum not shrunk",
    "neither acc nor the sum multiplied by f": "nothing shrunk",
    "the last tile alone": "last tile",
}
FLASH_MISTAKES: dict[str, Callable] = {
    "the formula with k for v": lambda q, k, v, causal: _attention(q, k, k, causal),
    **{said: partial(_attention, scale=scale) for said, scale in SCALES.items()},
    "the formula without the causal mask": lambda q, k, v, causal: _attention(q, k, v, False),
    "the formula with j < i for j <= i": partial(_attention, diagonal=-1),
    NOT_DIVIDED: partial(_attention, divided=False),
    BASE_2: partial(_attention, base=2.0),
    **{
        f"{said}, in tiles of {keys} keys": partial(_in_tiles, keys=keys, order=order)
        for said, order in TOLD_ORDERS.items()
        for keys in TILES
    },
}


# Exercise 17: (q, k, v, bounds)


def _splits(q, k, v, bounds, scale, block=2**30, order="", past_the_end=False, cut=(0, 0), zeros=False):
    """Return each split's maximum, sum and values, with a mistake in its loop over blocks of keys.

    `cut`: keys left out at each split's start and end; `zeros`: whether each score missing in the last block counts
    as 0.
    """
    s = (_wide(q)[:, None] * _wide(k)).sum(-1) * scale(q.shape[-1])
    found = []
    for first, last in itertools.pairwise(bounds.tolist()):
        peak = s.new_full((len(s), 1), -torch.inf)
        total, acc = torch.zeros_like(peak), torch.zeros_like(_wide(q))
        first, last = first + cut[0], last - cut[1]
        for start in range(first, last, block):
            end = start + block if past_the_end else min(start + block, last)
            tile, values = s[:, start:end], _wide(v)[:, start:end]
            if zeros:
                missing = block - tile.shape[1]
                tile, values = functional.pad(tile, (0, missing)), functional.pad(values, (0, 0, 0, missing))
            grown = torch.maximum(peak, tile.amax(-1, keepdim=True))
            e, shrink = torch.exp(tile - grown), torch.exp(peak - grown)
            total = total * (1 if order in ("sum not shrunk", "nothing shrunk") else shrink) + e.sum(-1, keepdim=True)
            acc = acc * (1 if order in ("acc not shrunk", "nothing shrunk") else shrink) + (e[:, None] @ values)[:, 0]
            peak = grown
        found.append((peak, total, acc))
    return (torch.stack(each, 1) for each in zip(*found, strict=True))


def _merged(share, total, acc):
    return (share * acc).sum(1), (share * total).sum(1)


def _split_decode(q, k, v, bounds, merge=_merged, scale=lambda dim: dim**-0.5, **loop):
    """Merge splits: `merge` turns each split's exp(its maximum - the largest), sum and values into a numerator and a
    denominator."""
    peak, total, acc = _splits(q, k, v, bounds, scale, **loop)
    share = torch.exp(peak - peak.amax(1, keepdim=True).clamp(min=-3e38))
    above, below = merge(share, total, acc)
    return (above / torch.where(below == 0, 1.0, below)).to(q.dtype)


def _own_results(total, acc):
    return acc / torch.where(total == 0, 1.0, total)


SPLIT_MISTAKES: dict[str, Callable] = {
    **{said: partial(_split_decode, scale=scale) for said, scale in SCALES.items()},
    **{
        said: partial(_split_decode, merge=merge)
        for said, merge in {
            NOT_DIVIDED: lambda share, total, acc: ((share * acc).sum(1), torch.ones_like(total[:, 0])),
            "the merge without the factors exp(m_s - m)": lambda share, total, acc: (acc.sum(1), total.sum(1)),
            "the merge without exp(m_s - m) before the sums": lambda share, total, acc: (
                (share * acc).sum(1),
                total.sum(1),
            ),
            "the merge without exp(m_s - m) before the values": lambda share, total, acc: (
                acc.sum(1),
                (share * total).sum(1),
            ),
            "the mean of the splits' own softmaxes": lambda share, total, acc: (
                _own_results(total, acc).sum(1),
                (total > 0).to(total.dtype).sum(1),
            ),
            "the splits' own softmaxes with weights exp(m_s - m), without the sums": lambda share, total, acc: (
                (share * _own_results(total, acc)).sum(1),
                share.sum(1),
            ),
            "the first split alone": lambda share, total, acc: (acc[:, 0], total[:, 0]),
            "the last split alone": lambda share, total, acc: (acc[:, -1], total[:, -1]),
        }.items()
    },
    **{
        f"{said}, in blocks of {keys} keys": partial(_split_decode, block=keys, **mistake)
        for said, mistake in {
            "acc never rescaled when a split's maximum grows": {"order": "acc not shrunk"},
            "the sum never rescaled when a split's maximum grows": {"order": "sum not shrunk"},
            "neither acc nor the sum rescaled when a split's maximum grows": {"order": "nothing shrunk"},
            "splits whose last block goes past their end": {"past_the_end": True},
            "scores of 0 for the lanes of a split's last block past its end": {"zeros": True},
        }.items()
        for keys in TILES
    },
    "splits without their first key": partial(_split_decode, cut=(1, 0)),
    "splits without their last key": partial(_split_decode, cut=(0, 1)),
    "the formula with k for v": lambda q, k, v, bounds: _split_decode(q, k, k, bounds),
    "splits without keys, whose maximum is still -inf": lambda q, k, v, bounds: torch.zeros_like(q),
}


# Exercise 11: (grad_y, x, weight, bias, eps)


class _NormBackward:
    """The intermediate values of exercise 11's formulas, in float32 or wider."""

    def __init__(self, grad_y, x, weight, bias, eps):
        self.kind, self.weight, self.grad_y = x.dtype, _wide(weight), _wide(grad_y)
        self.x = _wide(x)
        self.centred = self.x - self.x.mean(-1, keepdim=True)
        self.rstd = torch.rsqrt(self.centred.square().mean(-1, keepdim=True) + eps)
        self.x_hat = self.centred * self.rstd
        self.z = self.x_hat * self.weight + _wide(bias)
        self.gate = torch.sigmoid(1.702 * self.z)
        self.slope = self.gate + 1.702 * self.z * self.gate * (1 - self.gate)
        self.grad_z = self.grad_y * self.slope

    def gradients(self, grad_z=None, along=None, mean=1, stretch=1, rstd=None, of_weight=None, of_bias=None):
        """`mean` and `stretch` are factors of the two means."""
        grad_z = self.grad_z if grad_z is None else grad_z
        along = grad_z * self.weight if along is None else along
        off = mean * along.mean(-1, keepdim=True)
        turned = stretch * self.x_hat * (along * self.x_hat).mean(-1, keepdim=True)
        of_x = (self.rstd if rstd is None else rstd) * (along - off - turned)
        of_weight = grad_z * self.x_hat if of_weight is None else of_weight
        of_bias = grad_z if of_bias is None else of_bias
        rows = tuple(range(grad_z.dim() - 1))
        return of_x.to(self.kind), of_weight.sum(rows).to(self.kind), of_bias.sum(rows).to(self.kind)


def _backward(changed: Callable[[_NormBackward], dict]) -> Callable:
    def gradients(grad_y, x, weight, bias, eps):
        of = _NormBackward(grad_y, x, weight, bias, eps)
        return of.gradients(**changed(of))

    return gradients


def _exchanged(grad_y, x, weight, bias, eps):
    of_x, of_weight, of_bias = _NormBackward(grad_y, x, weight, bias, eps).gradients()
    return of_x, of_bias, of_weight


BACKWARD_MISTAKES: dict[str, Callable] = {
    "g_z = g s, without the slope of the gate": _backward(lambda of: {"grad_z": of.grad_y * of.gate}),
    "g_z = g, without the gate": _backward(lambda of: {"grad_z": of.grad_y}),
    "the slope of the gate without the factor 1.702": _backward(
        lambda of: {"grad_z": of.grad_y * (of.gate + of.z * of.gate * (1 - of.gate))}
    ),
    "the slope of the gate without the factor z": _backward(
        lambda of: {"grad_z": of.grad_y * (of.gate + 1.702 * of.gate * (1 - of.gate))}
    ),
    "the slope of the gate without the term s": _backward(lambda of: {"grad_z": of.grad_y * (of.slope - of.gate)}),
    "the slope of the gate with a minus": _backward(lambda of: {"grad_z": of.grad_y * (2 * of.gate - of.slope)}),
    "x's gradient without its first mean, that of g_z w": _backward(lambda of: {"mean": 0}),
    "x's gradient without its second mean, that of g_z w x_hat": _backward(lambda of: {"stretch": 0}),
    "x's gradient without either mean": _backward(lambda of: {"mean": 0, "stretch": 0}),
    "x's gradient with its first mean not divided by n": _backward(lambda of: {"mean": of.x.shape[-1]}),
    "x's gradient with its second mean not divided by n": _backward(lambda of: {"stretch": of.x.shape[-1]}),
    "x's gradient with its first mean added": _backward(lambda of: {"mean": -1}),
    "x's gradient with its second mean added": _backward(lambda of: {"stretch": -1}),
    "x's gradient without the factor r": _backward(lambda of: {"rstd": 1.0}),
    "x's gradient with r squared": _backward(lambda of: {"rstd": of.rstd.square()}),
    "x's gradient without the factor w": _backward(lambda of: {"along": of.grad_z}),
    "x's gradient with g for g_z": _backward(lambda of: {"along": of.grad_y * of.weight}),
    "the weight's gradient with x for x_hat": _backward(lambda of: {"of_weight": of.grad_z * of.x}),
    "the weight's gradient with x - mean for x_hat": _backward(lambda of: {"of_weight": of.grad_z * of.centred}),
    "the weight's gradient with z for x_hat": _backward(lambda of: {"of_weight": of.grad_z * of.z}),
    "the weight's gradient with g for g_z": _backward(lambda of: {"of_weight": of.grad_y * of.x_hat}),
    "the weight's gradient with the factor w": _backward(lambda of: {"of_weight": of.grad_z * of.weight * of.x_hat}),
    "the weight's gradient left at 0": _backward(lambda of: {"of_weight": 0 * of.grad_z}),
    "the bias's gradient left at 0": _backward(lambda of: {"of_bias": 0 * of.grad_z}),
    "the bias's gradient with g for g_z": _backward(lambda of: {"of_bias": of.grad_y}),
    "the bias's gradient with the factor w": _backward(lambda of: {"of_bias": of.grad_z * of.weight}),
    "the gradients of weight and bias, exchanged": _exchanged,
}


# Exercise 12: (x, weight, bias, eps, clip)


def _codes(x, weight, bias, eps, clip, of_codes=None, of_scale=None, largest=None, steps=127, norm=None, power=-1):
    y = (norm or functional.layer_norm)(_wide(x), x.shape[-1:], _wide(weight), _wide(bias), eps)
    top = (largest or (lambda y: y.abs().amax(-1, keepdim=True)))(y).clamp_min(1e-12)
    scale = (clip if of_scale is None else of_scale) * top / steps
    step = (clip if of_codes is None else of_codes) * top / steps
    q = (y * step**power).round().clamp(-127, 127).nan_to_num(0.0)
    return q.to(torch.int8), scale.to(torch.promote_types(x.dtype, torch.float32))


def _times_the_root(x, shape, weight, bias, eps):
    return _times_deviation(x, weight, bias, eps)


def _x_for_centred(x, shape, weight, bias, eps):
    return _not_centred(x, weight, bias, eps)


def _without(weight: bool, bias: bool):
    def norm(x, shape, w, b, eps):
        return functional.layer_norm(x, shape, w if weight else None, b if bias else None, eps)

    return norm


INT8_MISTAKES: dict[str, Callable] = {
    "codes that ignore clip": partial(_codes, of_codes=1.0),
    "a scale that ignores clip": partial(_codes, of_scale=1.0),
    "the formula without clip": partial(_codes, of_codes=1.0, of_scale=1.0),
    "a scale with 128 for 127": partial(_codes, steps=128),
    "a scale with 255 for 127": partial(_codes, steps=255),
    "codes of y times the scale": partial(_codes, power=1),
    "the formula multiplied by the root instead of divided by it": partial(_codes, norm=_times_the_root),
    "the formula with x for x - mean in the numerator": partial(_codes, norm=_x_for_centred),
    "a scale of the largest y, not of the largest |y|": partial(_codes, largest=lambda y: y.amax(-1, keepdim=True)),
    "one scale for all rows": partial(_codes, largest=lambda y: y.abs().amax().expand(*y.shape[:-1], 1)),
    "the formula without the weight": partial(_codes, norm=_without(weight=False, bias=True)),
    "the formula without the bias": partial(_codes, norm=_without(weight=True, bias=False)),
}


# Exercise 15: (x, gate, residual, weight, eps), and backward (grad_y, x, gate, weight, eps)


def _centred_product(x, gate, residual):
    h = x * functional.silu(gate)
    return h - h.mean(-1, keepdim=True)


def _gated(
    x, gate, residual, weight, eps, of_h=None, of_rms=None, of_norm=lambda n, w: n * w, after=None, power: float = -0.5
):
    wide_x, wide_gate, wide_residual = _wide(x), _wide(gate), _wide(residual)
    h = wide_x * functional.silu(wide_gate) if of_h is None else of_h(wide_x, wide_gate, wide_residual)
    mean = h.square().mean(-1, keepdim=True) if of_rms is None else of_rms(h, wide_x)
    y = of_norm(h * (mean + eps) ** power, _wide(weight))
    return (y + wide_residual if after is None else after(y, wide_residual)).to(x.dtype)


BLOCK_MISTAKES: dict[str, Callable] = {
    "the block without the residual": partial(_gated, after=lambda y, residual: y),
    "the block without the weight": partial(_gated, of_norm=lambda n, w: n),
    "the block without the gate": partial(_gated, of_h=lambda x, gate, residual: x),
    "x times sigmoid(gate) for x times silu(gate)": partial(_gated, of_h=lambda x, gate, _: x * gate.sigmoid()),
    "x times gate for x times silu(gate)": partial(_gated, of_h=lambda x, gate, _: x * gate),
    "silu of x for silu of the gate": partial(_gated, of_h=lambda x, gate, _: gate * functional.silu(x)),
    "the root mean square of x for that of h": partial(_gated, of_rms=lambda h, x: x.square().mean(-1, keepdim=True)),
    "the sum of squares for their mean": partial(_gated, of_rms=lambda h, _: h.square().sum(-1, keepdim=True)),
    "the residual added before the norm": partial(
        _gated, of_h=lambda x, gate, residual: x * functional.silu(gate) + residual, after=lambda y, _: y
    ),
    "the residual added before the norm and after it": partial(
        _gated, of_h=lambda x, gate, residual: x * functional.silu(gate) + residual
    ),
    "the block with gate and residual exchanged": lambda x, gate, residual, w, eps: _gated(x, residual, gate, w, eps),
    "LayerNorm, which subtracts the mean of h": partial(_gated, of_h=_centred_product),
    "the block multiplied by the root mean square instead of divided by it": partial(_gated, power=0.5),
}


class _BlockBackward:
    """The intermediate values of exercise 15's backward pass, in float32 or wider."""

    def __init__(self, grad_y, x, gate, weight, eps):
        self.kind, self.grad_y, self.x, self.gate, self.weight = x.dtype, *map(_wide, (grad_y, x, gate, weight))
        self.s = self.gate.sigmoid()
        self.slope = self.s * (1 + self.gate * (1 - self.s))
        self.h = self.x * self.gate * self.s
        self.rstd = torch.rsqrt(self.h.square().mean(-1, keepdim=True) + eps)
        self.h_hat = self.h * self.rstd

    def gradients(self, along=None, stretch=1, rstd=None, by_gate=None, by_x=None, slope=None, of_weight=None):
        """`stretch` is a factor of the mean that x's and the gate's gradients subtract."""
        along = self.grad_y * self.weight if along is None else along
        turned = stretch * self.h_hat * (along * self.h_hat).mean(-1, keepdim=True)
        grad_h = (self.rstd if rstd is None else rstd) * (along - turned)
        of_x = grad_h * (self.gate * self.s if by_gate is None else by_gate)
        of_gate = grad_h * (self.x if by_x is None else by_x) * (self.slope if slope is None else slope)
        of_weight = self.grad_y * self.h_hat if of_weight is None else of_weight
        rows = tuple(range(of_weight.dim() - 1))
        return of_x.to(self.kind), of_gate.to(self.kind), of_weight.sum(rows).to(self.kind)


def _block_backward(changed: Callable[[_BlockBackward], dict]) -> Callable:
    def gradients(grad_y, x, gate, weight, eps):
        of = _BlockBackward(grad_y, x, gate, weight, eps)
        return of.gradients(**changed(of))

    return gradients


def _x_and_gate_exchanged(grad_y, x, gate, weight, eps):
    of_x, of_gate, of_weight = _BlockBackward(grad_y, x, gate, weight, eps).gradients()
    return of_gate, of_x, of_weight


BLOCK_BACKWARD_MISTAKES: dict[str, Callable] = {
    "the gate's gradient with sigmoid(gate) for the slope of silu": _block_backward(lambda of: {"slope": of.s}),
    "the gate's gradient with silu(gate) for the slope of silu": _block_backward(lambda of: {"slope": of.gate * of.s}),
    "the gate's gradient without the factor gate in the slope of silu": _block_backward(
        lambda of: {"slope": of.s * (2 - of.s)}
    ),
    "the gate's gradient with the slope of sigmoid": _block_backward(lambda of: {"slope": of.s * (1 - of.s)}),
    "x's gradient with sigmoid(gate) for silu(gate)": _block_backward(lambda of: {"by_gate": of.s}),
    "x's gradient without the gate": _block_backward(lambda of: {"by_gate": 1.0}),
    "the gate's gradient with gate for x": _block_backward(lambda of: {"by_x": of.gate}),
    "gradients in which the root mean square is a constant": _block_backward(lambda of: {"stretch": 0}),
    "the gradients of x and the gate with their mean not divided by n": _block_backward(
        lambda of: {"stretch": of.x.shape[-1]}
    ),
    "the gradients of x and the gate with their mean added": _block_backward(lambda of: {"stretch": -1}),
    "the gradients of x and the gate without 1 / RMS": _block_backward(lambda of: {"rstd": 1.0}),
    "the gradients of x and the gate without the weight": _block_backward(lambda of: {"along": of.grad_y}),
    "the weight's gradient with h, not divided by its RMS": _block_backward(lambda of: {"of_weight": of.grad_y * of.h}),
    "the weight's gradient with x for h": _block_backward(lambda of: {"of_weight": of.grad_y * of.x * of.rstd}),
    "the weight's gradient with the factor weight": _block_backward(
        lambda of: {"of_weight": of.grad_y * of.weight * of.h_hat}
    ),
    "the weight's gradient left at 0": _block_backward(lambda of: {"of_weight": 0 * of.grad_y}),
    "the gradients of x and the gate, exchanged": _x_and_gate_exchanged,
}


# Exercise 16: (x, up, weight, eps)


def _silu_times(x, up, weight, eps, of_norm=None, of_gate=functional.silu, **kind):
    """silu(rms_norm(x) weight) up, in float32, rounded once as the exercise asks."""
    wide_x, wide_up, weight = map(_wide, (x, up, weight))
    normed = _rms_norm(wide_x, weight, eps, **kind) if of_norm is None else of_norm(wide_x, weight, eps)
    return (of_gate(normed) * wide_up).to(x.dtype)


def _silu_of_the_product(x, up, weight, eps):
    return functional.silu(_silu_times(x, up, weight, eps, of_gate=lambda y: y))


SILU_NORM_MISTAKES: dict[str, Callable] = {
    "the formula without the weight": partial(_silu_times, of_norm=lambda x, w, eps: _rms_norm(x, 1, eps)),
    "the formula without SiLU": partial(_silu_times, of_gate=lambda y: y),
    "the formula with sigmoid(y) for y sigmoid(y)": partial(_silu_times, of_gate=torch.sigmoid),
    "the formula without up": lambda x, up, w, eps: _silu_times(x, torch.ones_like(up), w, eps),
    "SiLU of up times the norm, as gated layers have it": lambda x, up, w, eps: _silu_times(
        x, functional.silu(up), w, eps, of_gate=lambda y: y
    ),
    "SiLU after the product with up": _silu_of_the_product,
    "the formula with the weight after SiLU": lambda x, up, w, eps: _silu_times(x, up, torch.ones_like(w), eps) * w,
    "LayerNorm, which subtracts the mean": partial(_silu_times, of_norm=lambda x, w, eps: _layer_norm(x, w, 0, eps)),
    "the formula with the mean square for its root": partial(_silu_times, power=-1),
    "the formula multiplied by the root instead of divided by it": partial(_silu_times, power=0.5),
    "the formula with the sum of squares not divided by n": partial(_silu_times, mean=torch.sum),
    "the formula with x not divided by the root": partial(_silu_times, power=0),
}


# Exercise 18: (x, residual, gate, weight, eps)


def _gated_norm(x, residual, gate, weight, eps, of_norm=None, of_gate=functional.silu, of_sum=None, **kind):
    wide_x, wide_residual, wide_gate, weight = map(_wide, (x, residual, gate, weight))
    s = wide_x + wide_residual
    normed = _rms_norm(s, weight, eps, **kind) if of_norm is None else of_norm(wide_x, wide_residual, weight, eps)
    y = normed * of_gate(wide_gate)
    s = s if of_sum is None else of_sum(wide_x, wide_residual, wide_gate, y)
    return y.to(x.dtype), s.to(x.dtype)


def _normed(of: Callable, by: Callable | None = None):
    """Normalise other values than the sum, or divide by the mean square of something else."""

    def norm(x, residual, weight, eps):
        square = (by or of)(x, residual).square().mean(-1, keepdim=True)
        return of(x, residual) * (square + eps).rsqrt() * weight

    return norm


def _silu_before_the_norm(x, residual, gate, weight, eps):
    s = x + residual
    return _rms_norm(s * functional.silu(gate), weight, eps), s


def _silu_of_the_norm(x, residual, gate, weight, eps):
    return functional.silu(_rms_norm(x + residual, weight, eps)) * gate, x + residual


GATED_NORM_MISTAKES: dict[str, Callable] = {
    "the formula without the gate": partial(_gated_norm, of_gate=torch.ones_like),
    "the formula with sigmoid(g) for g sigmoid(g)": partial(_gated_norm, of_gate=torch.sigmoid),
    "the formula with g for g sigmoid(g)": partial(_gated_norm, of_gate=lambda gate: gate),
    "the formula without the weight": partial(_gated_norm, of_norm=lambda x, r, w, eps: _rms_norm(x + r, 1, eps)),
    "the formula with the gate before the norm": _silu_before_the_norm,
    "SiLU of the norm times g, not SiLU of g": _silu_of_the_norm,
    "the norm of x alone": partial(_gated_norm, of_norm=_normed(lambda x, r: x)),
    "the norm of the residual alone": partial(_gated_norm, of_norm=_normed(lambda x, r: r)),
    "the formula with the mean square of x for that of s": partial(
        _gated_norm, of_norm=_normed(lambda x, r: x + r, lambda x, r: x)
    ),
    "LayerNorm, which subtracts the mean": partial(
        _gated_norm, of_norm=lambda x, r, w, eps: _layer_norm(x + r, w, 0, eps)
    ),
    "the formula with the mean square for its root": partial(_gated_norm, power=-1),
    "the formula with the sum of squares not divided by n": partial(_gated_norm, mean=torch.sum),
    "the formula, and s times the gate": partial(_gated_norm, of_sum=lambda x, r, gate, y: (x + r) * gate),
    "the formula, and s times silu of the gate": partial(
        _gated_norm, of_sum=lambda x, r, gate, y: (x + r) * functional.silu(gate)
    ),
    "the two results, exchanged": lambda *given: _gated_norm(*given)[::-1],
    "y twice": partial(_gated_norm, of_sum=lambda x, r, gate, y: y),
    "y and the residual as it was": partial(_gated_norm, of_sum=lambda x, r, gate, y: r),
    "y and x": partial(_gated_norm, of_sum=lambda x, r, gate, y: x),
}
