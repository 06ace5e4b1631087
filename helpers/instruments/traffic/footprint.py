"""The bytes of a storage that an access touches: compact sets of bytes, counted exactly."""

from math import gcd

import numpy as np

SECTOR = 32  # bytes: the unit in which an NVIDIA GPU's L1 and L2 move data (Nsight Compute: "sector")


class Footprint:
    """A set of distinct bytes: runs of `run` bytes, `dims` of (count, stride in bytes), starting at `low`.

    Runs are disjoint and ascending, so nothing is counted twice. `low` may be negative: a footprint is relative to the
    base that each method takes.
    """

    __slots__ = ("dims", "high", "low", "nbytes", "run")

    def __init__(self, low: int, run: int, dims: tuple[tuple[int, int], ...] = ()):
        self.low, self.run, self.dims = low, run, dims
        self.nbytes = run
        self.high = low + run  # one past the last byte
        for count, stride in dims:
            self.nbytes *= count
            self.high += (count - 1) * stride

    def __eq__(self, other):
        return type(self) is type(other) and (self.low, self.run, self.dims) == (other.low, other.run, other.dims)

    def __hash__(self):
        return hash((self.low, self.run, self.dims))

    def of(self, byte_map: np.ndarray, base: int) -> np.ndarray:
        """Return a writable view of this footprint's bytes in `byte_map`, which has an entry per byte of storage."""
        shape = (*(count for count, _ in self.dims), self.run)
        strides = (*(stride for _, stride in self.dims), 1)
        return np.ndarray(shape, byte_map.dtype, byte_map, base + self.low, strides)

    def mark(self, byte_map: np.ndarray, base: int) -> None:
        self.of(byte_map, base)[...] = True

    def starts(self) -> np.ndarray:
        """Return the start of each run, ascending, relative to the base."""
        starts = np.array([self.low], dtype=np.int64)
        for count, stride in reversed(self.dims):
            starts = (np.arange(count, dtype=np.int64)[:, None] * stride + starts).ravel()
        return starts

    def sectors(self, base: int) -> int:
        """Count the sectors that hold at least one of these bytes; the storage starts on a sector."""
        return _sectors(base + self.low, self.run, self.dims)


def _sectors(start: int, run: int, dims: tuple[tuple[int, int], ...]) -> int:
    if not dims:
        return (start + run - 1) // SECTOR - start // SECTOR + 1
    (count, stride), inner = dims[0], dims[1:]
    extent = run + sum((size - 1) * step for size, step in inner)
    if stride % SECTOR == 0 and (start % SECTOR + extent - 1) // SECTOR < stride // SECTOR:
        return count * _sectors(start, run, inner)  # each block of runs starts at the same offset within its sectors
    period = SECTOR // gcd(stride, SECTOR)
    blocks, rest = divmod(count, period)
    last = start % SECTOR + (period - 1) * stride + extent - 1
    if blocks > 1 and last // SECTOR < period * stride // SECTOR:
        whole = blocks * _sectors(start, run, ((period, stride), *inner))
        if not rest:
            return whole
        return whole + _sectors(start + blocks * period * stride, run, ((rest, stride), *inner))
    return _sectors_of_runs(Footprint(start, run, dims).starts(), run)


def _sectors_of_runs(starts: np.ndarray, run: int) -> int:
    """Count the sectors touched by disjoint runs at ascending `starts`; adjacent runs may share one."""
    first, final = starts // SECTOR, (starts + run - 1) // SECTOR
    unshared = np.concatenate([first[:1], np.maximum(first[1:], final[:-1] + 1)])
    return int((final - unshared + 1).sum())


class Scatter(Footprint):
    """Distinct bytes with no pattern: disjoint runs of `run` bytes at `positions`, ascending."""

    __slots__ = ("_bytes", "positions")

    def __init__(self, positions: np.ndarray, run: int):
        super().__init__(int(positions[0]), run)
        self.positions = positions
        self.nbytes = run * positions.size
        self.high = int(positions[-1]) + run
        self.dims = ((positions.size, 0),)  # not one run
        self._bytes = None

    def __eq__(self, other):
        return self is other or (
            isinstance(other, Scatter) and self.run == other.run and np.array_equal(self.positions, other.positions)
        )

    __hash__ = Footprint.__hash__

    def _places(self, base: int) -> np.ndarray:
        if self._bytes is None:
            self._bytes = (self.positions[:, None] + np.arange(self.run)).ravel()
        return self._bytes + base

    def of(self, byte_map, base):
        return byte_map[self._places(base)]

    def mark(self, byte_map, base):
        byte_map[self._places(base)] = True

    def starts(self):
        return self.positions

    def sectors(self, base):
        return _sectors_of_runs(self.positions + base, self.run)


