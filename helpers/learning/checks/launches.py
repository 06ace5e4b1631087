"""Checks on every kernel that an answer launches: the compiler accepts it, and its constants are plain.

`as_check` watches the launches of every check, and the grader's replay watches those of every submission, so no
exercise has to ask for it.
"""

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator
from unittest import mock

import torch
import triton.language as tl
from triton.runtime.jit import JITFunction

from helpers.instruments.resources import compile_for, lower_for
from helpers.instruments.traffic import MeteredElsewhere, Traffic, measure
from helpers.learning.checks.cases import described
from helpers.learning.checks.memory_errors import require_no_hazards
from helpers.learning.outcome import AnswerError
from kernels.interpreter import runtime

DEVICE = "A100"  # compiled for, one GPU of many
PLAIN = (bool, int, float, str, type(None), torch.dtype, tl.dtype, JITFunction)


# kernel -> whether in float64, for each form assembled; and kernel -> the forms that Triton accepted.
_compiled: weakref.WeakKeyDictionary[JITFunction, set[bool]] = weakref.WeakKeyDictionary()
_accepted: weakref.WeakKeyDictionary[JITFunction, set[tuple]] = weakref.WeakKeyDictionary()


class LaunchError(AnswerError):
    """Raised at a launch that no GPU would accept, whatever it computes."""


class Launches(contextlib.AbstractContextManager):
    """The kernels launched inside this context, in each form: pointer dtypes, constants, warps.

    If a launch has constants that are not plain values, it raises LaunchError at once: a list shared by all programs
    would be memory that no meter sees.
    """

    def __init__(self):
        self._forms: dict[tuple, tuple] = {}

    def __enter__(self) -> "Launches":
        self._replaced = contextlib.ExitStack()
        # A meter replaces Triton's launch by the interpreter's: both are watched.
        for owner, name in ((runtime, "_interpreted_run"), (JITFunction, "run")):
            watched = self._watched(getattr(owner, name))
            self._replaced.enter_context(mock.patch.object(owner, name, watched))
        return self

    def __exit__(self, *exception) -> None:
        self._replaced.close()

    def _watched(self, run):
        def launch(kernel, *args, grid, warmup, **kwargs):
            if not warmup:
                self._note(kernel, args, kwargs)
            return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

        return launch

    def _note(self, kernel: JITFunction, args: tuple, kwargs: dict) -> None:
        _launched.add(kernel)
        given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        constants = {name: given.get(name) for name in (kernel.arg_names[place] for place in kernel.constexprs)}
        for name, value in constants.items():
            require_plain(kernel.fn.__name__, name, value)
        pointers = tuple((name, value.dtype) for name, value in given.items() if isinstance(value, torch.Tensor))
        settings = {name: value for name, value in kwargs.items() if name not in kernel.arg_names}
        form = (kernel, pointers, *(tuple(sorted(each.items(), key=str)) for each in (constants, settings)))
        with contextlib.suppress(TypeError):  # an unhashable argument, such as a list that isn't a constant
            self._forms.setdefault(form, (kernel, args, kwargs))

    def require_compiled(self) -> None:
        """Raise LaunchError unless Triton accepts every form launched since the last call, and the assembler one form
        of each kernel, plus one in float64 if it was launched in that. Forms that an earlier check compiled
        are left out."""
        for (_, *form), (kernel, args, kwargs) in self._forms.items():
            wide = any(dtype == torch.float64 for _, dtype in form[0])
            compiled, accepted = _compiled.setdefault(kernel, set()), _accepted.setdefault(kernel, set())
            try:
                if wide not in compiled:
                    compile_for(kernel, *args, device=DEVICE, **kwargs)
                    compiled.add(wide)
                elif tuple(form) not in accepted:
                    lower_for(kernel, *args, device=DEVICE, **kwargs)
                accepted.add(tuple(form))
            except (ValueError, TypeError) as error:
                raise LaunchError(
                    f"the interpreter runs it, but {error}", f"{kernel.fn.__name__}: a GPU's compiler does not take it"
                ) from None
        self._forms.clear()


def require_plain(kernel: str, name: str, value: object) -> None:
    """Raise LaunchError if a constant of a launch is neither a plain value nor a tuple of plain values."""
    inner = value.value if isinstance(value, tl.constexpr) else value
    if isinstance(inner, tuple):
        for each in inner:
            require_plain(kernel, name, each)
    elif not isinstance(inner, PLAIN):
        raise LaunchError(
            f"{kernel}: the constant {name} is a {type(inner).__name__}; a tl.constexpr is a number, a string, a dtype "
            "or None",
            "what you launch the kernel with",
        )


MAX_REORDERED = 8  # programs of a call that is repeated in other orders; one with atomics always is
_launched: set[JITFunction] = set()  # watched, in the call that is measured
_in_any_order: weakref.WeakSet[JITFunction] = weakref.WeakSet()  # kernels repeated in other orders, without atomics
# Units in the last place of the largest value: the difference allowed for atomic additions in another order.
ROUNDINGS = 32


