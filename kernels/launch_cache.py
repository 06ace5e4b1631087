"""Repeat an earlier call as allocations and launches only, without the Python code that derived them.

An operation's checks, allocations and launches depend only on its arguments' shapes, strides, dtypes and alignment, on
its options and on the variant. The second call of a kind is watched: a dispatch mode records PyTorch's operators, and
_recorded_run the launches of the course's kernels. If the call only allocated, made views, and launched these kernels
on its arguments' memory and its own, later calls of that kind replay a Plan with their own tensors. Calls that do more
(copies, conversions, sums by PyTorch, anything that autograd records) run in full every time.

Only functions decorated with @planned, the course's operations, are cached; a learner's own kernels launch through
Triton as usual. `launch_cache.enabled = False` turns the cache off.
"""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import variants
from kernels.interpreter import runtime

enabled = True
_triton_run = runtime.triton_run  # if JITFunction.run is replaced, something observes launches
MAX_KINDS = 4096  # plans per function: images and sequences come in many sizes
_OPTIONS = frozenset((type(None), bool, int, float, str, torch.dtype))
_ALLOCATIONS = frozenset(
    getattr(torch.ops.aten, name).default if name != "empty" else torch.ops.aten.empty.memory_format
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)


class CachedLaunch(NamedTuple):
    """A compiled kernel, and everything except arguments that another launch of its kind needs."""

    kernel: JITFunction
    compiled: Any
    launch: Any  # Triton's launcher of the compiled kernel, called with the next two
    function: Any
    metadata: Any
    constants: list  # values of parameters without a positional argument
    used: list[tuple[dict, str, Any]]  # globals that the kernel read at compile time: namespace, name, value

    def holds(self) -> bool:
        """Return whether Triton would launch the same compiled kernel now."""
        return not self.kernel.pre_run_hooks and all(names.get(name) is value for names, name, value in self.used)


class Launched(NamedTuple):
    """A recorded launch; `cached` is None if only Triton can repeat it."""

    cached: CachedLaunch | None
    device: int
    grid: tuple[int, ...]
    arguments: tuple


class _Watching(threading.local):
    modes = 0
    launches: list[Launched] | None = None


_watching = _Watching()


def _recorded_run(kernel: JITFunction, *args, grid, warmup, **kwargs):
    """Replace `kernel.run` of the course's own kernels: launch as Triton does, and record the launch of a watched
    call."""
    compiled = type(kernel).run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
    if _watching.launches is not None:
        cached = None
        rest = kernel.params[len(args) :]
        repeatable = compiled is not None and not callable(grid) and not warmup
        if repeatable and not any(each.name in kwargs and not each.is_constexpr for each in rest):
            constants = [kwargs.get(each.name, each.default) for each in rest]
            used = [(names, name, names.get(name)) for (name, _), (_, names) in kernel.used_global_vals.items()]
            handles = compiled.run, compiled.function, compiled.packed_metadata
            cached = CachedLaunch(kernel, compiled, *handles, constants, used)
        _watching.launches.append(Launched(cached, driver.active.get_current_device(), grid, args))
    return compiled


def _record_launches_of_catalogue() -> None:
    """Install _recorded_run on each kernel in this package's modules, and on no other kernel."""
    for name, module in list(sys.modules.items()):
        if name.startswith("kernels."):
            for kernel in vars(module).values():
                if isinstance(kernel, JITFunction) and "run" not in vars(kernel):
                    kernel.run = functools.partial(_recorded_run, kernel)


def _listened_to() -> bool:
    """Return whether something observes launches, or changes how kernels are compiled."""
    settings = knobs.runtime
    enter, leave = settings.launch_enter_hook, settings.launch_exit_hook
    return bool(
        getattr(enter, "calls", enter)
        or getattr(leave, "calls", leave)
        or settings.debug
        or settings.add_stages_inspection_hook
        or knobs.compilation.instrumentation_mode
    )


