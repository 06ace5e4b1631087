"""Do a kernel's offsets reach tensors of more than 2^31 elements?

No machine need hold such a tensor. The answer is called on two small inputs, of 32 and of 64 rows say; the differences
between the two launches (grid, sizes, strides) grow in proportion, so the launch for any number of rows is known. Its
last program instance is interpreted without memory: every load gives nothing, and integers that pass their 32 bits are
found where they do, by Triton's own check (`sanitize_overflow`). In a long loop, as over the rows of a large tensor,
only the first iterations and the last run.
"""

import linecache
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError
from triton.runtime.jit import JITFunction

from helpers.instruments.resources import lower_for
from helpers.instruments.traffic import MeteredElsewhere, measure
from helpers.learning.checks.launches import DEVICE
from helpers.learning.outcome import AnswerError, as_check, quoted_line
from kernels.interpreter import runtime

MAX_ACCESSES = 20_000  # of the program instance, where `while` goes over all of a large tensor
SMS = 108  # of an A100
ENDS = 32  # passes of a loop at each of its ends


@as_check
def check_offsets(
    answer: Callable, inputs_of: Callable[[int], tuple], sizes: tuple[int, int], size: int, programs: int = 2
) -> str:
    """Find 32-bit integers that overflow in the kernels that `answer(*inputs_of(size))` would launch, and grids that
    leave most of a GPU without work.

    Args:
        answer: the learner's function.
        inputs_of: a size, such as a number of rows -> the arguments of a call, whose launch grows in proportion.
        sizes: two small ones, which are called; the launches must differ in proportion to them.
        size: the large one.
        programs: how many a grid must have at least that does not grow with the size.
        name: the check's name.
    """
    share = (size - sizes[0]) / (sizes[1] - sizes[0])
    smaller, larger = (inputs_of(each) for each in sizes)
    if isinstance(answer, MeteredElsewhere):
        few, most, stray = answer.strays(smaller, larger, share)
    else:
        grids, larger = [(grid, given) for _, grid, given in launches_on(answer, smaller)], launches_on(answer, larger)
        few, most = [grid for grid, _ in grids], [grid for _, grid, _ in larger]
        stray = find_overflow(grids, larger, share) if is_spread(few, most, programs) else None
    if not most:
        raise AnswerError("no Triton kernel was launched", "your launcher: kernel[grid](...)")
    require_programs(few, most, programs)
    if stray:
        raise AnswerError(f"{size:,} in place of {sizes[1]}: {stray[0]}", stray[1])
    return f"no offset of 32 bits overflows at {size:,}."


def find_overflow(
    smaller: list[tuple[tuple, dict]], larger: list[tuple[JITFunction, tuple, dict]], share: float
) -> tuple[str, str] | None:
    """Return what goes wrong in launches of an even larger size, and where to look; None if nothing does.

    Args:
        smaller: grid, and arguments by name, of each launch of the smaller call.
        larger: kernel, grid, and arguments by name, of each launch of the larger one.
        share: how far to go: 1 is the larger call, 2 as far again.
    """
    for (grid, given), (kernel, next_grid, next_given) in zip(smaller, larger, strict=False):
        grown = {name: grow(given.get(name), value, share) for name, value in next_given.items()}
        large_grid = tuple(grow(a, b, share) for a, b in zip(grid, next_grid, strict=True))
        watching = LastInstance()
        constants = [kernel.arg_names[place] for place in kernel.constexprs]
        try:
            if any(grown.get(name) != next_given.get(name) for name in constants):
                lower_for(kernel, device=DEVICE, **grown)
            with runtime.observed(watching), long_loops_cut(kernel), narrowings_found(kernel, watching):
                kernel[large_grid](**{**grown, "debug": True})
        except InterpreterError as error:
            if "overflow detected" in str(error) or watching.narrowed:
                sizes = enumerate(zip(next_grid, large_grid, strict=True))
                axes = [axis for axis, (few, many) in sizes if many > few]
                what, remedy = "of 32 bits passes 2^31", f"{widened(axes)}, before it is multiplied"
                if watching.narrowed:
                    what, remedy = "of 64 bits is cut to 32", "leave element numbers and offsets in int64"
                elif "program_id" not in linecache.getline(*error.place) and not axes:
                    remedy = (
                        "make one operand int64 with .to(tl.int64), before the product; also a row counted in a loop"
                    )
                return f"{kernel.fn.__name__}: an integer {what}", f"{quoted_line(*error.place)}: {remedy}"
            if watching.left < 0 or "passes through loops" in str(error):
                return (
                    f"{kernel.fn.__name__}: the last program makes over {MAX_ACCESSES:,} loads and stores",
                    "the loop: write `for .. in range(..)`, whose ends alone are run here, or let the grid grow",
                )
        except ValueError as error:
            if "does not compile" in str(error):
                return str(error), "the constants of the launch that grow with the tensor: let the grid grow instead"
            return str(error), "the grid: its first size may be 2^31 - 1, the others 65535 at most"
    return None


