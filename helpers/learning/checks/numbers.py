"""Are the numbers right that an answer works out, for questions that it has not seen?"""

import math
import numbers
import random
from collections.abc import Callable, Iterable, Sequence

import torch

from helpers.instruments.traffic import measure
from helpers.learning.checks import cases
from helpers.learning.outcome import AnswerError, as_check


def draw_questions(seed: int, count: int, *choices: Sequence) -> list[tuple]:
    """`count` questions, each with one of every `choices`, drawn from `seed` and from the grading's own draw."""
    draw = random.Random(seed + (cases.draw << 16))
    return [tuple(draw.choice(each) for each in choices) for _ in range(count)]


@as_check
def check_numbers(
    answer: Callable, expected: Callable, questions: Iterable[tuple], parts: tuple[str, ...] = (), within: float = 0.01
) -> str:
    """Ask `answer` each question, and compare what it gives with what `expected` gives; the first that differs is told.

    Args:
        answer: the learner's function of plain values.
        expected: the same, known to be right: a number, a string, a set of strings, or a tuple of numbers.
        questions: arguments, the simplest first.
        parts: what the numbers of a tuple are called, with their unit: "bytes", "FLOP".
        within: by how much a number may differ, relative to it.
        name: the check's name.
    """
    questions = list(questions)
    for question in questions:
        compare(answer(*question), expected(*question), called(answer, question), parts, within)
    return f"right on {len(questions)} questions."


@as_check
def check_counts(
    answer: Callable, snippet: Callable, inputs: Callable, questions: Iterable[tuple], parts: tuple[str, ...]
) -> str:
    """Compare what `answer` counts with what the meter sees; the first question that differs is told, launch by launch.

    Args:
        answer: the learner's function of a question, giving as many whole numbers as there are parts.
        snippet: PyTorch code, as a function of tensors.
        inputs: a question -> the snippet's tensors.
        questions: arguments of `answer` and `inputs`, the simplest first.
        parts: which of the meter's numbers are asked: "launches", "bytes read", "bytes written", "bytes".
        name: the check's name.
    """
    questions = list(questions)
    for question in questions:
        seen = measure(snippet, *inputs(*question))
        numbers = {
            "launches": seen.launches,
            "bytes read": seen.bytes_read,
            "bytes written": seen.bytes_written,
            "bytes": seen.bytes_total,
        }
        expected = tuple(numbers[part] for part in parts)
        try:
            compare(answer(*question), expected, called(answer, question), parts, within=0.0)
        except AnswerError as error:
            raise AnswerError("\n".join([str(error), "The meter saw:", *launches_of(seen)]), error.look_at) from None
    return f"what the meter counts, on {len(questions)} shapes."


def launches_of(seen) -> list[str]:
    return [f"{name}: {moved.read} B read, {moved.written} B written" for name, moved in seen.by_launch] or ["nothing"]


def called(answer: Callable, question: tuple) -> str:
    return f"{answer.__name__}({', '.join(map(shown, question))})"


def compare(got: object, expected: object, asked: str, parts: tuple[str, ...], within: float) -> None:
    """Raise AnswerError where an answer is of another kind than expected, or differs."""
    if isinstance(got, torch.Tensor):
        raise AnswerError(f"{asked} gives a tensor, plain numbers are expected", "what your function returns")
    if isinstance(expected, tuple):
        if not isinstance(got, list | tuple) or len(got) != len(expected):
            wanted = f"{len(expected)} values are expected: {', '.join(parts)}"
            raise AnswerError(f"{asked} gives {shown(got)}; {wanted}", "what your function returns")
        if is_swapped(got, expected, within):
            raise AnswerError(
                f"{asked} gives {shown(tuple(got))}: the right numbers in another order",
                f"the order of what your function returns: {', '.join(parts)}",
            )
        for part, mine, right in zip(parts, got, expected, strict=True):
            compare_one(mine, right, f"{asked}, {part}", within)
    elif isinstance(expected, set):
        if not isinstance(got, list | tuple) or not all(isinstance(each, str) for each in got):
            raise AnswerError(f"{asked} gives {shown(got)}; a list of names is expected", "what your function returns")
        if wrong := sorted(set(got) ^ expected):
            where = "should not be there" if wrong[0] in got else "is missing"
            raise AnswerError(f"{asked}: {wrong[0]} {where}; got {shown(sorted(got))}", "the condition for that one")
    else:
        compare_one(got, expected, asked, within)


def is_swapped(got: Sequence, expected: tuple, within: float) -> bool:
    """Whether these are the expected numbers in another order."""
    if not all(isinstance(number, numbers.Real) for number in (*got, *expected)):
        return False

    def alike(left, right) -> bool:
        pairs = zip(left, right, strict=True)
        return all(math.isclose(a, b, rel_tol=within, abs_tol=0.0) for a, b in pairs)

    return not alike(got, expected) and alike(sorted(got), sorted(expected))


def compare_one(got: object, expected: float | str, asked: str, within: float) -> None:
    if isinstance(expected, str):
        if isinstance(got, str) and got != expected and got.strip().lower() == expected:
            raise AnswerError(f"{asked}: got {shown(got)}, expected {expected!r}", "how it is spelled: small letters")
        if got != expected:
            raise AnswerError(f"{asked}: got {shown(got)}, expected {expected!r}", "on which side of the ridge it lies")
        return
    if isinstance(got, bool) or not isinstance(got, numbers.Real):
        raise AnswerError(f"{asked}: got {shown(got)}, a number is expected", "what your function returns")
    # NaN is close to nothing.
    if not math.isclose(got, expected, rel_tol=within, abs_tol=0.0):
        raise AnswerError(f"{asked}: got {shown(got)}, expected {shown(expected)}", times_off(got, expected))


def times_off(got: float, expected: float) -> str:
    """Where to look, from by how much a number is off."""
    ratio = got / expected if expected else 0
    if not math.isfinite(ratio):
        return "that number, which is none"
    if ratio and (known := {2: "twice", 4: "4 times", 0.5: "half", 0.25: "a quarter of"}.get(round(ratio, 3))):
        return f"a factor: you have {known} what is expected"
    return "what is counted too often" if ratio > 1 else "what is left out"


def shown(value: object) -> str:
    if isinstance(value, numbers.Real) and not isinstance(value, int):
        value = float(value)  # NumPy's say what they are beside what they say
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
