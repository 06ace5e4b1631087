"""Lesson 05: LayerNorm and RMSNorm operator by operator, as one PyTorch call, compiled, and by the course's kernels.

The unfused versions follow model code: widen to fp32, normalise, round, then multiply by the weight. RMSNorm is Llama's
in transformers, line by line; LayerNorm is written in the same style.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

import kernels
from benchmarks.experiments import timed

RECORD = "h100_80gb_hbm3.json"  # where these are recorded, in benchmarks/results
SHAPES = ("2048 x 4096", "32768 x 1024", "32768 x 4096")  # bf16
LAYER_EPS, RMS_EPS = 1e-5, 1e-6


def rms_norm_by_operator(x: Tensor, weight: Tensor) -> Tensor:
    """Compute x / rms(x) * weight, one operator at a time."""
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(variance + RMS_EPS)
    return weight * wide.to(x.dtype)


def layer_norm_by_operator(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute (x - mean) / deviation * weight + bias, one operator at a time."""
    wide = x.to(torch.float32)
    centred = wide - wide.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    wide = centred * torch.rsqrt(variance + LAYER_EPS)
    return weight * wide.to(x.dtype) + bias


def layer_norm_of_pytorch(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, LAYER_EPS)


def rms_norm_of_pytorch(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, RMS_EPS)


# Norm -> by operator, PyTorch's own call, the course's kernel, and how many vectors it takes in addition to x.
NORMS = {
    "LayerNorm": (layer_norm_by_operator, layer_norm_of_pytorch, kernels.layer_norm, 2),
    "RMSNorm": (rms_norm_by_operator, rms_norm_of_pytorch, kernels.rms_norm, 1),
}


def inputs(norm: str, rows: int, cols: int, **options) -> tuple[Tensor, ...]:
    """Return x, weight and, for LayerNorm, bias."""
    x = torch.randn(rows, cols, **options)
    return (x, *(torch.randn(cols, **options) for _ in range(NORMS[norm][3])))


def ways(norm: str, rows: int, cols: int, **options) -> dict:
    """Return way -> call."""
    by_operator, by_pytorch, ours, _ = NORMS[norm]
    given = inputs(norm, rows, cols, **options)
    functions = {
        "by operator": by_operator,
        "PyTorch": by_pytorch,
        "torch.compile": torch.compile(by_operator, dynamic=False),
        "ours": ours,
    }
    return {way: partial(function, *given) for way, function in functions.items()}


def norms(shape: str) -> dict:
    """Return (norm, way) -> call, for a shape such as "2048 x 4096"."""
    torch._dynamo.reset()
    rows, cols = map(int, shape.split(" x "))
    options = {"dtype": torch.bfloat16, "device": "cuda"}
    return {(norm, way): call for norm in NORMS for way, call in ways(norm, rows, cols, **options).items()}


EXPERIMENTS = {
    "norms_by_operator": timed(norms, SHAPES, runs=20),
    "norms_by_operator_called": timed(norms, SHAPES[:1], runs=10, launches=True),
}
