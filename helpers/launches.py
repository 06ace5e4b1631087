"""A chain of elementwise kernels in time: the bytes it moves, and what it costs to launch it.

The CPU launches kernels one after another and does not wait; the GPU runs them as they come. In a long row of calls the
slower of the two sets the pace:

    CPU     launches * host
    GPU     launches * start + bytes / bandwidth

This is a model. It leaves out caches, which help small tensors on the GPU's side.
"""

from dataclasses import dataclass

from helpers.recorded import Recorded

CHAIN = 4  # operations of the recorded chains of many sizes


@dataclass(frozen=True)
class LaunchCosts:
    """Seconds that one launch takes: of the CPU for a PyTorch operator and for a Triton kernel, and of the GPU."""

    operator: float
    triton: float
    start: float


@dataclass(frozen=True)
class ChainTime:
    """Seconds a call of a chain takes in a row of calls: the CPU's, the GPU's starts, the memory's."""

    launches: int
    nbytes: int
    cpu: float
    starts: float
    memory: float

    @property
    def gpu(self) -> float:
        return self.starts + self.memory

    @property
    def total(self) -> float:
        return max(self.cpu, self.gpu)

    @property
    def bound(self) -> str:
        """What takes most of the time: "launching" or "memory"."""
        return "memory" if self.memory > max(self.cpu, self.starts) else "launching"


def launch_costs(run: Recorded) -> LaunchCosts:
    """What launches cost on a recorded machine, from the smallest of its `chain_sizes`: four operations, or one kernel.

    So small a chain is all launch: a row of calls keeps the CPU busy, a CUDA graph of them only the GPU.

    Raises:
        ValueError: that experiment was not recorded.
    """
    sizes = run.experiment("chain_sizes")
    smallest = sizes[min(sizes)]
    call, gpu = smallest["call"], smallest["gpu"]
    return LaunchCosts(call["eager"].median / CHAIN, call["fused"].median, gpu["fused"].median)


def chain_time(launches: int, nbytes: int, bandwidth: float, host: float, start: float) -> ChainTime:
    """The model's time for `launches` kernels that move `nbytes` bytes together.

    Args:
        bandwidth: of the memory, bytes/s.
        host: seconds of the CPU a launch; 0 for kernels replayed from a CUDA graph.
        start: seconds of the GPU a launch, whatever its size.

    Raises:
        ValueError: fewer than one launch, or a bandwidth of 0.
    """
    if launches < 1 or bandwidth <= 0:
        raise ValueError(f"{launches} launches at {bandwidth:g} B/s: at least 1, and a bandwidth above 0, expected")
    return ChainTime(launches, nbytes, launches * host, launches * start, nbytes / bandwidth)
