"""The one law of a kernel's accuracy: at most twice PyTorch's own error against float64, in the same dtype."""

import torch


def is_float(x) -> bool:
    """Whether x is a tensor of floating point; a flag or a name among arguments is none."""
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def as_tuple(result) -> tuple:
    return result if isinstance(result, tuple) else (result,)


def doubled(arguments) -> list:
    """The arguments with those of floating point in float64, for a reference that says what is exact."""
    return [x.double() if is_float(x) else x for x in arguments]


def with_gradients(function, leaves, weight) -> tuple:
    """function(*leaves), a tensor, and the gradients by each leaf of its product with `weight`."""
    leaves = [x.detach().requires_grad_() for x in leaves]
    y = function(*leaves)
    return y, *torch.autograd.grad(y, leaves, weight.to(y.dtype))


def assert_as_accurate(ours, theirs, exact) -> None:
    """The largest error of `ours` is at most twice that of `theirs`, plus one rounding of the largest value in their
    dtype and four in that of the arithmetic, fp32 (fp64 for fp64): over a handful of values PyTorch's own error may
    happen to be none.

    Where `exact` is not finite `ours` must not be either, and in the same way (float64's: PyTorch's fp32 GELU on a CPU
    makes NaN of inf); where PyTorch overflows its dtype, ours does so too. Integers are equal, but int8, a quantised
    value, may fall on the other side of a tie.

    Args:
        ours: the kernel's result, a tensor or a tuple of them.
        theirs: PyTorch's, in the same dtype, from the same arguments.
        exact: PyTorch's from the same arguments in float64; integers as they are.
    """
    for y, native, truth in zip(as_tuple(ours), as_tuple(theirs), as_tuple(exact), strict=True):
        assert (y.shape, y.dtype, y.device) == (native.shape, native.dtype, native.device)
        assert truth.shape == y.shape
        if not y.is_floating_point():
            assert ((y.long() - truth.long()).abs() <= (y.dtype == torch.int8)).all()
            continue
        truth = truth.double()  # a reference may round what it computed in float64: a scale that is always fp32
        finite = truth.isfinite() & native.isfinite()
        expected = torch.where(truth.isfinite(), native, truth.to(y.dtype))
        torch.testing.assert_close(y[~finite], expected[~finite], equal_nan=True, rtol=0, atol=0)
        if finite.any():
            largest = truth[finite].abs().amax()
            error, allowed = ((x.double() - truth)[finite].abs().amax() for x in (y, native))
            arithmetic = torch.float64 if y.dtype == torch.float64 else torch.float32
            roundings = torch.finfo(y.dtype).eps + 4 * torch.finfo(arithmetic).eps
            limit = 2 * allowed + roundings * largest
            assert error <= limit, f"off by {error:.3g}, PyTorch's own by {allowed:.3g}: at most {limit:.3g}"
