"""The process that runs a submission's kernels: it gets inputs, and returns outputs and their cost.

It knows one submission's answers and the inputs of one call at a time, and nothing else: no expected values, seed,
model answer or other student. It answers questions from `server` on its only socket:

    {"answers", "name", "parameters", "call", "backwards", "few", "inputs", "storages"}    launches a recorded call
        again, under the meter, from the last program to the first if "backwards", and only some of them if "few"
        -> {"tensors", "several", "changed", "traffic"}
    the same with "small", the record of a smaller call, whose inputs come first; the call's own are without memory
        -> {"stray": as `checks.offsets.find_stray` returns it, "results": views of the larger one's results}
    the same with "devices"    and compiles the call's launches for each of these
        -> the same with "compiled"
    {"cuda": {"source", "name", "device"}, "threads"}    compiles CUDA C++
        -> {"resources", "file"}
    the same with "grid", "block", "inputs", "storages"    launches it, under the meter
        -> {"tensors", "several", "changed", "traffic"}

or, to any of them, {"raised"}. "tensors" are the results followed by the inputs that were changed, whose positions are
in "changed". All tensors travel as bytes with the message.
"""

import contextlib
import functools
import socket
import sys

import torch

from helpers.grading.replay.channel import MAX_BYTES, Channel
from helpers.grading.replay.replayed_call import ReplayedCall
from helpers.grading.replay.submitted_kernels import kernels_of, show_lines
from helpers.grading.replay.tensors import inputs_packed, inputs_unpacked, tensors_packed
from helpers.grading.replay.wire import raised_as_json, resources_as_json, traffic_as_json
from helpers.instruments.cuda.kernel import cuda_kernel
from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import Traffic, measure
from helpers.learning.checks.compiled_code import launches
from helpers.learning.checks.gradients import last_program_first
from helpers.learning.checks.launches import Launches, few_programs, measure_in_any_order
from helpers.learning.checks.offsets import find_stray, launches_without_memory
from helpers.learning.checks.values import as_tuple, bits, outputs_start_as_nan


class Replayer:
    """Answers questions about one submission, whose kernels are built once."""

    def __init__(self):
        self._answers, self._kernels = None, {}
        self._launches = Launches()
        self._cuda = functools.lru_cache(maxsize=8)(cuda_kernel)

    def reply(self, question: dict, payload: bytes, _descriptors: list[int]) -> tuple[dict, bytes]:
        try:
            if "cuda" in question:
                return self._on_cuda(question, payload)
            if question["answers"] != self._answers:
                show_lines(question["answers"])
                self._kernels, self._answers = kernels_of(question["answers"]), question["answers"]
                self._launches = Launches()
            with self._launches:
                reply = self._again(question, payload)
            self._launches.require_compiled()
            return reply
        except Exception as error:
            return {"raised": raised_as_json(error)}, b""

    def _again(self, question: dict, payload: bytes) -> tuple[dict, bytes]:
        inputs = given(question, payload)
        if "small" in question:
            return self._strays(question, inputs)
        before = given(question, payload)
        call = ReplayedCall(question["name"], question["parameters"], question["call"], self._kernels)
        order = last_program_first() if question["backwards"] else contextlib.nullcontext()
        order = few_programs() if question["few"] else order
        with outputs_start_as_nan(), order:
            if "devices" not in question:
                if question["backwards"]:
                    return packed(measure(call, *inputs), inputs, before)
                return packed(measure_in_any_order(call, *inputs), inputs, before)
            seen, traffic = launches(call, inputs)
        said, results = packed(traffic, inputs, before)
        compiled = [
            [resources_as_json(compile_for(kernel, *args, device=device, **kwargs)) for kernel, args, kwargs in seen]
            for device in question["devices"]
        ]
        return said | {"compiled": compiled}, results

    def _strays(self, question: dict, inputs: tuple) -> tuple[dict, bytes]:
        half = len(inputs) // 2
        small, large = (
            ReplayedCall(question["name"], question["parameters"], call, self._kernels)
            for call in (question["small"], question["call"])
        )
        usual, _ = launches_without_memory(small, inputs[:half])
        launches, result = launches_without_memory(large, inputs[half:])
        views, _ = inputs_packed(as_tuple(result))
        return {"stray": find_stray(usual, launches, result) or [], "results": views}, b""

    def _on_cuda(self, question: dict, payload: bytes) -> tuple[dict, bytes]:
        asked = question["cuda"]
        kernel = self._cuda(asked["source"], asked["name"], device=asked["device"])
        if "grid" not in question:
            return {"resources": resources_as_json(kernel.resources_for(question["threads"])), "file": kernel.file}, b""
        inputs, before = given(question, payload), given(question, payload)
        launch = kernel[question["grid"], question["block"]].after(question.get("after", 0))
        return packed(measure(launch, *inputs), inputs, before)


def given(question: dict, payload: bytes) -> tuple:
    raw, start = [], 0
    for size in question["storages"]:
        raw.append(payload[start : start + size])
        start += size
    return inputs_unpacked(question["inputs"], raw)


def changed(inputs: tuple, before: tuple) -> list[int]:
    """Return the positions of the inputs that were changed."""
    pairs = enumerate(zip(inputs, before, strict=True))
    return [n for n, (x, was) in pairs if isinstance(x, torch.Tensor) and not torch.equal(bits(x), bits(was))]


def packed(traffic: Traffic, inputs: tuple, before: tuple) -> tuple[dict, bytes]:
    places = changed(inputs, before)
    results = [] if traffic.result is None else [*as_tuple(traffic.result)]
    tensors, payload = tensors_packed([*results, *(inputs[place] for place in places)])
    if len(payload) > MAX_BYTES:
        raise ValueError("the results are too large")
    said = {"tensors": tensors, "several": isinstance(traffic.result, tuple), "changed": places}
    return said | {"traffic": traffic_as_json(traffic)}, payload


def main() -> None:
    torch.set_num_threads(1)
    sys.stdout = sys.stderr
    Channel(socket.socket(fileno=0), most_json=MAX_BYTES).serve(Replayer().reply)
