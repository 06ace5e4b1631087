"""Time the grading of a class, next to `pytest --nbval` on each of its notebooks in turn.

    python tests/grading_speed.py --nbval 100 --grade 100 200 400
    python tests/grading_speed.py --grade 40 --beside ../older     another checkout, taking turns with this one

Every submission is right and has its own text, so nothing compiled for one is reused for another. `pytest --nbval` does
less: it runs no hidden checks, compares no outputs, and has no sandbox.

A grader that replays launches in another process costs no more than one that replayed them next to the answers: on two
idle cores, a class of 40 took 1.84 s per submission and 1.59 GiB; with commit e5c2dfc, 2.23 s and 1.49 GiB.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import attacks
import nbformat
import psutil

JOBS = 2


@dataclass(frozen=True)
class Measured:
    """What a class took: submissions, seconds in all, and the most memory at once, in bytes."""

    submissions: int
    seconds: float
    memory: int

    def __str__(self) -> str:
        each = self.seconds / self.submissions
        return f"{self.submissions:>11}  {self.seconds:>7.1f}  {each:>14.2f}  {self.memory / 2**30:>10.2f}"


HEADER = "submissions  seconds  s / submission  memory GiB"


def put_class(folder: Path, size: int) -> list[Path]:
    paths = []
    for number in range(size):
        content = attacks.notebook(attacks.KERNEL + f"    # student {number} of {size}\n")
        for cell in content["cells"]:
            if cell["cell_type"] == "code":
                cell |= {"outputs": [], "execution_count": None}  # what it shows is not compared
        path = folder / f"student{number:03}" / f"{attacks.NAME}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(nbformat.from_dict(content), path)
        paths.append(path)
    return paths


def held_by(process: psutil.Process) -> int:
    """Bytes of memory that a process and all below it hold, what they share counted once."""
    held = 0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(OSError, psutil.Error):
            lines = Path(f"/proc/{each.pid}/smaps_rollup").read_text().splitlines()
            held += next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return held


def measured(command: list[str], size: int) -> Measured:
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0
    ended = threading.Event()

    def watch():
        nonlocal most
        while not ended.wait(1.0):
            most = max(most, held_by(psutil.Process(process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        status = process.wait()
    finally:
        ended.set()
        watcher.join()
    if status:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {status}")
    return Measured(size, time.monotonic() - started, most)


def graded(size: int) -> Measured:
    """`fusion grade` on a class, all of it: its start and its report too."""
    with tempfile.TemporaryDirectory() as folder:
        put_class(Path(folder, "class"), size)
        out = Path(folder, "report")
        grade = ["grade", f"{folder}/class", "--out", str(out), "--jobs", str(JOBS)]
        took = measured(
            [sys.executable, "-c", f"import sys; from helpers.cli import main; sys.exit(main({grade}))"], size
        )
        earned = [line.split(",")[2] for line in (out / "grades.csv").read_text().splitlines()[1:]]
        if earned != ["15"] * size:
            raise RuntimeError(f"not all of the class earned 15 points: {earned}")
        return took


def graded_in(tree: Path, size: int) -> str:
    """What `graded` measures of the grader in a checkout, on a class of its own exercise."""
    code = f"import grading_speed; print(grading_speed.graded({size}))"
    environment = os.environ | {"PYTHONPATH": f"{tree}:{tree / 'tests'}"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, cwd=tree, check=True, capture_output=True, text=True
    ).stdout.rstrip()


def run_by_nbval(size: int) -> Measured:
    """`pytest --nbval` on each notebook of a class in turn."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TRITON_CACHE_DIR": f"{folder}/triton"}
        started = time.monotonic()
        for path in put_class(Path(folder, "class"), size):
            command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env", str(path)]
            subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return Measured(size, time.monotonic() - started, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nbval", type=int, default=100, help="notebooks for `pytest --nbval` (default: 100)")
    parser.add_argument("--grade", type=int, nargs="+", default=[100], help="classes for `fusion grade` (default: 100)")
    parser.add_argument("--beside", type=Path, help="a checkout whose grader is timed in turns with this one")
    arguments = parser.parse_args()
    print(HEADER, flush=True)
    if arguments.beside:
        for tree in (Path(__file__).parents[1], arguments.beside) * 2:
            print(f"{graded_in(tree.resolve(), arguments.grade[0])}  {tree}", flush=True)
        return
    rows = []
    for size in arguments.grade:
        rows.append(graded(size))
        print(f"{rows[-1]}  fusion grade --jobs {JOBS}", flush=True)
    alone = run_by_nbval(arguments.nbval)
    print(f"{alone}  pytest --nbval, one after the other")
    ratio = (alone.seconds / alone.submissions) / (rows[0].seconds / rows[0].submissions)
    print(f"fusion grade is {ratio:.1f} times as fast")


if __name__ == "__main__":
    main()
