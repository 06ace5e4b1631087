"""Arguments that are no tensors, of every kernel: another type, another range, is one line and nothing is launched."""

import inspect

import numpy as np
import pytest
import torch

import kernels
from kernels import CATALOGUE

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


def test_whole_numbers_are_floats(device):
    x = torch.randn(3, 5, device=device)
    assert torch.equal(kernels.l2_norm(x, 1), kernels.l2_norm(x, 1.0))
