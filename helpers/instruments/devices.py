"""The course's GPUs, this machine's GPU or CPU, and GPUs that you add.

DEVICES["A100"].peak_flops["bf16"]      # FLOP/s
DEVICES.load("my_gpus.toml")            # the form of helpers/instruments/devices.toml
this_device().memory_bandwidth          # bytes/s
"""

import difflib
import functools
import math
import os
import platform
import re
import time
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

CATALOGUE_FILE = Path(__file__).with_name("devices.toml")
SAME_CLOCK = 0.03  # boost clocks of one model differ by less

# Dense fused multiply-adds per clock and SM, accumulated in fp32: fp32 on CUDA cores, the rest on tensor cores.
# Source: the throughput table of the CUDA C++ Programming Guide and NVIDIA's architecture whitepapers.
FMA_PER_CLOCK = {
    (7, 0): {"fp32": 64, "fp16": 512},
    (7, 5): {"fp32": 64, "fp16": 512},
    (8, 0): {"fp32": 64, "tf32": 512, "fp16": 1024, "bf16": 1024},
    (8, 6): {"fp32": 128, "tf32": 256, "fp16": 512, "bf16": 512},
    (8, 9): {"fp32": 128, "tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024},
    (9, 0): {"fp32": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048, "fp8": 4096},
    (10, 0): {"fp32": 128, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "fp4": 16384},
    (10, 3): {"fp32": 128, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "fp4": 24576},
    (12, 0): {"fp32": 128, "tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024, "fp4": 2048},
}

# Results per clock and SM from the special function units (exponential, reciprocal, root, logarithm, sine).
# Source: as above, "32-bit floating-point reciprocal, reciprocal square root, base-2 logarithm, base 2 exponential".
# 10.3: "twice the exponentials of Blackwell", 10.7 against 5 T/s; NVIDIA, "Inside NVIDIA Blackwell Ultra" (2025).
SPECIAL_PER_CLOCK = dict.fromkeys(FMA_PER_CLOCK, 16) | {(10, 3): 32}
# fp64 multiply-adds per clock and SM, on the units that a matmul uses: tensor cores on A100, H100 and B200.
# Source: the guide, "64-bit floating-point add, multiply, multiply-add", and the whitepapers' FP64 tensor core peaks.
DOUBLE_PER_CLOCK = {(7, 0): 32, (7, 5): 2, (8, 0): 64, (8, 6): 2, (8, 9): 2, (9, 0): 128, (10, 0): 64, (10, 3): 2}
DOUBLE_PER_CLOCK |= {(12, 0): 2}
# Bytes per clock and SM: 32 banks of 32 bits. Turing serves half of them per clock: NVIDIA's GA102 whitepaper gives 128
# "versus 64 bytes/clock in Turing".
SHARED_PER_CLOCK = dict.fromkeys(FMA_PER_CLOCK, 32 * 4) | {(7, 5): 64}
# Turing chips without tensor cores (TU116, TU117) have the same compute capability, 7.5, as those with.
NO_TENSOR_CORES = re.compile(r"\b(GTX 16\d\d|MX[45]50|T[456]\d0|T[12][02]00)\b")
MISTAKEN = 1.5  # a peak or bandwidth this many times that of units and clocks: with sparsity, or in other units


class PeakFlops(dict):
    """Dense peak by dtype name ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4"), FLOP/s. A missing dtype is an error."""

    def __init__(self, device: str, peaks: dict[str, float]):
        super().__init__(peaks)
        self.device = device

    def __missing__(self, dtype):
        known = f"choose from {', '.join(self)}" if self else "add them from a TOML file with DEVICES.load(path)"
        raise ValueError(f"{self.device} has no {dtype} peak: {known}")


@dataclass(frozen=True)
class Device:
    """A GPU, or this machine's CPU. Fields that a CPU lacks (SMs, clocks) or the driver does not report are None.

    `sm_clock` is the boost clock; `tensor_clock` the one the vendor rates the tensor cores at. Clocks are in Hz.
    """

    name: str
    model: str
    driver_name: str
    compute_capability: tuple[int, int] | None
    sms: int | None
    peak_flops: PeakFlops = field(hash=False)  # FLOP/s, dense, by dtype
    memory_bandwidth: float | None  # bytes/s
    memory: int  # bytes
    l2_cache: int | None  # bytes
    sm_clock: float | None
    tensor_clock: float | None
    memory_bus_width: int | None  # bits
    memory_clock: float | None
    source: str
    l2_bandwidth: float | None = None  # bytes/s, if measured: vendors do not publish it

    @property
    def special_rate(self) -> float | None:
        """Results/s of the special function units: SMs x results per clock and SM x clock; None if unknown."""
        return self._per_clock(SPECIAL_PER_CLOCK)

    @property
    def double_rate(self) -> float | None:
        """FLOP/s of a matmul in fp64; None if unknown."""
        rate = self._per_clock(DOUBLE_PER_CLOCK)
        return rate and 2 * rate

    @property
    def shared_bandwidth(self) -> float | None:
        """Bytes/s between shared memory and registers, over all SMs; None if unknown."""
        return self._per_clock(SHARED_PER_CLOCK)

    def _per_clock(self, rates: dict[tuple[int, int], int]) -> float | None:
        rate = rates.get(self.compute_capability)
        return self.sms * rate * self.sm_clock if rate and self.sm_clock else None

    @property
    def rates(self) -> dict[str, int]:
        """Dense multiply-adds per clock and SM by dtype; empty if they are unknown."""
        found = FMA_PER_CLOCK.get(self.compute_capability, {})
        return {"fp32": found["fp32"]} if found and NO_TENSOR_CORES.search(self.driver_name) else found

    def peak_from_clock(self, dtype: str) -> float:
        """Return the FLOP/s of the arithmetic units: SMs x FMA per clock and SM x 2 x clock.

        GeForce tensor cores run at half rate when they accumulate in fp32, except on fp4.

        Raises:
            ValueError: a CPU, or a compute capability, clock or dtype whose rate is unknown.
        """
        rates = self.rates if self.sm_clock else {}
        if dtype not in rates:
            raise ValueError(f"{self.name} has no known {dtype} rate per clock: known are {', '.join(rates) or 'none'}")
        halved = dtype not in ("fp32", "fp4") and "GeForce" in self.driver_name
        clock = self.sm_clock if dtype == "fp32" else self.tensor_clock
        return self.sms * rates[dtype] * clock * (1 if halved else 2)

    @property
    def bandwidth_from_clock(self) -> float:
        """Bytes/s of the memory bus: width x clock, two transfers per clock."""
        return self.memory_bus_width / 8 * self.memory_clock * 2


class Devices(dict):
    """Devices by name. An unknown name raises ValueError, which lists the known names, the nearest first."""

    def __missing__(self, name):
        upper = {known.upper(): known for known in self}
        nearest = difflib.get_close_matches(str(name).upper(), upper, n=1, cutoff=0.0)
        raise ValueError(
            f"unknown device {name!r}: the nearest is {upper[nearest[0]]!r}; the others are "
            + ", ".join(known for known in self if known != upper[nearest[0]])
        )

    def load(self, path: str | Path) -> None:
        """Add GPUs from a TOML file in the format of helpers/instruments/devices.toml; a known name is replaced.

        Raises:
            FileNotFoundError: no such file.
            ValueError: not TOML, or an entry that lacks a key, has an unknown one or a value of the wrong kind.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"no device file at {path}: copy an entry of helpers/instruments/devices.toml")
        try:
            table = tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path.name} is not a TOML file: {error}") from None
        self.update({name: _device_from(name, entry, path.name) for name, entry in table.items()})


_NUMBERS = ("sms", "sm_clock_mhz", "bandwidth_gb_s", "memory_bus_bits", "memory_clock_mhz", "memory_gib", "l2_mib")
_STRINGS = ("model", "driver_name", "compute_capability", "source")
_L2 = ("l2_bandwidth_gb_s", "l2_bandwidth_source")  # both or neither


def _positive(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _device_from(name: str, entry, file: str) -> Device:
    if not isinstance(entry, dict):
        raise ValueError(f"{file}: {name} is not a table: write [{name}] and its keys below it")
    needed = {*_NUMBERS, *_STRINGS, "peak_tflops"}
    if missing := sorted(needed - entry.keys()):
        raise ValueError(f"{file}: {name} lacks {', '.join(missing)}: see helpers/instruments/devices.toml")
    if unknown := sorted(entry.keys() - needed - {"tensor_clock_mhz", *_L2}):
        raise ValueError(f"{file}: {name} has unknown keys {', '.join(unknown)}: see helpers/instruments/devices.toml")
    if len(missing := set(_L2) - entry.keys()) == 1:
        raise ValueError(f"{file}: {name} lacks {missing.pop()}: an L2 bandwidth and its source go together")
    numbers = {key: entry[key] for key in (*_NUMBERS, "tensor_clock_mhz", _L2[0]) if key in entry}
    for key, value in numbers.items():
        if not _positive(value):
            raise ValueError(f"{file}: {name}: {key} is {value!r}: it must be a number above 0")
    if not isinstance(entry["sms"], int):
        raise ValueError(f"{file}: {name}: sms is {entry['sms']!r}: it must be a whole number")
    for key in (*_STRINGS, _L2[1]):
        if key in entry and not isinstance(entry[key], str):
            raise ValueError(f"{file}: {name}: {key} is {entry[key]!r}: it must be a string")
    peaks = entry["peak_tflops"]
    if not isinstance(peaks, dict) or not peaks or not all(_positive(value) for value in peaks.values()):
        raise ValueError(f"{file}: {name}: peak_tflops is {peaks!r}: pass a table such as {{ fp32 = 19.5 }}")
    try:
        major, minor = map(int, entry["compute_capability"].split("."))
    except ValueError:
        raise ValueError(
            f'{file}: {name}: compute_capability is {entry["compute_capability"]!r}: write it as "8.6"'
        ) from None
    device = Device(
        name=name,
        model=entry["model"],
        driver_name=entry["driver_name"],
        compute_capability=(major, minor),
        sms=entry["sms"],
        peak_flops=PeakFlops(name, {dtype: tflops * 1e12 for dtype, tflops in peaks.items()}),
        memory_bandwidth=entry["bandwidth_gb_s"] * 1e9,
        memory=int(entry["memory_gib"] * 2**30),
        l2_cache=int(entry["l2_mib"] * 2**20),
        sm_clock=entry["sm_clock_mhz"] * 1e6,
        tensor_clock=entry.get("tensor_clock_mhz", entry["sm_clock_mhz"]) * 1e6,
        memory_bus_width=entry["memory_bus_bits"],
        memory_clock=entry["memory_clock_mhz"] * 1e6,
        source=entry["source"] + (f"; L2 bandwidth: {entry[_L2[1]]}" if _L2[1] in entry else ""),
        l2_bandwidth=entry[_L2[0]] * 1e9 if _L2[0] in entry else None,
    )
    for dtype in peaks.keys() & device.rates:
        times = device.peak_flops[dtype] / device.peak_from_clock(dtype)
        if times > MISTAKEN:
            raise ValueError(
                f"{file}: {name}: peak_tflops of {dtype} is {times:.2g} times what its SMs and clock can do: pass the "
                "dense peak, without sparsity, with fp32 accumulation"
            )
    times = device.memory_bandwidth / device.bandwidth_from_clock
    if not 1 / MISTAKEN < times < MISTAKEN:
        raise ValueError(
            f"{file}: {name}: bandwidth_gb_s is {times:.2g} times what memory_bus_bits and memory_clock_mhz make, at "
            "two transfers per clock: check all three"
        )
    return device


DEVICES = Devices()
DEVICES.load(CATALOGUE_FILE)


def this_device() -> Device:
    """Return this machine's current GPU as the driver describes it, or else its CPU as measured (in about a second).

    A GPU's peaks come from the device list if the driver's name, SM count and clock are in it (vendors rate some tensor
    cores below the boost clock that the driver reports); if not, they are computed from SMs and clock. A CPU's
    bandwidth is that of a copy, reads and writes counted; its fp32 peak is the rate of a matmul. Each is kept for the
    life of the process.
    """
    return _gpu(torch.cuda.current_device()) if torch.cuda.is_available() else _this_cpu()


@functools.cache
def _gpu(index: int) -> Device:
    from triton.runtime import driver

    properties = torch.cuda.get_device_properties(index)
    clocks = driver.active.utils.get_device_properties(index)  # kHz and bits
    return gpu_from_driver(
        name=properties.name,
        compute_capability=(properties.major, properties.minor),
        sms=properties.multi_processor_count,
        memory=properties.total_memory,
        l2_cache=properties.L2_cache_size,
        sm_clock=clocks["sm_clock_rate"] * 1e3,
        memory_bus_width=clocks["mem_bus_width"],
        memory_clock=clocks["mem_clock_rate"] * 1e3,
    )


def gpu_from_driver(
    *,
    name: str,
    compute_capability: tuple[int, int],
    sms: int,
    memory: int,
    l2_cache: int,
    sm_clock: float,
    memory_bus_width: int,
    memory_clock: float,
) -> Device:
    """Return the Device for a GPU as the driver describes it: bytes, Hz and bits; a clock or width of 0 is unknown.

    A GPU of the list that runs at another clock, as under a limit on its power, has other peaks than the list's.
    """
    alike = (d for d in DEVICES.values() if (d.driver_name, d.sms) == (name, sms))
    known = next((d for d in alike if not sm_clock or abs(sm_clock / d.sm_clock - 1) < SAME_CLOCK), None)
    peak_source = known.source if known else "SMs x FMA per clock x boost clock"
    bandwidth = memory_bus_width / 8 * memory_clock * 2 or (known.memory_bandwidth if known else None)
    device = Device(
        name=known.name if known else name,
        model=known.model if known else name,
        driver_name=name,
        compute_capability=compute_capability,
        sms=sms,
        peak_flops=known.peak_flops if known else PeakFlops(name, {}),
        memory_bandwidth=bandwidth,
        memory=memory,
        l2_cache=l2_cache,
        sm_clock=sm_clock or (known.sm_clock if known else None),
        tensor_clock=known.tensor_clock if known else sm_clock or None,
        memory_bus_width=memory_bus_width or None,
        memory_clock=memory_clock or None,
        source=f"this machine's driver; peaks: {peak_source}",
        l2_bandwidth=known.l2_bandwidth if known else None,
    )
    if known:
        return device
    peaks = {dtype: device.peak_from_clock(dtype) for dtype in device.rates if device.sm_clock}
    return replace(device, peak_flops=PeakFlops(name, peaks))


@functools.cache
def _this_cpu() -> Device:
    name = _cpu_name()
    return Device(
        name=name,
        model=name,
        driver_name=name,
        compute_capability=None,
        sms=None,
        peak_flops=PeakFlops(name, {"fp32": _matrix_rate()}),
        memory_bandwidth=_copy_bandwidth(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        l2_cache=None,
        sm_clock=None,
        tensor_clock=None,
        memory_bus_width=None,
        memory_clock=None,
        source="measured on this machine: a copy and an fp32 matrix product, the best of several runs",
    )


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    threads = torch.get_num_threads()
    return f"{model}, {threads} thread{'s' * (threads != 1)}"


def _best_seconds(run, budget: float) -> float:
    """Return the fastest of the runs that fit in `budget` seconds, at least three, after a warm-up run."""
    run()
    best, runs, start = float("inf"), 0, time.perf_counter()
    while runs < 3 or time.perf_counter() - start < budget:
        begin = time.perf_counter()
        run()
        best, runs = min(best, time.perf_counter() - begin), runs + 1
    return best


def last_level_cache(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the bytes of this machine's last-level caches together, as Linux tells them; 0 where it doesn't."""
    caches = {}  # level and the CPUs that share it -> bytes
    for index in cpus.glob("cpu[0-9]*/cache/index*"):
        try:
            level, shared = int((index / "level").read_text()), (index / "shared_cpu_list").read_text()
            caches[level, shared] = int((index / "size").read_text().strip().removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last)


def _copy_bandwidth() -> float:
    source = torch.ones(max(2**25, last_level_cache()))  # 128 MB, or four times the caches if that is more
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best_seconds(lambda: target.copy_(source), budget=0.3)


def _matrix_rate() -> float:
    side = 1024
    a, b = torch.ones(2, side, side)
    return 2 * side**3 / _best_seconds(lambda: a @ b, budget=0.3)
