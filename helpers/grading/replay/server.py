"""The judging process: it runs an exercise's own checks, and no part of a submission.

It receives questions on its only socket. The first one names the exercise:

    {"cells": [..], "seed": int}  ->  {"shown": {check: [{"function", "storages", "inputs", "few", "values"}, ..]},
                                       "kept": {check: [values, ..]}}
                                  ->  {"unfit": why the exercise cannot be judged, one line}

`cells` are the solution's code cells as `source/build.py` describes them, with the model answers. The reply contains
each check's calls on the inputs that submissions see, with the model answer's results, and the model answer's results
on the inputs that no submission sees. Every later question asks about one check of one submission, judged on the latter
inputs. `replayer` repeats the submission's launches in its own process, whose descriptor comes with the question. If a
check asks for plain values, such as numbers, there is nothing to replay: they are judged as the submission gave them,
for the inputs that it saw:

    {"check": id, "answers": {grade_id: source}, "calls": [records]}
        -> {"state", "message", "look_at", "values", "replay": the reason to end the replay's process, if any}
"""

import ast
import contextlib
import functools
import hashlib
import inspect
import itertools
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from helpers.grading.replay.channel import MAX_BYTES, Channel
from helpers.grading.replay.expected import expected_as_json
from helpers.grading.replay.remote_answer import RemoteAnswer, Replay
from helpers.grading.replay.tensors import PLAIN, inputs_as_json, values_as_json
from helpers.learning.checks import cases
from helpers.learning.checks.launches import few_programs, runs_few
from helpers.learning.outcome import ERROR, FAIL, NOT_ATTEMPTED, PASS, Outcome
from helpers.learning.submission_policy.kernel_language import is_kernel, parsed

TIME = 30.0  # seconds that one call of a check may take to be replayed
MAX_DRAWS = 4  # before a model answer is taken for wrong
MAX_SAID = 4000  # characters of a message


class UnluckyDrawError(ValueError):
    """The model answer's rounding exceeds a check's tolerance on these inputs."""


class ChangingCallsError(ValueError):
    """A check calls the answer in a different way on other inputs, so a record of launches can't follow it."""


class RunExercise:
    """An exercise's cells, run on inputs drawn from a seed.

    Args:
        cells: the solution's code cells.
        seed: decides every random input.
        folder: where to write the cells' text, for Triton to read.
        sizes: decides the sizes that are drawn; None means the seed.
    """

    def __init__(self, cells: list[dict], seed: int, folder: Path, sizes: int | None = None):
        self.cells = cells
        self.seed = seed
        self._sizes = sizes
        self.checks = {cell["id"]: cell["source"] for cell in cells if "points" in cell}
        self._begin_draw()
        self.namespace = {"__name__": "exercise"}
        for cell in cells:
            if "points" not in cell:
                self._run(cell["source"], folder / f"{cell['id']}.py")
        self.functions = parameters_of({cell["id"]: cell["source"] for cell in cells if cell["answer"]})

    def _run(self, source: str, path: Path):
        """Run a cell and return the value of its last expression, as a notebook would show it."""
        path.write_text(source)
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(path), "exec"), self.namespace)
        return last and eval(compile(ast.Expression(last.value), str(path), "eval"), self.namespace)

    def _begin_draw(self) -> None:
        cases.draw = self.seed
        cases.sizes = self.seed if self._sizes is None else self._sizes
        torch.manual_seed(self.seed)

    def run_check(self, check: str, answers: dict[str, Callable], folder: Path) -> Outcome:
        """Run a check's cell with the model answers replaced by other functions, and return the outcome."""
        # A check's cell may draw its own inputs, the same each time.
        self._begin_draw()
        self.namespace |= answers
        return self._run(self.checks[check], folder / f"{check}.py")

    def calls(self, folder: Path) -> dict[str, list[dict]]:
        """Find each check's calls by running it on the model answers."""
        model = {name: self.namespace[name] for name in self.functions}
        found = {}
        for check in self.checks:
            calls = []
            outcome = self.run_check(check, {name: _noted(answer, calls) for name, answer in model.items()}, folder)
            if outcome.state != PASS:
                raise UnluckyDrawError(f"the model answer does not pass {check!r}: {outcome}")
            found[check] = []
            for name, inputs, result, few, case in calls:
                with few_programs() if few else contextlib.nullcontext():
                    values = expected_as_json(model[name], inputs, result, case)
                call = {"function": name, **inputs_as_json(inputs), "few": few, "values": values}
                found[check].append(call)
        self.namespace |= model
        return found


def _noted(answer: Callable, calls: list[tuple]) -> Callable:
    """Wrap `answer` in a function that also records in `calls` its name, its inputs, its result, whether only some
    programs ran, and the case.

    Calls made inside another answer are not recorded.
    """

    def noted(*inputs):
        before = len(calls)
        result = answer(*inputs)
        calls[before:] = [(answer.__name__, inputs, result, runs_few(), cases.running_case())]
        return result

    noted.__signature__ = inspect.signature(answer)
    noted.once = True  # a call repeated by `measure_in_any_order` counts as one call
    return noted


