"""`fusion progress`: the latest result of each check, kept across restarts.

`.progress/<exercise>.json`, next to the notebooks, holds each check's latest state with a digest of the answers above
it. It's written by check cells that run in JupyterLab, and by `fusion check`. A state counts only as long as the saved
notebook still has the same answers above the check; with it are kept the states of earlier answers, which count again
when an earlier answer is put back.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helpers.learning.outcome import ERROR, FAIL, NOT_ATTEMPTED, PASS, Outcome, gates, listeners
from helpers.learning.submission_policy.screening import screened

FOLDER = ".progress"
EARLIER = 20  # answers whose states are kept, for each check
STATES = (PASS, FAIL, NOT_ATTEMPTED, ERROR)


@dataclass(frozen=True)
class Progress:
    """The progress in one exercise.

    Args:
        exercise: its name.
        states: check -> "pass", "fail", "not attempted" or "error", for checks whose answers haven't changed since.
        points: check -> points, for every check that learners see.
        hidden: the points of the checks that only run during grading.
        changed: checks whose answers have changed since.
        when: the time of the latest state that counts, in seconds since 1970; 0 if there is none.
    """

    exercise: str
    states: dict[str, str]
    points: dict[str, float]
    hidden: float
    changed: tuple[str, ...]
    when: float

    @property
    def earned(self) -> float:
        return sum(self.points[check] for check, state in self.states.items() if state == PASS)

    @property
    def total(self) -> float:
        return sum(self.points.values()) + self.hidden

    def __str__(self) -> str:
        score = f"{self.earned:g} of {self.total:g} points"
        return f"{self.exercise:28} {score:18} {self.described}"

    @property
    def described(self) -> str:
        """Describe the progress so far."""
        if not self.states and not self.changed:
            return "not checked yet"
        said = []
        if self.states.keys() == self.points.keys() and set(self.states.values()) == {PASS}:
            rest = f", and the other {self.hidden:g} points are for hidden checks" if self.hidden else ""
            said.append(f"every check passes{rest}")
        for state in (FAIL, ERROR):
            if checks := [check for check, found in self.states.items() if found == state]:
                said.append(f"{state}: {', '.join(checks)}")
        if self.changed:
            said.append(f"changed since: run {', '.join(self.changed)} again")
        elif left := [check for check in self.points if self.states.get(check, NOT_ATTEMPTED) == NOT_ATTEMPTED]:
            said.append(f"to do: {', '.join(left)}")
        when = time.strftime(" (%Y-%m-%d %H:%M)", time.localtime(self.when)) if self.when else ""
        return "; ".join(said) + when


# Keeping


def record(notebook: Path, states: dict[str, str], answers: dict[str, str]) -> str:
    """Save the states of checks and return ""; if the notebook's folder is not writable, return why nothing was saved.

    Args:
        notebook: the exercise notebook.
        states: check -> "pass", "fail", "not attempted" or "error".
        answers: grade_id -> source of every answer cell above these checks, as it was checked.
    """
    course = course_of(notebook)
    if course is None:
        return ""
    place = place_of(notebook, course["exercise"])
    kept, now = kept_in(place), int(time.time())
    for check, state in states.items():
        entry = {"state": state, "answers": digest_above(check, course["original"], answers), "when": now}
        earlier = [each for each in entries_of(kept.get(check)) if each["answers"] != entry["answers"]]
        kept[check] = entry | ({"earlier": earlier[:EARLIER]} if earlier else {})
    try:
        place.parent.mkdir(exist_ok=True)
        # Write next to the file and rename, so that no reader sees half of it.
        beside = place.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        beside.replace(place)
    except OSError as error:
        return f"Not kept for `fusion progress`: {place.parent} cannot be written ({error.strerror})."
    return ""


def entries_of(kept: dict | None) -> list[dict]:
    """Return the entries of one check, its latest first: one for each text of the answers."""
    if kept is None:
        return []
    return [{key: value for key, value in kept.items() if key != "earlier"}, *kept.get("earlier", [])]


def is_entry(entry: dict) -> bool:
    """Return whether this is one of `record`'s entries; TypeError or KeyError if it isn't even a similar one."""
    return entry["state"] in STATES and isinstance(entry["answers"], str) and isinstance(entry["when"], int)


def kept_in(place: Path) -> dict[str, dict]:
    """Return what `record` wrote, without malformed entries."""
    try:
        kept = json.loads(place.read_text(encoding="utf-8"))
        return {
            check: entry
            for check, entry in kept.items()
            if is_entry(entry) and all(map(is_entry, entry.get("earlier", [])))
        }
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return {}


def place_of(notebook: Path, exercise: str) -> Path:
    return notebook.parent / FOLDER / f"{exercise}.json"


def answers_above(check: str, original: list[dict]) -> list[str]:
    """Return the ids of the answer cells above a check, which it may use."""
    before = itertools.takewhile(lambda cell: cell["id"] != check, original)
    return [cell["id"] for cell in before if cell["answer"]]


def digest_above(check: str, original: list[dict], answers: dict[str, str]) -> str:
    """Return a digest of the answers above a check; one that the notebook lacks is not in it."""
    above = {each: answers[each].strip() for each in answers_above(check, original) if each in answers}
    text = json.dumps(above, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def course_of(notebook: Path) -> dict | None:
    """Return the data that the build stored in an exercise notebook: its name and original cells; None if it's not an
    exercise."""
    content = read(notebook)
    course = content.get("metadata", {}).get("kernel_fusion", {}) if isinstance(content, dict) else {}
    return course if {"exercise", "original"} <= course.keys() else None


def read(notebook: Path) -> object:
    try:
        return json.loads(notebook.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


# Showing


def progress_of(notebook: Path) -> Progress | None:
    """Return the progress of the answers in an exercise notebook; None if the file isn't an exercise."""
    course = course_of(notebook)
    if course is None:
        return None
    asked = {cell["id"] for cell in course["original"] if cell["answer"]}
    answers = {
        cell["id"]: "".join(cell["source"]) for cell in read(notebook).get("cells", []) if cell.get("id") in asked
    }
    points = {cell["id"]: cell["points"] for cell in course["original"] if cell.get("pass")}
    hidden = sum(cell["points"] for cell in course["original"] if "points" in cell and cell["id"] not in points)
    kept = kept_in(place_of(notebook, course["exercise"]))
    kept = {check: kept[check] for check in points if check in kept}
    digests = {check: digest_above(check, course["original"], answers) for check in kept}
    counting = {
        check: entry for check in kept for entry in entries_of(kept[check]) if entry["answers"] == digests[check]
    }
    return Progress(
        course["exercise"],
        {check: entry["state"] for check, entry in counting.items()},
        points,
        hidden,
        tuple(check for check in kept if check not in counting),
        max((entry["when"] for entry in counting.values()), default=0),
    )


