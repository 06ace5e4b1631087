"""Occupancy against NVIDIA's cuda_occupancy.h, which Triton ships, and against an H200's own answers."""

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import triton
from hypothesis import given
from hypothesis import strategies as st

from helpers.instruments.occupancy_calculator import LIMITS, limits, occupancy

DATA = Path(__file__).parents[1] / "data"
HEADERS = Path(triton.__file__).parent / "backends" / "nvidia" / "include"

# Warps an SM, shared memory an SM and a block in KB, KB reserved: CUDA C++ Programming Guide, technical specifications.
# All else that the oracle uses is in NVIDIA's header.
CHIPS = {
    (7, 0): (64, 96, 96, 0),
    (7, 5): (32, 64, 64, 0),
    (8, 0): (64, 164, 163, 1),
    (8, 6): (48, 100, 99, 1),
    (8, 9): (48, 100, 99, 1),
    (9, 0): (64, 228, 227, 1),
    (10, 0): (64, 228, 227, 1),
    (10, 3): (64, 228, 227, 1),
    (12, 0): (48, 100, 99, 1),
}

# L1 and shared memory of an SM together, in KB: CUDA C++ Programming Guide, the sections on each compute capability.
STORES = {(7, 0): 128, (7, 5): 96, (8, 0): 192, (8, 6): 128, (8, 9): 128, (12, 0): 128}
STORES |= dict.fromkeys(((9, 0), (10, 0), (10, 3)), 256)

