"""A process that runs an exercise's checks on replayed calls: `python -m helpers.grading.replay.server`.

It reads one JSON object a line on standard input and answers each with one line. The first names the exercise:

    {"cells": [..], "seed": int}  ->  {"shown": {check: [{"function", "storages", "inputs", "values"}, ..]},
                                       "kept": {check: [values, ..]}}

`cells` are the solution's code cells as `source/build.py` describes them, with the model answers. The reply says what
each check calls, on inputs for submissions to see, and what the model answer gives for these; and what it gives for
the inputs that no submission sees. Every later line is one check of one submission, judged on the latter, in a process
of its own, forked from this one. Where a check asks for plain values, such as numbers, there is nothing to replay: they
are judged as the submission gave them, for the inputs that it saw:

    {"check": id, "answers": {grade_id: source}, "calls": [records]}   ->  {"state", "message", "look_at", "values"}
"""

import ast
import contextlib
import hashlib
import inspect
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from helpers.grading.replay.again import Again
from helpers.grading.replay.expected import expected_as_json
from helpers.grading.replay.kernels import kernels_of
from helpers.grading.replay.tensors import PLAIN, inputs_as_json, values_as_json
from helpers.learning.checks import cases
from helpers.learning.outcome import ERROR, FAIL, NOT_ATTEMPTED, PASS, Outcome
from helpers.learning.policy import RefusedError, is_kernel, parsed

TIME = 30.0  # seconds that one check may take
MEMORY = 4 << 30  # bytes of data that its process may have
MOST_DRAWS = 4  # before a model answer is taken for wrong
MOST_SAID = 4000  # characters of a message
MOST_COMPILED = 64 << 20  # bytes of compiled kernels that are kept; the sandbox's disk has four times as many


class UnluckyDrawError(ValueError):
    """On these inputs the model answer rounds worse than a check allows."""


class RunExercise:
    """An exercise's cells, run with inputs drawn from a seed.

    Args:
        cells: the solution's code cells.
        seed: decides every random input.
        folder: where the cells' text is put, for Triton to read.
    """

    def __init__(self, cells: list[dict], seed: int, folder: Path):
        self.cells = cells
        self.seed = seed
        self.checks = {cell["id"]: cell["source"] for cell in cells if "points" in cell}
        cases.draw = seed
        torch.manual_seed(seed)
        self.namespace = {"__name__": "exercise"}
        for cell in cells:
            if "points" not in cell:
                self._run(cell["source"], folder / f"{cell['id']}.py")
        self.functions = parameters_of({cell["id"]: cell["source"] for cell in cells if cell["answer"]})

    def _run(self, source: str, path: Path):
        """Run a cell; the value of its last expression, as a notebook shows it."""
        path.write_text(source)
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(path), "exec"), self.namespace)
        return last and eval(compile(ast.Expression(last.value), str(path), "eval"), self.namespace)

    def run_check(self, check: str, answers: dict[str, Callable], folder: Path) -> Outcome:
        """The outcome of a check's cell with other functions in place of the model answers."""
        cases.draw = self.seed
        # A check's cell may draw inputs of its own: the same each time.
        torch.manual_seed(self.seed)
        self.namespace |= answers
        return self._run(self.checks[check], folder / f"{check}.py")

    def calls(self, folder: Path) -> dict[str, list[dict]]:
        """What each check calls, found by running it on the model answers."""
        model = {name: self.namespace[name] for name in self.functions}
        found = {}
        for check in self.checks:
            calls = []
            outcome = self.run_check(check, {name: _noted(answer, calls) for name, answer in model.items()}, folder)
            if outcome.state != PASS:
                raise UnluckyDrawError(f"the model answer does not pass {check!r}: {outcome}")
            found[check] = [
                {"function": name, **inputs_as_json(inputs), "values": expected_as_json(model[name], inputs, result)}
                for name, inputs, result in calls
            ]
        self.namespace |= model
        return found


def _noted(answer: Callable, calls: list[tuple]) -> Callable:
    """A function that does as `answer` and keeps its name, its inputs and its result in `calls`.

    A call made by another answer is that one's own affair, and is not kept.
    """

    def noted(*inputs):
        before = len(calls)
        result = answer(*inputs)
        calls[before:] = [(answer.__name__, inputs, result)]
        return result

    noted.__signature__ = inspect.signature(answer)
    return noted


