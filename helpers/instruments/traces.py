"""Read a Chrome trace from torch.profiler as a GPU timeline: kernels, gaps, and a rule for what to fuse.

The rule uses two signs visible in any trace: consecutive kernels that are not matmuls and so move bytes, and gaps
longer than the kernel before them, which more launches from Python would only lengthen.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH = re.compile("cu(da)?(Graph)?Launch|cudaMemcpyAsync|cudaMemsetAsync")
# Names of matmul, convolution and attention kernels in cuBLAS, CUTLASS, cuDNN and this course.
PRODUCTS = re.compile("gemm|gemv|nvjet|cutlass|xmma|conv|flash|fmha|attention|linear|gated|_mm_|splitKreduce", re.I)
# Where PyTorch's kernel names contain the operation.
FUNCTORS = (
    r"CUDAFunctor(?:On[A-Z][a-z]+)?_(\w+)",
    r"(\w+?)_kernel_cuda",
    r"(\w+?)_cuda_kernel",
    r"(\w+?)(?:CUDA)?KernelImpl",
    r"(\w+)Functor\b",
    r"cunn_(\w+?)Forward",
    r"(\w+?)_warp_forward",
    r"vectorized_(\w+?)_kernel",
    r"(\w+?)_kernel_impl",
)
WRAPPERS = ("Unary", "BUnary", "AUnary", "Binary", "gpu")  # around the functor's name


@dataclass(frozen=True)
class TraceKernel:
    """A kernel that ran on the GPU: full name, start in seconds since the trace began, duration in seconds, and
    the host's launch time if the trace has it."""

    name: str
    start: float
    duration: float
    launched: float | None

    @property
    def end(self) -> float:
        return self.start + self.duration

    @property
    def short_name(self) -> str:
        """A readable name, such as "add" for PyTorch's elementwise kernel for a sum."""
        if "at::native" in self.name or "cunn_" in self.name or "softmax_warp" in self.name:
            for pattern in FUNCTORS:
                found = [each for each in re.findall(pattern, self.name) if each not in WRAPPERS]
                if found:
                    return found[0].strip("_")
        return re.split(r"[<(]", self.name.removeprefix("void "))[0].split("::")[-1].strip()[:48] or self.name[:48]

    @property
    def product(self) -> bool:
        """Return whether its name is that of a matmul, a convolution or attention; other kernels spend their time on
        bytes."""
        return bool(PRODUCTS.search(self.name))


@dataclass(frozen=True)
class Opportunity:
    """Consecutive kernels that one kernel could replace: their positions in the timeline, and the reason."""

    first: int
    last: int
    sign: str

    @property
    def kernels(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class KernelTimeline:
    """A trace's kernels in order, and the host's launches."""

    kernels: tuple[TraceKernel, ...]
    launches: tuple[tuple[float, float], ...]  # start and duration of each, in seconds

    @property
    def wall(self) -> float:
        """Seconds from the first kernel's start to the last end."""
        return max(each.end for each in self.kernels) - self.kernels[0].start

    @property
    def busy(self) -> float:
        """The fraction of `wall` in which a kernel runs."""
        return 1 - sum(self.gaps) / self.wall

    @cached_property
    def gaps(self) -> tuple[float, ...]:
        """Idle seconds before each kernel but the first."""
        found, end = [], None
        for each in self.kernels:
            if end is not None:
                found.append(max(0.0, each.start - end))
            end = each.end if end is None else max(end, each.end)
        return tuple(found)

    def search(self, text: str) -> tuple[int, ...]:
        """Return the indices of kernels whose full name contains `text`, ignoring case."""
        return tuple(i for i, each in enumerate(self.kernels) if text.lower() in each.name.lower())

    def opportunities(self) -> tuple[Opportunity, ...]:
        """Apply the rule: runs of two or more non-matmul kernels; such a kernel right after a matmul (an
        epilogue); and, if at least half of the gaps are longer than the kernel before, the whole trace."""
        found, first = [], None
        for place, each in enumerate((*self.kernels, None)):
            if each is not None and not each.product:
                first = place if first is None else first
            elif first is not None:
                if place - first > 1:
                    found.append(Opportunity(first, place - 1, "bytes, bytes"))
                elif first > 0:
                    found.append(Opportunity(first - 1, first, "matmul, then bytes"))
                first = None
        waiting = sum(gap > kernel.duration for gap, kernel in zip(self.gaps, self.kernels, strict=False))
        if self.gaps and 2 * waiting >= len(self.gaps):
            found.append(Opportunity(0, len(self.kernels) - 1, "gaps longer than kernels"))
        return tuple(found)


def read_trace(source: str | Path | dict) -> KernelTimeline:
    """Read a Chrome trace, a file or parsed JSON, from torch.profiler's `export_chrome_trace`.

    Raises:
        ValueError: it is not a trace, or nothing in it ran on a GPU.
    """
    trace = source
    if not isinstance(source, dict):
        try:
            trace = json.loads(Path(source).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{source} is not a Chrome trace: {error}; export one with export_chrome_trace") from error
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if events is None:
        raise ValueError("a chrome trace has traceEvents: export one with torch.profiler's export_chrome_trace")
    whole = [each for each in events if each.get("ph") == "X"]
    launches = [each for each in whole if LAUNCH.match(each["name"])]
    by_number = {each.get("args", {}).get("correlation"): each["ts"] for each in launches}
    kernels = [
        TraceKernel(
            each["name"],
            each["ts"] * 1e-6,
            each["dur"] * 1e-6,
            None if (at := by_number.get(each.get("args", {}).get("correlation"))) is None else at * 1e-6,
        )
        for each in whole
        if each.get("cat") in ON_GPU
    ]
    if not kernels:
        raise ValueError("the trace has no kernels: record it with ProfilerActivity.CUDA, on a GPU")
    return KernelTimeline(
        tuple(sorted(kernels, key=lambda each: each.start)),
        tuple((each["ts"] * 1e-6, each["dur"] * 1e-6) for each in sorted(launches, key=lambda each: each["ts"])),
    )
