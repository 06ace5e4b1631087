"""Run a program for all threads of many blocks at once.

Threads are rows of NumPy arrays, 32 to a warp, blocks one after another. Threads at the same basic block run together;
the group earliest in the program runs next, so that diverged threads reconverge where their paths join. A barrier parks
the threads that reach it until their block is complete.
"""

import time

import numpy as np

from helpers.instruments.cuda.barriers import Barriers
from helpers.instruments.cuda.basic_blocks import BARRIERS, Basic, basic_blocks
from helpers.instruments.cuda.memory import LOCAL_WINDOW, SHARED_WINDOW, GlobalMemory
from helpers.instruments.cuda.operation import DTYPES, REGISTERS
from helpers.instruments.cuda.printing import Printer
from helpers.instruments.cuda.ptx import Program, PtxInstruction
from helpers.instruments.cuda.spaces import Spaces
from helpers.instruments.cuda.warp import WARP, ballot, everyone, value

THREADS_AT_ONCE = 1 << 15  # enough to make NumPy's overhead small, few enough for a core's cache
PATIENCE = 1000  # turns of the first group of threads before the last one gets a turn
MAX_SECONDS = 8.0  # CPU time, for blocks that run together and have made MANY_STEPS
MANY_STEPS = 10_000  # each runs one instruction for many threads