def report(folder: Path) -> str:
    """List the exercises in a folder, one per line.

    Raises:
        FileNotFoundError: there is none; one line.
    """
    found: dict[str, Progress] = {}
    others = []
    # An exercise under its own name comes before its copies.
    for path in sorted(folder.glob("*.ipynb"), key=lambda path: (path.stem != exercise_in(path), path.name)):
        each = progress_of(path)
        if each is not None and each.exercise in found:
            others.append(f"{path.name} is not counted: it is another copy of {each.exercise}.")
        elif each is not None:
            found[each.exercise] = each
        elif read(path) is None:
            others.append(f"{path.name} cannot be read: save it again from JupyterLab.")
    if not found:
        raise FileNotFoundError(f"{folder} has no exercises: pass the folder with the exercise notebooks")
    kept = folder / FOLDER
    where = f"Kept in {kept}." if kept.is_dir() else f"Nothing is kept in {kept} yet."
    lines = [str(found[exercise]) for exercise in sorted(found)]
    return "\n".join([*lines, f"{'':28} {in_all(list(found.values()))}", *others, where])


def exercise_in(notebook: Path) -> str:
    """Return the name of the exercise in a notebook, or ""."""
    return (course_of(notebook) or {}).get("exercise", "")


def in_all(found: list[Progress]) -> str:
    """Return the points of several exercises together, in words."""
    earned, hidden = sum(each.earned for each in found), sum(each.hidden for each in found)
    return f"{earned:g} of {sum(each.total for each in found):g} points" + of_hidden_checks(hidden)


def of_hidden_checks(points: float) -> str:
    """Explain why the points above do not add up to the total."""
    return f" ({points:g} of them for hidden checks, which only the grading runs)" if points else ""


# Watching a notebook that runs


def watch() -> None:
    """Start recording the results of check cells, if this is a notebook's kernel."""
    name = os.environ.get("JPY_SESSION_NAME", "")  # Jupyter's server tells its kernels the notebook's path
    with contextlib.suppress(ImportError):
        from IPython import get_ipython

        if (shell := get_ipython()) is not None and name.endswith(".ipynb"):
            watcher = Watcher(Path(name))
            shell.events.register("pre_run_cell", watcher.runs)
            listeners.append(watcher.said)
            gates.append(watcher.refusal)


class Watcher:
    """Tracks which answers have run, screens them as the grader does, and records their check results."""

    def __init__(self, notebook: Path):
        self.notebook = notebook
        self.ran: dict[str, str] = {}  # cell id -> source

    def runs(self, info) -> None:
        if info.cell_id is not None:
            self.ran[info.cell_id] = info.raw_cell

    def refusal(self, functions: list[Callable]) -> str:
        """Return why the grader would refuse one of the answers that these functions come from or use; empty if it
        wouldn't, or if that can't be determined."""
        course = course_of(self.notebook)
        if course is None:
            return ""
        asked = {cell["id"] for cell in course["original"] if cell["answer"]}
        answers = {answer: source for answer, source in self.ran.items() if answer in asked}
        refused = screened(answers, course["original"]).refused
        used = {getattr(each, "__name__", "") for each in functions}
        for _ in answers:  # names in a used function's cell also count as used
            used |= {
                word
                for source in answers.values()
                if not used.isdisjoint(re.findall(r"^def (\w+)", source, re.MULTILINE))
                for word in re.findall(r"\w+", source)
            }
        for answer, why in refused.items():
            if not used.isdisjoint(re.findall(r"^(?:def )?(\w+)(?=\(| *[:=])", answers[answer], re.MULTILINE)):
                return str(why)
        return ""

    def said(self, outcome: Outcome) -> None:
        course = course_of(self.notebook)
        if course is None:
            return
        above = answers_above(outcome.check, course["original"])
        # An answer that didn't run here, or ran before this watch began, is unknown, so make no claim.
        if all(answer in self.ran for answer in above):
            record(self.notebook, {outcome.check: outcome.state}, {answer: self.ran[answer] for answer in above})
