"""What is bias_dropout_residual's own: its mask and seed, its bytes, its errors, and on a GPU its largest sizes."""

import pytest
import torch
from accuracy import assert_as_accurate

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import bias_dropout_residual, variant, variants
from kernels.elementwise import bias_dropout_residual as module
from kernels.elementwise.bias_dropout_residual import (
    bias_dropout_residual_op,
    bias_dropout_residual_oracle,
    bias_dropout_residual_reference,
)
from kernels.interpreter import runtime
from kernels.tuned import bias_dropout_residual as unaligned
from kernels.variants import tuned_for

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")


@pytest.fixture
def plain():
    with variant("plain"):
        yield


def arguments(*shape, device, dtype=torch.float32, grad=False):
    x, residual = (torch.randn(shape, device=device, dtype=dtype).requires_grad_(grad) for _ in range(2))
    bias = torch.randn(shape[-1], device=device, dtype=dtype).requires_grad_(grad)
    return x, bias, residual, torch.tensor(7, device=device)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.99, 1.0])
def test_every_p_and_the_gradients(device, p, poisoned):
    inputs = arguments(9, 130, device=device, dtype=torch.float64, grad=True)
    ours, exact = bias_dropout_residual(*inputs, p=p), bias_dropout_residual_oracle(*inputs, p=p)
    torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-6)  # 1 / (1 - p) reaches a kernel in fp32
    weight = torch.randn_like(ours)
    for mine, true in zip(*(torch.autograd.grad(y, inputs[:3], weight) for y in (ours, exact)), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-6, atol=1e-6)  # the same


def test_more_rows_than_the_backwards_programs_take_at_once(device, monkeypatch):
    monkeypatch.setattr(module, "multiprocessors", lambda x: 0)
    inputs = arguments(29, 3, device=device, grad=True)
    weight = torch.randn(29, 3, device=device)
    wide = [x.detach().double().requires_grad_() for x in inputs[:3]]
    assert_as_accurate(
        torch.autograd.grad(bias_dropout_residual(*inputs), inputs[:3], weight),
        torch.autograd.grad(bias_dropout_residual_oracle(*inputs), inputs[:3], weight),
        torch.autograd.grad(bias_dropout_residual_oracle(*wide, inputs[3]), wide, weight.double()),
    )


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (2, 127), (132, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_and_their_gradients(device, monkeypatch, poisoned, rows, cols, dtype):
    monkeypatch.setattr(module, "multiprocessors", lambda x: 132)
    x, bias, residual, seed = arguments(rows, cols, device=device, dtype=dtype, grad=True)
    bias = bias.detach().float().requires_grad_()
    weight = torch.randn(cols, rows, device=device, dtype=dtype).T  # a gradient of other strides
    ours = torch.autograd.grad(bias_dropout_residual(x, bias, residual, seed), (x, bias, residual), weight)
    exact = [each.detach().double().requires_grad_() for each in (x, bias, residual)]
    theirs = torch.autograd.grad(bias_dropout_residual_oracle(*exact, seed), exact, weight.double())
    for mine, true in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, true.to(mine.dtype))


@pytest.mark.parametrize("name", ["plain", "tuned"])
@pytest.mark.parametrize(
    ("rows", "cols", "gap", "skip"),
    [(37, 33, 0, 0), (37, 530, 0, 0), (37, 40, 0, 0), (37, 33, 8, 0), (37, 33, 1, 0), (37, 33, 0, 1), (37, 15, 0, 0)],
)
def test_rows_that_begin_and_end_within_vectors(device, monkeypatch, poisoned, rows, cols, gap, skip, name):
    """Rows `gap` elements apart, the first `skip` elements into memory: all tensors share whole vectors, or none."""
    monkeypatch.setattr(module, "multiprocessors", lambda x: 2)
    memory = torch.randn(rows, cols + gap + skip, device=device, dtype=torch.bfloat16)
    x = memory[:, skip : skip + cols].requires_grad_()
    _, bias, residual, seed = arguments(rows, cols, device=device, dtype=torch.bfloat16, grad=True)
    weight = torch.randn_like(memory)[:, skip : skip + cols]
    exact = [each.detach().double().requires_grad_() for each in (x, bias, residual)]
    with variant(name):
        ours, theirs, truth = (
            function(*given, seed)
            for function, given in (
                (bias_dropout_residual, (x, bias, residual)),
                (bias_dropout_residual_oracle, (x, bias, residual)),
                (bias_dropout_residual_oracle, exact),
            )
        )
        assert_as_accurate(ours, theirs, truth)
        assert_as_accurate(
            torch.autograd.grad(ours, (x, bias, residual), weight),
            torch.autograd.grad(theirs, (x, bias, residual), weight),
            torch.autograd.grad(truth, exact, weight.double()),
        )


