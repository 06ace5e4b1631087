"""The peak memory that a call adds to what was allocated before it, and its largest tensor.

Every operator that PyTorch dispatches is seen, including the backward pass: its allocations count until the last tensor
that shares the storage is freed. Memory that an operator allocates and frees internally is not seen.
"""

import weakref
from collections.abc import Callable
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
    """Run `fn(*args)`, on any device, and record the memory of the tensors that it creates.

    Args:
        fn: any callable.
        args: its arguments; their memory does not count.
    """
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

    def were_there(self, arguments) -> None:
        """Treat operator arguments that no other operator produced as allocated before the call."""
        for each in tree_leaves(arguments):
            if isinstance(each, torch.Tensor):
                self._meet(each, 0)

    def _meet(self, tensor: torch.Tensor, nbytes: int) -> bool:
        """Return whether the tensor's storage is new; if so, count `nbytes`."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return False

        def gone(_):
            del self._alive[key]  # another tensor may get this address
            self.now -= nbytes

        self._alive[key] = weakref.ref(storage, gone)
        self.now += nbytes
        self.most = max(self.most, self.now)
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.launching:
            return func(*args, **kwargs)
        self.were_there((args, kwargs))
        result = func(*args, **kwargs)
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                nbytes = each.untyped_storage().nbytes()
                if self._meet(each, nbytes) and nbytes > self.largest_bytes:
                    self.largest_bytes = nbytes
                    self.largest = f"{str(each.dtype).removeprefix('torch.')} of {tuple(each.shape)}"
        return result
