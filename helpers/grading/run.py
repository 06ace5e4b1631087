"""`fusion grade`: grade a class. Results are saved as they arrive, and a stopped run can be continued."""

import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

from tqdm import tqdm

from helpers.grading import class_report
from helpers.grading.atomic_files import write_whole
from helpers.grading.class_folder import Class, Found, class_in
from helpers.grading.exercise import Exercise, exercises_in
from helpers.grading.grade import clean, result_from_json
from helpers.grading.gradebook import Rules, gradebook
from helpers.grading.lateness import due_dates, rule_in
from helpers.grading.marks import add_mark, mark_of, marks_in, start_table
from helpers.grading.roster import roster_in
from helpers.grading.sandbox import require_sandbox
from helpers.grading.variants import drawn
from helpers.grading.workers import Task, graded_here, graded_on


def grade_class(
    submissions: Path,
    out: Path,
    jobs: int | None = None,
    only: str = "",
    resume: bool = False,
    seed: int | None = None,
    student: str | None = None,
    cluster: str | None = None,
    comments: Iterable[Sequence[str]] = (),
    by: str = "",
    **given: str | list[str] | None,
) -> int:
    """Grade all notebooks in a folder or zip, and write the report.

    Args:
        submissions: a folder or a zip.
        out: the report's folder.
        jobs: how many submissions at once; by default one per processor.
        only: grade only the exercise with this number or name.
        resume: keep the results in `out` for the same notebooks, exercises and seed.
        seed: decides all inputs; by default drawn and saved in out/run.json.
        student: a regular expression that finds the student in a path, in its group `student`.
        cluster: address of the scheduler of a dask.distributed cluster; by default this machine is used.
        comments: student, exercise, points and text of each, put into out/marks.csv.
        by: their author, by default this user.
        given: `roster`, a table's path; `due`, dates; `late`, a rule; `variant`, the word for the class's variants;
            saved in out/run.json, so that --resume has them.

    Returns:
        0, or 1 if the grader failed to grade a submission.

    Raises:
        RuntimeError: there is no sandbox, or no cluster; one line.
        OSError, ValueError: input or output is missing or invalid; one line.
    """
    if not cluster:
        require_sandbox()
    kept = kept_run(out, resume) | {name: value for name, value in given.items() if value is not None}
    exercises = exercises_in(only=only, drawn=partial(drawn, kept.get("variant", "")))
    students = class_in(submissions, exercises, student)
    rules = rules_of(kept, out / "marks.csv", by)
    said = [mark_of(*comment) for comment in comments]
    # Report contradictions before grading or writing anything.
    gradebook(students, {}, exercises, replace(rules, marks=(*rules.marks, *said)))
    seed = prepared(out, kept, seed)
    for mark in said:
        add_mark(rules.marks_path, mark, by)
    pending = [each for each in students.found if not (resume and is_graded(out, students, each, exercises, seed))]
    # Go exercise by exercise, because a worker has one judge at a time.
    pending.sort(key=lambda each: each.exercise)
    jobs = max(1, min(jobs or os.cpu_count() or 1, len(pending)))
    ungraded = {}
    with (
        tempfile.TemporaryDirectory(prefix="fusion-grade-") as folder,
        # The workers' temporary files go with it, however a worker ends.
        mock.patch.dict(os.environ, TMPDIR=folder),
        tqdm(total=len(students.found), initial=len(students.found) - len(pending), unit=" notebooks") as bar,
    ):
        tasks = tasks_of(pending, students, exercises, seed, ungraded)
        for task, done in graded_on(cluster, tasks) if cluster else graded_here(tasks, jobs):
            if isinstance(done, str):
                ungraded[task.found.path] = done
            else:
                keep(out, task, *done)
            bar.update()
    # Marks written during grading also count.
    rules = replace(rules, marks=tuple(marks_in(rules.marks_path, by)))
    results = {(student, result.exercise): result for student, result in class_report.results_in(out, students)}
    book = gradebook(students, results, exercises, rules)
    start_table(
        rules.marks_path,
        [(clean(row.student), each.exercise) for row in book.rows for each in row.entries if each.folder],
    )
    class_report.write(out, students, exercises, ungraded, book)
    print(class_report.table(out, students, ungraded, book))
    return 1 if ungraded else 0


def tasks_of(
    pending: list[Found], students: Class, exercises: dict[str, Exercise], seed: int, unread: dict[str, str]
) -> Iterator[Task]:
    """Yield the submissions, reading one at a time; unreadable ones go into `unread`, path -> reason."""
    for each in pending:
        try:
            content = students.read(each.path)
        except OSError as error:
            unread[each.path] = f"cannot be read: {error.strerror or error}"
            continue
        yield Task(each, content, exercises[each.exercise], seed)


# Keeping


def kept_run(out: Path, resume: bool) -> dict:
    """Return the options saved by the run in `out`; empty if there was none."""
    kept = out / "run.json"
    if kept.exists() and not resume:
        raise ValueError(f"{out} holds a report: add --resume to continue it, or choose another folder")
    return json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}


def prepared(out: Path, kept: dict, seed: int | None) -> int:
    """Return the run's seed. Create `out`, check that it's writable, and save the run's options there."""
    seed = kept.get("seed", secrets.randbits(32)) if seed is None else seed
    roster = {"roster": str(Path(kept["roster"]).resolve())} if kept.get("roster") else {}
    write_whole(out / "run.json", json.dumps(kept | roster | {"seed": seed}) + "\n")
    return seed


def rules_of(kept: dict, marks: Path, by: str) -> Rules:
    """Return the run's options for the class, its dates and its marks; ValueError, one line, if they are invalid."""
    due, late = due_dates(kept.get("due", []), list(exercises_in())), kept.get("late")
    rule = rule_in(late) if late else None
    if rule and rule.unit and not due.dates:
        raise ValueError(f"--late {late!r} needs to know when it was due: --due '2026-11-01 23:59 +01:00'")
    roster = roster_in(Path(kept["roster"])) if kept.get("roster") else None
    return Rules(roster, due, rule, tuple(marks_in(marks, by)), marks, tuple(exercises_in()))


def place_of(out: Path, each: Found) -> Path:
    return class_report.folder_of(out, each.student) / f"{each.exercise}.json"


def stamp(content: bytes, exercise: Exercise, seed: int) -> str:
    """Return a result's key: the notebook, the exercise and the seed."""
    parts = [content, exercise.digest.encode(), exercise.variant.encode(), str(seed).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def is_graded(out: Path, students: Class, each: Found, exercises: dict[str, Exercise], seed: int) -> bool:
    try:
        kept = json.loads(place_of(out, each).read_text(encoding="utf-8"))
        result_from_json(kept["result"])
        return kept["stamp"] == stamp(students.read(each.path), exercises[each.exercise], seed)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def keep(out: Path, task: Task, result: dict, junit: str) -> None:
    """Write one result, starting with the JUnit XML, so that a result that exists is complete."""
    place = place_of(out, task.found)
    write_whole(place.with_suffix(".xml"), junit)
    kept = {
        "student": task.found.student,
        "notebook": task.found.path,
        "stamp": stamp(task.content, task.exercise, task.seed),
        "result": result,
    }
    write_whole(place, json.dumps(kept, indent=1) + "\n")
