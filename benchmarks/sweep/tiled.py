"""The sweep's points for tiled kernels, and the versions timed at each: linear_act, conv_bn_act and flash_attention.

Shapes are (m, k, n); (images, channels, height, width, out_channels, taps, stride); and (batch, heads, key heads,
queries, keys, dim, causal). Everything is bf16. Versions that compile slowly, or need more memory than there is, are
timed only at some points.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import zip_longest

import torch

from benchmarks.calls import calls_of, plain
from benchmarks.peers.attention import BACKENDS, by_backend, flash_attention_4, flex
from benchmarks.peers.linear import cublaslt_epilogue, linear_alone
from benchmarks.sweep.points import Point, chosen
from kernels import costs
from kernels.op import Work
from kernels.tiled import conv_bn_act, flash_attention, linear_act

SCORES = 2**29  # of all heads together: what eager attention can write several times over, and in reasonable time

DECODE = (
    *((m, 4096, 4096) for m in (1, 2, 4, 8, 16, 17, 32, 64, 127)),
    (1, 4096, 14336),
    (1, 14336, 4096),
    (8, 8192, 28672),
    (16, 4096, 128256),
)
PREFILL = (
    *((m, 4096, 4096) for m in (128, 256, 512, 1024, 2048, 4096)),
    (512, 768, 3072),
    (2048, 1024, 4096),
    (2048, 4096, 14336),
    (4096, 5120, 13824),
    (8192, 4096, 11008),
    (8192, 8192, 8192),
)
ODD = (
    (1000, 1000, 1000),
    (4095, 4096, 4096),
    (2047, 2056, 8200),
    (3000, 4096, 4104),
    (1023, 4097, 4099),
    (777, 300, 5000),
)

CONVOLUTIONS = {
    "3x3": (
        (32, 64, 56, 56, 64, 3, 1),
        (32, 128, 28, 28, 128, 3, 1),
        (32, 256, 14, 14, 256, 3, 1),
        (32, 512, 7, 7, 512, 3, 1),
        (32, 256, 28, 28, 256, 3, 1),
        (64, 128, 56, 56, 256, 3, 1),
        (8, 256, 64, 64, 256, 3, 1),
        (4, 512, 64, 64, 512, 3, 1),
        (1, 64, 56, 56, 64, 3, 1),
        (1, 320, 64, 64, 320, 3, 1),
    ),
    "1x1": (
        (32, 256, 56, 56, 64, 1, 1),
        (32, 64, 56, 56, 256, 1, 1),
        (32, 512, 28, 28, 128, 1, 1),
        (32, 256, 14, 14, 1024, 1, 1),
        (32, 1024, 14, 14, 256, 1, 1),
        (32, 2048, 7, 7, 512, 1, 1),
        (32, 512, 14, 14, 2048, 1, 1),
        (1, 1024, 14, 14, 256, 1, 1),
    ),
    "strided": (
        (32, 128, 56, 56, 128, 3, 2),
        (32, 256, 28, 28, 256, 3, 2),
        (32, 512, 14, 14, 512, 3, 2),
        (32, 256, 56, 56, 512, 1, 2),
        (32, 3, 224, 224, 64, 7, 2),
    ),
    "odd": (
        (22, 248, 31, 31, 456, 3, 1),
        (17, 96, 27, 35, 96, 3, 1),
        (8, 72, 113, 57, 200, 3, 1),
        (13, 40, 65, 65, 88, 5, 1),
        (32, 3, 64, 64, 64, 3, 1),
        (16, 100, 30, 30, 100, 3, 1),
        (16, 130, 29, 29, 66, 1, 1),
    ),
}


def _tokens(tokens: int) -> tuple[int, int]:
    """Return (batch, heads) for 16384 tokens of 16 heads, or one batch of fewer heads if sequences are longer."""
    return max(1, 16384 // tokens), 16 if tokens <= 16384 else 8


# Regime -> (batch, heads, key heads, queries, keys, dim).
FULL_AND_CAUSAL = {
    "d128": tuple(
        (*_tokens(tokens), _tokens(tokens)[1], tokens, tokens, 128)
        for tokens in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    ),
    "d64": tuple((*_tokens(tokens), _tokens(tokens)[1], tokens, tokens, 64) for tokens in (256, 1024, 4096, 16384)),
    "other dims": ((4, 16, 16, 2048, 2048, 32), (4, 16, 16, 2048, 2048, 96), (4, 8, 8, 2048, 2048, 256)),
    "grouped": ((2, 32, 8, 4096, 4096, 128), (2, 32, 1, 2048, 2048, 128)),
    "odd": ((4, 16, 16, 1000, 1000, 128), (4, 16, 16, 4097, 4097, 128), (16, 12, 12, 197, 197, 64)),
}
FULL = {
    "lengths": ((4, 16, 16, 512, 4096, 128), (4, 16, 16, 77, 4096, 128), (8, 10, 10, 4096, 77, 64)),
    "decode": (
        (1, 32, 32, 1, 65536, 128),
        (1, 32, 8, 1, 65536, 128),
        (8, 32, 8, 1, 8192, 128),
        (64, 32, 8, 1, 2048, 128),
        (1, 8, 1, 1, 131072, 128),
        (1, 32, 8, 1, 1024, 128),
    ),
}
CAUSAL = {  # bottom right: the last query sees every key
    "decode": ((1, 32, 8, 4, 65536, 128), (8, 32, 8, 8, 8192, 128)),
    "lengths": ((4, 16, 16, 512, 4096, 128),),
}
WITH_BACKWARD = {"d128", "d64", "grouped"}
LINEAR_BACKWARD = ((512, 768, 3072), (2048, 4096, 14336), (8192, 4096, 11008))
COMPILED = {  # torch.compile and Flex, at some of attention's points
    (16, 16, 16, 1024, 1024, 128),
    (4, 16, 16, 4096, 4096, 128),
    (1, 16, 16, 16384, 16384, 128),
    (4, 16, 16, 4096, 4096, 64),
    (4, 8, 8, 2048, 2048, 256),
    *FULL["decode"],
    *CAUSAL["decode"],
}
CALLED = {  # where a call's host time matters too
    *((m, 4096, 4096) for m in (1, 16, 128, 1024)),
    (32, 64, 56, 56, 64, 3, 1),
    (1, 1024, 14, 14, 256, 1, 1),
    *((*_tokens(tokens), 16, tokens, tokens, 128, causal) for tokens in (128, 1024) for causal in (False, True)),
}
TUNED_LINEAR = {(1, 4096, 4096), (16, 4096, 4096), (1024, 4096, 4096)}
TUNED_CONVOLUTIONS = {(32, 64, 56, 56, 64, 3, 1), (32, 256, 28, 28, 256, 3, 1)}


def _points() -> list[Point]:
    """Return the points, alternating regimes, so that the first ones cover a little of everything."""

    def point(kernel: str, shape: tuple, regime: str, direction: str = "forward") -> Point:
        short = shape in CALLED and direction == "forward"
        return Point(kernel, direction, shape, "bf16", regime, call=short)

    found = [
        point("linear_act", shape, regime)
        for regime, shapes in (("decode", DECODE), ("prefill", PREFILL), ("odd", ODD))
        for shape in shapes
    ]
    found += [point("linear_act", shape, "prefill", "backward") for shape in LINEAR_BACKWARD]
    found += [point("conv_bn_act", shape, regime) for regime, shapes in CONVOLUTIONS.items() for shape in shapes]
    for shapes, maskings in ((FULL_AND_CAUSAL, (False, True)), (FULL, (False,)), (CAUSAL, (True,))):
        for regime, of_regime in shapes.items():
            directions = ("forward", "backward") if regime in WITH_BACKWARD else ("forward",)
            found += [
                point("flash_attention", (*shape, causal), regime, direction)
                for direction in directions
                for shape in of_regime
                for causal in maskings
            ]
    panels = defaultdict(list)
    for each in found:
        panels[each.kernel, each.direction, each.regime].append(each)
    return [each for turn in zip_longest(*panels.values()) for each in turn if each is not None]


POINTS = _points()


def _seen_pairs(queries: int, keys: int, causal: bool) -> int:
    """Return the number of pairs of a query and a key that it sees; the last query sees every key."""
    if not causal:
        return queries * keys
    first = max(0, keys - queries + 1)  # keys that the first query sees, or the first that sees any
    rows = min(queries, keys)
    return rows * (first + keys) // 2 if first else rows * (rows + 1) // 2


def _attention_work(shape: tuple, backward: bool) -> Work:
    batch, heads, kv_heads, queries, keys, dim, causal = shape
    pairs = batch * heads * _seen_pairs(queries, keys, causal)
    of_q, of_k = (2 * batch * h * tokens * dim for h, tokens in ((heads, queries), (kv_heads, keys)))
    if backward:
        return Work(5 * costs.product(pairs, dim, 1), 3 * of_q + 2 * of_k, of_q + 2 * of_k)
    return Work(costs.attention(pairs, dim), of_q + 2 * of_k, of_q)


def _conv_work(shape: tuple) -> Work:
    images, channels, height, width, out_channels, taps, stride = shape
    outputs = images * out_channels * math.ceil(height / stride) * math.ceil(width / stride)
    # A 1x1 filter with a stride sees one pixel in stride**2.
    pixels = height * width if taps >= stride else math.ceil(height / stride) * math.ceil(width / stride)
    read = images * channels * pixels + out_channels * (channels * taps**2 + 4)
    flops = costs.product(outputs, channels * taps**2, 1) + (costs.FOLDED_BATCH_NORM + costs.RELU) * outputs
    return Work(flops, 2 * read, 2 * outputs)


def _linear(shape: tuple, inputs: tuple) -> dict[str, Callable]:
    found = {"fused": linear_act.linear_act, "eager": linear_act.linear_act_reference}
    found["torch.compile"] = torch.compile(linear_act.linear_act_reference, dynamic=False)
    found |= {"cuBLASLt epilogue": cublaslt_epilogue, "cuBLAS alone": linear_alone}
    if shape in TUNED_LINEAR:
        found["max-autotune"] = _tuned(linear_act.linear_act_reference)
    return found


def _tuned(function: Callable) -> Callable:
    """Return the function compiled by torch.compile, without its own CUDA graphs: the timer captures one."""
    return torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)


def _convolution(shape: tuple, inputs: tuple) -> dict[str, Callable]:
    taps, stride = shape[5:]
    x, weight, gamma, beta, mean, var = inputs
    scale = gamma.float() * torch.rsqrt(var.float() + 1e-5)
    folded = (weight * scale[:, None, None, None]).to(x.dtype, memory_format=torch.channels_last)
    bias = (beta.float() - mean.float() * scale).to(x.dtype)
    reference = partial(conv_bn_act.conv_bn_act_reference, stride=stride)

    def cudnn(x, *_):
        return torch.cudnn_convolution_relu(x, folded, bias, [stride] * 2, [taps // 2] * 2, [1, 1], 1)

    found = {"fused": partial(conv_bn_act.conv_bn_act, stride=stride), "eager": reference, "cuDNN fused": cudnn}
    found["torch.compile"] = torch.compile(reference, dynamic=False)
    if shape in TUNED_CONVOLUTIONS:
        found["max-autotune"] = _tuned(reference)
    return found


def _attention(shape: tuple, inputs: tuple) -> dict[str, Callable]:
    batch, heads, _, queries, keys, _, causal = shape
    found = {"fused": flash_attention.flash_attention}
    if queries == keys or not causal:  # PyTorch's causal mask starts at the top left
        found |= {label: by_backend(backend) for label, backend in BACKENDS.items()}
    found |= flash_attention_4()
    small = batch * heads * queries * keys <= SCORES
    if small:
        found["eager"] = flash_attention.flash_attention_reference
    if shape[:6] in COMPILED:
        if small:
            found["torch.compile"] = torch.compile(flash_attention.flash_attention_reference, dynamic=False)
        found["Flex"] = flex(*inputs[:2], causal)
    return found


def _inputs(point: Point, device: str) -> tuple:
    options = {"dtype": point.torch_dtype, "device": device}
    if point.kernel == "linear_act":
        return linear_act.OP.inputs(*point.shape, **options)
    if point.kernel == "conv_bn_act":
        return conv_bn_act.OP.inputs(*point.shape[:6], **options)
    batch, heads, kv_heads, queries, keys, dim, causal = point.shape
    sizes = ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    return *(torch.randn(batch, *size, dim, **options) for size in sizes), causal


def work(point: Point) -> Work:
    """Return FLOPs and minimum traffic of one call, forward or backward as in the point."""
    backward = point.direction == "backward"
    if point.kernel == "linear_act":
        of = linear_act.OP.backward_work if backward else linear_act.OP.work
        return of(point.shape, point.torch_dtype)
    return _conv_work(point.shape) if point.kernel == "conv_bn_act" else _attention_work(point.shape, backward)


def tiny(point: Point) -> Point:
    """Return the point at a size for the interpreter, with its taps, stride, groups and mask unchanged."""
    shape = point.shape
    if point.kernel == "linear_act":
        return replace(point, shape=(min(shape[0], 5), 24, 40))
    if point.kernel == "conv_bn_act":
        return replace(point, shape=(1, 3, 7, 7, 5, *shape[5:]))
    _, heads, kv_heads, queries, keys, dim, causal = shape
    return replace(point, shape=(1, heads // kv_heads, 1, min(queries, 5), min(keys, 7), min(dim, 32), causal))


PROVIDERS = {"linear_act": _linear, "conv_bn_act": _convolution, "flash_attention": _attention}


def build(point: Point, device: str, only: Collection[str] = ()) -> tuple[dict[str, Callable[[], object]], Work]:
    """Return provider -> call of no argument, inputs made and, for a backward pass, forward done; and a call's work.

    A provider that rejects the point raises when it is called. On the device "cpu": "fused", "plain" and "eager". With
    `only`, the providers named.
    """
    inputs = _inputs(point, device)
    functions = PROVIDERS[point.kernel](point.shape, inputs)
    functions["plain"] = plain(functions["fused"])
    functions = chosen(functions, only or (("fused", "plain", "eager") if device == "cpu" else ()))
    return calls_of(functions, inputs, point.direction == "backward"), work(point)
