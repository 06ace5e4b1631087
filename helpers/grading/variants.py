"""Variants of an exercise, each with another formula whose answer is not in `kernels/`.

source/exercises/variants/NAME.diff holds the variants of an exercise, written as changes to its solution's cells. Blank
lines separate variants, and also two changes within one:

    sigmoid: GELU in its sigmoid form
    -    return torch.nn.functional.gelu(a + b, approximate="tanh")
    +    return (a + b) * torch.sigmoid(1.702 * (a + b))

A line that begins with a space is context. The replaced lines must occur exactly once, in one cell of the solution.
Changes before the first name apply to every variant. So except for these lines, a variant has the same text, reference,
public and hidden checks and model answer as the exercise.
"""

import copy
import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

COURSE = Path(__file__).resolve().parents[2]
FOLDER = COURSE / "source" / "exercises" / "variants"


@dataclass(frozen=True)
class Variant:
    """One variant of an exercise.

    Args:
        exercise: such as "03_fused_add_gelu".
        name: such as "sigmoid".
        why: its task, in words.
        changes: pairs of replaced lines and their replacement.
    """

    exercise: str
    name: str
    why: str
    changes: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

    def of(self, notebook: dict) -> dict:
        """Return this variant of the exercise's notebook, or of its solution's; the exercise has no answers to change.

        Outputs that the variant may change are removed; the next run creates them again.

        Raises:
            ValueError: the replaced lines are in no cell of a solution, or occur more than once; one line.
        """
        made = copy.deepcopy(notebook)
        course = made["metadata"]["kernel_fusion"]
        texts = {place: "".join(cell["source"]) for place, cell in enumerate(made["cells"])}
        solution = any("BEGIN SOLUTION" in text for text in texts.values())
        changed = self._changed(texts, solution)
        first = min((place for place in texts if changed[place] != texts[place]), default=0)
        for place, cell in enumerate(made["cells"]):
            cell["source"] = changed[place].splitlines(keepends=True)
            if place >= first and cell["cell_type"] == "code":
                cell["outputs"], cell["execution_count"] = [], None
        original = {cell["id"]: cell["source"] for cell in course["original"]}
        given = self._changed(original, whole=False)
        course["original"] = [cell | {"source": given[cell["id"]]} for cell in course["original"]]
        course["variant"] = self.name
        return made

    def _changed(self, texts: dict, whole: bool) -> dict:
        """Return the texts with every change made; if they are not `whole`, only with the changes that apply to
        them."""
        lines = {key: text.split("\n") for key, text in texts.items()}
        made = {key: list(own) for key, own in lines.items()}
        for old, new in self.changes:
            found = sum(len(starts(old, own)) for own in lines.values())
            if found > 1 or (whole and found != 1):
                raise ValueError(f"{self.exercise}, {self.name}: {old[0]!r} occurs {found} times in it, not once")
            for own in made.values():
                for start in starts(old, own):
                    own[start : start + len(old)] = new
        return {key: "\n".join(own) for key, own in made.items()}


def starts(part: tuple[str, ...], whole: list[str]) -> list[int]:
    return [start for start in range(len(whole)) if tuple(whole[start : start + len(part)]) == part]


def variants_of(exercise: str, folder: Path = FOLDER) -> list[Variant]:
    """Return the variants of an exercise, in the order of their file; none if it has no file.

    Raises:
        ValueError: a line belongs to neither a variant nor a change; one line.
    """
    path = folder / f"{exercise}.diff"
    found = [Variant(exercise, "", "", ())]  # changes that are common to all
    for block in re.split(r"\n\n+", path.read_text(encoding="utf-8").strip("\n")) if path.exists() else ():
        lines = block.split("\n")
        if head := re.fullmatch(r"([a-z][a-z-]*): (.+)", lines[0]):
            found.append(Variant(exercise, head[1], head[2], found[0].changes))
            del lines[0]
        if any(line[:1] not in (" ", "+", "-") for line in lines):
            raise ValueError(f"{path.name}: {block.splitlines()[0]!r} begins with none of '-', '+' and a space")
        if lines:
            old, new = (tuple(line[1:] for line in lines if line[0] != sign) for sign in "+-")
            found[-1] = replace(found[-1], changes=(*found[-1].changes, (old, new)))
    return found[1:]


def drawn(word: str, exercise: str) -> Variant | None:
    """Return the variant of an exercise that a class's word selects; None if there is no word, or no variant."""
    if not word or not (found := variants_of(exercise)):
        return None
    digest = hashlib.sha256(f"{word}/{exercise}".encode()).digest()
    return found[int.from_bytes(digest[:8], "big") % len(found)]