def test_the_tuned_kernels_take_contiguous_rows_of_which_few_start_at_vectors():
    x, row = torch.empty(9, 33, dtype=torch.bfloat16, device="meta"), torch.empty(33, device="meta")
    assert tuned_for("bias_dropout_residual", "forward", (x, row, x, None, 0.1))
    assert tuned_for("bias_dropout_residual", "backward", (x, None, 0.1, x.dtype))
    for other in (x[:, :32].contiguous(), x[:, :15].contiguous(), x[:, 1:], x.double(), x[:0]):
        assert not tuned_for("bias_dropout_residual", "forward", (other, row, other, None, 0.1))


@pytest.mark.parametrize("cols", [4099, pytest.param(5000, marks=pytest.mark.long)])
def test_tuned_rows_move_16_bytes_at_a_time(cols):
    (entry,) = variants.tuned_kernels()["bias_dropout_residual", "forward"]
    kernel, arguments, options = entry.compile_arguments(1021, cols, dtype=torch.bfloat16)
    made = compile_for(kernel, *arguments, device="H200", **options).instructions
    a_thread = options["BLOCK"] // (8 * 32 * options["num_warps"])
    assert made["STG.128"] == a_thread
    assert made["LDG.128"] >= 2 * a_thread
    assert made["STG.16"] == 1  # the edge's


def test_few_rows_leave_no_sum_to_a_second_launch(device):
    x, bias, residual, seed = arguments(2, 64, device=device, grad=True)
    y = bias_dropout_residual(x, bias, residual, seed)
    weight = torch.randn_like(y)
    backward = measure(lambda: torch.autograd.grad(y, (x, bias), weight))
    assert (backward.launches, backward.bytes_written) == (1, y.nbytes + bias.nbytes)


def test_without_a_seed_pytorchs_generator_draws_one(device):
    x, bias, residual, _ = arguments(5, 127, device=device)
    torch.manual_seed(1)
    first, second = bias_dropout_residual(x, bias, residual), bias_dropout_residual(x, bias, residual)
    torch.manual_seed(1)
    assert torch.equal(bias_dropout_residual(x, bias, residual), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("multiprocessors", [pytest.param(2, marks=pytest.mark.long), 132])
def test_the_gradients_are_the_same_in_every_run(device, monkeypatch, multiprocessors):
    monkeypatch.setattr(module, "multiprocessors", lambda x: multiprocessors)
    inputs = arguments(40, 33, device=device, grad=True)
    weight = torch.randn(40, 33, device=device)
    runs = [torch.autograd.grad(bias_dropout_residual(*inputs), inputs[:3], weight) for _ in range(2)]
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


def test_a_bias_of_another_dtype(device):
    x, bias, residual, seed = arguments(3, 65, device=device, dtype=torch.bfloat16)
    y = bias_dropout_residual(x, bias.float().requires_grad_(), residual, seed)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, bias_dropout_residual(x, bias, residual, seed))


