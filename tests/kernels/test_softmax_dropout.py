"""What is softmax_dropout's own: its mask and seed, rows of every width, its bytes, its errors."""

import pytest
import torch
from accuracy import assert_as_accurate, with_gradients

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import softmax_dropout
from kernels.interpreter import runtime
from kernels.philox import dropout_mask
from kernels.rowwise import softmax_dropout as plain
from kernels.rowwise.blocks import row_settings
from kernels.rowwise.softmax_dropout import softmax_dropout_op, softmax_dropout_oracle, softmax_dropout_reference
from kernels.tuned import wide_softmax_dropout
from kernels.tuned.segments import row_vectors

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
BOTH = pytest.mark.parametrize("tier", ["plain", "tuned"], indirect=True)


@BOTH
@pytest.mark.parametrize("cols", [1, 3, 130, 1027, 16384, 16385, pytest.param(262144, marks=pytest.mark.long)])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_rows_of_every_width_and_their_gradients(tier, device, cols, p, poisoned):
    (x, weight), seed = torch.randn(2, 2, cols, device=device), torch.tensor(11, device=device)
    ours = with_gradients(lambda x: softmax_dropout(x, seed, p), [x], weight)
    theirs, exact = (
        with_gradients(lambda x: softmax_dropout_oracle(x, seed, p), [each], weight) for each in (x, x.double())
    )
    if cols == 1:  # the gradient is 0: a fused multiply-add leaves of the difference one rounding of what is subtracted
        ours, theirs, exact, grad = ours[0], theirs[0], exact[0], ours[1]
        assert (grad.abs() <= torch.finfo(grad.dtype).eps * weight.abs() / (1 - p)).all()
    assert_as_accurate(ours, theirs, exact)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_or_all_dropped(device, p):
    x = torch.randn(3, 65, device=device, requires_grad=True)
    y = softmax_dropout(x, p=p)
    theirs, exact = (torch.softmax(each, -1) * (1 - p) for each in (x, x.double()))
    assert_as_accurate(y, theirs, exact)
    y.sum().backward()
    # All probabilities of a row sum to 1 whatever x is: 0 but for roundings, of 65 values of at most 1.
    assert x.grad.abs().amax() < 65 * torch.finfo(x.dtype).eps


