"""A launch that was made before goes straight to the compiled kernel.

At every launch `JITFunction.run` finds out anew which compiled kernel its arguments take: their types, whether pointers
and integers divide by 16, constants and options, all as one string. Here that is a tuple, looked up in the cache that
holds the kernel's compiled forms for the device; what is found is launched by Triton's own launcher. All else goes to
Triton: the first launch of a kind, arguments of other kinds, hooks, debugging, globals that changed.
"""

from torch import Tensor
from torch.nn import Parameter
from triton import knobs
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

triton_run = JITFunction.run
_INT64 = range(-(2**63), 2**63)


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


def _watched() -> bool:
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


def _remember(known: dict, key: tuple, kernel: JITFunction, compiled, arguments: tuple, options: dict) -> None:
    """Keep what another launch of this key takes, where nothing but constants is given by name."""
    rest = kernel.params[len(arguments) :]
    if any(each.name in options and not each.is_constexpr for each in rest):
        return
    constants = [options.get(each.name, each.default) for each in rest]
    used = [(names, name, names.get(name)) for (name, _), (_, names) in kernel.used_global_vals.items()]
    known[key] = compiled, compiled.run, compiled.function, compiled.packed_metadata, constants, used


def run(self: JITFunction, *args, grid, warmup, **kwargs):
    """`JITFunction.run` on a GPU."""
    if warmup or callable(grid) or self.pre_run_hooks or _watched():
        return triton_run(self, *args, grid=grid, warmup=warmup, **kwargs)
    device = driver.active.get_current_device()
    known = self.device_caches[device][0]
    try:
        given = kinds(args)
        for place in self.constexprs:
            if place >= len(args):
                break
            given[place] = args[place]
        key = (self.debug, *given, *kwargs, *kwargs.values())
        found = known.get(key)
    except TypeError:
        return triton_run(self, *args, grid=grid, warmup=warmup, **kwargs)
    if found is not None:
        compiled, launch, function, metadata, constants, used = found
        for names, name, value in used:
            if names.get(name) is not value:
                break
        else:
            x, y, z, *_ = (*grid, 1, 1)
            stream = driver.active.get_current_stream(device)
            launch(x, y, z, stream, function, metadata, None, None, None, *args, *constants)
            return compiled
    compiled = triton_run(self, *args, grid=grid, warmup=warmup, **kwargs)
    if compiled is not None:
        _remember(known, key, self, compiled, args, kwargs)
    return compiled
