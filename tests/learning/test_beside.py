"""A learner's kernel beside the catalogue's: only once it passes, at a size that was recorded."""

import pytest
import torch
import triton
import triton.language as tl
from lab_browser import ROOT

from helpers.instruments import recorded
from helpers.learning import Outcome, compare_with_ours, kernel_comparison
from helpers.learning.check_command import assembled
from helpers.learning.kernel_comparison import how_far_off
from helpers.learning.outcome import FAIL, PASS, latest
from helpers.learning.submission import read_submission
from kernels import CATALOGUE

SIZE = (1048576,)


@triton.jit
def slow_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(a_ptr + i, i < elements).to(tl.float32) + tl.load(b_ptr + i, i < elements).to(tl.float32)
    tl.store(y_ptr + i, s, i < elements)
    tl.store(y_ptr + i, 0.5 * s * (1 + tl.erf(s * 0.7071)), i < elements)


def slow(a, b):
    y = torch.empty_like(a)
    slow_kernel[(triton.cdiv(a.numel(), 64),)](a, b, y, a.numel(), BLOCK=64)
    return y


@pytest.fixture(autouse=True)
def passed(monkeypatch):
    monkeypatch.setitem(latest, "values", Outcome("values", PASS, ""))


def test_a_slower_kernel_is_shown_as_slower():
    head, names, yours, theirs, known, *others = str(compare_with_ours(slow, CATALOGUE["add_gelu"], SIZE)).splitlines()
    assert recorded().label in head
    assert names.split() == "time known from launches registers spilled occupancy".split()
    assert yours.split()[0] == "yours"
    assert float(yours.split()[1]) > 1.5 * float(theirs.split()[2])
    assert all("predicted" in line for line in (yours, theirs))
    median = recorded().times("add_gelu", SIZE, "bfloat16")["fused"].median
    assert f"{median * 1e6:,.1f} us  " in known + "  "
    assert [line.split("  ")[0].strip() or line.strip().split("  ")[0] for line in others] == [
        "PyTorch, unfused",
        "torch.compile",
    ]


def test_a_prediction_that_misses_the_record_of_our_own_kernel_is_told_as_that():
    assert how_far_off(1.3, 1.0) == how_far_off(0.7, 1.0) == how_far_off(None, 1.0) == ""
    assert how_far_off(370.5, 174.6) == "2.1x the recorded time"
    assert how_far_off(0.5, 1.0) == "0.5x the recorded time"


def test_the_line_of_a_prediction_says_by_how_much_ours_was_missed(monkeypatch):
    monkeypatch.setattr(kernel_comparison, "how_far_off", lambda *times: "2.1x the recorded time")
    _, _, yours, theirs, known, *_ = str(compare_with_ours(slow, CATALOGUE["add_gelu"], SIZE)).splitlines()
    assert "predicted, may be as far off" in yours
    assert "predicted, 2.1x the recorded time" in theirs
    assert "recorded  " in known + "  "
    assert "off" not in known


@pytest.mark.parametrize("outcome", [None, Outcome("values", FAIL, "")])
def test_nothing_is_compared_before_the_check_has_passed(monkeypatch, outcome):
    monkeypatch.delitem(latest, "values")
    if outcome:
        monkeypatch.setitem(latest, "values", outcome)
    assert "Once the check 'values' has passed" in str(compare_with_ours(slow, CATALOGUE["add_gelu"], SIZE))


def test_a_size_that_was_not_recorded_is_said():
    with pytest.raises(ValueError, match=r"no recorded add_gelu of \(1000,\) in bfloat16"):
        compare_with_ours(slow, CATALOGUE["add_gelu"], (1000,))


def test_the_cell_after_the_last_check_is_not_graded():
    """It compiles for seconds, and cannot change what the checks before it said."""
    submission = read_submission(ROOT / "exercises" / "03_fused_add_gelu.ipynb")
    sources = [cell.source for cell in assembled(submission).cells]
    assert any("compare_with_ours(" in cell["source"] for cell in submission.original)
    assert not any("compare_with_ours(" in source for source in sources)
