"""Measurements recorded on a GPU, with their provenance, for machines without one.

`fusion bench` writes them to benchmarks/results/<gpu>.json.
"""

import functools
import json
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from helpers.instruments.fingerprints import is_current
from helpers.instruments.tables import Table, table
from helpers.instruments.timing import Timing

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PROJECT = ROOT / "pyproject.toml"
EARLIER = "an earlier version of this kernel"
COLUMNS = "GPU: its own time, cold L2; call: with Python and launch, warm caches; torch.compile: default mode"


def dated(date: str, kernels: list[str] | None) -> str:
    """Return a date, with a note if these fingerprints are of an earlier version of the kernel."""
    return date if is_current(kernels) else f"{date}, {EARLIER}"


@dataclass(frozen=True)
class Recorded:
    """Records of one GPU, from one or several runs of the benchmark.

    runs: a dict per run, newest last: "date", "versions", "ceilings"; "kernels": name -> fingerprint, if known.
    rows: every row, with the index of its run in `runs`; "kernels": the fingerprints of the kernels that ours
        launched, if known. A row of provider "plain" also has "fused": our time, measured alongside.
    experiments: name -> {"run", "times"}, and "kernels" as in rows.
    """

    gpu: str
    runs: list[dict]
    rows: list[dict]
    experiments: dict[str, dict]

    @property
    def _ceilings(self) -> dict:
        """The ceilings of the newest run that timed kernels, so adding an experiment doesn't change other figures."""
        return self.runs[max((row["run"] for row in self.rows), default=-1)]["ceilings"]

    @property
    def copy_bandwidth(self) -> float:
        """Bytes/s, read and written; a row's `least_seconds` uses the ceilings of its own run."""
        return self._ceilings["copy_bytes_per_second"]

    @property
    def matrix_rate(self) -> float:
        """FLOP/s of a dense bf16 matmul."""
        return self._ceilings["bf16_matrix_flops_per_second"]

    @property
    def label(self) -> str:
        """The label that figures must show: GPU, versions, measurement dates, and the versions the course installs."""
        return self._label(range(len(self.runs)))

    def label_of(self, *names: str) -> str:
        """Return the label that figures of these experiments or kernels must show.

        It lists only the dates of their runs, and marks those measured with an earlier version of a kernel.

        Args:
            names: of experiments, or of kernels as in `rows`, such as "softmax" or "softmax backward".

        Raises:
            ValueError: nothing of that name is recorded.
        """
        runs, earlier = [], False
        for name in names:
            rows = [row for row in self.rows if row["kernel"] == name]
            if name in self.experiments:
                runs.append(self.experiments[name]["run"])
            elif rows:
                runs += [row["run"] for row in rows if row["provider"] != "plain"]
            else:
                raise ValueError(
                    f"no experiment or kernel {name!r} is recorded: choose from {', '.join(self.experiments)}"
                )
            items = (
                [self.experiments[name]] if name in self.experiments else [r for r in rows if r["provider"] == "fused"]
            )
            earlier = earlier or not all(is_current(each.get("kernels")) for each in items)
        return self._label(runs, earlier)

    def _label(self, numbers, earlier: bool = False) -> str:
        runs = [self.runs[number] for number in sorted(set(numbers))]
        days = sorted({run["date"] for run in runs})
        used = {name: " and ".join(sorted({run["versions"][name] for run in runs})) for name in ("torch", "triton")}
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        pins = _pins()
        return (
            f"{self.gpu}, PyTorch {used['torch']}, Triton {used['triton']}, {f'{when}, {EARLIER}' if earlier else when}"
            f" (the course installs {pins['torch']} and {pins['triton']})"
        )

    def times(self, kernel: str, shape: tuple[int, ...], dtype: str) -> dict[str, Timing]:
        """Return provider ("fused", "eager", "torch.compile") -> GPU time.

        Raises:
            ValueError: nothing was recorded for that kernel, shape and dtype.
        """
        wanted = {"kernel": kernel, "shape": list(shape), "dtype": dtype}
        found = {row["provider"]: Timing(**row["gpu"]) for row in self.rows if wanted.items() <= row.items()}
        if not found:
            known = sorted({(row["kernel"], tuple(row["shape"]), row["dtype"]) for row in self.rows})
            raise ValueError(f"no recorded {kernel} of {tuple(shape)} in {dtype}: choose from {known}")
        return found

    def experiment(self, name: str) -> dict:
        """Return the measurements of an experiment in benchmarks/experiments/: nested dicts of Timing or counts, with
        int keys.

        Raises:
            ValueError: no such experiment is recorded.
        """
        if name not in self.experiments:
            raise ValueError(f"no experiment {name!r} is recorded: choose from {', '.join(self.experiments)}")
        return _timings(self.experiments[name]["times"])

    def table(self, kernel: str, dtype: str) -> Table:
        """Return every size recorded for a kernel: GPU time, speedup, share of copy bandwidth and, for short work,
        where it dominates, the caller's cost per call.

        Raises:
            ValueError: nothing was recorded for that kernel and dtype.
        """
        providers = ("eager", "torch.compile", "fused")
        rows = [row for row in self.rows if (row["kernel"], row["dtype"]) == (kernel, dtype)]
        if not rows:
            known = ", ".join(dict.fromkeys(f"{row['kernel']} in {row['dtype']}" for row in self.rows))
            raise ValueError(f"no recorded {kernel} in {dtype}: choose from {known}")
        lines, runs, earlier = [], set(), False
        for fused in (row for row in rows if row["provider"] == "fused"):
            runs.add(fused["run"])
            earlier = earlier or not is_current(fused.get("kernels"))
            of = {row["provider"]: row for row in rows if row["shape"] == fused["shape"]}
            gpu = [of[name]["gpu"]["median"] for name in providers]
            calls = [of[name]["call"]["median"] for name in providers] if fused["call"] else []
            shape = " x ".join(map(str, fused["shape"])) if len(fused["shape"]) > 1 else f"{fused['shape'][0]:,}"
            micro = (f"{each * 1e6:.1f} us" for each in gpu)
            called = [f"{each * 1e6:.1f} us" for each in calls] or [""] * 3
            gain = f"{calls[0] / calls[-1]:.2f}x" if calls else ""
            share = f"{fused['least_seconds'] / gpu[-1]:.1%}"
            lines.append((shape, *micro, f"{gpu[0] / gpu[-1]:.2f}x", share, *called, gain))
        name = "shape" if any(" x " in line[0] for line in lines) else "elements"
        clocks = [[f"{clock}: {each}" for each in (*providers, "speed-up")] for clock in ("GPU", "call")]
        columns = (name, *clocks[0], "share of copy", *clocks[1])
        return table(columns, lines, f"{self._label(runs, earlier)}\n{COLUMNS}")


