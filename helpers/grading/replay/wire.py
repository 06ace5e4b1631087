"""Send a replay's findings as messages: traffic, compiled kernels, or the reason why there are none.

Each message is written in the replay's process and read in the judge's, which trusts only its types.
"""

from collections import Counter
from dataclasses import fields

from helpers.instruments.devices import DEVICES
from helpers.instruments.resources import Resources
from helpers.instruments.traffic import Traffic
from helpers.instruments.traffic.hazards import Hazard
from helpers.instruments.traffic.ledger import ByteCount, Line
from helpers.learning.outcome import AnswerError, causes

COUNTS = [each.name for each in fields(Traffic) if each.type is int]
OF_HAZARDS = ("kind", "kernel", "file", "line", "where")
OF_LINES = [each.name for each in fields(Line)]
OF_RESOURCES = [each.name for each in fields(Resources) if each.type is int]
MAX_TEXT = 4000  # characters of a message
MAX_PTX = 4 << 20  # characters


def number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("no count")
    return value


def text(value: object, most: int = MAX_TEXT) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise ValueError("no text")
    return value


# Traffic


def traffic_as_json(traffic: Traffic) -> dict:
    """Return all of the traffic except the result."""
    return {
        "counts": {name: int(getattr(traffic, name)) for name in COUNTS},
        "elements": None if traffic.elements is None else int(traffic.elements),
        "by_tensor": [[name, int(moved.read), int(moved.written)] for name, moved in traffic.by_tensor.items()],
        "by_launch": [[name, int(moved.read), int(moved.written)] for name, moved in traffic.by_launch],
        "by_line": [
            [*place, *(int(getattr(line, each)) for each in OF_LINES)] for place, line in traffic.by_line.items()
        ],
        "hazards": [
            {name: getattr(each, name) for name in OF_HAZARDS}
            | {
                "program": list_or_none(each.program),
                "thread": list_or_none(each.thread),
                "elements": int(each.elements),
            }
            for each in traffic.hazards
        ],
    }


def list_or_none(numbers: tuple | None) -> list[int] | None:
    return None if numbers is None else [int(each) for each in numbers]


def traffic_from_json(said: dict, result: object) -> Traffic:
    return Traffic(
        **{name: number(said["counts"][name]) for name in COUNTS},
        elements=None if said["elements"] is None else number(said["elements"]),
        by_tensor={text(name): ByteCount(number(read), number(written)) for name, read, written in said["by_tensor"]},
        by_launch=tuple(
            (text(name), ByteCount(number(read), number(written))) for name, read, written in said["by_launch"]
        ),
        by_line={
            (text(file), number(line)): Line(**dict(zip(OF_LINES, map(number, counts), strict=True)))
            for file, line, *counts in said["by_line"]
        },
        hazards=tuple(
            Hazard(
                **{name: text(each[name]) for name in OF_HAZARDS if name != "line"},
                line=number(each["line"]),
                program=tuple(map(number, each["program"])),
                elements=number(each["elements"]),
                thread=None if each["thread"] is None else tuple(map(number, each["thread"])),
            )
            for each in said["hazards"]
        ),
        result=result,
    )


# Compiled kernels


def resources_as_json(resources: Resources) -> dict:
    """Return everything except the machine code, whose instructions are counted here."""
    return {
        "kernel": resources.kernel,
        "device": resources.device.name,
        "counts": {name: int(getattr(resources, name)) for name in OF_RESOURCES},
        "ptx": resources.ptx,
        "instructions": dict(resources.instructions),
    }


def resources_from_json(said: dict) -> Resources:
    resources = Resources(
        kernel=text(said["kernel"]),
        device=DEVICES[text(said["device"])],
        **{name: number(said["counts"][name]) for name in OF_RESOURCES},
        ptx=text(said["ptx"], MAX_PTX),
        cubin=b"",
    )
    # Counted where it was compiled, so that the disassembler reads no machine code in this process.
    vars(resources)["instructions"] = Counter(
        {text(name): number(count) for name, count in said["instructions"].items()}
    )
    return resources


# Why there is nothing of these


def raised_as_json(error: Exception) -> dict:
    origins = list(causes(error))
    failure = next((each for each in origins if isinstance(each, AnswerError)), None)
    if failure is not None:
        return {"kind": "AnswerError", "message": str(failure)[:MAX_TEXT], "look_at": failure.look_at[:MAX_TEXT]}
    if any(isinstance(each, NotImplementedError) and not each.args for each in origins):
        return {"kind": "NotImplementedError", "message": "", "look_at": ""}
    place = next((each.place for each in origins if getattr(each, "place", None)), None)
    said = {"kind": type(error).__name__, "message": str(error)[:MAX_TEXT], "look_at": ""}
    return said | ({"place": list(place)} if place else {})


# The kinds that a check distinguishes; all others are kinds of their own.
KINDS = {kind.__name__: kind for kind in (NotImplementedError, RuntimeError, TypeError, ValueError)}


def error_from_json(said: dict) -> Exception:
    """Rebuild the replay's exception, for raising here."""
    kind, message = text(said["kind"]), text(said["message"])
    if kind == "AnswerError":
        return AnswerError(message, text(said["look_at"]))
    if not kind.isidentifier() or len(kind) > 60:
        raise ValueError("no kind of error")
    error = KINDS.get(kind, type(kind, (RuntimeError,), {}))(*([message] if message else []))
    if "place" in said:
        file, line = said["place"]
        error.place = text(file), number(line)
    return error
