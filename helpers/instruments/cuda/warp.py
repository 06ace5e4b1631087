"""Warp instructions: shuffles, votes, matches, reductions."""

import numpy as np

from helpers.instruments.cuda.operation import DTYPES, unknown
from helpers.instruments.cuda.ptx import Not, Pair, PtxInstruction

WARP = 32


def everyone(machine, threads) -> np.ndarray:
    return np.arange(machine.threads) if threads is None else threads


def value(machine, key, threads, count: int) -> np.ndarray:
    """Return an operand as an array, repeating a scalar."""
    if not isinstance(key, tuple):
        return np.full(count, key)
    return machine.views[key] if threads is None else machine.views[key][threads]


def by_warp(machine, threads, values: np.ndarray, fill) -> np.ndarray:
    """Return the participating threads' values as (warps of the machine, 32), `fill` elsewhere."""
    if threads is None:
        return values.reshape(-1, WARP)
    whole = np.full(machine.threads, fill, values.dtype)
    whole[threads] = values
    return whole.reshape(-1, WARP)


def ballot(machine, threads, holds: np.ndarray) -> np.ndarray:
    """Return, for each warp, one bit per lane."""
    rows = by_warp(machine, threads, np.asarray(holds, bool), False)
    return np.packbits(rows, axis=1, bitorder="little").view(np.uint32).ravel()


def store(machine, out, threads, values) -> None:
    machine.views[out][slice(None) if threads is None else threads] = values


def _shuffle(decoder, instruction: PtxInstruction):
    sync, mode, type = instruction.modifiers
    target, source, distance, clamp, mask = instruction.operands
    if sync != "sync" or mode not in ("up", "down", "bfly", "idx") or type != "b32":
        unknown()
    target, arrived = target if isinstance(target, Pair) else (target, None)
    out = ("b32", target.slot) if target is not None else None
    flag = ("pred", arrived.slot) if arrived is not None else None
    source, distance, clamp, mask = (decoder.key(each, "u32") for each in (source, distance, clamp, mask))
    all_named = not isinstance(mask, tuple) and mask == np.uint32(0xFFFFFFFF)

    def step(machine, threads):
        here = everyone(machine, threads)
        lane = here & 31
        by = np.asarray(value(machine, distance, threads, here.size)).astype(np.int64) & 31
        limits = np.asarray(value(machine, clamp, threads, here.size)).astype(np.int64)
        segment = (limits >> 8) & 31
        last = (lane & segment) | (limits & 31 & ~segment)
        if mode == "up":
            asked = lane - by
            valid = asked >= last
        else:
            asked = {
                "down": lambda: lane + by,
                "bfly": lambda: lane ^ by,
                "idx": lambda: (lane & segment) | (by & ~segment),
            }[mode]()
            valid = asked <= last
        origin = here - lane + np.where(valid, asked, lane)
        values = np.full(machine.threads, source) if not isinstance(source, tuple) else machine.views[source]
        if threads is not None or not all_named:
            taking_part = np.zeros(machine.threads, bool)
            taking_part[here] = True
            masks = value(machine, mask, threads, here.size)
            itself, asked = (masks >> each.astype(np.uint32) & np.uint32(1) for each in (lane, origin & 31))
            absent = ~taking_part[origin] | (itself > asked)  # a mask without the lane itself is reported elsewhere
            if absent.any():
                first = int(np.flatnonzero(absent)[0])
                machine.hazard(
                    "shuffle from an absent lane",
                    instruction.line,
                    f"lane {int(lane[first])} reads from lane {int(origin[first]) & 31}, which does not take part",
                    int(here[first]),
                    int(absent.sum()),
                )
                origin = np.where(absent, here, origin)
        if out:
            store(machine, out, threads, values[origin])
        if flag:
            store(machine, flag, threads, valid)

    return step


def _vote(decoder, instruction: PtxInstruction):
    *how, type = instruction.modifiers
    if how[0] != "sync":
        unknown()
    target, holds = instruction.operands[:2]
    inverted = isinstance(holds, Not)
    key = decoder.key(holds.register if inverted else holds, "pred")
    out = type, target.slot
    mask = decoder.key(instruction.operands[2], "u32")

    def step(machine, threads):
        here = everyone(machine, threads)
        votes = value(machine, key, threads, here.size)
        votes = ~votes if inverted else votes
        yes = ballot(machine, threads, votes)[here >> 5] & value(machine, mask, threads, here.size)
        if how[1] == "ballot":
            store(machine, out, threads, yes)
            return
        members = ballot(machine, threads, np.ones(here.size, bool))[here >> 5] & value(
            machine, mask, threads, here.size
        )
        store(
            machine,
            out,
            threads,
            {"all": yes == members, "any": yes != 0, "uni": (yes == members) | (yes == 0)}[how[1]],
        )

    return step


