"""Find accesses in a cooperative launch that no counter orders, with vector clocks.

A program's clock counts its releases and records what it knows of the other programs' clocks: a releasing atomic passes
the clock to the counter, an acquiring one merges the counter's clock. Two accesses to one byte by two programs, one of
them a store, race unless the later program knew the earlier one's clock as it was at the earlier access.

Source: Flanagan and Freund, "FastTrack: efficient and precise dynamic race detection", PLDI 2009.
"""

from typing import NamedTuple

import numpy as np

from helpers.instruments.traffic.footprint import ByteSet, Footprint


class _Access(NamedTuple):
    program: tuple[int, int, int]
    clock: int
    footprint: Footprint
    base: int


class Clocks:
    """The clocks of one launch's programs and counters, and the accesses made so far."""

    def __init__(self):
        self._of_program: dict[tuple, dict[tuple, int]] = {}
        self._of_counter: dict[int, dict[tuple, int]] = {}
        self._stores: dict[object, list[_Access]] = {}
        self._reads: dict[object, list[_Access]] = {}

    def resumed(self, index: tuple[int, int, int]) -> None:
        """Note that program `index` runs now."""
        self._index = index
        self._clock = self._of_program.setdefault(index, {index: 1})

    def synchronised(self, address: int, acquires: bool, releases: bool) -> None:
        """Note an atomic of the program at `address`."""
        counter = self._of_counter.setdefault(address, {})
        if acquires:
            _join(self._clock, counter)
        if releases:
            _join(counter, self._clock)
            self._clock[self._index] += 1

    def accessed(self, kind: str, storage, footprint: Footprint, base: int):
        """Note a read or a write by the program.

        Returns:
            (program, whether it stored, first byte, bytes) of an access not ordered before this one, or None.
        """
        mine = _Access(self._index, self._clock[self._index], footprint, base)
        stores, reads = self._stores.setdefault(storage, []), self._reads.setdefault(storage, [])
        found = self._unordered(stores, mine, storage.size)
        if found is not None:
            found = found[0], True, *found[1:]
        elif kind == "write":
            found = self._unordered(reads, mine, storage.size)
            found = None if found is None else (found[0], False, *found[1:])
        (stores if kind == "write" else reads).append(mine)
        return found

    def _unordered(self, earlier: list[_Access], mine: _Access, size: int):
        bytes_of_mine = None
        low, high = mine.base + mine.footprint.low, mine.base + mine.footprint.high
        for other in earlier:
            if other.program == mine.program or other.clock <= self._clock.get(other.program, 0):
                continue
            if other.base + other.footprint.high <= low or other.base + other.footprint.low >= high:
                continue
            if bytes_of_mine is None:
                bytes_of_mine = ByteSet(size)
                bytes_of_mine.add(mine.footprint, mine.base)
            if bytes_of_mine.meets(other.footprint, other.base):
                theirs = ByteSet(size)
                theirs.add(other.footprint, other.base)
                both = np.flatnonzero(bytes_of_mine.map() & theirs.map())
                return other.program, int(both[0]), both.size
        return None


def _join(clock: dict[tuple, int], other: dict[tuple, int]) -> None:
    for program, time in other.items():
        clock[program] = max(time, clock.get(program, 0))
