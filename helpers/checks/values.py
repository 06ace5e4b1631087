"""Does the answer compute what PyTorch computes?

The reference runs twice: in float64, which is taken for exact, and in the inputs' own dtype, which shows the error
that PyTorch itself makes. An answer may make twice that error, plus one unit in the last place of the largest value.
"""

import contextlib
from collections.abc import Callable, Iterable

import torch

from helpers.checks.cases import Case, described
from helpers.checks.hazards import refuse_hazards
from helpers.outcome import AnswerError, as_check
from helpers.traffic import measure
from kernels import runtime


@as_check
def check_values(answer: Callable, reference: Callable, cases: Iterable[Case]) -> str:
    """Call `answer` on each case and compare it with `reference`; the first case that differs is told.

    Each call has fresh inputs and outputs that start as NaN, and must leave its inputs as they were. Kernels run under
    the meter, which sees accesses outside their tensors and races, and then compiled where there is a GPU.

    Args:
        answer: the learner's function of tensors, returning one tensor.
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
    inputs = [fresh_copy(x) for x in case.inputs]
    with outputs_start_as_nan():
        traffic = measure(answer, *inputs)
    refuse_hazards(traffic, described(case.inputs, case.label))
    compare(traffic.result, inputs, reference, case)
    if runtime.has_gpu():
        inputs = [fresh_copy(x) for x in case.inputs]
        with outputs_start_as_nan():
            result = answer(*inputs)
        compare(result, inputs, reference, case)


def compare(got: object, inputs: list[torch.Tensor], reference: Callable, case: Case) -> None:
    """Raise AnswerError where the result of a call, or what became of its inputs, is not as the reference has it."""
    exact = reference(*(x.double() for x in case.inputs))
    usual = reference(*case.inputs)
    where = described(case.inputs, case.label)
    if not isinstance(got, torch.Tensor):
        raise AnswerError(f"{where}: got {type(got).__name__}, expected a tensor", "what your function returns")
    for what, mine, wanted in (
        ("shape", tuple(got.shape), tuple(usual.shape)),
        ("dtype", got.dtype, usual.dtype),
        ("device", got.device.type, usual.device.type),
    ):
        if mine != wanted:
            raise AnswerError(
                f"{where}: the result's {what} is {mine}, expected {wanted}", "how the output is allocated"
            )
    for number, (before, after) in enumerate(zip(case.inputs, inputs, strict=True), start=1):
        if not torch.equal(bits(before), bits(after)):
            raise AnswerError(f"{where}: argument {number} was changed", "what your kernel stores to: only the output")
    wrong = differs(got, exact, usual)
    if wrong.any():
        raise AnswerError(f"{where}: {described_difference(got, usual, wrong)}", likely_place(got, usual, wrong, case))


def differs(got: torch.Tensor, exact: torch.Tensor, usual: torch.Tensor) -> torch.Tensor:
    """Where `got` is further from `exact` than the tolerance; NaN and inf must stand where PyTorch has them."""
    finite = exact.to(usual.dtype).isfinite() & usual.isfinite()
    own_error = (usual.double() - exact).abs()[finite].max() if finite.any() else exact.new_zeros(())
    largest = exact.abs()[finite].max().clamp(min=1.0) if finite.any() else exact.new_ones(())
    tolerance = 2 * own_error + torch.finfo(usual.dtype).eps * largest
    error = (got.double() - exact).abs()
    same = (got == usual) | (got.isnan() & usual.isnan())
    # An error that is NaN is no error within the tolerance.
    return torch.where(finite, ~(error <= tolerance), ~same)


def described_difference(got: torch.Tensor, usual: torch.Tensor, wrong: torch.Tensor) -> str:
    index = tuple(wrong.nonzero()[0].tolist())
    place = index[0] if len(index) == 1 else index
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements wrong\n"
        f"first wrong index {place}: got {got[index].item():.6g}, expected {usual[index].item():.6g}"
    )


def likely_place(got: torch.Tensor, usual: torch.Tensor, wrong: torch.Tensor, case: Case) -> str:
    unwritten = wrong & got.isnan() & ~usual.isnan()
    if not torch.equal(unwritten, wrong):
        return case.look_at
    # Outputs started as NaN, so these were never stored, or came of reading what was never stored.
    if unwritten.all():
        return "the grid and the store: no element was written"
    first = int(unwritten.flatten().nonzero()[0])
    if unwritten.flatten()[first:].all():
        return f"the grid: nothing was written from element {first} on"
    return case.look_at


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
