"""Read the CSV that Nsight Compute's command line prints, and compare its counters with our instruments.

    ncu --section LaunchStats --section Occupancy ... --csv --page details --log-file mine.csv python script.py

`read_ncu` reads the details page (one line per counter) and the raw page (one column per counter). Units are converted
to base units (bytes, seconds, Hz; % stays), so `--print-units` does not matter.

Source: Nsight Compute CLI, "Console Output"; Nsight Compute, "Metrics Reference".
"""

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from helpers.instruments.resources import Resources
from helpers.instruments.roofline import Work
from helpers.instruments.traffic.result import Traffic

LAUNCH, OCCUPANCY, SPEED, MEMORY = (
    "Launch Statistics",
    "Occupancy",
    "GPU Speed Of Light Throughput",
    "Memory Workload Analysis",
)
SCALES = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12}
UNIT = re.compile(r"([TGMKmunp]?)(byte|second|s|hz|Hz)(/\w+)?$")
SECTOR = 32  # bytes
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
SECTORS = {
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "sectors_read",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "sectors_written",
}


@dataclass(frozen=True)
class NcuCounter:
    """A value from Nsight Compute in base units, with its unit; text if it is not a number."""

    value: float | str
    unit: str


@dataclass(frozen=True)
class NcuKernel:
    """One profiled launch: its name, block, grid, and section -> counter -> NcuCounter."""

    name: str
    block: tuple[int, ...]
    grid: tuple[int, ...]
    sections: dict[str, dict[str, NcuCounter]]

    def counter(self, name: str, section: str | None = None) -> float:
        """Return the value of the counter with that name on the page.

        Raises:
            ValueError: the page has no number of that name.
        """
        places = [self.sections.get(section, {})] if section else self.sections.values()
        for counters in places:
            if name in counters and not isinstance(counters[name].value, str):
                return counters[name].value
        known = sorted({each for counters in self.sections.values() for each in counters})
        raise ValueError(f"{self.name} has no counter {name!r}: profile it with its section; there are {known}")

    def page(self, *sections: str) -> str:
        """Return the sections (all by default) as text, one table each, as on ncu's details page."""
        lines = [f"{self.name} ({', '.join(map(str, self.grid))})x({', '.join(map(str, self.block))})"]
        for section in sections or self.sections:
            lines.append(f"  Section: {section}")
            for name, each in self.sections.get(section, {}).items():
                value = each.value if isinstance(each.value, str) else f"{each.value:,.6g}"
                lines.append(f"    {name:34} {each.unit:>14} {value:>16}")
        return "\n".join(lines)


@dataclass(frozen=True)
class CounterPair:
    """A counter: Nsight Compute's value, our instrument's value, and the instrument."""

    counter: str
    counted: float
    said: float
    instrument: str

    @property
    def ratio(self) -> float:
        """Counted / said; 1 if both are 0."""
        return self.counted / self.said if self.said else float("inf") if self.counted else 1.0

    def __str__(self):
        return f"{self.counter:38} {self.counted:14,.4g} {self.said:14,.4g}   {self.ratio:6.3f}  {self.instrument}"


def read_ncu(source: str | Path) -> tuple[NcuKernel, ...]:
    """Read the launches, in order, from a CSV page of ncu's: a file's path, or the text itself.

    Raises:
        ValueError: it is not such a page, or has no kernel.
    """
    text = source if isinstance(source, str) and "\n" in source else Path(source).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith('"')]  # others are ncu's own messages
    table = list(csv.DictReader(lines))
    if not table or "Kernel Name" not in table[0]:
        denied = "ERR_NVGPUCTRPERM" in text
        why = "the driver lets only administrators read counters" if denied else "it has no column Kernel Name"
        raise ValueError(
            f"not a Nsight Compute page: {why}; run `fusion profile script.py`, which lists what is missing"
        )
    kernels = _details(table) if "Metric Name" in table[0] else _raw(table)
    return tuple(kernels)


def _details(table: list[dict]) -> list[NcuKernel]:
    found = {}
    for row in table:
        kernel = found.setdefault(row["ID"], NcuKernel(row["Kernel Name"], *_sizes(row), {}))
        if row["Metric Name"]:
            counters = kernel.sections.setdefault(row["Section Name"], {})
            counters[row["Metric Name"]] = _counter(row["Metric Value"], row["Metric Unit"])
    return list(found.values())


def _raw(table: list[dict]) -> list[NcuKernel]:
    units, *rows = table
    return [
        NcuKernel(
            row["Kernel Name"],
            *_sizes(row),
            {"raw": {name: _counter(row[name], units[name]) for name in row if "__" in name and row[name]}},
        )
        for row in rows
    ]


def _sizes(row: dict) -> tuple[tuple[int, ...], tuple[int, ...]]:
    def size(text: str) -> tuple[int, ...]:
        return tuple(int(each.replace(",", "")) for each in text.strip("()").split(", "))

    return size(row["Block Size"]), size(row["Grid Size"])


def _counter(value: str, unit: str) -> NcuCounter:
    try:
        number = float(value.replace(",", ""))
    except ValueError:
        return NcuCounter(value, unit)
    if not (found := UNIT.match(unit)):
        return NcuCounter(number, unit)
    prefix, base, per = found.groups()
    return NcuCounter(number * SCALES[prefix], {"second": "s", "hz": "Hz"}.get(base, base) + (per or ""))


def compare_counters(
    kernel: NcuKernel,
    resources: Resources | None = None,
    traffic: Traffic | None = None,
    times: float = 1.0,
    work: Work | None = None,
) -> list[CounterPair]:
    """Return the counters that our instruments also report.

    Args:
        resources: `compile_for`'s result for the kernel, on the GPU that it was profiled on.
        traffic: `measure`'s result for the launch alone, with `times` fewer programs.
        work: the operation's minimum traffic, each input read once and each output written once.
    """
    found = []
    if resources is not None:
        occupancy = resources.occupancy()
        found = [
            ("Registers Per Thread", LAUNCH, resources.registers, "compile_for"),
            ("Dynamic Shared Memory Per Block", LAUNCH, resources.dynamic_shared_memory, "compile_for"),
            ("Block Size", LAUNCH, 32 * resources.num_warps, "compile_for"),
            ("Theoretical Active Warps per SM", OCCUPANCY, occupancy.warps, "occupancy"),
            ("Theoretical Occupancy", OCCUPANCY, 100 * occupancy.fraction, "occupancy"),
        ]
    if traffic is not None:
        found += [(name, None, times * getattr(traffic, said), "measure") for name, said in SECTORS.items()]
    if work is not None:
        found += [(READ, None, work.bytes_read, "least bytes"), (WRITTEN, None, work.bytes_written, "least bytes")]
    return [CounterPair(name, kernel.counter(name, section), said, who) for name, section, said, who in found]
