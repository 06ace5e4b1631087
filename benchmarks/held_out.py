"""Times at shapes that nobody chose and no constant was fitted to, to hold the predictions against.

    python benchmarks/held_out.py            on a GPU: measures, and writes benchmarks/results/<gpu>_held_out.json

`shapes()` draws them for every kernel that memory bounds: 64 KB to some hundred megabytes, rows of 128 to 65,536
elements, a third of them multiples of 64 and most of nothing, in every dtype that the kernel takes.
"""

import gc
import json
import math
import random
import sys
from dataclasses import asdict
from functools import partial

import torch

from benchmarks.run import date_and_versions, results_file
from benchmarks.validation import COVERED
from helpers.instruments.timing import benchmark_together
from kernels import runtime

SEED = 20
ELEMENTS = 2**14, 2**27  # of the first argument, least and most
COLUMNS = 2**7, 2**16  # of a row
SHAPES_EACH = {1: 2, 2: 3}  # by the number of dimensions


def shapes() -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """(kernel, shape, dtype), the same on every machine."""
    random_numbers = random.Random(SEED)

    def between(least: float, most: float) -> int:
        return round(math.exp(random_numbers.uniform(math.log(least), math.log(most))))

    found = []
    for op in COVERED.values():
        dimensions = len(op.interpreter_shapes[0])
        for turn in range(SHAPES_EACH[dimensions]):
            shape = (between(*ELEMENTS),)
            if dimensions == 2:
                columns = between(*COLUMNS)
                if turn % 2:
                    columns = max(64, columns // 64 * 64)
                shape = (max(1, shape[0] // columns), columns)
            found.append((op.name, shape, random_numbers.choice(op.dtypes)))
    return found


def measure() -> list[dict]:
    """Fused and eager at each of the shapes: the GPU's own time, cold L2, launch gaps excluded."""
    rows = []
    for name, shape, dtype in shapes():
        op = COVERED[name]
        inputs = op.inputs(*shape, dtype=dtype, device="cuda")
        versions = {"fused": partial(op.fused, *inputs), "eager": partial(op.reference, *inputs)}
        with torch.no_grad():
            measured = benchmark_together(versions, runs=15)
        what = {"kernel": name, "shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
        rows += [{**what, "version": version, "gpu": asdict(timing)} for version, timing in measured.items()]
        print(what, {version: f"{timing.median * 1e6:.1f} us" for version, timing in measured.items()}, flush=True)
        del inputs, versions
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def main() -> int:
    if not runtime.has_gpu():
        raise RuntimeError("held-out times need an NVIDIA GPU: the recorded ones are in benchmarks/results")
    content = {"gpu": torch.cuda.get_device_name(), **date_and_versions(), "times": measure()}
    path = results_file().with_stem(f"{results_file().stem}_held_out")
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{len(content['times'])} times recorded in {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
