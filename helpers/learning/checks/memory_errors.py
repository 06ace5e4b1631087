"""Fail a kernel that does something a GPU wouldn't forgive, whatever it computes."""

import ast
import builtins
import functools
import linecache
import re

from helpers.instruments.traffic import Traffic
from helpers.instruments.traffic.hazards import Hazard
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
    """Raise AnswerError at the first memory error that the meter saw in a call.

    Args:
        traffic: the call's.
        inputs: its inputs in words.
        otherwise: where to look instead of at a mask, for non-contiguous tensors.
    """
    # A store past a row's end hits the next row first, and leaves the tensor only in the last row.
    for hazard in sorted(traffic.hazards, key=lambda each: not each.kind.startswith("out-of-bounds")):
        look_at = LOOK_AT[hazard.kind]
        if hazard.kind.startswith("out-of-bounds"):
            look_at = otherwise or (MASKED if has_mask(hazard.file, hazard.line) else look_at)
        elif hazard.kind == "race" and (axes := axes_not_asked(hazard)):
            look_at += f". They differ in axis {axes[0]} of the grid; your kernel never calls tl.program_id({axes[0]})"
        raise AnswerError(
            f"{inputs}: {hazard.kind} of {hazard.where}, elements: {hazard.elements}",
            f"{quoted_line(hazard.file, hazard.line)}: {look_at}",
        )


def axes_not_asked(hazard: Hazard) -> list[int]:
    """The axes in which two racing programs differ, if their kernel asks for none of them: then they do the same."""
    found = re.search(r"stored by \((\d+), (\d+), (\d+)\)", hazard.where)
    if not found:
        return []
    differ = [axis for axis in range(3) if int(found[axis + 1]) != hazard.program[axis]]
    asked = axes_asked("".join(linecache.getlines(hazard.file)), hazard.line)
    return differ if asked is not None and not asked & set(differ) else []


@functools.lru_cache(maxsize=8)
def axes_asked(source: str, line: int) -> set[int] | None:
    """The axes of each tl.program_id in the function at a source line; None where functions that it calls may have
    others, or an axis is not a plain number."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    [function] = [each for each in functions if line in range(each.lineno, each.end_lineno + 1)] or [None]
    if function is None:
        return None
    asked = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not hasattr(builtins, node.func.id):
            return None
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "program_id":
            axis = [*node.args, *(each.value for each in node.keywords), None][0]
            if not isinstance(axis, ast.Constant):
                return None
            asked.add(axis.value)
    return asked


def has_mask(file: str, line: int) -> bool:
    """Return whether there is a load, store or atomic at a source line, and all of them have a mask."""
    calls = memory_calls("".join(linecache.getlines(file)))
    here = [masked for lines, masked in calls.items() if line in lines]
    return bool(here) and all(here)


@functools.lru_cache(maxsize=8)
def memory_calls(source: str) -> dict[range, bool]:
    """Return the lines of each load, store and atomic -> whether it has a mask."""
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
