"""A softmax over wide rows: whether a block can hold a row, and where the bytes come from when it must read it again.

    held               x read once, y written
    read twice         maximum and sum in one loop (online softmax), y in a second
    read three times   a loop for the maximum, one for the sum, one for y

A program works on one row. It holds the row if its numbers, a register each in fp32, are fewer than the registers that
a thread can have; tests/test_wide_rows.py holds that against the compiler. Otherwise it walks over the row in blocks,
and comes back to its start when every program on the GPU has read its own row once. What L2 still has by then follows
helpers.prediction.
"""

from dataclasses import dataclass

from helpers.devices import Device
from helpers.occupancy import MAX_REGISTERS, REGISTERS, WARP, occupancy
from helpers.operations import ITEMSIZE
from helpers.prediction import BANDWIDTH_SHARE, still_in_l2

READS = {"held": 1, "read twice": 2, "read three times": 3}
LOOP_REGISTERS = 32  # a thread of a loop over blocks of 8 numbers a thread


@dataclass(frozen=True)
class WideRows:
    """`rows` rows of `columns` numbers in `dtype` ("fp32", "fp16", "bf16"), a program of `warps` warps each."""

    device: Device
    dtype: str
    rows: int
    columns: int
    warps: int

    @property
    def numbers(self) -> int:
        """Numbers a thread holds where the block holds the row: a block's lanes are a power of two."""
        lanes = 1 << (self.columns - 1).bit_length()
        return -(-lanes // (self.warps * WARP))

    @property
    def room(self) -> int:
        """Registers that a thread can have."""
        return min(MAX_REGISTERS, REGISTERS // (self.warps * WARP))

    @property
    def fits(self) -> bool:
        """Whether the block holds the row without spills."""
        return self.numbers < self.room

    @property
    def in_flight(self) -> int:
        """Rows at work at once, in a loop over blocks of each."""
        on_sm = occupancy(self.device.compute_capability, threads=self.warps * WARP, registers=LOOP_REGISTERS).blocks
        return min(self.rows, on_sm * self.device.sms)

    @property
    def flight_bytes(self) -> int:
        """Bytes of the rows at work: what L2 must keep for a second read."""
        return self.in_flight * self.columns * ITEMSIZE[self.dtype]

    @property
    def kept(self) -> float:
        """The share of a second read that L2 serves."""
        return still_in_l2(self.flight_bytes, self.device.l2_cache, "read")

    def number_bytes(self, way: str) -> tuple[float, float, float]:
        """Bytes for each number of the tensor: read from DRAM, read from L2, written. `way` is one of READS."""
        itemsize, again = ITEMSIZE[self.dtype], READS[way] - 1
        return itemsize * (1 + again * (1 - self.kept)), itemsize * again * self.kept, itemsize

    def dram_bytes(self, way: str) -> float:
        """Bytes that DRAM moves in all."""
        read, _, written = self.number_bytes(way)
        return self.rows * self.columns * (read + written)

    def least_time(self, way: str) -> float:
        """Seconds that these bytes take at the speed of a copy."""
        return self.dram_bytes(way) / (BANDWIDTH_SHARE * self.device.memory_bandwidth)

    @property
    def finding(self) -> str:
        """The chart's title."""
        row = f"A row of {self.columns:,}"
        if self.fits:
            return f"{row} fits in {self.warps} warps: {self.numbers} number{'s' * (self.numbers > 1)} a thread"
        missing = f"{row} does not fit in {self.warps} warps"
        if self.kept > 0.995:
            return f"{missing}, but L2 still has it for a second read"
        if self.kept < 0.005:
            return f"{missing}, and L2 has lost it before a second read"
        return f"{missing}; L2 serves {self.kept:.0%} of a second read"

    @property
    def text(self) -> str:
        """The line that says what the chart shows."""
        l2 = f"{self.device.l2_cache / 2**20:g} MiB"
        at_work = f"{self.in_flight:,} row{'s' * (self.in_flight > 1)} at work, {self.flight_bytes / 2**20:,.3g} MiB"
        place = f"{self.device.name}, {self.dtype}, {self.rows:,} x {self.columns:,}, {self.warps} warps a row"
        return f"{place}: {self.finding}. Looping: {at_work} to keep in {l2} of L2."
