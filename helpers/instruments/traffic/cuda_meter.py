"""Traffic of CUDA C++ launches: every load, store and atomic of every warp, as the executor makes them."""

import numpy as np

from helpers.instruments.cuda.memory import GRID_BARRIER
from helpers.instruments.cuda.sanitizer import Clock, GlobalWatch, SharedWatch, rows_of, wavefronts
from helpers.instruments.traffic.footprint import SECTOR
from helpers.instruments.traffic.hazards import Hazard, element
from helpers.instruments.traffic.ledger import ByteCount, Ledger, footprint_of
from helpers.instruments.traffic.triton_meter import tensors_in


class CudaMeter:
    """Records every CUDA launch in a ledger; the observer for `helpers.instruments.cuda.observers.observed`.

    A request is one load, store or atomic by one warp. It counts each distinct byte once: an element that all lanes
    read counts once. An atomic counts as a read and a write by every active lane. Requests are those of the PTX: if
    the assembler merges neighbouring accesses into a wide one, a GPU has fewer, and fewer wavefronts in shared memory.
    """

    def __init__(self, ledger: Ledger):
        self._ledger = ledger

    def launch(self, launch, arguments, originals, memory) -> None:
        self._kernel, self._file = launch.kernel.name, launch.kernel.file
        self._moved = ByteCount()
        self._ledger.launches.append((self._kernel, self._moved))
        self._changed = set()  # variables of the module that this launch wrote
        self._global, self._clock = GlobalWatch(), None
        self._operands = {}  # segment -> the ledger's storage, [(first byte, one past the last, region)]
        names = [parameter.name for parameter in launch.kernel.parameters]
        segments = {
            segment.tensor.untyped_storage().data_ptr(): segment
            for segment in memory.segments
            if segment.tensor is not None
        }
        for name, value, given in zip(names, arguments, originals, strict=True):
            for _, tensor, original in tensors_in(name, value, given):
                self._ledger.name(original, name)
                footprint = footprint_of(tensor)
                if footprint is None:
                    continue
                storage = self._ledger.storage(original)
                self._ledger.elements = max(self._ledger.elements, tensor.numel())
                segment = segments[tensor.untyped_storage().data_ptr()]
                _, regions = self._operands.setdefault(segment, (storage, []))
                regions.append((footprint.low, footprint.high, storage.region(footprint, name)))

    def chunk(self, machine) -> None:
        self._machine = machine
        padded = machine.threads // machine.blocks
        self._clock = Clock(machine.threads, padded, self._clock.now if self._clock else 1)
        size = machine.shared_size
        self._shared = SharedWatch(self._clock, machine.threads, padded, size) if size else None
        self._global.chunk(self._clock, machine.first_block, machine.blocks, padded)
        self._local = np.zeros(machine.threads * machine.local_size, bool)

    def block_synchronised(self, blocks) -> None:
        if self._shared is not None:
            self._shared.block_synchronised(blocks)
        self._clock.block_synchronised(blocks)

    def warps_synchronised(self, groups) -> None:
        if self._shared is not None:
            self._shared.partly_synchronised()
        self._clock.warps_synchronised(groups)

    def lanes_synchronised(self, threads, masks) -> None:
        if self._shared is not None:
            self._shared.partly_synchronised()
        self._clock.lanes_synchronised(threads, masks)

    def fenced(self, threads) -> None:
        self._global.fenced(threads)

    def access(self, kind, number, segment, threads, offsets, nbytes) -> None:
        """Count one access to global memory, and watch for races."""
        size = segment.views[1].size
        self._storing = segment
        self._racing = self._global.access(segment, size, kind, self._machine.spaces.scope, threads, offsets, nbytes)
        if self._racing is not None and kind != "write":
            self._race(number, segment, threads, offsets, self._racing.lanes, self._racing.others)
        if kind == "read" and self._machine.spaces.read_only:
            self._check_read_only(number, segment, threads, offsets)
        if segment.name == GRID_BARRIER:
            return
        if segment not in self._operands:
            self._variable(kind, number, segment, threads, offsets, nbytes)
            return
        storage, regions = self._operands[segment]
        region = regions[0][2]
        if len(regions) > 1:
            start = int(offsets[0])
            region = next((each for low, high, each in regions if low <= start < high), region)
        ledger, line, moved = self._ledger, self._ledger.line(self._file, number), self._moved
        distinct, sectors, requests = requested(threads, offsets, nbytes)
        line.requests += requests
        line.request_sectors += sectors
        moving = (offsets.size if kind == "atomic" else distinct) * nbytes
        ledger.atomics += offsets.size if kind == "atomic" else 0
        if kind != "write":
            if storage.fresh:
                self._check_written(number, region, segment.tensor, storage, threads, offsets, nbytes)
            _mark(storage.read.marks(), offsets, nbytes)
            for account in (region, line, moved):
                account.read += moving
            ledger.sectors_read += sectors
        if kind != "read":
            _mark(storage.written.marks(), offsets, nbytes)
            for account in (region, line, moved):
                account.written += moving
            ledger.sectors_written += sectors

    def stored(self, number, threads, offsets, lost, changed) -> None:
        """Record racing stores; two stores of the same value don't race."""
        if lost.any() and not self._machine.spaces.scope:
            self._race(number, self._storing, threads, offsets, np.flatnonzero(lost), None)
        elif self._racing is not None:
            chosen = changed[self._racing.lanes]
            if chosen.any():
                lanes, others = (each[chosen] for each in self._racing)
                self._race(number, self._storing, threads, offsets, lanes, others)

    def _check_read_only(self, number, segment, threads, offsets) -> None:
        """Report loads through the read-only data cache of bytes that the launch has stored."""
        stale = np.flatnonzero(self._global.written(segment, offsets))
        if stale.size:
            region, where = self._named(segment, int(offsets[stale[0]]))
            where += ", which this launch stores: load it without __ldg, or without const __restrict__"
            self._enter("stale read", number, where, *self._machine.where(int(threads[stale[0]])), stale.size, region)

    def _race(self, number, segment, threads, offsets, lanes, others) -> None:
        first, count = int(lanes[0]), np.unique(lanes).size
        region, where = self._named(segment, int(offsets[first]))
        if others is None:
            where += ", where another thread stores another value at the same time"
        else:
            block, thread = self._machine.where(int(others[0]))
            where += f", with thread {thread} of block {block} and nothing that orders the two"
        self._enter("race", number, where, *self._machine.where(int(threads[first])), count, region)

    def _named(self, segment, offset: int):
        """Return the region of a byte, and its element as named in a hazard's text."""
        if segment not in self._operands:
            size = segment.views[1].size
            place = f"{segment.name}, byte {offset} of {size}"
            return self._ledger.outside, place
        regions = self._operands[segment][1]
        region = next((each for low, high, each in regions if low <= offset < high), regions[0][2])
        return region, f"{{0}}{element(segment.tensor, offset)}"

    def _variable(self, kind, number, segment, threads, offsets, nbytes) -> None:
        """Count an access to a `__device__` variable; a read-only one is a table, which stays in cache."""
        if kind == "read" and id(segment) not in self._changed:
            return
        self._changed.add(id(segment))
        ledger, line = self._ledger, self._ledger.line(self._file, number)
        distinct, sectors, requests = requested(threads, offsets, nbytes)
        line.requests += requests
        line.request_sectors += sectors
        moving = (offsets.size if kind == "atomic" else distinct) * nbytes
        ledger.atomics += offsets.size if kind == "atomic" else 0
        for account in (ledger.outside, line, self._moved):
            account.read += moving * (kind != "write")
            account.written += moving * (kind != "read")
        ledger.sectors_read += sectors * (kind != "write")
        ledger.sectors_written += sectors * (kind != "read")

    def _check_written(self, number, region, tensor, storage, threads, offsets, nbytes) -> None:
        missing = ~storage.written.marks()[offsets]
        if missing.any():
            first = int(np.flatnonzero(missing)[0])
            where = f"{{0}}{element(tensor, int(offsets[first]))}"
            block, thread = self._machine.where(int(threads[first]))
            self._enter("uninitialised read", number, where, block, thread, int(missing.sum()), region)

    def shared_copy(self, number, threads, offsets, nbytes, reported) -> None:
        """Count the store of a cp.async, which other threads' earlier reads must be ordered before."""
        self.shared("write", number, threads, offsets, nbytes, reported)

    def landed(self, number, threads, offsets, nbytes) -> None:
        """Note that a cp.async is complete: from now on its own thread sees it, others after a barrier."""
        self._shared.access("write", threads, offsets, nbytes)

    def shared(self, kind, number, threads, offsets, nbytes, reported) -> None:
        """Count one access to shared memory, and watch for races unless it is already reported."""
        line = self._ledger.line(self._file, number)
        served, least = wavefronts(threads, offsets, nbytes)
        line.shared_requests += np.count_nonzero(np.diff(threads >> 5)) + 1
        line.shared_wavefronts += served
        line.bank_conflicts += served - least
        faults = self._shared.access(kind, threads, offsets, nbytes)
        for found in () if reported else faults:
            where = f"shared memory, byte {found.byte}"
            if found.kind == "race":
                where += f", with thread {self._machine.where(found.other)[1]} and no barrier between"
            self.hazard(found.kind, number, where, *self._machine.where(found.thread), found.count)

    def local(self, kind, number, threads, offsets, nbytes) -> None:
        """Watch a thread's local arrays for reads before any write."""
        if kind != "write" and not (written := self._local[offsets]).all():
            first = int(np.flatnonzero(~written)[0])
            where = f"a local array, byte {int(offsets[first]) % self._machine.local_size}"
            self.hazard(
                "uninitialised read", number, where, *self._machine.where(int(threads[first])), int((~written).sum())
            )
        if kind != "read":
            _mark(self._local, offsets, nbytes)

    def hazard(self, kind, number, where, block, thread, count) -> None:
        self._enter(
            kind, number, where.replace("{", "{{").replace("}", "}}"), block, thread, count, self._ledger.outside
        )

    def _enter(self, kind, number, where, block, thread, count, region) -> None:
        hazard = Hazard(kind, self._kernel, self._file, number, where, block, count, thread)
        self._ledger.hazards.setdefault((kind, self._file, number), (hazard, region))


