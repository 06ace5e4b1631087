"""Values from a GPU and its tools to test the instruments with, recorded by `python benchmarks/validate.py`."""

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path

from kernels import CATALOGUE

RESULTS = Path(__file__).parent / "results"

# The recorded run covers memory-bound kernels. The prediction's constants for caches and waiting were fitted on them,
# and cover no tensor cores.
COVERED = {name: op for name, op in CATALOGUE.items() if op.group != "tiled"}


@dataclass(frozen=True)
class Record:
    """Sections as benchmarks/validate.py describes them, each measured on its own day of `dates`.

    Not every GPU has all: constants are the H200's. `code_by`: the Triton of the hashes of `times`, as in held_out.py.
    """

    gpu: str
    date: str
    dates: dict[str, str]
    versions: dict[str, str]
    command: str
    ncu: str
    compiled: list[dict]
    counters: list[dict]
    launches: list[dict]
    constants: dict = field(default_factory=dict)
    times: list[dict] = field(default_factory=list)
    code_by: str = ""
    ceilings: dict = field(default_factory=dict)  # bytes/s and FLOP/s of its own run, if measured

    @property
    def device(self) -> str:
        """Return the GPU's name in DEVICES."""
        return self.gpu.removeprefix("NVIDIA ")

    @property
    def label(self) -> str:
        """Return the label that every figure from this run must show."""
        return f"{self.gpu}, PyTorch {self.versions['torch']}, Triton {self.versions['triton']}, {self.date}"


@functools.cache
def recorded_validation(gpu: str = "h200") -> Record:
    """Return the recorded run of a GPU."""
    return Record(**json.loads((RESULTS / f"{gpu}_validation.json").read_text()))
