"""Occupancy: how many blocks of a kernel fit on one SM, what limits them, and what one more block would need.

    occupancy((9, 0), threads=256, registers=70)    # 3 blocks, 24 of 64 warps (38 %), limited by registers: ...

The algorithm is that of NVIDIA's cuda_occupancy.h. Shared memory and registers are handed out in units, registers
within each of an SM's four sub-partitions, so dividing totals overestimates in about one case in five.
"""

import dataclasses
import math
import numbers
from dataclasses import dataclass
from functools import cached_property

WARP = 32  # threads
MAX_THREADS = 1024  # per block
MAX_REGISTERS = 255  # per thread
REGISTERS = 65536  # per SM, and per block
REGISTER_UNIT = 256  # registers are allocated to a warp in this many
SUB_PARTITIONS = 4  # of an SM: each has a quarter of the registers and gets warps in turn
TENSOR_MEMORY_UNIT = 32  # columns


@dataclass(frozen=True)
class Limits:
    """The resources of one SM of a compute capability. Memory is in bytes."""

    warps: int
    blocks: int
    l1_and_shared_memory: int  # shared by both on an SM
    shared_memory: int  # maximum for shared memory
    shared_memory_per_block: int
    shared_memory_unit: int
    reserved_shared_memory: int  # per block, reserved by the driver
    carveouts: tuple[int, ...]  # possible sizes of shared memory, out of the SM's L1
    barriers: int | None  # named barriers; None if they never limit
    tensor_memory: int | None  # columns; None if the SM has none


def _limits(
    warps, blocks, store_kb, shared_kb, per_block_kb, unit, reserved, carveouts_kb, barriers=None, tensor_memory=None
) -> Limits:
    carveouts = tuple(kb * 1024 for kb in carveouts_kb)
    memory = (store_kb * 1024, shared_kb * 1024, per_block_kb * 1024)
    return Limits(warps, blocks, *memory, unit, reserved, carveouts, barriers, tensor_memory)


_SMALL = (0, 8, 16, 32, 64, 100)
_AMPERE = (*_SMALL, 132, 164)
_HOPPER = (*_AMPERE, 196, 228)

# Source: CUDA C++ Programming Guide, technical specifications per compute capability; units, carve-outs and barriers
# from cuda_occupancy.h; tensor memory from the PTX ISA, "Tensor Memory".
LIMITS = {
    (7, 0): _limits(64, 32, 128, 96, 96, 256, 0, (0, 8, 16, 32, 64, 96)),
    (7, 5): _limits(32, 16, 96, 64, 64, 256, 0, (32, 64)),
    (8, 0): _limits(64, 32, 192, 164, 163, 128, 1024, _AMPERE),
    (8, 6): _limits(48, 16, 128, 100, 99, 128, 1024, _SMALL),
    (8, 9): _limits(48, 24, 128, 100, 99, 128, 1024, _SMALL),
    (9, 0): _limits(64, 32, 256, 228, 227, 128, 1024, _HOPPER, barriers=64),
    (10, 0): _limits(64, 32, 256, 228, 227, 128, 1024, _HOPPER, barriers=64, tensor_memory=512),
    (10, 3): _limits(64, 32, 256, 228, 227, 128, 1024, _HOPPER, barriers=64, tensor_memory=512),
    (12, 0): _limits(48, 24, 128, 100, 99, 128, 1024, _SMALL, barriers=24),
}


def limits(compute_capability: tuple[int, int]) -> Limits:
    """Return the Limits of a compute capability.

    Raises:
        ValueError: it is not in the table.
    """
    if not isinstance(compute_capability, tuple) or compute_capability not in LIMITS:
        known = ", ".join(f"{major}.{minor}" for major, minor in LIMITS)
        raise ValueError(f"no occupancy limits for compute capability {compute_capability}: known are {known}")
    return LIMITS[compute_capability]


@dataclass(frozen=True)
class Sweep:
    """Occupancy as one resource varies and the others stay fixed: `warps[i]` active warps per SM at `values[i]`.

    `values`: threads per block, registers per thread, or bytes of shared memory per block; `at`: the kernel's own.
    """

    resource: str
    values: tuple[int, ...]
    warps: tuple[int, ...]
    at: int


