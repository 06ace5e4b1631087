"""What is attention_scores' own: masks, result dtypes, lengths, bytes, registration, errors and resources."""

import pytest
import torch
from accuracy import assert_as_accurate

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import attention_scores
from kernels.interpreter import runtime
from kernels.tiled.attention_scores import OP, attention_scores_op, attention_scores_reference

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
HALF = torch.bfloat16 if runtime.has_gpu() else torch.float16


def operands(batch, heads, kv_heads, queries, keys, dim, device, dtype=HALF):
    shapes = (batch, heads, queries, dim), (batch, kv_heads, keys, dim)
    return [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]


def check(q, k, causal=False, mask=None, scale=None, dtype=None):
    ours, theirs = (f(q, k, causal, mask, scale, dtype) for f in (attention_scores, attention_scores_reference))
    wide = mask.double() if mask is not None and mask.is_floating_point() else mask
    exact = attention_scores_reference(q.double(), k.double(), causal, wide, scale)
    assert_as_accurate(ours, theirs, exact)
    assert ours.is_contiguous()
    return ours


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape",
    [  # batch, heads, key heads, queries, keys, dim
        (1, 1, 1, 1, 1, 32),
        (2, 2, 1, 127, 130, 40),
        (1, 4, 2, 70, 33, 64),
        (1, 3, 3, 1, 200, 80),
        (1, 1, 1, 65, 40, 256),
        (1, 1, 1, 9, 17, 7),
    ],
    ids=str,
)
def test_shapes(device, shape, causal, poisoned):
    check(*operands(*shape, device), causal)


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_the_results_dtype(device, dtype, poisoned):
    q, k = operands(1, 2, 2, 40, 50, 64, device)
    assert check(q, k, True, dtype=dtype).dtype == (dtype or HALF)


MASKS = [(70, 90), (1, 90), (70, 1), (2, 1, 70, 90), (1, 3, 1, 90), (2, 3, 70, 90), (1,)]


# In `make test` each shape causal or not.
@pytest.mark.parametrize(
    ("shape", "causal"),
    [
        pytest.param(shape, causal, marks=[] if causal == place % 2 else [pytest.mark.long])
        for place, shape in enumerate(MASKS)
        for causal in (False, True)
    ],
)
def test_masks_that_broadcast(device, shape, causal, poisoned):
    q, k = operands(2, 3, 3, 70, 90, 16, device)
    check(q, k, causal, torch.rand(shape, device=device) > 0.3)
    check(q, k, causal, torch.randn(shape, device=device, dtype=HALF), 0.5)


def test_a_masks_own_strides(device):
    q, k = operands(1, 1, 1, 30, 40, 16, device, torch.float32)
    check(q, k, False, torch.randn(40, 30, device=device).T)
    check(q, k, False, (torch.rand(30, 80, device=device) > 0.3)[:, ::2])


def test_queries_that_see_no_key_are_zero(device, poisoned):
    q, k = operands(1, 1, 1, 50, 20, 16, device)
    assert not check(q, k, True)[:, :, :30].any()
    mask = torch.rand(50, 20, device=device) > 0.5
    mask[7] = False
    assert not check(q, k, False, mask)[:, :, 7].any()
    lowest = torch.zeros(50, 20, device=device, dtype=HALF)
    lowest[7] = -torch.inf
    assert not check(q, k, False, lowest)[:, :, 7].any()


def test_a_row_that_sees_one_key_is_sure_of_it(device):
    """Wherever the key stands: all but one of the peaks and totals that a row is made of stay -inf and 0."""
    q, k = operands(1, 1, 1, 70, 70, 16, device)
    alone = torch.eye(70, device=device, dtype=torch.bool)
    assert torch.equal(attention_scores(q, k, False, alone)[0, 0], alone.to(HALF))


def test_nan_and_infinity_stay_in_their_rows(device):
    q, k = operands(1, 1, 1, 70, 90, 32, device)
    clean = attention_scores(q, k, True)
    q[0, 0, 3, 5] = torch.nan
    q[0, 0, 66, 0] = torch.inf
    p = attention_scores(q, k, True)
    assert p[0, 0, [3, 66]].isnan().all()
    keep = [row for row in range(70) if row not in (3, 66)]
    assert torch.equal(p[0, 0, keep], clean[0, 0, keep])


def test_a_wrong_answer_is_not_as_accurate(device):
    """The rule can fail: a key too many for each query, and sums that leave out a part."""
    q, k = operands(1, 1, 1, 40, 40, 32, device, torch.float32)
    exact, theirs = (attention_scores_reference(x, y, True) for x, y in ((q.double(), k.double()), (q, k)))
    with pytest.raises(AssertionError):
        assert_as_accurate(attention_scores(q[:, :, 1:], k, True), theirs[:, :, :-1], exact[:, :, :-1])
    with pytest.raises(AssertionError):
        assert_as_accurate(attention_scores(q, k, True) * 1.01, theirs, exact)