def _active(decoder, instruction: PtxInstruction):
    out = "b32", instruction.operands[0].slot

    def step(machine, threads):
        here = everyone(machine, threads)
        store(machine, out, threads, ballot(machine, threads, np.ones(here.size, bool))[here >> 5])

    return step


def _match(decoder, instruction: PtxInstruction):
    how, sync, type = instruction.modifiers
    target, source, mask = instruction.operands
    target, uniform = target if isinstance(target, Pair) else (target, None)
    if sync != "sync" or how not in ("any", "all"):
        unknown()
    key, mask = decoder.key(source, type), decoder.key(mask, "u32")

    def step(machine, threads):
        here = everyone(machine, threads)
        values = by_warp(machine, threads, value(machine, key, threads, here.size), 0)
        same = (values[:, :, None] == values[:, None, :]).reshape(-1, WARP)
        bits = np.packbits(same, axis=1, bitorder="little").view(np.uint32).ravel()[here]
        members = ballot(machine, threads, np.ones(here.size, bool))[here >> 5] & value(
            machine, mask, threads, here.size
        )
        bits = bits & members
        if how == "all":
            every = bits == members
            bits = np.where(every, bits, np.uint32(0))
            if uniform is not None:
                store(machine, ("pred", uniform.slot), threads, every)
        store(machine, ("b32", target.slot), threads, bits)

    return step


_REDUCE = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _reduce(decoder, instruction: PtxInstruction):
    sync, how, type = instruction.modifiers
    target, source, mask = instruction.operands
    if sync != "sync" or how not in _REDUCE:
        unknown()
    key, mask, out = decoder.key(source, type), decoder.key(mask, "u32"), (type, target.slot)
    ufunc, limits = _REDUCE[how], np.iinfo(DTYPES[type])
    neutral = {"min": limits.max, "max": limits.min, "and": limits.max if type[0] != "s" else -1}.get(how, 0)

    def step(machine, threads):
        here = everyone(machine, threads)
        masks = np.asarray(value(machine, mask, threads, here.size))
        values = by_warp(machine, threads, value(machine, key, threads, here.size), neutral)
        members = by_warp(machine, threads, masks, np.uint32(0))
        result = np.zeros(here.size, DTYPES[type])
        for members_of in np.unique(masks):  # each group of lanes that named the same members
            chosen = members == members_of
            sums = ufunc.reduce(np.where(chosen, values, DTYPES[type].type(neutral)), axis=1, dtype=DTYPES[type])
            result = np.where(masks == members_of, sums[here >> 5], result)
        store(machine, out, threads, result)

    return step


def _elect(decoder, instruction: PtxInstruction):
    target, mask = instruction.operands
    mask = decoder.key(mask, "u32")
    leader, chosen = target if isinstance(target, Pair) else (None, target)

    def step(machine, threads):
        here = everyone(machine, threads)
        bits = ballot(machine, threads, np.ones(here.size, bool))[here >> 5] & value(machine, mask, threads, here.size)
        first = np.bitwise_count((bits & -bits) - np.uint32(1)).astype(np.uint32)
        store(machine, ("pred", chosen.slot), threads, first == here & 31)
        if leader is not None:
            store(machine, ("b32", leader.slot), threads, first)

    return step


def _sync(decoder, instruction: PtxInstruction):
    """bar.warp.sync: the machine has waited for the lanes; their earlier writes are now visible."""
    mask = decoder.key(instruction.operands[0], "u32")

    def step(machine, threads):
        if machine.observer is not None:
            here = everyone(machine, threads)
            machine.observer.lanes_synchronised(here, value(machine, mask, threads, here.size))

    return step


BUILDERS = {
    "shfl": _shuffle, "vote": _vote, "activemask": _active, "match": _match, "redux": _reduce, "elect": _elect,
    "bar.warp": _sync,
}  # fmt: skip
# Instructions that wait for all lanes that their last operand names.
COLLECTIVE = {"shfl", "vote", "match", "redux", "elect"}
