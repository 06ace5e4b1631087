"""Stand in for an answer in the judge's process: whatever the checks ask of it happens in the replay's process."""

import itertools
import linecache
import re
from collections.abc import Callable, Iterator

import torch

from helpers.grading.replay.channel import ChannelError
from helpers.grading.replay.replayed_call import signature_of
from helpers.grading.replay.submitted_kernels import show_lines
from helpers.grading.replay.tensors import inputs_packed, inputs_unpacked, tensors_unpacked
from helpers.grading.replay.wire import error_from_json, number, resources_from_json, text, traffic_from_json
from helpers.instruments.resources import Resources
from helpers.instruments.traffic import Traffic
from helpers.instruments.traffic.ledger import Ledger
from helpers.learning.checks.cases import described
from helpers.learning.checks.gradients import runs_backwards
from helpers.learning.checks.launches import runs_few
from helpers.learning.checks.memory_errors import require_no_hazards
from helpers.learning.outcome import PASS, AnswerError


class Stopped(AnswerError):  # noqa: N818
    """The recorded call didn't finish: it had already failed in the sandbox."""


class Replay:
    """One check of one submission, replayed.

    Args:
        answers: grade_id -> source.
        calls: the records, in the order of the calls.
        ask: (question, payload) -> (reply, payload) of the replay's process; ChannelError where there is none.

    Attributes:
        results: each call's result, in that order.
        stopped: the sandbox's message if a call didn't finish.
        ended: the reason to end the replay's process, if any.
    """

    def __init__(self, answers: dict[str, str], calls: list[dict], ask: Callable[[dict, bytes], tuple[dict, bytes]]):
        show_lines(answers)
        self._answers, self._ask = answers, ask
        self._calls: Iterator[dict] = iter(calls)
        self.results: list[object] = []
        self.stopped: dict | None = None
        self.ended = ""

    def next_call(self) -> dict:
        call = next(self._calls, None)
        if call is None:
            raise AnswerError("the notebook did not make this call", "what your function does before this check")
        if "stopped" in call:
            self.stopped = {key: str(call["stopped"][key]) for key in ("state", "message", "look_at")}
            if self.stopped["state"] == PASS:
                raise ValueError("a call that stopped cannot have passed")
            raise Stopped(self.stopped["message"], self.stopped["look_at"])
        return call

    def asked(self, question: dict, inputs: tuple = ()) -> tuple[dict, list[torch.Tensor]]:
        """Return the replay process's reply, with its tensors."""
        views, raw = inputs_packed(inputs)
        question |= {"answers": self._answers, "inputs": views, "storages": [len(each) for each in raw]}
        try:
            reply, payload = self._ask(question, b"".join(raw))
            if "raised" in reply:
                error = error_from_json(reply["raised"])
            else:
                error = None
                tensors = tensors_unpacked(reply.get("tensors", []), payload)
        except ChannelError as broken:
            self.ended = str(broken)
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
            self.ended = "sent an invalid result"
            raise ChannelError(self.ended) from None
        if error is not None:
            raise error
        return reply, tensors

    def read(self, make: Callable):
        """Return `make()` applied to the replay process's reply; ChannelError if the reply is malformed."""
        try:
            return make()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError):
            self.ended = "sent an invalid result"
            raise ChannelError(self.ended) from None


