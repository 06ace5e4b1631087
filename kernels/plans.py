"""A call of a kind made before: its memory and its launches at once, without the Python that found them.

What an operation checks, allocates and launches follows from its arguments' shapes, strides, dtypes and places within
16 bytes, and from its options. So the second call of a kind is watched: PyTorch's operators by a dispatch mode,
launches by launching.run. If it only allocated, made views and launched kernels that launching.run knows, over memory
of its arguments and its own, then from the third call on a Plan does the same with the tensors of that call. What does
more (copies, conversions, sums by PyTorch, anything that autograd records) runs as it is written, every time.
"""

import functools
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import launching

MOST = 4096  # kinds of call kept of a function: pictures and sequences come in many sizes
DESCRIPTORS = TensorDescriptor, GluonDescriptor
_OPTIONS = frozenset((type(None), bool, int, float, str, torch.dtype))
_ALLOCATIONS = frozenset(
    getattr(torch.ops.aten, name).default if name != "empty" else torch.ops.aten.empty.memory_format
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)


_every = []  # function's plans


class _Watching(threading.local):
    modes = 0


_watching = _Watching()


def forget() -> None:
    """Begin anew: after a change that no call shows, as of a kernel's text or settings; plans keep the old ones."""
    for plans in _every:
        plans.clear()


def watching() -> int:
    """How many of the dispatch modes of this thread are here for a plan, and change nothing."""
    return _watching.modes


class _Operators(TorchDispatchMode):
    """The tensors that are allocated inside of it, and whether nothing but that and views is asked of PyTorch."""

    def __init__(self):
        super().__init__()
        self.made, self.only_these = [], True

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if operator in _ALLOCATIONS:
            self.made.append(result)  # held, so that no two of them have one address
        elif not operator.is_view and operator is not torch.ops.aten.promote_types.default:
            self.only_these = False
        return result


class _Step(NamedTuple):
    """One launch: `given` but for tensors, of which (place in given, number in the call) say where they go."""

    known: launching.Known
    grid: tuple[int, int, int]
    given: list
    tensors: list[tuple[int, int]]
    described: list[tuple[int, int]]


class Plan(NamedTuple):
    """Tensors are numbered: a call's arguments, then what it allocates."""

    device: int
    allocations: list[tuple]  # size, strides, dtype, device
    steps: list[_Step]
    results: list[tuple[int, tuple | None] | None]  # a tensor's number, and size, strides and offset of a view of it
    alone: bool  # one result, not a tuple

    def holds(self) -> bool:
        """Whether Triton would launch the same kernels now."""
        return all(launching.unchanged(step.known) for step in self.steps)

    def run(self, arguments: tuple):
        tensors = [*arguments]
        for size, strides, dtype, device in self.allocations:
            tensors.append(torch.empty_strided(size, strides, dtype=dtype, device=device))
        stream = driver.active.get_current_stream(self.device)
        for known, (x, y, z), given, slots, described in self.steps:
            given = given.copy()
            for place, number in slots:
                given[place] = tensors[number].data_ptr()
            for place, number in described:
                given[place] = _descriptor_of(tensors[number], given[place])
            known.launch(x, y, z, stream, known.function, known.metadata, None, None, None, *given)
        results = []
        for each in self.results:
            tensor = None if each is None else tensors[each[0]]
            results.append(tensor if each is None or each[1] is None else tensor.as_strided(*each[1]))
        return results[0] if self.alone else tuple(results)


def _descriptor_of(base: Tensor | None, like: TensorDescriptor | GluonDescriptor):
    """`like`, of another tensor of its kind: what its constructor checks was checked before."""
    found = object.__new__(type(like))
    found.__dict__ = like.__dict__ | {"base": base}
    return found


def _plainly() -> bool:
    """Whether a call made now is of tensors alone, by someone who only wants its result."""
    return not (
        torch.compiler.is_compiling()  # first: torch.compile then looks no further
        or JITFunction.run is not launching.run  # interpreted, or listened to
        or launching.looked_at()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.get_interpreter_stack()
        or torch._C._get_tracing_state()
        or forward_ad._current_level >= 0
    )


def _autocast() -> tuple:
    return tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cuda", "cpu"))


def kind_of(arguments: tuple) -> tuple | None:
    """Whatever a call's launches may depend on; None where an argument is of another type, or not dense."""
    autocast = torch._C._is_any_autocast_enabled() and _autocast()
    found = [driver.active.get_current_device(), torch.are_deterministic_algorithms_enabled(), autocast]
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


def _step(launched: launching.Launched | None, numbers: dict[int, int]) -> _Step | None:
    """The launch as a step; None where it is not one of known kernel, on this device, over numbered tensors."""
    if launched is None or launched.known is None or launched.known.compiled.metadata.global_scratch_size:
        return None
    if launched.device != driver.active.get_current_device():
        return None
    given, tensors, described = [*launched.arguments, *launched.known.constants], [], []
    for place, x in enumerate(given):
        base = x.base if isinstance(x, DESCRIPTORS) else x
        if isinstance(base, tuple) and any(isinstance(each, (Tensor, *DESCRIPTORS)) for each in base):
            return None
        if isinstance(base, Tensor):
            if base.data_ptr() not in numbers:
                return None
            (tensors if base is x else described).append((place, numbers[base.data_ptr()]))
            given[place] = None if base is x else _descriptor_of(None, x)
    return _Step(launched.known, (*launched.grid, 1, 1)[:3], given, tensors, described)


def _plan(arguments: tuple, made: list[Tensor], launches: list, results) -> Plan | None:
    tensors = [*arguments, *made]
    numbers = {x.data_ptr(): number for number, x in enumerate(tensors) if isinstance(x, Tensor)}
    if 0 in numbers or len(numbers) < sum(isinstance(x, Tensor) for x in tensors):
        return None  # of two tensors at one address, nobody knows which one a kernel was given
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
    """What the function returns, and its Plan, or None where there can be none."""
    operators = _Operators()
    with launching.watched() as launches, operators:
        _watching.modes += 1
        try:
            results = function(*arguments, **named)
        finally:
            _watching.modes -= 1
    given = *arguments, *named.values()
    return results, _plan(given, operators.made, launches, results) if operators.only_these else None


def planned(function: Callable) -> Callable:
    """The function, of tensors and options to a tensor or a tuple of them and None, for calls made often."""
    plans = {}  # kind -> False where it was seen once, None where there can be no plan, or the plan
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
            if len(plans) == MOST:
                plans.clear()
            plans[kind] = False
        return function(*arguments, **named)

    # torch.compile counts how often it compiles a code object, and gives up: each function has its own.
    call.__code__ = call.__code__.replace(co_name=function.__name__)
    return call
