"""`fusion grade`: a class, graded. Results are kept as they come; a run that was stopped goes on where it was."""

import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tqdm import tqdm

from helpers.grading import report
from helpers.grading.class_folder import Class, Found, class_in
from helpers.grading.exercise import Exercise, exercises_in
from helpers.grading.files import write_whole
from helpers.grading.grade import result_from_json
from helpers.grading.sandbox import require_sandbox
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
) -> int:
    """Grade every notebook in a folder or zip, and write the report.

    Args:
        submissions: a folder or a zip.
        out: the report's folder.
        jobs: how many submissions at once; as many as there are processors unless given.
        only: grade only the exercise of this number or name.
        resume: keep the results in `out` that are of the same notebooks, exercises and seed.
        seed: decides all inputs; drawn and kept in out/run.json unless given.
        student: a regular expression that finds the student in a path, in its group `student`.
        cluster: address of the scheduler of a dask.distributed cluster; on this machine unless given.

    Returns:
        0, or 1 where the grader could not grade a submission.

    Raises:
        RuntimeError: there is no sandbox, or no cluster; one line.
        OSError, ValueError: input or output that is not there; one line.
    """
    if not cluster:
        require_sandbox()
    exercises = exercises_in(only=only)
    students = class_in(submissions, exercises, student)
    seed = prepared(out, resume, seed)
    pending = [each for each in students.found if not (resume and is_graded(out, students, each, exercises, seed))]
    # Exercise by exercise: a worker has one judge at a time.
    pending.sort(key=lambda each: each.exercise)
    jobs = max(1, min(jobs or os.cpu_count() or 1, len(pending)))
    ungraded = {}
    with (
        tempfile.TemporaryDirectory(prefix="fusion-grade-") as folder,
        # The workers' own temporary files go with it, however a worker ends.
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
    report.write(out, students, exercises, ungraded)
    print(report.table(out, students, ungraded))
    return 1 if ungraded else 0


def tasks_of(
    pending: list[Found], students: Class, exercises: dict[str, Exercise], seed: int, unread: dict[str, str]
) -> Iterator[Task]:
    """The submissions, read one by one; what cannot be read is put into `unread`, path -> reason."""
    for each in pending:
        try:
            content = students.read(each.path)
        except OSError as error:
            unread[each.path] = f"cannot be read: {error.strerror or error}"
            continue
        yield Task(each, content, exercises[each.exercise], seed)


# Keeping


def prepared(out: Path, resume: bool, seed: int | None) -> int:
    """The run's seed; `out` is then there, can be written, and says what the seed is."""
    kept = out / "run.json"
    if kept.exists() and not resume:
        raise ValueError(f"{out} holds a report: add --resume to go on with it, or give another folder")
    if kept.exists() and seed is None:
        seed = json.loads(kept.read_text())["seed"]
    seed = secrets.randbits(32) if seed is None else seed
    write_whole(kept, json.dumps({"seed": seed}) + "\n")
    return seed


def place_of(out: Path, each: Found) -> Path:
    return report.folder_of(out, each.student) / f"{each.exercise}.json"


def stamp(content: bytes, exercise: Exercise, seed: int) -> str:
    """What a result depends on: the notebook, the exercise and the seed."""
    parts = [content, exercise.digest.encode(), str(seed).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def is_graded(out: Path, students: Class, each: Found, exercises: dict[str, Exercise], seed: int) -> bool:
    try:
        kept = json.loads(place_of(out, each).read_text(encoding="utf-8"))
        result_from_json(kept["result"])
        return kept["stamp"] == stamp(students.read(each.path), exercises[each.exercise], seed)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def keep(out: Path, task: Task, result: dict, junit: str) -> None:
    """Write one result, the JUnit XML first: where the result is there, all of it is."""
    place = place_of(out, task.found)
    write_whole(place.with_suffix(".xml"), junit)
    kept = {
        "student": task.found.student,
        "notebook": task.found.path,
        "stamp": stamp(task.content, task.exercise, task.seed),
        "result": result,
    }
    write_whole(place, json.dumps(kept, indent=1) + "\n")
