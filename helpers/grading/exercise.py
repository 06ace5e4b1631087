"""An exercise as the grader sees it: the solution's own cells, its checks and their points."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helpers.grading.variants import Variant
from helpers.learning.submission import up_to_the_last_check

COURSE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Exercise:
    """The trusted copy of an exercise.

    Args:
        name: such as "03_fused_add_gelu".
        cells: the solution's code cells up to the last check, model answers included: `id`, `source`, `answer`, and
            `points` of a check.
        given: the same cells as a class gets them, with stubs and without hidden checks.
        digest: of the solution's sources.
        variant: the name of the class's variant, empty for the course's own exercise.
    """

    name: str
    cells: list[dict]
    given: list[dict]
    digest: str
    variant: str = ""

    @property
    def asked(self) -> list[str]:
        """grade_ids of the answer cells."""
        return [cell["id"] for cell in self.cells if cell["answer"]]

    @property
    def checks(self) -> dict[str, float]:
        """grade_id -> points for each check."""
        return {cell["id"]: cell["points"] for cell in self.cells if "points" in cell}

    @property
    def hidden(self) -> set[str]:
        """grade_ids of the checks that learners don't see."""
        return {cell["id"] for cell in self.cells if "points" in cell and "BEGIN HIDDEN TESTS" in cell["source"]}


def exercises_in(
    folder: Path = COURSE / "solutions",
    only: str = "",
    drawn: Callable[[str], Variant | None] = lambda name: None,
) -> dict[str, Exercise]:
    """Return name -> exercise for each solution, or only for those with the number or name `only`.

    `drawn` returns the variant of an exercise that a class was given, if any.

    Raises:
        FileNotFoundError: there is none.
    """
    found = {}
    for path in sorted(folder.glob("*.ipynb")):
        if not only or f"{path.stem}_".startswith(f"{only}_"):
            solution = json.loads(path.read_text(encoding="utf-8"))
            variant = drawn(path.stem)
            if variant:
                solution = variant.of(solution)
            course = solution["metadata"]["kernel_fusion"]
            cells = [described(cell) for cell in solution["cells"] if cell["cell_type"] == "code"]
            found[path.stem] = Exercise(
                course["exercise"],
                up_to_the_last_check(cells),
                course["original"],
                course["built"],
                course.get("variant", ""),
            )
    if not found:
        known = ", ".join(path.stem for path in sorted(folder.glob("*.ipynb"))) or "none"
        raise FileNotFoundError(f"no solution in {folder} is {only!r}: choose from {known}")
    return found


def described(cell: dict) -> dict:
    """Return a solution's code cell in the grader's format."""
    of_nbgrader = cell["metadata"].get("nbgrader", {})
    entry = {"id": cell["id"], "source": "".join(cell["source"]), "answer": of_nbgrader.get("solution", False)}
    return entry | ({"points": of_nbgrader["points"]} if of_nbgrader.get("grade") else {})


def number_of(name: str) -> str:
    """Return the exercise number found anywhere in a file name, such as "03" in "smith_12_03_fused_add_gelu.ipynb";
    empty if there is none."""
    found = re.search(r"(?<![0-9a-z])(\d\d[a-z]?)_[a-z]", name)
    return found[1] if found else ""
