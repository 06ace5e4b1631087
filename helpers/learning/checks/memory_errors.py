"""Fail kernels with memory errors, whatever they compute."""

import ast
import functools
import linecache

from helpers.instruments.traffic import Traffic
from helpers.learning.outcome import AnswerError, quoted_line

MASKED = (
    "it has a mask, which lets these lanes through, so the mask or the offset is wrong: does the mask check every "
    "index that the offset uses, and is each index multiplied by its own stride"
)
LOOK_AT = {
    "out-of-bounds read": "which of these elements exist? Mask the others, or correct the offset",
    "out-of-bounds store": "which of these elements exist? Mask the others, or correct the offset",
    "out-of-bounds atomic": "which of these elements exist? Mask the others, or correct the offset",
    "uninitialised read": "nothing was stored there before this line reads it",
    "race": "two programs store to this element; only one may",
    "unsynchronised read": "another program of the same launch stores this, and on a GPU it may not have done so yet",
    "unsynchronised store": "another program of the same launch reads this, and on a GPU it may do so later",
}


def require_no_hazards(traffic: Traffic, inputs: str, otherwise: str = "") -> None:
    """Raise AnswerError at the first hazard that the meter saw in a call.

    Args:
        traffic: the call's.
        inputs: a description of its inputs.
        otherwise: where to look other than at a mask, for non-contiguous tensors.
    """
    # A store past a row's end meets the next row's owner first, and leaves the tensor only at the last.
    for hazard in sorted(traffic.hazards, key=lambda each: not each.kind.startswith("out-of-bounds")):
        look_at = LOOK_AT[hazard.kind]
        if hazard.kind.startswith("out-of-bounds"):
            look_at = otherwise or (MASKED if has_mask(hazard.file, hazard.line) else look_at)
        raise AnswerError(
            f"{inputs}: {hazard.kind} of {hazard.where}, elements: {hazard.elements}",
            f"{quoted_line(hazard.file, hazard.line)}: {look_at}",
        )


def has_mask(file: str, line: int) -> bool:
    """Return whether a source line has loads, stores or atomics, and all of them have a mask."""
    calls = memory_calls("".join(linecache.getlines(file)))
    here = [masked for lines, masked in calls.items() if line in lines]
    return bool(here) and all(here)


@functools.lru_cache(maxsize=8)
def memory_calls(source: str) -> dict[range, bool]:
    """Map the lines of each load, store and atomic to whether it has a mask."""
    found = {}
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            values = {"load": 1, "store": 2}.get(node.func.attr, 2 if node.func.attr.startswith("atomic_") else None)
            if values is not None:
                masked = len(node.args) > values or any(each.arg == "mask" for each in node.keywords)
                found[range(node.lineno, node.end_lineno + 1)] = masked
    return found
