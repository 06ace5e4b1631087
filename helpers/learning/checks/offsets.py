"""Check that a kernel reaches all elements of tensors with more than 2^31 of them.

No machine has to hold such a tensor. The answer is called on small inputs, and once on inputs on PyTorch's device
`meta`, which have shapes and no memory; those launches are recorded, but not run. Then the first and the last program
instance of each recorded launch are interpreted without memory: loads return nothing, and Triton's own check
(`sanitize_overflow`) finds integers that exceed their 32 bits. The number of elements that these two store, times the
number of programs in the grid, must match the size of the result. In a long loop, such as one over the rows of a large
tensor, only the first iterations and the last are run, and one of the first stands in for the ones skipped.
"""

import linecache
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError
from triton.runtime.jit import JITFunction

from helpers.instruments.resources import lower_for
from helpers.instruments.traffic import MeteredElsewhere, measure
from helpers.learning.checks.launches import DEVICE
from helpers.learning.outcome import AnswerError, as_check, quoted_line
from kernels.interpreter import runtime

MAX_ACCESSES = 20_000  # of a program instance, where `while` goes over all of a large tensor
SMS = 108  # of an A100
ENDS = 32  # passes of a loop at each of its ends
ROOM = 44  # bits of an address within a tensor without memory; above them stands which tensor it is

Launch = tuple[JITFunction, tuple[int, ...], dict]  # kernel, grid, arguments by name


@as_check
def check_offsets(
    answer: Callable,
    inputs_of: Callable[[int], tuple],
    sizes: tuple[int, int],
    size: int,
    programs: int = 2,
    at_most: int | None = None,
) -> str:
    """Find 32-bit integers that overflow in the kernels that `answer(*inputs_of(size))` would launch, grids that leave
    elements of the result without a program, and grids that leave most of a GPU idle.

    Args:
        answer: the learner's function.
        inputs_of: a size, such as a number of rows -> the arguments of a call, which grow in proportion.
        sizes: two small ones; the second is called.
        size: the large one.
        programs: the minimum number of programs in a grid that doesn't grow with the size.
        at_most: the maximum number in the first launch.
        name: the check's name.
    """
    share = (size - sizes[0]) / (sizes[1] - sizes[0])
    smaller, larger = (inputs_of(each) for each in sizes)
    largest = tuple(grow(*pair, share) for pair in zip(smaller, larger, strict=True))
    if isinstance(answer, MeteredElsewhere):
        few, most, stray = answer.strays(larger, largest)
    else:
        small = launches_on(answer, larger)
        large, result = launches_without_memory(answer, largest)
        few, most = [grid for _, grid, _ in small], [grid for _, grid, _ in large]
        stray = find_stray(small, large, result) if is_spread(few, most, programs) else None
    if not most:
        raise AnswerError("no Triton kernel was launched", "your launcher: kernel[grid](...)")
    require_programs(few, most, programs)
    if at_most is not None and (first := math.prod(most[0])) > at_most:
        raise AnswerError(
            f"{size:,} instead of {sizes[1]}: {first:,} programs, {at_most} allowed",
            "the grid: a program loops over rows, and has one row of sums",
        )
    if stray:
        raise AnswerError(f"{size:,} instead of {sizes[1]}: {stray[0]}", stray[1])
    return f"no offset of 32 bits overflows at {size:,}, and every element has its program."


