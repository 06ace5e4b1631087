"""Weight and bias of the norms, as PyTorch's functions and modules have them: perhaps none, perhaps of several
dimensions."""

from collections.abc import Callable

import torch
from torch import Tensor


def ones_unless(weight: Tensor | None, x: Tensor) -> Tensor:
    """weight; where it is None a one for each of x's columns, from a small launch of its own."""
    return x.new_ones(x.shape[-1:]) if weight is None else weight


def zeros_unless(bias: Tensor | None, x: Tensor) -> Tensor:
    """bias; where it is None a zero for each of x's columns, from a small launch of its own."""
    return x.new_zeros(x.shape[-1:]) if bias is None else bias


def over_last(norm: Callable, module: torch.nn.Module, x: Tensor) -> Tensor:
    """norm(x, weight, bias) of a module of torch.nn, over all its normalized_shape; without a bias if it has none.

    Raises:
        TypeError: x is not a tensor.
        ValueError: x's last dimensions are not normalized_shape.
    """
    shape, name = tuple(module.normalized_shape), type(module).__name__
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} takes a tensor, got x of type {type(x).__name__}: use torch.tensor")
    if tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(f"{name} takes x of (..., {str(shape)[1:].rstrip(',)')}), got {tuple(x.shape)}: reshape it")
    vectors = [getattr(module, each) for each in ("weight", "bias") if hasattr(module, each)]
    if len(shape) == 1:
        return norm(x, *vectors)
    return norm(x.flatten(-len(shape)), *(each if each is None else each.flatten() for each in vectors)).view(x.shape)
