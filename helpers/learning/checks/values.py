"""Does the answer compute what PyTorch computes?

The reference runs twice: in float64, which is taken for exact, and in the inputs' own dtype, which shows the error
that PyTorch itself makes. An answer may make twice that error, plus one unit in the last place of the largest value.
Where the result hangs on digits that the inputs no longer have, as a norm's at mean 10^4, a case says so
(`input_error`): then it may also make the error that one unit in the last place of the inputs makes.
"""

import contextlib
from collections.abc import Callable, Iterable

import torch

from helpers.instruments.traffic import measure
from helpers.learning.checks.cases import Case, described
from helpers.learning.checks.hazards import refuse_hazards
from helpers.learning.outcome import AnswerError, as_check
from kernels import runtime


@as_check
def check_values(answer: Callable, reference: Callable, cases: Iterable[Case]) -> str:
    """Call `answer` on each case and compare it with `reference`; the first case that differs is told.

    Each call has fresh inputs and outputs that start as NaN, and must leave its inputs as they were. Kernels run under
    the meter, which sees accesses outside their tensors and races, and then compiled where there is a GPU.

    Args:
        answer: the learner's function of tensors, and of numbers where the cases have some, returning a tensor or a
            tuple of tensors.
        reference: the same in PyTorch.
        cases: calls, the simplest first.
        name: the check's name.
    """
    cases = list(cases)
    for case in cases:
        check_case(answer, reference, case)
    return f"agrees with float64 on {len(cases)} inputs, to twice PyTorch's own error."


def check_case(answer: Callable, reference: Callable, case: Case) -> None:
    """Raise AnswerError where `answer` differs from `reference` on one case."""
    inputs = of_tensors(fresh_copy, case.inputs)
    with outputs_start_as_nan():
        traffic = measure(answer, *inputs)
    refuse_hazards(traffic, described(case.inputs, case.label))
    written = {name: moved.written for name, moved in traffic.by_tensor.items()}
    compare(traffic.result, inputs, reference, case, written)
    if runtime.has_gpu():
        inputs = of_tensors(fresh_copy, case.inputs)
        with outputs_start_as_nan():
            result = answer(*inputs)
        compare(result, inputs, reference, case)


def compare(got: object, inputs: list, reference: Callable, case: Case, written: dict[str, int] | None = None) -> None:
    """Raise AnswerError where the result of a call, or what became of its inputs, is not as the reference has it.

    `written` is how many bytes were stored to each tensor, by the meter's names.
    """
    exact = as_tuple(reference(*of_tensors(in_float64, case.inputs)))
    usual = reference(*case.inputs)
    where = described(case.inputs, case.label)
    if isinstance(usual, tuple):
        kinds = [type(each).__name__ for each in as_tuple(got)]
        if not isinstance(got, tuple) or len(got) != len(usual) or not all(isinstance(x, torch.Tensor) for x in got):
            said = f"a tuple of {', '.join(kinds)}" if isinstance(got, tuple) else kinds[0]
            raise AnswerError(
                f"{where}: got {said}, expected a tuple of {len(usual)} tensors", "what your function returns"
            )
    elif not isinstance(got, torch.Tensor):
        raise AnswerError(f"{where}: got {type(got).__name__}, expected a tensor", "what your function returns")
    results = list(zip(as_tuple(got), exact, as_tuple(usual), strict=True))
    names = [f"result {number} of {len(results)}" for number in range(1, len(results) + 1)]
    for name, (mine, _, wanted) in zip(names, results, strict=True):
        for what, has, expected in (
            ("shape", tuple(mine.shape), tuple(wanted.shape)),
            ("dtype", mine.dtype, wanted.dtype),
            ("device", mine.device.type, wanted.device.type),
        ):
            if has != expected:
                which = name if len(results) > 1 else "the result"
                raise AnswerError(
                    f"{where}: {which}'s {what} is {has}, expected {expected}", "how the output is allocated"
                )
    for number, (before, after) in enumerate(zip(case.inputs, inputs, strict=True), start=1):
        if isinstance(before, torch.Tensor) and not torch.equal(bits(before), bits(after)):
            raise AnswerError(f"{where}: argument {number} was changed", "what your kernel stores to: only the output")
    moved = exact
    if case.input_error is not None:
        moved = as_tuple(reference(*(moved_by_one_ulp(x, case.input_error) for x in case.inputs)))
    for number, (name, (mine, truth, wanted), near) in enumerate(zip(names, results, moved, strict=True)):
        wrong = differs(mine, truth, wanted, near)
        if wrong.any():
            which = f"{name}: " if len(results) > 1 else ""
            metered = f"result[{number}]" if isinstance(usual, tuple) else "result"
            whole = written is not None and written.get(metered, 0) >= mine.nbytes
            raise AnswerError(
                f"{where}: {which}{described_difference(mine, wanted, wrong)}",
                likely_place(mine, wanted, wrong, case, whole),
            )


