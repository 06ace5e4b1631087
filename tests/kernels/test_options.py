"""Arguments that are no tensors, of every kernel: another type, another range, is one line and nothing is launched."""

import inspect
import re

import numpy as np
import pytest
import torch

import kernels
from kernels import CATALOGUE
from kernels.arguments import INSTEAD

NUMBERS = {"nan": float("nan"), "inf": float("inf"), "huge": 10**30}
OTHERS = {
    "text": "False",
    "list": ["relu"],
    "dict": {},
    "tuple": (2, 2),
    "tensor": torch.tensor(0.5),
    "complex": 1j,
    "dtype": torch.float32,
    "NumPy's integer": np.int64(2),
    "NumPy's float": np.float32(0.5),
}
WRONG = {
    bool: {**OTHERS, **NUMBERS, "none": None, "zero": 0},
    int: {**OTHERS, **NUMBERS, "none": None, "true": True, "float": 2.0},
    float: {**OTHERS, **NUMBERS, "none": None, "true": True},
    str: {**OTHERS, **NUMBERS, "number": 1},
}
NEGATIVE = {"eps", "p", "label_smoothing", "stride", "padding", "top_k", "k", "scale"}


def options():
    """Operation, argument and a wrong value of it, from the annotations of the public functions."""
    for name in CATALOGUE:
        for argument, parameter in inspect.signature(getattr(kernels, name)).parameters.items():
            kinds = str(parameter.annotation).replace("<class '", "").replace("'>", "").split(" | ")
            for kind in (kind for kind in WRONG if kind.__name__ in kinds):
                values = WRONG[kind] | ({"negative": -1} if argument in NEGATIVE else {})
                for what, value in values.items():
                    if value is not None or "None" not in kinds:
                        yield pytest.param(name, argument, value, id=f"{name}-{argument}-{what}")


@pytest.mark.parametrize(("name", "argument", "value"), options())
def test_another_type_or_range_is_one_line(name, argument, value, device):
    op, function = CATALOGUE[name], getattr(kernels, name)
    inputs = op.inputs(*op.interpreter_shapes[1], dtype=torch.float32, device=device)
    given = dict(zip(inspect.signature(function).parameters, inputs, strict=False)) | {argument: value}
    with pytest.raises((TypeError, ValueError)) as raised:
        function(**given)
    told = str(raised.value)
    assert told.startswith(f"{name} ")
    assert argument in told
    assert "\n" not in told
    assert len(told) < 300


def test_there_are_some_of_every_kind():
    arguments = {each.values[1] for each in options()}
    assert arguments >= {
        "eps",
        "p",
        "scale",
        "causal",
        "act",
        "stride",
        "padding",
        "top_k",
        "k",
        "ignore_index",
        "tf32",
    }


@pytest.mark.parametrize("name", INSTEAD)
def test_what_others_take_besides_is_one_line_that_says_what_to_use(name, device):
    op, function = CATALOGUE[name], getattr(kernels, name)
    inputs = op.inputs(*op.interpreter_shapes[1], dtype=torch.float32, device=device)
    for argument, instead in INSTEAD[name].items():
        with pytest.raises(TypeError, match=rf"^{name} takes no {argument}: use {re.escape(instead)}$"):
            function(*inputs, **{argument: 1})
    with pytest.raises(TypeError, match=rf"^{name} takes no colour: see help\(kernels\.{name}\)$"):
        function(*inputs, colour="red")


def test_soft_targets_are_told_where_to_go(device):
    x = torch.randn(3, 5, device=device)
    with pytest.raises(
        TypeError, match=r"got torch\.float32: for probabilities use torch\.nn\.functional\.cross_entropy"
    ):
        kernels.cross_entropy(x, x.softmax(-1))


def test_fewer_heads_of_k_have_pytorchs_name(device):
    q, k, v = torch.randn(1, 4, 5, 16, device=device), *torch.randn(2, 1, 2, 5, 16, device=device)
    y = kernels.flash_attention(q, k, v, enable_gqa=True)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(y, theirs)
    for call in (kernels.flash_attention, lambda q, k, v, **options: kernels.attention_scores(q, k, **options)):
        with pytest.raises(ValueError, match="takes as many heads of k as of q where enable_gqa is False, got q of"):
            call(q, k, v, enable_gqa=False)
        call(q[:, :2], k, v, enable_gqa=False)


FP32 = [
    (name, argument)
    for name in CATALOGUE
    for argument, parameter in inspect.signature(getattr(kernels, name)).parameters.items()
    if parameter.annotation is float
]


@pytest.mark.parametrize(("name", "argument"), FP32)
def test_a_number_that_reaches_the_kernel_as_fp32_is_said_to(name, argument):
    told = inspect.getdoc(getattr(kernels, name)).split("Args:")[1].split("Returns:")[0]
    of_argument = " ".join(told.split(f" {argument}: ")[1].split())
    assert "as fp32" in of_argument or of_argument.startswith(
        ("as in layer_norm", "as in rms_norm", "added to the variance, as in")
    )


def test_fp64_is_fp64_but_for_the_numbers_given(device):
    x = torch.full((1, 64), 1.0, dtype=torch.float64, device=device)
    kept = kernels.softmax_dropout(x, torch.tensor(3, device=device), 0.1)
    assert set((kept * 64).unique().tolist()) == {0.0, float(np.float32(1 / (1 - 0.1)))}
    x = 1e-3 * torch.randn(3, 65, dtype=torch.float64, device=device)
    expected = torch.nn.functional.layer_norm(x, (65,), eps=float(np.float32(1e-5)))
    torch.testing.assert_close(kernels.layer_norm(x), expected, rtol=1e-14, atol=1e-14)
    assert (kernels.layer_norm(x) - torch.nn.functional.layer_norm(x, (65,), eps=1e-5)).abs().max() > 1e-11


def test_whole_numbers_are_floats(device):
    x = torch.randn(3, 5, device=device)
    assert torch.equal(kernels.l2_norm(x, 1), kernels.l2_norm(x, 1.0))
