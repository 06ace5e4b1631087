"""`fusion grade`: a class, graded. Results are kept as they come; a run that was stopped goes on where it was."""

import ctypes
import hashlib
import json
import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

from tqdm import tqdm

from helpers.grading import report
from helpers.grading.class_folder import Class, Found, class_in
from helpers.grading.exercise import Exercise, exercises_in
from helpers.grading.files import write_whole
from helpers.grading.grade import grade, result_from_json
from helpers.grading.judge import Judge
from helpers.grading.sandbox import require_sandbox

_judges: dict[tuple[str, int], Judge] = {}  # in a worker's process, one for each exercise


def grade_class(
    submissions: Path,
    out: Path,
    jobs: int | None = None,
    only: str = "",
    resume: bool = False,
    seed: int | None = None,
    student: str | None = None,
) -> int:
    """Grade every notebook in a folder or zip, and write the report.

    Args:
        submissions: a folder or a zip.
        out: the report's folder.
        jobs: how many submissions at once; as many as there are processors unless given.
        only: grade only exercises whose name starts with this.
        resume: keep the results in `out` that are of the same notebooks, exercises and seed.
        seed: decides all inputs; drawn and kept in out/run.json unless given.
        student: a regular expression that finds the student in a path, in its group `student`.

    Returns:
        0, or 1 where the grader could not grade a submission.

    Raises:
        RuntimeError: there is no sandbox. OSError, ValueError: input or output that is not there; one line each.
    """
    require_sandbox()
    exercises = exercises_in(only=only)
    students = class_in(submissions, exercises, student)
    seed = prepared(out, resume, seed)
    pending = [each for each in students.found if not (resume and is_graded(out, students, each, exercises, seed))]
    jobs = max(1, min(jobs or os.cpu_count() or 1, len(pending)))
    ungraded = {}
    with (
        tempfile.TemporaryDirectory(prefix="fusion-grade-") as folder,
        # The workers' own temporary files go with it, however a worker ends.
        mock.patch.dict(os.environ, TMPDIR=folder),
        tqdm(total=len(students.found), initial=len(students.found) - len(pending), unit=" notebooks") as bar,
    ):
        for each, done in graded(pending, students, exercises, seed, jobs):
            if isinstance(done, str):
                ungraded[each.path] = done
            else:
                keep(out, students, each, exercises, seed, *done)
            bar.update()
    report.write(out, students, exercises, ungraded)
    print(report.table(out, students, ungraded))
    return 1 if ungraded else 0


# Running


def graded(
    pending: list[Found], students: Class, exercises: dict[str, Exercise], seed: int, jobs: int
) -> Iterator[tuple[Found, tuple[dict, str] | str]]:
    """Each submission with its result and JUnit XML, or with why there is none, in the order in which they end."""
    suspects = []
    while pending:
        with pool(jobs) as executor:
            running = {}
            try:
                while pending or running:
                    while pending and len(running) < jobs:
                        each = pending.pop(0)
                        running[submit(executor, each, students, exercises, seed)] = each
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        done = outcome(future)
                        yield running.pop(future), done
            except BrokenProcessPool:
                suspects += running.values()
    # One of those that ran when a worker died ended it. Each is tried once more, in a process of its own.
    for each in suspects:
        with pool(1) as executor:
            try:
                yield each, outcome(submit(executor, each, students, exercises, seed))
            except BrokenProcessPool:
                yield each, "the grader's process ended, twice: look at this notebook by hand"


def pool(jobs: int) -> ProcessPoolExecutor:
    # Spawned: a fork of this process would share its progress bar's threads and locks.
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=end_with, initargs=(os.getpid(),))


def end_with(parent: int) -> None:
    """Let Linux end this worker when the grader ends, killed or not; the worker's sandboxes end with it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before it could be watched
        os._exit(1)


def submit(executor: Executor, each: Found, students: Class, exercises: dict[str, Exercise], seed: int):
    return executor.submit(work, students.read(each.path), each.path, exercises[each.exercise], seed)


def outcome(future) -> tuple[dict, str] | str:
    try:
        return future.result()
    except BrokenProcessPool:
        raise
    except Exception as error:
        return f"the grader failed: {type(error).__name__}: {error}"


def work(content: bytes, path: str, exercise: Exercise, seed: int) -> tuple[dict, str]:
    """Grade one submission in this process: the result as JSON, and nbval's JUnit XML, empty where it was not run."""
    key = exercise.digest, seed
    if key not in _judges:
        _judges[key] = Judge(exercise, seed)
    with tempfile.TemporaryDirectory(prefix="fusion-junit-") as folder:
        junit = Path(folder, "junit.xml")
        try:
            result = grade(content, Path(path).name, _judges[key], junit)
        except RuntimeError:
            _judges.pop(key).close()  # the next submission has a fresh one
            raise
        return result.as_json(), junit.read_text(encoding="utf-8") if junit.exists() else ""


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


def keep(out: Path, students: Class, each: Found, exercises: dict[str, Exercise], seed: int, result: dict, junit: str):
    """Write one result, the JUnit XML first: where the result is there, all of it is."""
    place = place_of(out, each)
    write_whole(place.with_suffix(".xml"), junit)
    kept = {
        "student": each.student,
        "notebook": each.path,
        "stamp": stamp(students.read(each.path), exercises[each.exercise], seed),
        "result": result,
    }
    write_whole(place, json.dumps(kept, indent=1) + "\n")
