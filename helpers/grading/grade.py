"""Grade one submission of one exercise: read it, screen it, assemble it, run it in the sandbox, and judge it
outside."""

import ast
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.grading.exercise import Exercise
from helpers.grading.judge import Judge
from helpers.grading.sandbox import KERNEL_NAME, kernelspecs
from helpers.learning.notebook_runner import CellRun, problems_in, run_cells
from helpers.learning.outcome import ERROR, FAIL, NOT_ATTEMPTED, PASS
from helpers.learning.submission import answers_in, left_out_of, parsed_notebook
from helpers.learning.submission_policy.screening import Screened, needing, refusal_behind, run_instead, screened

INVALID, REFUSED = "invalid", "refused"
STATES = (PASS, FAIL, NOT_ATTEMPTED, ERROR, INVALID, REFUSED)
CELL_TIMEOUT = 30.0  # seconds
MAX_BYTES = 25_000_000  # of a notebook, outputs included; these are dropped unread
MAX_SAID = 2000  # characters of a message


@dataclass(frozen=True)
class Check:
    """One check of a submission: its state (one of STATES), its maximum points, and the points earned."""

    check: str
    state: str
    points: float
    earned: float
    hidden: bool
    message: str


@dataclass(frozen=True)
class Result:
    """A submission's points, with the reasons.

    Args:
        left_out: code cells added or changed outside the answers, none of them run.
        flags: remarks for the instructor to look at.
        seconds: how long the grading took.
        answers: grade_id -> source, as handed in; empty if the notebook could not be read.
    """

    exercise: str
    checks: tuple[Check, ...]
    left_out: int
    flags: tuple[str, ...]
    seconds: float
    answers: dict[str, str]

    @property
    def earned(self) -> float:
        return sum(check.earned for check in self.checks)

    @property
    def points(self) -> float:
        return sum(check.points for check in self.checks)

    def as_json(self) -> dict:
        return {**asdict(self), "earned": self.earned, "points": self.points}


def grade(content: bytes, name: str, judge: Judge, junit: Path | None = None) -> Result:
    """Grade one notebook.

    Args:
        content: the file's bytes.
        name: the file's name, for messages.
        judge: the exercise's.
        junit: where nbval's JUnit XML goes, if anywhere; nothing is written if the notebook didn't run.
    """
    started = time.monotonic()
    exercise = judge.exercise
    answers: dict[str, str] = {}

    def result(checks: list[Check], left_out: int = 0, flags: tuple[str, ...] = ()) -> Result:
        seconds = round(time.monotonic() - started, 2)
        return Result(exercise.name, tuple(checks), left_out, flags, seconds, answers)

    try:
        notebook, answers = opened(content, name, exercise)
    except ValueError as error:
        return result(all_alike(exercise, INVALID, str(error)), flags=(INVALID,))
    left_out = left_out_of(notebook, answers, exercise.given)
    found = screened(answers, exercise.cells)
    if found.refused and needing(found.refused, exercise.cells) >= exercise.checks.keys():
        why = "\n".join(map(str, found.refusals))
        return result(all_alike(exercise, REFUSED, why), left_out, flags=(REFUSED,))
    verdicts, runs = run(found, judge, junit)
    unreadable = "".join(f"{why}\n" for why in found.unreadable.values())
    checks = []
    for check in exercise.checks:
        state, message = verdicts.get(check) or without_verdict(runs, check, exercise)
        if state == ERROR and (why := refusal_behind(message, found, exercise.cells)):
            state, message = REFUSED, str(why)
        checks.append(checked(exercise, check, state, unreadable * (state == ERROR) + message))
    flags = tuple(sorted({check.state for check in checks if check.state in (ERROR, REFUSED)}))
    return result(checks, left_out, flags)


