"""Check that memory traffic grows linearly with the sequence, not with its square."""

from collections.abc import Callable

import torch

from helpers.instruments.traffic import measure
from helpers.instruments.traffic.result import size
from helpers.learning.checks.cases import described
from helpers.learning.checks.memory_errors import require_no_hazards
from helpers.learning.checks.passes import require_one_launch
from helpers.learning.checks.traffic_checks import of_another_size
from helpers.learning.outcome import AnswerError, as_check

# A causal call's share of a full call's bytes. With as many queries in a tile as half of the sequence, three quarters
# of the keys and values are loaded; with smaller tiles, fewer.
SKIPPED = 0.85


@as_check
def check_linear_traffic(answer: Callable, shorter: tuple, longer: tuple, causal: tuple | None = None) -> str:
    """Meter calls: one launch each, the result written once, and no memory touched except inputs and result.

    The bytes of inputs and result grow linearly with the sequence; a matrix of scores doesn't, wherever it's stored. A
    third length is drawn.

    Args:
        answer: the learner's function, returning one tensor.
        shorter, longer: its arguments for two lengths of the sequence, with any strides.
        causal: arguments of a causal call as long as the longer one, which may load at most `SKIPPED` of its bytes.
        name: the check's name.
    """
    read = []
    drawn = of_another_size(longer)  # which no answer can know
    for inputs in (shorter, drawn, longer, *([causal] if causal else [])):
        traffic = measure(answer, *inputs)
        where = described(inputs)
        require_no_hazards(traffic, where)
        require_one_launch(traffic)
        result = traffic.result
        if not isinstance(result, torch.Tensor) or not result.numel():
            raise AnswerError("the result is not a tensor, or has no elements", "what your function returns")
        given = [x for x in inputs if isinstance(x, torch.Tensor)]
        least = sum(x.nbytes for x in given) + result.nbytes
        touched = traffic.unique_total
        if touched > least or traffic.bytes_written > result.nbytes:
            moved = ", ".join(
                f"{name}: {size(each.read)} read, {size(each.written)} written"
                for name, each in traffic.by_tensor.items()
            )
            raise AnswerError(
                f"{where}: {size(touched)} of memory are touched, {size(least)} needed; {size(traffic.bytes_written)} "
                f"written, {size(result.nbytes)} needed\n{moved}",
                "what your kernel stores besides the result: scores and weights live in registers, a tile at a time",
            )
        if touched < least:
            raise AnswerError(
                f"{where}: {size(touched)} of memory are touched, {size(least)} needed",
                "what is never read, or never written",
            )
        read.append(traffic.bytes_read)
    if causal and read[-1] > SKIPPED * read[-2]:
        raise AnswerError(
            f"{described(causal, 'causal')}: {size(read[-1])} are read, {read[-1] / read[-2]:.0%} of what "
            f"the full call reads, at most {SKIPPED:.0%} needed",
            "where the loop over keys ends: a causal program needs no key after its last query",
        )
    return "1 launch; memory touched grows with the sequence, not with its square."
