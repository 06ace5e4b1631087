"""Grade submissions in processes on this machine, or on the workers of a cluster.

Both are executors of `concurrent.futures`, and the same function, `work`, grades every submission.
"""

import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from helpers.grading.class_folder import Found
from helpers.grading.exercise import Exercise
from helpers.grading.grade import grade
from helpers.grading.judge import Judge
from helpers.grading.sandbox import require_sandbox
from helpers.grading.worker_process import start_worker

CONNECT_TIME = 15.0  # seconds


@dataclass(frozen=True)
class Task:
    """A submission to grade: its student and name, its bytes, its exercise, and the run's seed."""

    found: Found
    content: bytes
    exercise: Exercise
    seed: int


Done = tuple[dict, str] | str  # the result as JSON with nbval's JUnit XML, or the reason why there is none


class WorkerDiedError(Exception):
    """One of the workers that were grading the submissions in `under_way` has died."""

    def __init__(self, under_way: list[Task]):
        super().__init__("a worker has died")
        self.under_way = under_way


_judge: Judge | None = None  # in a worker's process, of the exercise that is graded now
_one_at_a_time = threading.Lock()


def work(task: Task) -> tuple[dict, str]:
    """Grade one submission in this process; return the result as JSON, and nbval's JUnit XML (empty if the notebook
    didn't run)."""
    require_sandbox()
    # nbval and pytest change process-wide state, and a cluster's worker may have several threads.
    with _one_at_a_time, tempfile.TemporaryDirectory(prefix="fusion-junit-") as folder:
        junit = Path(folder, "junit.xml")
        try:
            result = grade(task.content, Path(task.found.path).name, judge_of(task.exercise, task.seed), junit)
        except RuntimeError:
            close_judge()  # the next submission gets a fresh one
            raise
        return result.as_json(), junit.read_text(encoding="utf-8") if junit.exists() else ""


def judge_of(exercise: Exercise, seed: int) -> Judge:
    """Return this process's judge. There's only one at a time, since each needs several hundred megabytes."""
    global _judge
    if _judge is None or (_judge.exercise.digest, _judge.seed) != (exercise.digest, seed):
        close_judge()
        _judge = Judge(exercise, seed)
    return _judge


def close_judge() -> None:
    global _judge
    if _judge is not None:
        _judge.close()
    _judge = None


def graded_by(executor: Executor, tasks: Iterator[Task], most: int) -> Iterator[tuple[Task, Done]]:
    """Yield each submission with its outcome, in order of completion; at most `most` run at once.

    Raises:
        WorkerDiedError: a process of the pool died.
    """
    running: dict[Future, Task] = {}
    while True:
        while len(running) < most and (task := next(tasks, None)) is not None:
            try:
                running[executor.submit(work, task)] = task
            except BrokenProcessPool:
                raise WorkerDiedError([*running.values(), task]) from None
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            try:
                done = outcome(future)
            except BrokenProcessPool:
                raise WorkerDiedError(list(running.values())) from None
            yield running.pop(future), done


def outcome(future: Future) -> Done:
    try:
        return future.result()
    except (BrokenProcessPool, CancelledError):
        raise
    except Exception as error:
        return f"the grader failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


# On this machine


def graded_here(tasks: Iterator[Task], jobs: int) -> Iterator[tuple[Task, Done]]:
    """Yield submissions graded by `jobs` processes on this machine, as `graded_by` does."""
    suspects, going = [], True
    while going:
        going = False
        try:
            with pool(jobs) as executor:
                yield from graded_by(executor, tasks, jobs)
        except WorkerDiedError as died:
            suspects += died.under_way
            going = True
    # One of the submissions running when the worker died must have killed it. Retry each in its own process.
    for task in suspects:
        try:
            with pool(1) as executor:
                yield from graded_by(executor, iter([task]), 1)
        except WorkerDiedError:
            yield task, "the grader's process ended, twice: look at this notebook by hand"


def pool(jobs: int) -> ProcessPoolExecutor:
    # Spawn, because a fork would share the progress bar's threads and locks.
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=start_worker, initargs=(os.getpid(),))


# On a cluster


def graded_on(address: str, tasks: Iterator[Task]) -> Iterator[tuple[Task, Done]]:
    """Yield submissions graded by the workers of a dask.distributed cluster, as `graded_by` does.

    If a worker is lost, its submission goes to another one; after three lost workers, a submission isn't graded.

    Args:
        address: the scheduler's, such as "tcp://192.0.2.1:8786".

    Raises:
        RuntimeError: there is no such package, cluster or worker; one line.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise RuntimeError("--cluster needs dask.distributed: pip install -e '.[cluster]'") from None
    try:
        client = Client(address, timeout=CONNECT_TIME, set_as_default=False)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"no cluster at {address}: {error}: start one with `dask scheduler`") from None
    with client:
        if not (threads := sum(client.nthreads().values())):
            raise RuntimeError(f"the cluster at {address} has no worker: start some with `dask worker {address}`")
        try:
            # Each worker has one submission waiting while it grades another.
            yield from graded_by(client.get_executor(), tasks, 2 * threads)
        except CancelledError:
            raise RuntimeError(f"the cluster at {address} is gone: start it and use --resume") from None
