"""Does some check refuse every answer of `wrong_answers`, whatever inputs are drawn?

    python tests/wrong_draws.py                     20 draws of every wrong answer; exit status 1 if one passes
    python tests/wrong_draws.py --only 06,10 --draws 5 --start 100
    python tests/wrong_draws.py --drawn --processes 16 --out wrong.jsonl

`--drawn` takes only the answers of `wrong_answers_drawn`, which are right on everything except the largest or rarest
inputs, so a draw may miss them. With `--out`, each answer's piece is a line of the file as soon as it is done, and a
run that goes on leaves out what stands there.

Without the course's environment, these packages suffice: torch, triton, numpy, IPython, jupytext, nbclient,
markdown-it-py, pytest, pytest-xdist, pytest-timeout, hypothesis, ml_dtypes, PyYAML, Pygments, lazy_loader and tqdm.
"""

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import mistakes
import model_draws
import wrong_answers_drawn
from wrong_answers import WRONG

from helpers.grading.replay import server
from helpers.learning.checks import values
from helpers.learning.outcome import PASS

PIECE = 10


def complaints(exercise: str, name: str, seeds: range, folder: Path) -> list[str]:
    """The draws on which a wrong answer passes every check, or is refused with another message than it must be."""
    told = wrong_answers_drawn.TOLD.get((exercise, name), "")
    found, last = [], ""
    # How further cases go once one has failed decides nothing here.
    with contextlib.redirect_stdout(io.StringIO()), mock.patch.object(values, "PATIENCE", 0.0):
        run = server.RunExercise(mistakes.changed(exercise, WRONG[exercise][name]), 0, folder)
        for run.seed in seeds:
            for check in sorted(run.checks, key=lambda check: check != last):
                outcome = run.run_check(check, {}, folder)
                if outcome.state != PASS:
                    last = check
                    break
            if outcome.state == PASS:
                found.append(f"seed {run.seed}: passes every check")
            elif not re.search(told, str(outcome)):
                found.append(f"seed {run.seed}: {outcome}")
    return found


def judged(exercise: str, name: str, seeds: range) -> dict:
    """One piece's line."""
    with tempfile.TemporaryDirectory() as folder:
        return model_draws.line_of(exercise, name, seeds, lambda: complaints(exercise, name, seeds, Path(folder)))


def pieces(only: str, seeds: range, drawn: bool) -> Iterator[tuple[str, str, range]]:
    """(exercise, answer, seeds): the first piece of every answer, then the second."""
    numbers = only.split(",") if only else []
    of = wrong_answers_drawn.WRONG if drawn else WRONG
    answers = [
        (exercise, name)
        for exercise, found in of.items()
        if not numbers or any(f"{exercise}_".startswith(f"{number}_") for number in numbers)
        for name in found
    ]
    for start in range(seeds.start, seeds.stop, PIECE):
        for exercise, name in answers:
            # Another file may have an answer of that name.
            name = f"{name}, again" if drawn and of[exercise][name] != WRONG[exercise][name] else name
            yield exercise, name, range(start, min(start + PIECE, seeds.stop))


def main(arguments: list[str] | None = None) -> int:
    about = "Run the checks of every exercise on its wrong answers."
    parser = model_draws.parser_of(about, "exercises by their numbers: 06,10", 20)
    parser.add_argument("--drawn", action="store_true", help="the answers of wrong_answers_drawn alone")
    options = parser.parse_args(arguments)
    return model_draws.judge_all(options, lambda seeds: pieces(options.only, seeds, options.drawn), judged)


if __name__ == "__main__":
    sys.exit(main())
