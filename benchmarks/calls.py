"""Build the calls that benchmarks time: backward passes alone, the plain variant, and the kernels that a call
launches."""

import sys
from collections.abc import Callable, Iterable

import torch
import torch._functorch.config
from triton.runtime.jit import JITFunction, KernelInterface

from benchmarks.triton_launches import Launch, triton_launches
from helpers.instruments.fingerprints import fingerprints
from kernels import variant
from kernels.launch_cache import clear_plans
from kernels.op import Work

# A backward pass timed repeatedly keeps its graph, so a compiled one must not donate the graph's buffers.
torch._functorch.config.donated_buffer = False


def least_time(work: Work, limits: dict[str, float]) -> tuple[str, float]:
    """Return the ceiling that bounds this work and the seconds it allows: "copy", "read", "write" or "matrix"."""
    kind = "copy"
    if work.bytes_written < 0.01 * work.bytes:
        kind = "read"
    elif work.bytes_read < 0.05 * work.bytes:
        kind = "write"
    memory = work.bytes / limits[f"{kind}_bytes_per_second"]
    arithmetic = work.flops / limits["bf16_matrix_flops_per_second"]
    return ("matrix", arithmetic) if arithmetic > memory else (kind, memory)


def backward_pass(function: Callable, inputs: tuple) -> Callable:
    """Return a call of no argument that runs the backward pass of `function` alone, its forward done once, now."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x for x in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    gradients = [torch.randn_like(y) for y in outputs]
    wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    return lambda: torch.autograd.grad(outputs, wanted, gradients, retain_graph=True)


def plain(function: Callable) -> Callable:
    """Return `function` with the plain kernels instead of the tuned ones, for any arguments."""

    def call(*arguments):
        with variant("plain"):
            return function(*arguments)

    return call


def calls_of(functions: dict[str, Callable], inputs: tuple, backward: bool) -> dict[str, Callable]:
    """Return provider -> call of no argument: of the function itself, or of its backward pass with its forward done.

    A provider whose forward raises is a finding: its call raises the same. The backward pass of "plain" is plain too.
    """
    if not backward:
        return {name: lambda function=function: function(*inputs) for name, function in functions.items()}
    calls = {}
    for name, function in functions.items():
        try:
            calls[name] = backward_pass(function, inputs)
        except Exception as error:  # a peer may raise anything
            calls[name] = lambda error=error: _raise(error)
    if "plain" in calls:
        calls["plain"] = plain(calls["plain"])
    return calls


def _raise(error: Exception) -> None:
    raise error


def launches_of(call: Callable) -> list[Launch]:
    """Return the launches of Triton's kernels in one call, which does not replay an earlier call's plan."""
    clear_plans()
    with triton_launches() as seen:
        call()
    return list(seen)


def _every_kernel() -> list[JITFunction]:
    """Return the kernels in the project's loaded modules."""
    found = []
    for module in [module for name, module in sys.modules.items() if name.startswith(("kernels.", "benchmarks."))]:
        for each in vars(module).values():
            while isinstance(each, KernelInterface) and not isinstance(each, JITFunction):
                each = each.fn  # of an autotuner
            if isinstance(each, JITFunction):
                found.append(each)
    return found


def forget_launched() -> None:
    """Forget which kernels were launched, so that `launched_kernels` lists only later ones."""
    clear_plans()
    for kernel in _every_kernel():
        kernel.device_caches.clear()


def launched_kernels() -> list[JITFunction]:
    """Return the kernels launched on a GPU since `forget_launched`, found without observing any launch."""
    return [kernel for kernel in _every_kernel() if any(compiled for compiled, *_ in kernel.device_caches.values())]


def fingerprints_of(kernels: Iterable[JITFunction]) -> list[str]:
    """Return the fingerprints of the project's own kernels among these, each once."""
    known = fingerprints()
    names = (f"{kernel.fn.__module__}.{kernel.fn.__name__}" for kernel in kernels)
    return sorted({known[name] for name in names if name in known})


def same_kernels(one: list[Launch], other: list[Launch]) -> bool:
    """Return whether two calls launch the same kernels with the same options: they are one variant, with one time."""

    return [(x.kernel.fn, str(x.options)) for x in one] == [(x.kernel.fn, str(x.options)) for x in other]
