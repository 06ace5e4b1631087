"""linear_act's and ffn's peers: cuBLASLt's own epilogue, Inductor with all its templates, and cuBLAS's matmuls
alone."""

from collections.abc import Callable

import torch
from torch.nn.functional import linear

from kernels import CATALOGUE
from kernels.interpreter import runtime


def linear_alone(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute linear and bias in one cuBLAS call: a fused kernel's cost if its activation were free."""
    return linear(x, weight, bias)


def cublaslt_epilogue(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute the matmul with bias and GELU (tanh) in one cuBLASLt call. On a CPU, PyTorch takes three steps."""
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)


def ffn_alone(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
    """Compute ffn's matmuls, without activation and gate."""
    h = linear(x, up)
    return linear(h if gate is None else linear(x, gate), down)


ALONE = {"linear_act": linear_alone, "ffn": ffn_alone}


def peers(name: str, inputs: tuple) -> dict[str, Callable]:
    """Return the bare matmuls, linear_act by cuBLASLt, and torch.compile with max-autotune (without its own CUDA graph:
    the timer captures one)."""
    if name not in ALONE or not runtime.has_gpu():
        return {}
    reference = CATALOGUE[name].reference
    tuned = torch.compile(reference, mode="max-autotune-no-cudagraphs", dynamic=False)
    epilogue = {"cuBLASLt epilogue": cublaslt_epilogue} if name == "linear_act" else {}
    return epilogue | {"cuBLAS alone": ALONE[name], "max-autotune": tuned}