def differs(
    got: torch.Tensor, exact: torch.Tensor, usual: torch.Tensor, near: torch.Tensor | None = None
) -> torch.Tensor:
    """Where `got` is further from `exact` than the tolerance; NaN and inf must stand where PyTorch has them.

    `near`, where it is given, is exact for inputs that are an ulp off: the tolerance is wider by how far it lies off.
    Integers must be equal.
    """
    if not usual.is_floating_point():
        return got != usual
    finite = exact.to(usual.dtype).isfinite() & usual.isfinite()
    own_error = (usual.double() - exact).abs()[finite].max() if finite.any() else exact.new_zeros(())
    largest = exact.abs()[finite].max().clamp(min=1.0) if finite.any() else exact.new_ones(())
    tolerance = 2 * own_error + torch.finfo(usual.dtype).eps * largest
    if near is not None and finite.any():
        tolerance = tolerance + (near - exact).abs()[finite].max()
    error = (got.double() - exact).abs()
    same = (got == usual) | (got.isnan() & usual.isnan())
    # An error that is NaN is no error within the tolerance.
    return torch.where(finite, ~(error <= tolerance), ~same)


def as_tuple(result: object) -> tuple:
    return result if isinstance(result, tuple) else (result,)


def in_float64(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def moved_by_one_ulp(x: object, dtype: torch.dtype) -> object:
    """In float64, every other element an ulp of `dtype` up, the rest an ulp down; what is no float stays as it is."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    sign = 1 - 2 * (torch.arange(x.numel(), device=x.device).view(x.shape) % 2)
    return x.double() * (1 + sign * torch.finfo(dtype).eps)


def described_difference(got: torch.Tensor, usual: torch.Tensor, wrong: torch.Tensor) -> str:
    index = tuple(wrong.nonzero()[0].tolist())
    place = index[0] if len(index) == 1 else index
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements wrong\n"
        f"first wrong index {place}: got {got[index].item():.6g}, expected {usual[index].item():.6g}"
    )


def likely_place(got: torch.Tensor, usual: torch.Tensor, wrong: torch.Tensor, case: Case, whole: bool) -> str:
    """Where to look; `whole` says that every element of the result was stored."""
    unwritten = wrong & got.isnan() & ~usual.isnan()
    if not torch.equal(unwritten, wrong):
        return case.look_at
    if whole:
        return f"what gives NaN: inf - inf, inf / inf or 0 / 0, where an exponential overflows; and {case.look_at}"
    # Outputs started as NaN, so these were never stored, or came of reading what was never stored.
    if unwritten.all():
        return f"the grid and the store: no element was written, or else NaN was, and then {case.look_at}"
    first = int(unwritten.flatten().nonzero()[0])
    if unwritten.flatten()[first:].all():
        return f"the grid: nothing was written from element {first} on"
    return case.look_at


def of_tensors(function: Callable, inputs: tuple) -> list:
    """The inputs of a call, its tensors through `function`, its numbers as they are."""
    return [function(x) if isinstance(x, torch.Tensor) else x for x in inputs]


def fresh_copy(x: torch.Tensor) -> torch.Tensor:
    """A copy with x's values, strides and offset, in a storage of its own."""
    storage = x.untyped_storage().clone()
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(storage, x.storage_offset(), x.shape, x.stride())


def bits(x: torch.Tensor) -> torch.Tensor:
    # Compared as bytes, a NaN equals itself.
    return x.contiguous().view(torch.uint8)


@contextlib.contextmanager
def outputs_start_as_nan():
    """Let every `torch.empty` hold NaN, so that what is never written cannot pass for a value."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filling = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = filling