@BOTH
@pytest.mark.parametrize("cols", [65, 20001])
def test_masked_rows_are_nan_where_dropped_too(tier, device, cols):
    x = torch.randn(6, cols, device=device)
    x[0] = -torch.inf
    x[1, 3:] = -torch.inf
    x[2, 1], x[3, 1] = torch.nan, torch.inf
    x[4, : cols // 2], x[4, 9] = -torch.inf, torch.nan
    x[5, :-1], x[5, 9] = -torch.inf, torch.nan  # finite in the rim alone
    seed = torch.tensor(5, device=device)
    theirs, exact = (softmax_dropout_oracle(each, seed) for each in (x, x.double()))
    assert_as_accurate(softmax_dropout(x, seed), theirs, exact)


def test_its_settings_leave_those_of_other_kernels_alone():
    before = row_settings(4096, torch.bfloat16)
    assert plain.settings(4096, torch.bfloat16)["TAIL"] == 8
    assert row_settings(4096, torch.bfloat16) == before


def test_without_a_seed_pytorchs_generator_draws_one(device):
    x = torch.randn(5, 127, device=device)
    torch.manual_seed(1)
    first, second = softmax_dropout(x), softmax_dropout(x)
    torch.manual_seed(1)
    assert torch.equal(softmax_dropout(x), first)
    assert not torch.equal(first, second)


def test_the_bytes_of_the_docstring(device):
    x = torch.randn(4, 1025, dtype=torch.bfloat16, device=device, requires_grad=True)
    n, seed = x.numel(), torch.tensor(5, device=device)
    unfused, fused = measure(softmax_dropout_reference, x.detach()), measure(softmax_dropout, x.detach(), seed)
    assert (fused.launches, fused.bytes_total) == (1, 4 * n + 4 * 8)
    assert unfused.bytes_total >= 8 * n
    y = softmax_dropout(x, seed)
    assert sum(kept.nbytes for kept in y.grad_fn.saved_tensors[1:]) == 4 * 8 + 8  # no probabilities, no mask
    weight = torch.randn_like(y)
    backward = measure(lambda: torch.autograd.grad(y, x, weight))
    assert (backward.launches, backward.unique_total) == (1, 6 * n + 4 * 8 + 8)


@BOTH
@pytest.mark.parametrize("cols", [127, 1001, 17001])
def test_rows_that_begin_anywhere_drop_what_the_seed_says(tier, device, cols):
    x, seed = torch.zeros(9, cols, dtype=torch.bfloat16, device=device, requires_grad=True), torch.tensor(7)
    y = softmax_dropout(x, seed.to(device), 0.3)
    kept = dropout_mask(seed, 9, cols, 0.3)
    assert torch.equal(y.cpu() != 0, kept)
    few = x.detach()[:2]
    for other in (few.double(), torch.cat((few, few), dim=1)[:, 1 : cols + 1]):  # vectors of other sizes
        assert torch.equal(softmax_dropout(other, seed.to(device), 0.3).cpu() != 0, kept[:2])
    weight = torch.zeros_like(y)
    weight[:, cols // 2] = 1.0  # no gradient anywhere unless this column is kept
    y.backward(weight)
    assert torch.equal((x.grad != 0).all(dim=1).cpu(), kept[:, cols // 2])
    assert torch.equal((x.grad != 0).any(dim=1).cpu(), kept[:, cols // 2])


@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.long), "H100"])
@pytest.mark.parametrize(
    "cols", [1025, pytest.param(4096, marks=pytest.mark.long), 8192, pytest.param(16384, marks=pytest.mark.long), 32768]
)
def test_nothing_spills(gpu, cols):
    x = torch.empty(16384, cols, dtype=torch.bfloat16, device="meta")
    sums, seed = torch.empty(16384, 2, device="meta"), torch.empty((), dtype=torch.int64, device="meta")
    arguments, chosen = plain.OP.compile_arguments(*x.shape, dtype=x.dtype)
    assert compile_for(plain.OP.kernel_for(*x.shape), *arguments, device=gpu, **chosen).spill_bytes == 0
    sizes, kernel = (16384, cols, cols, cols, 0.1, 1.1), plain.softmax_dropout_backward_kernel
    chosen = plain.backward_settings(cols, x.dtype)
    assert compile_for(kernel, x, x, sums, seed, x, *sizes, device=gpu, **chosen).spill_bytes == 0
    if cols >= wide_softmax_dropout.MIN_COLUMNS:
        kernel, vectors = wide_softmax_dropout.softmax_dropout_backward_wide_kernel, row_vectors(x)
        chosen = wide_softmax_dropout.backward_settings(cols, x.dtype, *vectors)
        compiled = compile_for(kernel, x, x, sums, seed, x, *sizes[1:], *vectors, device=gpu, **chosen)
        assert compiled.spill_bytes == 0


def test_registration(device):
    x, seed = torch.randn(3, 9, device=device, requires_grad=True), torch.tensor(5, device=device)
    torch.library.opcheck(softmax_dropout_op.training_op, (x, seed, 0.1))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": [1.0]}, TypeError, "softmax_dropout takes tensors, got x of type list: use torch.tensor"),
        ({"x": torch.ones(3).int()}, TypeError, "got x of torch.int32: convert it with"),
        ({"x": torch.tensor(1.0)}, ValueError, r"takes rows, \(..., cols\), got x of shape \(\)"),
        ({"p": 2}, ValueError, "softmax_dropout takes p of 0 to 1, got 2"),
        ({"seed": 3.0}, TypeError, "seed in a tensor of torch.int64, got float"),
    ],
)
def test_bad_input_is_one_clear_line(device, change, error, message):
    given = {"x": torch.ones(3, 5), **change}
    given = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    with pytest.raises(error, match=message) as raised:
        softmax_dropout(**given)
    assert "\n" not in str(raised.value)


@gpu_only
def test_offsets_past_two_to_the_31():
    x = torch.zeros(175000, 12288, dtype=torch.bfloat16, device="cuda")
    y = softmax_dropout(x, p=0.5)
    assert len(y[-1].unique()) == 2
    # Half of 12288 equal probabilities, twice as large: the mean of 175000 such sums is 1 within 5 standard deviations.
    assert abs(y.float().sum(dim=1).mean().item() - 1) < 5 / (12288 * 175000) ** 0.5 + torch.finfo(y.dtype).eps