@functools.cache
def _descriptors() -> tuple[type, ...]:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor  # slow to import

    return TensorDescriptor, GluonDescriptor


_every = []  # each function's plans


def clear_plans() -> None:
    """Drop all plans, after a change that calls don't reveal, such as to a kernel's source or settings."""
    for plans in _every:
        plans.clear()


def watching() -> int:
    """Return how many of this thread's dispatch modes are only there to record a plan."""
    return _watching.modes


class _Operators(TorchDispatchMode):
    """Record the tensors allocated inside, and whether PyTorch only allocates and makes views."""

    def __init__(self):
        super().__init__()
        self.made, self.only_these = [], True

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if operator in _ALLOCATIONS:
            self.made.append(result)  # kept alive, so that no two share an address
        elif not operator.is_view and operator is not torch.ops.aten.promote_types.default:
            self.only_these = False
        return result


class _Step(NamedTuple):
    """One launch: `given`, its arguments without tensors, and (place in given, number in the call) for each tensor."""

    cached: CachedLaunch
    grid: tuple[int, int, int]
    given: list
    tensors: list[tuple[int, int]]
    described: list[tuple[int, int]]


class Plan(NamedTuple):
    """A call's steps and results. Tensors are numbered: first the call's arguments, then its allocations."""

    device: int
    allocations: list[tuple]  # size, strides, dtype, device
    steps: list[_Step]
    results: list[tuple[int, tuple | None] | None]  # a tensor's number; for a view, its size, strides and offset
    alone: bool  # a single result, not a tuple

    def holds(self) -> bool:
        """Return whether Triton would launch the same kernels now."""
        return all(step.cached.holds() for step in self.steps)

    def run(self, arguments: tuple):
        tensors = [*arguments]
        for size, strides, dtype, device in self.allocations:
            tensors.append(torch.empty_strided(size, strides, dtype=dtype, device=device))
        stream = driver.active.get_current_stream(self.device)
        for cached, (x, y, z), given, slots, described in self.steps:
            given = given.copy()
            for place, number in slots:
                given[place] = tensors[number].data_ptr()
            for place, number in described:
                given[place] = _descriptor_of(tensors[number], given[place])
            cached.launch(x, y, z, stream, cached.function, cached.metadata, None, None, None, *given)
        results = []
        for each in self.results:
            tensor = None if each is None else tensors[each[0]]
            results.append(tensor if each is None or each[1] is None else tensor.as_strided(*each[1]))
        return results[0] if self.alone else tuple(results)


def _descriptor_of(base: Tensor | None, like):
    """Return a copy of `like` for another tensor of its kind, without the constructor's checks, which passed
    earlier."""
    found = object.__new__(type(like))
    found.__dict__ = like.__dict__ | {"base": base}
    return found


def _plainly() -> bool:
    """Return whether a call now would only take plain tensors and return its result: no autograd, mode or tracing."""
    return not (
        torch.compiler.is_compiling()  # first, so that torch.compile traces no further
        or not enabled
        or runtime.interprets()
        or JITFunction.run is not _triton_run
        or _listened_to()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.get_interpreter_stack()
        or torch._C._get_tracing_state()
        or forward_ad._current_level >= 0
    )


def _autocast() -> tuple:
    return tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cuda", "cpu"))


def kind_of(arguments: tuple) -> tuple | None:
    """Return everything that a call's launches may depend on; None if an argument has another type or is not dense."""
    autocast = torch._C._is_any_autocast_enabled() and _autocast()
    found = [driver.active.get_current_device(), torch.are_deterministic_algorithms_enabled(), autocast]
    found.append(variants.chosen_variant())
    graded = torch.is_grad_enabled()
    for x in arguments:
        kind = type(x)
        if kind is Tensor or kind is Parameter:
            if x.layout is not torch.strided or x.is_nested:
                return None
            found += x.dtype, x.shape, x.stride(), x.data_ptr() % 16, x.device, x.is_neg(), graded and x.requires_grad
        elif kind in _OPTIONS:
            found += kind, x
        else:
            return None
    return tuple(found)


