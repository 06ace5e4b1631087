"""Compare your kernel with ours after each passed exercise, on a GPU you may not have."""

import functools

import torch

from helpers.instruments import recorded
from helpers.instruments.bench_report import compiled
from helpers.instruments.devices import DEVICES
from helpers.instruments.prediction import dry_run_for, prediction_of
from helpers.instruments.tables import table
from helpers.instruments.timing import benchmark_together
from helpers.learning.display_text import Unquoted
from helpers.learning.outcome import PASS, latest
from kernels.interpreter import runtime

HEADS = ("", "time", "known from", "launches", "registers", "spilled", "occupancy")
RECORDED = {"eager": "PyTorch, unfused", "torch.compile": "torch.compile"}


def compare_with_ours(
    mine, op, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, passed: str = "values"
) -> str:
    """Compare your function with one of ours on an H200: both predicted times, and the recorded time of ours.

    If this machine has a GPU, time both on it instead, taking turns with a cold L2.

    Args:
        mine: the learner's function, with the same arguments as ours.
        op: the entry, such as kernels.CATALOGUE["softmax"].
        shape: a size for which a time is recorded.
        dtype: a 16-bit dtype; the record is for bfloat16.
        passed: the check that must have passed in this session.

    Raises:
        ValueError: there is no record of that operation at that size.
    """
    record = recorded()
    times = record.times(op.name, shape, "bfloat16")
    if passed not in latest or latest[passed].state != PASS:
        return Unquoted(f"Once the check {passed!r} has passed, run this cell again: your kernel vs ours.")
    inputs = op.inputs(*shape, dtype=dtype, device="cuda" if runtime.has_gpu() else "meta")
    functions = {"yours": mine, "the catalogue's": op.fused}
    calls = {who: functools.partial(function, *inputs) for who, function in functions.items()}
    measured = benchmark_together(calls) if runtime.has_gpu() else {}
    predicted: dict[str, float] = {}
    lines, device = [], DEVICES["H200"]
    for who, function in functions.items():
        rehearsed = dry_run_for(device, function, *inputs)
        if who in measured:
            time, known = measured[who].median, "measured here"
        else:
            time, known = prediction_of(rehearsed, device).time, "predicted"
            predicted[who] = time
        launched = compiled(rehearsed, device)
        needs = [each.resources for each in launched]
        registers = " + ".join(str(each.registers) for each in needs)
        spilled = " + ".join(f"{each.spill_bytes} B" for each in needs)
        occupancy = " + ".join(f"{each.occupancy().fraction:.0%}" for each in needs)
        lines.append((who, _micro(time), known, str(len(launched)), registers, spilled, occupancy))
    lines.append(("the catalogue's", _micro(times["fused"].median), "recorded"))
    lines += [(says, _micro(times[of].median), "recorded") for of, says in RECORDED.items() if of in times]
    size = " x ".join(f"{each:,}" for each in shape)
    kind = str(dtype).removeprefix("torch.")
    title = f"{size} in {kind}; recorded{' in bfloat16' * (kind != 'bfloat16')}: {record.label}"
    if off := how_far_off(predicted.get("the catalogue's"), times["fused"].median):
        notes = {"the catalogue's": off, "yours": "may be as far off"}
        lines = [
            (who, time, f"{known}, {notes[who]}", *rest) if known == "predicted" else (who, time, known, *rest)
            for who, time, known, *rest in lines
        ]
    return table(HEADS, ((*line, *[""] * (len(HEADS) - len(line))) for line in lines), title)


def how_far_off(predicted: float | None, recorded_time: float) -> str:
    """Return by how much a prediction misses a recorded time: "" if that's less than a third."""
    if predicted is None or 2 / 3 <= predicted / recorded_time <= 4 / 3:
        return ""
    return f"{predicted / recorded_time:.2g}x the recorded time"


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"