def is_spread(smaller: list[tuple], larger: list[tuple], least: int) -> bool:
    few, most = (max(map(math.prod, grids), default=0) for grids in (smaller, larger))
    return most > few or most >= least


def require_programs(smaller: list[tuple], larger: list[tuple], least: int) -> None:
    """Raise AnswerError where few programs do the work, and no more of it where the tensors are larger.

    Args:
        smaller, larger: the grids of a call's launches, and of those of a larger one.
        least: how many programs a grid must have that does not grow.
    """
    if not is_spread(smaller, larger, least):
        most = max(map(math.prod, larger), default=0)
        programs = "one program does" if most == 1 else f"{most} programs do"
        each = " for each SM of an A100" * (least == SMS)
        raise AnswerError(
            f"{programs} all the work, however large the tensors are: most of a GPU has nothing to do",
            f"the grid: let it grow with the tensors, or give it {least} programs at least{each and ', one' + each}",
        )


def widened(axes: list[int]) -> str:
    """The number that a kernel has to widen, where the grid grows along these axes with the size, or along none."""
    if len(axes) == 1:
        return f"tl.program_id({axes[0]}).to(tl.int64)"
    return (
        "a program's number .to(tl.int64)" if axes else "the loop's number .to(tl.int64), as by tl.cast(row, tl.int64)"
    )


class Enough(Exception):  # noqa: N818
    """A program has made enough accesses: the rest will be like them."""


class LastInstance:
    """Runs the last program instance of a launch, and lets none of its accesses through.

    Attributes:
        left: how many accesses it may still make.
        narrowed: whether a number of 64 bits was converted to 32 that do not hold it.
    """

    def __init__(self):
        self.left, self.narrowed = MAX_ACCESSES, False

    def launch(self, kernel, grid, on_host, given):
        return [tuple(size - 1 for size in grid)]

    def program(self, index) -> None:
        pass

    def access(self, kind, addresses, mask, itemsize) -> np.ndarray:
        self.left -= bool(np.any(mask))
        if self.left < 0:
            raise Enough
        return np.zeros(addresses.shape, dtype=bool)


@contextmanager
def long_loops_cut(kernel: JITFunction) -> Iterator[None]:
    """Let `range` and `tl.range` in a kernel leave out the middle of a long loop."""

    def ends(*bounds) -> range | list[int]:
        passes = range(*bounds)
        return passes if len(passes) <= 2 * ENDS else [*passes[:ENDS], *passes[-ENDS:]]

    def of_tensors(*bounds) -> list:
        # As compiled, where the loop variable has 32 bits: Python's own would widen with its factors.
        return [interpreter._implicit_cvt(each) for each in ends(*bounds)]

    with (
        mock.patch.dict(kernel.fn.__globals__, range=of_tensors),
        mock.patch.object(interpreter, "range", ends, create=True),
    ):
        yield


@contextmanager
def narrowings_found(kernel: JITFunction, watching: LastInstance) -> Iterator[None]:
    """Stop a kernel where a line of its own converts an integer to 32 bits that do not hold it.

    What `tl.rand` and its kin convert, the halves of a counter, is meant to be cut.
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
    """An argument of the launch: a number goes on as it went from the smaller to the larger call."""
    if type(smaller) is type(larger) is int and smaller != larger:
        return smaller + round((larger - smaller) * share)
    if type(smaller) is type(larger) is float and smaller != larger:
        return smaller + (larger - smaller) * share
    return larger


def launches_on(answer: Callable, inputs: tuple) -> list[tuple[JITFunction, tuple[int, ...], dict]]:
    """The kernels that `answer(*inputs)` launches, each with its grid and its arguments by name."""
    seen = []

    def recorded(*inputs):
        run = JITFunction.run

        def record(self, *args, grid, warmup, **kwargs):
            given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
            sizes = grid(given) if callable(grid) else grid
            seen.append((self, tuple(sizes) if isinstance(sizes, tuple | list) else (), given))
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)

        with mock.patch.object(JITFunction, "run", record):
            return answer(*inputs)

    measure(recorded, *inputs)
    return [(kernel, grid, given) for kernel, grid, given in seen if isinstance(kernel, JITFunction) and grid]
