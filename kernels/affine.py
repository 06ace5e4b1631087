"""Weight and bias of the norms, as PyTorch's functions and modules have them: perhaps none, perhaps of several
dimensions."""

from collections.abc import Callable

from torch import Tensor


def ones_unless(weight: Tensor | None, x: Tensor) -> Tensor:
    """weight; where it is None a one for each of x's columns, from a small launch of its own."""
    return x.new_ones(x.shape[-1:]) if weight is None else weight


def zeros_unless(bias: Tensor | None, x: Tensor) -> Tensor:
    """bias; where it is None a zero for each of x's columns, from a small launch of its own."""
    return x.new_zeros(x.shape[-1:]) if bias is None else bias


def over_last(norm: Callable, shape: tuple[int, ...], x: Tensor, *vectors: Tensor | None, **options) -> Tensor:
    """norm(x, *vectors, **options) over x's last dimensions, which are `shape`, as one; so are those of the vectors.

    Raises:
        TypeError: x is not a tensor.
        ValueError: x's last dimensions are not `shape`.
    """
    if len(shape) == 1 and vectors[0] is not None:
        return norm(x, *vectors, **options)  # which holds x against them
    if not isinstance(x, Tensor):
        raise TypeError(f"{norm.__name__} takes tensors, got x of type {type(x).__name__}: use torch.tensor")
    if x.shape[-len(shape) :] != shape:
        wanted = ", ".join(("...", *map(str, shape)))
        raise ValueError(f"{norm.__name__} takes x of ({wanted}), got {tuple(x.shape)}: reshape it")
    rows = x.flatten(-len(shape))
    return norm(rows, *(each if each is None else each.flatten() for each in vectors), **options).view(x.shape)