def judged(
    exercise: RunExercise, request: dict, folder: Path, ask: Callable[[dict, bytes], tuple[dict, bytes]]
) -> dict:
    """Return the verdict on one check of one submission, with the results of its launches.

    Args:
        request: see the module's docstring.
        folder: for the check's own text.
        ask: queries the replay's process.
    """
    parameters = parameters_of(request["answers"])
    replay = Replay(request["answers"], request["calls"], ask)
    answers = {
        name: RemoteAnswer(name, known_by(parameters.get(name, []), own), replay)
        for name, own in exercise.functions.items()
    }
    outcome = exercise.run_check(request["check"], answers, folder)
    if replay.ended:
        look_at = "the grid, loops in your kernel, and how much memory it asks for"
        return verdict(ERROR, f"replaying your launches {replay.ended}", look_at) | {"replay": replay.ended}
    if outcome.state != PASS and replay.stopped:
        state = replay.stopped["state"] if replay.stopped["state"] in (FAIL, NOT_ATTEMPTED) else ERROR
        return verdict(state, replay.stopped["message"] or "the answer did not finish", replay.stopped["look_at"])
    said = verdict(outcome.state, outcome.message, outcome.look_at)
    return said | {"values": list(map(values_as_json, replay.results))}


def verdict(state: str, message: str, look_at: str = "") -> dict:
    said = {"state": state, "message": message[:MAX_SAID], "look_at": look_at[:MAX_SAID]}
    return said | {"values": [], "replay": ""}


def known_by(theirs: list[str], own: list[str]) -> list[str]:
    """Return the names that the meter should use for the arguments: the submission's if the count matches, else the
    model's.

    If the count didn't match, the meter would use none of them and take the kernel's names.
    """
    return theirs if len(theirs) == len(own) else own


def parameters_of(answers: dict[str, str]) -> dict[str, list[str]]:
    """Return the parameter names of each function in the answers that is not a kernel."""
    return {
        statement.name: [argument.arg for argument in (*statement.args.posonlyargs, *statement.args.args)]
        for source in answers.values()
        for statement in parsed(source).body
        if isinstance(statement, ast.FunctionDef) and not is_kernel(statement)
    }


def drawn_exercise(
    cells: list[dict], seed: int, purpose: str, folder: Path
) -> tuple[RunExercise, dict[str, list[dict]]]:
    """Draw an exercise's inputs for one purpose, with its checks' calls; retry until a draw is not unlucky.

    Raises:
        UnluckyDrawError: all draws are, so the model answer must be wrong.
    """
    for attempt in range(MAX_DRAWS):
        exercise = RunExercise(cells, drawn(seed, f"{purpose} {attempt}"), folder, drawn(seed, "sizes"))
        try:
            return exercise, exercise.calls(folder)
        except UnluckyDrawError as error:
            unlucky = error
    raise unlucky


def require_alike(check: str, seen: list[dict], kept: list[dict]) -> None:
    """Raise ChangingCallsError, one line, unless a check's calls differ between draws only in the tensors' values.

    Launches are recorded on `seen` and repeated on `kept`, with the same grids, sizes and strides.
    """
    for number, (one, other) in enumerate(itertools.zip_longest(seen, kept), 1):
        a, b = (called(call) for call in (one, other))
        if a != b:
            raise ChangingCallsError(
                f"the check {check!r} calls the answer otherwise at each draw, in call {number} {a} and {b}: "
                "draw values alone; functions, shapes, dtypes, strides and plain arguments stay"
            )


def called(call: dict | None) -> str:
    """Describe the parts of a call that the record of its launches depends on."""
    if call is None:
        return "nothing"
    return f"{call['function']}({', '.join(map(described, call['inputs']))})"


def described(view: dict) -> str:
    if "plain" in view:
        return repr(view["plain"])
    place = f"storage {view['storage']}, strides {view['stride']}, offset {view['offset']}"
    return f"{view['dtype']} {view['shape']} ({place})"


def drawn(seed: int, purpose: str) -> int:
    """Derive a 40-bit seed for one purpose; none can be computed from another."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:5])


def main() -> None:
    torch.set_num_threads(1)
    sys.stdout = sys.stderr
    with tempfile.TemporaryDirectory() as place:
        os.environ["TRITON_CACHE_DIR"] = f"{place}/compiled"
        Channel(socket.socket(fileno=0), most_json=MAX_BYTES).serve(Server(Path(place)).reply)


class Server:
    """Answers the questions of one worker about one exercise.

    Args:
        folder: for the exercise's text.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._exercise: RunExercise | None = None

    def reply(self, question: dict, _payload: bytes, descriptors: list[int]) -> tuple[dict, bytes]:
        if self._exercise is None:
            try:
                return self._begin(question), b""
            except (UnluckyDrawError, ChangingCallsError) as error:
                return {"unfit": " ".join(str(error).split())}, b""
        on = self._shown if question["check"] in self._plain else self._exercise
        with socket.socket(fileno=descriptors[0]) as connection:
            replayer = Channel(connection)
            return judged(on, question, self._folder, functools.partial(replayer.ask, seconds=TIME)), b""

    def _begin(self, first: dict) -> dict:
        cells, seed = first["cells"], first["seed"]
        self._shown, seen_calls = drawn_exercise(cells, seed, "shown to submissions", self._folder)
        self._plain = {check for check, seen in seen_calls.items() if any(call["values"] == PLAIN for call in seen)}
        exercise, kept_calls = drawn_exercise(cells, seed, "for the checks alone", self._folder)
        for check in seen_calls.keys() - self._plain:
            require_alike(check, seen_calls[check], kept_calls[check])
        self._exercise = exercise
        # Plain values are judged on the inputs that submissions see; their count may differ.
        judged_on = kept_calls | {check: seen_calls[check] for check in self._plain}
        kept = {check: [call["values"] for call in calls] for check, calls in judged_on.items()}
        return {"shown": seen_calls, "kept": kept}
