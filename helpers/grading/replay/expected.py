"""The expected result of a call: the model answer's values, and how far they move if the inputs move by an ulp."""

from collections.abc import Callable

import torch

from helpers.grading.replay.tensors import PLAIN, have_memory, values_as_json
from helpers.learning.checks.cases import Case
from helpers.learning.checks.launches import runs_few
from helpers.learning.checks.values import as_tuple, fresh_copy, moved_by_one_ulp, of_tensors, rounding_allowed


def expected_as_json(answer: Callable, inputs: tuple, result: object, case: Case | None = None) -> dict | list[dict]:
    """Return `values_as_json(result)`, with floats `slack` and `conditioned` (see `conditioned`) and a bool `few` (only
    some programs ran) in each tensor's entry. A result that the case leaves open has no values.

    Two right answers may round intermediate values differently. If the result depends on the inputs' last digits, as in
    a norm at mean 10^4, they may then differ by far more than a rounding, but not by orders of magnitude more than they
    do for inputs an ulp apart.

    Args:
        answer: the model answer.
        inputs: the call's.
        result: its result.
        case: the check's.
    """
    written = values_as_json(result)
    if written == PLAIN:
        return written
    moved = answer(*of_tensors(_moved, inputs)) if have_memory(inputs) else result
    few = runs_few()
    for entry, there, here in zip(
        written if isinstance(written, list) else [written], as_tuple(moved), as_tuple(result), strict=True
    ):
        entry["few"], entry["conditioned"] = few, conditioned(here.dtype, case)
        if here.is_meta:
            entry["slack"] = 0.0
            continue
        apart = (there.double() - here.double()).abs()
        apart = apart[apart.isfinite()]
        entry["slack"] = apart.max().item() if here.is_floating_point() and apart.numel() else 0.0
    if case is not None and case.compared is not None:
        written[case.compared :] = [{key: each[key] for key in ("dtype", "shape")} for each in written[case.compared :]]
    return written


def conditioned(dtype: torch.dtype, case: Case | None) -> float:
    """Return how far apart two right answers may be, in proportion to the largest value, because the call magnifies
    roundings: twice what the check allows each of them (`checks.values`)."""
    if case is None or case.conditioning == 1.0 or not dtype.is_floating_point:
        return 0.0
    return 2 * rounding_allowed(dtype, case)


def _moved(x: torch.Tensor) -> torch.Tensor:
    """Return a copy with x's memory layout and each element an ulp higher or lower."""
    if not x.is_floating_point():
        return x
    moved = fresh_copy(x)
    # Along an expanded dimension all elements are one number in memory, which moves once.
    once = moved[tuple(slice(None, None if stride else 1) for stride in x.stride())]
    once.copy_(moved_by_one_ulp(once, x.dtype))
    return moved
