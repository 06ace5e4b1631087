"""The trusted side of a run: what was shown is compared here, what was launched is replayed by `replay.server`.

Three things must agree before a check passes. The values that the submission's own kernel showed must be the model
answer's, compared in this process. The record of its launches must pass the check itself when it is replayed on other
inputs, in a process that runs none of its Python. And what the replay computed must be the model answer's too: a
kernel earns nothing for its traffic or its machine code if it computes something else.
"""

import base64
import json
import os
import select
import tempfile
import time
from pathlib import Path

import numpy as np

from helpers.grading.exercise import Exercise
from helpers.grading.sandbox import forked
from helpers.learning.outcome import ERROR, FAIL, PASS

MIME = "application/vnd.kernel-fusion.calls"
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
START_TIME, ANSWER_TIME = 300.0, 90.0  # seconds


class JudgeError(RuntimeError):
    """The judging process came to no end: no verdict, and no score."""


class Judge:
    """Verdicts on the checks of one exercise, all with inputs drawn from one seed.

    Attributes:
        calls_file: what submissions are called with, for their sandbox to read.
    """

    def __init__(self, exercise: Exercise, seed: int):
        self.exercise = exercise
        self.seed = seed
        self._folder = tempfile.TemporaryDirectory(prefix="fusion-judge-")
        self.calls_file = Path(self._folder.name, "calls.json")
        self._server = None

    def start(self) -> None:
        """Start the judging process, unless it runs; some seconds."""
        if self._server is None:
            self._start()

    def _start(self) -> None:
        self._said = bytearray()
        asking, self._asking = os.pipe()
        self._answers, answers = os.pipe()
        self._server = forked({"judge": True}, [], [], [asking, answers])
        os.close(asking)
        os.close(answers)
        calls = self._ask({"cells": self.exercise.cells, "seed": self.seed}, START_TIME)
        self._kept = calls["kept"]
        self._shown = {check: [call["values"] for call in shown] for check, shown in calls["shown"].items()}
        shown = {
            check: [{key: value for key, value in call.items() if key != "values"} for call in shown]
            for check, shown in calls["shown"].items()
        }
        self.calls_file.write_text(json.dumps(shown))

    def close(self) -> None:
        self._stop()
        self._folder.cleanup()

    def _stop(self) -> None:
        if self._server is None:
            return
        self._server.kill()
        self._server.wait()
        self._server = None
        os.close(self._asking)
        os.close(self._answers)

    def verdict(self, check: str, outputs: list[dict], answers: dict[str, str]) -> tuple[str, str]:
        """A check's state and message from what its cell showed."""
        shown = [output["data"][MIME] for output in outputs if MIME in output.get("data", {})]
        if len(shown) != 1 or not isinstance(shown[0], str):
            return ERROR, "its cell showed something else than the answer's values"
        try:
            calls = json.loads(shown[0])
            right = all_same([call.get("values") for call in calls], self._shown[check])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return ERROR, "its cell showed something else than the answer's values"
        reply = self._reply({"check": check, "answers": answers, "calls": calls})
        state, message, look_at = reply["state"], reply["message"], reply["look_at"]
        if state != PASS:
            return state, message + (f"\nLook at {look_at}." if look_at else "")
        if not right or not all_same(reply["values"], self._kept[check]):
            return FAIL, "it would pass, but what your notebook computed here is wrong: mend the values first"
        return PASS, ""

    def _reply(self, request: dict) -> dict:
        try:
            return self._ask(request, ANSWER_TIME)
        except JudgeError:
            # Whatever ended the process, the next submission has a fresh one.
            self._stop()
            self._start()
            return {"state": ERROR, "message": "replaying your launches ended without a result", "look_at": ""}

    def _ask(self, request: dict, time_limit: float) -> dict:
        deadline = time.monotonic() + time_limit
        try:
            with open(self._asking, "wb", closefd=False) as asking:
                asking.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise JudgeError("the judging process has ended: run the command again with --resume") from None
        while b"\n" not in self._said:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise JudgeError(f"the judging process said nothing for {time_limit:g} s")
            part = os.read(self._answers, 1 << 16)
            if not part:
                raise JudgeError(f"the judging process of {self.exercise.name} ended: does `fusion check` pass on it?")
            self._said += part
        line, _, rest = self._said.partition(b"\n")
        self._said = rest
        return json.loads(line)


def all_same(values: list[dict | None], expected: list[dict]) -> bool:
    """Whether as many tensors as expected are there, and each agrees."""
    pairs = zip(values, expected, strict=False)
    return len(values) == len(expected) and all(value is not None and same(value, wanted) for value, wanted in pairs)


def same(shown: dict | list[dict], expected: dict | list[dict]) -> bool:
    """Whether a result, a tensor or a tuple of them, is the one that `expected_as_json` wrote.

    To 16 units in the last place of the largest value, and to what the model answer gains from inputs an ulp off.
    """
    if isinstance(expected, list):
        return isinstance(shown, list) and all_same(shown, expected)
    if not isinstance(shown, dict):
        return False
    if shown["dtype"] != expected["dtype"] or shown["shape"] != expected["shape"]:
        return False
    got, wanted = elements(shown), elements(expected)
    if got.shape != wanted.shape:
        return False
    if expected["dtype"] not in EPSILON:
        return bool(np.array_equal(got, wanted))
    finite = np.isfinite(wanted)
    largest = np.abs(wanted[finite]).max(initial=1.0)
    close = np.abs(got[finite] - wanted[finite]) <= 16 * EPSILON[expected["dtype"]] * largest + 4 * expected["slack"]
    # An error that is NaN is not close.
    return bool(close.all()) and bool(np.array_equal(got[~finite], wanted[~finite], equal_nan=True))


def elements(written: dict) -> np.ndarray:
    kind = "<f8" if written["dtype"] in EPSILON else "<i8"
    return np.frombuffer(base64.b64decode(written["values"]), dtype=kind)
