"""Do the model answer and the right answers in other styles pass every check, whatever inputs are drawn?

    python tests/model_draws.py                     500 draws of every exercise; exit status 1 if one fails
    python tests/model_draws.py --only 11 --draws 50 --start 100 --model
    python tests/model_draws.py --processes 16 --out draws.jsonl

Draws run in batches of ten, the first batch of every answer before the second of any, so a run that is cut short has
judged every exercise equally. With `--out`, each batch becomes a line of the file when it finishes, and a continued run
skips the batches already there.

Checks that meter or compile don't depend on drawn values, so they run on the first draw only. So do those that ask the
same questions on every draw: 500 draws of a constant are one draw.
"""

import argparse
import contextlib
import functools
import io
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import mistakes
import torch
from answers import all_answers
from right_answers_10_to_16 import RIGHT

from helpers.grading.exercise import exercises_in
from helpers.grading.replay import server
from helpers.learning.outcome import PASS

EXERCISES = tuple(exercises_in())
MODEL = "the model answer"
OF_NO_VALUE = {
    "traffic",
    "gradient-traffic",
    "no-stored-mask",
    "large",
    "large-gradient",
    "tensor_cores",
    "code",
    "compiled",
}
# Checks that ask an answer the same questions, whatever is drawn.
SAME_QUESTIONS = {
    "07_register_budget": {"rows", "tile", "other-rows"},
    "13_decide": {"layer"},
}
PIECE = 10


@functools.lru_cache(maxsize=4)
def right_answers(exercise: str) -> dict[str, list[dict]]:
    """The right answers of an exercise, the model's first: what it does otherwise -> the exercise's cells."""
    model = exercises_in(only=exercise)[exercise].cells
    found = {MODEL: model}
    for answer in all_answers():
        if answer.exercise == exercise and not answer.wrong:
            cells = answer.cells
            found[answer.name] = [
                cell | {"source": cells.get(cell["id"], cell["source"])} if cell["answer"] else cell for cell in model
            ]
    return found | {name: mistakes.changed(exercise, changes) for name, changes in RIGHT.get(exercise, {}).items()}


@functools.cache
def folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()  # as long as the process


def run_of(exercise: str, answer: str, draw: int) -> server.RunExercise:
    """The exercise, its cells run with one of its right answers on one draw: cells before a check may draw its inputs,
    too."""
    place = Path(tempfile.mkdtemp(dir=folder().name))
    with contextlib.redirect_stdout(io.StringIO()):
        return server.RunExercise(right_answers(exercise)[answer], draw, place)


def failures(exercise: str, draws: range, answer: str = MODEL, complete: bool = True) -> list[str]:
    """What the checks say where a right answer does not pass: one text per draw and check.

    Args:
        complete: whether the first draw has every check, those of no value, too.
    """
    found = []
    once = OF_NO_VALUE | SAME_QUESTIONS.get(exercise, set())
    for draw in draws:
        run = run_of(exercise, answer, draw)
        with contextlib.redirect_stdout(io.StringIO()):
            for check in run.checks:
                if check not in once or (complete and draw == draws[0]):
                    outcome = run.run_check(check, {}, Path(folder().name))
                    if outcome.state != PASS:
                        found.append(f"draw {draw}: {check}: {outcome}")
    return found


def pieces(only: str, draws: range, model: bool) -> Iterator[tuple[str, str, range, bool]]:
    """(exercise, answer, draws, whether every check is run): the first piece of every answer, then the second."""
    chosen = [each for each in EXERCISES if f"{each}_".startswith(f"{only}_" if only else "")]
    answers = [(each, name) for each in chosen for name in ([MODEL] if model else right_answers(each))]
    for start in range(draws.start, draws.stop, PIECE):
        for exercise, answer in answers:
            yield exercise, answer, range(start, min(start + PIECE, draws.stop)), start == draws.start


def judged(exercise: str, answer: str, draws: range, complete: bool) -> dict:
    """One piece's line."""
    return line_of(exercise, answer, draws, lambda: failures(exercise, draws, answer, complete))


def line_of(exercise: str, answer: str, draws: range, find: Callable[[], list[str]]) -> dict:
    """A piece's line: the failures that `find` returns, and the CPU seconds it takes."""
    torch.set_num_threads(1)
    began = sum(os.times()[:4])  # of this process and of the compilers it starts
    try:
        failed = find()
    except Exception as error:
        failed = [f"draws {draws.start} to {draws.stop - 1}: {type(error).__name__}: {error}"]
    seconds = round(sum(os.times()[:4]) - began, 2)
    place = {"exercise": exercise, "answer": answer, "start": draws.start, "draws": len(draws)}
    return place | {"failed": failed, "seconds": seconds}


def lines_in(path: Path | None) -> list[dict]:
    """The lines of an earlier run; the file loses one that was cut short."""
    found = []
    text = path.read_text() if path and path.exists() else ""
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    if not text.endswith("\n") and text:
        path.write_text("".join(json.dumps(line) + "\n" for line in found))
    return found


def all_judged(todo: list[tuple], processes: int, judge: Callable[..., dict]) -> Iterator[dict]:
    """Each piece's line, as soon as it is done."""
    if processes == 1:
        yield from (judge(*piece) for piece in todo)
        return
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fresh) as pool:
        for done in as_completed([pool.submit(judge, *piece) for piece in todo]):
            yield done.result()


def table(lines: list[dict]) -> str:
    """Draws and failures of each answer."""
    counted: dict[tuple[str, str], list] = {}
    for line in lines:
        count = counted.setdefault((line["exercise"], line["answer"]), [0, [], 0.0])
        for place, key in enumerate(("draws", "failed", "seconds")):
            count[place] += line[key]
    rows = [
        "\n".join([f"{exercise:28} {answer:36} {draws:5} {len(failed):5} {seconds / draws:8.2f}", *failed])
        for (exercise, answer), (draws, failed, seconds) in sorted(counted.items())
    ]
    return "\n".join([f"{'exercise':28} {'answer':36} draws failed  s/draw", *rows])


def parser_of(description: str, only: str, draws: int) -> argparse.ArgumentParser:
    """The options of a run over pieces, for `judge_all`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", default="", metavar="NN", help=only)
    parser.add_argument("--draws", type=int, default=draws)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines; a run that was cut short goes on")
    return parser


def judge_all(options: argparse.Namespace, pieces: Callable[[range], Iterable[tuple]], judge: Callable) -> int:
    """Judge the pieces of the draws that `options` asks for, except those in its file, and print a table of all.

    Returns:
        the exit status: 1 if any of them failed.
    """
    lines = lines_in(options.out)
    known = {(line["exercise"], line["answer"], line["start"], line["draws"]) for line in lines}
    draws = range(options.start, options.start + options.draws)
    todo = [piece for piece in pieces(draws) if (*piece[:2], piece[2].start, len(piece[2])) not in known]
    for line in all_judged(todo, options.processes, judge):
        lines.append(line)
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps(line) + "\n")
    print(table(lines))
    return 1 if any(line["failed"] for line in lines) else 0


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of(
        "Run the checks of every exercise on its right answers.", "one exercise, by its number or name", 500
    )
    parser.add_argument("--model", action="store_true", help="the model answers alone")
    options = parser.parse_args(arguments)
    return judge_all(options, lambda draws: pieces(options.only, draws, options.model), judged)


if __name__ == "__main__":
    sys.exit(main())
