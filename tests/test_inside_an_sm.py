"""The experiments inside an SM compute what they claim, and read their counters from Nsight Compute's table."""

import pytest
import torch

from benchmarks import hardware_counters
from benchmarks.experiments import lesson_07
from benchmarks.experiments.lesson_07 import (
    FILLING,
    WORDS,
    banks,
    banks_kernel,
    grids,
    multiply_add,
    multiply_add_kernel,
)
from helpers.instruments import compile_for

NUMBERS = torch.empty(16, device="meta")


@pytest.mark.parametrize("pitch", [1, 32, 33])
def test_banks_reads_words_a_pitch_apart(pitch):
    x, i = torch.randn(WORDS), torch.arange(WORDS)
    step = torch.arange(3)[:, None]
    expected = x[(i % 32 * pitch + i // 32 + step) % WORDS].sum(0)
    torch.testing.assert_close(banks(x, 2, pitch, rounds=3), expected.expand(2, -1))


def test_multiply_add_does_its_rounds():
    x = torch.randn(256)
    factor = 0.999**5
    torch.testing.assert_close(multiply_add(x, 1, 5, BLOCK=256, num_warps=4), x * factor + (1 - factor))


def test_the_kernels_are_what_the_experiments_need():
    compiled = compile_for(banks_kernel, NUMBERS, NUMBERS, 100, PITCH=32, WORDS=WORDS, device="H200", num_warps=4)
    assert compiled.instructions["LDS.32"] == WORDS // 128  # one word a lane, from shared memory
    filling = compile_for(multiply_add_kernel, NUMBERS, NUMBERS, 100, device="H200", **FILLING)
    assert filling.occupancy().blocks == 2
    assert filling.occupancy().fraction == 1
    assert grids(132) == (132, 264, 265, 330, 528, 529)


def test_counters_are_read_by_their_metrics():
    lines = ['"ID","Kernel Name",' + ",".join(f'"{metric}"' for metric in lesson_07.METRICS)]
    lines.append(",".join('""' for _ in range(2 + len(lesson_07.METRICS))))
    counts = range(1000, 1000 + len(lesson_07.METRICS))
    for number, name in enumerate(("spin_kernel", "chain_gradient_kernel")):
        lines.append(f'"{number}","{name}",' + ",".join(f'"{count:,}"' for count in counts))
    ((row,),) = hardware_counters.parse("\n".join(lines), lesson_07.METRICS)
    assert row == {"name": "chain_gradient_kernel"} | dict(zip(lesson_07.METRICS.values(), counts, strict=True))