def judged(exercise: RunExercise, request: dict, folder: Path) -> dict:
    """The verdict on one check of one submission, with what its launches computed."""
    answers = request["answers"]
    try:
        kernels = kernels_of(answers, folder)
    except RefusedError as error:
        return verdict(ERROR, f"line {error.line}: {error}", "the answer's text")
    parameters = parameters_of(answers)
    calls, results = iter(request["calls"]), []
    replays = {
        name: Again(name, known_by(parameters.get(name, []), own), calls, kernels, results)
        for name, own in exercise.functions.items()
    }
    outcome = exercise.run_check(request["check"], replays, folder)
    stopped = next((each.stopped for each in replays.values() if each.stopped), None)
    if outcome.state != PASS and stopped:
        state = stopped["state"] if stopped["state"] in (FAIL, NOT_ATTEMPTED) else ERROR
        return verdict(state, stopped["message"] or "the answer came to no end", stopped["look_at"])
    return verdict(outcome.state, outcome.message, outcome.look_at) | {"values": list(map(values_as_json, results))}


def verdict(state: str, message: str, look_at: str = "") -> dict:
    return {"state": state, "message": message[:MOST_SAID], "look_at": look_at[:MOST_SAID], "values": []}


def known_by(theirs: list[str], own: list[str]) -> list[str]:
    """The names that the meter gives the arguments: the submission's where there are as many, or else the model's.

    With too few or too many it would give none, and go by what the kernel calls them.
    """
    return theirs if len(theirs) == len(own) else own


def parameters_of(answers: dict[str, str]) -> dict[str, list[str]]:
    """The names of the parameters of each function of the answers that is no kernel."""
    return {
        statement.name: [argument.arg for argument in (*statement.args.posonlyargs, *statement.args.args)]
        for source in answers.values()
        for statement in parsed(source).body
        if isinstance(statement, ast.FunctionDef) and not is_kernel(statement)
    }


def in_a_fork(work: Callable[[], dict]) -> dict:
    """The result of `work` in a process of its own, or a verdict of error where that process came to no end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(reading)
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            with open(writing, "w") as told:
                json.dump(work(), told)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    said = bytearray()
    try:
        while select.select([reading], [], [], TIME)[0]:
            part = os.read(reading, 1 << 16)
            if not part:
                break
            said += part
        else:
            return verdict(ERROR, f"replaying took over {TIME:g} s", "the grid, and loops in your kernel")
    finally:
        os.close(reading)
        # With it the assembler that it may have started, which would go on for minutes beside other submissions.
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                end(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        return json.loads(said)
    except ValueError:
        return verdict(ERROR, "replaying ended without a result", "how much memory your kernel asks for")


def drawn_exercise(
    cells: list[dict], seed: int, purpose: str, folder: Path
) -> tuple[RunExercise, dict[str, list[dict]]]:
    """An exercise on inputs drawn for one purpose, and what its checks call: the first draw that is not unlucky.

    Raises:
        UnluckyDrawError: none is, so it is the model answer that is wrong.
    """
    for attempt in range(MOST_DRAWS):
        exercise = RunExercise(cells, drawn(seed, f"{purpose} {attempt}"), folder)
        try:
            return exercise, exercise.calls(folder)
        except UnluckyDrawError as error:
            unlucky = error
    raise unlucky


def make_room(compiled: Path) -> None:
    """Empty the folder of compiled kernels where it has grown large: no submission may fill the disk of the next."""
    if sum(file.stat().st_size for file in compiled.rglob("*")) > MOST_COMPILED:
        shutil.rmtree(compiled)


def drawn(seed: int, purpose: str) -> int:
    """A seed of 40 bits for one purpose; from one the other cannot be found."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:5])


def main() -> None:
    torch.set_num_threads(1)
    # What a cell prints is not part of the conversation.
    talk, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["TRITON_CACHE_DIR"] = str(folder / "compiled")
        first = json.loads(sys.stdin.readline())
        shown, seen_calls = drawn_exercise(first["cells"], first["seed"], "shown to submissions", folder)
        plain = {check for check, seen in seen_calls.items() if any(call["values"] == PLAIN for call in seen)}
        exercise, kept_calls = drawn_exercise(first["cells"], first["seed"], "for the checks alone", folder)
        kept = {check: [call["values"] for call in kept] for check, kept in kept_calls.items()}
        print(json.dumps({"shown": seen_calls, "kept": kept}), file=talk, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            with tempfile.TemporaryDirectory() as own:
                on = shown if request["check"] in plain else exercise
                reply = in_a_fork(lambda on=on, request=request, own=own: judged(on, request, Path(own)))
            make_room(folder / "compiled")
            print(json.dumps(reply), file=talk, flush=True)


if __name__ == "__main__":
    main()
