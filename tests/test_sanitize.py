"""How benchmarks/sanitize.py reads compute-sanitizer's output, and that its planted mistakes are mistakes."""

import inspect
import shutil
from pathlib import Path

import pytest
import torch
from triton.runtime.errors import InterpreterError

from benchmarks import sanitize
from benchmarks.triton_launches import triton_launches
from kernels import CATALOGUE
from kernels.interpreter import runtime

SAID = """========= COMPUTE-SANITIZER
done: softmax 3x1 bfloat16 + 0: softmax_kernel
========= Invalid __global__ read of size 2 bytes
=========     at softmax_kernel+0x60 in /somewhere/softmax.py:58
=========     by thread (5,0,0) in block (1,0,0)
=========     Access to 0x7fb770800100 is out of bounds
=========         Host Frame: main at launch+0x1 in launcher.c:7
=========
========= ERROR SUMMARY: 191 errors
"""
RACE = """========= Error: Race reported between Write access at sum_kernel+0x50 in sums.py:12
=========     and Read access at sum_kernel+0x70 in sums.py:14 [124 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_errors_are_told_by_kernel_and_line():
    what = "Invalid __global__ read of size 2 bytes", "softmax_kernel softmax.py:58"
    assert sanitize.errors_of(SAID) == ({what: 1}, 191)
    assert sanitize.errors_of(RACE) == ({("Error: Race reported between Write access", "sum_kernel sums.py:12"): 1}, 1)


@pytest.mark.parametrize("name", ["flash_attention_hopper_kernel", "grads_kernel"])
def test_what_triton_adds_between_groups_of_warps_is_told_from_a_race(name):
    """As racecheck reported it on an H100: the hand-off is at the line of `def`, all else at the line that does it."""
    kernel = sanitize.all_kernels()[name]
    file = Path(inspect.getfile(kernel.fn))
    line = 1 + file.read_text().splitlines().index(f"def {name}(")
    race = "Error: Race reported between Read access"
    assert sanitize.is_of_warp_groups(race, f"{name} {file.name}:{line}")
    assert not sanitize.is_of_warp_groups(race, f"{name} {file.name}:{line + 20}")
    assert not sanitize.is_of_warp_groups(race, f"linear_act_kernel {file.name}:{line}")
    assert not sanitize.is_of_warp_groups("Invalid __global__ read of size 2 bytes", f"{name} {file.name}:{line}")


def test_what_was_stopped_is_not_taken_for_clean():
    assert sanitize.errors_of("========= ERROR SUMMARY: 0 errors\n") == ({}, 0)
    assert sanitize.errors_of("========= COMPUTE-SANITIZER\n") == ({}, None)


@pytest.mark.skipif(runtime.has_gpu(), reason="a GPU does not refuse them")
@pytest.mark.parametrize("mistake", [sanitize.past_the_end, sanitize.misaligned], ids=lambda each: each.__name__)
def test_the_interpreter_refuses_what_is_planted(mistake):
    with pytest.raises(InterpreterError):
        mistake("cpu")


@pytest.mark.parametrize("offset", [0, 1])
def test_a_tensor_ends_with_its_allocation(offset):
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)[:, :, 1:]
    y = sanitize.placed(x, offset)
    assert torch.equal(x, y)
    assert (y.stride(), y.storage_offset()) == (x.stride(), offset)
    held = 1 + sum((size - 1) * step for size, step in zip(y.shape, y.stride(), strict=True))
    assert y.untyped_storage().nbytes() == (offset + held) * y.itemsize


def test_every_operation_is_looked_at_where_rows_begin_anywhere():
    cases = sanitize.cases()
    assert {case.kernel for case in cases} == {*CATALOGUE, "transformer_block"}
    assert {case.kernel for case in cases if case.offset} == {*CATALOGUE}
    assert len(set(map(str, cases))) == len(cases)


def test_the_kernels_of_a_case_are_named():
    device = "cuda" if runtime.has_gpu() else "cpu"
    case = sanitize.Case("rms_norm", (5, 127), torch.float32, 1)
    with triton_launches() as seen:
        sanitize.passes(case)(*sanitize.inputs_of(case, device))
    assert {"rms_norm_kernel"} < {each.kernel.fn.__name__ for each in seen} <= {*sanitize.all_kernels()}


def test_one_line_says_what_is_needed(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    assert sanitize.main([]) == 2
    told = capsys.readouterr().err
    assert told.startswith("sanitize: needs an NVIDIA GPU and CUDA's compute-sanitizer")
    assert told.count("\n") == 1