@pytest.mark.parametrize("causal", [False, True])
def test_one_launch_and_no_other_pass_over_the_matrix(device, causal):
    q, k = operands(1, 2, 2, 128, 128, 32, device)
    traffic = measure(attention_scores, q, k, causal)
    assert (traffic.launches, traffic.hazards) == (1, ())
    assert (traffic.unique_read, traffic.bytes_written) == (2 * q.nbytes, 2 * 128 * 128 * 2)
    matrix = 2 * 128 * 128 * 2
    assert traffic.bytes_read < 4 * matrix  # q once, k twice a tile of queries: nothing of the matrix's size is read
    assert traffic.by_tensor["result"].read == 0
    eager = measure(attention_scores_reference, q, k)
    assert (eager.launches, eager.bytes_total) == (3, 5 * matrix + q.nbytes + k.nbytes)


def test_registration(device):
    q, k = operands(1, 2, 1, 5, 9, 16, device, torch.float32)
    torch.library.opcheck(
        attention_scores_op.forward_op, (q, k, True, torch.rand(5, 9, device=device) > 0.5, None, None)
    )
    with pytest.raises(RuntimeError, match="has no backward pass"):
        attention_scores(q.requires_grad_(), k).sum().backward()


@pytest.mark.parametrize("dim", [64, 128])
def test_resources(dim):
    arguments, options = OP.compile_arguments(4, 16, 2048, dim, True, dtype=torch.bfloat16)
    found = compile_for(OP.kernel, *arguments, device="H100", **options)
    counts = found.instructions
    assert (found.spill_bytes, counts["HGMMA"] > 0, counts["UTMALDG"] > 0) == (0, True, True)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda q, k: (q, [1.0]), TypeError, "takes tensors, got k of type list"),
        (lambda q, k: (q, k[0]), ValueError, r"takes \(batch, heads, tokens, dim\), got q of"),
        (
            lambda q, k: (q, k, False, torch.ones(8, 8).int()),
            TypeError,
            "takes mask as a bool or floating-point tensor",
        ),
        (lambda q, k: (q, k, False, torch.ones(7, 8) > 0), ValueError, r"broadcasts to \(2, 4, 8, 8\), got \(7, 8\)"),
        (lambda q, k: (q, k, False, None, 0.0), ValueError, "takes a positive scale, got 0.0"),
        (
            lambda q, k: (q, k, False, None, None, torch.float64),
            ValueError,
            "returns q's dtype or float32, got torch.float64",
        ),
        (lambda q, k: (q, k, False, torch.ones(8, 8, device="meta") > 0), ValueError, "mask on meta: move one"),
    ],
)
def test_bad_input_is_one_clear_line(device, change, error, message):
    with pytest.raises(error, match=message) as raised:
        attention_scores(*change(*operands(2, 4, 2, 8, 8, 16, device, torch.float16)))
    assert str(raised.value).startswith("attention_scores")
    assert "\n" not in str(raised.value)


@gpu_only
@pytest.mark.parametrize("causal", [False, True])
def test_large(causal):
    q, k = operands(2, 8, 2, 2000, 3001, 64, "cuda")
    check(q, k, causal, dtype=torch.float32)


@gpu_only
def test_results_past_two_to_the_31():
    q, k = operands(1, 9, 9, 16384, 16384, 16, "cuda")
    p = attention_scores(q, k)
    exact = attention_scores_reference(q[:, 8:, -64:].double(), k[:, 8:].double())
    assert_as_accurate(p[:, 8:, -64:], attention_scores_reference(q[:, 8:, -64:], k[:, 8:]), exact)


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
@pytest.mark.parametrize("scale", [None, 3.0])
def test_the_least_number_in_a_mask_hides_as_in_pytorch(device, dtype, scale):
    """Models of Hugging Face hide keys so: a row that hides all of them is their mean, one of -inf alone is 0."""
    q, k = operands(1, 1, 1, 50, 70, 16, device, dtype)
    mask = torch.zeros(50, 70, device=device)
    mask[:, 40:] = torch.finfo(torch.float32).min
    mask[7] = torch.finfo(torch.float32).min
    mask[8] = -torch.inf
    p = attention_scores(q, k, False, mask, scale, torch.float32)[0, 0]
    torch.testing.assert_close(p[7], torch.full((70,), 1 / 70, device=device))
    assert not p[8].any()
    assert not p[:7, 40:].any()
    torch.testing.assert_close(p[:7].sum(dim=1), torch.ones(7, device=device))
    mask[9, 3] = torch.nan
    assert attention_scores(q, k, False, mask)[0, 0, 9].isnan().all()
