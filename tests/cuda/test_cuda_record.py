"""The executor against an H200: results bit for bit, sectors and wavefronts as counted, faults as found there."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16
from programs import FAULTS, PROGRAMS, TRAFFIC, N, fault_source

from helpers.instruments import cuda_kernel, measure

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from cuda_semantics import digest, raw  # noqa: E402

DATA = ROOT / "tests/data"
RECORD = json.loads((DATA / "h200_cuda.json").read_text())
RESULTS = np.load(DATA / "h200_cuda.npz")
UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}
HALVES = {"f16": np.dtype(np.float16), "bf16": np.dtype(bfloat16)}
TORCH = {
    torch.float16: np.dtype(np.float16), torch.bfloat16: np.dtype(bfloat16), torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}  # fmt: skip


def run(program):
    arguments = [each.clone() if isinstance(each, torch.Tensor) else each for each in program.arguments]
    cuda_kernel(program.source, program.name, device="H200")[program.grid, program.block, program.shared](*arguments)
    return [each for each in arguments if isinstance(each, torch.Tensor)]


def apart(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Units in the last place between floats: how many numbers of the type lie between, NaN at none from NaN."""
    kind = UNSIGNED[ours.dtype.itemsize]
    half = 1 << (8 * ours.dtype.itemsize - 1)
    ordered = []
    for values in (ours, theirs):
        bits = values.view(kind).astype(object)
        ordered.append(np.where(bits >= half, half - bits, bits))
    distance = np.abs(ordered[0] - ordered[1]).astype(np.float64)
    missing = np.isnan(ours), np.isnan(theirs)
    return np.where(missing[0] & missing[1], 0, np.where(missing[0] | missing[1], np.inf, distance))


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_the_gpus(name):
    program = PROGRAMS[name]
    assert RECORD["programs"][name] == {"digest": digest(program)}, "recorded for other source or inputs: record again"
    given = [each for each in program.arguments if isinstance(each, torch.Tensor)]
    for place, (before, after) in enumerate(zip(given, run(program), strict=True)):
        ours = raw(after)
        theirs = RESULTS[f"{name}/{place}"] if f"{name}/{place}" in RESULTS else raw(before)
        dtype = TORCH.get(after.dtype) or HALVES.get(program.floats)
        if dtype is None:
            np.testing.assert_array_equal(ours, theirs)
            continue
        ours, theirs = ours.view(dtype), theirs.view(dtype)
        distance = apart(ours, theirs)
        allowed = program.atol
        if isinstance(allowed, dict):
            allowed = np.repeat([allowed.get(each, 0.0) for each in range(ours.size // N)], N)
        with np.errstate(all="ignore"):
            near = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) <= allowed
        wrong = (distance > program.ulps) & ~near
        first = int(np.flatnonzero(wrong)[0]) if wrong.any() else 0
        assert not wrong.any(), (
            f"{wrong.sum()} of {wrong.size}; at {first}: {ours[first]!r}, on the GPU {theirs[first]!r}"
        )


# The assembler makes one wide load of shared memory from neighbouring loads of the PTX: fewer requests than metered.
MERGED = {"matmul", "softmax", "layer_norm"}


@pytest.mark.parametrize("program", TRAFFIC, ids=lambda program: program.name)
def test_sectors_and_wavefronts_are_what_nsight_counts(program):
    counted = RECORD["counters"][program.name]
    arguments = [each.clone() if isinstance(each, torch.Tensor) else each for each in program.arguments]
    kernel = cuda_kernel(program.source, program.name, device="H200")
    traffic = measure(kernel[program.grid, program.block, program.shared], *arguments)
    assert traffic.sectors_read == pytest.approx(counted["sectors_read"], rel=0.02)
    assert traffic.sectors_written == pytest.approx(counted["sectors_written"], rel=0.02)
    if program.name in MERGED:
        assert counted["shared_requests_read"] < traffic.shared_requests - counted["shared_requests_written"]
        return
    for ours, name in (
        (traffic.shared_requests, "requests"),
        (traffic.shared_wavefronts, "wavefronts"),
        (traffic.bank_conflicts, "conflicts"),
    ):
        assert ours == pytest.approx(counted[f"shared_{name}_read"] + counted[f"shared_{name}_written"], rel=0.02)


# What the tools of compute-sanitizer look for, as the meter calls it.
KINDS = {
    "memcheck": {"out-of-bounds read", "out-of-bounds store", "misaligned read"},
    "racecheck": {"race"},
    "synccheck": {"barrier not reached by all threads"},
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_those_that_compute_sanitizer_finds(name):
    kernel = cuda_kernel(fault_source(name), f"fault_{name}", device="H200")
    found = {hazard.kind for hazard in measure(kernel[3, 64], torch.zeros(64), torch.zeros(64)).hazards}
    for tool, kinds in KINDS.items():
        said = RECORD["sanitizer"][f"{name}/{tool}"]
        clean = any("ERROR SUMMARY: 0 errors" in line or "0 hazards displayed" in line for line in said)
        assert bool(found & kinds) == (not clean), f"{tool}: {said}"
