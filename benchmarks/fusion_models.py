"""The graphs that test the fusion analyser: name -> Graph, a plainly written function and its inputs.

    function, inputs = GRAPHS["gpt2_block"].build("cuda")

Every tensor that a function uses is one of its inputs, weights included, so a trace hides nothing. A training step is
one function, forward and backward, that returns the gradients or the new weights.

The references of the course's kernels are `fitted`: the constants of helpers/instruments/prediction.py come from ten of
these kernels. No constant was fitted to any other graph. Those are held out, and predictions are judged on them alone.

`small` sizes keep every operation and fit on a laptop, where the traffic meter runs the graphs that the analyser only
reads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from kernels import CATALOGUE


class Tensors:
    """Makes a graph's inputs on one device, in bf16 by default."""

    def __init__(self, device: str):
        self.device = device

    def __call__(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype) * scale

    def weight(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """(out, in, ...), so small that results are of the inputs' size."""
        return self(*shape, scale=math.prod(shape[1:]) ** -0.5, dtype=dtype)

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(high, shape, device=self.device, dtype=dtype)

    def norm(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias of a normalisation."""
        return self(width), self(width)


@dataclass(frozen=True)
class Graph:
    """One graph.

    family: its category. make: `make(new, **sizes) -> (function, inputs)`. real, small: its sizes on an H200
    and on a laptop. fitted: whether a constant was fitted to its times. training: whether a backward pass is in it.
    """

    family: str
    make: Callable
    real: dict
    small: dict
    fitted: bool = False
    training: bool = False

    def build(self, device: str, small: bool = False) -> tuple[Callable, tuple[torch.Tensor, ...]]:
        """Return the function and its inputs; `device`: "cuda", "cpu" or, for shapes alone, "meta"."""
        return self.make(Tensors(device), **(self.small if small else self.real))


GRAPHS: dict[str, Graph] = {}


def graph(family: str, small: dict, training: bool = False) -> Callable[[Callable], Callable]:
    """Register a maker: the real sizes are its defaults."""

    def register(make: Callable) -> Callable:
        names = make.__code__.co_varnames[1 : make.__code__.co_argcount]
        real = dict(zip(names, make.__defaults__, strict=True))
        GRAPHS[make.__name__] = Graph(family, make, real, real | small, training=training)
        return make

    return register


def gradients(loss: Callable, count: int) -> Callable:
    """Return a function for `loss(*inputs)` and its gradients with respect to the first `count` inputs."""

    def step(*inputs):
        leaves = [x.detach().requires_grad_() for x in inputs[:count]]
        value = loss(*leaves, *inputs[count:])
        return value.detach(), *torch.autograd.grad(value, leaves)

    return step


# The catalogue's references.

CATALOGUE_SHAPES = {
    "add_gelu": ((100_000_000,), (4, 1024)),
    "residual_act": ((100_000_000,), (4, 1024)),
    "swiglu": ((16384, 11008), (4, 1024)),
    "geglu": ((16384, 11008), (4, 1024)),
    "bias_dropout_residual": ((16384, 4096), (4, 1024)),
    "softmax": ((32768, 4096), (4, 1024)),
    "softmax_dropout": ((32768, 4096), (4, 1024)),
    "softmax_topk": ((32768, 4096), (4, 1024)),
    "cross_entropy": ((32768, 16384), (4, 1024)),
    "layer_norm_act": ((32768, 4096), (4, 1024)),
    "layer_norm_int8": ((32768, 4096), (4, 1024)),
    "residual_layer_norm": ((32768, 4096), (4, 1024)),
    "rms_norm": ((32768, 4096), (4, 1024)),
    "residual_rms_norm": ((32768, 4096), (4, 1024)),
    "l2_norm": ((32768, 4096), (4, 1024)),
    "linear_act": ((4096, 4096, 4096), (64, 32, 48)),
    "ffn": ((8192, 4096, 11008, True), (64, 32, 48, True)),
    "conv_bn_act": ((32, 256, 28, 28, 256, 3), (2, 8, 8, 8, 16, 3)),
    "attention_scores": ((4, 16, 2048, 64, False), (2, 2, 32, 16, False)),
    "flash_attention": ((4, 16, 4096, 128, True), (2, 2, 32, 16, True)),
}


def _catalogue(name: str) -> Callable:
    def make(new: Tensors, shape: tuple):
        op = CATALOGUE[name]
        dtype = torch.float32 if torch.float32 in op.gpu_dtypes else torch.bfloat16
        given = op.inputs(*shape, dtype=dtype, device=new.device)
        tensors = tuple(each for each in given if isinstance(each, torch.Tensor))

        def function(*tensors):
            left = iter(tensors)
            return op.reference(*(next(left) if isinstance(each, torch.Tensor) else each for each in given))

        return function, tensors

    return make


for _name, (_real, _small) in CATALOGUE_SHAPES.items():
    _family = f"catalogue, {CATALOGUE[_name].group}"
    GRAPHS[_name] = Graph(_family, _catalogue(_name), {"shape": _real}, {"shape": _small}, fitted=True)


# Elementwise operations, losses, optimizers.


@graph("elementwise", {"rows": 8, "columns": 64})
def siblings(new, rows=16384, columns=8192):
    """Three activations of one input; they share only the input."""
    return lambda x: (torch.relu(x), torch.sigmoid(x), torch.tanh(x)), (new(rows, columns),)


@graph("elementwise", {"rows": 8, "columns": 64})
def hard_swish_chain(new, rows=16384, columns=8192):
    """An activation written by hand, in five operations."""
    return lambda x, bias: (x + bias) * torch.clamp(x + bias + 3, 0, 6) / 6, (new(rows, columns), new(columns))


@graph("elementwise", {"tokens": 8, "heads": 2})
def rotary(new, tokens=8192, heads=32, dim=128):
    """Rotary position embedding of queries and keys."""

    def function(q, k, cos, sin):
        return _rotated(q, cos, sin), _rotated(k, cos, sin)

    return function, (new(heads, tokens, dim), new(heads, tokens, dim), new(tokens, dim), new(tokens, dim))


def _rotated(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


@graph("elementwise", {"images": 2, "size": 16})
def image_normalise(new, images=256, size=224):
    """Convert bytes to a network's float inputs."""
    pixels = new.integers(256, images, 3, size, size, dtype=torch.uint8)

    def function(pixels, mean, deviation):
        return ((pixels.float() / 255 - mean) / deviation).to(torch.bfloat16)

    return function, (pixels, new(3, 1, 1, dtype=torch.float32), new(3, 1, 1, dtype=torch.float32) + 5)


@graph("optimizer", {"width": 16})
def adam_step(new, width=4096, layers=4):
    """Adam for several weights, one after the other, in fp32."""

    def function(*state):
        found = []
        for weight, grad, first, second in zip(*(state[k::4] for k in range(4)), strict=True):
            first = first * 0.9 + grad * 0.1
            second = second * 0.999 + grad * grad * 0.001
            found += [weight - 1e-3 * (first / 0.1) / ((second / 0.001).sqrt() + 1e-8), first, second]
        return tuple(found)

    one = [(new(width, width, dtype=torch.float32), new(width, width, dtype=torch.float32)) for _ in range(2 * layers)]
    return function, tuple(each.abs() for pair in one for each in pair)


@graph("optimizer", {"width": 16})
def clipped_sgd(new, width=4096, layers=4):
    """Gradients clipped by their common norm, then applied."""

    def function(*tensors):
        weights, grads = tensors[:layers], tensors[layers:]
        norm = torch.stack([(grad * grad).sum() for grad in grads]).sum().sqrt()
        scale = torch.clamp(1 / (norm + 1e-6), max=1.0)
        return tuple(weight - 0.1 * scale * grad for weight, grad in zip(weights, grads, strict=True))

    return function, tuple(new(width, width, dtype=torch.float32) for _ in range(2 * layers))


@graph("loss", {"rows": 4, "classes": 64})
def distillation_loss(new, rows=8192, classes=32768):
    """Kullback-Leibler divergence of a student from its teacher, at a temperature of 2."""

    def function(student, teacher):
        wanted = functional.softmax(teacher.float() / 2, dim=-1)
        return (
            (wanted * (wanted.clamp_min(1e-9).log() - functional.log_softmax(student.float() / 2, dim=-1)))
            .sum(-1)
            .mean()
        )

    return function, (new(rows, classes), new(rows, classes))


@graph("loss", {"rows": 4, "classes": 64})
def focal_loss(new, rows=16384, classes=1024):
    """Focal loss of independent labels."""

    def function(logits, labels):
        p = torch.sigmoid(logits)
        entropy = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        right = p * labels + (1 - p) * (1 - labels)
        return (entropy * (1 - right) ** 2).mean()

    logits = new(rows, classes, dtype=torch.float32)
    return function, (logits, (logits > 1).float())


@graph("loss", {"pairs": 16, "width": 32})
def contrastive_loss(new, pairs=8192, width=768):
    """CLIP's loss: both directions of one matrix of similarities."""

    def function(images, texts, labels):
        images = images / images.norm(dim=-1, keepdim=True)
        texts = texts / texts.norm(dim=-1, keepdim=True)
        logits = (images @ texts.T) * 14.3
        return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2

    return function, (new(pairs, width), new(pairs, width), new.integers(pairs, pairs))


@graph("training", {"rows": 4, "classes": 64}, training=True)
def cross_entropy_step(new, rows=8192, classes=32768):
    """Cross entropy, and its gradient with respect to the logits."""
    return gradients(lambda x, labels: functional.cross_entropy(x, labels), 1), (
        new(rows, classes),
        new.integers(classes, rows),
    )


# Normalisations.


@graph("norm", {"rows": 8, "columns": 64})
def standardise(new, rows=32768, columns=4096):
    """Rows to mean 0 and variance 1, written by hand."""

    def function(x):
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred / ((centred * centred).mean(dim=-1, keepdim=True) + 1e-5).sqrt()

    return function, (new(rows, columns, dtype=torch.float32),)


@graph("norm", {"rows": 8, "columns": 64})
def column_statistics(new, rows=65536, columns=2048):
    """Columns to mean 0 and range 1: the other axis."""

    def function(x):
        low, high = x.amin(dim=0), x.amax(dim=0)
        return (x - low) / (high - low + 1e-3)

    return function, (new(rows, columns),)


@graph("norm", {"images": 2, "channels": 32, "size": 4})
def group_norm_silu(new, images=16, channels=320, size=64):
    """The activation of a diffusion model's blocks."""
    x = new(images, channels, size, size)
    return lambda x, weight, bias: functional.silu(functional.group_norm(x, 32, weight, bias)), (x, *new.norm(channels))


@graph("norm", {"tokens": 16, "width": 64, "words": 100})
def bert_embedding(new, tokens=512, width=768, words=30522, batch=32):
    """Words, positions and segments, added and normalised."""

    def function(ids, segments, word_table, position_table, segment_table, weight, bias):
        x = functional.embedding(ids, word_table) + position_table + functional.embedding(segments, segment_table)
        return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-12)

    ids = new.integers(words, batch, tokens), new.integers(2, batch, tokens)
    return function, (*ids, new(words, width), new(tokens, width), new(2, width), *new.norm(width))


@graph("training", {"rows": 8, "width": 64}, training=True)
def norm_step(new, rows=16384, width=4096):
    """Residual, LayerNorm, GELU: forward and backward."""

    def loss(x, residual, weight, bias, upstream):
        return (functional.gelu(functional.layer_norm(x + residual, x.shape[-1:], weight, bias)) * upstream).sum()

    return gradients(loss, 4), (new(rows, width), new(rows, width), *new.norm(width), new(rows, width))


# Transformers.


def _heads(x, count):
    batch, tokens, width = x.shape
    return x.view(batch, tokens, count, width // count).transpose(1, 2)


def _attention(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf)
    y = functional.softmax(scores, dim=-1) @ v
    return y.transpose(1, 2).flatten(2)


def _layer(new, width, hidden):
    """Weights of a transformer block: norm, qkv, projection, norm, up, down, each with its bias."""
    shapes = (3 * width, width), (width, width), (hidden, width), (width, hidden)
    qkv, out, up, down = ((new.weight(*shape), new(shape[0], scale=0.1)) for shape in shapes)
    return (*new.norm(width), *qkv, *out, *new.norm(width), *up, *down)


@graph("transformer", {"batch": 2, "tokens": 16, "width": 64, "heads": 4})
def bert_layer(new, batch=32, tokens=512, width=768, heads=12):
    """Norms after the residuals, GELU by erf, padding masked."""

    def function(x, padding, g1, b1, qkv, bqkv, out, bout, g2, b2, up, bup, down, bdown):
        q, k, v = functional.linear(x, qkv, bqkv).chunk(3, dim=-1)
        y = _attention(_heads(q, heads), _heads(k, heads), _heads(v, heads), padding[:, None, None])
        x = functional.layer_norm(x + functional.linear(y, out, bout), x.shape[-1:], g1, b1)
        y = functional.linear(functional.gelu(functional.linear(x, up, bup)), down, bdown)
        return functional.layer_norm(x + y, x.shape[-1:], g2, b2)

    padding = new.integers(64, batch, tokens) == 0
    return function, (new(batch, tokens, width), padding, *_layer(new, width, 4 * width))


def _gpt2(heads):
    def function(x, mask, g1, b1, qkv, bqkv, out, bout, g2, b2, up, bup, down, bdown):
        q, k, v = functional.linear(functional.layer_norm(x, x.shape[-1:], g1, b1), qkv, bqkv).chunk(3, dim=-1)
        x = x + functional.linear(_attention(_heads(q, heads), _heads(k, heads), _heads(v, heads), mask), out, bout)
        y = functional.gelu(
            functional.linear(functional.layer_norm(x, x.shape[-1:], g2, b2), up, bup), approximate="tanh"
        )
        return x + functional.linear(y, down, bdown)

    return function


def _causal(new, tokens):
    return torch.ones(tokens, tokens, dtype=torch.bool, device=new.device).triu(1)


@graph("transformer", {"batch": 2, "tokens": 16, "width": 64, "heads": 4})
def gpt2_block(new, batch=16, tokens=1024, width=768, heads=12):
    """Norms before, GELU by tanh, causal."""
    x = new(batch, tokens, width)
    return _gpt2(heads), (x, _causal(new, tokens), *_layer(new, width, 4 * width))


@graph("training", {"batch": 2, "tokens": 16, "width": 64, "heads": 4}, training=True)
def gpt2_step(new, batch=8, tokens=1024, width=768, heads=12):
    """The same block, forward and backward."""

    def loss(x, *rest):
        *weights, mask, upstream = rest
        return (_gpt2(heads)(x, mask, *weights) * upstream).sum()

    x, upstream = new(batch, tokens, width), new(batch, tokens, width)
    return gradients(loss, 13), (x, *_layer(new, width, 4 * width), _causal(new, tokens), upstream)


def _rms(x, weight):
    """As in Llama: computed in fp32, then converted back."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


@graph("transformer", {"tokens": 16, "width": 64, "heads": 4, "hidden": 96})
def llama_block(new, batch=1, tokens=4096, width=4096, heads=32, hidden=11008):
    """RMSNorm written by hand, rotary embedding, SwiGLU, no biases."""

    def function(x, mask, cos, sin, g1, wq, wk, wv, out, g2, gate, up, down):
        y = _rms(x, g1)
        q, k, v = (_heads(functional.linear(y, weight), heads) for weight in (wq, wk, wv))
        y = _attention(_rotated(q, cos, sin), _rotated(k, cos, sin), v, mask)
        x = x + functional.linear(y, out)
        y = _rms(x, g2)
        return x + functional.linear(functional.silu(functional.linear(y, gate)) * functional.linear(y, up), down)

    dim = width // heads
    weights = new(width), *(new.weight(width, width) for _ in range(4)), new(width)
    wide = new.weight(hidden, width), new.weight(hidden, width), new.weight(width, hidden)
    return function, (
        new(batch, tokens, width),
        _causal(new, tokens),
        *(new(tokens, dim), new(tokens, dim)),
        *weights,
        *wide,
    )


@graph("training", {"rows": 16, "width": 32, "hidden": 48}, training=True)
def swiglu_step(new, rows=8192, width=2048, hidden=5632):
    """Llama's feed-forward block with its norm and residual, forward and backward."""

    def loss(x, weight, gate, up, down, upstream):
        y = _rms(x, weight)
        return (
            (x + functional.linear(functional.silu(functional.linear(y, gate)) * functional.linear(y, up), down))
            * upstream
        ).sum()

    weights = new(width), new.weight(hidden, width), new.weight(hidden, width), new.weight(width, hidden)
    return gradients(loss, 5), (new(rows, width), *weights, new(rows, width))


@graph("transformer", {"images": 2, "size": 32, "width": 64, "heads": 4})
def vit_block(new, images=64, size=224, width=768, heads=12):
    """Patches, positions, and one block with LayerScale."""

    def function(pixels, patch, positions, scale1, scale2, g1, b1, qkv, bqkv, out, bout, g2, b2, up, bup, down, bdown):
        x = functional.conv2d(pixels, patch, stride=16).flatten(2).transpose(1, 2) + positions
        q, k, v = functional.linear(functional.layer_norm(x, x.shape[-1:], g1, b1), qkv, bqkv).chunk(3, dim=-1)
        y = _attention(_heads(q, heads), _heads(k, heads), _heads(v, heads))
        x = x + scale1 * functional.linear(y, out, bout)
        y = functional.gelu(functional.linear(functional.layer_norm(x, x.shape[-1:], g2, b2), up, bup))
        return x + scale2 * functional.linear(y, down, bdown)

    pixels, patch = new(images, 3, size, size), new.weight(width, 3, 16, 16)
    positions = new((size // 16) ** 2, width)
    return function, (pixels, patch, positions, new(width), new(width), *_layer(new, width, 4 * width))


@graph("mixture of experts", {"tokens": 16, "width": 32, "hidden": 48})
def mixtral_experts(new, tokens=4096, width=2048, hidden=3584, experts=8):
    """Two experts per token, every expert run on every token and weighted: the code that ignores cost."""

    def function(x, router, gates, ups, downs):
        weights, chosen = functional.softmax(functional.linear(x, router).float(), dim=-1).topk(2, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        y = torch.zeros_like(x)
        for expert in range(experts):
            share = (weights * (chosen == expert)).sum(-1, keepdim=True)
            hidden = functional.silu(functional.linear(x, gates[expert])) * functional.linear(x, ups[expert])
            y = y + share * functional.linear(hidden, downs[expert])
        return y

    wide = new.weight(experts, hidden, width) * experts**0.5
    return function, (
        new(tokens, width),
        new.weight(experts, width),
        wide,
        wide.clone(),
        new(experts, width, hidden, scale=hidden**-0.5),
    )


@graph("state space", {"tokens": 32, "heads": 2, "dim": 16, "state": 8, "chunk": 8})
def mamba_block(new, tokens=4096, heads=32, dim=64, state=64, chunk=64):
    """Mamba-2: short convolution, gates, the scan in chunks (Dao and Gu 2024, listing 1), a gated norm."""
    width, chunks = heads * dim, tokens // chunk

    def function(x, project, taps, dt_bias, log_a, weight, out, later):
        z, xbc, dt = functional.linear(x, project).split([width, width + 2 * state, heads], dim=-1)
        xbc = functional.silu(
            functional.conv1d(xbc.T[None], taps, padding=3, groups=width + 2 * state)[0, :, :tokens].T
        )
        u, b, c = xbc.split([width, state, state], dim=-1)
        dt = functional.softplus(dt.float() + dt_bias)
        decay = (-torch.exp(log_a) * dt).view(chunks, chunk, heads).permute(2, 0, 1)
        u = (u.view(tokens, heads, dim) * dt[..., None].to(u.dtype)).view(chunks, chunk, heads, dim).permute(2, 0, 1, 3)
        b, c = b.view(chunks, chunk, state), c.view(chunks, chunk, state)

        total = decay.cumsum(-1)  # heads, chunks, chunk
        between = (total[..., :, None] - total[..., None, :]).masked_fill(later, -math.inf).exp().to(u.dtype)
        inside = ((c @ b.transpose(-1, -2)) * between) @ u
        to_end = (total[..., -1:] - total).exp().to(u.dtype)
        states = (b[None] * to_end[..., None]).transpose(-1, -2) @ u  # heads, chunks, state, dim
        ends = total[..., -1].cumsum(-1)
        ends = functional.pad(ends, (1, 0))
        carried = (ends[:, :-1, None] - ends[:, None, 1:]).masked_fill(
            torch.ones(chunks, chunks, dtype=torch.bool, device=x.device).triu(), -math.inf
        )
        before = (carried.exp().to(u.dtype) @ states.flatten(2)).view(states.shape)
        across = (c[None] * total.exp().to(u.dtype)[..., None]) @ before
        y = (inside + across).permute(1, 2, 0, 3).reshape(tokens, width)
        return functional.linear(_rms(y * functional.silu(z), weight), out)

    later = torch.ones(chunk, chunk, dtype=torch.bool, device=new.device).triu(1)
    project = new.weight(2 * width + 2 * state + heads, width)
    taps = new.weight(width + 2 * state, 1, 4)
    gates = new(heads, dtype=torch.float32), new(heads, dtype=torch.float32)
    return function, (new(tokens, width), project, taps, *gates, new(width), new.weight(width, width), later)


@graph("training", {"rows": 16, "width": 32}, training=True)
def mlp_step(new, rows=16384, width=1024, classes=1000):
    """Three layers with GELU and dropout's mask given, cross entropy, gradients, one step of SGD."""

    def loss(w1, b1, w2, b2, w3, b3, x, keep, labels):
        x = functional.gelu(functional.linear(x, w1, b1))
        x = functional.gelu(functional.linear(x * keep / 0.9, w2, b2))
        return functional.cross_entropy(functional.linear(x, w3, b3), labels)

    def function(*tensors):
        value, *grads = gradients(loss, 6)(*tensors)
        return value, *(weight - 0.01 * grad for weight, grad in zip(tensors[:6], grads, strict=True))

    layers = [(new.weight(size, width), new(size)) for size in (width, width, classes)]
    inputs = new(rows, width), (new(rows, width) > -1.3).to(torch.bfloat16), new.integers(classes, rows)
    return function, (*(each for layer in layers for each in layer), *inputs)


# Convolutions.


def _batch_norm(new, channels):
    """Mean, variance, weight and bias of an inference batch norm."""
    return new(channels), new(channels).abs() + 0.5, *new.norm(channels)


@graph("convolution", {"images": 2, "size": 16})
def conv_stem(new, images=64, size=224, channels=64):
    """ResNet's first layers: convolution, batch norm, ReLU, max pooling."""

    def function(x, weight, mean, variance, gamma, beta):
        x = functional.batch_norm(functional.conv2d(x, weight, stride=2, padding=3), mean, variance, gamma, beta)
        return functional.max_pool2d(functional.relu(x), 3, stride=2, padding=1)

    return function, (new(images, 3, size, size), new.weight(channels, 3, 7, 7), *_batch_norm(new, channels))


@graph("convolution", {"images": 2, "size": 8, "width": 8})
def resnet_bottleneck(new, images=64, size=56, width=64):
    """1x1, 3x3, 1x1 with batch norm and ReLU, and the residual."""

    def function(x, w1, w2, w3, *norms):
        y = functional.relu(functional.batch_norm(functional.conv2d(x, w1), *norms[:4]))
        y = functional.relu(functional.batch_norm(functional.conv2d(y, w2, padding=1), *norms[4:8]))
        return functional.relu(functional.batch_norm(functional.conv2d(y, w3), *norms[8:]) + x)

    weights = new.weight(width, 4 * width, 1, 1), new.weight(width, width, 3, 3), new.weight(4 * width, width, 1, 1)
    norms = *_batch_norm(new, width), *_batch_norm(new, width), *_batch_norm(new, 4 * width)
    return function, (new(images, 4 * width, size, size), *weights, *norms)


@graph("training", {"images": 2, "size": 8, "width": 8}, training=True)
def resnet_step(new, images=64, size=28, width=128):
    """A basic block, batch norm of its own batch, forward and backward."""

    def loss(x, w1, w2, g1, b1, g2, b2, upstream):
        y = functional.relu(
            functional.batch_norm(functional.conv2d(x, w1, padding=1), None, None, g1, b1, training=True)
        )
        y = functional.batch_norm(functional.conv2d(y, w2, padding=1), None, None, g2, b2, training=True)
        return (functional.relu(y + x) * upstream).sum()

    x, upstream = new(images, width, size, size), new(images, width, size, size)
    weights = new.weight(width, width, 3, 3), new.weight(width, width, 3, 3)
    return gradients(loss, 7), (x, *weights, *new.norm(width), *new.norm(width), upstream)


@graph("convolution", {"images": 2, "size": 8, "width": 16})
def squeeze_excite(new, images=64, size=28, width=256):
    """MobileNet's block: depthwise convolution, hard swish, and a gate on the channels."""

    def function(x, depth, mean, variance, gamma, beta, down, up, point):
        y = functional.hardswish(
            functional.batch_norm(functional.conv2d(x, depth, padding=1, groups=width), mean, variance, gamma, beta)
        )
        gate = functional.hardsigmoid(
            functional.linear(functional.relu(functional.linear(y.mean(dim=(2, 3)), down)), up)
        )
        return x + functional.conv2d(y * gate[:, :, None, None], point)

    norm = _batch_norm(new, width)
    gates = new.weight(width // 4, width), new.weight(width, width // 4)
    return function, (
        new(images, width, size, size),
        new.weight(width, 1, 3, 3),
        *norm,
        *gates,
        new.weight(width, width, 1, 1),
    )


@graph("diffusion", {"images": 2, "channels": 32, "size": 8})
def unet_block(new, images=8, channels=320, size=64):
    """GroupNorm, SiLU, convolution, twice, with the time's embedding between and the residual after."""

    def function(x, time, g1, b1, w1, c1, project, bias, g2, b2, w2, c2):
        y = functional.conv2d(functional.silu(functional.group_norm(x, 32, g1, b1)), w1, c1, padding=1)
        y = y + functional.linear(functional.silu(time), project, bias)[:, :, None, None]
        y = functional.conv2d(functional.silu(functional.group_norm(y, 32, g2, b2)), w2, c2, padding=1)
        return x + y

    convs = [(*new.norm(channels), new.weight(channels, channels, 3, 3), new(channels)) for _ in range(2)]
    embedding = new.weight(channels, 4 * channels), new(channels)
    return function, (new(images, channels, size, size), new(images, 4 * channels), *convs[0], *embedding, *convs[1])


@graph("diffusion", {"images": 2, "channels": 8, "size": 4})
def unet_up(new, images=8, channels=320, size=32):
    """Upsampling, the skip connection concatenated, convolution, SiLU."""

    def function(x, skip, weight, bias):
        x = torch.cat((functional.interpolate(x, scale_factor=2.0, mode="nearest"), skip), dim=1)
        return functional.silu(functional.conv2d(x, weight, bias, padding=1))

    skip = new(images, channels, 2 * size, 2 * size)
    return function, (new(images, channels, size, size), skip, new.weight(channels, 2 * channels, 3, 3), new(channels))