def opened(content: bytes, name: str, exercise: Exercise) -> tuple[dict, dict[str, str]]:
    """Return a notebook's JSON and its answers, grade_id -> source; ValueError, one line, if it doesn't belong to the
    exercise."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"{name} is larger than {MAX_BYTES / 1e6:g} MB, the limit with its outputs: clear them")
    notebook = parsed_notebook(content, name)
    course = notebook["metadata"].get("kernel_fusion")
    held = course.get("exercise") if isinstance(course, dict) else None
    if isinstance(held, str) and held != exercise.name:
        raise ValueError(f"{name} holds exercise {held}, not {exercise.name}: rename it, or give the right file")
    if isinstance(held, str) and (variant := course.get("variant", "")) != exercise.variant:
        raise ValueError(
            f"{name} holds {named(variant)} of {exercise.name}, this class was given {named(exercise.variant)}: "
            "hand in the notebook that came with the class's course"
        )
    return notebook, answers_in(notebook, exercise.asked, name)


def named(variant: object) -> str:
    return f"the variant {str(variant)[:60]!r}" if variant else "the course's own"


def run(found: Screened, judge: Judge, junit: Path | None) -> tuple[dict, dict[str, CellRun]]:
    """Run the exercise with these answers in the sandbox, and return verdicts on the checks that finished."""
    judge.start()
    verdicts = {}
    answers = found.readable | {answer: run_instead(why) for answer, why in found.left_out.items()}
    needed = {cell["id"] for cell in judge.exercise.cells if "points" not in cell} - found.left_out.keys()
    notebook = assembled(judge.exercise, answers, judge.calls_file)
    with (
        tempfile.TemporaryDirectory(prefix="fusion-spec-") as folder,
        kernelspecs(Path(folder), judge.calls_file, max(judge.results_size.values(), default=0)),
        judge.verdicts(found.readable) as verdict,
    ):

        def compare(item, outputs, stored) -> bool:
            check = item.cell.id
            verdicts[check] = verdict(check, outputs)
            return verdicts[check][0] == PASS

        runs = run_cells(notebook, needed, CELL_TIMEOUT, KERNEL_NAME, compare, junit, judge.results_size)
    return verdicts, runs


def assembled(exercise: Exercise, answers: dict[str, str], calls: Path) -> NotebookNode:
    """Return the solution's notebook with these answers; each check cell calls them and shows what they returned."""
    cells = []
    for cell in exercise.cells:
        if "points" in cell:
            source = f"from helpers.grading.replay.call_record import emit\n\nemit({cell['id']!r}, {str(calls)!r})"
            new = nbformat.v4.new_code_cell(source, id=cell["id"])
            # nbval compares nothing if no output is stored. Only the judge has the expected values.
            new.execution_count, new.outputs = 1, [nbformat.v4.new_output("display_data", {"text/plain": "values"})]
        elif not cell["answer"] and (only_shows(cell["source"]) or compiles(cell["source"])):
            continue  # a submission's sandbox has no compiler
        else:
            new = nbformat.v4.new_code_cell(answers.get(cell["id"], cell["source"]), id=cell["id"])
        cells.append(new)
    return nbformat.v4.new_notebook(cells=cells)


def only_shows(source: str) -> bool:
    """Return whether a cell assigns no names, so that no other cell can depend on it."""
    return all(isinstance(statement, ast.Expr) for statement in ast.parse(source).body)


def compiles(source: str) -> bool:
    """Return whether a cell runs the compiler, rather than only defining how to."""
    statements = [each for each in ast.parse(source).body if not isinstance(each, ast.FunctionDef)]
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "compile_for"
        for statement in statements
        for node in ast.walk(statement)
    )


def without_verdict(runs: dict[str, CellRun], check: str, exercise: Exercise) -> tuple[str, str]:
    """Return the state and message of a check whose cell didn't finish."""
    if runs[check].problem != CellRun().problem:
        return ERROR, f"it {runs[check].problem}"
    broken = next(iter(problems_in(runs, exercise.cells).values()), "an earlier cell stopped")
    return ERROR, f"not run: {broken}"


def checked(exercise: Exercise, check: str, state: str, message: str) -> Check:
    state = state if state in STATES else ERROR
    points = exercise.checks[check]
    return Check(check, state, points, points if state == PASS else 0, check in exercise.hidden, clean(message))


def all_alike(exercise: Exercise, state: str, message: str) -> list[Check]:
    return [checked(exercise, check, state, message) for check in exercise.checks]


def clean(text: str) -> str:
    """Strip control characters, which a terminal would obey, and shorten the message to a readable length."""
    kept = "".join(c for c in text if c == "\n" or c.isprintable())
    return kept if len(kept) <= MAX_SAID else kept[:MAX_SAID] + " ..."


def for_student(result: Result) -> Result:
    """Return the result as the student may see it: a hidden check only shows whether it passed, and its points."""
    checks = tuple(
        replace(check, message="kept for the grading: other sizes and numbers than the public checks")
        if check.hidden and check.state in (FAIL, ERROR, NOT_ATTEMPTED)
        else check
        for check in result.checks
    )
    return replace(result, checks=checks)


def result_from_json(written: dict) -> Result:
    """Return the Result that `as_json` wrote; KeyError, TypeError or ValueError if the JSON is not a Result."""
    checks = tuple(Check(**check) for check in written["checks"])
    return Result(
        written["exercise"],
        checks,
        written["left_out"],
        tuple(written["flags"]),
        written["seconds"],
        dict(written["answers"]),
    )
