"""Call the answer in a submission's sandbox, and output its result and the steps it recorded.

Nothing in this output is trusted. The values are compared outside, and the steps are replayed in another process
(`replayed_call`).
"""

import contextlib
import functools
import json
from pathlib import Path
from unittest import mock

import torch
import triton.language as tl
from IPython import get_ipython
from IPython.display import display
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from helpers.grading.replay.tensors import Storages, have_memory, inputs_from_json, is_plain, values_as_json
from helpers.instruments.traffic import measure
from helpers.learning.checks.launches import few_programs
from helpers.learning.checks.numbers import listed
from helpers.learning.checks.offsets import launches_without_memory
from helpers.learning.checks.values import outputs_start_as_nan
from helpers.learning.outcome import PASS, AnswerError, as_check

MIME = "application/vnd.kernel-fusion.calls"


def emit(check: str, calls: str) -> None:
    """Call the answer as `check` does, and output each call's values and record; stop at the first call that fails.

    Args:
        check: a check's grade_id.
        calls: the file with each check's calls and their inputs.
    """
    answers = get_ipython().user_ns
    shown: list[dict] = []
    for call in json.loads(Path(calls).read_text())[check]:
        entry: dict = {}
        if call["function"] not in answers:
            raise NameError(f"name {call['function']!r} is not defined")
        outcome = record_call(answers[call["function"]], inputs_from_json(call), entry, call["few"], name=check)
        if outcome.state != PASS:
            entry = {"stopped": {"state": outcome.state, "message": outcome.message, "look_at": outcome.look_at}}
        shown.append(entry)
        if outcome.state != PASS:
            break
    display({"text/plain": f"{len(shown)} calls", MIME: json.dumps(shown)}, raw=True)


@functools.partial(as_check, compiled=False)  # the replay compiles
def record_call(answer, inputs: tuple, entry: dict, few: bool = False) -> str:
    """Call the answer, and store its result and steps in `entry`; with `few`, only some programs of each launch run."""
    record = Record(inputs)

    def recorded(*inputs):
        with record:
            return answer(*inputs)

    if have_memory(inputs):
        # Meter the call, so that a kernel without its mask can't overwrite this process's memory.
        with outputs_start_as_nan(), few_programs() if few else contextlib.nullcontext():
            result = measure(recorded, *inputs).result
    else:
        _, result = launches_without_memory(recorded, inputs)
    result = listed(result)
    if is_plain(result):
        entry |= {"values": values_as_json(result), "plain": result}
        return ""
    several = isinstance(result, tuple) and bool(result)
    for tensor in result if several else [result]:
        if not isinstance(tensor, torch.Tensor):
            kind = type(tensor).__name__ + (" in a tuple" if several else "")
            raise AnswerError(
                f"got {kind}, which is neither a tensor nor plain numbers and strings", "what your function returns"
            )
    view_of = record.storages.view_of
    views = [view_of(tensor) for tensor in result] if several else view_of(result)
    entry |= {"values": values_as_json(result), "steps": record.steps, "result": views}
    return ""


class Record(TorchDispatchMode):
    """Records launches, and operators that create or change tensors, in `steps`."""

    def __init__(self, inputs: tuple):
        super().__init__()
        self.storages = Storages()
        self.steps: list[dict] = []
        self._launching = False
        for x in tensors_in(inputs):
            self.storages.add(x)

    def __enter__(self):
        run, record = JITFunction.run, self

        def launch(kernel, *args, grid, warmup, **kwargs):
            return record._launch(run, kernel, args, grid, warmup, kwargs)

        self._patch = mock.patch.object(JITFunction, "run", launch)
        self._patch.start()
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self._patch.stop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._launching:  # the interpreter's own copies
            return func(*args, **kwargs)
        step = {"operator": str(func), "args": self._write(list(args)), "kwargs": self._write(kwargs)}
        result = func(*args, **kwargs)
        made = [tensor for tensor in tensors_in(result) if not self.storages.knows(tensor)]
        # Views and shape queries needn't be recorded: a later view contains the same information.
        if made or func._schema.is_mutable:
            self.steps.append(step | {"made": [self.storages.view_of(tensor) for tensor in made]})
        return result

    def _launch(self, run, kernel, args, grid, warmup, kwargs):
        step = {"kernel": kernel.fn.__name__, "args": self._write(list(args)), "kwargs": self._write(kwargs)}
        step["grid"] = None if callable(grid) else [int(size) for size in grid]

        def asked(settings):
            given = grid(settings)
            step["grid"] = [int(size) for size in given]
            return given

        self.steps.append(step)
        self._launching = True
        try:
            return run(kernel, *args, grid=asked if callable(grid) else grid, warmup=warmup, **kwargs)
        finally:
            self._launching = False

    def _write(self, value):
        """Return an argument as JSON; types that JSON lacks become a dictionary with one entry."""
        match value:
            case None | bool() | int() | float() | str():
                return value
            case torch.Tensor():
                if not self.storages.knows(value):
                    raise AnswerError(
                        "a tensor is used that no recorded step of this function made: it comes from outside, or from "
                        "PyTorch code that is not an operator",
                        "where the tensors come from: the arguments, what you allocate, and your kernels",
                    )
                return {"tensor": self.storages.view_of(value)}
            case torch.dtype() | torch.device() | torch.layout() | torch.memory_format():
                return {"torch": str(value).removeprefix("torch.")}
            case tl.dtype():
                return {"tl": value.name}
            case tl.constexpr():
                return self._write(value.value)
            case JITFunction():
                return {"kernel": value.fn.__name__}
            case list() | tuple():
                return [self._write(item) for item in value]
            case dict():
                return {str(key): self._write(item) for key, item in value.items()}
        raise AnswerError(f"an argument of type {type(value).__name__} is not graded", "what you launch with")


def tensors_in(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in tensors_in(item)] if isinstance(value, list | tuple) else []
