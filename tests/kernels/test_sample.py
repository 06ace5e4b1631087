"""What is sample's own: its distribution, what its filters keep, rows without one, its bytes, its errors.

An interpreter takes milliseconds per draw. So the kernel's draws are held against the oracle's one by one, and the
oracle's distribution against the definition in many thousand draws; on a GPU the kernel's own as well.
"""

import pytest
import torch

from helpers.instruments import compile_for, measure
from kernels import sample
from kernels.interpreter import runtime
from kernels.rowwise.sample import OP, sample_op, sample_oracle

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
DRAWS = 16384


def chi_squared(counts, expected=None):
    """Return the probability of counts as far from `expected`, or from equal ones, as these: Pearson's test."""
    expected = torch.full_like(counts, counts.mean().item()) if expected is None else expected
    statistic = ((counts - expected).square() / expected).sum()
    return torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2, dtype=torch.float64), statistic / 2).item()


def drawn(by, logits, *options, draws=DRAWS, seed=0):
    """Return how often `by` draws each token of one row in as many rows, each with random numbers of its own."""
    tokens = by(logits.expand(draws, -1), torch.tensor(seed, device=logits.device), *options)
    return torch.bincount(tokens.cpu(), minlength=logits.shape[-1]).double()


def kept(logits, temperature, top_k, top_p):
    """Return the probabilities that are right, by the definition, in float64: an oracle that sorts nothing."""
    x = logits.double().cpu()
    p = torch.softmax(x / temperature, dim=-1)
    above = x[None, :] > x[:, None]  # above[i, j]: j is larger than i
    stays = (above.sum(1) < (top_k or len(x))) & (((above * p).sum(1) < top_p) | (top_p == 1)) | (above.sum(1) == 0)
    return torch.where(stays, p, 0.0) / p[stays].sum()


SETTINGS = [
    (1.0, 0, 1.0),
    (0.5, 0, 1.0),
    (2.0, 5, 1.0),
    (1.0, 0, 0.7),
    (1.0, 6, 0.9),
    (1.0, 1, 1.0),
    (1.0, 0, 0.0),
    (0.01, 0, 1.0),
]


LOGITS = (1.5, -2.0, 0.5, 0.5, 3.0, -torch.inf, 2.25, 2.0, 1.0, 0.0, 2.0)


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("by", [sample_oracle, pytest.param(sample, marks=gpu_only)])
def test_the_distribution_is_right(device, options, by):
    """Chi-squared over 16384 draws, at a level of 1e-4, with a fixed seed."""
    logits = torch.tensor(LOGITS, device=device)
    counts, expected = drawn(by, logits, *options), DRAWS * kept(logits, *options)
    assert counts[expected == 0].sum() == 0
    often = expected >= 5
    if often.sum() > 1:
        seen, right = counts[often], expected[often]
        assert chi_squared(seen, right * seen.sum() / right.sum()) > 1e-4
        assert abs(seen.sum() - right.sum()) < 30
    else:
        assert counts.argmax() == expected.argmax()


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_draw_is_the_oracles(device, options, dtype):
    rows, seed = torch.tensor(LOGITS, dtype=dtype, device=device).expand(48, -1), torch.tensor(0, device=device)
    assert torch.equal(sample(rows, seed, *options), sample_oracle(rows, seed, *options))


@pytest.mark.parametrize("by", [sample_oracle, pytest.param(sample, marks=gpu_only)])
def test_the_distribution_over_a_wide_row(device, by):
    """In 20000 columns the winner is the least of as many random numbers: one that rounds the small ones is wrong."""
    logits = torch.zeros(20000, device=device)
    logits[::2] = 1.0
    tokens = torch.cat([by(logits.expand(128, -1), torch.tensor(seed, device=device)) for seed in range(4)]).cpu()
    even = (tokens % 2 == 0).double().mean().item()
    assert abs(even - torch.e / (torch.e + 1)) < 4 * (0.2 / len(tokens)) ** 0.5
    assert chi_squared(torch.histc(tokens.float(), 10, 0, 20000).double()) > 1e-4


