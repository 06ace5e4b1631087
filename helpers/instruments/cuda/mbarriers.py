"""Barriers in shared memory (mbarrier, on which cuda::barrier is built): arrive, and wait for a phase to complete.

A barrier is one 64-bit word: bits 0 to 19 hold the phase's pending arrivals, 20 to 39 its expected arrivals, 40 and up
its number. When a thread first sees a phase complete, the observer treats it as a barrier of the whole block: a race
goes unnoticed if another thread of the block waited where the racing one should have.
"""

import numpy as np

from helpers.instruments.cuda.access import Place, space_of
from helpers.instruments.cuda.operation import unknown
from helpers.instruments.cuda.ptx import PtxInstruction
from helpers.instruments.cuda.warp import everyone, store, value

_COUNT = np.uint64((1 << 20) - 1)
_ASKED, _PHASE = np.uint64(20), np.uint64(40)


def _mbarrier(decoder, instruction: PtxInstruction):
    how, *modifiers = instruction.modifiers
    build = _HOW.get(how) or unknown()
    parity = [modifier for modifier in modifiers if modifier == "parity"]
    space, rest = space_of([each for each in modifiers if each not in ("b64", "noComplete", "parity")])
    rest = parity + rest
    return build(decoder, instruction, how, "shared" if space == "generic" else space, rest)


def _init(decoder, instruction, how, space, rest):
    address, count = instruction.operands
    if rest or space != "shared":
        unknown()
    place, count = Place(decoder, instruction, address, space, 8), decoder.key(count, "u32")

    def step(machine, threads):
        here = everyone(machine, threads)
        counts = np.zeros(machine.threads, np.uint64)
        counts[here] = value(machine, count, threads, here.size)
        for these, memory, offsets in place.resolve(machine, threads, "write"):
            chosen = counts[everyone(machine, these)]
            memory[8][offsets >> 3] = chosen | chosen << _ASKED

    return step


def _arrive(decoder, instruction, how, space, rest):
    token, address, *count = instruction.operands
    if rest or space != "shared" or len(count) > 1:
        unknown()
    place = Place(decoder, instruction, address, space, 8)
    count = decoder.key(count[0], "u32") if count else np.uint32(1)
    out = ("b64", token.slot) if token is not None else None

    def step(machine, threads):
        here = everyone(machine, threads)
        counts = np.zeros(machine.threads, np.int64)
        counts[here] = value(machine, count, threads, here.size)
        for these, memory, offsets in place.resolve(machine, threads, "atomic"):
            chosen = everyone(machine, these)
            before = arrive(memory[8], offsets >> 3, counts[chosen], how == "arrive_drop")
            if out is not None:
                store(machine, out, these, before)

    return step


def arrive(words: np.ndarray, places: np.ndarray, counts: np.ndarray, drops: bool = False) -> np.ndarray:
    """Arrive at barriers, and complete phases; return each thread's barrier as it was before."""
    before = words[places]
    for place in np.unique(places):
        word = int(words[place])
        lacking, asked, phase = word & int(_COUNT), word >> 20 & int(_COUNT), word >> 40
        came = int(counts[places == place].sum())
        asked -= came if drops else 0
        lacking -= came
        if lacking <= 0:
            lacking, phase = asked, phase + 1
        words[place] = phase << 40 | asked << 20 | lacking
    return before


def _wait(decoder, instruction, how, space, rest):
    holds, address, token, *_ = instruction.operands
    if rest not in ([], ["parity"]) or space != "shared":
        unknown()
    place = Place(decoder, instruction, address, space, 8)
    parity = rest == ["parity"]
    token = decoder.key(token, "u32" if parity else "u64")

    def step(machine, threads):
        here = everyone(machine, threads)
        tokens = np.zeros(machine.threads, np.uint64)
        tokens[here] = value(machine, token, threads, here.size)
        store(machine, ("pred", holds.slot), threads, True)
        for these, memory, offsets in place.resolve(machine, threads, "atomic"):
            places = offsets >> 3
            machine.spaces.copies.arrive_at(np.unique(places))
            now, asked = memory[8][places] >> _PHASE, tokens[everyone(machine, these)]
            complete = (now & np.uint64(1)) != asked if parity else now != asked >> _PHASE
            store(machine, ("pred", holds.slot), these, complete)
            machine.spaces.phases_seen(places[complete], now[complete])

    return step


def _invalidate(decoder, instruction, how, space, rest):
    return None


_HOW = {
    "init": _init, "arrive": _arrive, "arrive_drop": _arrive, "test_wait": _wait, "try_wait": _wait,
    "inval": _invalidate,
}  # fmt: skip
BUILDERS = {"mbarrier": _mbarrier}
