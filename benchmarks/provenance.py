"""Describe a recording's own run: the GPU and its state, date and versions, and the file to write."""

import datetime
import platform
from pathlib import Path

import torch
import triton

from helpers.instruments.timing import benchmark_together

RESULTS = Path(__file__).parent / "results"
CEILING_BYTES = 4 * 2**30  # far beyond any L2
MATRIX_SIZE = 8192


def ceilings() -> dict[str, float]:
    """Measure this GPU now: bytes/s of a copy (read and written), a sum (read), a fill (written); FLOP/s of a bf16
    matmul."""
    source = torch.ones(CEILING_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    left, right = torch.randn(2, MATRIX_SIZE, MATRIX_SIZE, device="cuda", dtype=torch.bfloat16)
    times = benchmark_together(
        {
            "copy": lambda: target.copy_(source),
            "read": source.sum,
            "write": lambda: target.fill_(1.0),
            "matrix": lambda: left @ right,
        },
        runs=20,
    )
    return {
        "copy_bytes_per_second": 2 * CEILING_BYTES / times["copy"].median,
        "read_bytes_per_second": CEILING_BYTES / times["read"].median,
        "write_bytes_per_second": CEILING_BYTES / times["write"].median,
        "bf16_matrix_flops_per_second": 2 * MATRIX_SIZE**3 / times["matrix"].median,
    }


def file_name(gpu: str) -> str:
    """Return a GPU's name as used in its files' names: h200 for "NVIDIA H200"."""
    return gpu.lower().removeprefix("nvidia ").replace(" ", "_")


def results_file() -> Path:
    """Return the file in which this GPU's figures are recorded."""
    return RESULTS / f"{file_name(torch.cuda.get_device_name())}.json"


def date_and_versions() -> dict:
    """Return the date and versions of a record."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__}
    return {"date": datetime.date.today().isoformat(), "versions": versions | {"cuda": torch.version.cuda}}


def provenance() -> dict:
    """Return the GPU, date, versions and current ceilings, which every record stores for its own run."""
    found = {"gpu": torch.cuda.get_device_name(), **date_and_versions(), "ceilings": ceilings()}
    torch.cuda.empty_cache()
    return found
