"""Record the address that each lane of each program accesses: a kernel's loads and stores, one by one."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helpers.instruments.traffic import measure
from helpers.instruments.traffic.result import Traffic
from helpers.instruments.traffic.triton_meter import tensors_in
from kernels.interpreter import runtime


@dataclass(frozen=True)
class Access:
    """One load, store or atomic by one program instance.

    kind: "read", "write" or "atomic"; place: (file, line) of the kernel; program: three ints.
    tensor: the kernel's parameter; elements: (lanes,) int64, each lane's element, counted in memory from the tensor's
        first; active: (lanes,) bool, False for masked-off lanes.
    """

    kind: str
    place: tuple[str, int]
    program: tuple[int, int, int]
    tensor: str
    elements: np.ndarray
    active: np.ndarray


class LaneRecorder:
    """Keeps every access, and passes it on to the previous observer."""

    def __init__(self, before):
        self.accesses: list[Access] = []
        self._before = before

    def launch(self, kernel, grid, arguments: dict, originals: dict):
        self._tensors = [
            (name, tensor)
            for argument, value in arguments.items()
            for name, tensor, _ in tensors_in(argument, value, value)
        ]
        self._of_line = {}
        return self._before.launch(kernel, grid, arguments, originals)

    def program(self, index) -> None:
        self._program = index
        self._before.program(index)

    def access(
        self, kind: str, addresses: np.ndarray, mask: np.ndarray, itemsize: int, stored: np.ndarray | None
    ) -> np.ndarray | None:
        frame = sys._getframe(1)
        while frame.f_code not in runtime.kernel_code:
            frame = frame.f_back
        place, first = (frame.f_code.co_filename, frame.f_lineno), int(addresses.ravel()[0])
        # A line keeps the tensor of its first access, since later blocks may be entirely outside. In a function that
        # the kernel calls, each call site counts as a line of its own.
        key = [kind]
        caller = frame
        while caller is not None:
            if caller.f_code in runtime.kernel_code:
                key.append((caller.f_code, caller.f_lasti))
            caller = caller.f_back
        key = tuple(key)
        name, tensor = self._of_line.setdefault(key, min(self._tensors, key=lambda named: _distance(named[1], first)))
        elements = (addresses.ravel().astype(np.int64) - tensor.data_ptr()) // itemsize
        active = np.array(np.broadcast_to(np.asarray(mask), addresses.shape)).ravel()
        self.accesses.append(Access(kind, place, self._program, name, elements, active))
        return self._before.access(kind, addresses, mask, itemsize, stored)

    def barrier(self) -> None:
        self._before.barrier()

    def lock(self, address: int, took: bool) -> None:
        self._before.lock(address, took)

    def resumed(self, index) -> None:
        self._program = index
        self._before.resumed(index)

    def synchronised(self, address: int, acquires: bool, releases: bool) -> None:
        self._before.synchronised(address, acquires, releases)

    def configured(self, name: str, said: str) -> None:
        self._before.configured(name, said)

    def withdraw(self) -> None:
        self._before.withdraw()


def _distance(tensor, address: int) -> int:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    low, itemsize = tensor.data_ptr(), tensor.element_size()
    return max(low - address, address - (low + (reach + 1) * itemsize - 1), 0)


def trace(fn: Callable, *args) -> tuple[Traffic, list[Access]]:
    """Meter `fn(*args)` and keep what each lane of its Triton kernels requested, in order.

    Args:
        fn, args: as `measure` takes them; small inputs, since every access is kept.

    Raises:
        as `measure` does.
    """
    accesses = []

    @functools.wraps(fn)
    def watched(*args):
        with runtime.observed(LaneRecorder(runtime.observer())) as recorder:
            try:
                return fn(*args)
            finally:
                accesses.extend(recorder.accesses)

    return measure(watched, *args), accesses