class RemoteAnswer:
    """The answer: a function that replays one recorded call after another in the replay's process.

    Args:
        name: the answer's name.
        parameters: the names of its parameters in the submission.
        replay: shared with the other answers of the exercise.
    """

    def __init__(self, name: str, parameters: list[str], replay: Replay):
        self.__name__ = name
        self.__signature__ = signature_of(parameters)
        self._parameters = parameters
        self._replay = replay

    def __call__(self, *inputs):
        return self.metered(*inputs).result

    def metered(self, *inputs) -> Traffic:
        """Return a call's traffic and its result."""
        call = self._replay.next_call()
        if "plain" in call:
            self._replay.results.append(call["plain"])
            return Traffic.of(Ledger(), call["plain"])
        reply, tensors = self._replay.asked(self._question(call), inputs)
        self._refuse_changed(reply)
        result = self._result(reply, tensors)
        self._replay.results.append(result)
        return self._traffic(reply, result)

    def compiled(self, inputs: tuple, devices: tuple[str, ...]) -> list[list[Resources]]:
        """Return, for each device, the compiled kernels that a call launches."""
        question = self._question(self._replay.next_call()) | {"devices": devices}
        reply, tensors = self._replay.asked(question, inputs)
        self._refuse_changed(reply)

        def read() -> list[list[Resources]]:
            found = [[resources_from_json(each) for each in of_device] for of_device in reply["compiled"]]
            if [len(each) for each in found] != [len(found[0])] * len(devices):
                raise ValueError("not what was asked")
            return found

        compiled = self._replay.read(read)
        self._keep_sound(reply, tensors, inputs)
        return compiled

    def strays(self, smaller: tuple, largest: tuple) -> tuple[list[tuple], list[tuple], tuple[str, str] | None]:
        """Return the grids of the launches in two calls, the second on inputs without memory, and the finding of
        `checks.offsets.find_stray` in the second."""
        small, large = (self._question(self._replay.next_call()) for _ in range(2))
        reply, tensors = self._replay.asked(small, smaller)
        self._refuse_changed(reply)
        self._keep_sound(reply, tensors, smaller)
        reply, _ = self._replay.asked(large | {"small": small["call"]}, (*smaller, *largest))
        found = self._replay.read(lambda: [text(each) for each in reply["stray"]])
        results = self._replay.read(lambda: inputs_unpacked(reply["results"], []))
        self._replay.results.append(results if len(results) > 1 else one(results))
        few, most = (
            [tuple(map(number, step["grid"])) for step in call["call"]["steps"] if "kernel" in step]
            for call in (small, large)
        )
        return few, most, (found[0], found[1]) if len(found) == 2 else None

    def cuda_kernel(self, source: str, name: str, device: str) -> "CudaElsewhere":
        return CudaElsewhere({"source": source, "name": name, "device": device}, self._replay)

    def _question(self, call: dict) -> dict:
        if not {"steps", "result"} <= call.keys():
            raise AnswerError("the notebook recorded no launches of this call", "what your function returns")
        recorded = {"steps": call["steps"], "result": call["result"]}
        asked = {"name": self.__name__, "parameters": self._parameters, "call": recorded}
        return asked | {"backwards": runs_backwards(), "few": runs_few()}

    def _traffic(self, reply: dict, result: object) -> Traffic:
        return self._replay.read(lambda: traffic_from_json(reply["traffic"], result))

    def _keep_sound(self, reply: dict, tensors: list[torch.Tensor], inputs: tuple) -> None:
        """Make a call's result available to a check that needs no traffic: an out-of-bounds store fails that check
        too."""
        result = self._result(reply, tensors)
        require_no_hazards(self._traffic(reply, result), described(inputs))
        self._replay.results.append(result)

    def _result(self, reply: dict, tensors: list[torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return self._replay.read(lambda: tuple(tensors) if reply["several"] else one(tensors))

    def _refuse_changed(self, reply: dict) -> None:
        places = self._replay.read(lambda: [number(place) for place in reply["changed"]])
        if places:
            raise AnswerError(f"argument {places[0] + 1} was changed", "what your kernel stores to: only the output")


def one(tensors: list[torch.Tensor]) -> torch.Tensor:
    (tensor,) = tensors
    return tensor


class CudaElsewhere:
    """A CUDA C++ kernel from the answer, compiled and launched in the replay's process."""

    def __init__(self, asked: dict, replay: Replay):
        self._asked, self._replay = asked, replay
        self.resources_for(1024)  # raises where it does not compile

    def resources_for(self, threads: int) -> Resources:
        reply, _ = self._replay.asked({"cuda": self._asked, "threads": threads})
        file = self._replay.read(lambda: text(reply["file"]))
        if re.fullmatch(r"<\w*\.cu [0-9a-f]{8}>", file):  # the file name of its lines in memory errors
            lines = self._asked["source"].splitlines(keepends=True)
            linecache.cache[file] = (len(self._asked["source"]), None, lines, file)
        return self._replay.read(lambda: resources_from_json(reply["resources"]))

    def __getitem__(self, configuration: tuple[int, int]) -> "CudaLaunchElsewhere":
        return CudaLaunchElsewhere(self._asked, *configuration, self._replay)


class CudaLaunchElsewhere:
    """Such a kernel with its grid and block; call it under the meter."""

    def __init__(self, asked: dict, grid: int, block: int, replay: Replay):
        self._question = {"cuda": asked, "grid": grid, "block": block}
        self._replay = replay

    def after(self, blocks: int) -> "CudaLaunchElsewhere":
        self._question["after"] = blocks
        return self

    def metered(self, *inputs) -> Traffic:
        reply, tensors = self._replay.asked(self._question.copy(), inputs)

        def read() -> Traffic:
            for place, after in itertools.zip_longest(reply["changed"], tensors):
                x = inputs[number(place)]
                if (x.shape, x.dtype) != (after.shape, after.dtype):
                    raise ValueError("another tensor")
                x.copy_(after)
            return traffic_from_json(reply["traffic"], None)

        return self._replay.read(read)