@functools.cache
def _pins() -> dict[str, str]:
    """The versions of PyTorch and Triton in pyproject.toml."""
    requirements = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    pairs = (requirement.partition("==") for requirement in requirements)
    return {name: version for name, _, version in pairs if name in ("torch", "triton")}


def _timings(content):
    if not isinstance(content, dict):
        return content
    if "median" in content:
        return Timing(**content)
    return {int(key) if key.isdigit() else key: _timings(value) for key, value in content.items()}


def recorded(gpu: str = "h200") -> Recorded:
    """Return the recorded run of a GPU, by the name of its file in benchmarks/results.

    Raises:
        ValueError: no run of that GPU is recorded.
    """
    content = _run(RESULTS / f"{str(gpu).lower()}.json")
    if content is None:
        known = ", ".join(sorted(file.stem for file in RESULTS.glob("*.json") if _run(file))) or "none"
        raise ValueError(f"nothing is recorded for {gpu}: choose from {known}, or run `fusion bench` on one")
    return Recorded(**content)


def _run(path: Path) -> dict | None:
    """Return a file's run of the benchmark; None if there is none: sweeps and others have files of their own."""
    content = json.loads(path.read_text()) if path.is_file() else {}
    return content if content.keys() == {each.name for each in fields(Recorded)} else None


def recorded_page(name: str, gpu: str = "h200") -> Path:
    """Return the path of a profiler page or trace that benchmarks/profiles.py recorded on a GPU.

    Raises:
        ValueError: none of that name is recorded.
    """
    folder = RESULTS / f"{gpu.lower()}_profiles"
    path = folder / name
    if not path.is_file():
        known = ", ".join(sorted(file.name for file in folder.glob("*"))) or "none"
        raise ValueError(f"no page {name!r} is recorded for {gpu}: choose from {known}")
    return path
