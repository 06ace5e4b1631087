"""Record the meter's counts for every kernel on this machine: launches and bytes, forward and backward.

    python benchmarks/metered.py            # writes benchmarks/results/<gpu>_metered.json; seconds, on a GPU

Launchers depend on the GPU's SM count and shared memory. tests/instruments/test_metered.py meters the same calls
without a GPU: their launches and bytes must be those recorded on the GPU.
"""

import json
from pathlib import Path

import torch

from benchmarks.calls import backward_pass
from benchmarks.provenance import provenance, results_file
from helpers.instruments import measure
from kernels import CATALOGUE
from kernels.op import FusedOp

RESULTS = Path(__file__).parent / "results"
FEW_ROWS = (64, 512)  # fewer rows than an H200 has multiprocessors; more than smaller GPUs have


def shapes(op: FusedOp) -> list[tuple]:
    """Return the last of the interpreter's shapes and, for row kernels, also few rows of a usual width."""
    usual = [(*FEW_ROWS, *op.gpu_shapes[0][2:])] if op.group == "rowwise" else []
    return [op.interpreter_shapes[-1], *usual]


def metered(op: FusedOp, shape: tuple, device: str) -> dict[str, list[int]]:
    """Return launches, bytes read and bytes written for "forward" and, if the kernel has one, "backward".

    The inputs are the same on every device, because some kernels' reads depend on them.
    """
    torch.manual_seed(0)
    inputs = [x.to(device) if isinstance(x, torch.Tensor) else x for x in op.inputs(*shape, dtype=op.gpu_dtypes[-1])]
    with torch.no_grad():
        passes = {"forward": measure(lambda: op.fused(*inputs))}
    if op.backward_work is not None:
        passes["backward"] = measure(backward_pass(op.fused, tuple(inputs)))
    return {name: [each.launches, each.bytes_read, each.bytes_written] for name, each in passes.items()}


def rows(device: str) -> list[dict]:
    """Return one row for each kernel of the catalogue and shape."""
    return [
        {"kernel": op.name, "shape": list(shape), **metered(op, shape, device)}
        for op in CATALOGUE.values()
        for shape in shapes(op)
    ]


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/metered.py records the launchers' choices on a GPU, and found none: run it on one")
    record = {**provenance(), "rows": rows("cuda")}
    path = results_file().with_stem(f"{results_file().stem}_metered")
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
