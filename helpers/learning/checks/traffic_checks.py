"""Check that an answer moves only the bytes it has to, in as few launches as it can."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch

from helpers.instruments.traffic import Traffic, measure
from helpers.learning.checks import cases
from helpers.learning.checks.cases import Case, described
from helpers.learning.checks.compiled_code import require_no_spills_at
from helpers.learning.checks.memory_errors import has_mask, require_no_hazards
from helpers.learning.checks.values import compare, fresh_copy, of_tensors, outputs_start_as_nan
from helpers.learning.outcome import AnswerError, as_check, quoted_line


@as_check
def check_traffic(
    answer: Callable, inputs: tuple, launches: int, bytes_per_element: float, cached: tuple[int, ...] = ()
) -> str:
    """Meter `answer(*inputs)`: its launches, and the bytes read and written per element of the result, must be as
    given; so they must at another size, and with half as many bytes for bfloat16 inputs instead of float32.

    Args:
        answer: the learner's function, returning one tensor.
        inputs: its arguments.
        launches: Triton kernels and PyTorch operators that do work.
        bytes_per_element: bytes requested from memory per element of the result.
        cached: positions of inputs so small that every program may read them from cache.
        name: the check's name.
    """
    names = list(inspect.signature(answer).parameters)
    small = {names[place] for place in cached}
    require_traffic(answer, inputs, launches, bytes_per_element, small)
    for other, share, told in further_calls(inputs):
        with told:
            require_traffic(answer, other, launches, bytes_per_element * share, small)
    return f"{launches} launch{'es' * (launches != 1)}, {bytes_per_element:g} B/element."


def require_traffic(
    answer: Callable, inputs: tuple, launches: int, bytes_per_element: float, small: set[str] = frozenset()
) -> None:
    """Raise AnswerError if a call has other launches or moves other bytes than given; `small` tensors don't count."""
    traffic = measure(answer, *inputs)
    require_no_hazards(traffic, described(inputs))
    if not isinstance(traffic.result, torch.Tensor):
        raise AnswerError(f"got {type(traffic.result).__name__}, expected a tensor", "what your function returns")
    elements = traffic.result.numel()
    if not elements:
        raise AnswerError("the result has no elements", "what your function returns")
    counted = traffic.bytes_total - sum(traffic.by_tensor[name].read for name in small & traffic.by_tensor.keys())
    moved = f"{counted / elements:.4g} B/element, {bytes_per_element:g} needed"
    if traffic.launches != launches:
        raise AnswerError(f"{launched(traffic)}, {launches} needed; {moved}", MORE_LAUNCHES)
    if counted < bytes_per_element * elements:
        raise AnswerError("\n".join([moved, *lines_of(traffic, elements)]), "what is never read, or never written")
    if counted > bytes_per_element * elements:
        again = "".join(
            f"{name} is read {times}; " for name, times in repeats(traffic, answer, inputs) if name not in small
        )
        sizes = [x.nbytes for x in inputs if isinstance(x, torch.Tensor)]
        look_at = unmasked_load(traffic, max(sizes, default=0)) or REUSE
        raise AnswerError("\n".join([again + moved, *lines_of(traffic, elements)]), look_at)


MORE_LAUNCHES = "your launcher: every PyTorch operation that does work is a launch of its own"
REUSE = "the loads and stores above: use the variable that already holds the value"


def launched(traffic: Traffic) -> str:
    """Count the launches of a call and name them."""
    names = ", ".join(name for name, _ in traffic.by_launch)
    return f"{traffic.launches} launch{'es' * (traffic.launches != 1)} ({names})" if names else "no launch"


def further_calls(inputs: tuple, least: int | None = None) -> Iterator[tuple[tuple, float, AbstractContextManager]]:
    """Yield the other calls that a check on traffic meters: at a size that is drawn, then in 16 bits.

    Each has its inputs, the bytes per element as a share of the first call's, and a context in which a failure says
    what this call differs in. `least` is `of_another_size`'s.
    """
    other = of_another_size(inputs, least)
    yield other, 1.0, told_of_size(other)
    low = in_16_bits(inputs)
    if low is not None:
        yield low, 0.5, told_of_16_bits()


def in_16_bits(inputs: tuple) -> tuple | None:
    """Return the inputs of a call with float32 tensors converted to bfloat16; None if there are none."""
    if not any(isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in inputs):
        return None
    return tuple(x.bfloat16() if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x for x in inputs)


