"""The visible score of lesson 13: the case for fusing, in five weighted parts."""

from helpers.instruments.devices import Device
from helpers.instruments.fusion.cost import GroupCost
from helpers.instruments.fusion.plan import FusionScore
from helpers.instruments.occupancy_calculator import occupancy
from helpers.instruments.roofline import Work

BLOCK = 256  # threads, for the occupancy that registers allow

# How much easier each kind of kernel is to get right than attention.
SIMPLICITY = {"eager": 1.0, "pointwise": 1.0, "rows": 0.75, "matmul": 0.5, "convolution": 0.5, "attention": 0.25}
# Ease of upkeep: torch.compile regenerates pointwise and row kernels by itself, PyTorch ships attention.
LITTLE_UPKEEP = {"eager": 1.0, "pointwise": 1.0, "rows": 1.0, "matmul": 0.5, "convolution": 0.5, "attention": 1.0}


def score_of(cost: GroupCost, unfused: Work, launches: int, device: Device) -> FusionScore:
    """Return a group's score in parts: bandwidth, the share of bytes saved; launches, the share of launches saved;
    registers, the occupancy that they allow; complexity and upkeep, by the loop that the kernel is built around."""
    registers = 1.0
    if cost.kind != "eager":
        registers = occupancy(device.compute_capability, threads=BLOCK, registers=max(1, cost.registers)).fraction
    return FusionScore(
        bandwidth=max(0.0, 1 - cost.work.bytes / unfused.bytes) if unfused.bytes else 0.0,
        launches=max(0.0, 1 - cost.launches / launches) if launches else 0.0,
        registers=registers,
        complexity=SIMPLICITY[cost.kind],
        upkeep=LITTLE_UPKEEP[cost.kind],
    )
