"""`make results`: measure every recorded figure again on this GPU, then rebuild everything that shows it.

    python -m benchmarks.retake               all of STEPS, one after the other
    python -m benchmarks.retake --from NAME   continue with a step that failed or was stopped
    python -m benchmarks.retake --list        list what would run, without running it

Each step is its own command and writes its own files, named after the GPU, so finished steps are never lost. Lessons
show the H200's figures. After a run on an H200 they show the new ones; figures of other GPUs are stored next to them,
for `recorded("a100")`. The build hides the GPU, as it did for the committed notebooks.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.provenance import results_file

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Step:
    """A command of this Python, from the repository's folder. `writes`: what it records; {gpu} is the GPU's name."""

    name: str
    command: str
    writes: tuple[str, ...] = ()
    on_gpu: bool = True


RECORDS = "benchmarks/results"
STEPS = (
    Step("kernels", "-m benchmarks.run", (f"{RECORDS}/{{gpu}}.json",)),
    Step("sweep", "-m benchmarks.sweep.run --anew --lines .venv/sweep.jsonl"),
    Step("sweep-record", "-m benchmarks.sweep.run --record .venv/sweep.jsonl", (f"{RECORDS}/{{gpu}}_sweep.json",)),
    Step("held-out", "-m benchmarks.held_out", (f"{RECORDS}/{{gpu}}_held_out.json",)),
    Step("held-out-tiled", "-m benchmarks.held_out tiled", (f"{RECORDS}/{{gpu}}_held_out_tiled.json",)),
    Step("models", "-m benchmarks.public_models --measure --predict", (f"{RECORDS}/{{gpu}}_models.json",)),
    Step("metered", "-m benchmarks.metered", (f"{RECORDS}/{{gpu}}_metered.json",)),
    Step("validation", "-m benchmarks.validate", (f"{RECORDS}/{{gpu}}_validation.json",)),
    Step(
        "fusion",
        f"-m benchmarks.fusion_groups --seconds 3600 --out {RECORDS}/{{gpu}}_fusion.json",
        (f"{RECORDS}/{{gpu}}_fusion.json",),
    ),
    Step("fusion-plan", f"-m benchmarks.fusion_choices --plan --out {RECORDS}/{{gpu}}_fusion_choices.json"),
    Step(
        "fusion-choices",
        f"-m benchmarks.fusion_choices --out {RECORDS}/{{gpu}}_fusion_choices.json",
        (f"{RECORDS}/{{gpu}}_fusion_choices.json",),
    ),
    Step("profiles", "-m benchmarks.profiles --seconds 3600 --out .venv/profiles.json"),
    Step("pages", "-m benchmarks.profiles --take .venv/profiles.json", (f"{RECORDS}/{{gpu}}_profiles",)),
    Step("outputs", "-m benchmarks.profiler_outputs", (f"{RECORDS}/{{gpu}}_profiles",)),
    Step("libraries", "-m benchmarks.libraries", (f"{RECORDS}/libraries.json",)),
    Step("libraries-cpu", "-m benchmarks.libraries", (f"{RECORDS}/libraries_cpu.json",), on_gpu=False),
    Step("semantics", "tests/gpu_semantics.py tests/data/{gpu}_semantics.npz", ("tests/data/{gpu}_semantics.npz",)),
    Step(
        "cuda", "benchmarks/cuda_semantics.py tests/data", ("tests/data/{gpu}_cuda.json", "tests/data/{gpu}_cuda.npz")
    ),
    Step("training", "-m benchmarks.training --record", (f"{RECORDS}/cpu.json",), on_gpu=False),
    Step("proof", "source/fusion_proof.py", ("docs/fusion_proof.md",), on_gpu=False),
    Step("notebooks", "source/build.py --force", on_gpu=False),
    Step("claims", "source/claims.py", ("docs/claims.md",), on_gpu=False),
    Step("film", "source/record_film.py", on_gpu=False),
    Step("readme", "source/readme.py", ("README.md",), on_gpu=False),
)


def lacking() -> list[str]:
    """Return what the steps need and this machine lacks."""
    tools = {"ncu": "Nsight Compute (ncu)", "nvcc": "CUDA's nvcc", "compute-sanitizer": "CUDA's compute-sanitizer"}
    lacks = [] if torch.cuda.is_available() else ["an NVIDIA GPU that PyTorch can use"]
    return lacks + [words for tool, words in tools.items() if shutil.which(tool) is None]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make results", description="Measure every recorded figure again.")
    parser.add_argument("--from", dest="first", choices=[step.name for step in STEPS], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="list what would run")
    options = parser.parse_args(arguments)
    names = [step.name for step in STEPS]
    steps = STEPS[names.index(options.first) if options.first else 0 :]
    if options.list:
        print("\n".join(f"{step.name:15} python {step.command}" for step in steps))
        return 0
    if lacks := lacking():
        print(f"results: this machine lacks {', '.join(lacks)}: run it on one that has all", file=sys.stderr)
        return 2
    for step in steps:
        began, command = time.monotonic(), step.command.format(gpu=results_file().stem)
        print(f"{step.name}: python {command}", flush=True)
        hidden = {} if step.on_gpu else {"CUDA_VISIBLE_DEVICES": ""}
        paths = {"PYTHONPATH": str(ROOT)}
        if subprocess.run(
            [sys.executable, *command.split()], cwd=ROOT, env={**os.environ, **hidden, **paths}
        ).returncode:
            print(f"results: {step.name} failed; fix it, then: make results FROM={step.name}", file=sys.stderr)
            return 1
        print(f"{step.name}: {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
