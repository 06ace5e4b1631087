"""What every kernel of the catalogue must do, whichever it is. On a GPU the same tests run compiled."""

import math

import pytest
import torch

import kernels
from kernels import CATALOGUE, runtime

OPS = pytest.mark.parametrize("op", CATALOGUE.values(), ids=CATALOGUE)


def is_float(x) -> bool:
    """A flag or a name among the arguments is none."""
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def assert_as_accurate(op, inputs):
    """Our error against float64 is at most twice PyTorch's own in that dtype, plus one rounding of the largest value
    and four in fp32: over a handful of values PyTorch's own may happen to be none.

    Where the reference is not finite the result must not be either, and in the same way (float64's: PyTorch's fp32
    GELU on a CPU makes NaN of inf). Indices are equal; a quantised value may fall on the other side of a tie.
    """
    exact = as_tuple(op.oracle(*[x.double() if is_float(x) else x for x in inputs]))
    theirs = as_tuple(op.oracle(*inputs))
    for ours, native, truth in zip(as_tuple(op.fused(*inputs)), theirs, exact, strict=True):
        assert (ours.shape, ours.dtype, ours.device) == (native.shape, native.dtype, native.device)
        if ours.numel() == 0:
            continue
        if not ours.is_floating_point():
            assert (ours.long() - truth.long()).abs().amax() <= (ours.dtype == torch.int8)
            continue
        finite = truth.isfinite() & native.isfinite()
        expected = torch.where(truth.isfinite(), native, truth.to(ours.dtype))
        torch.testing.assert_close(ours[~finite], expected[~finite], equal_nan=True, rtol=0, atol=0)
        error = (ours.double() - truth)[finite].abs().amax() if finite.any() else torch.tensor(0.0)
        allowed = (native.double() - truth)[finite].abs().amax() if finite.any() else torch.tensor(0.0)
        largest = truth[finite].abs().amax() if finite.any() else torch.tensor(0.0)
        roundings = torch.finfo(ours.dtype).eps + 4 * torch.finfo(torch.float32).eps
        assert error <= 2 * allowed + roundings * largest, f"{error:.3g} against {allowed:.3g}"


@OPS
def test_values(op, device, poisoned):
    for shape in op.interpreter_shapes:
        for dtype in op.dtypes:
            assert_as_accurate(op, op.inputs(*shape, dtype=dtype, device=device))


@OPS
def test_huge_mean(op, device, poisoned):
    inputs = op.inputs(*op.interpreter_shapes[-1], dtype=torch.float32, device=device)
    assert_as_accurate(op, [x + 1e4 if is_float(x) else x for x in inputs])


@OPS
def test_nan_and_infinity_propagate_as_in_pytorch(op, device, poisoned):
    inputs = op.inputs(*op.interpreter_shapes[-1], dtype=torch.float32, device=device)
    inputs[0].put_(torch.arange(3, device=device), torch.tensor([torch.nan, torch.inf, -torch.inf], device=device))
    assert_as_accurate(op, inputs)


@OPS
def test_strides_and_offsets(op, device, poisoned):
    shape = op.interpreter_shapes[-1]
    for strided in (
        lambda x: torch.stack([x, x], dim=-1)[..., 0],  # every other element
        lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),  # an offset that no vector load likes
        lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),  # columns first
    ):
        inputs = [
            strided(x) if isinstance(x, torch.Tensor) else x
            for x in op.inputs(*shape, dtype=torch.float32, device=device)
        ]
        assert_as_accurate(op, inputs)


@OPS
def test_inputs_stay_as_they_were(op, device):
    inputs = op.inputs(*op.interpreter_shapes[-1], dtype=torch.float32, device=device)
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    before = [x.clone() for x in tensors]
    op.fused(*inputs)
    for x, kept in zip(tensors, before, strict=True):
        assert torch.equal(x, kept)


@OPS
def test_empty(op, device):
    shape = op.interpreter_shapes[-1]
    for empty in ((0, *shape[1:]), (0,) * len(shape)):
        inputs = op.inputs(*empty, dtype=torch.float32, device=device)
        try:
            op.oracle(*inputs)
        except (RuntimeError, IndexError, ZeroDivisionError):  # what PyTorch refuses
            with pytest.raises(ValueError, match=op.name):
                op.fused(*inputs)
        else:
            assert_as_accurate(op, inputs)


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
    assert work.bytes_read == sum(math.prod(x.shape) * x.itemsize for x in inputs if isinstance(x, torch.Tensor))
    if not runtime.has_gpu():
        outputs = as_tuple(op.fused(*inputs))
        assert work.bytes_written == sum(math.prod(x.shape) * x.itemsize for x in outputs)


def test_a_wrong_answer_is_not_as_accurate(device):
    """The rule can fail: a result off by a thousandth, and one with an element left unwritten, are refused."""
    op = CATALOGUE["add_gelu"]
    inputs = op.inputs(1025, dtype=torch.float32, device=device)
    for spoil in (lambda y: y * 1.001, lambda y: y.index_fill(0, torch.tensor([1024], device=device), torch.nan)):
        spoiled = type(op)(**{**vars(op), "fused": lambda *args, spoil=spoil: spoil(op.fused(*args))})
        with pytest.raises(AssertionError):
            assert_as_accurate(spoiled, inputs)
