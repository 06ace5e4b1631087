"""Times every kernel of the catalogue beside its unfused reference and torch.compile, and records it on a GPU.

    python benchmarks/run.py [KERNEL ...]

Two times a row. `gpu`: the GPU's own, cold L2, launch gaps excluded. `call`: what the caller waits per call in a row of
calls, Python and launch included. Per cent is of the copy bandwidth measured in the same run, on the least bytes.
On a GPU the figures go to benchmarks/results/<gpu>.json with versions, date and ceilings; on a CPU the same command
runs small sizes through the interpreter, which shows that it works and nothing about speed, and records nothing.
"""

import argparse
import datetime
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
import triton
from tqdm import tqdm

from benchmarks import free_flops
from helpers.timing import Timing, benchmark_together
from kernels import CATALOGUE, runtime
from kernels.fused_op import FusedOp, Work

RESULTS = Path(__file__).parent / "results"
CEILING_BYTES = 4 * 2**30  # far beyond any L2
MATRIX_SIZE = 8192


def ceilings(device: str) -> dict[str, float]:
    """Copy bandwidth in bytes/s (read and written) and dense bf16 matrix rate in FLOP/s, as measured now."""
    source = torch.ones(CEILING_BYTES // 4, device=device)
    target = torch.empty_like(source)
    left, right = torch.randn(2, MATRIX_SIZE, MATRIX_SIZE, device=device, dtype=torch.bfloat16)
    times = benchmark_together({"copy": lambda: target.copy_(source), "matrix": lambda: left @ right}, runs=20)
    return {
        "copy_bytes_per_second": 2 * CEILING_BYTES / times["copy"].median,
        "bf16_matrix_flops_per_second": 2 * MATRIX_SIZE**3 / times["matrix"].median,
    }


def backward_pass(function, inputs: tuple) -> Callable:
    """A call of no argument that runs the backward pass of `function` alone, its forward done once, now."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    gradients = [torch.randn_like(y) for y in outputs]
    wanted = [x for x in leaves if x.requires_grad]
    return lambda: torch.autograd.grad(outputs, wanted, gradients, retain_graph=True)


def measure_op(op: FusedOp, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> list[dict]:
    """One row a provider and direction: fused, eager, and torch.compile on a GPU, all in one run."""
    inputs = op.inputs(*shape, dtype=dtype, device=device)
    torch._dynamo.reset()  # its limit on recompilations would leave later sizes uncompiled, and our rows flattered
    functions = {"fused": op.fused, "eager": op.reference}
    if device == "cuda":
        functions["torch.compile"] = torch.compile(op.reference, dynamic=False)
    forward = {provider: partial(function, *inputs) for provider, function in functions.items()}
    with torch.no_grad():
        rows = timed_rows(op.name, shape, dtype, forward, op.work(shape, dtype), device)
    if op.backward_work is not None:
        backward = {provider: backward_pass(function, inputs) for provider, function in functions.items()}
        work = op.backward_work(shape, dtype)
        rows += timed_rows(f"{op.name} backward", shape, dtype, backward, work, device, graphs=False)
    return rows


def timed_rows(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    providers: dict[str, Callable],
    work: Work,
    device: str,
    graphs: bool = True,
) -> list[dict]:
    """The providers timed together, the GPU alone and the whole call."""
    runs = 50 if device == "cuda" else 3
    gpu = benchmark_together(providers, runs=runs, graphs=graphs)
    call = benchmark_together(providers, runs=runs, launches=True) if device == "cuda" else {}
    return [
        {
            "kernel": name,
            "shape": list(shape),
            "dtype": str(dtype).removeprefix("torch."),
            "provider": provider,
            "least_bytes": work.bytes,
            "gpu": asdict(gpu[provider]),
            "call": asdict(call[provider]) if provider in call else None,
        }
        for provider in providers
    ]


def table(rows: list[dict], copy_bandwidth: float | None) -> str:
    """The rows as text, one line each."""
    lines = [
        f"{'kernel':24} {'shape':>14} {'dtype':9} {'provider':14} {'time (10 % to 90 %)':>34} {'of copy':>8}  call"
    ]
    for row in rows:
        gpu = Timing(**row["gpu"])
        share = f"{row['least_bytes'] / gpu.median / copy_bandwidth:8.1%}" if copy_bandwidth else " " * 8
        shape = "x".join(map(str, row["shape"]))
        call = Timing(**row["call"]) if row["call"] else "not timed"
        lines.append(
            f"{row['kernel']:24} {shape:>14} {row['dtype']:9} {row['provider']:14} {gpu!r:>34} {share}  {call}"
        )
    return "\n".join(lines)


def record(rows: list[dict], measured: dict[str, float], chain: dict[int, Timing]) -> Path:
    """Write the rows and the multiply-add chain's times to results/<gpu>.json and return its path."""
    name = torch.cuda.get_device_name()
    path = RESULTS / f"{name.lower().removeprefix('nvidia ').replace(' ', '_')}.json"
    versions = {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__}
    content = {
        "gpu": name,
        "date": datetime.date.today().isoformat(),
        "versions": versions | {"cuda": torch.version.cuda},
        "command": "python benchmarks/run.py",
        "ceilings": measured,
        "free_flops": {
            "elements": free_flops.ELEMENTS,
            "steps": {steps: asdict(timing) for steps, timing in chain.items()},
        },
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fusion bench", description="Time the kernels of the catalogue.")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="names in the catalogue; all of them by default")
    chosen = parser.parse_args(arguments).kernels or list(CATALOGUE)
    unknown = [name for name in chosen if name not in CATALOGUE]
    if unknown:
        raise ValueError(f"no kernel named {', '.join(unknown)}: the catalogue has {', '.join(CATALOGUE)}")

    gpu = runtime.has_gpu()
    measured = ceilings("cuda") if gpu else {}
    plan = []
    for op in (CATALOGUE[name] for name in chosen):
        shapes, dtypes = (op.gpu_shapes, op.gpu_dtypes) if gpu else (op.interpreter_shapes[-1:], op.dtypes[:1])
        plan += [(op, shape, dtype) for shape in shapes for dtype in dtypes]
    rows = []
    for op, shape, dtype in tqdm(plan, desc="benchmark", unit="size", delay=2, disable=not sys.stderr.isatty()):
        rows += measure_op(op, shape, dtype, "cuda" if gpu else "cpu")

    if gpu:
        print(", ".join(f"{name} {value:.4g}" for name, value in measured.items()))
    else:
        print("No GPU: kernels are interpreted, sizes are small; these times say nothing about speed. Not recorded.")
    print(table(rows, measured.get("copy_bytes_per_second")))
    if gpu and len(chosen) == len(CATALOGUE):
        print(f"recorded in {record(rows, measured, free_flops.measure()).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
