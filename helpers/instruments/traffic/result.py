"""The meter's result, as lessons show it."""

import textwrap
from dataclasses import dataclass, replace
from typing import Any

import torch

from helpers.instruments.source_lines import source_line
from helpers.instruments.tables import Table, table
from helpers.instruments.traffic.hazards import Hazard
from helpers.instruments.traffic.ledger import ByteCount, Ledger, Line


@dataclass(frozen=True, repr=False)
class Traffic:
    """Memory traffic of one call, in bytes unless noted.

    bytes_read, bytes_written: requested from memory.
    launches: eager operators and Triton launches that did work.
    atomics: lanes of atomic operations.
    unique_read, unique_written: distinct bytes over the whole call.
    sectors_read, sectors_written: 32-byte sectors, summed over the loads and stores of all programs, and operators.
    shared_requests, shared_wavefronts, bank_conflicts: CUDA C++ only, see Line; 0 for Triton, whose compiler lays out
        shared memory itself.
    by_tensor: name -> Moved; "outside" is traffic outside every tensor of a launch.
    by_line: (file, line) -> Line, of the kernel's source, or of the line that called an eager operator.
    by_launch: (name, Moved) of each launch, in order.
    hazards: the kernels' out-of-bounds accesses, uninitialised reads and races; for CUDA C++ also the others listed at
        Hazard. Uninitialised reads are found only in tensors that the call itself allocates.
        A race is two program instances storing to one byte when the second holds no lock that the first held or
        released (a word taken by a compare-and-swap or an exchange of 0, until the next atomic there), or lanes of one
        store writing different values to one element. An unsynchronised read loads a byte that another program of the
        launch has stored, without an atomic on the same word by the writer after its store and by the reader before its
        load; an unsynchronised store changes a byte that another has loaded. Atomics count as stores, except against
        other atomics and loads with volatile=True. Two lanes of one program that meet at one byte have the same names,
        unless a tl.debug_barrier, a reduction or an atomic of one element is between. Equal places in blocks of one
        shape are one lane, and accesses to a single element are left out. A cooperative launch is ordered by its
        counters; there, atomics with plain accesses, and lanes of one program, are not compared.
        In CUDA C++ a race is two threads accessing the same place in shared memory, a tensor or a `__device__` variable
        when one of them writes, at least one access is neither atomic nor volatile, and no barrier or __syncwarp orders
        them. Blocks are ordered by a __threadfence and an atomic or volatile access in the first, and such an access in
        the second, by the thread itself or one before a barrier, anywhere in memory: an atomic on the wrong address is
        not found. In global memory, stores of the
        same value don't race.
    elements: of the result, if it is one tensor and no tensor in the call has more; else None.
    result: the function's result.
    uncounted_fills: launches missing from `launches`: on a GPU, torch.where first fills a tensor for each number that
        it is given.
    configurations: (kernel, configuration) for each @triton.autotune kernel: if nothing is timed, the first
        configuration that fits runs.
    """

    bytes_read: int
    bytes_written: int
    launches: int
    sectors_read: int
    sectors_written: int
    unique_read: int
    unique_written: int
    atomics: int
    shared_requests: int
    shared_wavefronts: int
    bank_conflicts: int
    by_tensor: dict[str, ByteCount]
    by_line: dict[tuple[str, int], Line]
    by_launch: tuple[tuple[str, ByteCount], ...]
    hazards: tuple[Hazard, ...]
    elements: int | None
    result: Any
    configurations: tuple[tuple[str, str], ...] = ()
    uncounted_fills: int = 0

    @classmethod
    def of(cls, ledger: Ledger, result) -> "Traffic":
        same = isinstance(result, torch.Tensor) and result.numel() == ledger.elements
        elements = ledger.elements if same and ledger.elements else None
        return cls(
            bytes_read=sum(line.read for line in ledger.lines.values()),
            bytes_written=sum(line.written for line in ledger.lines.values()),
            launches=len(ledger.launches),
            sectors_read=ledger.sectors_read,
            sectors_written=ledger.sectors_written,
            unique_read=sum(len(storage.read) for storage in ledger.storages.values()),
            unique_written=sum(len(storage.written) for storage in ledger.storages.values()),
            atomics=ledger.atomics,
            shared_requests=sum(line.shared_requests for line in ledger.lines.values()),
            shared_wavefronts=sum(line.shared_wavefronts for line in ledger.lines.values()),
            bank_conflicts=sum(line.bank_conflicts for line in ledger.lines.values()),
            by_tensor=ledger.by_tensor(),
            by_line=ledger.lines,
            by_launch=tuple(ledger.launches),
            hazards=tuple(
                replace(hazard, where=hazard.where.format(region.name)) for hazard, region in ledger.hazards.values()
            ),
            elements=elements,
            result=result,
            uncounted_fills=ledger.uncounted_fills,
            configurations=tuple((kernel, said) for kernel, each in ledger.configurations.items() for said in each),
        )

    @property
    def bytes_total(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def unique_total(self) -> int:
        """The minimum DRAM traffic: every distinct byte once."""
        return self.unique_read + self.unique_written

    @property
    def sectors_per_request(self) -> float | None:
        """Sectors per warp request over all Triton loads and stores; None if there were none.

        For contiguous lanes it is the element size in bytes: 4 for fp32, 2 for fp16; 32 if each lane has a sector
        of its own. A warp is assumed to be 32 neighbours in the block, one element each; a compiled kernel gives a lane
        up to 16 bytes, which makes fewer requests for the same sectors.
        """
        requests = sum(line.requests for line in self.by_line.values())
        return sum(line.request_sectors for line in self.by_line.values()) / requests if requests else None

    def tensor_table(self) -> Table:
        """Bytes read and written of each tensor."""
        rows = [(name, size(moved.read), size(moved.written)) for name, moved in self.by_tensor.items()]
        return table(("tensor", "read", "written"), rows)

    def launch_table(self) -> Table:
        """Bytes read and written by each launch in order."""
        rows = [(name, size(moved.read), size(moved.written)) for name, moved in self.by_launch]
        return table(("launch", "read", "written"), rows)

    def line_table(self) -> Table:
        """Bytes read and written by each source line and, for kernel lines, sectors per request.

        If CUDA C++ used shared memory, also each line's wavefronts and how many of them are bank conflicts.
        """
        rows, banked = [], self.shared_requests > 0
        for (file, number), line in self.by_line.items():
            source = source_line(file, number) or "backward pass"
            each = line.sectors_per_request
            rows.append(
                (
                    textwrap.shorten(f"{number}: {source}", 72, placeholder=" ..."),
                    size(line.read),
                    size(line.written),
                    "" if each is None else f"{each:.4g}",
                    *((str(line.shared_wavefronts or ""), str(line.bank_conflicts or "")) if banked else ()),
                )
            )
        shared = ("wavefronts", "bank conflicts") if banked else ()
        return table(("line", "read", "written", "sectors/request", *shared), rows)

    def __str__(self):
        text = (
            f"{self.launches} launch{'es' * (self.launches != 1)}: {size(self.bytes_read)} read + "
            f"{size(self.bytes_written)} written = {size(self.bytes_total)}"
        )
        if self.elements:
            text += f", {self.bytes_total / self.elements:.4g} B/element"
        if self.atomics:
            text += f", {self.atomics} atomic{'s' * (self.atomics != 1)}"
        if self.shared_requests:
            text += (
                f"; shared memory: {self.shared_requests} requests, {self.shared_wavefronts} wavefronts, "
                f"{self.bank_conflicts} bank conflict{'s' * (self.bank_conflicts != 1)}"
            )
        ran = (f"  {kernel} ran with {said}" for kernel, said in self.configurations)
        uncounted = []
        if fills := self.uncounted_fills:
            uncounted = [f"  not counted: {fills} fill{'s' * (fills != 1)} on a GPU, for numbers given to torch.where"]
        return "\n".join([text, *ran, *uncounted, *(f"  {hazard}" for hazard in self.hazards)])

    __repr__ = __str__


def size(nbytes: int) -> str:
    """Format bytes in powers of 1000, with four digits: "12 B", "8 MB", "4.194 MB"."""
    value, unit = float(nbytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{value:.4g} {unit}"