def of_another_size(inputs: tuple, least: int | None = None) -> tuple:
    """Cut the tensors of a call to a size that is drawn, each dimension of one size to the same; contiguous ones become
    contiguous. Dimensions of at most `least` stay."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if least is None:
        least = LEAST if all(x.dim() < 3 for x in tensors) else 64  # a head's size, or a filter's, stays
    sizes = sorted({size for x in tensors for size in x.shape if size > least})
    cut = {size: cases.between(least, size - 1, size) for size in sizes}

    def smaller(x: object) -> object:
        if not isinstance(x, torch.Tensor):
            return x
        part = x[tuple(slice(cut.get(size, size)) for size in x.shape)]
        return part.contiguous() if x.is_contiguous() else part

    return tuple(map(smaller, inputs))


LEAST = 8  # of a dimension that is cut


@contextlib.contextmanager
def told_of_size(inputs: tuple) -> Iterator[None]:
    """Make a failure report that it is of another size than the one before."""
    try:
        yield
    except AnswerError as error:
        raise AnswerError(f"{described(inputs)}: {error}", error.look_at) from None


@contextlib.contextmanager
def told_of_16_bits() -> Iterator[None]:
    """Make a failure report explain that only bfloat16 fails."""
    try:
        yield
    except AnswerError as error:
        where = error.look_at
        if where == MORE_LAUNCHES:
            where = f"{where}, conversions among them; allocate the result in the dtype of x: tl.store converts"
        raise AnswerError(f"in bfloat16: {error}", where) from None
    except Exception as error:
        error.add_note("on bfloat16 inputs, which this check also tries")
        raise


@as_check
def check_cut(
    answer: Callable,
    unfused: Callable,
    inputs: tuple,
    least: float,
    launches: int,
    widest: tuple = (),
    device: str = "A100",
) -> str:
    """Meter `answer(*inputs)` against `unfused(*inputs)`: at least this much less traffic, at most the given launches,
    and the same result to within twice PyTorch's own error, since skipping work also saves traffic. Then repeat with
    bfloat16 inputs instead of float32. With `widest`, that call must not spill.

    Args:
        answer: the learner's function.
        unfused: the same in unfused PyTorch.
        inputs: arguments of both.
        least: the minimum cut in traffic, as a fraction of the unfused traffic.
        launches: maximum.
        widest: arguments for a call on the widest rows that the exercise allows.
        device: the GPU that this call is compiled for, a name in helpers.instruments.devices.DEVICES.
        name: the check's name.
    """
    told = require_cut(answer, unfused, inputs, least, launches)
    low = in_16_bits(inputs)
    if low is not None:
        with told_of_16_bits():
            require_cut(answer, unfused, low, least, launches)
    require_no_spills_at(answer, widest, device)
    return told


def require_cut(answer: Callable, unfused: Callable, inputs: tuple, least: float, launches: int) -> str:
    """Report by how much a call cuts the traffic, or raise AnswerError if that's not enough."""
    given = of_tensors(fresh_copy, inputs)
    with outputs_start_as_nan():
        mine = measure(answer, *given)
    theirs = measure(unfused, *inputs)
    require_no_hazards(mine, described(inputs))
    cut = 1 - mine.bytes_total / theirs.bytes_total
    told = f"{mine.bytes_total:,} of {theirs.bytes_total:,} B, {100 * cut:.1f}% less, {100 * least:g}% needed"
    if mine.launches > launches:
        raise AnswerError(f"{launched(mine)}, at most {launches}; {told}", MORE_LAUNCHES)
    if not cut >= least:
        elements = max(x.numel() for x in inputs if isinstance(x, torch.Tensor))
        raise AnswerError("\n".join([told, *lines_of(mine, elements)]), most_moved(mine, answer, inputs))
    where = "what is computed at this size: the check of values, above, says more"
    compare(mine.result, given, unfused, Case("at this size", inputs, where, input_error=inputs[0].dtype))
    return f"{mine.launches} launch{'es' * (mine.launches != 1)}, {100 * cut:.1f}% less traffic."


def most_moved(traffic: Traffic, answer: Callable, inputs: tuple) -> str:
    """Return where to look for excess bytes: rereads, or else the intermediate tensor that moves the most."""
    again = ", ".join(f"{name}, read {times}" for name, times in repeats(traffic, answer, inputs) if name != "weight")
    if again:
        return f"{again}: use the variable that already holds the value"
    given = set(inspect.signature(answer).parameters)
    others = {
        name: moved.total
        for name, moved in traffic.by_tensor.items()
        if name not in given and not name.startswith("result")
    }
    if others:
        name = max(others, key=others.get)
        return f"{name}: {others[name]:,} B go through it, which is neither an input nor a result"
    return REUSE


def repeats(traffic: Traffic, answer: Callable, inputs: tuple) -> list[tuple[str, str]]:
    """Return (name, "twice" or "2.5 times") for each input that is read more than once."""
    given = zip(inspect.signature(answer).parameters, inputs, strict=False)
    sizes = {name: x.nbytes for name, x in given if isinstance(x, torch.Tensor)}
    times = {name: traffic.by_tensor[name].read / size for name, size in sizes.items() if name in traffic.by_tensor}
    return [(name, "twice" if count == 2 else f"{count:.4g} times") for name, count in times.items() if count > 1]


def unmasked_load(traffic: Traffic, nbytes: int) -> str:
    """Return where to look if a load without a mask moves a little more than a tensor's bytes; "" if none does."""
    for (file, number), line in traffic.by_line.items():
        if nbytes < line.read < 1.5 * nbytes and not has_mask(file, number):
            return f"{quoted_line(file, number)}: without a mask it also loads what lies past the end of its elements"
    return ""


def lines_of(traffic: Traffic, elements: int) -> list[str]:
    """Return each source line's reads and writes, in bytes per element of the result."""
    return [
        f"{quoted_line(file, number)}: {line.read / elements:.4g} read, {line.written / elements:.4g} written"
        for (file, number), line in traffic.by_line.items()
    ]
