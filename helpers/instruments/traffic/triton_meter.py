"""Traffic of Triton launches: every load, store and atomic of every program instance."""

import sys
from dataclasses import dataclass

import numpy as np
import torch
from triton.runtime.interpreter import interpreter_builder
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from helpers.instruments.traffic.clocks import Clocks
from helpers.instruments.traffic.footprint import SECTOR, ByteSet, Footprint, from_starts
from helpers.instruments.traffic.hazards import Hazard, element, outside
from helpers.instruments.traffic.ledger import ByteCount, Ledger, Line, Region, Storage, footprint_of
from kernels.interpreter.runtime import kernel_code

WARP = 32  # lanes whose addresses make one request
PATTERNS_KEPT = 8  # of each load or store: a loop's full blocks, its tail, and some to spare


class Pattern:
    """The bytes one load or store touches, relative to its first lane; other programs mostly repeat it elsewhere."""

    __slots__ = ("_counts", "_itemsize", "_lanes", "_starts", "footprint", "mask", "relative")

    def __init__(self, relative: np.ndarray, mask: np.ndarray | None, itemsize: int):
        self.relative = relative  # byte offsets from the first lane, modulo 2**64
        self.mask = None if mask is None else mask.copy()
        self._itemsize = itemsize
        offsets = relative.view(np.int64)
        order = _lanes_first(offsets, itemsize)
        offsets = offsets.transpose(order).ravel()
        active = np.ones(offsets.size, bool) if mask is None else mask.transpose(order).ravel()
        self._lanes = np.flatnonzero(active)
        self._starts = offsets[self._lanes]
        self.footprint = from_starts(self._starts, itemsize) if self._starts.size else None
        self._counts = {}

    @property
    def repeats(self) -> bool:
        """Return whether several lanes touch one element."""
        return self._lanes.size * self._itemsize > self.footprint.nbytes

    def met_by_others(self, other: "Pattern", distance: int) -> np.ndarray:
        """Return the offsets of this pattern's elements that another lane of `other` touches, whose first lane is
        `distance` bytes on. Blocks of one shape have one lane for one place; those of other shapes share none."""
        if self is other and not distance and not self.repeats:
            return np.zeros(0, np.int64)
        mine, theirs = self.relative.view(np.int64), other.relative.view(np.int64) + distance
        active = [np.ones(each.relative.shape, bool) if each.mask is None else each.mask for each in (self, other)]
        lanes = [np.flatnonzero(each) for each in active]
        mine, theirs = mine.ravel()[lanes[0]], theirs.ravel()[lanes[1]]
        if self.relative.shape != other.relative.shape:
            return mine[np.isin(mine, theirs)]
        order = np.argsort(theirs, kind="stable")
        theirs, lanes[1] = theirs[order], lanes[1][order]
        first, last = (np.searchsorted(theirs, mine, side) for side in ("left", "right"))
        own = (last - first == 1) & (lanes[1][np.minimum(first, lanes[1].size - 1)] == lanes[0])
        return mine[(last > first) & ~own]

    def counts(self, base: int) -> tuple[int, int, int, int]:
        """Return (active lanes, sectors, requests, sectors summed over requests) with the first lane at byte `base`."""
        counts = self._counts.get(base % SECTOR)
        if counts is None:
            counts = self._counts[base % SECTOR] = self._count(base % SECTOR)
        return counts

    def _count(self, base):
        requests = self._lanes // WARP
        first = (self._starts + base) // SECTOR
        last = (self._starts + base + self._itemsize - 1) // SECTOR
        pairs = (requests[:, None] << 40) + np.stack([first, last], axis=1) - first.min()
        return (self._lanes.size, self.footprint.sectors(base), _distinct(requests), _distinct(pairs.ravel()))


def _distinct(values: np.ndarray) -> int:
    """Count distinct values; if they ascend, as they mostly do, without sorting."""
    steps = np.diff(values)
    return np.unique(values).size if (steps < 0).any() else 1 + np.count_nonzero(steps)


