"""Run compute-sanitizer on each of the course's kernels at awkward sizes, forward and backward.

    python -m benchmarks.sanitize [TOOL ...] [--processes N] [--seconds N]

    memcheck    accesses past the end of a tensor, or to an address that the width of a load does not allow
    synccheck   barriers that not every thread reaches
    initcheck   reads of memory that nothing has written
    racecheck   shared memory that two warps touch with no barrier between

initcheck skips tiled kernels. It does not track TMA, so it takes memory that TMA stored for unwritten (and is silent if
the same kernel reads memory written by plain stores). racecheck does not see a missing wait for TMA
(benchmarks/consan.py does), and reports what Triton itself adds to a kernel with groups of warps: a byte that tells a
group its part, written before barrier 1 and read after it. These reports are at the line of the kernel's `def`, and are
counted apart.

Every tensor has its own allocation, exact to the byte, because PyTorch's cache would hide an access past a tensor's end
inside a larger block. Each case runs once at the start of its allocation and once one element later, where rows and
vectors are unaligned; either way its last element is the allocation's last. First, the kernels of PLANTED, with one
mistake each, show that the tools catch what they should.

The exit status is 1 if a tool reports an error, a planted error goes unreported, or a case does not finish.
"""

import argparse
import collections
import importlib
import inspect
import os
import pkgutil
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

import kernels
from benchmarks.calls import backward_pass
from benchmarks.triton_launches import triton_launches
from kernels import CATALOGUE
from kernels.interpreter import runtime
from kernels.transformer_block import transformer_block, transformer_block_inputs

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("memcheck", "synccheck", "initcheck", "racecheck")
NOT_TILED = ("initcheck",)
# Rows and columns: few rows and more than an H200's SMs hold at once, one pass and loops, wide, unaligned and odd.
ROWS = (
    *((3, 1), (5, 127), (601, 127), (5, 1000), (601, 1025), (5, 4096), (301, 4099), (5, 5120), (301, 8192), (3, 12288)),
    *((5, 16384), (150, 16384), (2, 32768), (150, 32000), (3, 50257), (140, 50257), (2, 65536), (2, 128256)),
)
ELEMENTS = ((1,), (127,), (4099,), (65_536,), (1_000_003,))
BIASED = ((1, 1), (5, 127), (257, 1000), (128, 8192), (33, 4099))
SHAPES = {  # in addition to the catalogue's own for the interpreter
    "linear_act": ((1, 520, 264), (8, 1024, 520), (17, 300, 500), (127, 136, 264), (300, 520, 1048), (1023, 257, 129)),
    "ffn": ((3, 136, 264), (300, 264, 520), (300, 264, 520, True)),
    "moe_int8": ((2, 128, 64, 8), (40, 128, 64, 8), (300, 136, 72, 8)),
    "conv_bn_act": ((2, 16, 9, 11, 24, 3), (4, 64, 28, 28, 72, 3), (3, 100, 13, 13, 36, 1), (2, 3, 33, 33, 16, 7)),
    "attention_scores": ((1, 2, 300, 64, False), (1, 2, 300, 64, True)),
    "flash_attention": tuple(
        (1, 2, tokens, dim, causal)
        for tokens, dim in ((1, 128), (127, 128), (1000, 128), (300, 64), (300, 96), (513, 256))
        for causal in (False, True)
    ),
    "paged_attention": (
        (1, 8, 1, 1, 5000, 128),
        (3, 14, 2, 4, 1025, 96),
        (2, 4, 4, 16, 300, 64),
        (1, 9, 1, 16, 70, 128),
    ),
}
BLOCK, TOKENS = {"heads": 4, "key_heads": 2}, (1, 24)  # its one-row matmuls have their own kernel
WIDTHS = {"width": 64, "hidden": 96}
LEAST_FOR_TOP_K = 8
FP32 = ((5, 1000), (301, 4099), (2, 50257))  # row kernels' shapes, in addition to bf16


@dataclass(frozen=True)
class Case:
    """A kernel of the catalogue, its shape, a dtype, and its tensors' offset in their allocations, in elements."""

    kernel: str
    shape: tuple
    dtype: torch.dtype
    offset: int

    def __str__(self):
        size = "x".join(map(str, self.shape))
        return f"{self.kernel} {size} {str(self.dtype).removeprefix('torch.')} + {self.offset}"


def cases() -> list[Case]:
    found = []
    for name, op in CATALOGUE.items():
        tiled = op.group == "tiled"
        usual = BIASED if name == "bias_dropout_residual" else ROWS if op.group == "rowwise" else ELEMENTS
        own = tiled or len(op.interpreter_shapes[0]) > 2
        shapes = (*op.interpreter_shapes, *SHAPES.get(name, ())) if own else usual
        shapes = [shape for shape in shapes if name != "softmax_topk" or shape[-1] >= LEAST_FOR_TOP_K]
        found += [Case(name, shape, torch.bfloat16, offset) for shape in shapes for offset in (0, 1)]
        if op.group == "rowwise":
            found += [Case(name, shape, torch.float32, 1) for shape in FP32]
    found += [Case("transformer_block", (tokens,), torch.bfloat16, 0) for tokens in TOKENS]
    random.Random(0).shuffle(found)  # so that a stopped run has covered some of every kernel
    return found


