"""The tensors autograd saves for the backward pass, which hold memory until the gradients are computed.

PyTorch reports each saved tensor through torch.autograd.graph.saved_tensors_hooks.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from helpers.instruments.traffic.result import size


@dataclass(frozen=True, repr=False)
class SavedTensors:
    """One call's saved tensors, name -> bytes, for its arguments and its intermediates; and its result."""

    arguments: dict[str, int]
    made: dict[str, int]
    result: Any

    @property
    def total(self) -> int:
        """Bytes, each storage once."""
        return sum(self.arguments.values()) + sum(self.made.values())

    def __repr__(self):
        tensors = self.arguments | self.made
        names = "; ".join(f"{name}, {size(nbytes)}" for name, nbytes in tensors.items())
        return f"kept for the backward pass: {size(self.total) if tensors else 'nothing'}" + (names and f" ({names})")


def saved_for_backward(fn: Callable, *args) -> SavedTensors:
    """Run `fn(*args)` and record what autograd saves, each storage once and in full.

    A tensor that a custom autograd.Function keeps as an attribute of its `ctx`, not by save_for_backward, is not seen.
    Args:
        fn: any callable with a readable signature.
        args: its arguments; unless one is a tensor that requires a gradient, nothing is saved.
    """
    saved = []  # the tensors themselves, because freed addresses are reused

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = fn(*args)
    given = inspect.signature(fn).bind(*args).arguments
    names = {_address(value): name for name, value in given.items() if isinstance(value, torch.Tensor)}
    arguments, made, seen = {}, {}, set()
    for tensor in saved:
        address, nbytes = _address(tensor), tensor.untyped_storage().nbytes()
        if address in seen or not nbytes:
            continue
        seen.add(address)
        if address in names:
            arguments[names[address]] = nbytes
        else:
            made[_description(tensor, made)] = nbytes
    return SavedTensors(arguments, made, result)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _description(tensor: torch.Tensor, taken: dict) -> str:
    text = f"{str(tensor.dtype).removeprefix('torch.')} of {tuple(tensor.shape)}"
    count = sum(name.startswith(text) for name in taken)
    return f"{text}, number {count + 1}" if count else text