def from_starts(starts: np.ndarray, itemsize: int) -> Footprint:
    """Return the bytes of elements of `itemsize` bytes at `starts` (int64, any order, repeated or overlapping)."""
    steps = np.diff(starts)
    if (steps <= 0).any():
        starts = _distinct(starts)
        steps = np.diff(starts)
    if steps.size and steps.min() < itemsize:
        starts = _distinct((starts[:, None] + np.arange(itemsize)).ravel())
        itemsize, steps = 1, np.diff(starts)
    breaks = np.flatnonzero(steps != itemsize)
    runs = starts[np.concatenate([[0], breaks + 1])]
    ends = starts[np.concatenate([breaks, [starts.size - 1]])] + itemsize
    lengths, gaps = ends - runs, np.diff(runs)
    if (lengths != lengths[0]).any():
        return Scatter(starts, itemsize)
    if not gaps.size:
        return Footprint(int(runs[0]), int(lengths[0]))
    if (gaps == gaps[0]).all():
        return Footprint(int(runs[0]), int(lengths[0]), ((runs.size, int(gaps[0])),))
    return Scatter(runs, int(lengths[0]))


def _distinct(starts: np.ndarray) -> np.ndarray:
    """Return them sorted, without duplicates. Dense ones are marked in a byte map, which is far faster than sorting."""
    low, high = int(starts.min()), int(starts.max())
    if high - low > 8 * starts.size:
        return np.unique(starts)
    marked = np.zeros(high - low + 1, dtype=bool)
    marked[starts - low] = True
    return np.flatnonzero(marked) + low


def from_strided(offset: int, shape, strides, itemsize: int) -> Footprint | None:
    """Return the bytes of a strided tensor; None if it has no elements.

    Args:
        offset: position of its first element, in bytes from the start of the storage.
        shape, strides: as in PyTorch, in elements; stride 0 (an expanded dimension) adds no bytes.
        itemsize: bytes of an element.
    """
    if 0 in shape:
        return None
    dims = sorted(
        (stride * itemsize, size) for size, stride in zip(shape, strides, strict=True) if size > 1 and stride != 0
    )
    run, outer = itemsize, []
    reach = itemsize  # one past the furthest byte so far
    for stride, size in dims:
        if stride < reach:  # overlapping windows: as_strided, unfold
            starts = np.zeros(1, dtype=np.int64)
            for step, count in dims:
                starts = np.unique(starts[:, None] + np.arange(count) * step)
            return from_starts(starts + offset, itemsize)
        if stride == run and not outer:
            run *= size
        elif outer and stride == outer[0][0] * outer[0][1]:
            outer[0] = (outer[0][0] * size, outer[0][1])
        else:
            outer.insert(0, (size, stride))
        reach += (size - 1) * stride
    return Footprint(offset, run, tuple(outer))


class ByteSet:
    """The bytes of a storage touched so far: an interval for as long as that is exact, then a byte map."""

    __slots__ = ("_map", "high", "low", "size")

    def __init__(self, size: int):
        self.size = size  # bytes of the storage
        self.low = self.high = 0
        self._map = None

    def grow(self, size: int) -> None:
        """Note that the storage has grown to `size` bytes."""
        if self._map is not None and size > self.size:
            self._map = np.concatenate([self._map, np.zeros(size - self.size, dtype=bool)])
        self.size = max(size, self.size)

    def add(self, footprint: Footprint, base: int = 0) -> None:
        low, high = base + footprint.low, base + footprint.high
        if self._map is None:
            if self.low <= low and high <= self.high:
                return
            if not footprint.dims and (self.high == 0 or (low <= self.high and high >= self.low)):
                self.low = low if self.high == 0 else min(low, self.low)
                self.high = max(high, self.high)
                return
            self._map = np.zeros(self.size, dtype=bool)
            self._map[self.low : self.high] = True
        footprint.mark(self._map, base)
        self.low = low if self.high == 0 else min(low, self.low)
        self.high = max(high, self.high)

    def covers(self, footprint: Footprint, base: int = 0) -> bool:
        """Return whether every byte of `footprint` is in this set."""
        if base + footprint.low < self.low or base + footprint.high > self.high:
            return False
        return self._map is None or bool(footprint.of(self._map, base).all())

    def meets(self, footprint: Footprint, base: int = 0) -> bool:
        """Return whether any byte of `footprint` is in this set."""
        if base + footprint.high <= self.low or base + footprint.low >= self.high:
            return False
        return bool(footprint.of(self.map(), base).any())

    @property
    def scattered(self) -> bool:
        """Return whether it needs more than the interval from `low` to `high`."""
        return self._map is not None

    def map(self) -> np.ndarray:
        """One bool per byte of the storage."""
        if self._map is None:
            byte_map = np.zeros(self.size, dtype=bool)
            byte_map[self.low : self.high] = True
            return byte_map
        return self._map

    def marks(self) -> np.ndarray:
        """One bool per byte of the storage, to mark touched bytes in."""
        self._map = self.map()
        self.low, self.high = 0, self.size
        return self._map

    def __len__(self) -> int:
        return self.high - self.low if self._map is None else int(np.count_nonzero(self._map))
