"""`fusion gradescope`: build the zip of a Gradescope autograder; also the code that runs there.

Gradescope unpacks the zip at /autograder/source and runs its setup.sh once, as root. For each submission it starts a
container where run_autograder reads /autograder/submission and writes /autograder/results/results.json:
https://gradescope-autograders.readthedocs.io/en/latest/specs/. If that file is missing, nothing is scored, and the
instructor sees what was printed.

A container may not allow bubblewrap to create namespaces; Docker's default settings don't. Submissions are then
refused, unless the zip was made with `public_checks`. Such a zip contains no solution and no hidden checks. It runs the
public checks as the user nobody, without a sandbox, and warns in each result that its points can be forged.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict
from decimal import Decimal
from functools import partial
from pathlib import Path

from helpers.grading.archives import Left, Trail, contents_of, read
from helpers.grading.atomic_files import write_whole
from helpers.grading.class_folder import Found, exercise_of, natural
from helpers.grading.class_report import gradescope
from helpers.grading.confinement import NOBODY
from helpers.grading.exercise import Exercise, exercises_in
from helpers.grading.grade import Check, Result, all_alike, clean, for_student, opened, result_from_json
from helpers.grading.release import MADE_HERE
from helpers.grading.sandbox import require_sandbox
from helpers.grading.variants import drawn
from helpers.grading.workers import Task, close_judge, work
from helpers.learning.check_command import HIDDEN, results_of
from helpers.learning.outcome import NOT_ATTEMPTED
from helpers.learning.submission import Submission

COURSE = Path(__file__).resolve().parents[2]
TAKEN = ("helpers", "kernels", "pyproject.toml", "requirements.lock", "README.md", "LICENSE", "setup.sh")
CHECKS_TIME = 1200  # seconds for a notebook's public checks
FORGEABLE = (
    "These are only the public checks, run without a sandbox: a preview, whose points a submission could forge. "
    "The grade comes from your instructor's own run, hidden checks included."
)

SETUP = """\
#!/usr/bin/env bash
# Run once, as root, when Gradescope builds the autograder; made by `fusion gradescope`.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y bubblewrap
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    apt-get install -y python3-venv
else
    apt-get install -y python3.11 python3.11-venv  # Ubuntu 22.04
