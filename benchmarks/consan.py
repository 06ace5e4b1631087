"""Run Triton's concurrency sanitizer (ConSan) on attention's tuned kernels, which are in Gluon: copies, barriers and
waits are written by hand.

    python -m benchmarks.consan [--seconds N]

Under ConSan (TRITON_INSTRUMENTATION_MODE=consan) a kernel checks itself: no warp may read a tile that is still on its
way, or overwrite one that another still reads. compute-sanitizer's racecheck does not see a missing wait for TMA.

First, two kernels with a mistake must fail: one that reads a tile without waiting for it, and attention without its
wait for the values. Each process runs one kernel, because a failed check ends its work on the GPU. Compiling takes a
minute or two; all processes run at once.

The exit status is 1 if a check fails, a mistake passes, or a process does not finish.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.calls import backward_pass
from benchmarks.sanitize import Case, inputs_of
from benchmarks.triton_launches import triton_launches
from kernels import CATALOGUE, launch_cache, variant
from kernels.interpreter import runtime

ROOT = Path(__file__).resolve().parents[1]
SHAPES = {
    "forward": ("1x2x300x128xFalse", "1x2x127x128xTrue"),
    "backward": ("1x2x127x64xFalse", "1x2x127x128xTrue"),
}
GLUON = {"forward": "flash_attention_hopper_kernel", "backward": "grads_kernel"}
WAIT = "    mbarrier.wait(v_full.index(at % STAGES), (at // STAGES) & 1)\n"  # in values(): v has arrived
FAILED = re.compile(r"([\w.]+:\d+): .*Assertion `(.*?)` failed")


def shape_of(text: str) -> tuple:
    return tuple({"True": True, "False": False}[each] if each.isalpha() else int(each) for each in text.split("x"))


def without_wait(folder: Path) -> Path:
    """Copy kernels/ to a folder, and leave out attention's wait for the values."""
    copy = shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "tuned" / "hopper_attention.py"
    source = file.read_text()
    if source.count(WAIT) != 1:
        raise ValueError(
            f"{file.name} has {source.count(WAIT)} waits for the values, expected 1: look for {WAIT.strip()}"
        )
    file.write_text(source.replace(WAIT, "    pass\n"))
    return folder


def lend_memory() -> None:
    """ConSan's kernels need memory at their launch; autograd's threads have no allocator of their own."""
    from triton.runtime import _allocation

    kept = []

    def allocate(_, size, alignment, stream):
        kept.append(torch.empty(size, dtype=torch.int8, device="cuda"))
        return kept[-1]

    _allocation.NullAllocator.__call__ = allocate


def attention(part: str, shape: tuple) -> str:
    """Run a pass of attention with the tuned kernels; return the names of those that were launched."""
    from triton import knobs

    launch_cache.enabled = False
    op, inputs = CATALOGUE["flash_attention"], inputs_of(Case("flash_attention", shape, torch.bfloat16, 0), "cuda")
    with variant("tuned"), triton_launches() as seen:
        if part == "backward":
            knobs.compilation.instrumentation_mode = ""  # the forward has its own cases
            step = backward_pass(op.fused, inputs)
            torch.cuda.synchronize()
            knobs.compilation.instrumentation_mode = "consan"
            seen.clear()
            step()
        else:
            with torch.no_grad():
                op.fused(*inputs)
        torch.cuda.synchronize()
    return " ".join(sorted({each.kernel.fn.__name__ for each in seen}))


def tile(waits: bool) -> str:
    """Copy a tile by TMA; read it after it has arrived, or without waiting."""
    from benchmarks import consan_tile

    consan_tile.copied(torch.randn(64, 64, dtype=torch.float16, device="cuda"), waits)
    torch.cuda.synchronize()
    return "tile_kernel"


class Process:
    """One kernel in its own process; `clean` says whether its checks must pass."""

    def __init__(self, words: list[str], clean: bool, folder: Path, sources: Path = ROOT):
        self.words, self.clean, self.file = words, clean, folder / f"{'_'.join(words)}_{clean}.txt"
        environment = os.environ | {"TRITON_INSTRUMENTATION_MODE": "consan", "OMP_NUM_THREADS": "1"}
        environment |= {"TRITON_CACHE_DIR": str(folder / f"cache_{clean}")}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(sources), str(ROOT), os.environ.get("PYTHONPATH")))
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.consan", "run", *words],
            stdout=self.file.open("w"),
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=sources,
        )

    def verdict(self, until: float) -> tuple[bool, str]:
        """Return whether it went as it should, and what happened; if it has not ended by `until`, kill it."""
        try:
            self.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False, "did not finish"
        return judged(self.file.read_text(errors="replace"), self.clean)


def judged(said: str, clean: bool) -> tuple[bool, str]:
    """Return whether a process's output is what a clean kernel, or a planted mistake, should give, and the reason."""
    done = re.search(r"^done: (.*)$", said, re.MULTILINE)
    if failed := FAILED.search(said):
        return not clean, f"{failed[1]}: {failed[2]}"
    if done:
        return clean, f"clean: {done[1]}" if clean else f"NOT SEEN: {done[1]}"
    return False, said.strip().splitlines()[-1][:200] if said.strip() else "no output"


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["run"]:
        lend_memory()
        _, part, what = arguments
        print(f"done: {tile(what == 'waits') if part == 'tile' else attention(part, shape_of(what))}", flush=True)
        return 0
    parser = argparse.ArgumentParser(prog="benchmarks.consan", description="ConSan over attention's tuned kernels.")
    parser.add_argument("--seconds", type=float, default=600, help="end after so many (default: 600)")
    options = parser.parse_args(arguments)
    if not runtime.has_gpu() or torch.cuda.get_device_capability()[0] != 9:
        print("consan: needs a GPU of compute capability 9.0, as these kernels do: run it there", file=sys.stderr)
        return 2
    until, good = time.monotonic() + options.seconds, True
    with tempfile.TemporaryDirectory() as own:
        folder = Path(own)
        (folder / "planted").mkdir()
        planted = without_wait(folder / "planted")
        running = [Process(["tile", "never"], False, folder), Process(["tile", "waits"], True, folder)]
        running += [Process(["forward", SHAPES["forward"][0]], False, folder, planted)]
        running += [Process([part, shape], True, folder) for part, shapes in SHAPES.items() for shape in shapes]
        for each in running:
            right, what = each.verdict(until)
            if each.clean and each.words[0] in GLUON and right:
                right = GLUON[each.words[0]] in what  # not the plain kernel
            good &= right
            kind = "" if each.clean else "planted, "
            print(f"consan: {kind}{' '.join(each.words)}: {what}{'' if right else '  WRONG'}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
