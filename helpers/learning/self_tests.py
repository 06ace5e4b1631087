"""The questions at the end of a lesson: the number that a learner worked out, judged."""

import math

from helpers.learning.lines import Unquoted, number


def self_test(answer: float | None, correct: float, hint: str, within: float = 0.01) -> str:
    """Judge the number a learner worked out: right within `within` of it (a fraction), or the hint.

    Raises:
        TypeError: the answer is not a number.
    """
    if answer is None or answer is ...:
        return Unquoted("not answered yet: put your number in place of the dots and run the cell")
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        raise TypeError(f"an answer is a number, got {answer!r}: write it without quotes or unit")
    if math.isclose(answer, correct, rel_tol=within):
        return Unquoted("right")
    return Unquoted(f"not {number(answer)}: {hint}")
