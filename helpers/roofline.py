"""The roofline model: the least time that a device needs for a piece of work.

    attainable = min(peak, bandwidth * intensity)        FLOP/s
    ridge      = peak / bandwidth                        FLOP/byte, where the two meet

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52 (2009).
"""

from dataclasses import dataclass, field

from helpers.devices import Device
from kernels.fused_op import Work

__all__ = ["Roofline", "Work", "roofs"]


@dataclass(frozen=True)
class Roofline:
    """The roof of a device over arithmetic in one dtype: its memory bandwidth, then its peak.

    Args:
        device: from DEVICES or this_device().
        dtype: "fp32", "tf32", "fp16", "bf16" or "fp8", as far as the device has a peak for it.

    Raises:
        TypeError: device is not a Device.
        ValueError: the device has no peak for that dtype.
    """

    device: Device
    dtype: str
    peak: float = field(init=False)  # FLOP/s

    def __post_init__(self):
        if not isinstance(self.device, Device):
            raise TypeError(f"Roofline takes a Device, got {self.device!r}: write DEVICES[name] or this_device()")
        object.__setattr__(self, "peak", self.device.peak_flops[self.dtype])

    @property
    def ridge(self) -> float:
        """Intensity in FLOP/byte from which the peak, no longer the memory, is the limit."""
        return self.peak / self.device.memory_bandwidth

    def attainable(self, intensity: float) -> float:
        """FLOP/s at best, at an arithmetic intensity in FLOP/byte.

        Raises:
            ValueError: the intensity is negative or NaN.
        """
        if not intensity >= 0:
            raise ValueError(f"arithmetic intensity is {intensity}: FLOP/byte of at least 0 expected")
        return min(self.peak, self.device.memory_bandwidth * intensity)

    def bound(self, work: Work) -> str:
        """What limits the work: "memory" left of the ridge, "compute" from the ridge on."""
        return "memory" if work.intensity < self.ridge else "compute"

    def time(self, work: Work) -> float:
        """Seconds at least: arithmetic and traffic overlap, so the slower of the two decides."""
        return max(work.flops / self.peak, work.bytes / self.device.memory_bandwidth)


def roofs(device: Device) -> dict[str, Roofline]:
    """Every roof of a device, by dtype."""
    return {dtype: Roofline(device, dtype) for dtype in device.peak_flops}
