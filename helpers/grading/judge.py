"""The trusted side of a run: compare returned values here, and have launches replayed and checked elsewhere.

Three things must agree for a check to pass. The values from the submission's own kernel must match the model answer's;
this process compares them. The record of its launches must pass the check itself, run by `replay.server`, when
`replay.replayer` replays it on other inputs, in a process that runs none of the submission's Python and receives only
these inputs. And the replay's results must match the model answer's too: a kernel earns nothing for its traffic or
machine code if it computes something else.
"""

import base64
import contextlib
import json
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from helpers.grading.exercise import Exercise
from helpers.grading.replay.channel import MAX_BYTES, Channel, ChannelError
from helpers.grading.sandbox import forked
from helpers.learning.outcome import ERROR, FAIL, PASS
from helpers.learning.unwritten import unwritten

MIME = "application/vnd.kernel-fusion.calls"
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
START_TIME, ANSWER_TIME = 300.0, 90.0  # seconds


class JudgeError(RuntimeError):
    """The judging process didn't finish: there is no verdict and no score."""


class Judge:
    """Judges the checks of one exercise, all on inputs drawn from one seed.

    Attributes:
        calls_file: the submissions' arguments, readable in their sandbox.
        results_size: check -> how many characters the results of its calls take, which its cell has to output.
    """

    def __init__(self, exercise: Exercise, seed: int):
        self.exercise = exercise
        self.seed = seed
        self._folder = tempfile.TemporaryDirectory(prefix="fusion-judge-")
        self.calls_file = Path(self._folder.name, "calls.json")
        self.results_size: dict[str, int] = {}
        self._server = None

    def start(self) -> None:
        """Start the judging process unless it's already running; this takes a few seconds."""
        if self._server is None:
            self._start()

    def _start(self) -> None:
        self._server, self._talk = process_with_channel("judge")
        calls, _ = self._asked({"cells": self.exercise.cells, "seed": self.seed}, START_TIME)
        if "unfit" in calls:
            raise JudgeError(f"{self.exercise.name} cannot be graded: {calls['unfit']}")
        self._kept = calls["kept"]
        self._shown = {check: [call["values"] for call in shown] for check, shown in calls["shown"].items()}
        self.results_size = {check: len(json.dumps(results)) for check, results in self._shown.items()}
        shown = {
            check: [{key: value for key, value in call.items() if key != "values"} for call in shown]
            for check, shown in calls["shown"].items()
        }
        self.calls_file.write_text(json.dumps(shown))

    def close(self) -> None:
        self._stop()
        self._folder.cleanup()

    def _stop(self) -> None:
        if self._server is not None:
            self._talk.close()
            end(self._server)
            self._server = None

    @contextlib.contextmanager
    def verdicts(self, answers: dict[str, str]) -> Iterator[Callable[[str, list[dict]], tuple[str, str]]]:
        """Return a judge for one submission, a function: (check, its cell's output) -> the check's state and message.

        Its launches are replayed in a separate process, which ends with this context.

        Args:
            answers: grade_id -> source.
        """
        replaying = Replaying()
        try:
            yield lambda check, outputs: self._verdict(check, outputs, answers, replaying)
        finally:
            replaying.end()

    def _verdict(
        self, check: str, outputs: list[dict], answers: dict[str, str], replaying: "Replaying"
    ) -> tuple[str, str]:
        shown = [output["data"][MIME] for output in outputs if MIME in output.get("data", {})]
        if len(shown) != 1 or not isinstance(shown[0], str):
            return ERROR, "its cell showed something other than the answer's values"
        try:
            calls = json.loads(shown[0])
            right = all_same([call.get("values") for call in calls], self._shown[check])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return ERROR, "its cell showed something other than the answer's values"
        reply = self._reply({"check": check, "answers": answers, "calls": calls}, replaying)
        state, message, look_at = reply["state"], reply["message"], reply["look_at"]
        if state != PASS:
            return state, message + (f"\nLook at {look_at}." if look_at else "")
        if not right or not all_same(reply["values"], self._kept[check]):
            return FAIL, "it would pass, but your notebook's values here are wrong: fix them first"
        return PASS, ""

    def _reply(self, request: dict, replaying: "Replaying") -> dict:
        try:
            reply, _ = self._asked(request, ANSWER_TIME, [replaying.descriptor()])
        except JudgeError:
            # Whatever ended the process, the next submission gets a fresh one.
            self._stop()
            self._start()
            reply = {"state": ERROR, "message": "replaying your launches ended without a result", "look_at": ""}
            reply["replay"] = "unknown"
        if reply["replay"]:
            replaying.end()  # the next check gets a fresh one
        return reply

    def _asked(self, question: dict, seconds: float, descriptors: Sequence[int] = ()) -> tuple[dict, bytes]:
        try:
            return self._talk.ask(question, seconds=seconds, descriptors=descriptors)
        except ChannelError as error:
            raise JudgeError(
                f"the judging process of {self.exercise.name} {error}: does `fusion check` pass on it?"
            ) from None


