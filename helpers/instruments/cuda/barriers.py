"""Block barriers: which threads wait or continue, and reports to the meter of barriers that some threads never
reach."""

from typing import NamedTuple

import numpy as np

from helpers.instruments.cuda.ptx import Not, PtxInstruction
from helpers.instruments.cuda.warp import WARP, value


class Blocked(NamedTuple):
    """Threads at a barrier."""

    threads: np.ndarray
    next: int  # basic block
    barrier: int
    expected: int | None  # threads, if the instruction has a count
    line: int
    reduction: tuple | None  # how, key of the result, each thread's vote

    def of(self, chosen: np.ndarray) -> "Blocked":
        """Return the entries of the chosen threads."""
        votes = self.reduction and (*self.reduction[:2], self.reduction[2][chosen])
        return self._replace(threads=self.threads[chosen], reduction=votes)


class Barriers:
    """The barriers of all blocks that run together, `padded` threads each."""

    def __init__(self, machine, padded: int):
        self._machine, self._padded, self._blocks = machine, padded, machine.blocks
        self._parked: list[Blocked] = []
        self._awaited = np.zeros(machine.blocks, np.int64)  # threads alive when the block's first arrived

    def __bool__(self) -> bool:
        return bool(self._parked)

    def park(self, end: PtxInstruction, number: int, threads: np.ndarray) -> None:
        operands = end.operands
        reduction = None
        if "red" in end.modifiers:
            result, *operands, vote = operands
            inverted = isinstance(vote, Not)
            votes = self._machine.views["pred", (vote.register if inverted else vote).slot][threads] != inverted
            how = end.modifiers[end.modifiers.index("red") + 1]
            reduction = how, (end.modifiers[-1], result.slot), votes
        keys = [self._machine.decoder.key(operand, "u32") for operand in operands]
        barriers, *counts = (value(self._machine, key, threads, threads.size) for key in keys)
        blocks = np.unique(threads // self._padded)
        self._awaited[blocks] = np.maximum(self._awaited[blocks], self._living()[blocks])
        named = barriers.astype(np.int64) << 32 | (counts[0] if counts else 0)
        for each in np.unique(named).tolist():
            barrier, expected = each >> 32, each & 0xFFFFFFFF if counts else None
            parked = Blocked(threads, number, barrier, expected, end.line, reduction)
            self._parked.append(parked.of(named == each))

    def _living(self) -> np.ndarray:
        return np.bincount(np.flatnonzero(self._machine.alive) // self._padded, minlength=self._blocks)

    def release(self, forced: bool = True) -> bool:
        """Release the threads whose barrier is complete: all live threads reached it, or as many as it names; with
        `forced` all of them if none is complete."""
        parked, self._parked = self._parked, []
        alive = self._living()
        arrived = {each.barrier: np.zeros(self._blocks, np.int64) for each in parked}
        for each in parked:
            arrived[each.barrier] += np.bincount(each.threads // self._padded, minlength=self._blocks)
        chosen = []
        for each in parked:
            needed = alive if each.expected is None else np.minimum(each.expected, alive)
            chosen.append((arrived[each.barrier] >= needed)[each.threads // self._padded])
        stuck = not any(each.any() for each in chosen)
        if stuck and not forced:
            self._parked = parked
            return False
        if stuck:  # each waits at a different barrier
            chosen = [np.ones(each.threads.size, bool) for each in parked]
        going = [each.of(which) for each, which in zip(parked, chosen, strict=True) if which.any()]
        self._parked = [each.of(~which) for each, which in zip(parked, chosen, strict=True) if not which.all()]
        self._check_barriers(going, stuck)
        for each in going:
            self._awaited[each.threads // self._padded] = 0
        self._reduce(going)
        for each in going:
            self._machine.go(each.next, each.threads)
        if self._machine.observer is not None:
            self._report(going)
        return True

    def _report(self, going: list[Blocked]) -> None:
        """Report whose memory is now ordered: blocks, or warps that arrived without the rest of their block."""
        groups = []
        for barrier in {each.barrier for each in going}:
            threads = np.concatenate([each.threads for each in going if each.barrier == barrier])
            counted = any(each.expected is not None for each in going if each.barrier == barrier)
            # A barrier with a count doesn't wait for those that end without it.
            whole = np.bincount(threads // self._padded, minlength=self._blocks) >= self._machine.per_block
            if not counted or whole.all():
                self._machine.observer.block_synchronised(np.unique(threads // self._padded))
                continue
            for block in np.unique(threads // self._padded):
                groups.append(np.unique(threads[threads // self._padded == block] // WARP))
        if groups:
            self._machine.observer.warps_synchronised(groups)

    def _reduce(self, going: list[Blocked]) -> None:
        """__syncthreads_count, _and, _or: reduce over the threads that arrived."""
        voting = [each for each in going if each.reduction]
        yes, came = np.zeros(self._blocks, np.int64), np.zeros(self._blocks, np.int64)
        for each in voting:
            blocks = each.threads // self._padded
            yes += np.bincount(blocks, each.reduction[2], self._blocks).astype(np.int64)
            came += np.bincount(blocks, minlength=self._blocks)
        for each in voting:
            how, out, _ = each.reduction
            result = {"popc": yes, "and": yes == came, "or": yes > 0}[how]
            self._machine.views[out][each.threads] = result[each.threads // self._padded]

    def _check_barriers(self, going: list[Blocked], stuck: bool) -> None:
        """Check that all threads of each block reached the same barrier; threads that ended earlier don't count."""
        kind = "barrier not reached by all threads"
        arrived, lines = np.zeros(self._blocks, np.int64), np.zeros(self._blocks, np.int64)
        for each in going:
            arrived += np.bincount(each.threads // self._padded, minlength=self._blocks)
        for each in going:
            blocks = np.unique(each.threads // self._padded)
            others = blocks[(lines[blocks] != 0) & (lines[blocks] != each.line)]
            before = lines[others[0]] if others.size else 0
            lines[blocks] = each.line
            early = blocks[arrived[blocks] < self._awaited[blocks]]
            if others.size and (each.expected is None or stuck):
                where = f"other threads of the block wait at line {before}"
                self._machine.hazard(kind, each.line, where, int(each.threads[0]), int(others.size))
            elif early.size and each.expected is None:
                where = f"{int(arrived[early[0]])} of {self._awaited[early[0]]} threads of the block reach it"
                thread = int(each.threads[each.threads // self._padded == early[0]][0])
                self._machine.hazard(kind, each.line, where, thread, int(early.size))
