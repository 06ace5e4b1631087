"""What is softmax_topk's own: every k, ties, every width, its bytes, its errors, and on a GPU its largest sizes."""

import pytest
import torch
from accuracy import assert_as_accurate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.instruments.traffic import measure
from kernels import softmax_topk, variant
from kernels.interpreter import runtime
from kernels.rowwise.softmax_topk import softmax_topk_op, softmax_topk_oracle, softmax_topk_reference

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
BOTH = pytest.mark.parametrize("tier", ["plain", "tuned"], indirect=True)


def assert_right(x, k):
    assert_as_accurate(softmax_topk(x, k), softmax_topk_oracle(x, k), softmax_topk_oracle(x.double(), k))


@BOTH
@pytest.mark.parametrize("k", [1, 2, 3, 8, 15, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_k(tier, device, k, dtype, poisoned):
    assert_right(torch.randn(3, 300, device=device, dtype=dtype), k)


@BOTH
@pytest.mark.parametrize("cols", [1, 2, 7, 16, 1024, 4096, 4097, 65536, 65537, 262144])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_of_every_width(tier, device, cols, dtype, poisoned):
    assert_right(torch.randn(1, cols, device=device, dtype=dtype), min(cols, 8))


@BOTH
@pytest.mark.parametrize("cols", [203, 40001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ties_go_to_the_lower_column(tier, device, cols, dtype):
    assert_right(torch.randint(4, (3, cols), device=device).to(dtype), 16)
    assert_right(torch.zeros(1, cols, device=device, dtype=dtype), 16)
    signed = torch.zeros(1, cols, device=device, dtype=dtype)
    signed[0, ::2] = -0.0  # equals 0
    assert_right(signed, 5)


@BOTH
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_few_values_in_any_order(tier, device, data):
    values = st.sampled_from([-torch.inf, -3.0, -0.0, 0.0, 1e-5, 1.0, 3.0, 65000.0])
    row = data.draw(st.lists(values, min_size=1, max_size=40))
    assert_right(torch.tensor([row], device=device).half(), data.draw(st.integers(1, min(16, len(row)))))


@BOTH
@pytest.mark.parametrize("cols", [65, 20001])
def test_masked_rows(tier, device, cols):
    x = torch.randn(5, cols, device=device)
    x[0] = -torch.inf
    x[1, 3:] = -torch.inf  # three columns are left, five more are wanted: the lowest
    x[2, 60], x[2, 3] = torch.nan, torch.inf
    x[3, 7] = torch.inf
    assert_right(x, 8)
    assert softmax_topk(x)[2][:3].tolist()[0] == list(range(8))


@BOTH
def test_the_values_are_the_probabilities_to_the_last_bit(tier, device):
    for cols in (1025, 20000):
        y, values, indices = softmax_topk(torch.randn(4, cols, device=device, dtype=torch.float16))
        assert torch.equal(y.gather(-1, indices), values)


def test_the_bytes_of_the_docstring(device):
    x = torch.randn(2, 4096, dtype=torch.bfloat16, device=device)
    unfused = measure(softmax_topk_reference, x)
    for name, again in (("plain", 8), ("tuned", 8 * 32 + 8)):  # elements read again: the winners; the groups chosen
        with variant(name):
            fused = measure(softmax_topk, x)
        assert (unfused.launches, fused.launches) == (2, 1)
        assert fused.by_tensor["x"].read == x.nbytes + 2 * again * 2
        assert fused.bytes_written == x.nbytes + 2 * 8 * (2 + 8)


def test_registration(device):
    torch.library.opcheck(softmax_topk_op.forward_op, (torch.randn(3, 19, device=device), 4))


def test_a_gradient_is_refused(device):
    values = softmax_topk(torch.randn(3, 19, device=device, requires_grad=True))[1]
    with pytest.raises(RuntimeError, match=r"^softmax_topk has no backward pass: use kernels.softmax_topk.reference"):
        values.sum().backward()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": [1.0]}, TypeError, "softmax_topk takes tensors, got x of type list: use torch.tensor"),
        (
            {"x": torch.ones(3, 20).long()},
            TypeError,
            r"takes float32, float16, bfloat16, got x of torch.int64: convert",
        ),
        ({"x": torch.ones(3, 20).double()}, TypeError, r"takes float32, float16, bfloat16, got x of torch.float64"),
        ({"x": torch.tensor(1.0)}, ValueError, r"takes rows, \(..., cols\), got x of shape \(\)"),
        ({"k": 17}, ValueError, "k of 1 to 16 and at most the 20 columns of x, got 17: ask for fewer"),
        ({"k": 0}, ValueError, "k of 1 to 16 and at most the 20 columns of x, got 0"),
        ({"x": torch.ones(3, 5)}, ValueError, "k of 1 to 16 and at most the 5 columns of x, got 8: ask for fewer"),
        ({"k": 2.0}, TypeError, "takes an integer k, got 2.0 of type float"),
    ],
)
def test_bad_input_is_one_clear_line(device, change, error, message):
    arguments = {"x": torch.ones(3, 20), "k": 8, **change}
    x = arguments["x"]
    with pytest.raises(error, match=message) as raised:
        softmax_topk(x.to(device) if isinstance(x, torch.Tensor) else x, arguments["k"])
    assert "\n" not in str(raised.value)


@gpu_only
def test_offsets_past_two_to_the_31():
    x = torch.randn(175000, 12288, dtype=torch.bfloat16, device="cuda")
    y, values, indices = softmax_topk(x)
    theirs, exact = softmax_topk_oracle(x[-3:]), softmax_topk_oracle(x[-3:].double())
    assert_as_accurate((y[-3:], values[-3:], indices[-3:]), theirs, exact)