def test_under_autocast_two_dtypes_meet_in_the_wider(device):
    x, bias, residual, seed = arguments(3, 65, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = bias_dropout_residual(x.bfloat16(), bias, residual, seed)
    torch.testing.assert_close(y, bias_dropout_residual_oracle(x.bfloat16().float(), bias, residual, seed))


@pytest.mark.usefixtures("plain")
def test_the_bytes_of_the_docstring(device, monkeypatch):
    monkeypatch.setattr(module, "multiprocessors", lambda x: 2)
    x, bias, residual, seed = arguments(4, 1025, device=device, dtype=torch.bfloat16, grad=True)
    n = x.numel()
    unfused, fused = (
        measure(lambda f=f: f(x, bias, residual, seed))
        for f in (bias_dropout_residual_reference, bias_dropout_residual)
    )
    assert fused.launches == 1
    assert fused.bytes_total == 6 * n + 2 * n + 3 * 4 * 8  # a row's three programs read the bias and the seed, from L2
    assert fused.unique_total == 6 * n + 2 * 1025 + 8
    assert unfused.bytes_total >= 14 * n
    y = bias_dropout_residual(x, bias, residual, seed)
    assert [kept.nbytes for kept in y.grad_fn.saved_tensors] == [8]  # no mask
    weight = torch.randn_like(y)
    backward = measure(lambda: torch.autograd.grad(y, (x, bias, residual), weight))
    assert backward.by_launch[0][1].read == 2 * n + 5 * 8  # the seed, once per block of columns
    assert backward.by_launch[0][1].written == 2 * n + 2 * 1025


@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.long), "H100"])
@pytest.mark.parametrize(("rows", "cols", "few_rows"), [(16384, 4096, False), (64, 8192, True)])
def test_the_backward_does_not_spill(gpu, rows, cols, few_rows):
    x = torch.empty(rows, cols, dtype=torch.bfloat16, device="meta")
    (_, along), chosen = module.backward_settings(rows, cols, x.dtype, 108)
    assert (along == 1) == few_rows
    partial = torch.empty(cols, dtype=torch.bfloat16 if few_rows else torch.float32, device="meta")
    seed = torch.empty((), dtype=torch.int64, device="meta")
    kernel = module.bias_dropout_residual_backward_kernel
    compiled = compile_for(kernel, x, x, partial, seed, rows, cols, cols, 0.1, 1.1, device=gpu, **chosen)
    assert compiled.spill_bytes == 0


@pytest.mark.parametrize(
    "grid",
    [
        lambda rows, cols: module.backward_settings(rows, cols, torch.bfloat16, 132),
        lambda rows, cols: unaligned.backward_settings(rows, cols, 8, 132),
    ],
    ids=["plain", "tuned"],
)
def test_the_backward_has_a_grid_for_the_longest_rows(grid):
    for rows, cols in ((1, 2**21), (1, 2**25), (2**25, 8), (4096, 2**21)):
        (blocks, along), _ = grid(rows, cols)
        assert blocks < 2**31  # what CUDA allows along the first axis
        assert along <= 65_535  # and along the second


def test_registration(device):
    torch.library.opcheck(bias_dropout_residual_op.training_op, (*arguments(3, 9, device=device, grad=True), 0.1))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"bias": torch.ones(4)}, ValueError, r"takes bias of x's last dimension, \(5,\), got \(4,\)"),
        ({"bias": torch.ones(5).int()}, TypeError, "got bias of torch.int32: convert it with"),
        ({"residual": torch.ones(3, 5).half()}, TypeError, "one dtype, got x of torch.float32 and residual of"),
        ({"residual": torch.ones(2, 5)}, ValueError, r"one shape, got x of \(3, 5\) and residual of \(2, 5\)"),
        ({"x": 1.0}, TypeError, "takes tensors, got x of type float"),
        ({"p": 1.5}, ValueError, "takes p of 0 to 1, got 1.5"),
        ({"p": -0.1}, ValueError, "takes p of 0 to 1, got -0.1"),
        ({"seed": 3}, TypeError, r"seed in a tensor of torch.int64, got int: use torch.tensor\(seed\)"),
        ({"seed": torch.ones(2).long()}, ValueError, r"a seed of one value on \w+(:\d)?, got \(2,\) on"),
    ],
)
def test_bad_input_is_one_clear_line(device, change, error, message):
    x = torch.ones(3, 5)
    given = {"x": x, "bias": torch.ones(5), "residual": x, "seed": torch.tensor(1), "p": 0.1, **change}
    given = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    with pytest.raises(error, match=message) as raised:
        bias_dropout_residual(**given)
    assert "\n" not in str(raised.value)


@gpu_only
def test_offsets_past_two_to_the_31():
    x = torch.ones(2**20 + 1, 2049, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    bias = torch.zeros(2049, dtype=torch.bfloat16, device="cuda")
    y = bias_dropout_residual(x, bias, torch.zeros_like(x), p=0.5)
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, y)  # the same mask, to the last element
    assert sorted(y[-2:].unique().tolist()) == [0, 2]
    assert abs(y.float().mean().item() - 1) < 1e-3
