"""Watch shared, global and local memory for races and reads of uninitialised memory.

Every cell of memory records which thread wrote it last, which have read it since, and when. Two accesses to one cell
by two threads race if one of them writes and no barrier orders the two: a block barrier, one that both warps reached,
or a __syncwarp that named both lanes.
"""

from typing import NamedTuple

import numpy as np

WARP = 32
BANKS = 32
_ALL = np.uint32(0xFFFFFFFF)
CELL = 4  # bytes, until a smaller access requires finer cells
MOST_READS = 256  # accesses buffered before they are recorded: at 32,768 threads, tens of MB


class Clock:
    """Record when barriers ordered the threads of the blocks that run together; one for all memory.

    Args:
        threads: number in all these blocks, in whole warps; padded: threads per block; now: the time.
    """

    def __init__(self, threads: int, padded: int, now: int = 1):
        self.now, self._padded = now, padded
        self.block = np.zeros(threads // padded, np.int32)  # each block's last barrier
        self.warp = np.zeros(threads // WARP, np.int32)
        # For barriers that not all threads reach: when each thread was last ordered after the lanes of its warp, each
        # warp after those of its block, directly or through others.
        self._lanes = self._warps = None

    @property
    def partial(self) -> bool:
        """Return whether some barrier covered only part of a block or warp."""
        return self._lanes is not None or self._warps is not None

    def tick(self) -> int:
        self.now += 1
        return self.now

    def block_synchronised(self, blocks: np.ndarray) -> None:
        self.block[blocks] = self.tick()

    def warps_synchronised(self, groups: list[np.ndarray]) -> None:
        """Order the warps of each group, given as indices into the chunk."""
        if self._warps is None:
            self._warps = np.zeros((self.warp.size, self._padded // WARP), np.int32)
        now = self.tick()
        for group in groups:
            joint = self._warps[group].max(0)
            joint[group % (self._padded // WARP)] = now
            self._warps[group] = joint
            self.warp[group] = now

    def lanes_synchronised(self, threads: np.ndarray, masks: np.ndarray) -> None:
        """Order the lanes that name each other in their masks."""
        now = self.tick()
        whole = masks == _ALL
        self.warp[threads[whole] // WARP] = now
        if whole.all():
            return
        if self._lanes is None:
            self._lanes = np.zeros((self.warp.size, WARP, WARP), np.int32)
        for mask in np.unique(masks[~whole]):
            warps = np.unique(threads[masks == mask] // WARP)
            lanes = np.flatnonzero(np.uint32(mask) >> np.arange(WARP, dtype=np.uint32) & np.uint32(1))
            joint = self._lanes[warps[:, None], lanes].max(1)
            joint[:, lanes] = now
            self._lanes[warps[:, None], lanes] = joint[:, None, :]

    def ordered(self, before: np.ndarray, threads: np.ndarray, when: np.ndarray) -> np.ndarray:
        """Return which accesses by the threads `before`, in the same block, are now ordered before `threads`."""
        one, two = before // WARP, threads // WARP
        result = self.block[threads // self._padded] > when
        result |= (one == two) & (self.warp[two] > when)
        if self._warps is not None:
            result |= self._warps[two, one % (self._padded // WARP)] > when
        if self._lanes is not None:
            result |= (one == two) & (self._lanes[two, threads % WARP, before % WARP] > when)
        return result


class SharedFault(NamedTuple):
    """kind "race" or "uninitialised read"; byte: in the block's shared memory; other: the thread before, or -1."""

    kind: str
    thread: int
    byte: int
    other: int
    count: int


class SharedWatch:
    """Shared memory of the blocks that run together.

    Args:
        clock: of these threads; threads: in all these blocks, in whole warps; padded: threads per block;
            size: bytes per block.
    """

    def __init__(self, clock: Clock, threads: int, padded: int, size: int):
        self._clock, self._padded, self._size, self._cell = clock, padded, size, CELL
        cells = threads // padded * size // CELL
        self._writer = np.full(cells, -1, np.int32)
        self._written = np.zeros(cells, np.int32)
        self._atomic = np.zeros(cells, bool)
        self._reader = np.full(cells, -1, np.int32)
        self._read = np.zeros(cells, np.int32)
        self._readers = np.zeros((2, cells), bool)  # several lanes of a warp, several warps
        # Another reader, and when it read: a barrier of part of a block or warp may order only some readers.
        self._second = np.full(cells, -1, np.int32)
        self._read_second = np.zeros(cells, np.int32)
        # Most accesses fall between two barriers without a write, or without a read: these need few of the checks.
        self._unwritten = True  # whether a cell may be uninitialised
        self._wrote = np.zeros(threads // padded, bool)  # blocks that wrote since their last barrier
        self._has_read = np.zeros(threads // padded, bool)
        self._reads: list[tuple] = []  # not recorded yet: a write may never need them

    def block_synchronised(self, blocks: np.ndarray) -> None:
        self._wrote[blocks] = self._has_read[blocks] = False
        if self._has_read.any():
            self._enter_reads()
        self._reads.clear()

    def partly_synchronised(self) -> None:
        """Record the reads before a barrier of some threads."""
        self._enter_reads()

    def access(self, kind: str, threads: np.ndarray, offsets: np.ndarray, nbytes: int) -> list[SharedFault]:
        """Return the faults of one load ("read"), store ("write") or atomic; offsets run through all blocks."""
        if nbytes < self._cell:
            self._refine(nbytes)
        if kind == "read":
            return self._read_access(threads, offsets, nbytes)
        threads, cells = self._cells(threads, offsets, nbytes)
        found = []
        racing, other = np.zeros(cells.shape, bool), None
        if kind == "atomic" and self._unwritten:
            found += self._report("uninitialised read", self._writer[cells] < 0, threads, cells, self._writer[cells])
        if self._wrote.any():
            other = self._writer[cells]
            racing = self._unordered(other, threads, self._written[cells])
            if kind == "atomic":
                racing &= ~self._atomic[cells]
        if self._has_read.any():
            self._enter_reads()
            reader, read = self._reader[cells], self._read[cells]
            if self._clock.partial:
                read_first = self._unordered(reader, threads, read)
                second = self._second[cells]
                read_second = self._unordered(second, threads, self._read_second[cells])
                reader = np.where(read_first, reader, second)
                read_first |= read_second
            else:
                since = read >= self._clock.block[threads // self._padded]
                several, warps = self._readers[0, cells], self._readers[1, cells]
                together = (read >= self._clock.warp[threads // WARP]) & (several | (reader != threads))
                read_first = since & (reader >= 0) & (warps | (reader // WARP != threads // WARP) | together)
            other = reader if other is None else np.where(racing, other, reader)
            racing = racing | read_first
        found += self._report("race", racing, threads, cells, other)
        self._writer[cells] = threads
        self._written[cells] = self._clock.now
        self._atomic[cells] = kind == "atomic"
        self._unwritten = self._unwritten and bool((self._writer < 0).any())
        self._wrote[threads // self._padded] = True
        return found

    def _read_access(self, threads, offsets, nbytes) -> list[SharedFault]:
        found = []
        self._reads.append((threads, offsets, nbytes))
        self._has_read[threads // self._padded] = True
        if len(self._reads) > MOST_READS:
            self._enter_reads()
        wrote = self._wrote.any()
        if wrote or self._unwritten:
            threads, cells = self._cells(threads, offsets, nbytes)
            writer = self._writer[cells]
            if self._unwritten:
                found += self._report("uninitialised read", writer < 0, threads, cells, writer)
        if wrote:
            racing = self._unordered(writer, threads, self._written[cells])
            found += self._report("race", racing, threads, cells, writer)
        return found

    def _cells(self, threads, offsets, nbytes):
        """Return (threads, cells): a thread and a cell for each access to a cell."""
        cells = offsets // self._cell
        each = nbytes // self._cell
        if each > 1:
            cells = (cells[:, None] + np.arange(each)).ravel()
            threads = np.repeat(threads, each)
        return threads, cells

    def _enter_reads(self) -> None:
        """Record the remaining reads, before the time advances or a write needs them."""
        reads, self._reads = self._reads, []
        for threads, cells in (self._cells(*read) for read in reads):
            self._note_read(cells, threads)

    def _unordered(self, before, threads, when):
        """Return which accesses by the threads `before` (-1 for none) are unordered and not by `threads` themselves."""
        return (before >= 0) & (before != threads) & ~self._clock.ordered(before, threads, when)

    def _note_read(self, cells, threads) -> None:
        reader, read = self._reader[cells], self._read[cells]
        stale = read < self._clock.block[threads // self._padded]
        earlier = ~stale & (reader >= 0) & (reader != threads)
        elsewhere = earlier & (reader // WARP != threads // WARP)
        self._readers[0, cells] &= ~stale
        self._readers[1, cells] &= ~stale
        kept = self._unordered(reader, threads, read)
        if self._clock.partial:  # only then does the second one count: keep that of another warp
            second = self._second[cells]
            apart = self._unordered(second, threads, self._read_second[cells]) & (second // WARP != threads // WARP)
            kept &= ~apart | (reader // WARP != threads // WARP)
        self._second[cells[kept]], self._read_second[cells[kept]] = reader[kept], read[kept]
        self._reader[cells], self._read[cells] = threads, self._clock.now
        last = self._reader[cells]  # of the lanes that read it in this instruction
        lost = np.flatnonzero(last != threads)[::-1]  # the first lane, of the farthest warp, stays
        self._second[cells[lost]], self._read_second[cells[lost]] = threads[lost], self._clock.now
        self._readers[0, cells[earlier | (last != threads)]] = True
        self._readers[1, cells[elsewhere | (last // WARP != threads // WARP)]] = True

    def _report(self, kind, where, threads, cells, others) -> list[SharedFault]:
        if not where.any():
            return []
        first = int(np.flatnonzero(where)[0])
        byte = int(cells[first]) * self._cell % self._size
        return [SharedFault(kind, int(threads[first]), byte, int(others[first]), int(where.sum()))]

    def _refine(self, cell: int) -> None:
        times, self._cell = self._cell // cell, cell
        for name in ("_writer", "_written", "_atomic", "_reader", "_read", "_readers", "_second", "_read_second"):
            setattr(self, name, np.repeat(getattr(self, name), times, axis=-1))


BLOCK, GPU = 1, 2  # scopes of atomics


class GlobalFault(NamedTuple):
    """The lanes of one access that race, as indices into its arrays, and each one's previous thread in the chunk."""

    lanes: np.ndarray
    others: np.ndarray


class _Shadow:
    """The thread that last touched each cell of one allocation, and when; 0: none, else a grid thread from 1."""

    def __init__(self, nbytes: int, cell: int):
        self.cell = cell
        cells = -(-nbytes // cell)
        self.writer, self.written = np.zeros(cells, np.int64), np.zeros(cells, np.int32)
        self.reader, self.read = np.zeros(cells, np.int64), np.zeros(cells, np.int32)
        self.second, self.read_second = np.zeros(cells, np.int64), np.zeros(cells, np.int32)  # another reader
        self.strong = np.zeros(cells, np.int8)  # the scope of the atomic or volatile store that wrote it last; 0: none
        self.any_strong = self.any_second = False
        self.written_to = self.read_to = 0  # one past the last cell so far

    def refine(self, cell: int) -> None:
        times, self.cell = self.cell // cell, cell
        for name in ("writer", "written", "reader", "read", "second", "read_second", "strong"):
            setattr(self, name, np.repeat(getattr(self, name), times))
        self.written_to, self.read_to = self.written_to * times, self.read_to * times


def _places(cells, chosen: np.ndarray) -> np.ndarray:
    """Return the cells, an array or a slice, selected by a mask or by index."""
    if not isinstance(cells, slice):
        return cells[chosen]
    return cells.start + (np.flatnonzero(chosen) if chosen.dtype == bool else chosen)


class GlobalWatch:
    """Global memory of one launch, through all its blocks.

    Two accesses to one address by two threads race if one of them writes, at least one is neither atomic nor volatile,
    and nothing orders them; or if both are atomic, in two blocks, and one has the scope of its block. Threads are
    ordered by a barrier that both reached. Blocks are ordered if the first one, after its access, ran a fence and then
    an atomic or volatile access, and the second one has made such an access since, anywhere in memory: the thread
    itself, or one that a barrier has ordered before it. So an atomic on the wrong address goes unnoticed.
    """

    def __init__(self):
        self._shadows = {}
        self._fenced = np.zeros(0, np.int32)  # each block's last fence
        self._released = np.zeros(0, np.int32)  # the last fence before each block's last atomic

    def chunk(self, clock: Clock, first_block: int, blocks: int, padded: int) -> None:
        self._clock, self._padded, self._first = clock, padded, first_block * padded + 1
        for name in ("_fenced", "_released"):
            before = getattr(self, name)
            setattr(self, name, np.append(before, np.zeros(first_block + blocks - before.size, np.int32)))
        # Of this chunk: each thread's last atomic, and each warp's with its thread.
        self._acquired = np.zeros(blocks * padded, np.int32)
        self._of_warp = np.zeros((2, blocks * padded // WARP), np.int32)
        self._of_block = np.zeros(
            (2, blocks), np.int32
        )  # the last atomic, and the last before the block's last barrier

    def fenced(self, threads: np.ndarray) -> None:
        """Record a fence visible to other blocks."""
        self._fenced[(threads + (self._first - 1)) // self._padded] = self._clock.tick()

    def access(self, segment, size: int, kind: str, strong: int, threads, offsets, nbytes: int) -> GlobalFault | None:
        """Record an access, and return its lanes that race; for a store, only those that change a value.

        segment: any key of the allocation, of `size` bytes; strong: the scope of an atomic or volatile access, BLOCK or
        GPU, else 0; threads: indices into the chunk.
        """
        shadow = self._shadows.get(segment)
        if shadow is None:
            shadow = self._shadows[segment] = _Shadow(size, nbytes)
        if nbytes < shadow.cell:
            shadow.refine(nbytes)
        now = self._clock.now
        cells, each = offsets // shadow.cell, nbytes // shadow.cell
        who = threads + self._first
        if each > 1:
            cells, who = (cells[:, None] + np.arange(each)).ravel(), np.repeat(who, each)
        row = int(cells[-1]) - int(cells[0]) == cells.size - 1 and bool((cells[1:] > cells[:-1]).all())
        if row:  # neighbours, the usual case: no copies, and no two lanes at one address
            cells = slice(int(cells[0]), int(cells[-1]) + 1)
        low, high = (cells.start, cells.stop) if row else (0, int(cells.max()) + 1)
        found = []
        if shadow.written_to > low:
            writer = shadow.writer[cells]
            if shadow.any_strong and strong:
                wide = np.minimum(shadow.strong[cells], strong) >= GPU
                here = (writer - 1) // self._padded == (who - 1) // self._padded
                writer = np.where((shadow.strong[cells] > 0) & (wide | here), 0, writer)
            found.append(self._unordered(writer, shadow.written, cells, who))
        if kind != "read":
            if shadow.read_to > low:
                found.append(self._unordered(shadow.reader[cells], shadow.read, cells, who))
            if shadow.any_second:
                found.append(self._unordered(shadow.second[cells], shadow.read_second, cells, who))
        if kind != "read":
            shadow.writer[cells], shadow.written[cells] = who, now
            shadow.written_to = max(shadow.written_to, high)
            if strong or shadow.any_strong:
                shadow.strong[cells] = strong
                shadow.any_strong = True
        elif not strong:
            self._note_read(shadow, cells, who, now, row, low)
            shadow.read_to = max(shadow.read_to, high)
        if strong == BLOCK and kind != "read":
            last = np.broadcast_to(shadow.writer[cells], who.shape)  # of the lanes that change it in this instruction
            apart = np.flatnonzero((last - 1) // self._padded != (who - 1) // self._padded)
            found.append((apart, last[apart]) if apart.size else None)
        if strong >= GPU:
            blocks = (threads + (self._first - 1)) // self._padded
            self._released[blocks] = self._fenced[blocks]
            here = threads // self._padded
            sealed = self._clock.block[here] > self._of_block[0, here]
            self._of_block[1, here[sealed]] = self._of_block[0, here[sealed]]
            now = self._clock.tick()
            self._acquired[threads] = self._of_block[0, here] = self._of_warp[0, threads // WARP] = now
            self._of_warp[1, threads // WARP] = threads
        found = [each for each in found if each is not None]
        if not found:
            return None
        lanes, others = (np.concatenate(each) for each in zip(*found, strict=True))
        return GlobalFault(lanes // each, others - self._first)

    def written(self, segment, offsets: np.ndarray) -> np.ndarray:
        """Return, for each offset, whether the launch has stored there."""
        shadow = self._shadows.get(segment)
        return np.zeros(offsets.size, bool) if shadow is None else shadow.writer[offsets // shadow.cell] != 0

    def _note_read(self, shadow, cells, who, now, row, low) -> None:
        if shadow.read_to > low:
            before = shadow.reader[cells]
            other = (before != 0) & (before != who)
            if shadow.any_second and other.any():
                other &= self._apart(before, who) >= self._apart(shadow.second[cells], who)
            if other.any():
                places = _places(cells, other)
                shadow.second[places], shadow.read_second[places] = before[other], shadow.read[places]
                shadow.any_second = True
        shadow.reader[cells], shadow.read[cells] = who, now
        if row:
            return
        last = shadow.reader[cells]
        other = np.flatnonzero(last != who)[::-1]  # lanes that read it in this instruction: the first one stays
        if other.size:
            if shadow.any_second:
                held = self._apart(shadow.second[cells[other]], last[other])
                other = other[self._apart(who[other], last[other]) >= held]
            shadow.second[cells[other]], shadow.read_second[cells[other]] = who[other], now
            shadow.any_second = True

    def _has_acquired(self, threads: np.ndarray, when: np.ndarray) -> np.ndarray:
        """Return which threads have made an atomic since, or come after one by a thread of their block."""
        found = self._acquired[threads] > when
        if not found.all():
            blocks, warps = threads // self._padded, threads // WARP
            last, before = self._of_block[:, blocks]
            found |= np.where(self._clock.block[blocks] > last, last, before) > when
            last, who = self._of_warp[:, warps]
            found |= (last > when) & self._clock.ordered(who, threads, last)
        return found

    def _apart(self, one: np.ndarray, two: np.ndarray) -> np.ndarray:
        """Return how far apart threads are: 3 in two blocks, 1 in two warps, 0 in one, -1 if there is no first one."""
        one, two = one - 1, two - 1
        return np.where(one < 0, -1, 2 * (one // self._padded != two // self._padded) + (one // WARP != two // WARP))

    def _unordered(self, before, when, cells, who):
        """Return (indices, previous threads) of the accesses that nothing orders after those of `before`."""
        if not before.any():
            return None
        places = np.flatnonzero((before != 0) & (before != who))
        if not places.size:
            return None
        one, two, when = before[places] - 1, who[places] - 1, when[_places(cells, places)]
        first, padded = self._first - 1, self._padded
        ordered = self._released[one // padded] > when
        some = np.flatnonzero(ordered)
        ordered[some] = self._has_acquired(two[some] - first, when[some])
        inside = np.flatnonzero(~ordered & (one // padded == two // padded))
        ordered[inside] = self._clock.ordered(one[inside] - first, two[inside] - first, when[inside])
        if ordered.all():
            return None
        return places[~ordered], one[~ordered] + 1


def wavefronts(threads: np.ndarray, offsets: np.ndarray, nbytes: int) -> tuple[int, int]:
    """Return the wavefronts of one access to shared memory, and those that it would take without bank conflicts.

    32 banks of 4 bytes each serve one word at a time, to any number of lanes; a warp is served whole, or in halves if
    each lane takes 16 bytes. Source: CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later;
    an H200's counters show the halves (tests/data/h200_cuda.json).
    """
    words = max(1, nbytes // 4)
    rows = rows_of(threads, offsets // 4, WARP // 2 if nbytes == 16 else WARP)
    relative = rows - rows[:, :1]
    alike = (relative == relative[0]).all()  # banks rotate with the first lane: conflicts stay
    some = rows[:1] if alike else rows
    served, least = _serve((some[:, :, None] + np.arange(words)).reshape(len(some), -1))
    return (served * len(rows), least * len(rows)) if alike else (served, least)


def _serve(rows: np.ndarray) -> tuple[int, int]:
    """Sum over rows the most distinct words requested from one bank, and the distinct words divided by the banks."""
    rows = np.sort(rows, axis=1)
    distinct = np.ones(rows.shape, bool)
    distinct[:, 1:] = rows[:, 1:] != rows[:, :-1]
    slots = np.arange(len(rows))[:, None] * BANKS + rows % BANKS
    counts = np.bincount(slots[distinct], minlength=len(rows) * BANKS).reshape(-1, BANKS)
    return int(counts.max(1).sum()), int((-(-counts.sum(1) // BANKS)).sum())


def rows_of(threads: np.ndarray, values: np.ndarray, lanes: int = WARP) -> np.ndarray:
    """Return the values as (groups of `lanes` neighbours, lanes), with the group's first one for absent lanes."""
    group = threads // lanes
    first = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
    if threads.size == first.size * lanes:
        return values.reshape(-1, lanes)
    rows = np.repeat(values[first][:, None], lanes, axis=1)
    row = np.repeat(np.arange(first.size), np.diff(np.append(first, threads.size)))
    rows[row, threads % lanes] = values
    return rows