def _lanes_first(offsets: np.ndarray, itemsize: int) -> list[int]:
    """The order of axes in which lanes follow one another: that of neighbours in memory last, as Triton compiles it."""
    axes = list(range(offsets.ndim))
    for axis in axes:
        if offsets.shape[axis] > 1:
            corner = tuple(slice(0, 2) if other == axis else 0 for other in axes)
            if np.diff(offsets[corner])[0] == itemsize:
                return [other for other in axes if other != axis] + [axis]
    return axes


class Site:
    """One load, store or atomic in the source of a kernel."""

    __slots__ = ("_itemsize", "_patterns", "kernel", "line", "operand", "place")

    def __init__(self, kernel: str, place: tuple[str, int], line: Line, itemsize: int):
        self.kernel, self.place, self.line = kernel, place, line
        self.operand = None  # the tensor that it touched last
        self._itemsize = itemsize
        self._patterns = []

    def pattern(self, addresses: np.ndarray, mask: np.ndarray) -> Pattern:
        relative = addresses - addresses.item(0)
        everywhere = bool(mask.all())
        for place, pattern in enumerate(self._patterns):
            if (
                (pattern.mask is None) == everywhere
                and pattern.relative.shape == relative.shape
                and (everywhere or (pattern.mask == mask).all())
                and (pattern.relative == relative).all()
            ):
                if place:
                    self._patterns.insert(0, self._patterns.pop(place))
                return pattern
        pattern = Pattern(relative, None if everywhere else mask, self._itemsize)
        self._patterns.insert(0, pattern)
        del self._patterns[PATTERNS_KEPT:]
        return pattern


@dataclass(eq=False)
class Operand:
    """A tensor given to the launch."""

    name: str  # of the kernel's parameter
    tensor: torch.Tensor  # on the host
    base: int  # address of its storage
    footprint: Footprint
    storage: Storage
    region: Region

    def __post_init__(self):
        self.low, self.high = self.base + self.footprint.low, self.base + self.footprint.high
        self._elements = None
        if self.footprint.dims:
            self._elements = ByteSet(self.storage.size)
            self._elements.add(self.footprint)

    def holds(self, footprint: Footprint, origin: int) -> bool:
        """Return whether the bytes of `footprint` at address `origin` are all this tensor's own."""
        if origin + footprint.low < self.low or origin + footprint.high > self.high:
            return False
        return self._elements is None or self._elements.covers(footprint, origin - self.base)

    def holds_lanes(self, addresses: np.ndarray, itemsize: int) -> np.ndarray:
        """For each address, whether the element there is this tensor's own."""
        near = (addresses >= self.low) & (addresses <= self.high - itemsize)
        if self._elements is not None:
            offsets = np.where(near, addresses - np.uint64(self.base), 0).astype(np.int64)
            elements = self._elements.map()
            near &= elements[offsets] & elements[offsets + itemsize - 1]
        return near


class _Accesses:
    """Accesses of one kind to one storage by one program instance."""

    def __init__(self):
        self._all = {}  # (pattern, byte of the first lane): a loop may repeat one
        self._low, self._high = sys.maxsize, -sys.maxsize

    def add(self, pattern: Pattern, base: int) -> None:
        self._all[pattern, base] = None
        self._low = min(self._low, base + pattern.footprint.low)
        self._high = max(self._high, base + pattern.footprint.high)

    def near(self, low: int, high: int):
        """Yield those that may touch bytes from `low` to `high`."""
        if low < self._high and self._low < high:
            for pattern, base in self._all:
                if low < base + pattern.footprint.high and base + pattern.footprint.low < high:
                    yield pattern, base


