"""The roofline model: the least time that a device needs for a piece of work.

    attainable = min(peak, bandwidth * intensity)        FLOP/s
    ridge      = peak / bandwidth                        FLOP/byte, where the two meet

L2's bandwidth, over the bytes that cross between L2 and the SMs, is a roof of its own; the slowest level decides.

Sources: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52 (2009); for several levels, Yang, Kurth and Williams, "Hierarchical Roofline analysis for GPUs",
Concurrency and Computation 32 (2020).
"""

from dataclasses import dataclass, field

from helpers.instruments.devices import Device
from kernels.fused_op import Work

__all__ = ["Roofline", "Work", "levels", "roofs"]

LEVELS = {"DRAM": "memory", "L2": "L2"}  # level -> what a kernel that it limits is bound by


@dataclass(frozen=True)
class Roofline:
    """The roof of a device over arithmetic in one dtype: its memory bandwidth, then its peak.

    Args:
        device: from DEVICES or this_device().
        dtype: "fp32", "tf32", "fp16", "bf16" or "fp8", as far as the device has a peak for it.
        level: "DRAM", or "L2" where the device's L2 bandwidth is known. The bytes of any work are those of that level.

    Raises:
        TypeError: device is not a Device.
        ValueError: the device has no peak for that dtype, or no known bandwidth at that level.
    """

    device: Device
    dtype: str
    level: str = "DRAM"
    peak: float = field(init=False)  # FLOP/s

    def __post_init__(self):
        if not isinstance(self.device, Device):
            raise TypeError(f"Roofline takes a Device, got {self.device!r}: write DEVICES[name] or this_device()")
        if self.level not in LEVELS:
            raise ValueError(f"no level of memory is called {self.level!r}: choose from {', '.join(LEVELS)}")
        if self.level == "L2" and self.device.l2_bandwidth is None:
            raise ValueError(
                f"no L2 bandwidth of {self.device.name} is known: measure it and add l2_bandwidth_gb_s and "
                "l2_bandwidth_source with DEVICES.load(path)"
            )
        object.__setattr__(self, "peak", self.device.peak_flops[self.dtype])

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the level."""
        return self.device.memory_bandwidth if self.level == "DRAM" else self.device.l2_bandwidth

    @property
    def ridge(self) -> float:
        """Intensity in FLOP/byte from which the peak, no longer the memory, is the limit."""
        return self.peak / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """FLOP/s at best, at an arithmetic intensity in FLOP/byte.

        Raises:
            ValueError: the intensity is negative or NaN.
        """
        if not intensity >= 0:
            raise ValueError(f"arithmetic intensity is {intensity}: FLOP/byte of at least 0 expected")
        return min(self.peak, self.bandwidth * intensity)

    def bound(self, work: Work) -> str:
        """What limits the work: "memory" (or "L2", the level's name) left of the ridge, "compute" from the ridge on."""
        return LEVELS[self.level] if work.intensity < self.ridge else "compute"

    def time(self, work: Work) -> float:
        """Seconds at least: arithmetic and traffic overlap, so the slower of the two decides."""
        return max(work.flops / self.peak, work.bytes / self.bandwidth)


def roofs(device: Device) -> dict[str, Roofline]:
    """Every roof of a device, by dtype."""
    return {dtype: Roofline(device, dtype) for dtype in device.peak_flops}


def levels(device: Device, dtype: str) -> dict[str, Roofline]:
    """The roof of each level of memory whose bandwidth is known, by level: DRAM, then L2."""
    known = LEVELS if device.l2_bandwidth else ["DRAM"]
    return {level: Roofline(device, dtype, level) for level in known}
