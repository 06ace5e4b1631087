"""Grade a class of 100 with a grader that is killed at ten moments: `python tests/grading_faults.py` does it in full.

tests/grading/test_grade_faults.py does the same in one process without workers, on submissions that are refused unrun.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import attacks

from helpers.cli import main

SIZE, KILLS = 100, 10
NOTEBOOK = f"{attacks.NAME}.ipynb"


def put_class(folder: Path, launchers: list[str]) -> Path:
    """A class whose students answer with these launchers in turn."""
    for number in range(SIZE):
        path = folder / "submissions" / f"student{number:03}" / NOTEBOOK
        path.parent.mkdir(parents=True)
        launcher = f"# student {number}\n{launchers[number % len(launchers)]}"
        path.write_text(json.dumps(attacks.notebook(launcher=launcher)))
    return folder / "submissions"


def report_without_times(out: Path) -> dict[str, str]:
    """Path -> text of every file of a report, those in archives too, but for what says when and how long."""
    texts = {}
    for path in sorted(out.rglob("*")):
        for name, content in files_in(path).items():
            text = re.sub(r'"seconds": [\d.]+|time="[\d.]+"|timestamp="[^"]+"', "", content.decode())
            texts[str(name.relative_to(out))] = re.sub(r"<h2>Slowest.*", "", text, flags=re.DOTALL)
    return texts


def files_in(path: Path) -> dict[Path, bytes]:
    if path.suffix != ".zip":
        return {path: path.read_bytes()} if path.is_file() else {}
    with zipfile.ZipFile(path) as archive:
        return {path / name: archive.read(name) for name in archive.namelist()}


def kill_and_resume(start: Callable[[list[str]], int], submissions: Path, out: Path, seed: int) -> list[int]:
    """Grade a class, kill the grader ten times on the way, and let it come to its end.

    Args:
        start: starts the grader in a process of its own, with these arguments; gives its id.
        seed: decides when it is killed.

    Returns:
        How many results were there at each kill.
    """
    chance = random.Random(seed)
    arguments = ["grade", str(submissions), "--out", str(out), "--seed", "5", "--jobs", "2"]
    moments = sorted(chance.sample(range(SIZE - 20), KILLS))  # the class must not be done before the kill
    graded = []
    for moment in moments:
        process = start([*arguments, "--resume"])
        while len(list(out.glob("results/*/*.json"))) < moment and not ended(process):
            time.sleep(0.002)
        time.sleep(chance.random() * 0.005)
        if not ended(process):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        graded.append(len(list(out.glob("results/*/*.json"))))
    process = start([*arguments, "--resume"])
    _, status = os.waitpid(process, 0)
    if status:
        raise RuntimeError(f"the grader ended with {os.waitstatus_to_exitcode(status)}")
    return graded


def ended(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def command(arguments: list[str]) -> int:
    code = f"import sys; from helpers.cli import main; sys.exit(main({arguments}))"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid


def in_full() -> None:
    wrong = attacks.LAUNCHER.replace("y.numel(), BLOCK", "y.numel() // 2, BLOCK")
    launchers = [attacks.LAUNCHER, attacks.STUB, wrong, "import os"]
    with tempfile.TemporaryDirectory() as folder:
        submissions = put_class(Path(folder), launchers)
        graded = kill_and_resume(command, submissions, Path(folder, "killed"), seed=7)
        print(f"killed when {graded} of {SIZE} were graded")
        if main(["grade", str(submissions), "--out", f"{folder}/whole", "--seed", "5", "--jobs", "2"]):
            raise RuntimeError("the grader that was not killed failed")
        killed, whole = (report_without_times(Path(folder, name)) for name in ("killed", "whole"))
        if differing := [path for path in {*killed, *whole} if killed.get(path) != whole.get(path)]:
            raise RuntimeError(f"these differ from the report of a run that was not killed: {sorted(differing)}")
        print(f"the {len(whole)} files of the report are those of a run that was not killed")


if __name__ == "__main__":
    in_full()