def find_stray(small: list[Launch], large: list[Launch], result: object) -> tuple[str, str] | None:
    """Return what goes wrong in launches on tensors without memory, and where to look; None if nothing does.

    Args:
        small: the launches of a small call.
        large: those of the large one.
        result: the large one's result: a tensor, or several.
    """
    stored, reached, stray = stored_by(large, small)
    if stray:
        return stray
    results = [each for each in (result if isinstance(result, tuple | list) else [result]) if is_tensor(each)]
    for name, tensor in [*(("the result", each) for each in results), *filled(small, large)]:
        storage, elements = storage_of(tensor), tensor.numel()
        if 0 < (had := stored[storage]) < elements:
            return (
                f"the programs store {had:,} elements of {name}, which has {elements:,}",
                "the grid: let it grow with the tensors, or let each program loop",
            )
        if storage in reached and (last := reached[storage] // tensor.element_size()) < elements / 2:
            return (
                f"the first and the last program store to the first {last:,} of the {elements:,} elements of {name}",
                "the program's number: all of it goes into the offset, in int64",
            )
    return None


def filled(small: list[Launch], large: list[Launch]) -> list[tuple[str, torch.Tensor]]:
    """Return the intermediate tensors, by the kernel's names, that a small call fills, and so a large one must fill
    too."""
    stored, *_ = stored_by(small, small)
    found = []
    for (kernel, _, few), (other, _, many) in zip(small, large, strict=False):
        for name, x in few.items():
            if kernel is other and is_tensor(x) and stored[storage_of(x)] >= x.numel() and is_tensor(many.get(name)):
                found.append((name, many[name]))
    return found


def stored_by(
    launches: list[Launch], small: list[Launch]
) -> tuple[Counter[int], dict[int, int], tuple[str, str] | None]:
    """Return how many elements the launches store, by `storage_of`; the offset in bytes of the last one that the first
    or last program of a launch stores; and any error in one of them, with where to look.

    Args:
        launches: launches without memory.
        small: those of a small call.
    """
    constants = {constants_of(kernel, given) for kernel, _, given in small}
    places: dict[int, int] = {}
    stored: Counter[int] = Counter()
    reached: dict[int, int] = {}
    for kernel, grid, given in launches:
        watching = SomeInstances()
        try:
            if constants_of(kernel, given) not in constants:
                lower_for(kernel, device=DEVICE, **given)
            with (
                runtime.observed(watching),
                without_memory(places),
                long_loops_cut(kernel, watching),
                narrowings_found(kernel, watching),
            ):
                kernel[grid](**{**given, "debug": True})
        except InterpreterError as error:
            if "overflow detected" in str(error) or watching.narrowed:
                few = next((grid for other, grid, _ in small if other is kernel), grid)
                axes = [axis for axis, (one, other) in enumerate(zip(few, grid, strict=False)) if other > one]
                what, remedy = "of 32 bits passes 2^31", f"{widened(axes)}, before it is multiplied"
                if watching.narrowed:
                    what, remedy = "of 64 bits is cut to 32", "leave element numbers and offsets in int64"
                elif "program_id" not in linecache.getline(*error.place) and not axes:
                    remedy = (
                        "make one operand int64 with .to(tl.int64), before the product; also a row counted in a loop"
                    )
                return (
                    stored,
                    reached,
                    (f"{kernel.fn.__name__}: an integer {what}", f"{quoted_line(*error.place)}: {remedy}"),
                )
            if watching.left < 0 or "passes through loops" in str(error):
                return (
                    stored,
                    reached,
                    (
                        f"{kernel.fn.__name__}: one program makes over {MAX_ACCESSES:,} loads and stores",
                        "the loop: write `for .. in range(..)`, because only its ends run here, or let the grid grow",
                    ),
                )
        except ValueError as error:
            if "does not compile" in str(error):
                return (
                    stored,
                    reached,
                    (
                        str(error),
                        "the constants of the launch that grow with the tensor: let the grid grow instead",
                    ),
                )
            return stored, reached, (str(error), "the grid: its first size may be 2^31 - 1, the others 65535 at most")
        # A small call may have more programs than work.
        if launches is not small and watching.stores[1:] == [False, False] and watching.stores[0]:
            return (
                stored,
                reached,
                (
                    f"{kernel.fn.__name__}: the first of {math.prod(grid):,} programs stores; one in the middle and "
                    "the last do not",
                    "the mask, and the sizes that it compares with: they grow with the tensors",
                ),
            )
        for storage, place in places.items():
            stored[storage] += round(watching.most.get(place, 0) * math.prod(grid))
            if place in watching.stored:  # the last program may be idle
                reached[storage] = max(reached.get(storage, 0), watching.reach[place])
    return stored, reached, None


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def constants_of(kernel: JITFunction, given: dict) -> tuple:
    return kernel, *(str(given.get(kernel.arg_names[place])) for place in kernel.constexprs)


def is_spread(smaller: list[tuple], larger: list[tuple], least: int) -> bool:
    few, most = (max(map(math.prod, grids), default=0) for grids in (smaller, larger))
    return most > few or most >= least


def require_programs(smaller: list[tuple], larger: list[tuple], least: int) -> None:
    """Raise AnswerError if only a few programs do the work, and their number doesn't grow with the tensors.

    Args:
        smaller, larger: the grids of a call's launches, and of those of a larger one.
        least: the minimum number of programs in a grid that doesn't grow.
    """
    if not is_spread(smaller, larger, least):
        most = max(map(math.prod, larger), default=0)
        programs = "one program does" if most == 1 else f"{most} programs do"
        each = " for each SM of an A100" * (least == SMS)
        raise AnswerError(
            f"{programs} all the work, however large the tensors are: most of a GPU is idle",
            f"the grid: let it grow with the tensors, or give it {least} programs at least{each and ', one' + each}",
        )


def widened(axes: list[int]) -> str:
    """Return the number that a kernel has to widen, if the grid grows with the size along these axes, or along none."""
    if len(axes) == 1:
        return f"tl.program_id({axes[0]}).to(tl.int64)"
    return (
        "a program's number .to(tl.int64)" if axes else "the loop's number .to(tl.int64), as by tl.cast(row, tl.int64)"
    )


class Enough(Exception):  # noqa: N818
    """A program has made enough accesses, and the rest will be like them."""


class SomeInstances:
    """Runs the first, a middle and the last program instance of a launch, and blocks all their memory accesses.

    Attributes:
        left: how many accesses the one that runs may still make.
        narrowed: whether a 64-bit number was converted to 32 bits that can't hold it.
        stored: tensor -> elements that the running one stores to it; most: the largest number by one of them.
        reach: tensor -> bytes up to the last that one of them stores.
        stores: for each instance that has run, whether it stores anything.
        standing_for: the number of loop iterations that the current one represents.
    """

    def __init__(self):
        self.left, self.narrowed = MAX_ACCESSES, False
        self.most: dict[int, float] = {}
        self.reach: dict[int, int] = {}
        self.standing_for = 1.0
        self.stored: Counter[int] = Counter()
        self.stores: list[bool] = []

    def launch(self, kernel, grid, on_host, given):
        first, last = (0, 0, 0), tuple(size - 1 for size in grid)
        middle = tuple(each // 2 for each in last)
        return [index for index in dict.fromkeys([first, middle, last]) if 0 not in grid]

    def program(self, index) -> None:
        self.left, self.stored = MAX_ACCESSES, Counter()
        self.stores.append(False)

    def access(self, kind, addresses, mask, itemsize, stored) -> np.ndarray:
        lanes = int(np.count_nonzero(mask))
        self.left -= lanes > 0
        if self.left < 0:
            raise Enough
        if lanes and kind != "read":
            place, last = divmod(int(addresses[mask].max()), 1 << ROOM)
            self.stores[-1] = True
            self.reach[place] = max(self.reach.get(place, 0), last + itemsize)
            self.stored[place] += lanes * self.standing_for
            self.most[place] = max(self.most.get(place, 0), self.stored[place])
        return np.zeros(addresses.shape, dtype=bool)


class Pointer:
    """A tensor without memory, as an argument of a launch: a dtype and a unique address."""

    def __init__(self, tensor: torch.Tensor, places: dict[int, int]):
        place = places.setdefault(storage_of(tensor), len(places) + 1)
        self.dtype = tensor.dtype
        self._address = (place << ROOM) + tensor.storage_offset() * tensor.element_size()

    def data_ptr(self) -> int:
        return self._address


@contextmanager
def without_memory(places: dict[int, int]) -> Iterator[None]:
    """Let launches accept tensors without memory; their storages are numbered from 1 in `places`."""

    def as_pointers(_, values, kwargs):
        return [Pointer(each, places) if is_tensor(each) else each for each in values], kwargs

    with (
        mock.patch.object(interpreter.GridExecutor, "_init_args_hst", as_pointers),
        mock.patch.object(interpreter.GridExecutor, "_restore_args_dev"),
    ):
        yield


@contextmanager
def long_loops_cut(kernel: JITFunction, watching: SomeInstances) -> Iterator[None]:
    """Make `range` and `tl.range` skip the middle of a long loop in a kernel."""

    def ends(*bounds) -> Iterator[int]:
        passes = range(*bounds)
        if len(passes) <= 2 * ENDS:
            yield from passes
            return
        yield from passes[: ENDS - 1]
        left_out = len(passes) - 2 * ENDS
        watching.standing_for *= 1 + left_out
        yield passes[ENDS - 1]
        watching.standing_for /= 1 + left_out
        yield from passes[-ENDS:]

    def of_tensors(*bounds) -> Iterator:
        # As compiled, where the loop variable has 32 bits: Python's own would widen with its factors.
        return map(interpreter._implicit_cvt, ends(*bounds))

    with (
        mock.patch.dict(kernel.fn.__globals__, range=of_tensors),
        mock.patch.object(runtime, "passes", ends),  # of tl.range
    ):
        yield


@contextmanager
def narrowings_found(kernel: JITFunction, watching: SomeInstances) -> Iterator[None]:
    """Stop a kernel if one of its own lines converts an integer to 32 bits that don't hold it.

    `tl.rand` and similar functions convert the halves of a counter, and are meant to truncate them.
    """
    cast = interpreter.InterpreterBuilder.create_int_cast
    own = kernel.fn.__code__.co_filename

    def checked(builder, value, dtype, is_signed):
        result = cast(builder, value, dtype, is_signed)
        if result.data.dtype.itemsize == 4 and value.data.dtype.itemsize == 8 and (result.data != value.data).any():
            frame = sys._getframe(1)
            while frame is not None and frame.f_code not in runtime.kernel_code:
                frame = frame.f_back
            if frame is not None and frame.f_code.co_filename == own:
                watching.narrowed = True
                raise OverflowError("an integer is cut to 32 bits")
        return result

    with mock.patch.object(interpreter.InterpreterBuilder, "create_int_cast", checked):
        yield


def grow(smaller: object, larger: object, share: float) -> object:
    """Extrapolate an argument, which is a number or a tensor's shape, from the smaller call through the larger one.

    Tensors are returned contiguous and without memory.
    """
    if is_tensor(smaller):
        shape = [grow(*sizes, share) for sizes in zip(smaller.shape, larger.shape, strict=True)]
        return torch.empty(shape, dtype=larger.dtype, device="meta")
    if type(smaller) is type(larger) is int and smaller != larger:
        return smaller + round((larger - smaller) * share)
    return larger


def launches_on(answer: Callable, inputs: tuple) -> list[Launch]:
    """Return the kernels that `answer(*inputs)` launches, each with its grid and its arguments by name."""
    seen: list[Launch] = []

    def recorded(*inputs):
        with noted(seen, JITFunction.run):
            return answer(*inputs)

    measure(recorded, *inputs)
    return seen


def launches_without_memory(answer: Callable, inputs: tuple) -> tuple[list[Launch], object]:
    """Return the kernels that `answer(*inputs)` would launch, and its result, without running anything.

    Args:
        inputs: tensors on the device `meta`, and other arguments.
    """
    seen: list[Launch] = []
    # Observe it, so that a launch is recorded before anything is tuned on a GPU.
    with runtime.observed(SomeInstances()), noted(seen, lambda *_, **__: None), torch.device("meta"):
        result = answer(*inputs)
    return seen, result


@contextmanager
def noted(seen: list[Launch], run: Callable) -> Iterator[None]:
    """Record launches in `seen`, and call `run` instead of launching them."""

    def note(self, *args, grid, warmup, **kwargs):
        given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        sizes = grid(given) if callable(grid) else grid
        if isinstance(self, JITFunction) and isinstance(sizes, tuple | list) and sizes:
            seen.append((self, tuple(sizes), given))
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    with mock.patch.object(JITFunction, "run", note):
        yield
