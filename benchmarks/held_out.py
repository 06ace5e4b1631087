"""Time kernels at random shapes, to which no constant was fitted, to test the predictions.

    python benchmarks/held_out.py            on a GPU: measures, and writes benchmarks/results/<gpu>_held_out.json
    python benchmarks/held_out.py tiled      the same for tiled kernels, <gpu>_held_out_tiled.json
    python benchmarks/held_out.py code       adds machine code's hashes to the H100's records, validate.py's too

`shapes()` draws them for every memory-bound kernel: 64 KB to a few hundred megabytes, rows of 128 to 65,536 elements, a
third of them multiples of 64 and most others odd sizes, in every dtype that the kernel takes.

`tiled_shapes()` draws them for tiled kernels, in bfloat16: any number of rows, tokens and pixels; columns and channels
in multiples of 8, mostly of no larger power of two.

Each time has the fingerprints of its kernels. `code` adds a hash of their machine code, as the Triton in "code_by"
compiles it, so that the prediction for a kernel that has changed since isn't compared with it. It needs no GPU: run it
where the Triton is that compares, with the kernels that were timed.
"""

import gc
import hashlib
import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
import triton

from benchmarks.calls import fingerprints_of, launches_of
from benchmarks.provenance import provenance, results_file
from benchmarks.validation import COVERED, RESULTS
from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.dry_run import EagerLaunch, TritonLaunch
from helpers.instruments.prediction import dry_run_for
from helpers.instruments.resources import compile_for
from helpers.instruments.sass import disassemble
from helpers.instruments.timing import benchmark_together
from kernels import CATALOGUE, variant
from kernels.interpreter import runtime

SEED = 30
ELEMENTS = 2**14, 2**27  # of the first argument, least and most
COLUMNS = 2**7, 2**16  # of a row
SHAPES_EACH = {1: 2, 2: 3}  # by the number of dimensions
TILED_SEED = 32
TILED_EACH = 4
VERSIONS = "fused", "eager", "plain"
WITH_TIMES = "held_out", "held_out_tiled", "validation"  # the H100's records
UNPREDICTED = "rope_cache", "sample"  # where they write, and how often they draw, depends on their data
COMPILER = f"Triton {triton.__version__}"  # another one makes other machine code of the same kernel


def _between(random_numbers: random.Random, least: float, most: float) -> int:
    return round(math.exp(random_numbers.uniform(math.log(least), math.log(most))))


