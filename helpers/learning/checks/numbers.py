"""Check the numbers that an answer computes, for questions that it hasn't seen."""

import inspect
import itertools
import math
import numbers
import random
import re
from collections.abc import Callable, Generator, Iterable, KeysView, Sequence, ValuesView

import torch

from helpers.instruments.traffic import measure
from helpers.learning.checks import cases
from helpers.learning.outcome import AnswerError, as_check

MAX_LISTED = 10_000  # of a generator, which may have no end


class WrongNameError(AnswerError):
    """Raised for a wrong word, or for a set with wrong `names`."""

    names: tuple[str, ...] = ()


def draw_questions(seed: int, count: int, *choices: Sequence) -> list[tuple]:
    """Draw `count` questions from `seed` and from the grading's own draw, picking one of each of `choices`."""
    draw = random.Random(seed + (cases.draw << 16))
    return [tuple(draw.choice(each) for each in choices) for _ in range(count)]


@as_check
def check_numbers(
    answer: Callable,
    expected: Callable,
    questions: Iterable[tuple],
    parts: tuple[str, ...] = (),
    within: float = 0.01,
    unlike: dict[str, Callable] | None = None,
    seen: Callable | None = None,
) -> str:
    """Call `answer` on each question, compare its result with that of `expected`, and report the first that differs.

    Args:
        answer: the learner's function of plain values.
        expected: a correct version of it, returning a number, a string, a set of strings, or a tuple of numbers.
        questions: arguments, the simplest first.
        parts: names of a tuple's numbers, with their unit: "bytes", "FLOP".
        within: how much a number may differ, as a fraction of it.
        unlike: description -> a function like `expected`: mistakes to recognise.
        seen: (the wrong name in a set, if there is one, and the question's arguments) -> what there is to see there
            and where to look, for a wrong word or name.
        name: the check's name.
    """
    questions, right = list(questions), []
    for question in questions:
        got, asked = answer(*question), called(answer, question)
        right.append((question, expected(*question)))
        try:
            compare(got, right[-1][1], asked, parts, within)
        except WrongNameError as error:
            if seen:
                told, look_at = seen(*error.names[:1], *question)
                error = AnswerError(f"{error}; {told}", look_at)
            raise named(error, got, right, asked, parts, within, unlike or {}) from None
        except AnswerError as error:
            raise named(error, got, right, asked, parts, within, unlike or {}) from None
    return f"right on {len(questions)} questions."


@as_check
def check_counts(
    answer: Callable,
    snippet: Callable,
    inputs: Callable,
    questions: Iterable[tuple],
    parts: tuple[str, ...],
    unlike: dict[str, Callable] | None = None,
) -> str:
    """Compare the counts of `answer` with the meter's, and report the first question that differs, launch by launch.

    Args:
        answer: the learner's function of a question, giving as many whole numbers as there are parts.
        snippet: PyTorch code, as a function of tensors.
        inputs: a question -> the snippet's tensors.
        questions: arguments of `answer` and `inputs`, the simplest first.
        parts: which of the meter's numbers to ask for: "launches", "bytes read", "bytes written", "bytes".
        unlike: description -> a function of a question: mistakes to recognise.
        name: the check's name.
    """
    questions, right = list(questions), []
    for question in questions:
        seen = measure(snippet, *inputs(*question))
        numbers = {
            "launches": seen.launches,
            "bytes read": seen.bytes_read,
            "bytes written": seen.bytes_written,
            "bytes": seen.bytes_total,
        }
        got, asked = answer(*question), called(answer, question)
        right.append((question, tuple(numbers[part] for part in parts)))
        try:
            compare(got, right[-1][1], asked, parts, within=0.0)
        except AnswerError as error:
            said = named(error, got, right, asked, parts, 0.0, unlike or {})
            raise AnswerError("\n".join([str(said), "The meter saw:", *launches_of(seen)]), said.look_at) from None
    return f"matches the meter on {len(questions)} shapes."


def named(
    error: AnswerError,
    got: object,
    right: list[tuple[tuple, object]],
    asked: str,
    parts: tuple[str, ...],
    within: float,
    unlike: dict[str, Callable],
) -> AnswerError:
    """Return the error with the mistakes that give `got`, provided they also give the right answer to all earlier
    questions.

    Args:
        right: questions with their right answers; the error is about the last.
    """

    def agrees(mine: object, other: object) -> bool:
        try:
            compare(mine, other, asked, parts, within)
        except AnswerError:
            return False
        return True

    *before, (question, _) = right
    others = [
        said
        for said, mistaken in unlike.items()
        if agrees(got, mistaken(*question)) and all(agrees(mistaken(*each), wanted) for each, wanted in before)
    ]
    return AnswerError(f"{error}\nyou get that with {', or with '.join(others)}", error.look_at) if others else error


def launches_of(seen) -> list[str]:
    return [f"{name}: {moved.read} B read, {moved.written} B written" for name, moved in seen.by_launch] or ["nothing"]


def called(answer: Callable, question: tuple) -> str:
    names = list(inspect.signature(answer).parameters)
    named = [name if isinstance(value, dict) else shown(value) for name, value in zip(names, question, strict=False)]
    return f"{answer.__name__}({', '.join([*named, *map(shown, question[len(names) :])])})"


