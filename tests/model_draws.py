"""Does the model answer pass every check of exercises 10 to 18, whatever inputs are drawn?

    python tests/model_draws.py                     500 draws of each exercise; exit status 1 where one fails
    python tests/model_draws.py --only 11 --draws 50 --start 100

What a check meters or compiles depends on no value that is drawn: those checks are run on the first draw alone.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path

import torch

from helpers.grading.exercise import exercises_in
from helpers.grading.replay import server
from helpers.learning.outcome import PASS

EXERCISES = (
    "10_attention_scores",
    "10b_flash_attention",
    "11_fused_backward",
    "12_layer_norm_int8",
    "13_decide",
    "14_cuda_softmax",
    "15_capstone",
    "16_help_the_compiler",
    "17_flash_decoding",
    "18_short_kernels",
)
OF_NO_VALUE = {"traffic", "large", "large-gradient", "tensor_cores", "code"}


def failures(exercise: str, draws: range) -> list[str]:
    """What the checks say where the model answer does not pass: one text per draw and check."""
    found = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = server.RunExercise(exercises_in(only=exercise)[exercise].cells, 0, Path(folder))
        for run.seed in draws:
            for check in run.checks:
                if run.seed == draws[0] or check not in OF_NO_VALUE:
                    outcome = run.run_check(check, {}, Path(folder))
                    if outcome.state != PASS:
                        found.append(f"draw {run.seed}: {outcome}")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the checks of exercises 10 to 18 on the model answers.")
    parser.add_argument("--only", default="", metavar="NN", help="one exercise, by its number or name")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    failed = 0
    for exercise in EXERCISES:
        if f"{exercise}_".startswith(f"{options.only}_" if options.only else ""):
            found = failures(exercise, range(options.start, options.start + options.draws))
            failed += len(found)
            print(f"{exercise:28} {options.draws} draws from {options.start}, {len(found)} failed", flush=True)
            print(*found, sep="\n", end="\n" * bool(found))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