@dataclass(frozen=True)
class Waves:
    """A grid on a GPU, in waves of blocks that run at once. `tail` blocks are in the last, partly filled wave."""

    blocks_per_wave: int
    full: int
    tail: int

    @property
    def count(self) -> int:
        """Number of waves, including the partly filled one."""
        return self.full + bool(self.tail)

    @property
    def efficiency(self) -> float:
        """Share of block slots in use over all waves: 1 if the last wave is full or the grid is empty."""
        if not self.count:
            return 1.0
        return (self.full * self.blocks_per_wave + self.tail) / (self.count * self.blocks_per_wave)

    def __repr__(self):
        waves = f"{self.count} wave{'s' * (self.count != 1)} of {self.blocks_per_wave} blocks"
        if not self.count:
            return f"{waves}: the grid is empty"
        tail = f", {self.tail} in the last" if self.tail else ""
        used = f"{self.efficiency:.0%}"
        if used == "0%" or (used == "100%" and self.tail):  # rounding must not claim what isn't so
            used = "under 1%" if used == "0%" else "over 99%"
        return f"{waves}{tail}: {used} of the slots used"


@dataclass(frozen=True)
class _Block:
    """One block's resource use on an SM, and how many such blocks each resource allows."""

    limits: Limits
    threads: int
    registers: int  # per thread
    shared_memory: int  # static, bytes
    dynamic_shared_memory: int  # bytes
    barriers: int
    carveout: int | None  # percent
    tensor_memory: int = 0  # columns

    @property
    def warps(self) -> int:
        return -(-self.threads // WARP)

    def by_warps(self) -> int:
        return self.limits.warps // self.warps

    def by_registers(self) -> float:
        if not self.registers:
            return math.inf
        of_a_warp = -(-self.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        if of_a_warp * -(-self.warps // SUB_PARTITIONS) * SUB_PARTITIONS > REGISTERS:
            return 0
        return REGISTERS // SUB_PARTITIONS // of_a_warp * SUB_PARTITIONS // self.warps

    def by_shared_memory(self) -> float:
        static = self.shared_memory + self.limits.reserved_shared_memory
        unit = self.limits.shared_memory_unit
        allocated = -(-(static + self.dynamic_shared_memory) // unit) * unit
        if allocated == 0:
            return math.inf
        if self.carveout is None:
            preferred = self.limits.shared_memory
        else:
            preferred = self._carveout_at_least(self.carveout * self.limits.shared_memory // 100)
        return (preferred if preferred >= allocated else self._carveout_at_least(allocated)) // allocated

    def _carveout_at_least(self, size: int) -> int:
        return next(carveout for carveout in self.limits.carveouts if carveout >= size)

    def by_barriers(self) -> float:
        if self.limits.barriers is None or not self.barriers:
            return math.inf
        return self.limits.barriers // self.barriers

    def by_tensor_memory(self) -> float:
        return self.limits.tensor_memory // self.tensor_memory if self.tensor_memory else math.inf

    def blocks_allowed(self) -> dict[str, float]:
        return {
            "warps": self.by_warps(),
            "registers": self.by_registers(),
            "shared memory": self.by_shared_memory(),
            "barriers": self.by_barriers(),
            "tensor memory": self.by_tensor_memory(),
            "blocks": self.limits.blocks,
        }

    def with_less_shared_memory(self, size: int) -> "_Block":
        dynamic = min(size, self.dynamic_shared_memory)
        return dataclasses.replace(
            self,
            dynamic_shared_memory=self.dynamic_shared_memory - dynamic,
            shared_memory=self.shared_memory - (size - dynamic),
        )


@dataclass(frozen=True)
class Occupancy:
    """The number of a kernel's blocks that fit on an SM, and what limits it.

    Attributes:
        compute_capability: the SM's, such as (9, 0).
        blocks: active blocks per SM; 0 if the kernel cannot be launched.
        warps: active warps per SM.
        fraction: warps / the SM's warps, 0 to 1.
        limiters: every resource that allows no more than `blocks`: "warps", "registers", "shared memory", "barriers",
            "tensor memory", "blocks".
    """

    compute_capability: tuple[int, int]
    blocks: int
    warps: int
    fraction: float
    limiters: tuple[str, ...]
    _block: _Block

    @property
    def allocated(self) -> dict[str, tuple[int, int]]:
        """Return the hardware's allocation per block, and the SM's total: "warps", "registers", "shared memory"
        (bytes).

        Registers are allocated in units of REGISTER_UNIT per warp; shared memory includes the driver's share.
        """
        block, unit = self._block, self._block.limits.shared_memory_unit
        size = block.shared_memory + block.limits.reserved_shared_memory + block.dynamic_shared_memory
        of_a_warp = -(-block.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        return {
            "warps": (block.warps, block.limits.warps),
            "registers": (block.warps * of_a_warp, REGISTERS),
            "shared memory": (-(-size // unit) * unit, block.limits.shared_memory),
        }

    @cached_property
    def one_more_block(self) -> dict[str, int]:
        """The smallest reductions that, together, let one more block fit.

        "threads" per block, "registers" per thread, "shared memory" bytes per block, "barriers" per block, columns of
        "tensor memory" per block. Empty if the SM's maximum number of blocks or warps is reached, or the carve-out is
        too small for any other block.
        """
        block, wanted, less = self._block, self.blocks + 1, {}
        if wanted > block.limits.blocks or self.warps == block.limits.warps:
            return {}
        if block.by_warps() < wanted:
            threads = block.limits.warps // wanted * WARP
            less["threads"] = block.threads - threads
            block = dataclasses.replace(block, threads=threads)
        if block.by_registers() < wanted:
            fewer = (dataclasses.replace(block, registers=count) for count in range(block.registers - 1, -1, -1))
            fitting = next(candidate for candidate in fewer if candidate.by_registers() >= wanted)
            less["registers"] = block.registers - fitting.registers
        if block.by_barriers() < wanted:
            less["barriers"] = block.barriers - block.limits.barriers // wanted
        if block.by_tensor_memory() < wanted:
            share = 2 ** int(math.log2(block.limits.tensor_memory // wanted))  # allocated in powers of two from 32
            less["tensor memory"] = block.tensor_memory - (share if share >= TENSOR_MEMORY_UNIT else 0)
        if block.by_shared_memory() < wanted:
            size = self._shared_memory_to_free(wanted)
            if size is None:
                return {}
            less["shared memory"] = size
        return less

    def _shared_memory_to_free(self, wanted: int) -> int | None:
        # Using less memory can also shrink the carve-out and so allow fewer blocks: try each carve-out's largest share.
        block, unit = self._block, self._block.limits.shared_memory_unit
        used = block.shared_memory + block.dynamic_shared_memory
        shares = (carveout // wanted // unit * unit for carveout in block.limits.carveouts)
        sizes = (used - (share - block.limits.reserved_shared_memory) for share in shares)
        possible = [size for size in sizes if 0 < size <= used]
        return min((n for n in possible if block.with_less_shared_memory(n).by_shared_memory() >= wanted), default=None)

    @property
    def allowed(self) -> dict[str, float]:
        """Resource -> the blocks per SM that it alone would allow; math.inf if it is not used."""
        return self._block.blocks_allowed()

    @property
    def advice(self) -> str:
        """`one_more_block` in words."""
        if self.blocks == self._block.limits.blocks:
            return f"an SM holds no more than {self.blocks} blocks"
        if self.warps == self._block.limits.warps:
            return f"an SM holds no more than {self.warps} warps"
        less = self.one_more_block
        if not less:
            return "no smaller block lets one more fit: the shared-memory carve-out is too small"
        return f"to fit one more block, use {' and '.join(_fewer(resource, count) for resource, count in less.items())}"

    def sweep(self, resource: str) -> Sweep:
        """Compute active warps as `resource` ("threads", "registers" or "shared memory") varies over its whole range.

        Shared memory varies in steps of 1 KB of dynamic memory, on top of the kernel's static memory.

        Raises:
            ValueError: another resource.
        """
        block = self._block
        sweeps = {
            "threads": (block.threads, range(WARP, MAX_THREADS + 1, WARP)),
            "registers": (block.registers, range(1, MAX_REGISTERS + 1)),
            "shared memory": (
                block.shared_memory + block.dynamic_shared_memory,
                range(block.shared_memory, block.limits.shared_memory_per_block + 1, 1024),
            ),
        }
        if resource not in sweeps:
            raise ValueError(f"a sweep is over threads, registers or shared memory, not {resource!r}")
        at, values = sweeps[resource]
        return Sweep(resource, tuple(values), tuple(self.warps_at(resource, value) for value in values), at)

    def warps_at(self, resource: str, value: int) -> int:
        """Return active warps per SM with one `sweep` resource set to `value`, everything else unchanged.

        Raises:
            ValueError: another resource, or a value that no block can have.
        """
        block = self._block
        most = {
            "threads": MAX_THREADS,
            "registers": MAX_REGISTERS,
            "shared memory": block.limits.shared_memory_per_block,
        }
        if resource not in most:
            raise ValueError(f"a sweep is over threads, registers or shared memory, not {resource!r}")
        _check(resource, value, int(resource == "threads"), most[resource])
        if resource == "shared memory":
            used = block.shared_memory + block.dynamic_shared_memory
            changed = block.with_less_shared_memory(used - value)
        else:
            changed = dataclasses.replace(block, **{resource: value})
        return int(min(changed.blocks_allowed().values())) * changed.warps

    def waves(self, grid: int, sms: int) -> Waves:
        """Return how `grid` blocks run on `sms` SMs, if every block takes the same time.

        Raises:
            ValueError: a negative grid, no SM, not whole numbers, or a kernel whose block does not fit.
        """
        _check("blocks of the grid", grid, 0, math.inf)
        _check("SMs", sms, 1, math.inf)
        if not self.blocks:
            raise ValueError(f"no block fits on an SM, so none runs: {self.advice}")
        per_wave = self.blocks * sms
        return Waves(per_wave, *divmod(grid, per_wave))

    def __repr__(self):
        of = self._block.limits.warps
        return (
            f"{self.blocks} block{'s' * (self.blocks != 1)}, {self.warps} of {of} warps ({self.fraction:.0%}), "
            f"limited by {' and '.join(self.limiters)}: {self.advice}{self._unknown}"
        )

    @property
    def _unknown(self) -> str:
        """Say how many registers the answer holds for, if they were not given."""
        if self._block.registers:
            return ""
        fits = (count for count in range(MAX_REGISTERS, 0, -1) if self._with_registers(count) >= self.blocks)
        return f"; registers were not given: this holds up to {next(fits)} per thread"

    def _with_registers(self, count: int) -> float:
        return dataclasses.replace(self._block, registers=count).by_registers()


def _fewer(resource: str, count: int) -> str:
    if resource == "tensor memory":
        return f"{count} fewer columns of tensor memory"
    if resource != "shared memory":
        holder = "thread" if resource == "registers" else "block"
        return f"{count} fewer {resource if count > 1 else resource[:-1]} per {holder}"
    return f"{count / 1024:g} KB less shared memory" if count % 128 == 0 else f"{count} B less shared memory"


def occupancy(
    compute_capability: tuple[int, int],
    *,
    threads: int,
    registers: int = 0,
    shared_memory: int = 0,
    dynamic_shared_memory: int = 0,
    carveout: int | None = None,
    barriers: int = 0,
    tensor_memory: int = 0,
) -> Occupancy:
    """Compute how many blocks of a kernel are active on one SM at a time.

    Args:
        compute_capability: such as (9, 0); the table LIMITS has those of the device list.
        threads: per block, 1 to 1024.
        registers: per thread, 0 to 255; 0 means unknown, and sets no limit, which the result's text notes.
        shared_memory: static, bytes per block, without the driver's share.
        dynamic_shared_memory: bytes per block.
        carveout: percent of the maximum shared memory that the SM should set aside; None leaves it to the driver.
        barriers: named barriers per block (from `ptxas -v`), at most 16; they can be the limit on 9.0 and later.
        tensor_memory: columns per block, on 10.0 and 10.3. CUDA starts more blocks than have room, but those wait for
            it: they are not counted.

    Raises:
        ValueError: a value outside these ranges, or more shared or tensor memory than a block can have.
    """
    of_sm = limits(compute_capability)
    _check("threads per block", threads, 1, MAX_THREADS)
    _check("registers per thread", registers, 0, MAX_REGISTERS)
    _check("barriers per block", barriers, 0, 16)
    if carveout is not None:
        _check("percent of shared memory as carve-out", carveout, 0, 100)
    for name, size in (("static", shared_memory), ("dynamic", dynamic_shared_memory)):
        _check(f"bytes of {name} shared memory", size, 0, math.inf)
    _check("columns of tensor memory", tensor_memory, 0, of_sm.tensor_memory or 0)
    used, most = shared_memory + dynamic_shared_memory, of_sm.shared_memory_per_block
    if used > most:
        major, minor = compute_capability
        raise ValueError(
            f"{used} B of shared memory is {used - most} B more than a block can have on compute capability "
            f"{major}.{minor}: at most {most} B"
        )
    block = _Block(of_sm, threads, registers, shared_memory, dynamic_shared_memory, barriers, carveout, tensor_memory)
    allowed = block.blocks_allowed()
    blocks = int(min(allowed.values()))
    return Occupancy(
        compute_capability=compute_capability,
        blocks=blocks,
        warps=blocks * block.warps,
        fraction=blocks * block.warps / of_sm.warps,
        limiters=tuple(name for name, count in allowed.items() if count == blocks),
        _block=block,
    )


def _check(name: str, value: int, least: int, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name}: a whole number, not {value!r}")
    if not least <= value <= most:
        range_ = f"at least {least}" if most == math.inf else f"{least} to {most}"
        raise ValueError(f"{name}: {range_}, not {value}")
