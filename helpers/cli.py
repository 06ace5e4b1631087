"""The `fusion` command. An error is one line that explains the problem and the fix, and the exit status is then 2."""

import argparse
import os
import sys
from importlib.metadata import version
from pathlib import Path

from helpers.learning.address_grammars import skip_address_grammars

COURSE = Path(__file__).resolve().parents[1]
# Commands for authors and instructors -> the folder they need, which only the course's repository has: no package or
# class copy includes it.
REPOSITORY = {
    "bench": ("benchmarks/run.py",),
    "grade": ("helpers/grading", "solutions"),
    "gradescope": ("helpers/grading", "solutions"),
    "mark": ("helpers/grading", "solutions"),
    "new-exercise": ("helpers/grading", "source/exercises"),
    "release": ("helpers/grading", "solutions"),
}


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"fusion: {message}; see {self.prog} --help\n")


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (by default this process's own) and return its exit status."""
    parser = OneLineParser(prog="fusion", description="An interactive course in GPU kernel fusion.")
    parser.add_argument("--version", action="version", version=version("kernel-fusion-course"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    lab = commands.add_parser("lab", help="open the course in JupyterLab")
    lab.add_argument("--port", type=int, default=8888, help="the first port to try (default: 8888)")
    lab.add_argument("--no-browser", action="store_true", help="print the address, open no browser")

    check = commands.add_parser("check", help="grade an exercise notebook with its public checks")
    check.add_argument("notebook", help="for example exercises/03_fused_add_gelu.ipynb")

    progress = commands.add_parser("progress", help="show all exercises with their latest check results")
    progress.add_argument("folder", nargs="?", default="exercises", help="folder of the notebooks (default: exercises)")

    grade = commands.add_parser("grade", help="grade a class, each notebook in a sandbox")
    grade.add_argument("submissions", help="a folder or a zip of notebooks")
    grade.add_argument("--out", required=True, metavar="FOLDER", help="where the report goes")
    grade.add_argument("--jobs", type=int, metavar="N", help="notebooks graded at once (default: one per processor)")
    grade.add_argument("--only", default="", metavar="NN", help="only the exercise with this number, such as 05b")
    grade.add_argument("--resume", action="store_true", help="continue a stopped run")
    grade.add_argument("--seed", type=int, metavar="S", help="seed for all inputs; each run saves its own in run.json")
    grade.add_argument("--student", metavar="PATTERN", help="finds the student in a path: (?P<student>...)")
    grade.add_argument("--cluster", metavar="ADDRESS", help="grade on a dask.distributed cluster: tcp://host:8786")

    grade.add_argument("--roster", metavar="CSV", help="the class: names, ids, groups, extra time")
    grade.add_argument("--due", action="append", metavar="TIME", help='"2026-11-01 23:59 +01:00", or 03=... for one')
    grade.add_argument("--late", metavar="RULE", help='"10 %% a day, at most 50 %%, grace 15 min"')
    grade.add_argument(
        "--comment",
        nargs=4,
        action="append",
        default=[],
        metavar=("STUDENT", "NN", "POINTS", "TEXT"),
        help="add points by hand, or 0, with a comment; saved in the report's marks.csv",
    )
    grade.add_argument("--by", default="", metavar="NAME", help="who comments (default: this user)")
    grade.add_argument("--variant", metavar="WORD", help="the word that the class's exercises were released with")

    mark = commands.add_parser("mark", help="give points and comments by hand, one answer after another, in a browser")
    mark.add_argument("report", help="the --out folder of a `fusion grade`")
    mark.add_argument("--by", default="", metavar="NAME", help="who marks (default: this user)")

    release = commands.add_parser("release", help="write the student version: no solutions, no hidden checks")
    release.add_argument("folder", help="a new folder, such as student/")
    release.add_argument(
        "--variant", default="", metavar="WORD", help="pick different formulas for this class: autumn-26"
    )

    scope = commands.add_parser("gradescope", help="write the zip of an autograder for Gradescope")
    scope.add_argument("zip", help="a new file, such as autograder.zip")
    scope.add_argument("--only", default="", metavar="NN", help="only the exercise with this number, such as 05b")
    scope.add_argument(
        "--variant", default="", metavar="WORD", help="the word that the class's exercises were released with"
    )
    scope.add_argument(
        "--public-checks", action="store_true", help="no sandbox, no hidden checks: points can be forged"
    )

    new = commands.add_parser("new-exercise", help="write a new exercise to start from, for instructors")
    new.add_argument("name", help="its number and its name, such as 04b_dropout")

    inspect = commands.add_parser("inspect", help="show a kernel's registers, spills and occupancy on any GPU")
    inspect.add_argument("kernel", metavar="module:kernel", help="kernels.elementwise.add_gelu:add_gelu_kernel, say")
    inspect.add_argument("arguments", nargs="*", metavar="argument", help='"*bf16" for a pointer, 8192, or BLOCK=1024')
    inspect.add_argument("--device", default="H100", help="a GPU that the course knows (default: H100)")

    analyse = commands.add_parser("analyse", help="list which operations of a model to fuse, and the gain")
    analyse.add_argument("model", metavar="model.py:build", help="a function that returns (module, inputs)")
    analyse.add_argument("--device", default="H200", help="a GPU that the course knows (default: H200)")
    analyse.add_argument("--backward", action="store_true", help="include the gradients")
    analyse.add_argument("--no-epilogues", action="store_true", help="leave matmuls and convolutions to the library")
    analyse.add_argument("--page", metavar="FILE", help="also write the report as a page, such as report.html")

    profile = commands.add_parser("profile", help="run your script under Nsight Compute and Nsight Systems")
    profile.add_argument("script", help="a Python file that launches its kernels when it is run")
    profile.add_argument("--launches", type=int, default=50, help="kernels for ncu to profile (default: 50)")

    commands.add_parser("doctor", help="check this machine, and show how to get whatever is missing")
    commands.add_parser("bench", help="measure the course's kernels on this machine", add_help=False)

    arguments, rest = parser.parse_known_args(argv)
    skip_address_grammars()
    # JupyterLab and the benchmarks parse their own options.
    if rest and arguments.command not in ("lab", "bench"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return run(arguments, rest)
    except BrokenPipeError:  # `| head` has closed the pipe; discard whatever Python still writes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        print(f"fusion: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    for needed in REPOSITORY.get(arguments.command, ()):
        if not (COURSE / needed).exists():
            raise FileNotFoundError(
                f"{arguments.command} needs {needed}, which is not in {COURSE}: run it in the course's repository"
            )
    # Each command imports only what it needs, so a missing package breaks only the commands that use it.
    match arguments.command:
        case "lab":
            from helpers.lab import open_lab

            open_lab(port=arguments.port, browser=not arguments.no_browser, options=rest)
            return 0
        case "check":
            from helpers.learning.check_command import check_notebook

            return check_notebook(arguments.notebook)
        case "progress":
            from helpers.learning.progress import report

            print(report(Path(arguments.folder)))
            return 0
        case "grade":
            from helpers.grading.run import grade_class

            return grade_class(
                Path(arguments.submissions),
                Path(arguments.out),
                jobs=arguments.jobs,
                only=arguments.only,
                resume=arguments.resume,
                seed=arguments.seed,
                student=arguments.student,
                cluster=arguments.cluster,
                comments=arguments.comment,
                by=arguments.by,
                roster=arguments.roster,
                due=arguments.due,
                late=arguments.late,
                variant=arguments.variant,
            )
        case "mark":
            from helpers.grading.marking_page import mark_by_hand

            return mark_by_hand(Path(arguments.report), arguments.by)
        case "release":
            from helpers.grading.release import release

            print("\n".join(release(Path(arguments.folder), arguments.variant)))
            return 0
        case "gradescope":
            from helpers.grading.gradescope import autograder

            print(autograder(Path(arguments.zip), arguments.only, arguments.variant, arguments.public_checks))
            return 0
        case "new-exercise":
            from helpers.grading.new_exercise import new_exercise

            print(new_exercise(arguments.name))
            return 0
        case "inspect":
            from helpers.instruments.resources import inspect_kernel

            found = inspect_kernel(arguments.kernel, arguments.arguments, arguments.device)
            print(found)
            for number, configuration in enumerate(found.configurations, 1):
                print(f"{'  configurations' if number == 1 else '':<16} {number}: {configuration}")
            return 0
        case "analyse":
            from helpers.instruments.fusion.analyse_command import analyse_named

            epilogues = not arguments.no_epilogues
            print(analyse_named(arguments.model, arguments.device, arguments.backward, epilogues, arguments.page))
            return 0
        case "profile":
            from helpers.instruments.profile_script import profile_script

            print(profile_script(arguments.script, arguments.launches))
            return 0
        case "doctor":
            from helpers.doctor import report

            print(report())
            return 0
        case "bench":
            from benchmarks.run import main as measure

            return measure(rest)
