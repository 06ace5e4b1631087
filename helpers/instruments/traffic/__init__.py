"""The traffic meter: the bytes that a call moves to and from memory, counted, not estimated.

What is counted, for eager PyTorch:

    Every operator that does work is one launch. It reads each input tensor once and writes each output once, whatever
    its implementation does. Only elements count: views, expanded (stride 0) dimensions, Python scalars and empty
    tensors cost nothing. In-place operators read and write what they change, except that fill_, zero_, copy_, random
    operators and `out=` don't read their destination. Allocating uninitialised memory (`empty`) is free. Indexing reads
    each indexed element once. `.item()` reads its element and launches nothing. A composite operator (a backward pass,
    `clone`, a custom operator) counts as the operators inside it.

and for Triton kernels:

    A load or store by one program counts each distinct byte once: a scalar that all lanes load is one element, but the
    same data loaded twice counts twice. Masked-off lanes and the part of a tensor descriptor's tile outside its tensor
    count nothing. An atomic counts as a read and a write by every active lane.

and for CUDA C++ (helpers.instruments.cuda):

    A load or store by one warp counts each distinct byte once; atomics count as for Triton. Shared memory is counted
    separately, in requests and wavefronts; local arrays and constant tables are not.

These are the bytes requested from memory: no L1 or L2 cache is modelled. Distinct bytes (`unique_read`,
`unique_written`) are what would move if a cache served every reuse. For contiguous accesses, a GPU's DRAM
traffic is between the two, in 32-byte sectors. L1 requests sectors from L2; for strided accesses, L2 may fetch
more (64 bytes at a time on an H200: lesson 03b). Storages are assumed to start on a sector, as GPU allocations do.

On a machine with a GPU, Triton launches are interpreted and CUDA C++ is executed on the CPU while metered; eager
operators run where their tensors are. Functions compiled by torch.compile run uncompiled inside `measure`.
"""

import contextlib
import inspect
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

from helpers.instruments.cuda import observers
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.traffic.cuda_meter import CudaMeter
from helpers.instruments.traffic.eager_meter import EagerMeter
from helpers.instruments.traffic.ledger import Ledger
from helpers.instruments.traffic.result import Traffic
from helpers.instruments.traffic.triton_meter import TritonMeter
from kernels.interpreter import runtime

__all__ = ["MeteredElsewhere", "Traffic", "measure"]


@runtime_checkable
class MeteredElsewhere(Protocol):
    """A function that runs in another process, under that process's meter."""

    def metered(self, *args) -> Traffic: ...


def measure(fn: Callable, *args, device: str | Device | None = None) -> Traffic:
    """Run `fn(*args)` and count the memory traffic of every PyTorch operator and Triton kernel that it runs.

    Tensors are named as the caller knows them: by fn's parameters, or by the variables that a lambda uses; fn's result
    is "result"; other tensors are named by the kernel's parameter or the operator that created them.

    Args:
        fn: any callable; for keyword arguments pass a lambda, `measure(lambda: gelu(x, approximate="tanh"))`.
        args: its arguments; tensors on the CPU or a GPU.
        device: for launchers that ask how many SMs the GPU has: a name in DEVICES, or a Device. Default:
            the tensors' GPU, else the course's reference GPU, the H200.

    An exception that fn raises carries `hazards`, those seen before it: one may be its cause.

    Raises:
        TypeError: fn is not callable or comes from torch.compile, or uses a sparse or nested tensor.
        ValueError: a kernel was launched with no tensor, or `device` is unknown or not a GPU.
    """
    if isinstance(fn, MeteredElsewhere):
        return fn.metered(*args)
    if not callable(fn):
        raise TypeError(f"measure takes a function and its arguments, got {_kind(fn)}: wrap it, measure(lambda: ...)")
    if hasattr(fn, "_torchdynamo_orig_callable"):
        raise TypeError("measure cannot see into torch.compile's kernels: pass the uncompiled function")
    ledger = Ledger()
    for name, tensor in _names(fn, args):
        if tensor.layout is torch.strided and not tensor.is_nested:  # others matter only where they are used
            ledger.name(tensor, name, given=True)
    triton = TritonMeter(ledger, _multiprocessors(device))
    try:
        with runtime.observed(triton), observers.observed(CudaMeter(ledger)), EagerMeter(ledger):
            result = fn(*args)
    except Exception as error:
        error.hazards = Traffic.of(ledger, None).hazards
        raise
    for path, tensor in _leaves(result):
        ledger.name_result(tensor, f"result{path}")
    return Traffic.of(ledger, result)


def _multiprocessors(device: str | Device | None) -> int | None:
    if device is None:
        return None
    device = device if isinstance(device, Device) else DEVICES[device]
    if device.sms is None:
        raise ValueError(f"measure takes a GPU as device, got {device.name}: choose one that DEVICES lists")
    return device.sms


def _kind(value) -> str:
    return "a tensor (the function has already run)" if isinstance(value, torch.Tensor) else type(value).__name__


def _leaves(tree) -> list[tuple[str, torch.Tensor]]:
    """Yield (path, tensor) for each tensor in nested containers: ("[0]", x)."""
    leaves, _ = tree_flatten_with_path(tree)
    return [(keystr(path), leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def _state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _names(fn, args) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors that the caller can see, under the caller's names."""
    seen = {}
    if isinstance(fn, torch.nn.Module):
        seen = _state(fn)
        fn = fn.forward
    with contextlib.suppress(TypeError, ValueError):  # a builtin has no parameter names; fn itself rejects a wrong call
        seen |= inspect.signature(fn).bind(*args).arguments
    code = getattr(fn, "__code__", None)
    if code is not None:
        for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                seen.setdefault(name, cell.cell_contents)
        for name in code.co_names:
            if name in fn.__globals__:
                seen.setdefault(name, fn.__globals__[name])
    seen = {name: _state(value) if isinstance(value, torch.nn.Module) else value for name, value in seen.items()}
    return [(f"{name}{path}", tensor) for name, value in seen.items() for path, tensor in _leaves(value)]
