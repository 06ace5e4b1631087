"""Record Nsight Compute's pages for unfused and fused kernels: the sections that a reader looks at first.

    python -m benchmarks.ncu_pages pairs FILE     the kernels of SHAPES, strides, spills
    python -m benchmarks.ncu_pages block FILE     the block of benchmarks/block.py

`python -m benchmarks.ncu_pages profiled GROUP` is the profiled program. FILE gets the command, and each page's text as
printed by ncu: `details` (a readable table, one kernel after the other), `csv` (the same values in base units, from
`ncu --csv`) and `source` (one kernel's lines with their samples).
"""

import csv
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.experiments.lesson_03 import add_gelu_in_blocks, strided_sums
from benchmarks.hardware_counters import profiled, profiler
from helpers.instruments import profile_script
from kernels import CATALOGUE

# In addition to the sections: counters that our meter has, and ones that it lacks.
METRICS = (
    *profile_script.METRICS,
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld_lookup_hit.sum",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "smsp__inst_executed.sum",
)
SHAPES = {  # 128 MB of input, twice an H200's L2; the matrices are lesson 08's
    "add_gelu": (2**25, torch.float32),
    "layer_norm_act": (16384, 4096, torch.bfloat16),
    "softmax": (16384, 4096, torch.bfloat16),
    "linear_act": (4096, 4096, 4096, torch.bfloat16),
    "flash_attention": (1, 16, 2048, 128, False, torch.bfloat16),
}
NUMBERS, STRIDES = 2**22, (1, 8, 16, 32)  # fp32 numbers read, and how far apart: 4, 32, 64 and 128 bytes
COLUMNS = ("ID", "Kernel Name", "Block Size", "Grid Size", "Device", "CC", "Section Name", "Metric Name")
COLUMNS += ("Metric Unit", "Metric Value")
SOURCE_OF = "add_gelu_kernel"


def softmax_written_out(x: torch.Tensor) -> torch.Tensor:
    """Compute softmax as five operations; PyTorch's own is one kernel."""
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def pairs() -> dict[str, Callable]:
    """Return case -> a call, in profiling order."""
    found = {}
    for name, (*shape, dtype) in SHAPES.items():
        given = CATALOGUE[name].inputs(*shape, dtype=dtype, device="cuda")
        unfused = softmax_written_out if name == "softmax" else CATALOGUE[name].reference
        found[f"{name}, unfused"] = partial(unfused, *given[:1] if name == "softmax" else given)
        found[f"{name}, fused"] = partial(CATALOGUE[name].fused, *given)
    x = torch.randn(NUMBERS * STRIDES[-1], device="cuda")
    found |= {f"stride of {4 * stride} B": partial(strided_sums, x, NUMBERS, stride) for stride in STRIDES}
    x, y = torch.randn(2, 2**13, 4096, device="cuda")
    for block, warps in ((16384, 2), (2048, 4)):
        found[f"add_gelu, {block} by {warps} warps"] = partial(add_gelu_in_blocks, x, y, block, warps)
    return found


def block() -> dict[str, Callable]:
    from benchmarks.block import WAYS, forward, inputs

    tensors = inputs(512)
    return {f"block, {way}": partial(forward, WAYS[way](), tensors) for way in ("eager", "fused")}


GROUPS = {"pairs": pairs, "block": block}


def commands(group: str, report: str) -> tuple[list[str], list[str]]:
    """Return the command that profiles a group, and the one that prints a page of its report, without `--page`."""
    asked = [word for section in profile_script.SECTIONS for word in ("--section", section)]
    options = "--clock-control none --cache-control all --profile-from-start off --force-overwrite".split()
    program = [sys.executable, "-m", "benchmarks.ncu_pages", "profiled", group]
    take = [profiler(), *options, *asked, "--metrics", ",".join(METRICS), "--export", report, *program]
    return take, [profiler(), "--import", f"{report}.ncu-rep"]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ncu failed: {(done.stderr + done.stdout).strip()[-1500:]}")
    return done.stdout


def cut(text: str, columns: tuple[str, ...] = COLUMNS) -> str:
    """Return a CSV page with only these columns, without rows of advice."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    kept = io.StringIO()
    table = csv.DictReader(lines)
    writer = csv.DictWriter(kept, columns, extrasaction="ignore", quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for row in table if row.get("Metric Name") or "Metric Name" not in columns)
    return kept.getvalue()


def record(group: str, file: Path) -> None:
    """Profile a group and write its pages, the ones that matter most first."""
    with tempfile.TemporaryDirectory() as folder:
        take, show = commands(group, str(Path(folder) / "report"))
        shown = " ".join(take).replace(sys.executable, "python").replace(folder, ".").replace(profiler(), "ncu")
        found = {"command": shown, "version": run([profiler(), "--version"]).strip().splitlines()[-1]}
        try:
            found["log"] = run(take)[-3000:]
        except RuntimeError as error:  # no report: print the most important page while measuring
            found["log"] = str(error)
            file.write_text(json.dumps(found))
            log = f"{folder}/log"
            direct = ["--csv", "--page", "details", "--print-units", "base", "--log-file", log]
            run([*take[: take.index("--export")], *direct, *take[-5:]])
            found["csv"] = cut(Path(log).read_text())
            file.write_text(json.dumps(found))
            return
        pages = {
            "csv": ["--page", "details", "--csv", "--print-units", "base"],
            "details": ["--page", "details"],
            "raw": ["--page", "raw", "--csv", "--print-units", "base", "--metrics", ",".join(METRICS)],
            "all": ["--page", "details", "--csv", "--print-units", "base", "--print-details", "all"],
            "source": ["--page", "source", "--csv", "--kernel-name", f"regex:{SOURCE_OF}"],
        }
        for page, options in pages.items():
            try:
                text = run([*show, *options])
                found[page] = cut(text) if page in ("csv", "all") else text[:2_000_000]
            except Exception as error:
                found[page] = f"failed: {error}"
            file.write_text(json.dumps(found))


def main() -> None:
    if sys.argv[1] == "profiled":
        profiled(GROUPS[sys.argv[2]]().values())
    else:
        record(sys.argv[1], Path(sys.argv[2]))


if __name__ == "__main__":
    main()
