"""Memory as seen by the threads that run together: every access is checked, reported to the meter, then performed.

Each access yields what it may touch: (threads, memory by item size -> array, byte offsets into it).
"""

import numpy as np

from helpers.instruments.cuda.copies import Copies
from helpers.instruments.cuda.memory import UNSIGNED, GlobalMemory, Segment
from helpers.instruments.cuda.ptx import plain_name
from helpers.instruments.cuda.warp import everyone
from helpers.instruments.traffic.hazards import outside


class Spaces:
    """Global memory, and the shared and local memory of the blocks that run together.

    Args:
        padded: threads per block, in whole warps.
        shared_limit: bytes of shared memory that a block may touch.
    """

    def __init__(self, machine, memory: GlobalMemory, padded: int, shared_limit: int):
        self._machine, self._memory, self._padded, self.shared_limit = machine, memory, padded, shared_limit
        self.shared_size, self.local_size = machine.shared_size, machine.local_size
        self._shared = self._poisoned(machine.blocks * self.shared_size)
        self.local = self._poisoned(machine.threads * self.local_size)
        self.copies = Copies(machine, self._shared)
        self._phases: dict[int, int] = {}  # of mbarriers: the last that their threads saw complete
        self.scope = 0  # of the current access, if it is atomic or volatile
        self.read_only = False  # whether it is a load through the read-only cache: __ldg, const __restrict__

    def shared_words(self) -> np.ndarray:
        """Return the shared memory of the blocks that run together as fp32 numbers, block by block."""
        return self._shared[4].view(np.float32)

    def phases_seen(self, places: np.ndarray, phases: np.ndarray) -> None:
        """Report the mbarrier phases, by their words of 8 bytes, that threads see complete."""
        new = {}
        for place, phase in zip(places.tolist(), phases.tolist(), strict=True):
            if self._phases.get(place) != phase:
                new[place] = phase
        if new and self._machine.observer is not None:
            blocks = [place * 8 // self.shared_size for place in new]
            self._machine.observer.block_synchronised(np.unique(blocks))
        self._phases |= new

    def shared_array(self, byte: int) -> tuple[str, int]:
        """Return the name of the shared array that holds a byte of a block, and the byte's offset in the array."""
        starts = [(start, name) for name, start in self._machine.decoder.shared_arrays().items() if start <= byte]
        if not starts:
            return "shared memory", byte
        start, name = max(starts)
        return plain_name(name), byte - start

    @staticmethod
    def _poisoned(size: int) -> dict[int, np.ndarray]:
        """Return memory in its uninitialised state: NaN in every floating-point type."""
        memory = np.full(size, 0xFF, np.uint8)
        return {itemsize: memory.view(kind) for itemsize, kind in UNSIGNED.items()}

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
        if self._machine.observer is not None:
            self._machine.observer.access(kind, line, segment, here, offsets, nbytes)
            if kind != "read" and self.copies:
                self.copies.check_source(line, here, segment.views, offsets, nbytes)
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
        observer = self._machine.observer
        if observer is not None:
            told = bool(self.copies) and self.copies.check(
                "write" if kind == "copy" else kind, line, here, offsets, nbytes
            )
            if kind == "copy":
                observer.shared_copy(line, here, offsets, nbytes, told)
            else:
                observer.shared(kind, line, here, offsets, nbytes, told)
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
        if self._machine.observer is not None:
            self._machine.observer.local(kind, line, here, offsets, nbytes)
        yield threads, self.local, offsets

    def _aligned(self, kind, line, here, addresses, nbytes):
        """Return the lanes whose address is a multiple of the access size; None: all."""
        astray = addresses & np.uint64(nbytes - 1) != 0
        if not astray.any():
            return None
        first = int(np.flatnonzero(astray)[0])
        where = f"an access of {nbytes} bytes at byte {int(addresses[first]) & ((1 << 36) - 1)}"
        self._stray(f"misaligned {kind}", line, where, int(here[first]), int(astray.sum()))
        return ~astray

    def _outside(self, kind, line, here, addresses, nbytes) -> None:
        segment, offset = self._memory.describe(int(addresses[0]))
        if segment is not None and hasattr(self._machine.observer, "outside"):
            self._machine.observer.outside(
                kind, line, segment, here, (addresses - np.uint64(segment.base)).view(np.int64)
            )
        where = f"address {offset}, in no tensor" if segment is None else _element(segment, offset)
        self._stray(kind, line, where, int(here[0]), int(here.size))

    def _stray(self, kind, line, where, thread, count) -> None:
        """Report a forbidden access: an error, or under a meter a hazard."""
        kind = kind.replace("copy", "write")
        kind = (
            "out-of-bounds " + {"write": "store"}.get(kind, kind)
            if not kind.startswith("misaligned")
            else kind.replace("write", "store")
        )
        self._machine.hazard(kind, line, where, thread, count)

    def check_agreement(self, line: int, threads, memory, lost: np.ndarray, changed: np.ndarray, offsets) -> None:
        """After a store, report lanes that find another lane's value there, if the store changed the memory."""
        if memory is not self._shared:
            if hasattr(self._machine.observer, "stored"):
                self._machine.observer.stored(line, everyone(self._machine, threads), offsets, lost, changed)
        elif lost.any():
            here = everyone(self._machine, threads)[lost]
            byte = int(offsets[lost][0]) % self.shared_size
            where = f"shared memory, byte {byte}, where another thread stores another value at the same time"
            self._machine.hazard("race", line, where, int(here[0]), int(lost.sum()))


def _element(segment: Segment, offset: int) -> str:
    tensor = segment.tensor
    if tensor is None:
        return f"{segment.name}, byte {offset}"
    place = offset // tensor.element_size() - tensor.storage_offset()
    return f"{segment.name}, {outside(tensor, place)}"
