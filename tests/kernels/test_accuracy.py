"""The law of accuracy refuses what is wrong: too few digits, a value never written, another shape or dtype."""

import pytest
import torch
from accuracy import assert_as_accurate, doubled


def softmaxes(dtype=torch.float32):
    """PyTorch's softmax in `dtype`, and what is exact."""
    x = torch.randn(7, 127).to(dtype)
    return torch.softmax(x, dim=-1), torch.softmax(*doubled([x]), dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_another_order_of_the_sum_is_taken(dtype):
    theirs, exact = softmaxes(dtype)
    ours = exact.flip(-1).to(dtype).flip(-1)
    assert_as_accurate(ours, theirs, exact)
    assert_as_accurate((ours, ours), (theirs, theirs), (exact, exact))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda y: y.half().float(),
        lambda y: y.bfloat16().float(),
        lambda y: y * (1 + 1e-5),
        lambda y: y.index_fill(1, torch.tensor([126]), torch.nan),
        lambda y: y.index_fill(1, torch.tensor([126]), torch.inf),
        lambda y: y.double(),
        lambda y: y[:, :126],
        lambda y: y[:0],
        lambda y: (y, y),
    ],
    ids=["fp16", "bf16", "off", "unwritten", "overflow", "dtype", "shape", "empty", "two results"],
)
def test_a_wrong_result_is_refused(spoil):
    theirs, exact = softmaxes()
    with pytest.raises((AssertionError, ValueError)):
        assert_as_accurate(spoil(theirs), theirs, exact)


def test_sixteen_bits_have_a_limit_too():
    theirs, exact = softmaxes(torch.float16)
    with pytest.raises(AssertionError, match="off by"):
        assert_as_accurate(theirs * 1.005, theirs, exact)


def test_what_is_not_finite_is_so_in_the_same_way():
    exact = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e5, 1.0], dtype=torch.float64)
    theirs = exact.half()  # 1e5 overflows
    assert_as_accurate(theirs, theirs, exact)
    for i, wrong in enumerate((1.0, -torch.inf, torch.nan, 65504.0)):
        with pytest.raises(AssertionError):
            assert_as_accurate(theirs.index_fill(0, torch.tensor([i]), wrong), theirs, exact)


def test_indices_are_equal_and_a_quantised_value_off_by_a_tie():
    q = torch.tensor([-3, 0, 127], dtype=torch.int8)
    assert_as_accurate(q - 1, q, q)
    for wrong, right in ((q - 2, q), (q.long() - 1, q.long())):
        with pytest.raises(AssertionError):
            assert_as_accurate(wrong, right, right)


def test_nothing_is_as_accurate_as_nothing():
    nothing = torch.empty(0, 5)
    assert_as_accurate(nothing, nothing, nothing.double())