def requested(threads: np.ndarray, offsets: np.ndarray, nbytes: int) -> tuple[int, int, int]:
    """Return (distinct accesses, sectors, requests), summed over warps. Accesses are aligned: none spans sectors."""
    rows = rows_of(threads, offsets)
    relative = rows - rows[:, :1]
    if (relative == relative[0]).all() and (rows[:, 0] % SECTOR == rows[0, 0] % SECTOR).all():
        row = rows[0]
        return np.unique(row).size * len(rows), np.unique(row // SECTOR).size * len(rows), len(rows)
    if (np.diff(rows, axis=1) < 0).any():
        rows = np.sort(rows, axis=1)
    sectors = rows // SECTOR
    distinct, touched = (len(rows) + int(np.count_nonzero(each[:, 1:] != each[:, :-1])) for each in (rows, sectors))
    return distinct, touched, len(rows)


def _mark(marks: np.ndarray, offsets: np.ndarray, nbytes: int) -> None:
    if nbytes == 16:
        words, index = marks[: marks.size // 16 * 16].view(np.uint64), offsets >> 3
        words[index] = words[index + 1] = 0x0101010101010101
        return
    words = marks[: marks.size // nbytes * nbytes].view(f"u{nbytes}")
    words[offsets >> (nbytes.bit_length() - 1)] = int("01" * nbytes, 16)
