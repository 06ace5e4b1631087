"""Measurements recorded on a GPU, with their provenance, for machines that have none.

They are written by `fusion bench` to benchmarks/results/<gpu>.json.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from helpers.instruments.timing import Timing

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@dataclass(frozen=True)
class Recorded:
    """One GPU's recorded run: its name, the day, the versions, the ceilings and every row measured in it."""

    gpu: str
    date: str
    versions: dict[str, str]
    copy_bandwidth: float  # bytes/s, read and written, measured in the same run
    matrix_rate: float  # FLOP/s, dense bf16, measured in the same run
    rows: list[dict]
    experiments: dict[str, dict]

    @property
    def label(self) -> str:
        """What a figure from this run must be shown with."""
        return f"{self.gpu}, PyTorch {self.versions['torch']}, Triton {self.versions['triton']}, {self.date}"

    def times(self, kernel: str, shape: tuple[int, ...], dtype: str) -> dict[str, Timing]:
        """Provider ("fused", "eager", "torch.compile") -> the GPU's own time.

        Raises:
            ValueError: nothing was recorded for that kernel, shape and dtype.
        """
        wanted = {"kernel": kernel, "shape": list(shape), "dtype": dtype}
        found = {row["provider"]: Timing(**row["gpu"]) for row in self.rows if wanted.items() <= row.items()}
        if not found:
            known = sorted({(row["kernel"], tuple(row["shape"]), row["dtype"]) for row in self.rows})
            raise ValueError(f"no recorded {kernel} of {tuple(shape)} in {dtype}: there are {known}")
        return found

    def experiment(self, name: str) -> dict:
        """What benchmarks/run.py's EXPERIMENTS[name] measured: dicts in dicts, at last Timing; numbers as keys are int.

        Raises:
            ValueError: no such experiment is recorded.
        """
        if name not in self.experiments:
            raise ValueError(f"no experiment {name!r} is recorded: there are {', '.join(self.experiments)}")
        return _timings(self.experiments[name])

    def table(self, kernel: str, dtype: str) -> str:
        """Every size recorded for a kernel, as text: times, speed-up over eager, share of the copy bandwidth."""
        lines = []
        for row in self.rows:
            if (row["kernel"], row["dtype"], row["provider"]) == (kernel, dtype, "fused"):
                times = self.times(kernel, row["shape"], dtype)
                seconds = [times[name].median for name in ("eager", "torch.compile", "fused")]
                speed_up, share = seconds[0] / seconds[-1], row["least_seconds"] / seconds[-1]
                shape = " x ".join(map(str, row["shape"])) if len(row["shape"]) > 1 else f"{row['shape'][0]:,}"
                micro = (f"{each * 1e6:.1f} us" for each in seconds)
                lines.append((f"{shape:>12}", *micro, f"{speed_up:.2f}x", f"{share:6.1%}"))
        name = "shape" if any(" x " in line[0] for line in lines) else "elements"
        lines.insert(0, (name, "eager", "torch.compile", "fused", "speed-up", "of copy"))
        widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[:-1]]
        padded = ("  ".join((*map(str.rjust, line, widths), line[-1])) for line in lines)
        return "\n".join([self.label, *padded])


def _timings(content: dict):
    if "median" in content:
        return Timing(**content)
    return {int(key) if key.isdigit() else key: _timings(value) for key, value in content.items()}


def recorded(gpu: str = "h200") -> Recorded:
    """The recorded run of a GPU, by the name of its file in benchmarks/results.

    Raises:
        ValueError: no run of that GPU is recorded.
    """
    path = RESULTS / f"{gpu.lower()}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in RESULTS.glob("*.json"))) or "none"
        raise ValueError(f"nothing is recorded for {gpu}: there is {known}; on a machine with one, run `fusion bench`")
    content = json.loads(path.read_text())
    return Recorded(
        gpu=content["gpu"],
        date=content["date"],
        versions=content["versions"],
        copy_bandwidth=content["ceilings"]["copy_bytes_per_second"],
        matrix_rate=content["ceilings"]["bf16_matrix_flops_per_second"],
        rows=content["rows"],
        experiments=content["experiments"],
    )
