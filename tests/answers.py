"""The answers that the tests give to an exercise: right ones must pass, and a check must reject each wrong one.

They are in source/exercises/answers/NAME/. `changed.diff` holds the answers that differ from the model answer in a few
lines, separated by blank lines; a blank line also separates two changes in one answer:

    wrong_eps: eps is added to the deviation, not to the variance.
    rejected by: values
    told: eps: inside the square root
    never told: the lanes past
    -    y = centred * tl.rsqrt(variance + eps) * weight + bias
    +    y = centred * (1 / (tl.sqrt(variance) + eps)) * weight + bias

A line that begins with a space is context. The replaced text must occur exactly once in the model answer, ignoring
blank lines and comment lines. An answer in its own style is a file, right_*.py or wrong_*.py, that begins with the same
lines as comments and has a cell for each answer.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jupytext

from helpers.grading.exercise import COURSE, exercises_in

FOLDER = COURSE / "source" / "exercises" / "answers"
DIFF = "changed.diff"


@dataclass(frozen=True)
class Answer:
    """One right or wrong answer.

    Attributes:
        exercise: such as "05_layer_norm".
        name: begins with "right_" or "wrong_".
        why: what it does otherwise.
        rejected_by, told: the check that must reject a wrong one, and a regular expression that its message matches.
        never_told: one that its message must not match; empty for none.
        text: a file's text, or the changes to the model answer.
        whole: whether it is a file.
    """

    exercise: str
    name: str
    why: str
    rejected_by: str
    told: str
    never_told: str
    text: str
    whole: bool

    @property
    def wrong(self) -> bool:
        return self.name.startswith("wrong_")

    @cached_property
    def cells(self) -> dict[str, str]:
        """grade_id -> source.

        Raises:
            ValueError: what is to be replaced does not stand in the model answer exactly once; one line.
        """
        if self.whole:
            cells = jupytext.reads(self.text, fmt="py:percent").cells
            return {cell.metadata["grade_id"]: cell.source for cell in cells if "grade_id" in cell.metadata}
        model = exercises_in(only=self.exercise)[self.exercise].cells
        return changed({cell["id"]: cell["source"] for cell in model if cell["answer"]}, self.text, str(self))

    def __str__(self) -> str:
        return f"{self.exercise}-{self.name}"


def changed(model: dict[str, str], changes: str, name: str) -> dict[str, str]:
    """The model answers, grade_id -> source, with each of the changes made."""
    before = {cell: code_lines(source) for cell, source in model.items()}
    after = {cell: list(lines) for cell, lines in before.items()}
    for place in re.split(r"\n\n+", changes.strip("\n")):
        lines = place.splitlines()
        if strange := [line for line in lines if line[0] not in " +-"]:
            raise ValueError(f"{name}: {strange[0]!r} begins with none of '-', '+' and a space")
        old, new = ([line[1:] for line in lines if line[0] != sign] for sign in "+-")
        stands = [cell for cell, source in before.items() for _ in starts(old, source)]
        if not old or len(stands) != 1:
            raise ValueError(f"{name}: {old} must stand in the model answer once, not {len(stands)} times")
        at = starts(old, after[stands[0]])
        if len(at) != 1:
            raise ValueError(f"{name}: {old} is also changed elsewhere")
        after[stands[0]][at[0] : at[0] + len(old)] = new
    return {cell: "".join(f"{line}\n" for line in lines) for cell, lines in after.items()}


def starts(part: list[str], whole: list[str]) -> list[int]:
    return [start for start in range(len(whole)) if whole[start : start + len(part)] == part]


def code_lines(source: str) -> list[str]:
    return [line for line in source.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def answers_in(folder: Path) -> list[Answer]:
    """The answers of one exercise, by name."""
    found = []
    for path in folder.glob("*.py"):
        text = path.read_text()
        found.append(Answer(folder.name, path.stem, *told_in(text.partition("\n\n")[0], "# "), text, whole=True))
    if (folder / DIFF).exists():
        for text in re.split(r"\n+(?=(?:right|wrong)_\w+: )", (folder / DIFF).read_text()):
            head, *changes = re.split(r"^(?=[ +-])", text, maxsplit=1, flags=re.MULTILINE)
            name, _, rest = head.partition(": ")
            found.append(Answer(folder.name, name, *told_in(rest), "".join(changes), whole=False))
    return sorted(found, key=lambda answer: answer.name)


def told_in(head: str, prefix: str = "") -> tuple[str, str, str, str]:
    """Why, rejected by, told, never told: from the lines that open an answer."""
    why, *lines = [line.removeprefix(prefix) for line in head.splitlines()] or [""]
    said = dict(line.split(": ", 1) for line in lines if ": " in line)
    return why, said.get("rejected by", ""), said.get("told", ""), said.get("never told", "")


def all_answers() -> list[Answer]:
    return [answer for folder in sorted(FOLDER.iterdir()) for answer in answers_in(folder)]
