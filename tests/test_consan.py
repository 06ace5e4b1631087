"""What benchmarks/consan.py plants, what it compiles, and how it reads ConSan's output."""

import pytest
import torch

from benchmarks import consan, consan_tile
from helpers.instruments.resources import compile_for
from kernels.interpreter import runtime

TRAPPED = """/at/hopper_attention.py:148: unknown: block: [4,0,0], thread: [0,0,0] Assertion `Buffer being accessed \
has outstanding writes. Operand: B` failed.
torch.AcceleratorError: CUDA error: device-side assert triggered
"""


@pytest.mark.parametrize(
    ("said", "clean", "verdict"),
    [
        (TRAPPED, False, (True, "hopper_attention.py:148: Buffer being accessed has outstanding writes. Operand: B")),
        (TRAPPED, True, (False, "hopper_attention.py:148: Buffer being accessed has outstanding writes. Operand: B")),
        ("done: grads_kernel\n", True, (True, "clean: grads_kernel")),
        ("done: tile_kernel\n", False, (False, "NOT SEEN: tile_kernel")),
        ("Traceback\nValueError: x\n", False, (False, "ValueError: x")),  # fails, but not by what is planted
        ("", True, (False, "no output")),
    ],
)
def test_output_is_judged_by_what_was_planted(said, clean, verdict):
    assert consan.judged(said, clean) == verdict


def test_the_wait_that_is_left_out_is_attentions(tmp_path):
    changed = consan.without_wait(tmp_path) / "kernels" / "tuned" / "hopper_attention.py"
    before = (consan.ROOT / "kernels" / "tuned" / "hopper_attention.py").read_text().splitlines()
    differ = [(a, b) for a, b in zip(before, changed.read_text().splitlines(), strict=True) if a != b]
    assert differ == [(consan.WAIT.rstrip(), "    pass")]


@pytest.mark.parametrize("waits", [True, False])
def test_the_tile_is_read_after_the_wait_or_before(waits):
    operands = consan_tile.operands(torch.empty(64, 64, dtype=torch.float16, device="meta"))
    found = compile_for(consan_tile.tile_kernel, *operands, device="H100", WAITS=waits, num_warps=4)
    assert found.instructions["UTMALDG"] == 1
    assert (found.ptx.index("mbarrier.try_wait") < found.ptx.index("ld.shared.v4")) == waits


def test_shapes_are_read_as_they_are_written():
    assert consan.shape_of("1x2x300x128xFalse") == (1, 2, 300, 128, False)


@pytest.mark.skipif(runtime.has_gpu(), reason="runs there")
def test_one_line_says_what_is_needed(capsys):
    assert consan.main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1
