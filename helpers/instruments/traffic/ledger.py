"""The ledger of one metered call: bytes, sectors and launches by storage, tensor and source line."""

from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from helpers.instruments.traffic.footprint import ByteSet, Footprint, from_strided
from helpers.instruments.traffic.hazards import Hazard


@dataclass
class ByteCount:
    """Bytes requested from memory."""

    read: int = 0
    written: int = 0

    @property
    def total(self) -> int:
        return self.read + self.written


@dataclass
class Line(ByteCount):
    """Bytes requested by one line of source.

    `requests` counts groups of 32 lanes with at least one active in a Triton kernel's loads, stores
    and atomics, `request_sectors` the 32-byte sectors of each. Both are zero for eager operators. CUDA C++ only:
    `shared_requests`, to shared memory, one per warp; `shared_wavefronts`, which serve them; `bank_conflicts`, the
    wavefronts beyond those that the bytes need without a conflict.
    """

    requests: int = 0
    request_sectors: int = 0
    shared_requests: int = 0
    shared_wavefronts: int = 0
    bank_conflicts: int = 0

    @property
    def sectors_per_request(self) -> float | None:
        """1 for a broadcast, itemsize for contiguous lanes, 32 if every lane has its own sector."""
        return self.request_sectors / self.requests if self.requests else None


@dataclass(eq=False)
class Region(ByteCount):
    """A named tensor within a storage; footprint None: all of it."""

    name: str = ""
    footprint: Footprint | None = None
    given: bool = False  # the caller's own name for it


@dataclass(eq=False)
class Storage:
    """The state of one storage during a call."""

    alive: StorageWeakRef  # keeps a freed storage's identity from being reused
    size: int  # bytes
    read: ByteSet
    written: ByteSet
    fresh: bool = False  # allocated uninitialised during the call
    free: bool = False  # holds a Python scalar: reading it costs nothing
    regions: list[Region] = field(default_factory=list)

    def region(self, footprint: Footprint, name: str) -> Region:
        """Return the named tensor that contains the footprint, or a new one called `name`."""
        inside = ByteSet(self.size)
        for region in self.regions:
            if region.footprint is None or region.footprint == footprint:
                return region
            if not region.footprint.dims:
                if region.footprint.low <= footprint.low and footprint.high <= region.footprint.high:
                    return region
            else:
                inside.add(region.footprint)
                if inside.covers(footprint):
                    return region
                inside = ByteSet(self.size)
        if not self.regions:
            self.regions.append(Region(name=name))
        return self.regions[0]


def footprint_of(tensor: torch.Tensor) -> Footprint | None:
    """Return the bytes of a strided tensor, relative to its storage; None if it has no elements.

    Raises:
        ValueError: the tensor is sparse or nested: it has no strides. (Python would replace the message of a TypeError,
            if the tensor is an operand of `+`.)
    """
    if tensor.is_nested:
        raise ValueError("the meter counts strided tensors, got a nested one: pad it with to_padded_tensor()")
    if tensor.layout is not torch.strided:
        raise ValueError(f"the meter counts strided tensors, got {tensor.layout}: make it dense with to_dense()")
    itemsize = tensor.element_size()
    return from_strided(tensor.storage_offset() * itemsize, tensor.shape, tensor.stride(), itemsize)


class Ledger:
    """Adds up the traffic that eager operators and Triton launches report."""

    def __init__(self):
        self.launches: list[tuple[str, ByteCount]] = []
        self.storages: dict[int, Storage] = {}
        self.lines: dict[tuple[str, int], Line] = {}
        self.outside = Region(name="outside")  # out-of-bounds addresses belong to no tensor
        self.sectors_read = 0
        self.sectors_written = 0
        self.atomics = 0
        self.uncounted_fills = 0
        self.elements = 0  # of the largest tensor touched
        self.configurations: dict[str, list[str]] = {}  # autotuned kernel -> which ran, in words
        self.hazards: dict[tuple, tuple[Hazard, Region]] = {}  # "{0}" in a hazard's text is the region's name

    def storage(self, tensor: torch.Tensor) -> Storage:
        untyped = tensor.untyped_storage()
        record = self.storages.get(untyped._cdata)
        size = untyped.nbytes()
        if record is None:
            record = Storage(StorageWeakRef(untyped), size, ByteSet(size), ByteSet(size))
            self.storages[untyped._cdata] = record
        elif size > record.size:
            record.size = size
            record.read.grow(size)
            record.written.grow(size)
        return record

    def name(self, tensor: torch.Tensor, name: str, given: bool = False) -> None:
        """Name this tensor `name` unless it already has a name; `given`: the name comes from the caller."""
        footprint = footprint_of(tensor)
        if footprint is None:
            return
        storage = self.storage(tensor)
        if any(region.footprint is None or region.footprint == footprint for region in storage.regions):
            return
        whole = not footprint.dims and footprint.nbytes == storage.size
        storage.regions.append(Region(name=name, footprint=None if whole else footprint, given=given))

    def name_result(self, tensor: torch.Tensor, name: str) -> None:
        """Name a tensor that the function returned `name`, unless the caller has a name for it."""
        footprint = footprint_of(tensor)
        storage = self.storages.get(tensor.untyped_storage()._cdata)
        if footprint is not None and storage is not None:
            region = storage.region(footprint, name)
            if not region.given:
                region.name, region.given = name, True

    def line(self, file: str, number: int) -> Line:
        line = self.lines.get((file, number))
        if line is None:
            line = self.lines[file, number] = Line()
        return line

    def add(self, moved: ByteCount, place: tuple[str, int]) -> None:
        """Add an eager operator's traffic to its source line."""
        line = self.line(*place)
        line.read += moved.read
        line.written += moved.written

    def move(self, way: str, storage: Storage, region: Region, footprint: Footprint) -> None:
        """Record that an eager operator read or wrote ("read", "written") these bytes."""
        sectors = footprint.sectors(0)
        if way == "read":
            storage.read.add(footprint)
            region.read += footprint.nbytes
            self.sectors_read += sectors
        else:
            storage.written.add(footprint)
            region.written += footprint.nbytes
            self.sectors_written += sectors

    def by_tensor(self) -> dict[str, ByteCount]:
        """Return name -> bytes for each tensor touched, in the order of first access."""
        regions = [region for storage in self.storages.values() for region in storage.regions]
        table = {}
        for region in (*regions, self.outside):
            if region.total:
                name, again = region.name, 2
                while name in table:
                    name, again = f"{region.name} ({again})", again + 1
                table[name] = ByteCount(region.read, region.written)
        return table
