"""Repeat recorded calls on other inputs, with the submission's kernels and nothing else from it."""

import inspect
import math

import torch
import triton.language as tl
from triton.runtime.jit import JITFunction

from helpers.grading.replay.tensors import DTYPES, MAX_BYTES, MAX_RESULTS, Storages, have_memory
from helpers.learning.outcome import AnswerError

MAX_STEPS = 64  # operators and launches of one call

# PyTorch may allocate, copy and add around the kernels. Kernels do all other computation.
ALLOCATE = (
    "empty empty_strided empty_like new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like new_ones"
)
ALLOCATE += " full full_like new_full arange"
COPY = "clone copy_ _to_copy fill_ zero_ _unsafe_view _reshape_alias"
ADD = "add add_ sum"
ALLOWED = frozenset(f"{ALLOCATE} {COPY} {ADD}".split())

# Others, such as ir_override and ptx_options, would make the compiler compile something other than the kernel.
LAUNCH_OPTIONS = frozenset("num_warps num_stages num_ctas maxnreg".split())


class ReplayedCall:
    """An answer as a function that replays one recorded call.

    Args:
        name: the answer's name.
        parameters: the names of its parameters, the meter's names for the inputs.
        call: the record.
        kernels: name -> kernel, the submission's.
    """

    def __init__(self, name: str, parameters: list[str], call: dict, kernels: dict[str, JITFunction]):
        self.__name__ = name
        self.__signature__ = signature_of(parameters)
        self._call = call
        self._kernels = kernels
        self._device = torch.device("cpu")

    def __call__(self, *inputs):
        if len(self._call["steps"]) > MAX_STEPS:
            raise AnswerError(f"over {MAX_STEPS} operations in one call", "your launcher: it should only launch")
        storages = Storages()
        self._device = torch.device("cpu" if have_memory(inputs) else "meta")
        for x in inputs:
            if isinstance(x, torch.Tensor):
                storages.add(x)
        try:
            for step in self._call["steps"]:
                if "kernel" in step:
                    self._launch(step, storages)
                else:
                    self._operate(step, storages)
            return result_of(self._call["result"], storages)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            said = str(error).strip() or type(error).__name__
            raise AnswerError(f"cannot be done again: {said.splitlines()[0]}", "your launcher") from error

    def _operate(self, step: dict, storages: Storages) -> None:
        name, _, overload = step["operator"].removeprefix("aten.").partition(".")
        if name not in ALLOWED:
            raise AnswerError(
                f"PyTorch computes {name.strip('_')}, outside your kernel",
                "your launcher: it may allocate, copy and add; the kernel has to compute the rest",
            )
        packet = getattr(torch.ops.aten, name)
        if overload not in packet.overloads():
            raise ValueError(f"{name} has no variant {overload[:80]!r}")
        operator = getattr(packet, overload)
        args, kwargs = self._read(step["args"], storages), self._read(step["kwargs"], storages)
        for made in step["made"]:
            nbytes = math.prod(made["shape"]) * DTYPES[made["dtype"]].itemsize
            if self._device.type == "cpu" and nbytes > MAX_BYTES:
                raise AnswerError("too large a tensor", "your launcher: what it allocates")
        result = operator(*args, **kwargs)
        for view, tensor in zip(step["made"], [result] if isinstance(result, torch.Tensor) else result, strict=True):
            if storages.add(tensor) != view["storage"] or list(tensor.shape) != view["shape"]:
                raise ValueError(f"{name} gives another tensor")

    def _launch(self, step: dict, storages: Storages) -> None:
        kernel = self._kernel(step["kernel"])
        args, kwargs = self._read(step["args"], storages), self._read(step["kwargs"], storages)
        if refused := sorted(kwargs.keys() - LAUNCH_OPTIONS - set(kernel.arg_names)):
            raise AnswerError(f"the launch option {refused[0]} is not graded", "how you launch your kernel")
        kernel[tuple(step["grid"])](*args, **kwargs)

    def _kernel(self, name: str) -> JITFunction:
        if name not in self._kernels:
            raise AnswerError(
                f"{name!r} is launched, but is not a kernel of your answers",
                "your answer cells: a kernel is a function under @triton.jit, not inside another function",
            )
        return self._kernels[name]

    def _read(self, value, storages: Storages):
        match value:
            case {"tensor": view}:
                return storages.tensor_of(view)
            case {"tl": str(name)} if name in tl.dtype.SINT_TYPES + tl.dtype.UINT_TYPES + tl.dtype.FP_TYPES:
                return tl.dtype(name)
            case {"kernel": str(name)}:
                return self._kernel(name)
            case {"torch": str(name)}:
                return torch_value(name, self._device)
            case dict():
                return {str(key): self._read(item, storages) for key, item in value.items()}
            case list():
                return [self._read(item, storages) for item in value]
        return value


def signature_of(parameters: list[str]) -> inspect.Signature:
    return inspect.Signature([inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in parameters])


def result_of(view: dict | list[dict], storages: Storages) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Return a call's result: a tensor, or a tuple of tensors."""
    if isinstance(view, dict):
        return storages.tensor_of(view)
    if len(view) > MAX_RESULTS:
        raise ValueError(f"over {MAX_RESULTS} tensors are returned")
    return tuple(storages.tensor_of(each) for each in view)


def torch_value(name: str, device: torch.device):
    """Return a dtype, layout, memory format or device by name; every device is the one the call's tensors are on."""
    if name in DTYPES:
        return DTYPES[name]
    if name in ("strided", "contiguous_format", "preserve_format", "channels_last"):
        return getattr(torch, name)
    return device