def is_tiled(case: Case) -> bool:
    return case.kernel not in CATALOGUE or CATALOGUE[case.kernel].group == "tiled"


def placed(x, offset: int):
    """Return a tensor with the same values and strides in an allocation that ends with it; other values unchanged."""
    if not isinstance(x, torch.Tensor) or not x.numel():
        return x
    held = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    own = torch.empty(offset + held, dtype=x.dtype, device=x.device).as_strided(x.shape, x.stride(), offset)
    return own.copy_(x)


def inputs_of(case: Case, device: str) -> tuple:
    options = {"dtype": case.dtype, "device": device}
    if case.kernel == "transformer_block":
        given = transformer_block_inputs(*case.shape, **BLOCK, **WIDTHS, **options)
    else:
        given = CATALOGUE[case.kernel].inputs(*case.shape, **options)
    return tuple(placed(x, case.offset) for x in given)


def passes(case: Case) -> Callable:
    """Return a function of the inputs that runs forward and, if there is a gradient, forward and backward; each twice,
    because a repeated call launches through the launch cache."""
    if case.kernel == "transformer_block":
        function, backward = partial(transformer_block, **BLOCK), False
    else:
        function, backward = CATALOGUE[case.kernel].fused, CATALOGUE[case.kernel].backward_work is not None

    def run(*inputs):
        with torch.no_grad():
            for _ in range(2):
                function(*inputs)
        if backward:
            gradients = backward_pass(function, inputs)
            for _ in range(2):
                gradients()

    return run


@triton.jit
def copy_kernel(x_ptr, y_ptr, start, COUNT: tl.constexpr, MULTIPLE: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(y_ptr + at, tl.load(x_ptr + tl.multiple_of(start + at, MULTIPLE)))


def past_the_end(device: str) -> None:
    """Read and write 128 of 100 numbers."""
    copy_kernel[(1,)](torch.ones(100, device=device), torch.empty(100, device=device), 0, 128, 4, num_warps=1)


def misaligned(device: str) -> None:
    """Promise that 4 divides 2: the GPU refuses a load of 16 bytes from there."""
    copy_kernel[(1,)](torch.ones(130, device=device), torch.empty(128, device=device), 2, 128, 4, num_warps=1)


def unwritten(device: str) -> None:
    """Read memory that nothing wrote."""
    copy_kernel[(1,)](torch.empty(128, device=device), torch.empty(128, device=device), 0, 128, 4, num_warps=1)


# A kernel with each mistake, and the tool that must report it. Triton prevents mistakes with races and barriers:
# benchmarks/cuda_semantics.py plants them in CUDA C++.
PLANTED = {past_the_end: "memcheck", misaligned: "memcheck", unwritten: "initcheck"}


def all_kernels() -> dict[str, JITFunction]:
    """Return all kernels that are launched, rather than called by other kernels, by name."""
    modules = [importlib.import_module(each.name) for each in pkgutil.walk_packages(kernels.__path__, "kernels.")]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, JITFunction) and name.endswith("_kernel") and value.fn.__module__ == module.__name__
    }


def is_of_warp_groups(what: str, where: str) -> bool:
    """Return whether racecheck reports the byte that tells a group of warps its part: see the top of this file."""
    name, _, line = where.partition(" ")
    kernel = all_kernels().get(name)
    if kernel is None or not what.startswith("Error: Race") or "warp_specialize" not in kernel.src:
        return False
    source, first = inspect.getsourcelines(kernel.fn)
    first += next(i for i, each in enumerate(source) if each.startswith("def "))
    return line == f"{Path(inspect.getfile(kernel.fn)).name}:{first}"


def run_cases(number: int, of: int, tiled: bool) -> None:
    """Run every `of`-th case under a tool; print a line for each that ended, with the kernels that it launched."""
    device = "cuda" if runtime.has_gpu() else "cpu"
    for case in [case for case in cases() if tiled or not is_tiled(case)][number::of]:
        with triton_launches() as seen:
            passes(case)(*inputs_of(case, device))
        if device == "cuda":
            torch.cuda.synchronize()
        print(f"done: {case}: {' '.join(sorted({each.kernel.fn.__name__ for each in seen}))}", flush=True)


# "Invalid __global__ read of size 2 bytes", then "at softmax_kernel+0x1b0 in softmax.py:88"; racecheck has both in one.
WHERE = re.compile(r"\bat (?:void )?([\w:]+)(?:\(.*?\))?\+0x[0-9a-f]+(?: in \S*?([^/\s]+:\d+))?")
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


