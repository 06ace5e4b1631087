"""What a record holds of its own run, and where it goes: the GPU, the day, the versions, what the GPU did then."""

import ast
import datetime
import functools
import hashlib
import io
import platform
import tokenize
from pathlib import Path

import torch
import triton

import kernels
from helpers.instruments.timing import benchmark_together

RESULTS = Path(__file__).parent / "results"
CEILING_BYTES = 4 * 2**30  # far beyond any L2
MATRIX_SIZE = 8192
# How a call comes to the GPU, or to the interpreter: nothing of what runs there.
CALLS = {"kernels.launching", "kernels.plans", "kernels.op", "kernels.interpreter.runtime"}


def ceilings() -> dict[str, float]:
    """What this GPU does now: bytes/s of a copy (read and written), a sum (read), a fill (written); FLOP/s of a bf16
    product."""
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
    """A GPU's name as its files have it: "NVIDIA H200" is h200."""
    return gpu.lower().removeprefix("nvidia ").replace(" ", "_")


def results_file() -> Path:
    """Where this GPU's figures are recorded."""
    return RESULTS / f"{file_name(torch.cuda.get_device_name())}.json"


def date_and_versions() -> dict:
    """What a record says of when and with what it was measured."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__}
    return {"date": datetime.date.today().isoformat(), "versions": versions | {"cuda": torch.version.cuda}}


@functools.cache
def _module(path: Path) -> tuple[str, set[str]]:
    """A module's lines, without comments and docstrings, and what it imports, in functions too."""
    text, names = path.read_text(encoding="utf-8"), set()
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column].rstrip()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(filter(None, lines)), names


def fingerprints_of_kernels(root: Path = Path(kernels.__file__).parents[1]) -> dict[str, str]:
    """Of each kernel's code and of what it imports of kernels/, all but CALLS: another one means another kernel."""
    files = {".".join(path.relative_to(root).with_suffix("").parts): path for path in root.glob("kernels/**/*.py")}
    found = {}
    for kernel in kernels.CATALOGUE:
        left, modules = {name for name in files if name.endswith(f".{kernel}")}, set()
        while left:
            modules |= left
            left = set().union(*(_module(files[name])[1] for name in left)) & files.keys() - modules - CALLS
        text = "".join(_module(files[name])[0] for name in sorted(modules))
        found[kernel] = hashlib.sha256(text.encode()).hexdigest()[:12]
    return found


def provenance() -> dict:
    """The GPU, the day, the versions and what the GPU does now: what every record holds of its own run."""
    found = {"gpu": torch.cuda.get_device_name(), **date_and_versions(), "ceilings": ceilings()}
    torch.cuda.empty_cache()
    return found
