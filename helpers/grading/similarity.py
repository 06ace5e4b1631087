"""Find answers in a class that share more than the exercise's given text. The instructor sees them; they are never
scored.

An answer is the set of all its k-grams of tokens, as in Schleimer, Wilkerson and Aiken's "Winnowing" (SIGMOD 2003), but
without sampling, since answers are short. Comments, docstrings and layout don't count as tokens, and all names that a
learner may choose count as equal. The exercise's given text is subtracted. The similarity of two answers is the share
of their k-grams that they have in common.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, groupby

from pygments.lexer import Lexer
from pygments.lexers import CudaLexer, PythonLexer
from pygments.token import Comment, Name, Number, String, Whitespace

from helpers.grading.exercise import Exercise
from helpers.grading.grade import Result

GRAM = 8  # tokens: shorter ones, such as a masked load's end, occur in every kernel
# Between the repository's own right answers written apart, 0.45 alike at most, and the model answers with one place
# changed, of which 19 in 20 are 0.57 alike or more: tests/grading/test_grade_similarity.py.
THRESHOLD = 0.55
FEWEST = 30  # k-grams of an answer: fewer are a formula, which everyone writes the same way
MAX_READ = 50_000  # characters of an answer
CUDA = 100  # characters: a longer string is CUDA C++, not a name or setting

# Number lines as messages do.
PYTHON_LEXER, CUDA_LEXER = PythonLexer(stripnl=False), CudaLexer()
Grams = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class AlikePair:
    """Two students with similar answers, and how similar each answer is to the model answer, all from 0 to 1."""

    students: tuple[str, str]
    likeness: float
    to_model: tuple[float, float]


def alike(exercise: Exercise, graded: list[tuple[str, Result]]) -> list[AlikePair]:
    """Return the pairs of students with similar answers to one exercise, most similar first."""
    given = frozenset().union(*(grams(cell["source"]) for cell in exercise.given))
    model = of_answers({cell["id"]: cell["source"] for cell in exercise.cells if cell["answer"]}) - given
    found = [(student, of_answers(result.answers) - given) for student, result in graded]
    found = [(student, own) for student, own in found if len(own) >= FEWEST]
    pairs = [
        AlikePair((one, other), shared, (likeness(mine, model), likeness(theirs, model)))
        for (one, mine), (other, theirs) in combinations(found, 2)
        if (shared := likeness(mine, theirs)) >= THRESHOLD
    ]
    return sorted(pairs, key=lambda pair: (-pair.likeness, pair.students))


def groups(pairs: list[AlikePair]) -> list[list[AlikePair]]:
    """Merge linked pairs into groups of students, most similar first.

    Seven copies of one answer make one group, not 21 pairs.
    """
    found: list[tuple[set[str], list[AlikePair]]] = []
    for pair in pairs:
        linked = [each for each in found if each[0] & set(pair.students)]
        found = [each for each in found if each not in linked]
        students = set(pair.students).union(*(each[0] for each in linked))
        found.append((students, [*(one for each in linked for one in each[1]), pair]))
    ordered = [sorted(own, key=lambda pair: (-pair.likeness, pair.students)) for _, own in found]
    return sorted(ordered, key=lambda own: (-own[0].likeness, own[0].students))


def likeness(one: Grams, other: Grams) -> float:
    return len(one & other) / len(one | other) if one or other else 0.0


def of_answers(answers: dict[str, str]) -> Grams:
    return frozenset().union(*map(grams, answers.values()))


def grams(source: str) -> Grams:
    seen = list(tokens(source[:MAX_READ], PYTHON_LEXER))
    return frozenset(tuple(seen[start : start + GRAM]) for start in range(len(seen) - GRAM + 1))


def tokens(source: str, lexer: Lexer) -> Iterator[str]:
    """Return the tokens of Python, and of CUDA C++ inside strings: a learner's own name becomes V, a number 0, and a
    string S."""
    kept = ((kind, text) for kind, text in lexer.get_tokens(source) if text.strip() and not is_aside(kind))
    before = ""
    for of_string, parts in groupby(kept, lambda each: each[0] in String):
        if of_string:
            text = "".join(part for _, part in parts).strip("\"'")
            before = "S"
            yield from tokens(text, CUDA_LEXER) if len(text) >= CUDA and lexer is PYTHON_LEXER else before
            continue
        for kind, text in parts:
            # Attribute names, as in tl.load, belong to the library.
            shown = "0" if kind in Number else "V" if kind in Name and before != "." else text
            yield shown
            before = text


def is_aside(kind) -> bool:
    return kind in Comment or kind in Whitespace or kind in String.Doc