def errors_of(said: str) -> tuple[collections.Counter, int | None]:
    """Return (what, kernel and line) -> how many times compute-sanitizer printed it; and its total, None if missing."""
    found, total, what = collections.Counter(), None, None
    for line in said.splitlines():
        if not line.startswith("========="):
            continue
        line = line.removeprefix("=========")
        if count := SUMMARY.search(line):
            total = int(count[1] or count[2])
        elif where := WHERE.search(line):
            if line.strip().startswith(("Error: Race", "Warning: Race")):
                what = line.strip().partition(" at ")[0]
            if what:
                found[what, " ".join(filter(None, where.groups()))] += 1
            what = None  # the following lines describe the launch
        elif re.match(r" \S", line):
            what = line.strip()
    return found, total


class Process:
    """A process under one of the tools."""

    def __init__(self, tool: str, words: list[str], gpu: int, folder: Path):
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        environment["CUDA_VISIBLE_DEVICES"] = seen[gpu] if seen[0] else str(gpu)
        self.words, self.file = words, folder / f"{tool}_{'_'.join(words)}.txt"
        command = ["compute-sanitizer", "--tool", tool, "--print-limit", "50", sys.executable, "-m"]
        self.process = subprocess.Popen(
            [*command, "benchmarks.sanitize", *words],
            stdout=self.file.open("w"),
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def said(self, until: float) -> str:
        """Return its output and the tool's; if it has not ended by `until`, kill it."""
        try:
            self.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # the tool, and the program under it
            self.process.wait()
        return self.file.read_text(errors="replace")


def check(tool: str, processes: int, gpus: int, seconds: float, folder: Path) -> bool:
    """Run one tool on the planted mistakes and all cases, print its findings, and return whether they are right."""
    began = time.monotonic()
    until = began + seconds
    planted = [mistake.__name__ for mistake, sees in PLANTED.items() if sees == tool]
    tiled = [] if tool in NOT_TILED else ["tiled"]
    running = [Process(tool, ["planted", name], i % gpus, folder) for i, name in enumerate(planted)]
    running += [Process(tool, ["cases", str(i), str(processes), *tiled], i % gpus, folder) for i in range(processes)]
    found, reported, ended, done, good, seen = collections.Counter(), 0, 0, 0, True, set()
    for process in running:
        said = process.said(until)
        errors, total = errors_of(said)
        if process.words[0] == "planted":
            good &= bool(errors)
            print(
                f"{tool}: planted {process.words[1]}: {', '.join(what for what, _ in errors) or 'NOT SEEN'}", flush=True
            )
            continue
        found += errors
        reported += total or 0
        ended += total is not None and process.process.returncode == 0
        lines = [line for line in said.splitlines() if line.startswith("done: ")]
        done += len(lines)
        seen |= {name for line in lines for name in line.rpartition(": ")[2].split()}
        other = [line for line in said.splitlines() if "Error" in line and not line.startswith("===")]
        print(*(f"{tool}: {line}" for line in other[-1:]), sep="\n", end="\n" if other else "", flush=True)
    every = sum(bool(tiled) or not is_tiled(case) for case in cases())
    if tiled and (never := sorted({*all_kernels()} - seen)):
        print(f"{tool}: not launched by any case that was done: {', '.join(never)}", flush=True)
    for (what, where), count in found.most_common():
        known = is_of_warp_groups(what, where)
        reported -= count if known else 0
        print(f"{tool}: {count} x {what}: {where}{' (Triton, between groups of warps)' if known else ''}", flush=True)
    print(
        f"{tool}: ERROR SUMMARY: {reported} errors; {len(seen)} kernels, {done} of {every} cases done, {ended} of "
        f"{processes} processes came to their end; {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return good and not reported and done == every


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["cases"]:
        run_cases(int(arguments[1]), int(arguments[2]), arguments[3:] == ["tiled"])
        return 0
    if arguments[:1] == ["planted"]:
        (mistake,) = (mistake for mistake in PLANTED if mistake.__name__ == arguments[1])
        mistake("cuda")
        torch.cuda.synchronize()
        return 0
    parser = argparse.ArgumentParser(prog="benchmarks.sanitize", description="compute-sanitizer over every kernel.")
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"of {', '.join(TOOLS)}; all by default")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) - 2), help="at a time")
    parser.add_argument("--seconds", type=float, default=3600, help="end a tool after so many (default: 3600)")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep each process's output")
    options = parser.parse_args(arguments)
    if unknown := [tool for tool in options.tools if tool not in TOOLS]:
        raise ValueError(f"no tool named {', '.join(unknown)}: choose from {', '.join(TOOLS)}")
    if shutil.which("compute-sanitizer") is None or not runtime.has_gpu():
        print("sanitize: needs an NVIDIA GPU and CUDA's compute-sanitizer: run it where both are", file=sys.stderr)
        return 2
    good = True
    with tempfile.TemporaryDirectory() as own:
        folder = options.logs or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        for tool in options.tools or TOOLS:
            good &= check(tool, options.processes, torch.cuda.device_count(), options.seconds, folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