fi
cd /autograder/source/course
./setup.sh
.venv/bin/python -c 'from helpers.instruments.diagnosis import bubblewrap; print(bubblewrap())'
"""
RUN = """\
#!/usr/bin/env bash
# Grades /autograder/submission; made by `fusion gradescope`.
cd /autograder/source/course && exec .venv/bin/python -m helpers.grading.gradescope /autograder{option}
"""


def autograder(out: Path, only: str = "", variant: str = "", public_checks: bool = False) -> str:
    """Write the autograder's zip.

    Args:
        out: the zip, a new file.
        only: the number of the assignment's exercise; by default all.
        variant: the word that the class's exercises were released with.
        public_checks: for a container that can't sandbox; see the module's docstring.

    Returns:
        A summary to print.

    Raises:
        ValueError: `out` already exists; one line.
        FileNotFoundError: no such exercise; one line.
    """
    if out.exists():
        raise ValueError(f"{out} already exists: choose a new file, such as autograder.zip")
    names = list(exercises_in(only=only, drawn=partial(drawn, variant)))
    folder = "exercises" if public_checks else "solutions"
    with tempfile.TemporaryDirectory(prefix="fusion-gradescope-") as made:
        course = Path(made, "course")
        (course / folder).mkdir(parents=True)
        for name in TAKEN:
            if (COURSE / name).is_dir():
                shutil.copytree(COURSE / name, course / name, ignore=shutil.ignore_patterns(*MADE_HERE))
            else:
                shutil.copy(COURSE / name, course / name)
        for name in names:
            notebook = json.loads((COURSE / folder / f"{name}.ipynb").read_text(encoding="utf-8"))
            if of_class := drawn(variant, name):
                notebook = of_class.of(notebook)
            (course / folder / f"{name}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
        option = " --public-checks" * public_checks
        for name, text in (("setup.sh", SETUP), ("run_autograder", RUN.format(option=option))):
            Path(made, name).write_text(text)
            Path(made, name).chmod(0o755)
        with zipfile.ZipFile(out, "x", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(made).rglob("*")):
                archive.write(path, path.relative_to(made))
    how = (
        "only public checks, without a sandbox: points can be forged"
        if public_checks
        else "hidden checks too, in a sandbox: if the container doesn't allow one, it refuses to score"
    )
    return f"{out}: an autograder for {', '.join(names)}; {how}"


# On Gradescope


def handed_in(root: Path, exercises: dict[str, Exercise]) -> tuple[dict[str, str], dict[str, Trail], Left]:
    """Return exercise -> path of the notebook that answers it, the trail of each path, and the files not graded."""
    trails, left = contents_of(root)
    chosen: dict[str, str] = {}
    for path in sorted(trails, key=natural):
        name, why = exercise_of(path, lambda path: read(root, trails[path]), exercises)
        if not name:
            left.append((path, why))
            continue
        if name in chosen:
            left.append((chosen[name], f"a later one is graded: {path}"))
        chosen[name] = path
    return chosen, trails, left


def score(folder: Path, public_checks: bool = False) -> None:
    """Grade the submission in `folder`, laid out like /autograder, and write its results.json.

    Raises:
        RuntimeError: there is no sandbox, or the grader failed; one line. Nothing is written then.
    """
    if public_checks and os.getuid():
        raise RuntimeError("public checks outside a sandbox run as the user nobody, which only root can start")
    if not public_checks:
        require_sandbox()
    exercises = exercises_in(COURSE / "exercises" if public_checks else COURSE / "solutions")
    root = folder / "submission"
    chosen, trails, left = handed_in(root, exercises)
    seed = secrets.randbits(32)
    results = []
    for name, exercise in exercises.items():
        if name not in chosen:
            checks = all_alike(exercise, NOT_ATTEMPTED, "no notebook of this exercise was handed in")
            results.append(Result(name, tuple(checks), 0, (), 0.0, {}))
            continue
        content = read(root, trails[chosen[name]])
        if public_checks:
            results.append(preview(exercise, content, Path(chosen[name]).name))
        else:
            done, _ = work(Task(Found("", name, chosen[name]), content, exercise, seed))
            results.append(for_student(result_from_json(done)))
    close_judge()
    written = json.loads(gradescope(results, Decimal(str(sum(result.earned for result in results)))))
    told = [FORGEABLE] * public_checks + [f"not graded: {clean(path)}: {clean(why)}" for path, why in left]
    told += [f"{r.exercise}: {r.left_out} code cells outside the answers were not run" for r in results if r.left_out]
    written |= {"output": "\n".join(told), "output_format": "text", "stdout_visibility": "hidden"}
    write_whole(folder / "results" / "results.json", json.dumps(written, indent=1) + "\n")
    print(f"graded {', '.join(chosen) or 'nothing'}; seed {seed}")


def preview(exercise: Exercise, content: bytes, name: str) -> Result:
    """Run a notebook's public checks as the user nobody. The output could be forged, so only the points are bounded."""
    public = [cell for cell in exercise.given if "points" in cell and cell["pass"] is not None]

    def result(said: dict[str, tuple[str, str]], answers: dict[str, str]) -> Result:
        checks = []
        for cell in public:
            state, message = said.get(cell["id"], ("error", "it did not finish"))
            earned = cell["points"] if state == "pass" else 0
            checks.append(Check(cell["id"], state, cell["points"], earned, False, clean(message)))
        return Result(exercise.name, tuple(checks), 0, (), 0.0, answers)

    try:
        _, answers = opened(content, name, exercise)
    except ValueError as error:
        return result({cell["id"]: ("invalid", str(error)) for cell in public}, {})
    with tempfile.TemporaryDirectory(prefix="fusion-nobody-") as home:
        os.chown(home, NOBODY, NOBODY)
        process = subprocess.Popen(
            [sys.executable, "-m", "helpers.grading.gradescope", "--checks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=home,
            env={"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "PYTHONPATH": str(COURSE), "LANG": "C.UTF-8"},
            user=NOBODY,
            group=NOBODY,
            extra_groups=(),
            start_new_session=True,
        )
        try:
            asked = json.dumps({"exercise": exercise.name, "original": exercise.given, "answers": answers})
            written, _ = process.communicate(asked.encode(), timeout=CHECKS_TIME)
        except subprocess.TimeoutExpired:
            written = b""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    try:
        said = {each["check"]: (str(each["state"]), str(each["message"])) for each in json.loads(written)}
    except (ValueError, TypeError, KeyError, RecursionError):
        said = {}
    return result(said, answers)


def checks_here() -> None:
    """Run the public checks of the notebook on standard input, as the user nobody, and write the results."""
    asked = json.loads(sys.stdin.read())
    results = results_of(Submission(asked["exercise"], asked["original"], asked["answers"], 0))
    print(json.dumps([asdict(each) for each in results if each.state != HIDDEN]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="run_autograder")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("/autograder"))
    parser.add_argument("--public-checks", action="store_true")
    parser.add_argument("--checks", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        checks_here() if options.checks else score(options.folder, options.public_checks)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"not graded: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