class TritonMeter:
    """Enters every Triton launch in a ledger, and watches for accesses that a GPU would not forgive.

    An observer for `kernels.interpreter.runtime.observed`. `multiprocessors`: the simulated GPU's, if any.
    """

    def __init__(self, ledger: Ledger, multiprocessors: int | None = None):
        self.multiprocessors = multiprocessors
        self.ledger = ledger
        self._pending = []

    def launch(self, kernel, grid, arguments: dict, originals: dict | None = None) -> None:
        """Note a launch before it runs.

        Args:
            kernel: the JITFunction; grid: three ints.
            arguments: parameter name -> value on the host.
            originals: the values they are copies of, on a GPU; None: nothing was copied.

        Raises:
            ValueError: no argument is a tensor.
        """
        self._kernel = kernel.fn.__name__
        self._sites = {}
        # storage -> locks -> bytes stored, or read, under these by earlier program instances of this launch
        self._earlier = {"write": {}, "read": {}, "volatile": {}, "atomic": {}}
        self._own = {}  # storage -> the accesses of this program since its last barrier
        self._accesses = []
        self._pending = []
        self.moved = ByteCount()  # by this launch, so far
        self._operands = []
        originals = arguments if originals is None else originals
        self._clocks = Clocks() if originals.get("launch_cooperative_grid") else None
        tensors = [
            found for name, value in arguments.items() for found in tensors_in(name, value, originals.get(name, value))
        ]
        if not tensors:
            raise ValueError(f"{self._kernel} was launched with no tensor: there is no traffic to meter")
        for name, tensor, original in tensors:
            self.ledger.name(original, name)
            footprint = footprint_of(tensor)
            if footprint is not None:
                storage = self.ledger.storage(original)
                self.ledger.elements = max(self.ledger.elements, tensor.numel())
                base = tensor.untyped_storage().data_ptr()
                region = storage.region(footprint, name)
                self._operands.append(Operand(name, tensor, base, footprint, storage, region))
        if 0 not in grid:
            self.ledger.launches.append((self._kernel, self.moved))

    def withdraw(self) -> None:
        """Forget the launch just reported, which moved nothing."""
        if self.ledger.launches and self.ledger.launches[-1][1] is self.moved:
            self.ledger.launches.pop()
        self._pending = []

    def configured(self, name: str, said: str) -> None:
        """Note which of an autotuned kernel's configurations ran, in words."""
        self.ledger.configurations.setdefault(name, [])
        if said not in self.ledger.configurations[name]:
            self.ledger.configurations[name].append(said)

    def program(self, index) -> None:
        if self._clocks is not None:
            self.resumed(index)
            return
        stored = {operand.storage for kind, operand, *_ in self._pending if kind in ("write", "atomic")}
        changed = stored.union(self._earlier["write"], self._earlier["atomic"])
        for place, (kind, operand, footprint, base, locks) in enumerate(self._pending):
            storage = operand.storage
            if kind == "read" and storage not in changed:
                continue  # of an input, most likely
            locks |= {address for before, address in self._atomics if before > place}
            of_storage = self._earlier[kind].setdefault(storage, {})
            if locks not in of_storage:
                of_storage[locks] = ByteSet(storage.size)
            of_storage[locks].add(footprint, base)
            self._accesses.append((kind, storage, footprint, base, self._index, locks))
        self._pending.clear()
        self._own.clear()
        self._index = index
        self._held = frozenset()  # addresses of locks
        self._atomics = []  # (loads and stores before it, address) of each atomic of one element

    def resumed(self, index) -> None:
        """The program `index` of a cooperative launch runs now."""
        self._index = index
        self._clocks.resumed(index)

    def synchronised(self, address: int, acquires: bool, releases: bool) -> None:
        """After an atomic of one element in a cooperative launch."""
        self._clocks.synchronised(address, acquires, releases)

    def lock(self, address: int, took: bool) -> None:
        """After an atomic of one element that orders others: whether it took a lock there. Any there gives it back."""
        self._own.clear()  # its threads wait for its result
        if self._clocks is not None:
            return
        self._held = self._held - {address} if address in self._held or not took else self._held | {address}
        self._atomics.append((len(self._pending), address))

    def barrier(self) -> None:
        """After a tl.debug_barrier, or a reduction, whose threads wait for one another."""
        self._own.clear()

    def access(
        self, kind: str, addresses: np.ndarray, mask: np.ndarray, itemsize: int, stored: np.ndarray | None
    ) -> np.ndarray | None:
        """Count one load, store or atomic of one program instance.

        Args:
            stored: the values of a store, one for each lane; None of loads and atomics.

        Returns:
            None, or, where lanes point outside every tensor of the launch, the mask without them.
        """
        mask = np.asarray(mask)  # a tensor descriptor's is a memoryview in Triton's interpreter
        frame = sys._getframe(1)
        while frame.f_code not in kernel_code:
            frame = frame.f_back
        key = kind, frame.f_code, frame.f_lasti, itemsize
        site = self._sites.get(key)
        if site is None:
            place = frame.f_code.co_filename, frame.f_lineno
            site = self._sites[key] = Site(frame.f_code.co_name, place, self.ledger.line(*place), itemsize)
        pattern = site.pattern(addresses, mask)
        footprint = pattern.footprint
        if footprint is None:
            return None
        origin = addresses.item(0)
        operand = site.operand
        if operand is None or not operand.holds(footprint, origin):
            operand = next((other for other in self._operands if other.holds(footprint, origin)), None)
            if operand is None:
                return self._lane_by_lane(kind, site, addresses, mask, itemsize, stored)
            site.operand = operand
        self._count(kind, site, operand, pattern, origin, itemsize, stored)
        return None

    def _lane_by_lane(self, kind, site, addresses, mask, itemsize, stored):
        """An access that no one tensor holds: each lane belongs to the first that does, or to none."""
        left = mask.copy()
        relative, origin = addresses - addresses.item(0), addresses.item(0)
        for operand in self._operands:
            here = left & operand.holds_lanes(addresses, itemsize)
            if here.any():
                self._count(kind, site, operand, Pattern(relative, here, itemsize), origin, itemsize, stored)
                left &= ~here
        if not left.any():
            return None
        self._count_outside(kind, site, Pattern(relative, left, itemsize), origin, itemsize)
        # The allocator decides which stray lanes hit another tensor: report all lanes outside the first lane's tensor.
        first = addresses[mask][0]
        owner = next((other for other in self._operands if other.holds_lanes(first, itemsize)), None)
        astray = left if owner is None else mask & ~owner.holds_lanes(addresses, itemsize)
        self._report_outside(kind, site, addresses[astray], owner)
        return mask & ~left

    def _count(self, kind, site, operand, pattern, origin, itemsize, stored):
        storage, region, footprint, line = operand.storage, operand.region, pattern.footprint, site.line
        ledger, moved = self.ledger, self.moved
        base = origin - operand.base
        lanes, sectors, requests, request_sectors = pattern.counts(base)
        nbytes = footprint.nbytes
        line.requests += requests
        line.request_sectors += request_sectors
        if kind == "atomic":
            nbytes = lanes * itemsize
            ledger.atomics += lanes
        if kind != "write":
            if storage.fresh and not storage.written.covers(footprint, base):
                self._report_uninitialised(site, operand, footprint, base)
            if self._clocks is None and kind == "read":
                seen = self._seen()
                self._compare_with_earlier("write", "unsynchronised read", site, operand, footprint, base, seen)
                if not interpreter_builder.volatile:
                    # After an atomic on the word itself, others may still follow.
                    seen = frozenset(at for at in seen if not origin + footprint.low <= at < origin + footprint.high)
                    self._compare_with_earlier("atomic", "unsynchronised read", site, operand, footprint, base, seen)
                way = "volatile" if interpreter_builder.volatile else "read"
                self._pending.append((way, operand, footprint, base, self._held))
            storage.read.add(footprint, base)
            region.read += nbytes
            line.read += nbytes
            moved.read += nbytes
            ledger.sectors_read += sectors
        if kind != "read":
            if kind == "write" and pattern.repeats:
                self._compare_lanes(site, operand, pattern, base, stored)
            storage.written.add(footprint, base)
            region.written += nbytes
            line.written += nbytes
            moved.written += nbytes
            ledger.sectors_written += sectors
        if self._clocks is not None and kind != "atomic":
            self._compare(kind, site, operand, footprint, base)
        elif kind == "write":
            self._compare_with_earlier("write", "race", site, operand, footprint, base, self._held)
            self._compare_with_earlier("atomic", "race", site, operand, footprint, base, self._seen())
            for way in ("read", "volatile"):
                self._compare_with_earlier(way, "unsynchronised store", site, operand, footprint, base, self._seen())
            self._pending.append(("write", operand, footprint, base, self._held))
        elif kind == "atomic" and self._clocks is None:
            self._compare_with_earlier("write", "race", site, operand, footprint, base, self._seen())
            self._compare_with_earlier("read", "unsynchronised store", site, operand, footprint, base, self._seen())
            self._pending.append(("atomic", operand, footprint, base, self._held))
        if self._clocks is None:
            self._compare_with_own(kind, site, operand, pattern, base)

    def _seen(self) -> frozenset:
        """Addresses of atomics of this program: one that another made after its access puts the two in order."""
        return self._held.union(address for _, address in self._atomics)

    def _compare_with_earlier(self, kind, name, site, operand, footprint, base, seen):
        """Report an access that meets those of this kind by earlier program instances, with nothing to order them."""
        for locks, earlier in self._earlier[kind].get(operand.storage, {}).items():
            if locks.isdisjoint(seen) and earlier.meets(footprint, base):
                self._report_race(kind, name, site, operand, footprint, base, seen)

    def _compare_with_own(self, kind, site, operand, pattern, base):
        """Report an access to bytes that another lane of this program touched, with no barrier between.

        Not of a single element, which one thread stores and all load: which of them use the value isn't known.
        """
        if pattern.relative.size == 1:
            return
        own = self._own.setdefault(operand.storage, {"read": _Accesses(), "write": _Accesses(), "atomic": _Accesses()})
        low, high = base + pattern.footprint.low, base + pattern.footprint.high
        for theirs, earlier in own.items():
            if kind == theirs != "write":
                continue
            for other, place in earlier.near(low, high):
                met = pattern.met_by_others(other, place - base)
                if met.size:
                    name = "unsynchronised read" if kind == "read" else "race"
                    name = "unsynchronised store" if theirs == "read" else name
                    where = f"{{0}}{element(operand.tensor, base + int(met[0]))}, "
                    where += f"{'read' if theirs == 'read' else 'stored'} by another lane of the same program, with no"
                    self._report(name, site, operand.region, f"{where} tl.debug_barrier between", met.size)
                    break
        own[kind].add(pattern, base)

    def _compare_lanes(self, site, operand, pattern, base, values):
        """Report lanes of one store that write different values to one element: which of them stays is not defined."""
        chosen = np.ones(values.shape, bool) if pattern.mask is None else pattern.mask
        values, offsets = values[chosen].view(f"u{values.itemsize}"), pattern.relative[chosen].view(np.int64)
        _, first, of_lane = np.unique(offsets, return_index=True, return_inverse=True)
        lost = np.flatnonzero(values != values[first][of_lane])
        if lost.size:
            where = f"{{0}}{element(operand.tensor, base + int(offsets[lost[0]]))}, to which lanes of this store write"
            self._report("race", site, operand.region, f"{where} different values", np.unique(offsets[lost]).size)

    def _compare(self, kind, site, operand, footprint, base):
        """Report an access of a cooperative launch that no counter orders after another program's."""
        found = self._clocks.accessed(kind, operand.storage, footprint, base)
        if found is not None:
            program, stored, byte, size = found
            name = "race" if kind == "write" else "unsynchronised read"
            where = f"{{0}}{element(operand.tensor, byte)}, {'stored' if stored else 'read'} by {program}"
            where += " too" * (kind == "write" and stored) + ", with no counter that orders the two"
            self._report(name, site, operand.region, where, max(1, size // operand.tensor.element_size()))

    def _count_outside(self, kind, site, pattern, origin, itemsize):
        lanes, sectors, requests, request_sectors = pattern.counts(origin)
        nbytes = lanes * itemsize if kind == "atomic" else pattern.footprint.nbytes
        site.line.requests += requests
        site.line.request_sectors += request_sectors
        self.ledger.atomics += lanes if kind == "atomic" else 0
        for way, counted in (("read", kind != "write"), ("written", kind != "read")):
            if counted:
                for account in (self.ledger.outside, site.line, self.moved):
                    setattr(account, way, getattr(account, way) + nbytes)
                setattr(self.ledger, f"sectors_{way}", getattr(self.ledger, f"sectors_{way}") + sectors)

    def _report_outside(self, kind, site, astray, owner=None):
        kind = "store" if kind == "write" else kind
        address = int(astray[0])
        nearest = owner or min(self._operands, key=lambda operand: _distance(operand, address), default=None)
        if nearest is None:
            self._report(f"out-of-bounds {kind}", site, self.ledger.outside, "{0}: every tensor is empty", astray.size)
            return
        tensor = nearest.tensor
        offset = (address - tensor.data_ptr()) // tensor.element_size()
        where = f"{{0}}, {outside(tensor, offset)}"
        self._report(f"out-of-bounds {kind}", site, nearest.region, where, astray.size)

    def _report_uninitialised(self, site, operand, footprint, base):
        if ("uninitialised read", *site.place) in self.ledger.hazards:
            return
        unset = np.flatnonzero(~footprint.of(operand.storage.written.map(), base).ravel())
        run, within = divmod(int(unset[0]), footprint.run)
        byte = base + int(footprint.starts()[run]) + within
        where = f"{{0}}{element(operand.tensor, byte)}"
        self._report("uninitialised read", site, operand.region, where, unset.size // operand.tensor.element_size())

    def _report_race(self, kind, name, site, operand, footprint, base, seen):
        known = {name, "race"} if kind in ("read", "volatile") else {name}  # a race says as much of a line
        if any((each, *site.place) in self.ledger.hazards for each in known):
            return
        mine = ByteSet(operand.storage.size)
        mine.add(footprint, base)
        for theirs, storage, other, place, program, locks in self._accesses:
            if theirs == kind and storage is operand.storage and locks.isdisjoint(seen) and mine.meets(other, place):
                bytes_of = ByteSet(storage.size)
                bytes_of.add(other, place)
                both = np.flatnonzero(mine.map() & bytes_of.map())
                where = f"{{0}}{element(operand.tensor, int(both[0]))}, "
                where += {"write": "stored", "atomic": "changed atomically"}.get(kind, "read") + f" by {program}"
                where += " too" * (kind == "write" and name == "race")
                self._report(name, site, operand.region, where, both.size // operand.tensor.element_size())
                return

    def _report(self, kind, site, region, where, elements):
        hazard = Hazard(kind, site.kernel, *site.place, where, self._index, elements)
        self.ledger.hazards.setdefault((kind, *site.place), (hazard, region))


def _distance(operand: Operand, address: int) -> int:
    return max(operand.low - address, address - operand.high, 0)


def tensors_in(name: str, value, original):
    """(name, host tensor, original tensor) of each tensor in a kernel's argument."""
    if isinstance(value, TensorDescriptor):
        value, original = value.base, original.base
    if isinstance(value, TensorWrapper):
        value, original = value.base, original.base
    if isinstance(value, torch.Tensor):
        yield name, value, original
    elif isinstance(value, tuple | list):
        for place, pair in enumerate(zip(value, original, strict=True)):
            yield from tensors_in(f"{name}[{place}]", *pair)
