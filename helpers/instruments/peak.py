"""The peak memory that a call adds to what was allocated before it, and its largest tensor.

Every operator that PyTorch dispatches is seen, including the backward pass: its allocations count until the last tensor
that shares the storage is freed. Memory that an operator allocates and frees internally is not seen.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import JITFunction

from helpers.instruments.traffic.result import size


@dataclass(frozen=True, repr=False)
class Peak:
    """One call's peak: most bytes held at once, size and description of the largest tensor, and the call's result."""

    bytes: int
    largest_bytes: int
    largest: str
    result: Any

    def __repr__(self):
        return f"at most {size(self.bytes)} at once; the largest tensor: {self.largest}, {size(self.largest_bytes)}"


def peak_memory(fn: Callable, *args) -> Peak:
    """Run `fn(*args)`, on any device, and record the memory of the tensors that it creates or enlarges.

    Args:
        fn: any callable.
        args: its arguments; their memory does not count.

    Raises:
        TypeError: fn is not callable, or a tensor in a layout whose memory cannot be seen.
    """
    if not callable(fn):
        raise TypeError(f"peak_memory takes a function and its arguments, got {type(fn).__name__}")
    watch, run = _Watch(), JITFunction.run
    watch.were_there(args)

    def launch(*args, **kwargs):
        watch.launching = True
        try:
            return run(*args, **kwargs)
        finally:
            watch.launching = False

    with mock.patch.object(JITFunction, "run", launch), watch:
        result = fn(*args)
    return Peak(watch.most, watch.largest_bytes, watch.largest, result)


class _Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.now = self.most = self.largest_bytes = 0
        self.largest = "none"
        self.launching = False  # a kernel: the interpreter's own copies do not count
        self._alive: dict[int, weakref.ref] = {}
        self._sizes: dict[int, int] = {}  # bytes of each storage when it was last seen
        self._counted: dict[int, int] = {}  # those of them that the call allocated

    def were_there(self, arguments) -> None:
        """Treat operator arguments that no other operator produced as allocated before the call."""
        for tensor in _strided(arguments):
            self._meet(tensor, new=False)

    def _meet(self, tensor: torch.Tensor, new: bool) -> int:
        """Count a storage's bytes if it is `new` and not known yet, or those that it has grown by; return them."""
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if key not in self._alive:

            def gone(_):
                del self._alive[key], self._sizes[key]  # another tensor may get this address
                self.now -= self._counted.pop(key)

            self._alive[key] = weakref.ref(storage, gone)
            self._sizes[key], self._counted[key] = 0 if new else nbytes, 0
        more = nbytes - self._sizes[key]
        self._sizes[key] = nbytes
        self._counted[key] += more
        self.now += more
        self.most = max(self.most, self.now)
        return more

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.launching:
            return func(*args, **kwargs)
        # torch.tensor() allocates before its first operator; torch.from_numpy() uses memory that was there.
        if func is not torch.ops.aten.lift_fresh.default or not args[0].untyped_storage().resizable():
            self.were_there((args, kwargs))
        result = func(*args, **kwargs)
        for tensor in _strided((result, args, kwargs)):  # an operator may enlarge its arguments
            nbytes = tensor.untyped_storage().nbytes() if self._meet(tensor, new=True) else 0
            if nbytes > self.largest_bytes:
                self.largest_bytes = nbytes
                self.largest = f"{str(tensor.dtype).removeprefix('torch.')} of {tuple(tensor.shape)}"
        return result


def _strided(values) -> Iterator[torch.Tensor]:
    """Yield the tensors that hold the memory: a sparse tensor's are its indices and values."""
    for each in tree_leaves(values):
        if not isinstance(each, torch.Tensor):
            continue
        if each.layout == torch.strided:
            yield each
        elif each.layout == torch.sparse_coo:
            yield from (each._indices(), each._values())
        elif each.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (each.crow_indices(), each.col_indices(), each.values())
        elif each.layout in (torch.sparse_csc, torch.sparse_bsc):
            yield from (each.ccol_indices(), each.row_indices(), each.values())
        else:
            raise TypeError(f"peak_memory cannot see the memory of a tensor in layout {each.layout}")