def compare(got: object, expected: object, asked: str, parts: tuple[str, ...], within: float) -> None:
    """Raise AnswerError if an answer has another type than expected, or differs."""
    got = listed(got)
    if isinstance(got, torch.Tensor):
        raise AnswerError(f"{asked} gives a tensor: return plain numbers", "what your function returns")
    if isinstance(expected, tuple):
        if not isinstance(got, list | tuple) or len(got) != len(expected):
            wanted = f"{len(expected)} values are needed: {', '.join(parts)}"
            where = RETURN if got is None else "what your function returns"
            raise AnswerError(f"{asked} gives {shown(got)}; {wanted}", where)
        if is_swapped(got, expected, within):
            raise AnswerError(
                f"{asked} gives {shown(tuple(got))}: the right numbers in the wrong order",
                f"the order of what your function returns: {', '.join(parts)}",
            )
        for part, mine, right in zip(parts, got, expected, strict=True):
            compare_one(mine, right, f"{asked}, {part}", within)
    elif isinstance(expected, set):
        names = unlisted(got)
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise AnswerError(f"{asked} gives {shown(got)}: return a list of names", "what your function returns")
        if wrong := sorted(set(names) ^ expected):
            where = "should not be there" if wrong[0] in names else "is missing"
            also = f", and {len(wrong) - 1} more {'are' if len(wrong) > 2 else 'is'} wrong" if len(wrong) > 1 else ""
            error = WrongNameError(f"{asked}: {wrong[0]} {where}{also}", "the condition for that one")
            error.names = tuple(wrong)
            raise error
    else:
        compare_one(got, expected, asked, within)


def listed(value: object) -> object:
    """Return a collection or generator as a list, and a set as {"set": list}, so that JSON can hold it; so too if a
    collection holds them."""
    if isinstance(value, set | frozenset):
        return {"set": sorted(map(listed, value), key=str)}
    if isinstance(value, KeysView | ValuesView | Generator | filter | map | zip | range | reversed):
        value = list(itertools.islice(value, MAX_LISTED))
    if isinstance(value, list | tuple) and any(isinstance(each, set | frozenset) for each in value):
        return [listed(each) for each in value]
    return value


def unlisted(value: object) -> object:
    """Return a collection as a list, also one that `listed` has returned; anything else as it is."""
    value = value["set"] if isinstance(value, dict) and value.keys() == {"set"} else value
    return list(value) if isinstance(value, list | tuple | set | frozenset) else value


def is_swapped(got: Sequence, expected: tuple, within: float) -> bool:
    """Return whether these are the expected numbers in a different order."""
    if not all(isinstance(number, numbers.Real) for number in (*got, *expected)):
        return False

    def alike(left, right) -> bool:
        pairs = zip(left, right, strict=True)
        return all(math.isclose(a, b, rel_tol=within, abs_tol=0.0) for a, b in pairs)

    return not alike(got, expected) and alike(sorted(got), sorted(expected))


def compare_one(got: object, expected: float | str, asked: str, within: float) -> None:
    if isinstance(expected, str):
        if got == expected:
            return
        spelled = isinstance(got, str) and re.match(r"\W*(\w+?)(?:\b|_)", got.lower())
        if spelled and spelled[1] == expected:
            raise AnswerError(
                f"{asked}: got {shown(got)}, expected {expected!r}", "how it is spelled: one word in lowercase"
            )
        if got is None:
            raise AnswerError(f"{asked}: got None, expected {expected!r}", RETURN)
        said = f"{asked}: got {shown(got)}, expected {expected!r}"
        if not isinstance(got, str):
            raise AnswerError(said, "what your function returns: a word")
        raise WrongNameError(said, "the condition that decides between the two words")
    if isinstance(got, bool) or not isinstance(got, numbers.Real):
        where = RETURN if got is None else "what your function returns"
        raise AnswerError(f"{asked}: got {shown(got)}, not a number", where)
    # NaN is close to nothing.
    if not math.isclose(got, expected, rel_tol=within, abs_tol=0.0):
        look_at = LAUNCHES if asked.endswith(", launches") else times_off(got, expected)
        if "%" in asked.rpartition(", ")[2] and math.isclose(100 * got, expected, rel_tol=1e-3):
            look_at = "the unit: yours is a fraction, and a percentage is asked for"
        raise AnswerError(f"{asked}: got {shown(got)}, expected {shown(expected)}", look_at)


LAUNCHES = (
    "what launches: an operation that writes a result, unless it shares a kernel with others; views launch nothing"
)
RETURN = "what your function returns: print shows a value and returns None"


def times_off(got: float, expected: float) -> str:
    """Return where to look, given how far a number is off as a factor."""
    ratio = got / expected if expected else 0
    if not math.isfinite(ratio):
        return "that number, which is not finite"
    if math.isclose(got * expected, 1.0, rel_tol=1e-2) and not 0.5 < ratio < 2:
        return "which number divides which: yours is the inverse of the right value"
    if ratio > 0:
        if known := {2: "twice", 4: "4 times", 0.5: "half", 0.25: "a quarter of"}.get(round(ratio, 3)):
            return f"the terms and the factors: yours is {known} the expected value"
        for unit, size in (
            ("thousands (kB, kFLOP, ms for us)", 1e3),
            ("millions (MB, MFLOP, s for us)", 1e6),
            ("billions (GB, GFLOP)", 1e9),
        ):
            for factor in (size, 2.0 ** (10 * round(math.log2(size) / 10))):
                if math.isclose(ratio * factor, 1.0, rel_tol=1e-3):
                    return f"the unit: yours is in {unit}"
    if isinstance(expected, float) and not expected.is_integer():  # a ratio: no part of it was counted
        if math.isclose(got, expected, rel_tol=1e-2):
            return "its last digits: do not round, and do not leave out a small term"
        return f"the formula of that number: yours is too {'large' if ratio > 1 else 'small'}"
    return (
        "the terms: yours is too large, so something is counted too often, or with too large a factor"
        if ratio > 1
        else "the terms: yours is too small, so something is left out, or counted with too small a factor"
    )


def shown(value: object) -> str:
    if isinstance(value, numbers.Real) and not isinstance(value, int):
        value = float(value)  # NumPy's repr includes the type
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