def measure_in_any_order(answer: Callable, *inputs) -> Traffic:
    """Return `measure(answer, *inputs)`, repeated with the programs in reverse order, and shuffled.

    Without atomics, only memory errors can make the order matter, and the meter sees those in every call. So calls with
    many programs and no atomics are not repeated, and for other calls only the first one of each kernel is.

    Raises:
        AnswerError: the results differ by more than rounding, or an error shows up only in another order.
    """
    if isinstance(answer, MeteredElsewhere):
        return answer.metered(*inputs)
    if getattr(answer, "once", False):  # its calls are counted
        return measure(answer, *inputs)
    copies = [fresh_copies(inputs) for _ in ORDERS]
    counted: list[int] = []
    _launched.clear()
    with programs_run(lambda programs: counted.append(len(programs)) or programs):
        traffic = measure(answer, *inputs)
    kernels = set(_launched)
    seen = bool(kernels) and kernels <= set(_in_any_order)
    few = sum(counted) <= MAX_REORDERED and not seen
    if max(counted, default=0) > 1 and not traffic.hazards and (traffic.atomics or few):
        for (order, reordered), again in zip(ORDERS.items(), copies, strict=True):
            with programs_run(reordered):
                other = measure(answer, *again)
            require_no_hazards(other, f"{described(inputs)}, programs {order}")
            require_alike(traffic.result, other.result, f"{described(inputs)}: with the programs {order}")
        if not traffic.atomics:
            _in_any_order.update(kernels)
    return traffic


def shuffled(programs: list) -> list:
    """Return the programs in an order that is the same each time: a stride that visits each of them once."""
    count = len(programs)
    step = next(each for each in range(int(count * 0.618) + 1, 2 * count + 2) if math.gcd(each, count) == 1)
    return [programs[place * step % count] for place in range(count)]


ORDERS = {"from last to first": lambda programs: programs[::-1], "shuffled": shuffled}


@contextlib.contextmanager
def programs_run(reordered: Callable[[list], list]) -> Iterator[None]:
    """Make the interpreter run the programs of each launch in the order that `reordered` returns."""
    in_order = runtime._in_order
    with mock.patch.object(runtime, "_in_order", lambda grid: reordered(list(in_order(grid)))):
        yield


FEW = 10  # programs of a launch


@contextlib.contextmanager
def few_programs() -> Iterator[None]:
    """Make the interpreter run only the first two programs of a launch, the last two, and some between them."""
    in_order = runtime._in_order

    def few(grid):
        programs = list(in_order(grid))
        last = len(programs) - 1
        places = {0, 1, last - 1, last, *(last * place // (FEW - 3) for place in range(FEW - 2))}
        return [programs[place] for place in sorted(places) if 0 <= place <= last]

    with mock.patch.object(runtime, "_in_order", few):
        yield


def runs_few() -> bool:
    """Return whether only some programs of a launch run now, so that a launch in another process can do the same."""
    return runtime._in_order.__name__ == "few"


def fresh_copies(inputs: tuple) -> list:
    """Copy a call's inputs; inputs that share a storage still share one."""
    storages: dict[int, torch.UntypedStorage] = {}
    found = []
    for x in inputs:
        if isinstance(x, torch.Tensor):
            own = x.untyped_storage()
            storage = storages.setdefault(own._cdata, own.clone())
            empty = torch.empty(0, dtype=x.dtype, device=x.device)
            x = empty.set_(storage, x.storage_offset(), x.shape, x.stride())
        found.append(x)
    return found


def fresh_copy(x: object) -> object:
    """Copy a tensor with its values, strides and offset into a storage of its own; return anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    storage = x.untyped_storage().clone()
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(storage, x.storage_offset(), x.shape, x.stride())


def require_alike(one: object, other: object, where: str) -> None:
    """Raise AnswerError if two results of one call differ by more than rounding."""
    pairs = zip(*(each if isinstance(each, tuple) else (each,) for each in (one, other)), strict=False)
    for mine, again in pairs:
        if not isinstance(mine, torch.Tensor) or not isinstance(again, torch.Tensor) or mine.shape != again.shape:
            continue  # the comparison with the reference reports what is wrong
        apart = (mine != again) & ~((mine != mine) & (again != again))
        if mine.is_floating_point() and apart.any():
            largest = mine[mine.isfinite()].abs().max() if mine.isfinite().any() else mine.new_ones(())
            allowed = ROUNDINGS * torch.finfo(mine.dtype).eps * largest.double().clamp(min=1.0)
            apart &= ~((mine.double() - again.double()).abs() <= allowed)
        if apart.any():
            raise AnswerError(
                f"{where}, {int(apart.sum())} of {apart.numel()} elements come out different",
                "values that programs read or overwrite from each other: on a GPU they run in no particular order",
            )