def shapes() -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Return (kernel, shape, dtype), the same on every machine."""
    random_numbers = random.Random(SEED)
    between = partial(_between, random_numbers)
    found = []
    for op in COVERED.values():
        dimensions = len(op.interpreter_shapes[0])
        if op.name in UNPREDICTED or dimensions not in SHAPES_EACH:
            continue
        for turn in range(SHAPES_EACH[dimensions]):
            shape = (between(*ELEMENTS),)
            if dimensions == 2:
                columns = between(*COLUMNS)
                if turn % 2:
                    columns = max(64, columns // 64 * 64)
                shape = (max(1, shape[0] // columns), columns)
            found.append((op.name, shape, random_numbers.choice(op.dtypes)))
    return found


def tiled_shapes() -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Return (kernel, shape, dtype) as the catalogue writes shapes, the same on every machine."""
    random_numbers = random.Random(TILED_SEED)
    between = partial(_between, random_numbers)

    def by_eights(least: int, most: int) -> int:
        return max(1, between(least, most) // 8) * 8

    found = []
    for turn in range(TILED_EACH):
        causal = turn % 2 == 1
        attention = (between(1, 4), between(4, 32), between(300, 8192), random_numbers.choice((64, 128)), causal)
        side = between(14, 56)
        found += [
            ("linear_act", (between(64, 8192), by_eights(512, 8192), by_eights(512, 8192))),
            ("flash_attention", attention),
            ("attention_scores", (between(1, 4), between(4, 16), between(300, 2048), 64, causal)),
            ("conv_bn_act", (between(8, 32), by_eights(64, 256), side, side, by_eights(64, 512), 3)),
        ]
    return [(name, shape, torch.bfloat16) for name, shape in found]


def record(kind: str = "") -> dict:
    """Return the H100's record: "gpu", "date", "versions", "code_by", "times"; or that of tiled kernels."""
    return json.loads((RESULTS / f"h100_80gb_hbm3_held_out{kind}.json").read_text())


def device_of(gpu: str) -> Device:
    """Return the Device of a driver's name: the H100 of "NVIDIA H100 80GB HBM3"."""
    return DEVICES[gpu.removeprefix("NVIDIA ").split()[0]]


def called(kernel: str, version: str) -> Callable:
    """Return what is timed and predicted: the reference ("eager"), the "plain" kernel or the tuned one where one takes
    the call ("fused")."""
    op = CATALOGUE[kernel]
    if version == "eager":
        return op.reference

    def call(*inputs):
        with variant("tuned" if version == "fused" else "plain"):
            return op.fused(*inputs)

    return call


def machine_code(launches: list[EagerLaunch | TritonLaunch], device: Device) -> str:
    """Return a hash of the grids and machine code of a call's Triton launches; empty if there is none."""
    found = hashlib.sha256()
    ours = [launch for launch in launches if isinstance(launch, TritonLaunch)]
    for launch in ours:
        code = disassemble(compile_for(launch.kernel, device=device, **launch.given).cubin)
        found.update("\n".join([str(launch.grid), *(each.text for each in code)]).encode())
    return found.hexdigest()[:16] if ours else ""


def rehearsed(entry: dict, device: Device) -> list[EagerLaunch | TritonLaunch]:
    """Return the launches of a recorded call on `device`, by the kernels of today."""
    dtype = getattr(torch, entry["dtype"])
    inputs = CATALOGUE[entry["kernel"]].inputs(*entry["shape"], dtype=dtype, device="meta")
    with torch.no_grad():
        return dry_run_for(device, called(entry["kernel"], entry["version"]), *inputs)


def measure(drawn: list[tuple[str, tuple[int, ...], torch.dtype]]) -> list[dict]:
    """Time fused, plain and eager at each shape: the GPU's own time, cold L2, launch gaps excluded."""
    rows = []
    for name, shape, dtype in drawn:
        inputs = CATALOGUE[name].inputs(*shape, dtype=dtype, device="cuda")
        versions = {version: partial(called(name, version), *inputs) for version in VERSIONS}
        with torch.no_grad():
            launched = {version: launches_of(call) for version, call in versions.items()}
            measured = benchmark_together(versions, runs=15)
        what = {"kernel": name, "shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
        for version, timing in measured.items():
            kernels = fingerprints_of(launch.kernel for launch in launched[version])
            rows.append({**what, "version": version, "kernels": kernels, "gpu": asdict(timing)})
        print(what, {version: f"{timing.median * 1e6:.1f} us" for version, timing in measured.items()}, flush=True)
        del inputs, versions, launched
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def with_code(content: dict) -> dict:
    """Return a record with the hashes of its kernels' machine code by this Triton.

    A hash is None if a dry run launches another kernel than was timed: the timed one has changed, or is in Gluon, which
    no dry run interprets.
    """
    device, times = device_of(content["gpu"]), []
    for entry in content["times"]:
        if entry["kernel"] in UNPREDICTED:
            times.append(entry)
            continue
        launches = rehearsed(entry, device)
        kernels = fingerprints_of(each.kernel for each in launches if isinstance(each, TritonLaunch))
        times.append({**entry, "code": machine_code(launches, device) if kernels == entry["kernels"] else None})
    return {**content, "code_by": COMPILER, "times": times}


def write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{len(content['times'])} times recorded in {path.name}")


def main() -> int:
    if sys.argv[1:] == ["code"]:
        for name in WITH_TIMES:
            path = RESULTS / f"h100_80gb_hbm3_{name}.json"
            write(path, with_code(json.loads(path.read_text())))
        return 0
    if not runtime.has_gpu():
        raise RuntimeError("held-out times need an NVIDIA GPU: the recorded ones are in benchmarks/results")
    tiled = sys.argv[1:] == ["tiled"]
    times = measure(tiled_shapes() if tiled else shapes())
    path = results_file().with_stem(f"{results_file().stem}_held_out{'_tiled' if tiled else ''}")
    write(path, {**provenance(), "times": times})
    return 0


if __name__ == "__main__":
    sys.exit(main())
