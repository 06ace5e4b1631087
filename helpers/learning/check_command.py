"""`fusion check`: a learner grades their own notebook."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.learning import progress
from helpers.learning.notebook_runner import CellRun, problems_in, run_cells
from helpers.learning.outcome import ERROR, FAIL, MIME, NOT_ATTEMPTED, PASS
from helpers.learning.progress import of_hidden_checks
from helpers.learning.submission import Submission, read_submission, up_to_the_last_check
from helpers.learning.submission_policy.screening import refusal_behind, run_instead, screened

CELL_TIMEOUT = 60.0  # seconds; a check takes under five
HIDDEN, REFUSED = "hidden", "refused"


@dataclass(frozen=True)
class CheckResult:
    """One check of a submission.

    Args:
        check: the check's grade_id.
        state: "pass", "fail", "not attempted", "error", "refused" if the grader would not run the answers, or "hidden"
            if the check is kept for grading.
        points: the check's points.
        message: the observation and where to look; empty for a pass.
    """

    check: str
    state: str
    points: float
    message: str = ""

    @property
    def earned(self) -> float:
        return self.points if self.state == PASS else 0


def assembled(submission: Submission) -> NotebookNode:
    """Return the original notebook with the learner's answers filled in; each check cell stores its output for a
    pass."""
    cells = []
    for cell in up_to_the_last_check(submission.original):
        new = nbformat.v4.new_code_cell(submission.answers.get(cell["id"], cell["source"]), id=cell["id"])
        if cell.get("pass"):
            # nbval skips the comparison if the count is missing.
            new.execution_count, new.outputs = 1, nbformat.from_dict(cell["pass"])
        cells.append(new)
    return nbformat.v4.new_notebook(cells=cells)


def results_of(submission: Submission, cell_timeout: float = CELL_TIMEOUT) -> list[CheckResult]:
    """Run a submission's checks on the answers that the grader would accept."""
    checks = [cell for cell in submission.original if "points" in cell]
    found = screened(submission.answers, submission.original)
    if found.refused and not found.readable:
        why = "\n".join(map(str, found.refusals))
        refused = [(HIDDEN, "") if cell["pass"] is None else (REFUSED, why) for cell in checks]
        return [
            CheckResult(cell["id"], state, cell["points"], told)
            for cell, (state, told) in zip(checks, refused, strict=True)
        ]
    # A check that doesn't need a broken answer still runs.
    needed = {cell["id"] for cell in submission.original if "points" not in cell} - submission.answers.keys()
    answers = submission.answers | {answer: run_instead(why) for answer, why in found.refused.items()}
    runs = run_cells(assembled(replace(submission, answers=answers)), needed, cell_timeout)
    broken = problems_in(runs, submission.original)
    stopped = next(iter(broken.values()), "")
    unmade = {answer: broken[answer] for answer in submission.answers if answer in broken}
    results = []
    for cell in checks:
        state, message = judged(cell, runs[cell["id"]], stopped)
        if state == ERROR and (missing := re.search(r"NameError: name '(\w+)' is not defined", message)):
            # The broken answer, if it should have defined this name.
            for answer, problem in unmade.items():
                if re.search(rf"\b{missing[1]}\b", submission.answers[answer]):
                    message = f"not run: {problem}"
            if why := refusal_behind(f"NameError: name '{missing[1]}' is not defined", found, submission.original):
                state, message = REFUSED, str(why)
        results.append(CheckResult(cell["id"], state, cell["points"], message))
    return results


def judged(cell: dict, run: CellRun, stopped: str) -> tuple[str, str]:
    """Return a check's state and message from its cell's output; `stopped` names the cell that ended the run."""
    if cell["pass"] is None:
        return HIDDEN, ""
    if run.same:
        return PASS, ""
    if run.problem == CellRun().problem:
        return ERROR, f"not run: {stopped}"
    if run.problem:
        return ERROR, f"it {run.problem}"
    shown = next((output.data[MIME] for output in run.outputs if MIME in output.get("data", {})), None)
    if shown is None or shown["state"] not in (FAIL, NOT_ATTEMPTED, ERROR):
        return ERROR, "it showed something other than this check's outcome: restart your kernel and run all cells"
    look_at = f"\nLook at {shown['look_at']}." if shown["look_at"] else ""
    return shown["state"], shown["message"] + look_at


def report(submission: Submission, results: list[CheckResult]) -> str:
    """Format the results as lines of text."""
    width = max(len(result.check) for result in results)
    lines = [submission.exercise]
    for result in results:
        if result.state == HIDDEN:
            lines.append(f"  {result.check:{width}}  kept for the grading, {result.points:g} points")
            continue
        lines.append(f"  {result.check:{width}}  {result.state:13}  {result.earned:g} of {result.points:g} points")
        lines += [f"      {line}" for line in result.message.splitlines()]
    shown = [result for result in results if result.state != HIDDEN]
    points = sum(result.points for result in results)
    kept = points - sum(result.points for result in shown)
    lines.append(f"  {sum(result.earned for result in shown):g} of {points:g} points{of_hidden_checks(kept)}")
    if submission.left_out:
        cells = "1 code cell" if submission.left_out == 1 else f"{submission.left_out} code cells"
        lines.append(f"  Not taken: {cells} that you added or changed outside the answer cells.")
    return "\n".join(lines)


def check_notebook(path: str | Path, cell_timeout: float = CELL_TIMEOUT) -> int:
    """Grade a learner's own notebook with its public checks and print the report.

    Args:
        path: an exercise notebook, or a solution notebook.
        cell_timeout: seconds a cell may run.

    Returns:
        0 if every check passed, else 1.

    Raises:
        FileNotFoundError, ValueError: there is no notebook, or it's not a gradable exercise; one line.
    """
    submission = read_submission(Path(path))
    results = results_of(submission, cell_timeout)
    print(report(submission, results))
    states = {
        result.check: ERROR if result.state == REFUSED else result.state for result in results if result.state != HIDDEN
    }
    if not_kept := progress.record(Path(path), states, submission.answers):
        print(f"  {not_kept}")
    return 0 if all(result.state in (PASS, HIDDEN) for result in results) else 1
