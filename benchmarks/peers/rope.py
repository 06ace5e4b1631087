"""rope_cache's peer: PyTorch's norm, rotation and cache write, compiled; every token must have a slot."""

from collections.abc import Callable
from functools import cache

import torch

from benchmarks.experiments.lesson_17 import rope_cache_without_checks
from kernels.interpreter import runtime


def peers(name: str, inputs: tuple) -> dict[str, Callable]:
    """Return rope_cache's compiled reference without its search for tokens without a slot, for which the CPU waits."""
    if name != "rope_cache" or not runtime.has_gpu():
        return {}
    return {"torch.compile, no checks": _compiled()}


@cache
def _compiled() -> Callable:
    return torch.compile(rope_cache_without_checks, dynamic=False)
