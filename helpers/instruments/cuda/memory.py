"""The memory that a launch sees: tensors and module variables (global), shared memory per block, locals per thread.

Addresses are the executor's own: storage k starts at (k + 1) << 36, so that an out-of-bounds address hits no other
storage, and every storage is aligned as on a GPU. Shared and local addresses count from 0 within a
block or a thread; as generic addresses they have their own windows.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
import torch

GRID_BARRIER = "the grid's barrier"  # the variable behind cooperative groups' grid.sync(), which causes no traffic
STORAGE_BITS = 36
SHARED_WINDOW = 1 << 60
LOCAL_WINDOW = 1 << 61
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.uint64}


@dataclass(eq=False)
class Segment:
    """One storage, or one variable of the module, and the parts of it that the launch may touch.

    name: that of the first tensor in it; base: its address for the kernel; extents: (low, high) bytes within it.
    """

    name: str
    base: int
    memory: np.ndarray  # uint8, from the start of the storage
    extents: list[tuple[int, int]]
    tensor: torch.Tensor | None
    written: np.ndarray | None = None  # which bytes are initialised, if known

    def __post_init__(self):
        self.views = {
            size: self.memory[: self.memory.size // size * size].view(kind) for size, kind in UNSIGNED.items()
        }


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the tensor's storage as bytes, without calling a PyTorch operator."""
    storage = tensor.untyped_storage()
    return _at(storage.data_ptr(), storage.nbytes())


def _at(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)) if size else np.zeros(0, np.uint8)


class GlobalMemory:
    """Tensors and variables by address."""

    def __init__(self):
        self.segments: list[Segment] = []
        self._storages: dict[int, Segment] = {}

    def tensor(self, name: str, tensor: torch.Tensor) -> int:
        """Make a tensor on the host visible to the launch, and return its address for the kernel."""
        storage = tensor.untyped_storage()
        segment = self._storages.get(storage.data_ptr()) if storage.nbytes() else None
        if segment is None:
            segment = self._add(name, bytes_of(tensor), tensor)
            self._storages[storage.data_ptr()] = segment
        first = tensor.storage_offset() * tensor.element_size()
        if tensor.numel():
            reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            segment.extents.append((first, first + (reach + 1) * tensor.element_size()))
        return segment.base + first

    def variable(self, name: str, contents: bytes) -> int:
        """Place a variable of the module, and return its address."""
        segment = self._add(
            name, np.frombuffer(bytearray(contents.ljust(-(-len(contents) // 16) * 16, b"\0")), np.uint8), None
        )
        segment.extents.append((0, len(contents)))
        return segment.base

    def _add(self, name, memory, tensor) -> Segment:
        segment = Segment(name, (len(self.segments) + 1) << STORAGE_BITS, memory, [], tensor)
        self.segments.append(segment)
        return segment

    def find(self, addresses: np.ndarray, nbytes: int) -> tuple[Segment | None, np.ndarray, np.ndarray | None]:
        """Return the storage that contains the first address, offsets within it, and which lanes are in bounds (None:
        all)."""
        place = (int(addresses.flat[0]) >> STORAGE_BITS) - 1
        if not 0 <= place < len(self.segments):
            return None, addresses, np.zeros(addresses.shape, bool)
        segment = self.segments[place]
        offsets = (addresses - np.uint64(segment.base)).view(np.int64)
        low, high = int(offsets.min()), int(offsets.max()) + nbytes
        for start, end in segment.extents:
            if start <= low and high <= end:
                return segment, offsets, None
        inside = np.zeros(offsets.shape, bool)
        for start, end in segment.extents:
            inside |= (offsets >= start) & (offsets + nbytes <= end)
        return segment, offsets, inside

    def fill(self, address: int, contents: bytes) -> None:
        """Write into a variable before the launch."""
        segment = self.segments[(address >> STORAGE_BITS) - 1]
        at = address - segment.base
        segment.memory[at : at + len(contents)] = np.frombuffer(contents, np.uint8)

    def bytes_at(self, address: int) -> bytes:
        """Return the bytes of a storage, starting at an address; empty if no storage is there."""
        place = (address >> STORAGE_BITS) - 1
        if not 0 <= place < len(self.segments):
            return b""
        segment = self.segments[place]
        return segment.memory[address - segment.base :].tobytes()

    def describe(self, address: int) -> tuple[Segment | None, int]:
        """Return the nearest storage and the offset in bytes from its start, for a message."""
        place = min(max((address >> STORAGE_BITS) - 1, 0), len(self.segments) - 1)
        after = place + 1
        if after < len(self.segments) and self.segments[after].base - address < 1 << (STORAGE_BITS - 1):
            place = after  # a little before its start
        if not self.segments or abs(address - self.segments[place].base) >> (STORAGE_BITS - 1):
            return None, address
        return self.segments[place], address - self.segments[place].base