# One case a line: major, minor, warps, shared memory of an SM, of a block, reserved, threads, registers, static,
# dynamic, carve-out, barriers. One answer a line: status, blocks, limiter bits, the blocks that each resource allows.
ORACLE = r"""
#include <stdio.h>
#include <cuda_occupancy.h>
int main(void) {
    long c[12];
    for (;;) {
        for (int i = 0; i < 12; i++)
            if (scanf("%ld", &c[i]) != 1) return 0;
        cudaOccDeviceProp chip = {0};
        chip.computeMajor = c[0]; chip.computeMinor = c[1]; chip.warpSize = 32; chip.numSms = 1;
        chip.maxThreadsPerBlock = 1024; chip.maxThreadsPerMultiprocessor = 32 * c[2];
        chip.regsPerBlock = chip.regsPerMultiprocessor = 65536;
        chip.sharedMemPerBlock = 48 * 1024; chip.sharedMemPerMultiprocessor = c[3];
        chip.sharedMemPerBlockOptin = c[4]; chip.reservedSharedMemPerBlock = c[5];
        cudaOccFuncAttributes kernel = {0};
        kernel.maxThreadsPerBlock = 1024; kernel.numRegs = c[7]; kernel.sharedSizeBytes = c[8];
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; kernel.maxDynamicSharedSizeBytes = c[9];
        kernel.numBlockBarriers = c[11];
        cudaOccDeviceState state = {0};
        state.carveoutConfig = c[10];
        cudaOccResult r = {0};
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &chip, &kernel, &state, c[6], c[9]);
        printf("%d %d %u %d %d %d %d %d\n", status, r.activeBlocksPerMultiprocessor, r.limitingFactors,
               r.blockLimitWarps, r.blockLimitRegs, r.blockLimitSharedMem, r.blockLimitBarriers, r.blockLimitBlocks);
    }
}
"""
RESOURCES = ("warps", "registers", "shared memory", "barriers", "blocks")  # in the order of the oracle's answer
BITS = {"warps": 1, "registers": 2, "shared memory": 4, "blocks": 8}


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory):
    """cuda_occupancy.h as a function from an array of cases to an array of answers."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler: install gcc to check against NVIDIA's header")
    folder = tmp_path_factory.mktemp("oracle")
    (folder / "oracle.c").write_text(ORACLE)
    command = [compiler, "-x", "c", "-O1", "-w", f"-I{HEADERS}", "-o", folder / "oracle", folder / "oracle.c"]
    subprocess.run(command, check=True)

    def answers(cases):
        text = "\n".join(" ".join(map(str, case)) for case in cases.tolist())
        done = subprocess.run([folder / "oracle"], input=text, capture_output=True, text=True, check=True)
        return np.array([line.split() for line in done.stdout.splitlines()], dtype=np.int64)

    return answers


def random_cases(count, seed):
    random = np.random.default_rng(seed)
    chips = list(CHIPS)
    which = random.integers(0, len(chips), count)
    warps, per_sm, per_block, reserved = np.array([CHIPS[chip] for chip in chips])[which].T
    # A tenth of the cases sit on or past each edge: 0 and over 1024 threads, 256 registers, too much shared memory.
    threads = np.where(random.random(count) < 0.1, random.choice([0, 1, 1024, 1025, 2048], count), 0)
    threads = np.where(threads, threads, random.integers(0, 1025, count))
    registers = np.where(random.random(count) < 0.1, random.choice([0, 255, 256, 300], count), 0)
    registers = np.where(registers, registers, random.integers(0, 256, count))
    static = np.where(random.random(count) < 0.5, 0, random.integers(0, 49153, count))
    top = np.where(random.random(count) < 0.5, 8192, per_block * 1024)
    dynamic = np.where(random.random(count) < 0.3, 0, random.integers(0, top + 2048, count))
    edge = per_block * 1024 - static + random.integers(-2, 3, count)
    dynamic = np.where(random.random(count) < 0.05, edge, dynamic)
    carveout = np.where(random.random(count) < 0.5, -1, random.integers(0, 101, count))
    barriers = np.where(random.random(count) < 0.5, 0, random.integers(0, 17, count))
    major_minor = np.array(chips)[which].T
    columns = (*major_minor, warps, per_sm * 1024, per_block * 1024, reserved * 1024)
    return np.stack([*columns, threads, registers, static, dynamic, carveout, barriers], axis=1)


def ours(case):
    major, minor, _, _, _, _, threads, registers, static, dynamic, carveout, barriers = case
    return occupancy(
        (major, minor),
        threads=threads,
        registers=registers,
        shared_memory=static,
        dynamic_shared_memory=dynamic,
        carveout=None if carveout == -1 else carveout,
        barriers=barriers,
    )


@pytest.mark.parametrize("number", [50_000, pytest.param(200_000, marks=pytest.mark.long)])
def test_agrees_with_nvidias_header_in_random_cases(nvidia, number):
    cases = random_cases(number, seed=20240)
    refused = launches_nothing = 0
    for case, answer in zip(cases.tolist(), nvidia(cases).tolist(), strict=True):
        status, blocks, bits, *allowed = answer
        _, _, _, _, per_block, _, threads, registers, static, dynamic, _, _ = case
        if not 1 <= threads <= 1024 or registers > 255 or static + dynamic > per_block:
            refused += 1
            # The header counts up to 256 registers; no instruction can name more than 255.
            assert status != 0 or blocks == 0 or registers == 256, case
            with pytest.raises(ValueError, match=r", not |more than a block can have"):
                ours(case)
            continue
        assert status == 0, case
        mine = ours(case)
        assert mine.blocks == blocks, case
        limiters = {name for name, count in zip(RESOURCES, allowed, strict=True) if count == blocks}
        assert set(mine.limiters) == limiters, case
        if "barriers" not in limiters:
            assert sum(BITS[name] for name in limiters) == bits, case
        launches_nothing += blocks == 0
    assert refused > number / 20
    assert launches_nothing > number / 200


def test_cases_reach_every_limiter_on_every_chip():
    seen = {chip: set() for chip in CHIPS}
    for case in random_cases(40_000, seed=7).tolist():
        try:
            seen[case[0], case[1]].update(ours(case).limiters)
        except ValueError:
            continue
    for chip, limiters in seen.items():
        assert limiters == set(RESOURCES) - ({"barriers"} if chip < (9, 0) else set()), chip


def test_equals_every_recorded_answer_of_an_h200():
    with gzip.open(DATA / "h200_occupancy.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
    assert len(rows) == 133_224
    wrong = [
        row
        for row in rows.tolist()
        if occupancy(
            (9, 0),
            registers=row[0],
            threads=row[1],
            dynamic_shared_memory=row[2],
            carveout=None if row[3] == -1 else row[3],
        ).blocks
        != row[4]
    ]
    assert wrong == []


def test_the_textbook_minimum_is_wrong_often():
    # The mistake that the algorithm exists to avoid: totals divided by demands.
    wrong = total = 0
    for case in random_cases(4000, seed=3).tolist():
        try:
            mine = ours(case)
        except ValueError:
            continue
        _, _, warps, per_sm, _, _, threads, registers, static, dynamic, _, _ = case
        textbook = min(warps * 32 // threads, 65536 // max(1, registers * threads), 32)
        textbook = min(textbook, per_sm // max(1, static + dynamic))
        wrong += textbook != mine.blocks
        total += 1
    assert wrong / total > 0.15


@given(
    chip=st.sampled_from(sorted(CHIPS)),
    threads=st.integers(1, 1024),
    registers=st.integers(0, 255),
    static=st.integers(0, 49152),
    dynamic=st.integers(0, 51200),
    carveout=st.none() | st.integers(0, 100),
    barriers=st.integers(0, 16),
)
def test_what_frees_a_block_frees_one_and_less_does_not(chip, threads, registers, static, dynamic, carveout, barriers):
    if static + dynamic > LIMITS[chip].shared_memory_per_block:
        return

    def with_less(less):
        from_dynamic = min(dynamic, less.get("shared memory", 0))
        return occupancy(
            chip,
            threads=threads - less.get("threads", 0),
            registers=registers - less.get("registers", 0),
            shared_memory=static - (less.get("shared memory", 0) - from_dynamic),
            dynamic_shared_memory=dynamic - from_dynamic,
            carveout=carveout,
            barriers=barriers - less.get("barriers", 0),
        )

    now = with_less({})
    less = now.one_more_block
    if not less:
        assert now.blocks == LIMITS[chip].blocks or carveout is not None
        return
    assert with_less(less).blocks > now.blocks
    for resource, count in less.items():
        assert count > 0
        assert with_less({**less, resource: count - 1}).blocks <= now.blocks, resource


def test_advice_names_the_change():
    assert (
        occupancy((9, 0), threads=256, registers=70).advice == "to fit one more block, use 6 fewer registers per thread"
    )
    # A fifth of 164 KB, in units of 128 B, less the reserved kilobyte, is 32512 B.
    too_much = occupancy((8, 0), threads=256, dynamic_shared_memory=32512 + 2048)
    assert too_much.blocks == 4
    assert too_much.advice == "to fit one more block, use 2 KB less shared memory"
    assert occupancy((9, 0), threads=32).advice == "an SM holds no more than 32 blocks"
    assert occupancy((9, 0), threads=288).advice == "to fit one more block, use 32 fewer threads per block"
    full = occupancy((9, 0), threads=256, registers=32)
    assert (full.fraction, full.advice, full.one_more_block) == (1, "an SM holds no more than 64 warps", {})
    assert "carve-out" in occupancy((9, 0), threads=32, carveout=0).advice
    assert occupancy((9, 0), threads=1024, registers=255).one_more_block == {"registers": 191}


def test_sweeps_hold_the_current_point_and_agree_with_single_answers():
    now = occupancy((8, 6), threads=192, registers=50, shared_memory=1000, dynamic_shared_memory=3 * 1024)
    arguments = {"threads": 192, "registers": 50, "shared_memory": 1000, "dynamic_shared_memory": 3 * 1024}
    for resource, name in (("threads", "threads"), ("registers", "registers")):
        sweep = now.sweep(resource)
        assert sweep.warps[sweep.values.index(arguments[name])] == now.warps
        for value, warps in zip(sweep.values, sweep.warps, strict=True):
            assert occupancy((8, 6), **{**arguments, name: value}).warps == warps
    sweep = now.sweep("shared memory")
    assert sweep.warps[sweep.values.index(4072)] == now.warps
    assert sweep.values[0] == 1000
    assert sweep.values[-1] > 98 * 1024
    for value, warps in zip(sweep.values, sweep.warps, strict=True):
        assert occupancy((8, 6), **{**arguments, "dynamic_shared_memory": value - 1000}).warps == warps


@given(grid=st.integers(0, 10**6), sms=st.integers(1, 200), threads=st.integers(1, 1024))
def test_waves_hold_the_grid(grid, sms, threads):
    now = occupancy((9, 0), threads=threads, registers=40)
    waves = now.waves(grid, sms)
    assert waves.blocks_per_wave == now.blocks * sms
    assert waves.full * waves.blocks_per_wave + waves.tail == grid
    assert 0 <= waves.tail < waves.blocks_per_wave
    assert waves.count == -(-grid // waves.blocks_per_wave)
    assert 0 < waves.efficiency <= 1


def test_waves_of_a_known_grid():
    waves = occupancy((9, 0), threads=256, registers=64).waves(1057, sms=132)
    assert (waves.blocks_per_wave, waves.count, waves.tail) == (528, 3, 1)
    assert repr(waves) == "3 waves of 528 blocks, 1 in the last: 67% of the slots used"


def test_repr():
    assert repr(occupancy((9, 0), threads=256, registers=70)) == (
        "3 blocks, 24 of 64 warps (38%), limited by registers: to fit one more block, use 6 fewer registers per thread"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threads": 0}, "threads per block: 1 to 1024, not 0"),
        ({"threads": 1025}, "threads per block: 1 to 1024, not 1025"),
        ({"threads": 32, "registers": 256}, "registers per thread: 0 to 255, not 256"),
        ({"threads": 32, "registers": -1}, "registers per thread: 0 to 255, not -1"),
        (
            {"threads": 32, "dynamic_shared_memory": 232449},
            "232449 B of shared memory is 1 B more than a block can have on compute capability 9.0: at most 232448 B",
        ),
        ({"threads": 32, "shared_memory": -1}, "bytes of static shared memory: at least 0, not -1"),
        ({"threads": 32, "shared_memory": "48 KB"}, "bytes of static shared memory: a whole number, not '48 KB'"),
        ({"threads": 32, "dynamic_shared_memory": None}, "bytes of dynamic shared memory: a whole number, not None"),
        ({"threads": 32, "tensor_memory": 128}, "columns of tensor memory: 0 to 0, not 128"),
        ({"threads": 32, "carveout": 101}, "percent of shared memory as carve-out: 0 to 100, not 101"),
        ({"threads": 32, "barriers": 17}, "barriers per block: 0 to 16, not 17"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        occupancy((9, 0), **arguments)


def test_other_errors_are_one_line():
    with pytest.raises(ValueError, match=r"compute capability \(6, 1\): known are 7\.0, 7\.5, 8\.0"):
        occupancy((6, 1), threads=32)
    with pytest.raises(ValueError, match="over threads, registers or shared memory, not 'warps'"):
        occupancy((9, 0), threads=32).sweep("warps")
    with pytest.raises(ValueError, match="no block fits on an SM, so none runs: to fit one more block, use 191 fewer"):
        occupancy((9, 0), threads=1024, registers=255).waves(10, 132)
    now = occupancy((9, 0), threads=32)
    with pytest.raises(ValueError, match="blocks of the grid: at least 0, not -1"):
        now.waves(-1, 132)
    for grid, sms in ((10.5, 132), (float("nan"), 132), (True, 132), (10, None)):
        with pytest.raises(ValueError, match=r"(blocks of the grid|SMs): a whole number, not"):
            now.waves(grid, sms)
    for resource, value, message in (
        ("warps", 3, "over threads, registers or shared memory, not 'warps'"),
        ("registers", 256, "registers: 0 to 255, not 256"),
        ("threads", 0, "threads: 1 to 1024, not 0"),
        ("shared memory", 300 * 1024, "shared memory: 0 to 232448, not 307200"),
    ):
        with pytest.raises(ValueError, match=message):
            now.warps_at(resource, value)
    with pytest.raises(ValueError, match=r"compute capability \[9, 0\]: known are"):
        occupancy([9, 0], threads=32)


def test_waves_never_round_to_what_is_not_so():
    now = occupancy((9, 0), threads=256, registers=32)
    assert repr(now.waves(1, 132)) == "1 wave of 1056 blocks, 1 in the last: under 1% of the slots used"
    assert repr(now.waves(10**9 * 1056 - 1, 132)).endswith("1055 in the last: over 99% of the slots used")
    assert repr(now.waves(1056, 132)) == "1 wave of 1056 blocks: 100% of the slots used"
    assert repr(now.waves(0, 132)) == "0 waves of 1056 blocks: the grid is empty"


def test_registers_that_were_not_given_are_named():
    now = occupancy((9, 0), threads=256)
    assert repr(now).endswith("; registers were not given: this holds up to 32 per thread")
    assert occupancy((9, 0), threads=256, registers=32).blocks == now.blocks
    assert occupancy((9, 0), threads=256, registers=33).blocks < now.blocks


def test_tensor_memory_limits_the_blocks_that_work():
    """512 columns per SM, handed out in powers of two from 32: PTX ISA, tcgen05.alloc."""
    now = occupancy((10, 0), threads=128, registers=40, tensor_memory=256)
    assert (now.blocks, now.limiters) == (2, ("tensor memory",))
    assert now.advice == "to fit one more block, use 128 fewer columns of tensor memory"
    assert occupancy((10, 0), threads=128, registers=40, tensor_memory=128).blocks == 4
    many = occupancy((10, 0), threads=64, registers=32, tensor_memory=32)
    assert (many.blocks, many.one_more_block) == (16, {"tensor memory": 32})
    with pytest.raises(ValueError, match="columns of tensor memory: 0 to 512, not 513"):
        occupancy((10, 0), threads=128, tensor_memory=513)


@pytest.mark.parametrize("compute_capability", CHIPS)
def test_l1_and_shared_memory_are_one_store(compute_capability):
    of_sm = limits(compute_capability)
    assert of_sm.l1_and_shared_memory == STORES[compute_capability] * 1024
    assert of_sm.shared_memory < of_sm.l1_and_shared_memory
