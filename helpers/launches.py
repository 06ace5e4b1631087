"""A chain of elementwise kernels in time: the bytes it moves, and what it costs to launch it.

The CPU launches kernels one after another and does not wait; the GPU runs them as they come. In a long row of calls the
slower of the two sets the pace:

    CPU     launches * host
    GPU     launches * start + bytes / bandwidth

This is a model. It leaves out caches, which help small tensors on the GPU's side.
"""

from dataclasses import dataclass

from helpers.recorded import Recorded

MILLION = (2**20,)  # the shape of the recorded calls that are short enough to be all launch


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
    """What launches cost on a recorded machine, from its add+GELU on 2**20 numbers in fp32.

    A row of calls that short keeps the CPU busy all the time, so the time of a call is the CPU's: two operators
    unfused, one Triton launch fused. `start` is what the fused kernel's own time has over its bytes at copy speed.

    Raises:
        ValueError: add_gelu was not recorded at that size.
    """
    calls = {row["provider"]: row["call"]["median"] for row in run.rows if _is_million(row)}
    kernel = run.times("add_gelu", MILLION, "float32")["fused"].median
    moved = 3 * MILLION[0] * 4
    return LaunchCosts(calls["eager"] / 2, calls["fused"], kernel - moved / run.copy_bandwidth)


def _is_million(row: dict) -> bool:
    return (row["kernel"], tuple(row["shape"]), row["dtype"]) == ("add_gelu", MILLION, "float32")


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