class Replaying:
    """The process that replays one submission's launches, started on first use."""

    def __init__(self):
        self._process: subprocess.Popen | None = None

    def descriptor(self) -> int:
        """The judging process's socket, as a descriptor."""
        if self._process is None:
            self._process, self._connection = forked_with_socket("replay")
        return self._connection.fileno()

    def end(self) -> None:
        if self._process is not None:
            self._connection.close()
            end(self._process)
            self._process = None


def forked_with_socket(kind: str) -> tuple[subprocess.Popen, socket.socket]:
    """Fork a process of this kind in its own sandbox; return it and its socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        return forked({kind: True}, [], [], [theirs.fileno()]), ours


def end(sandbox: subprocess.Popen) -> None:
    """End the sandbox and everything that runs in it."""
    sandbox.kill()
    sandbox.wait()


def process_with_channel(kind: str) -> tuple[subprocess.Popen, Channel]:
    process, connection = forked_with_socket(kind)
    return process, Channel(connection, most_json=MAX_BYTES)


def all_same(values: list[dict | None], expected: list[dict]) -> bool:
    """Return whether the number of tensors is as expected, and each one agrees."""
    pairs = zip(values, expected, strict=False)
    return len(values) == len(expected) and all(value is not None and same(value, wanted) for value, wanted in pairs)


def same(shown: dict | list[dict], expected: dict | list[dict]) -> bool:
    """Return whether a result, a tensor or a tuple of tensors, matches the one from `expected_as_json`.

    The tolerance is 16 units in the last place of the largest value, plus the change in the model answer when its
    inputs move by an ulp, plus what the check allows for the call's conditioning. For int8 it's one code; the check
    that follows limits how many codes may be off by one. Where only some programs ran, only elements that both wrote
    are compared. A result that the check leaves open is expected without values, and plain values are the check's.
    """
    if isinstance(expected, list):
        return isinstance(shown, list) and all_same(shown, expected)
    if not isinstance(shown, dict):
        return False
    if shown["dtype"] != expected["dtype"] or shown["shape"] != expected["shape"]:
        return False
    if "values" not in expected or expected["dtype"] == "plain":
        return True
    got, wanted = elements(shown), elements(expected)
    if got.shape != wanted.shape:
        return False
    if expected.get("few"):
        both = ~(unwritten(got, expected["dtype"]) | unwritten(wanted, expected["dtype"]))
        got, wanted = got[both], wanted[both]
    if expected["dtype"] == "int8":
        return bool((np.abs(got - wanted) <= 1).all())
    if expected["dtype"] not in EPSILON:
        return bool(np.array_equal(got, wanted))
    finite = np.isfinite(wanted)
    largest = np.abs(wanted[finite]).max(initial=1.0)
    ulps = 16 * EPSILON[expected["dtype"]] + expected["conditioned"]
    close = np.abs(got[finite] - wanted[finite]) <= ulps * largest + 4 * expected["slack"]
    # An error that is NaN is not close.
    return bool(close.all()) and bool(np.array_equal(got[~finite], wanted[~finite], equal_nan=True))


def elements(written: dict) -> np.ndarray:
    """Return what `values_as_json` wrote, as float64 or int64."""
    dtype, raw = written["dtype"], base64.b64decode(written["values"])
    if dtype == "bfloat16":  # which NumPy doesn't have: the upper half of a float32
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.frombuffer(raw, dtype).astype(np.float64 if dtype in EPSILON else np.int64)
