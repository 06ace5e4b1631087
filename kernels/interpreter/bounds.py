"""Keep the loads and stores of an interpreted launch inside its tensors.

The interpreter accesses any address in this process's own memory. On a GPU an out-of-bounds store is an "illegal memory
access" at best; at worst it changes another tensor.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor


@dataclass(frozen=True)
class Extent:
    """The addresses of a tensor's elements, [low, high) in bytes; memory between its rows may belong to another
    tensor."""

    name: str  # of the kernel's parameter
    low: int
    high: int
    itemsize: int

    def away(self, address: int) -> int:
        """Return the distance of an address from the extent in bytes; 0 if inside."""
        return max(self.low - address, address - self.high + 1, 0)


class Bounds:
    """The tensors of one launch.

    Args:
        arguments: parameter name -> value on the host: tensors, descriptors, tuples of them, or anything else.
    """

    def __init__(self, arguments: dict):
        self._extents = [extent for name, value in arguments.items() for extent in extents(name, value)]

    def check(self, kind: str, addresses: np.ndarray, mask: np.ndarray, itemsize: int) -> None:
        """Raise IndexError if a lane of an access is outside every tensor.

        Args:
            kind: "read", "write" or "atomic".
            addresses: uint64, of the block's shape; mask: bools of that shape; itemsize: bytes per element.
        """
        everywhere = mask.all()
        reached = addresses if everywhere else addresses[mask]
        if not reached.size:
            return
        low, high = int(reached.min()), int(reached.max()) + itemsize
        if any(extent.low <= low and high <= extent.high for extent in self._extents):
            return
        astray = mask.copy()
        for extent in self._extents:
            astray &= (addresses < extent.low) | (addresses > extent.high - itemsize)
        if astray.any():
            raise IndexError(self._described(kind, addresses, astray, addresses[mask & ~astray]))

    def hold(self, addresses: np.ndarray) -> bool:
        """Return whether at least one of the addresses is in a tensor, or there are none."""
        inside = [(addresses >= each.low) & (addresses < each.high) for each in self._extents]
        return not self._extents or not addresses.size or any(each.any() for each in inside)

    def place(self, address: int) -> str:
        """Return the element at an address, by its tensor's name: "counters[2]"."""
        extent = min(self._extents, key=lambda each: each.away(address))
        return f"{extent.name}[{(address - extent.low) // extent.itemsize}]"

    def _described(self, kind: str, addresses: np.ndarray, astray: np.ndarray, inside: np.ndarray) -> str:
        lane = tuple(np.argwhere(astray)[0].tolist())
        address = int(addresses[lane])
        does = {"read": "loads", "write": "stores", "atomic": "changes"}[kind]
        who = f"lane {lane[0] if len(lane) == 1 else lane}" if addresses.size > 1 else "it"
        if not self._extents:
            return f"{who} {does} an element, but every tensor is empty: return before launching"
        # A stray lane may be nearer to another tensor: prefer the tensors that the other lanes access.
        reached = [each for each in self._extents if ((inside >= each.low) & (inside < each.high)).any()]
        nearest = min(reached or self._extents, key=lambda extent: extent.away(address))
        element = (address - nearest.low) // nearest.itemsize
        last = (nearest.high - nearest.low) // nearest.itemsize - 1
        return (
            f"{who} {does} element {element} of {nearest.name}, which has 0 to {last} ({int(astray.sum())} of "
            f"{astray.size} lanes are outside): mask the lanes without an element, or fix the offset"
        )


def extents(name: str, value) -> Iterator[Extent]:
    """Yield the extent of each tensor in a kernel's argument that has elements and memory for them."""
    value = value.base if isinstance(value, TensorDescriptor) else value
    value = value.base if isinstance(value, TensorWrapper) else value
    if isinstance(value, torch.Tensor) and value.numel() and value.data_ptr():  # 0: its storage was freed
        reach = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
        low, itemsize = value.data_ptr(), value.element_size()
        yield Extent(name, low, low + (reach + 1) * itemsize, itemsize)
    elif isinstance(value, tuple | list):
        for place, each in enumerate(value):
            yield from extents(f"{name}[{place}]", each)