def _step(launched: Launched, numbers: dict[int, int]) -> _Step | None:
    """Return the launch as a step; None if only Triton can repeat it, or if it reads memory of unknown origin."""
    if launched.cached is None or launched.cached.compiled.metadata.global_scratch_size:
        return None
    if launched.device != driver.active.get_current_device():
        return None
    given, tensors, described = [*launched.arguments, *launched.cached.constants], [], []
    for place, x in enumerate(given):
        base = x.base if isinstance(x, _descriptors()) else x
        if isinstance(base, tuple) and any(isinstance(each, (Tensor, *_descriptors())) for each in base):
            return None
        if isinstance(base, Tensor):
            if base.data_ptr() not in numbers:
                return None
            (tensors if base is x else described).append((place, numbers[base.data_ptr()]))
            given[place] = None if base is x else _descriptor_of(None, x)
    return _Step(launched.cached, (*launched.grid, 1, 1)[:3], given, tensors, described)


def _plan(arguments: tuple, made: list[Tensor], launches: list, results) -> Plan | None:
    tensors = [*arguments, *made]
    numbers = {x.data_ptr(): number for number, x in enumerate(tensors) if isinstance(x, Tensor)}
    if 0 in numbers or len(numbers) < sum(isinstance(x, Tensor) for x in tensors):
        return None  # two tensors at one address: the kernel's argument is ambiguous
    steps = [_step(each, numbers) for each in launches]
    alone, found = not isinstance(results, tuple), []
    for x in (results,) if alone else results:
        if x is None:
            found.append(None)
            continue
        if not isinstance(x, Tensor):
            return None
        number = numbers.get(x.untyped_storage().data_ptr(), 0)
        if number < len(arguments) or x.dtype != tensors[number].dtype or x.requires_grad:
            return None
        view = x.shape, x.stride(), x.storage_offset()
        whole = view == (tensors[number].shape, tensors[number].stride(), 0)
        found.append((number, None if whole else view))
    allocations = [(x.shape, x.stride(), x.dtype, x.device) for x in made]
    if None in steps:
        return None
    return Plan(driver.active.get_current_device(), allocations, steps, found, alone)


def _watched(function: Callable, arguments: tuple, named: dict) -> tuple:
    """Return the function's result and its Plan, or None for a call that cannot be planned."""
    _record_launches_of_catalogue()
    operators, before = _Operators(), _watching.launches
    launches = _watching.launches = []
    _watching.modes += 1
    try:
        with operators:
            results = function(*arguments, **named)
    finally:
        _watching.modes -= 1
        _watching.launches = before
    given = *arguments, *named.values()
    return results, _plan(given, operators.made, launches, results) if operators.only_these else None


def planned(function: Callable) -> Callable:
    """Cache plans for a function of tensors and options that returns a tensor, or a tuple of tensors and None."""
    plans = {}  # kind -> its plan, False if seen once, None if no plan is possible
    _every.append(plans)

    @functools.wraps(function)
    def call(*arguments, **named):
        if not _plainly():
            return function(*arguments, **named)
        given = (*arguments, *named.values()) if named else arguments
        kind = kind_of(given)
        if kind is None:
            return function(*arguments, **named)
        if named:
            kind += (*named,)
        plan = plans.get(kind, kind)
        if type(plan) is Plan and plan.holds():
            return plan.run(given)
        if plan is False:
            results, plans[kind] = _watched(function, arguments, named)
            return results
        if plan is kind:
            if len(plans) == MAX_KINDS:
                plans.clear()
            plans[kind] = False
        return function(*arguments, **named)

    # torch.compile gives up on a code object that it has compiled too many times, so each function has its own.
    call.__code__ = call.__code__.replace(co_name=function.__name__)
    return call
