"""Runs a program for all threads of many blocks at once.

Threads are rows of NumPy arrays, 32 to a warp, blocks one after another. Those that stand at the same basic block run
together; of several groups the one that stands first in the program goes on, so that threads which parted meet again
where their ways join. A barrier parks the threads that reach it until their block is complete.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from helpers.instruments.cuda.memory import UNSIGNED, GlobalMemory, Segment
from helpers.instruments.cuda.operation import DTYPES
from helpers.instruments.cuda.ptx import Not, Program, PtxInstruction
from helpers.instruments.cuda.warp import COLLECTIVE, WARP, ballot, everyone, value

THREADS_AT_ONCE = 1 << 15  # enough to make NumPy's overhead small, few enough for a core's cache
BUDGET = 3_000_000  # steps, each one instruction of many threads: tens of seconds
_JUMPS = {"bra", "brx", "ret", "exit", "trap"}
_BARRIERS = {"bar", "barrier"}
_BARRIER_MODIFIERS = {"sync", "cta", "aligned", "red", "popc", "and", "or", "pred", "u32", "warp"}
_RAW = {"pred": np.dtype(bool), "16": np.dtype("u2"), "32": np.dtype("u4"), "64": np.dtype("u8")}


class Blocked(NamedTuple):
    """Threads at a barrier."""

    threads: np.ndarray
    next: int  # basic block
    barrier: int
    expected: int | None  # threads, where the instruction says so
    line: int
    reduction: tuple | None  # how, key of the result, each thread's vote

    def of(self, chosen: np.ndarray) -> "Blocked":
        """Those of the threads that are chosen."""
        votes = self.reduction and (*self.reduction[:2], self.reduction[2][chosen])
        return self._replace(threads=self.threads[chosen], reduction=votes)


@dataclass
class Basic:
    """A basic block: steps, and the instruction that ends it, if it jumps or waits."""

    steps: list
    lines: list[int]
    count: int  # instructions
    end: PtxInstruction | None
    waits_for: object = None  # key of the mask of lanes that its first step waits for


class Views(dict):
    """(type, slot) -> the register of every thread as an array of that type; made when first asked for."""

    def __init__(self, kinds: list[str], constants: dict, threads: int):
        super().__init__()
        self._kinds, self._constants, self._threads = kinds, constants, threads
        self._raw = {}

    def __missing__(self, key):
        type, slot = key[:2]
        raw = self._raw.get(slot)
        if raw is None:
            raw = self._raw[slot] = np.full(self._threads, self._constants.get(slot, 0), _RAW[self._kinds[slot]])
        dtype = DTYPES[type]
        view = raw.view(dtype)
        if view.size > raw.size and not type.endswith("x2"):
            view = view[:: view.size // raw.size]  # the low bytes
        self[key] = view
        return view


class Machine:
    """One launch.

    Args:
        memory: what the launch may touch.
        grid, block: three sizes each.
        shared, local: bytes a block and a thread.
        observer: told of every access, or None; see helpers.instruments.traffic.cuda.
    """

    def __init__(
        self, name: str, program: Program, decoder, memory: GlobalMemory, grid, block, shared: int, local: int, observer
    ):
        self._name, self._program, self._memory = name, program, memory
        self._decoder, self._observer = decoder, observer
        self._grid, self._block = grid, block
        self.shared_size, self.local_size = -(-shared // 16) * 16, -(-local // 16) * 16
        self.shared_limit = shared
        self.executed = 0  # thread-instructions
        self._steps = 0
        self._basic = self._blocks()

    # The program as basic blocks

    def _blocks(self) -> list[Basic]:
        instructions, labels = self._program.instructions, self._program.labels
        starts = {0, *labels.values()}
        for place, instruction in enumerate(instructions):
            if instruction.opcode in _JUMPS or (instruction.opcode in _BARRIERS and instruction.modifiers[0] != "warp"):
                starts.add(place + 1)
            elif _collective(instruction):
                starts.add(place)
        starts = sorted(start for start in starts if start < len(instructions))
        self._number = {start: number for number, start in enumerate(starts)}
        self._end = len(starts)
        return [
            self._basic_block(instructions[start:end])
            for start, end in zip(starts, [*starts[1:], len(instructions)], strict=True)
        ]

    def _basic_block(self, instructions) -> Basic:
        last = instructions[-1]
        if last.opcode in _BARRIERS and not set(last.modifiers) <= _BARRIER_MODIFIERS:
            raise NotImplementedError(f"the executor does not cover {last.name}, line {last.line}: run it on a GPU")
        ends = last.opcode in _JUMPS or (last.opcode in _BARRIERS and last.modifiers[0] != "warp")
        steps, lines = [], []
        for instruction in instructions[:-1] if ends else instructions:
            step = self._decoder.step(instruction)
            if step is not None:
                steps.append(step)
                lines.append(instruction.line)
        block = Basic(steps, lines, len(instructions), last if ends else None)
        if _collective(instructions[0]):
            block.waits_for = self._decoder.key(instructions[0].operands[-1], "u32")
            block.lines = lines or [instructions[0].line]
        return block

    def _target(self, label: str) -> int:
        place = self._program.labels[label]
        return self._number.get(place, self._end)

    # Running

    def run(self) -> None:
        per_block = int(np.prod(self._block))
        self._padded = -(-per_block // WARP) * WARP
        blocks = int(np.prod(self._grid))
        at_once = max(1, THREADS_AT_ONCE // self._padded)
        with np.errstate(all="ignore"):
            for first in range(0, blocks, at_once):
                self._run_chunk(first, min(at_once, blocks - first), per_block)

    def _run_chunk(self, first: int, blocks: int, per_block: int) -> None:
        padded = self._padded
        self.first_block, self.blocks, self.per_block = first, blocks, per_block
        self.threads = blocks * padded
        self.views = Views(self._program.registers, self._decoder.constants, self.threads)
        self._special(first, blocks)
        self._shared = self._poisoned(blocks * self.shared_size)
        self._local = self._poisoned(self.threads * self.local_size)
        self._alive = np.zeros((blocks, padded), bool)
        self._alive[:, :per_block] = True
        self._alive = self._alive.ravel()
        if self._observer is not None:
            self._observer.chunk(self)
        start = None if padded == per_block else np.flatnonzero(self._alive)
        self._waiting = {0: [start]}
        self._parked: list[Blocked] = []
        self._deferred: dict[int, list] = {}
        while self._waiting or self._resume():
            number = min(self._waiting)
            self._run_block(number, self._merged(self._waiting.pop(number)))

    @staticmethod
    def _poisoned(size: int) -> dict[int, np.ndarray]:
        """Memory that nobody has written: NaN in every floating-point type."""
        memory = np.full(size, 0xFF, np.uint8)
        return {itemsize: memory.view(kind) for itemsize, kind in UNSIGNED.items()}

    def _special(self, first: int, blocks: int) -> None:
        thread = np.tile(np.arange(self._padded), blocks)
        block = np.repeat(np.arange(first, first + blocks), self._padded)
        lane = thread & 31
        one = np.uint64(1)
        bit = (one << lane.astype(np.uint64)).astype(np.uint32)
        values = {
            "%laneid": lambda: lane,
            "%warpid": lambda: thread // WARP,
            "%lanemask_eq": lambda: bit,
            "%lanemask_lt": lambda: bit - np.uint32(1),
            "%lanemask_le": lambda: bit | (bit - np.uint32(1)),
            "%lanemask_gt": lambda: ~(bit | (bit - np.uint32(1))),
            "%lanemask_ge": lambda: ~(bit - np.uint32(1)),
        }
        for name, index, sizes in (("tid", thread, self._block), ("ctaid", block, self._grid)):
            values[f"%{name}.x"] = lambda index=index, sizes=sizes: index % sizes[0]
            values[f"%{name}.y"] = lambda index=index, sizes=sizes: index // sizes[0] % sizes[1]
            values[f"%{name}.z"] = lambda index=index, sizes=sizes: index // (sizes[0] * sizes[1])
        for name, slot in self._program.special.items():
            if slot not in self._decoder.constants:
                self.views["u32", slot][...] = values[name]()

    def _merged(self, pieces):
        if len(pieces) == 1:
            return pieces[0]
        threads = np.sort(np.concatenate(pieces))
        return None if threads.size == self.threads else threads

    def _go(self, number: int, threads) -> None:
        if number >= self._end:
            self._finish(threads)
        elif threads is None or threads.size:
            self._waiting.setdefault(number, []).append(threads)

    def _finish(self, threads) -> None:
        self._alive[slice(None) if threads is None else threads] = False

    def _run_block(self, number: int, threads) -> None:
        while True:
            block = self._basic[number]
            if block.waits_for is not None:
                threads = self._complete_warps(number, block, threads)
                if threads is not None and not threads.size:
                    return
            for step in block.steps:
                step(self, threads)
            self.executed += block.count * (self.threads if threads is None else threads.size)
            self._steps += 1 + len(block.steps)
            if self._steps > BUDGET:
                line = next((line for line in reversed(block.lines) if line), block.end.line if block.end else 0)
                raise RuntimeError(
                    f"{self._name} is still running after {BUDGET:,} steps, now at line {line}: does a loop end, or "
                    "wait for a thread that comes later?"
                )
            if block.end is None:
                number += 1
                if number >= self._end:
                    self._finish(threads)
                    return
                if number in self._waiting or (self._waiting and min(self._waiting) < number):
                    self._go(number, threads)
                    return
                continue
            self._leave(number, block.end, threads)
            return

    def _leave(self, number: int, end: PtxInstruction, threads) -> None:
        """Carry out what ends a basic block."""
        if end.guard is not None:
            register, negated = end.guard
            holds = self.views["pred", register.slot]
            holds = holds if threads is None else holds[threads]
            holds = ~holds if negated else holds
            if not holds.all():
                here = everyone(self, threads)
                self._go(number + 1, here[~holds])
                threads = here[holds]
                if not threads.size:
                    return
        if end.opcode == "bra":
            self._go(self._target(end.operands[0].name), threads)
        elif end.opcode == "brx":
            choice = value(self, self._decoder.key(end.operands[0], "u32"), threads, everyone(self, threads).size)
            for place, label in enumerate(self._program.targets[end.operands[1].name]):
                self._go(self._target(label), everyone(self, threads)[choice == place])
        elif end.opcode in _BARRIERS:
            self._park(end, number + 1, everyone(self, threads))
        elif end.opcode == "trap":
            block, thread = self.where(int(everyone(self, threads)[0]))
            what = "an assertion fails" if end.modifiers else "a trap"
            raise RuntimeError(f"{self._name}, line {end.line}: {what} (thread {thread} of block {block})")
        else:
            self._finish(threads)

    # Waiting for one another

    def _complete_warps(self, number: int, block: Basic, threads):
        """The threads whose warps have all the lanes that their mask names; the others wait until those come."""
        here = everyone(self, threads)
        masks = np.asarray(value(self, block.waits_for, threads, here.size))
        present = ballot(self, threads, np.ones(here.size, bool))[here >> 5]
        own = (masks >> (here & 31).astype(np.uint32)) & np.uint32(1) == 0
        if own.any():
            first = int(np.flatnonzero(own)[0])
            where = f"lane {int(here[first]) & 31} is not in its own mask 0x{int(masks[first]):08x}"
            self.hazard("wrong mask", block.lines[0], where, int(here[first]), int(own.sum()))
        absent = masks & ~present
        if not absent.any():
            return threads
        living = ballot(self, None, self._alive)[here >> 5]
        incomplete = absent & living != 0
        if (
            incomplete.any()
            and self._waiting.keys() | self._deferred.keys() | {each.next for each in self._parked}
            and not self._forced
        ):
            late = np.isin(here >> 5, np.unique(here[incomplete] >> 5))
            self._deferred.setdefault(number, []).append(here[late])
            return here[~late]
        first = int(np.flatnonzero(absent)[0])
        lane = int(absent[first] & -absent[first]).bit_length() - 1
        where = f"the mask 0x{int(masks[first]):08x} names lane {lane}, which does not take part"
        self.hazard("wrong mask", block.lines[0], where, int(here[first]), int((absent != 0).sum()))
        return threads

    _forced = False

    def _resume(self) -> bool:
        """When nobody can run: those that waited for lanes of their warp, then those at barriers."""
        if self._deferred:
            deferred, self._deferred = self._deferred, {}
            before = {number: sum(map(len, pieces)) for number, pieces in deferred.items()}
            stuck = before == getattr(self, "_before", None)
            self._before = before
            if not stuck or not self._parked:
                self._forced = stuck
                self._waiting = deferred
                return True
            self._deferred = deferred
        self._forced = False
        return bool(self._parked) and self._release()

    def _park(self, end: PtxInstruction, number: int, threads: np.ndarray) -> None:
        operands = end.operands
        reduction = None
        if "red" in end.modifiers:
            result, *operands, vote = operands
            inverted = isinstance(vote, Not)
            votes = self.views["pred", (vote.register if inverted else vote).slot][threads] != inverted
            how = end.modifiers[end.modifiers.index("red") + 1]
            reduction = how, (end.modifiers[-1], result.slot), votes
        barrier, *expected = (int(self._decoder.key(operand, "u32")) for operand in operands)
        expected = expected[0] if expected else None
        self._parked.append(Blocked(threads, number, barrier, expected, end.line, reduction))

    def _release(self) -> bool:
        """Let the threads go on whose barrier is complete: reached by all living threads, or by as many as it names."""
        parked, self._parked = self._parked, []
        alive = np.bincount(np.flatnonzero(self._alive) // self._padded, minlength=self.blocks)
        arrived = {each.barrier: np.zeros(self.blocks, np.int64) for each in parked}
        for each in parked:
            arrived[each.barrier] += np.bincount(each.threads // self._padded, minlength=self.blocks)
        chosen = []
        for each in parked:
            needed = alive if each.expected is None else np.minimum(each.expected, alive)
            chosen.append((arrived[each.barrier] >= needed)[each.threads // self._padded])
        stuck = not any(each.any() for each in chosen)
        if stuck:  # each waits at another barrier
            chosen = [np.ones(each.threads.size, bool) for each in parked]
        going = [each.of(which) for each, which in zip(parked, chosen, strict=True) if which.any()]
        self._parked = [each.of(~which) for each, which in zip(parked, chosen, strict=True) if not which.all()]
        self._check_barriers(going, stuck)
        self._reduce(going)
        for each in going:
            self._go(each.next, each.threads)
        if self._observer is not None:
            threads = np.concatenate([each.threads for each in going])
            self._observer.block_synchronised(np.unique(threads // self._padded))
        return True

    def _reduce(self, going: list[Blocked]) -> None:
        """__syncthreads_count, _and, _or: over the threads that came."""
        voting = [each for each in going if each.reduction]
        yes, came = np.zeros(self.blocks, np.int64), np.zeros(self.blocks, np.int64)
        for each in voting:
            blocks = each.threads // self._padded
            yes += np.bincount(blocks, each.reduction[2], self.blocks).astype(np.int64)
            came += np.bincount(blocks, minlength=self.blocks)
        for each in voting:
            how, out, _ = each.reduction
            result = {"popc": yes, "and": yes == came, "or": yes > 0}[how]
            self.views[out][each.threads] = result[each.threads // self._padded]

    def _check_barriers(self, going: list[Blocked], stuck: bool) -> None:
        """Whether all threads of each block came, and to the same barrier."""
        kind = "barrier not reached by all threads"
        arrived, lines = np.zeros(self.blocks, np.int64), np.zeros(self.blocks, np.int64)
        for each in going:
            arrived += np.bincount(each.threads // self._padded, minlength=self.blocks)
        for each in going:
            blocks = np.unique(each.threads // self._padded)
            others = blocks[(lines[blocks] != 0) & (lines[blocks] != each.line)]
            before = lines[others[0]] if others.size else 0
            lines[blocks] = each.line
            early = blocks[arrived[blocks] < self.per_block]
            if others.size and (each.expected is None or stuck):
                where = f"other threads of the block wait at line {before}"
                self.hazard(kind, each.line, where, int(each.threads[0]), int(others.size))
            elif early.size and each.expected is None:
                where = f"{int(arrived[early[0]])} of {self.per_block} threads of the block reach it"
                thread = int(each.threads[each.threads // self._padded == early[0]][0])
                self.hazard(kind, each.line, where, thread, int(early.size))

    @property
    def watched(self) -> bool:
        return self._observer is not None

    def check_agreement(self, line: int, threads, other: np.ndarray, offsets: np.ndarray) -> None:
        """After a store to shared memory: who finds another value there stored to one byte together with another."""
        if other.any():
            here = everyone(self, threads)[other]
            byte = int(offsets[other][0]) % self.shared_size
            where = f"shared memory, byte {byte}, where another thread stores another value at the same time"
            self.hazard("race", line, where, int(here[0]), int(other.sum()))

    def warp_synchronised(self, threads) -> None:
        if self._observer is not None:
            self._observer.warp_synchronised(threads)

    # Memory

    def global_access(self, kind, line, threads, here, addresses, nbytes):
        segment, offsets, inside = self._memory.find(addresses, nbytes)
        if inside is not None:
            self._outside(kind, line, here[~inside], addresses[~inside], nbytes)
            here, addresses = here[inside], addresses[inside]
            if not here.size:
                return
            segment, offsets, _ = self._memory.find(addresses, nbytes)
            threads = here
        aligned = self._aligned(kind, line, here, addresses, nbytes)
        if aligned is not None:
            here, offsets = here[aligned], offsets[aligned]
            threads = here
            if not here.size:
                return
        if self._observer is not None:
            self._observer.access(kind, line, segment, here, offsets, nbytes)
        yield threads, segment.views, offsets

    def shared_access(self, kind, line, threads, here, addresses, nbytes):
        bound = np.uint64(self.shared_limit - nbytes) if self.shared_limit >= nbytes else None
        inside = addresses <= bound if bound is not None else np.zeros(addresses.shape, bool)
        if not inside.all():
            address = int(addresses[~inside][0])
            where = f"shared memory, byte {address} of {self.shared_limit}"
            self._stray(kind, line, where, int(here[~inside][0]), int((~inside).sum()))
            here, addresses = here[inside], addresses[inside]
            threads = here
        aligned = self._aligned(kind, line, here, addresses, nbytes)
        if aligned is not None:
            here, addresses = here[aligned], addresses[aligned]
            threads = here
        if not here.size:
            return
        offsets = addresses.astype(np.int64) + here // self._padded * self.shared_size
        if self._observer is not None:
            self._observer.shared(kind, line, here, offsets, nbytes)
        yield threads, self._shared, offsets

    def local_access(self, kind, line, threads, here, addresses, nbytes):
        inside = addresses <= np.uint64(max(self.local_size - nbytes, 0))
        if not inside.all():
            where = f"a local array, byte {int(addresses[~inside][0])} of {self.local_size}"
            self._stray(kind, line, where, int(here[~inside][0]), int((~inside).sum()))
            here, addresses = here[inside], addresses[inside]
            threads = here
            if not here.size:
                return
        aligned = self._aligned(kind, line, here, addresses, nbytes)
        if aligned is not None:
            here, addresses = here[aligned], addresses[aligned]
            threads = here
        offsets = addresses.astype(np.int64) + here * self.local_size
        if self._observer is not None:
            self._observer.local(kind, line, here, offsets, nbytes)
        yield threads, self._local, offsets

    def _aligned(self, kind, line, here, addresses, nbytes):
        """The lanes whose address is a multiple of the access; None: all."""
        astray = addresses & np.uint64(nbytes - 1) != 0
        if not astray.any():
            return None
        first = int(np.flatnonzero(astray)[0])
        where = f"an access of {nbytes} bytes at byte {int(addresses[first]) & ((1 << 36) - 1)}"
        self._stray(f"misaligned {kind}", line, where, int(here[first]), int(astray.sum()))
        return ~astray

    def _outside(self, kind, line, here, addresses, nbytes) -> None:
        segment, offset = self._memory.describe(int(addresses[0]))
        where = f"address {offset}, no tensor's" if segment is None else _element(segment, offset)
        self._stray(kind, line, where, int(here[0]), int(here.size))

    def _stray(self, kind, line, where, thread, count) -> None:
        """An access that may not be made: an error, or under a meter a hazard."""
        kind = (
            "out-of-bounds " + {"write": "store"}.get(kind, kind)
            if not kind.startswith("misaligned")
            else kind.replace("write", "store")
        )
        self.hazard(kind, line, where, thread, count)

    def where(self, thread: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """(block, thread) as the kernel numbers them."""
        block, local = self.first_block + thread // self._padded, thread % self._padded
        unravel = lambda index, sizes: (index % sizes[0], index // sizes[0] % sizes[1], index // (sizes[0] * sizes[1]))  # noqa: E731
        return unravel(block, self._grid), unravel(local, self._block)

    def hazard(self, kind: str, line: int, where: str, thread: int, count: int) -> None:
        """Tell the observer; without one, a kernel that does this is stopped.

        Raises:
            RuntimeError: nobody observes.
        """
        block, index = self.where(thread)
        if self._observer is not None:
            self._observer.hazard(kind, line, where, block, index, count)
            return
        raise RuntimeError(
            f"{self._name}, line {line}: {kind}: {where} (thread {index} of block {block}, {count} in all)"
        )


def _collective(instruction: PtxInstruction) -> bool:
    return instruction.opcode in COLLECTIVE or (instruction.opcode == "bar" and instruction.modifiers[0] == "warp")


def _element(segment: Segment, offset: int) -> str:
    tensor = segment.tensor
    if tensor is None:
        return f"{segment.name}, byte {offset}"
    place = offset // tensor.element_size() - tensor.storage_offset()
    return f"{segment.name}, element {place} from its first ({segment.name} has {tensor.numel()})"
