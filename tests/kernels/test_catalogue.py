"""What every kernel of the catalogue must do, whichever it is. On a GPU the same tests run compiled."""

import math

import pytest
import torch
from accuracy import as_tuple, assert_as_accurate, doubled, is_float

import kernels
from helpers.instruments import measure
from kernels import CATALOGUE
from kernels.interpreter import runtime

OPS = pytest.mark.parametrize("op", CATALOGUE.values(), ids=CATALOGUE)


def check(op, inputs):
    """The operation's results on these inputs are as accurate as its oracle's."""
    assert_as_accurate(op.fused(*inputs), op.oracle(*inputs), op.oracle(*doubled(inputs)))


@OPS
def test_values(op, device, poisoned):
    for shape in op.interpreter_shapes:
        for dtype in op.dtypes:
            check(op, op.inputs(*shape, dtype=dtype, device=device))


@OPS
def test_huge_mean(op, device, poisoned):
    inputs = op.inputs(*op.interpreter_shapes[-1], dtype=torch.float32, device=device)
    check(op, [x + 1e4 if is_float(x) else x for x in inputs])


@OPS
def test_nan_and_infinity_propagate_as_in_pytorch(op, device, poisoned):
    inputs = op.inputs(*op.interpreter_shapes[-1], dtype=torch.float32, device=device)
    inputs[0].put_(torch.arange(3, device=device), torch.tensor([torch.nan, torch.inf, -torch.inf], device=device))
    check(op, inputs)


@OPS
def test_strides_and_offsets(op, device, poisoned):
    shape = op.interpreter_shapes[-1]
    for strided in (
        lambda x: torch.stack([x, x], dim=-1)[..., 0],  # every other element
        lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),  # an offset that no vector load likes
        lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),  # columns first
    ):
        inputs = [
            strided(x) if isinstance(x, torch.Tensor) and i not in op.writes else x
            for i, x in enumerate(op.inputs(*shape, dtype=torch.float32, device=device))
        ]
        check(op, inputs)


@pytest.mark.parametrize("cols", [64, 128, 512, 1000])
@pytest.mark.parametrize("name", ["residual_rms_norm", "residual_layer_norm", "softmax", "cross_entropy"])
def test_few_narrow_rows_loaded_in_whole_vectors(name, cols, device, poisoned):
    """They have rows and warps per program of their own, and norms load their weights early."""
    op = CATALOGUE[name]
    inputs = op.inputs(37, cols, dtype=torch.float16, device=device)

    def with_gradients(function, inputs):
        leaves = [x.detach().requires_grad_() if is_float(x) else x for x in inputs]
        results = as_tuple(function(*leaves))
        given = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=device).view_as(y) for y in results]
        return *results, *torch.autograd.grad(results, [x for x in leaves if is_float(x)], given)

    ours, theirs = (with_gradients(function, inputs) for function in (op.fused, op.reference))
    assert_as_accurate(ours, theirs, with_gradients(op.reference, doubled(inputs)))


@OPS
def test_inputs_stay_as_they_were(op, device):
    inputs = op.inputs(*op.interpreter_shapes[-1], dtype=torch.float32, device=device)
    before = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    op.fused(*inputs)
    for i, (x, kept) in enumerate(zip(inputs, before, strict=True)):
        if isinstance(x, torch.Tensor):
            assert torch.equal(x, kept) == (i not in op.writes)


@OPS
def test_empty(op, device):
    shape = op.interpreter_shapes[-1]
    for empty in ((0, *shape[1:]), (0,) * len(shape)):
        try:
            inputs = op.inputs(*empty, dtype=torch.float32, device=device)
        except ZeroDivisionError:  # of a head dimension: width over no heads
            continue
        try:
            op.oracle(*inputs)
        except (RuntimeError, IndexError, ZeroDivisionError):  # what PyTorch refuses
            with pytest.raises(ValueError, match=op.name):
                op.fused(*inputs)
        else:
            check(op, inputs)


@OPS
def test_the_public_function_is_the_catalogues(op):
    assert getattr(kernels, op.name) is op.fused
    assert op.fused.__name__ == op.name
    assert op.fused.__doc__
    assert op.reference.__doc__
    assert op.work.__doc__


@OPS
def test_work_counts_least_bytes(op):
    shape = op.interpreter_shapes[-1]
    work = op.work(shape, torch.float32)
    inputs = op.inputs(*shape, dtype=torch.float32)
    read = [x for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and i not in op.writes]
    assert work.bytes_read == sum(math.prod(x.shape) * x.itemsize for x in read)
    if op.writes:  # a part of them, as the meter sees it
        assert work.bytes_written == measure(op.fused, *inputs).bytes_written
    elif not runtime.has_gpu():
        outputs = as_tuple(op.fused(*inputs))
        assert work.bytes_written == sum(math.prod(x.shape) * x.itemsize for x in outputs)


def test_a_wrong_answer_is_not_as_accurate(device):
    """The rule can fail: a result off by a thousandth, and one with an element left unwritten, are refused."""
    op = CATALOGUE["add_gelu"]
    inputs = op.inputs(1025, dtype=torch.float32, device=device)
    for spoil in (lambda y: y * 1.001, lambda y: y.index_fill(0, torch.tensor([1024], device=device), torch.nan)):
        spoiled = type(op)(**{**vars(op), "fused": lambda *args, spoil=spoil: spoil(op.fused(*args))})
        with pytest.raises(AssertionError):
            check(spoiled, inputs)


def test_public_names_are_the_operations_and_their_modules():
    modules = ("FeedForward", "FlashAttention", "LayerNorm", "LayerNormAct", "LinearAct", "RMSNorm")
    assert set(dir(kernels)) == {*CATALOGUE, *modules, "CATALOGUE", "adamw", "variant"}
    assert issubclass(kernels.LayerNorm, torch.nn.LayerNorm)
    assert list(CATALOGUE) == sorted(CATALOGUE)
