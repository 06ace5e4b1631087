"""The roofline model: the minimum time that a device needs for a piece of work.

    attainable = min(peak, bandwidth * intensity)        FLOP/s
    ridge      = peak / bandwidth                        FLOP/byte, where the two meet

L2's bandwidth, over the bytes that cross between L2 and the SMs, is a roof of its own, and so is shared memory's, over
the bytes that cross between it and the registers; the slowest level decides. Each kind of unit has its own rate, too:
tensor cores multiply matrices, CUDA cores do other arithmetic, and special function units compute exponentials,
reciprocals and roots. A data sheet's roof is units times clock; the rate a GPU sustains is lower (`measured_device`).

Sources: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52 (2009); for several levels, Yang, Kurth and Williams, "Hierarchical Roofline analysis for GPUs",
Concurrency and Computation 32 (2020).
"""

import math
import numbers
from dataclasses import dataclass, field, replace

from helpers.instruments.devices import DEVICES, SAME_CLOCK, Device, PeakFlops
from helpers.instruments.recordings import RESULTS, recorded
from kernels.op import Work

__all__ = ["SPECIAL", "Roofline", "Work", "levels", "measured_device", "roofs"]

LEVELS = {"DRAM": "memory", "L2": "L2", "shared": "shared memory"}  # level -> "bound" of a kernel that it limits
SPECIAL = "special functions"


@dataclass(frozen=True)
class Roofline:
    """A device's roofline for arithmetic in one dtype: memory bandwidth, then peak.

    Args:
        device: from DEVICES or this_device().
        dtype: "fp32", "tf32", "fp16", "bf16", "fp8" or "fp4", if the device has a peak for it; or
            "special functions", whose peak is in results/s: exponentials, reciprocals, roots.
        level: "DRAM"; "L2" if the device's L2 bandwidth is known; "shared". All work is given in bytes at that
            level.

    Raises:
        TypeError: device is not a Device, or dtype not a string.
        ValueError: the device has no peak for that dtype, or no known bandwidth at that level.
    """

    device: Device
    dtype: str
    level: str = "DRAM"
    peak: float = field(init=False)  # FLOP/s

    def __post_init__(self):
        if not isinstance(self.device, Device):
            raise TypeError(f"Roofline takes a Device, got {self.device!r}: write DEVICES[name] or this_device()")
        if not isinstance(self.dtype, str):
            names = ", ".join(self.device.peak_flops)
            raise TypeError(f"Roofline takes the name of a dtype, got {self.dtype!r}: write one of {names}")
        if self.level not in LEVELS:
            raise ValueError(f"unknown memory level {self.level!r}: choose from {', '.join(LEVELS)}")
        if self.device.memory_bandwidth is None:
            raise ValueError(
                f"no memory bandwidth of {self.device.name} is known, as its driver reports no memory clock: add the "
                "GPU with DEVICES.load(path)"
            )
        if self.level == "L2" and self.device.l2_bandwidth is None:
            raise ValueError(
                f"no L2 bandwidth of {self.device.name} is known: measure it and add l2_bandwidth_gb_s and "
                "l2_bandwidth_source with DEVICES.load(path)"
            )
        if self.device.special_rate is None and (self.dtype == SPECIAL or self.level == "shared"):
            raise ValueError(
                f"{self.device.name} has no known {LEVELS['shared'] if self.dtype != SPECIAL else SPECIAL}"
            )
        peak = self.device.special_rate if self.dtype == SPECIAL else self.device.peak_flops[self.dtype]
        object.__setattr__(self, "peak", peak)

    @property
    def bandwidth(self) -> float:
        """Bytes/s at this level."""
        device = self.device
        return {"DRAM": device.memory_bandwidth, "L2": device.l2_bandwidth, "shared": device.shared_bandwidth}[
            self.level
        ]

    @property
    def ridge(self) -> float:
        """Intensity in FLOP/byte above which the peak, not memory, is the limit."""
        return self.peak / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """Return the maximum FLOP/s at an arithmetic intensity in FLOP/byte.

        Raises:
            ValueError: the intensity is negative, NaN or not a number.
        """
        if not isinstance(intensity, numbers.Real) or not intensity >= 0:
            raise ValueError(f"arithmetic intensity is {intensity!r}: FLOP/byte must be at least 0")
        return min(self.peak, self.bandwidth * intensity)

    def bound(self, work: Work) -> str:
        """Return the limit on the work: "memory" ("L2", "shared memory") left of the ridge, "compute" at or right of
        it.

        Raises:
            ValueError: no FLOPs and no bytes, which nothing limits.
        """
        if not work.flops and not work.bytes:
            raise ValueError("no FLOPs and no bytes: nothing limits such work")
        return LEVELS[self.level] if work.intensity < self.ridge else "compute"

    def time(self, work: Work) -> float:
        """Return the minimum time in seconds: arithmetic and traffic overlap, so the slower of the two decides."""
        return max(work.flops / self.peak, work.bytes / self.bandwidth)


def roofs(device: Device) -> dict[str, Roofline]:
    """Return every roofline of a device over DRAM, by dtype, and for special functions if their rate is known."""
    return {name: Roofline(device, name) for name in (*device.peak_flops, *([SPECIAL] if device.special_rate else []))}


def levels(device: Device, dtype: str) -> dict[str, Roofline]:
    """Return the roofline at each memory level whose bandwidth is known: DRAM, L2, shared."""
    known = {"DRAM": True, "L2": device.l2_bandwidth, "shared": device.shared_bandwidth}
    return {level: Roofline(device, dtype, level) for level in LEVELS if known[level]}


def measured_device(device: Device) -> Device | None:
    """Return the device with measured rates: a copy's bandwidth and a large bf16 matmul's FLOP/s, no other peaks.

    None if no run on it is recorded. A device of your own under a recorded name, with other units or another clock, is
    another one.
    """
    known = DEVICES.get(device.name)
    same = (
        known
        and (device.driver_name, device.sms) == (known.driver_name, known.sms)
        and math.isclose(device.sm_clock, known.sm_clock, rel_tol=SAME_CLOCK)
    )
    if not same or not (RESULTS / f"{device.name.lower()}.json").is_file():
        return None
    run = recorded(device.name)
    if run.gpu != device.driver_name:  # the file's name is not enough
        return None
    peaks = PeakFlops(f"{device.name}, measured", {"bf16": run.matrix_rate})
    return replace(device, peak_flops=peaks, memory_bandwidth=run.copy_bandwidth, source=f"measured: {run.label}")