class Views(dict):
    """(type, slot) -> the register of every thread as an array of that type; made on first use."""

    def __init__(self, kinds: list[str], constants: dict, threads: int):
        super().__init__()
        self._kinds, self._constants, self._threads = kinds, constants, threads
        self._raw = {}

    def __missing__(self, key):
        type, slot = key[:2]
        raw = self._raw.get(slot)
        if raw is None:
            raw = self._raw[slot] = np.full(self._threads, self._constants.get(slot, 0), REGISTERS[self._kinds[slot]])
        dtype = DTYPES[type]
        view = raw.view(dtype)
        if view.size > raw.size and not type.endswith("x2"):
            view = view[:: view.size // raw.size]  # the low bytes
        self[key] = view
        return view


class Machine:
    """One launch.

    Args:
        memory: the storages that the launch may access.
        grid, block: three sizes each.
        shared, local: bytes per block and per thread.
        observer: notified of every access, or None; see helpers.instruments.traffic.cuda_meter.
        skipped: number of blocks at the start of the grid that do not run.
        together: whether all blocks run at once, and may wait for one another.
    """

    def __init__(
        self, name: str, program: Program, decoder, memory: GlobalMemory, grid, block, shared: int, local: int,
        observer, skipped: int = 0, together: bool = False,
    ):  # fmt: skip
        self._name, self._program, self._memory = name, program, memory
        self.decoder, self.observer = decoder, observer
        self._grid, self._block, self._skipped, self._together = grid, block, skipped, together
        self.shared_size, self.local_size = -(-shared // 16) * 16, -(-local // 16) * 16
        self._shared_limit = shared
        self.executed = 0  # thread-instructions
        self.printer = Printer()
        self.basic, self._labels = basic_blocks(program, decoder)

    # Running

    def run(self) -> None:
        per_block = int(np.prod(self._block))
        self._padded = -(-per_block // WARP) * WARP
        blocks = int(np.prod(self._grid))
        at_once = blocks if self._together else max(1, THREADS_AT_ONCE // self._padded)
        with np.errstate(all="ignore"):
            for first in range(self._skipped, blocks, at_once):
                self._run_chunk(first, min(at_once, blocks - first), per_block)

    def _run_chunk(self, first: int, blocks: int, per_block: int) -> None:
        padded = self._padded
        self.first_block, self.blocks, self.per_block = first, blocks, per_block
        self.threads = blocks * padded
        self.views = Views(self._program.registers, self.decoder.constants, self.threads)
        self._special(first, blocks)
        self.spaces = Spaces(self, self._memory, padded, self._shared_limit)
        self._barriers = Barriers(self, padded)
        self.alive = np.zeros((blocks, padded), bool)
        self.alive[:, :per_block] = True
        self.alive = self.alive.ravel()
        if self.observer is not None:
            self.observer.chunk(self)
        start = None if padded == per_block else np.flatnonzero(self.alive)
        self._waiting = {0: [start]}
        self._deferred: dict[int, list] = {}
        self._steps, self._next_look, self._began = 0, MANY_STEPS, time.thread_time()
        turns = 0
        while self._waiting or self._resume():
            if not self._waiting:  # all threads released by a barrier ended right after it
                continue
            # Occasionally run the last: the first may be spinning on a value that only the last can write.
            turns += len(self._waiting) > 1 or bool(self._barriers)
            if turns % PATIENCE == PATIENCE - 2:  # or on one that waits at a complete barrier
                turns += 1
                self._barriers.release(forced=False)
            number = max(self._waiting) if turns % PATIENCE == PATIENCE - 1 else min(self._waiting)
            self._run_block(number, self._merged(self._waiting.pop(number)))

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
            if slot not in self.decoder.constants:
                self.views["u32", slot][...] = values[name]()

    def _merged(self, pieces):
        if len(pieces) == 1:
            return pieces[0]
        threads = np.sort(np.concatenate(pieces))
        return None if threads.size == self.threads else threads

    def go(self, number: int, threads) -> None:
        if number >= len(self.basic) or self.basic[number].leaves:  # at once: no barrier waits for these
            self._finish(threads)
        elif threads is None or threads.size:
            self._waiting.setdefault(number, []).append(threads)

    def _finish(self, threads) -> None:
        self.alive[slice(None) if threads is None else threads] = False

    def _run_block(self, number: int, threads) -> None:
        while True:
            block = self.basic[number]
            if block.waits_for is not None:
                threads = self._complete_warps(number, block, threads)
                if threads is not None and not threads.size:
                    return
            for step in block.steps:
                step(self, threads)
            self.executed += block.count * (self.threads if threads is None else threads.size)
            self._steps += 1 + len(block.steps)
            if self._steps > self._next_look:
                self._check_time(block)
            if block.end is None:
                number += 1
                if number >= len(self.basic):
                    self._finish(threads)
                    return
                if number in self._waiting or (self._waiting and min(self._waiting) < number):
                    self.go(number, threads)
                    return
                continue
            self._leave(number, block.end, threads)
            return

    def _check_time(self, block: Basic) -> None:
        self._next_look = self._steps + MANY_STEPS // 100
        if time.thread_time() - self._began > MAX_SECONDS:
            line = next((line for line in reversed(block.lines) if line), block.end.line if block.end else 0)
            raise RuntimeError(
                f"{self._name} is still running after {self._steps:,} steps, now at line {line}: does every loop "
                "end, or does one wait for a thread that runs later?"
            )

    def _leave(self, number: int, end: PtxInstruction, threads) -> None:
        """Run the instruction that ends a basic block."""
        if end.guard is not None:
            register, negated = end.guard
            holds = self.views["pred", register.slot]
            holds = holds if threads is None else holds[threads]
            holds = ~holds if negated else holds
            if not holds.all():
                here = everyone(self, threads)
                self.go(number + 1, here[~holds])
                threads = here[holds]
                if not threads.size:
                    return
        if end.opcode == "bra":
            self.go(self._labels[end.operands[0].name], threads)
        elif end.opcode == "brx":
            choice = value(self, self.decoder.key(end.operands[0], "u32"), threads, everyone(self, threads).size)
            for place, label in enumerate(self._program.targets[end.operands[1].name]):
                self.go(self._labels[label], everyone(self, threads)[choice == place])
        elif end.opcode in BARRIERS:
            self._barriers.park(end, number + 1, everyone(self, threads))
        elif end.opcode == "trap":
            block, thread = self.where(int(everyone(self, threads)[0]))
            what = "an assertion fails" if end.modifiers else "a trap"
            raise RuntimeError(f"{self._name}, line {end.line}: {what} (thread {thread} of block {block})")
        else:
            self._finish(threads)

    # Waiting for other threads

    def _complete_warps(self, number: int, block: Basic, threads):
        """Return the threads whose warps have all lanes named by their mask; the others wait for missing lanes."""
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
        living = ballot(self, None, self.alive)[here >> 5]
        incomplete = absent & living != 0
        others = self._waiting or self._deferred or self._barriers
        if incomplete.any() and others and not self._forced:
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
        """Release, once no thread can run, the threads waiting for lanes of their warp, then those at barriers."""
        if self._deferred:
            deferred, self._deferred = self._deferred, {}
            before = {number: sum(map(len, pieces)) for number, pieces in deferred.items()}
            stuck = before == getattr(self, "_before", None)
            self._before = before
            if not stuck or not self._barriers:
                self._forced = stuck
                self._waiting = deferred
                return True
            self._deferred = deferred
        self._forced = False
        return bool(self._barriers) and self._barriers.release()

    def text_at(self, address: int, thread: int) -> str:
        """Return a C string from any memory that the thread can address."""
        inside = address & (SHARED_WINDOW - 1)
        if address >= LOCAL_WINDOW:
            raw = self.local_bytes(thread, inside)
        elif address >= SHARED_WINDOW:
            start = thread // self._padded * self.shared_size
            raw = self.spaces.shared_words().view(np.uint8)[start : start + self.shared_size][inside:].tobytes()
        else:
            raw = self._memory.bytes_at(address)
        return raw.split(b"\0", 1)[0].decode(errors="replace")

    def local_bytes(self, thread: int, offset: int) -> bytes:
        """Return a thread's local memory, starting at an offset."""
        return self.spaces.local[1][thread * self.local_size :][offset : self.local_size].tobytes()

    def where(self, thread: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return (block, thread) as the kernel numbers them."""
        block, local = self.first_block + thread // self._padded, thread % self._padded
        unravel = lambda index, sizes: (index % sizes[0], index // sizes[0] % sizes[1], index // (sizes[0] * sizes[1]))  # noqa: E731
        return unravel(block, self._grid), unravel(local, self._block)

    def hazard(self, kind: str, line: int, where: str, thread: int, count: int) -> None:
        """Report a hazard to the observer; without one, stop the kernel.

        Raises:
            RuntimeError: there is no observer.
        """
        block, index = self.where(thread)
        if self.observer is not None:
            self.observer.hazard(kind, line, where, block, index, count)
            return
        raise RuntimeError(
            f"{self._name}, line {line}: {kind}: {where} (thread {index} of block {block}, {count} in all)"
        )
