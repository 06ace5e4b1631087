"""The expected result of a call: the model answer's values, and how far they move if the inputs move by an ulp."""

from collections.abc import Callable

import torch

from helpers.grading.replay.tensors import PLAIN, have_memory, values_as_json
from helpers.learning.checks.launches import runs_few
from helpers.learning.checks.values import as_tuple, fresh_copy, moved_by_one_ulp, of_tensors


def expected_as_json(answer: Callable, inputs: tuple, result: object) -> dict | list[dict]:
    """Return `values_as_json(result)`, with a float `slack` and a bool `few` (only some programs ran) in each tensor's
    entry.

    Two right answers may round intermediate values differently. If the result depends on the inputs' last digits, as in
    a norm at mean 10^4, they may then differ by far more than a rounding, but not by orders of magnitude more than they
    do for inputs an ulp apart.

    Args:
        answer: the model answer.
        inputs: the call's.
        result: its result.
    """
    written = values_as_json(result)
    if written == PLAIN:
        return written
    moved = answer(*of_tensors(_moved, inputs)) if have_memory(inputs) else result
    few = runs_few()
    for entry, there, here in zip(
        written if isinstance(written, list) else [written], as_tuple(moved), as_tuple(result), strict=True
    ):
        entry["few"] = few
        if here.is_meta:
            entry["slack"] = 0.0
            continue
        apart = (there.double() - here.double()).abs()
        apart = apart[apart.isfinite()]
        entry["slack"] = apart.max().item() if here.is_floating_point() and apart.numel() else 0.0
    return written


def _moved(x: torch.Tensor) -> torch.Tensor:
    """Return a copy with x's memory layout and each element an ulp higher or lower."""
    if not x.is_floating_point():
        return x
    moved = fresh_copy(x)
    # Along an expanded dimension all elements are one number in memory, which moves once.
    once = moved[tuple(slice(None, None if stride else 1) for stride in x.stride())]
    once.copy_(moved_by_one_ulp(once, x.dtype))
    return moved