@pytest.mark.parametrize("by", [sample_oracle, pytest.param(sample, marks=gpu_only)])
def test_rows_and_rounds_draw_independently(device, by):
    logits = torch.zeros(64, device=device)
    tokens = by(logits.expand(DRAWS, -1), torch.tensor(1, device=device), 1.0, 32).cpu()
    pairs = torch.bincount((tokens[0::2] // 16) * 4 + tokens[1::2] // 16, minlength=16).double()
    assert chi_squared(pairs) > 1e-4


@pytest.mark.parametrize("options", [(0.8, 50, 0.9), (1.0, 3, 1.0), (1.3, 0, 0.2), (0.0, 0, 1.0)], ids=str)
@pytest.mark.parametrize("cols", [1, 3, 4097, 9001])
def test_the_draws_are_the_oracles(device, cols, options, poisoned):
    x, seed = torch.randn(3, cols, device=device), torch.tensor(5, device=device)
    assert torch.equal(sample(x, seed, *options), sample_oracle(x, seed, *options))


def test_far_below_zero_and_far_above(device):
    """A logit's distance to the largest is all that matters: large ones lose no digits."""
    x, seed = torch.randn(16, 130, device=device).bfloat16().float(), torch.tensor(5, device=device)
    for shift in (-(2.0**15), 2.0**15):
        assert torch.equal(sample(x + shift, seed, 1.0, 20), sample_oracle(x + shift, seed, 1.0, 20))


def test_the_edges(device):
    inf, nan = torch.inf, torch.nan
    rows = torch.tensor([[-inf, 3.0, -inf], [-inf] * 3, [0, nan, 0], [0, inf, 0], [0, -inf, nan], [-3e4, -inf, -inf]])
    for options in ((1.0, 0, 1.0), (1.0, 2, 0.5), (0.0, 0, 1.0)):
        tokens = sample(rows.to(device), torch.tensor(3, device=device), *options)
        assert tokens.tolist() == [1, -1, -1, -1, -1, 0]


def test_ties_with_the_last_kept_stay(device):
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0], device=device)
    assert (drawn(sample, logits, 1.0, 2, draws=64) > 0).tolist() == [True] * 4 + [False]
    assert (drawn(sample, torch.zeros(5, device=device), 1.0, 0, 0.0, draws=64) > 0).all()
    assert sample(torch.zeros(2, 9000, device=device), temperature=0.0).tolist() == [0, 0]


def test_chi_squared_is_pearsons():
    """The 5 % point for 10 degrees of freedom is 18.307 (any table); two counts far apart are refused."""
    ten = torch.full((11,), 100.0, dtype=torch.float64)
    ten[0], ten[1] = 100 + (18.307 * 50) ** 0.5, 100 - (18.307 * 50) ** 0.5
    assert abs(chi_squared(ten) - 0.05) < 1e-4
    assert chi_squared(torch.tensor([2300.0, 1796.0], dtype=torch.float64)) < 1e-10


def test_the_same_seed_draws_the_same(device):
    x = torch.randn(8, 500, device=device)
    torch.manual_seed(3)
    first, second = sample(x), sample(x)
    torch.manual_seed(3)
    assert torch.equal(sample(x), first)
    assert not torch.equal(first, second)


def test_the_bytes_of_the_docstring(device):
    x, seed = torch.randn(1, 16384, dtype=torch.bfloat16, device=device), torch.tensor(0, device=device)
    whole = measure(sample, x, seed)
    assert (whole.launches, whole.by_tensor["logits"].read, whole.bytes_written) == (1, x.nbytes, 8)
    greedy = measure(sample, x, seed, 0.0)
    assert greedy.by_tensor["logits"].read == x.nbytes
    filtered = measure(sample, x, seed, 1.0, 0, 0.95)
    assert filtered.launches == 1
    assert filtered.by_tensor["logits"].read in [rounds * x.nbytes + 2 * (rounds - 1) for rounds in range(2, 6)]


def test_nothing_spills_with_filters():
    arguments, options = OP.compile_arguments(64, 131072, dtype=torch.bfloat16)
    for gpu in ("A100", "H200"):
        assert compile_for(OP.kernel, *arguments, device=gpu, **options | {"FILTER": True}).spill_bytes == 0


def test_registration(device):
    x, seed = torch.randn(3, 19, device=device), torch.tensor(3, device=device)
    torch.library.opcheck(sample_op.forward_op, (x, seed, 1.0, 4, 0.9))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": [1.0]}, TypeError, "sample takes tensors, got logits of type list: use torch.tensor"),
        (
            {"logits": torch.ones(3, 20).long()},
            TypeError,
            "takes float32, float16, bfloat16, got logits of torch.int64",
        ),
        ({"logits": torch.tensor(1.0)}, ValueError, r"takes rows, \(..., cols\), got x of shape \(\)"),
        ({"logits": torch.ones(3, 0)}, ValueError, "takes rows of at least one column, got none"),
        ({"temperature": -1.0}, ValueError, r"takes temperature of 0 \(greedy\) or 0.01 and above, got -1.0"),
        ({"temperature": 0.001}, ValueError, r"takes temperature of 0 \(greedy\) or 0.01 and above, got 0.001"),
        ({"top_k": -1}, ValueError, r"takes top_k of 0 \(all\) or above, got -1"),
        ({"top_k": 2.0}, TypeError, "takes top_k as int, got 2.0"),
        ({"top_p": 1.5}, ValueError, "takes top_p of 0 to 1, got 1.5"),
        ({"top_p": float("nan")}, ValueError, "takes top_p as a finite number"),
        ({"seed": 3}, TypeError, "takes seed in a tensor of torch.int64, got int"),
    ],
)
def test_bad_input_is_one_clear_line(device, change, error, message):
    arguments = {"logits": torch.ones(3, 20), **change}
    given = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
    with pytest.raises(error, match=message) as raised:
        sample(**given)
    assert "\n" not in str(raised.value)
