"""A watched launch: its tensors, its steps, and the values that each step moves and names."""

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import torch

from helpers.instruments.cuda.memory import bytes_of
from helpers.instruments.traffic.footprint import SECTOR

MAX_LANES = 1024  # of a block
MAX_ELEMENTS = 4096  # of a tensor, including the gaps between its rows
MAX_STEPS = 1500
MAX_NUMBERS = 120_000  # of all blocks of all steps


class TooLargeError(Exception):
    """A launch is too large to draw; the message gives the reason."""


@dataclass(frozen=True)
class Memory:
    """A tensor of the launch as laid out in memory, in elements from its first.

    strides: in elements; first_byte: its first element's offset from the start of a sector.
    before: (places,) contents before the launch; own: (places,) False in the gaps between rows.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    first_byte: int
    before: np.ndarray
    own: np.ndarray
    shared: bool = False  # a block's shared memory, which has no sectors

    def sectors(self, elements: np.ndarray) -> np.ndarray:
        """Return the sectors that hold these elements, ascending; sector 0 begins at or before the first element."""
        return np.unique((self.first_byte + elements * self.itemsize) // SECTOR)


@dataclass(frozen=True)
class Move:
    """One load ("read"), store ("write") or atomic by one program instance or one warp.

    name: the block's name in the source.
    elements: in the block's shape, each lane's element; active: lanes not masked off; outside: active lanes outside
        every tensor; values: loaded, or in memory after the store.
    nbytes, sectors: as the meter counts them.
    """

    kind: str
    memory: str
    name: str
    elements: np.ndarray
    active: np.ndarray
    outside: np.ndarray
    values: np.ndarray
    nbytes: int
    sectors: int


@dataclass
class KernelStep:
    """One statement that one program instance or one warp has executed.

    line: in the source shown, counted from 0. named: name -> value assigned by the statement: a block, or an array of
        one number; masked for inactive lanes. gave: each expression that a called function returns and its value,
        after the terms that it adds up. read, written: the launch's bytes so far.
    """

    program: tuple[int, ...]
    line: int
    named: dict[str, np.ndarray] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    gave: list[tuple[str, list[np.ndarray]]] = field(default_factory=list)
    read: int = 0
    written: int = 0


@dataclass
class Recording:
    """A launch, step by step. `source`: (line number in its file, text) of each line shown; `who`: "program" or "warp",
    whichever runs a step."""

    kernel: str
    who: str
    source: list[tuple[int, str]] = field(default_factory=list)
    memories: dict[str, Memory] = field(default_factory=dict)
    steps: list[KernelStep] = field(default_factory=list)
    called: dict[int, str] = field(default_factory=dict)  # lines of functions that the kernel calls -> their names
    too_large: str = ""  # why there are no steps


def memory_of(name: str, tensor: torch.Tensor) -> Memory:
    """Copy a tensor to the host.

    Raises:
        TooLargeError: it spans more than MAX_ELEMENTS.
    """
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if span > MAX_ELEMENTS:
        raise TooLargeError(f"{name} has {tensor.numel():,} elements")
    own = np.zeros(span, bool)
    places = np.zeros((), np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places[..., None] + np.arange(size) * stride
    own[places] = True
    itemsize = tensor.element_size()
    return Memory(
        name,
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tensor.stride(),
        itemsize,
        tensor.storage_offset() * itemsize % SECTOR,
        flat_of(tensor, span).copy(),
        own,
    )


def flat_of(tensor: torch.Tensor, span: int) -> np.ndarray:
    """Return memory starting at a tensor's first element, without running an operator, which a meter would count."""
    first, itemsize = tensor.storage_offset(), tensor.element_size()
    name = str(tensor.dtype).removeprefix("torch.")
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    return numbers(bytes_of(tensor)[first * itemsize : (first + span) * itemsize].view(dtype))


def numbers(values: np.ndarray) -> np.ndarray:
    """Return values as NumPy's own numbers; bfloat16 as float32."""
    return values.astype(np.float32) if values.dtype.kind == "V" else values
