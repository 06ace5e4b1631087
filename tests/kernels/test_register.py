"""What register makes of a forward and a backward: values, gradients, operators, and what it refuses."""

import pytest
import torch

from kernels.op import like, register


def _forward(x: torch.Tensor, weight: torch.Tensor, power: int) -> torch.Tensor:
    return weight * x**power


def _forward_keeping_slope(x: torch.Tensor, weight: torch.Tensor, power: int) -> tuple[torch.Tensor, torch.Tensor]:
    return weight * x**power, power * x ** (power - 1)


def _backward(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, power: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return grad_y * weight * power * x ** (power - 1), grad_y * x**power


def _backward_of_x(grad_y: torch.Tensor, weight: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return grad_y * weight * slope


def _exponential(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def _exponential_backward(grad_y: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return grad_y * y


POWER = register(
    "test_power",
    _forward,
    lambda x, weight, power: like(x),
    keep=lambda arguments, y: arguments,
    backward=_backward,
    backward_fake=lambda grad_y, x, weight, power: (like(x), like(weight)),
)
POWER_BY_SLOPE = register(
    "test_power_by_slope",
    _forward,
    lambda x, weight, power: like(x),
    training=_forward_keeping_slope,
    training_fake=lambda x, weight, power: (like(x), like(x)),
    keep=lambda arguments, results: (arguments[1], results[1]),
    backward=_backward_of_x,
    backward_fake=lambda grad_y, weight, slope: like(grad_y),
)
EXPONENTIAL = register(
    "test_exponential",
    _exponential,
    like,
    keep=lambda arguments, y: (y,),
    backward=_exponential_backward,
    backward_fake=lambda grad_y, y: like(y),
)
NO_GRADIENT = register("test_no_gradient", _exponential, like)


def leaves(*, grad=True, dtype=torch.float64):
    return [torch.rand(5, dtype=dtype).add(0.5).requires_grad_(grad) for _ in range(2)]


def test_an_operation_gives_its_result_alone():
    for grad in (False, True):
        x, weight = leaves(grad=grad)
        for operation in (POWER, POWER_BY_SLOPE):
            y = operation(x, weight, 3)
            assert torch.equal(y, weight * x**3)
            assert y.requires_grad == grad
        with torch.no_grad():
            assert not POWER(x, weight, 3).requires_grad


def test_gradients_are_those_of_the_backward():
    x, weight = leaves()
    assert torch.autograd.gradcheck(lambda x, weight: POWER(x, weight, 3), (x, weight))
    assert torch.autograd.gradcheck(lambda x: POWER_BY_SLOPE(x, weight.detach(), 3), (x,))
    torch.testing.assert_close(torch.func.grad(lambda x: POWER(x, weight, 3).sum())(x), 3 * weight * x**2)


def test_only_what_the_backward_takes_is_kept():
    x, weight = leaves()
    y = POWER_BY_SLOPE(x, weight, 3)
    saved = y.grad_fn.saved_tensors
    assert [each.data_ptr() == weight.data_ptr() for each in saved] == [True, False]


def test_gradients_may_be_made_of_several():
    def of_both(backward, needed, grad_y, *kept):
        assert needed == (True, False, False)
        return (2 * backward(grad_y, *kept)[0],)

    doubled = register(
        "test_doubled",
        _forward,
        lambda x, weight, power: like(x),
        keep=lambda arguments, y: arguments,
        backward=_backward,
        backward_fake=lambda grad_y, x, weight, power: (like(x), like(weight)),
        gradients=of_both,
    )
    x, weight = leaves()
    for operation in (doubled, doubled.training_op):
        (gradient,) = torch.autograd.grad(operation(x, weight.detach(), 3).sum(), x)
        torch.testing.assert_close(gradient, 6 * weight * x**2)


@pytest.mark.parametrize("operation", [POWER, POWER_BY_SLOPE])
def test_operators_keep_pytorchs_rules(operation):
    x, weight = leaves(dtype=torch.float32)
    torch.library.opcheck(operation.forward_op, (x.detach(), weight.detach(), 3))
    if operation is POWER:
        torch.library.opcheck(operation.training_op, (x, weight, 3))
    torch.library.opcheck(operation.training_op, (x, weight.detach(), 3))


def test_torch_compile_takes_it_whole():
    x, weight = leaves()
    compiled = torch.compile(lambda x, weight: POWER(x, weight, 3) * 2, fullgraph=True, backend="aot_eager")
    y = compiled(x, weight)
    torch.testing.assert_close(y, 2 * weight * x**3)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 6 * weight * x**2)


@pytest.mark.parametrize("operation", [EXPONENTIAL, EXPONENTIAL.training_op], ids=["eager", "operator"])
def test_a_second_derivative_is_refused_and_not_zero(operation):
    """The result is all that is kept, so that nothing of x reaches the backward pass but through it."""
    x = torch.rand(3, requires_grad=True)
    message = r"^test_exponential is differentiable once, got a second derivative: use kernels\.test_exponential\.ref"
    with pytest.raises(RuntimeError, match=message) as raised:
        torch.autograd.functional.hessian(lambda x: operation(x).sum(), x)
    assert "\n" not in str(raised.value)
    (gradient,) = torch.autograd.grad(operation(x).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, x.exp())  # the first one is right, whoever asks for a graph
    with pytest.raises(RuntimeError, match=message):
        gradient.sum().backward()


def test_a_second_derivative_is_refused_by_functional_transforms_too():
    with pytest.raises(RuntimeError, match="test_exponential is differentiable once"):
        torch.func.grad(lambda x: torch.func.grad(lambda x: EXPONENTIAL(x))(x))(torch.tensor(1.0))


def test_a_second_derivative_of_what_is_compiled_is_refused():
    x, weight = leaves()
    compiled = torch.compile(lambda x: POWER(x, weight.detach(), 3).sum(), backend="aot_eager")
    (gradient,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.sum().backward()


def test_without_a_backward_a_gradient_is_refused():
    assert NO_GRADIENT.backward_op is None
    x = torch.rand(3)
    assert torch.equal(NO_GRADIENT(x), x.exp())
    with pytest.raises(RuntimeError, match=r"^test_no_gradient has no backward pass: use kernels\."):
        NO_GRADIENT(x.requires_grad_()).sum().backward()
