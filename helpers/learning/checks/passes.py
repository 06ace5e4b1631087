"""Check that an answer makes as few passes over its inputs and results as it can."""

import inspect
from collections.abc import Callable

import torch

from helpers.instruments.traffic import Traffic, measure
from helpers.learning.checks.cases import described
from helpers.learning.checks.compiled_code import require_no_spills_at
from helpers.learning.checks.memory_errors import require_no_hazards
from helpers.learning.checks.traffic_checks import MORE_LAUNCHES, further_calls, launched, lines_of, unmasked_load
from helpers.learning.checks.values import as_tuple
from helpers.learning.outcome import AnswerError, as_check


@as_check
def check_passes(
    answer: Callable, inputs: tuple, reads: tuple[float, ...], widest: tuple = (), device: str = "A100"
) -> str:
    """Meter `answer(*inputs)`: one launch, every result written once and never read, no other tensor in memory; the
    same at another size, and with bfloat16 inputs instead of float32. With `widest`, that call must not spill.

    Args:
        answer: the learner's function, returning a tensor or a tuple of tensors.
        inputs: its arguments, tensors first; bytes are counted per element of the first tensor.
        reads: for each tensor, how many times it may be read; if this is 1, it must be read exactly once.
        widest: arguments for a call on the widest rows that the exercise allows.
        device: the GPU that this call is compiled for, a name in helpers.instruments.devices.DEVICES.
        name: the check's name.
    """
    require_passes(answer, inputs, reads)
    for other, _, told in further_calls(inputs):
        with told:
            require_passes(answer, other, reads)
    require_no_spills_at(answer, widest, device)
    return "1 launch; what must be read once is read once, results are written once and nothing else is."


def require_passes(answer: Callable, inputs: tuple, reads: tuple[float, ...]) -> None:
    """Raise AnswerError if a call makes other passes than `check_passes` requires."""
    traffic = measure(answer, *inputs)
    require_no_hazards(traffic, described(inputs))
    elements = inputs[0].numel()
    results = as_tuple(traffic.result)
    if not all(isinstance(result, torch.Tensor) and result.numel() for result in results):
        raise AnswerError("a result is not a tensor, or has no elements", "what your function returns")
    require_one_launch(traffic)

    def refuse(what: str, look_at: str) -> None:
        raise AnswerError("\n".join([what, *lines_of(traffic, elements)]), look_at)

    moved = dict(traffic.by_tensor)
    for name, x, most in zip(inspect.signature(answer).parameters, inputs, reads, strict=False):
        read = moved.pop(name).read if name in moved else 0
        if read > most * x.nbytes:
            each, least = read / elements, most * x.nbytes / elements
            refuse(
                f"{name} is read {times(read / x.nbytes)}: {each:.4g} B/element, {least:.4g} needed",
                unmasked_load(traffic, x.nbytes) or "the loads above: use the variable that already holds the value",
            )
        if most == 1 and read < x.nbytes:
            refuse(f"{name} is read to {read / x.nbytes:.0%}", "what is never read")
    for number, result in enumerate(results):
        name = "result" if isinstance(traffic.result, torch.Tensor) else f"result[{number}]"
        of_result = moved.pop(name, None)
        if of_result is None or of_result.written < result.nbytes:
            refuse(f"{name} is not written whole", "the grid and the stores")
        if of_result.written > result.nbytes or of_result.read:
            refuse(
                f"{name} is written {times(of_result.written / result.nbytes)} and read "
                f"{times(of_result.read / result.nbytes)}",
                "the stores: store a result once it is done, and do not read it back",
            )
    if moved:
        name, of_other = next(iter(moved.items()))
        refuse(
            f"{name}: {of_other.written / elements:.4g} B/element out, {of_other.read / elements:.4g} in, 0 needed",
            "that tensor: what lives only inside the kernel belongs in registers",
        )


def require_one_launch(traffic: Traffic) -> None:
    """Raise AnswerError unless the call was one launch."""
    if traffic.launches != 1:
        raise AnswerError(f"{launched(traffic)}, 1 needed", MORE_LAUNCHES)


def times(count: float) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count:.4g} times")
