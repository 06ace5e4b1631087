"""A launch that was made before goes straight to the compiled kernel.

At every launch `JITFunction.run` finds out anew which compiled kernel its arguments take: their types, whether pointers
and integers divide by 16, constants and options, all as one string. Here that is a tuple, looked up in the cache that
holds the kernel's compiled forms for the device; what is found is launched by Triton's own launcher. All else goes to
Triton: the first launch of a kind, arguments of other kinds, hooks, debugging, globals that changed.
"""

import contextlib
import threading
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Parameter
from triton import knobs
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

triton_run = JITFunction.run
_INT64 = range(-(2**63), 2**63)


class Known(NamedTuple):
    """What another launch of the same kind takes besides its arguments."""

    kernel: JITFunction
    compiled: Any
    launch: Any  # Triton's launcher of the compiled kernel, called with these two
    function: Any
    metadata: Any
    constants: list  # of the parameters that no argument stands for
    used: list[tuple[dict, str, Any]]  # globals of the kernel's


class Launched(NamedTuple):
    """A launch as it was made; known is None where Triton alone knows how."""

    known: Known | None
    device: int
    grid: tuple[int, ...]
    arguments: tuple


class _Watch(threading.local):
    launches = None


_watch = _Watch()


@contextlib.contextmanager
def watched():
    """The list of launches that this thread makes inside of it: Launched, or None for one that was left to Triton."""
    before, _watch.launches = _watch.launches, []
    try:
        yield _watch.launches
    finally:
        _watch.launches = before


def kinds(arguments: tuple) -> list:
    """Of each argument all that Triton compiles a kernel for: equal kinds, equal specialisation.

    Raises:
        TypeError: an argument of a kind that is left to Triton.
    """
    found = []
    for x in arguments:
        kind = type(x)
        if kind is Tensor or kind is Parameter:
            found.append(x.dtype if x.data_ptr() % 16 == 0 else (x.dtype, "not aligned"))
        elif kind is int:
            if -(2**31) <= x < 2**31:
                found.append(x if x == 1 else 16 if x % 16 == 0 else 2)
            else:
                found.append((x in _INT64, x % 16 == 0))
        elif x is None or kind is float or kind is bool:
            found.append(kind)
        elif kind is tuple:
            found.append((tuple, *kinds(x)))
        elif kind is TensorDescriptor:
            found.append((TensorDescriptor, x.base.dtype, *x.block_shape))
        elif kind is GluonDescriptor:
            found.append((GluonDescriptor, x.base.dtype, *x.block_shape, x.layout))
        else:
            raise TypeError(f"{kind.__name__} is left to Triton")
    return found


def looked_at() -> bool:
    """Whether someone looks at launches, or compiles them otherwise than by what they are given."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(
        getattr(enter, "calls", enter)
        or getattr(leave, "calls", leave)
        or runtime.debug
        or runtime.add_stages_inspection_hook
        or knobs.compilation.instrumentation_mode
    )


def unchanged(known: Known) -> bool:
    """Whether the kernel's globals are what they were, and nothing is to run before it."""
    for names, name, value in known.used:
        if names.get(name) is not value:
            return False
    return not known.kernel.pre_run_hooks


def _remember(kernel: JITFunction, compiled, arguments: tuple, options: dict) -> Known | None:
    """What another launch of this kind takes, where nothing but constants is given by name."""
    rest = kernel.params[len(arguments) :]
    if any(each.name in options and not each.is_constexpr for each in rest):
        return None
    constants = [options.get(each.name, each.default) for each in rest]
    used = [(names, name, names.get(name)) for (name, _), (_, names) in kernel.used_global_vals.items()]
    return Known(kernel, compiled, compiled.run, compiled.function, compiled.packed_metadata, constants, used)


def run(self: JITFunction, *args, grid, warmup, **kwargs):
    """`JITFunction.run` on a GPU."""
    key = found = None
    device = driver.active.get_current_device()
    cache = self.device_caches[device][0]
    if not (warmup or callable(grid) or looked_at()):
        try:
            given = kinds(args)
            for place in self.constexprs:
                if place >= len(args):
                    break
                given[place] = args[place]
            key = (self.debug, *given, *kwargs, *kwargs.values())
            found = cache.get(key)
        except TypeError:
            key = None
    if found is not None and unchanged(found):
        x, y, z, *_ = (*grid, 1, 1)
        stream = driver.active.get_current_stream(device)
        found.launch(x, y, z, stream, found.function, found.metadata, None, None, None, *args, *found.constants)
        compiled = found.compiled
    else:
        compiled = triton_run(self, *args, grid=grid, warmup=warmup, **kwargs)
        found = None if key is None or compiled is None else _remember(self, compiled, args, kwargs)
        if found is not None:
            cache[key] = found
    if _watch.launches is not None:
        _watch.launches.append(None if key is None else Launched(found, device, grid, args))
    return compiled
