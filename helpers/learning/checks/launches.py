"""Check every kernel that an answer launches: the compiler accepts it, and its constants are plain values.

`as_check` watches each check's launches, and the grader's replay watches each submission's. Exercises don't have to
request it.
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

DEVICE = "A100"  # the target; any GPU would do
PLAIN = (bool, int, float, str, type(None), torch.dtype, tl.dtype, JITFunction)


class LaunchError(AnswerError):
    """Raised at a launch that no GPU would take, whatever it computes."""


class Launches(contextlib.AbstractContextManager):
    """Records the kernels launched inside this context, in every form: pointer dtypes, constants, warps.

    A launch whose constants are not plain values raises LaunchError at once: a list shared by all programs would be
    memory that no meter sees.
    """

    def __init__(self):
        self._forms: dict[tuple, tuple] = {}
        self._accepted: set[tuple] = set()
        self._compiled: set[tuple] = set()

    def __enter__(self) -> "Launches":
        self._replaced = contextlib.ExitStack()
        # A meter replaces Triton's launch with the interpreter's: watch both.
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
        with contextlib.suppress(TypeError):  # an argument without a hash, such as a list that is not a constant
            self._forms.setdefault(form, (kernel, args, kwargs))

    def require_compiled(self) -> None:
        """Raise LaunchError unless Triton compiles every form launched since the last call, and the assembler accepts
        one form of each kernel, plus one in float64 if it was launched in float64."""
        for form, (kernel, args, kwargs) in self._forms.items():
            wide = any(dtype == torch.float64 for _, dtype in form[1])
            try:
                if (kernel, wide) not in self._compiled:
                    compile_for(kernel, *args, device=DEVICE, **kwargs)
                    self._compiled.add((kernel, wide))
                elif form not in self._accepted:
                    lower_for(kernel, *args, device=DEVICE, **kwargs)
                self._accepted.add(form)
            except (ValueError, TypeError) as error:
                raise LaunchError(
                    f"the interpreter runs it, but {error}", f"{kernel.fn.__name__}: a GPU's compiler does not take it"
                ) from None
        self._forms.clear()


def require_plain(kernel: str, name: str, value: object) -> None:
    """Raise LaunchError if a launch's constant is not a plain value or a tuple of plain values."""
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


MAX_REORDERED = 8  # most programs of a call that is repeated in other orders; calls with atomics always are
_launched: set[JITFunction] = set()  # kernels launched in the measured call
_in_any_order: weakref.WeakSet[JITFunction] = weakref.WeakSet()  # repeated kernels without atomics
# Allowed difference of atomic additions in another order, in units in the last place of the largest value.
ROUNDINGS = 32


def measure_in_any_order(answer: Callable, *inputs) -> Traffic:
    """Run `measure(answer, *inputs)`, then repeat it with the programs in reverse order, and shuffled.

    Without atomics, order only matters if there are hazards, and the meter sees these in every call. So calls with many
    programs and no atomics are not repeated, and of the others only a kernel's first call.

    Raises:
        AnswerError: the results differ by more than rounding, or a hazard shows only in another order.
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
    """Return programs in a fixed order: a stride that visits each once."""
    count = len(programs)
    step = next(each for each in range(int(count * 0.618) + 1, 2 * count + 2) if math.gcd(each, count) == 1)
    return [programs[place * step % count] for place in range(count)]


ORDERS = {"from last to first": lambda programs: programs[::-1], "shuffled": shuffled}


@contextlib.contextmanager
def programs_run(reordered: Callable[[list], list]) -> Iterator[None]:
    """Make the interpreter run each launch's programs in the order that `reordered` returns."""
    in_order = runtime._in_order
    with mock.patch.object(runtime, "_in_order", lambda grid: reordered(list(in_order(grid)))):
        yield


def fresh_copies(inputs: tuple) -> list:
    """Return copies of a call's inputs that share storage where the originals do."""
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
    """Return a tensor with x's values, strides and offset in its own storage; return anything else unchanged."""
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
                f"{where}, {int(apart.sum())} of {apart.numel()} elements come out otherwise",
                "what one program reads or overwrites of another's: on a GPU they run in no order",
            )
