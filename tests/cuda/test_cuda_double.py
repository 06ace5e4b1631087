"""Functions of double on the executor against NumPy's in long double, a few units in the last place apart."""

import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from test_cuda_arithmetic import DOUBLES, rounded

from helpers.instruments import cuda_kernel
from helpers.instruments.cuda import integers
from helpers.instruments.cuda.floats import directed64

ORDINARY = np.concatenate([np.linspace(0.01, 30, 200), np.logspace(-12, 12, 56)])
# Past 2^31, sin and cos reduce their argument with 1200 bits of 1/pi, in a function of their own.
LARGE = np.concatenate(
    [np.linspace(-20, 20, 200), np.array([1e6, 2.0**31, 1e15, 1e22, 1e100, 1.7e308, -3e12, 4e9] * 7)]
)
# expression, the function, inputs, units in the last place: as the CUDA C++ Programming Guide bounds them, and one
# for NumPy's own error.
FUNCTIONS = [
    ("sin(x)", np.sin, LARGE, 2),
    ("cos(x)", np.cos, LARGE, 2),
    ("tan(x)", np.tan, LARGE[:200], 3),
    ("exp(x)", np.exp, np.linspace(-700, 700, 256), 2),
    ("log(x)", np.log, ORDINARY, 2),
    ("sqrt(x)", np.sqrt, ORDINARY, 0),
    ("1.0 / x", lambda x: 1 / x, ORDINARY, 0),
    ("x / 3.7", lambda x: x / np.longdouble(3.7), ORDINARY, 0),
    ("rsqrt(x)", lambda x: 1 / np.sqrt(x), ORDINARY, 1),
    ("pow(x, 1.3)", lambda x: x ** np.longdouble(1.3), ORDINARY, 2),
    ("hypot(x, 2.0)", lambda x: np.hypot(x, 2), ORDINARY, 2),
    ("tanh(x)", np.tanh, LARGE[:200], 2),
    ("log1p(x)", np.log1p, ORDINARY, 2),
    ("expm1(x)", np.expm1, np.linspace(-20, 20, 256), 2),
    ("round(x)", lambda x: np.trunc(x + np.longdouble(0.5)), ORDINARY, 0),
    ("cbrt(x)", np.cbrt, ORDINARY, 2),
    ("log10(x)", np.log10, ORDINARY, 3),
    ("atan2(x, 2.0)", lambda x: np.arctan2(x, 2), LARGE[:200], 3),
]


@pytest.mark.parametrize(("expression", "function", "inputs", "ulps"), FUNCTIONS, ids=[each[0] for each in FUNCTIONS])
def test_functions_of_double(expression, function, inputs, ulps):
    source = f"""__global__ void k(const double* in, double* out) {{
      double x = in[threadIdx.x];
      out[threadIdx.x] = {expression};
    }}"""
    out = torch.empty(inputs.size, dtype=torch.float64)
    cuda_kernel(source, "k")[1, inputs.size](torch.from_numpy(inputs), out)
    exact = function(inputs.astype(np.longdouble))
    with np.errstate(over="ignore"):
        unit = np.spacing(np.abs(exact.astype(np.float64)))
    assert (np.abs(out.numpy() - exact) <= (ulps + 0.5) * unit).all()


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@settings(max_examples=150)
@given(a=DOUBLES, b=DOUBLES, c=DOUBLES)
@example(a=1.0, b=-1.0, c=1.0)
@example(a=5e-324, b=0.5, c=0.0)
@example(a=1.7e308, b=1.7e308, c=1.7e308)
def test_fp64_is_rounded_in_each_direction(mode, a, b, c):
    exact = {
        "add": Fraction(a) + Fraction(b),
        "subtract": Fraction(a) - Fraction(b),
        "multiply": Fraction(a) * Fraction(b),
        "fma": Fraction(a) * Fraction(b) + Fraction(c),
    }
    if b:
        exact["divide"] = Fraction(a) / Fraction(b)
    for name, value in exact.items():
        values = (a, b, c) if name == "fma" else (a, b)
        with np.errstate(all="ignore"):
            result = directed64(name, mode)(*(np.array([each]) for each in values))[0]
        assert result == rounded(value, "f64", mode), name


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@settings(max_examples=100)
@given(a=DOUBLES.filter(lambda value: value >= 0))
def test_the_root_is_on_the_right_side(mode, a):
    root = Fraction(float(directed64("sqrt", mode)(np.array([a]))[0]))
    next_up = Fraction(float(np.nextafter(float(root), np.inf)))
    next_down = Fraction(float(np.nextafter(float(root), 0)))
    if mode == "rp":
        assert root * root >= a
        assert not root or next_down * next_down < a
    else:
        assert root * root <= a
        assert next_up * next_up > a


@pytest.mark.parametrize("bits", [32, 64])
@settings(max_examples=100)
@given(a=DOUBLES, b=DOUBLES, c=DOUBLES)
def test_long_integers_a_part_at_a_time(bits, a, b, c):
    type, dtype, whole = f"u{bits}", f"u{bits // 8}", 1 << bits
    a, b, c = (int.from_bytes(struct.pack("<d", value), "little") % whole for value in (a, b, c))
    one = [np.array([value], dtype) for value in (a, b, c)]
    for before in (0, 1):
        for how, modifiers, exact in (
            ("add", [], a + b + before),
            ("sub", [], a - b - before),
            ("mad", ["lo"], a * b % whole + c + before),
            ("mad", ["hi"], a * b // whole + c + before),
        ):
            operands = one if how == "mad" else one[:2]
            with np.errstate(all="ignore"):
                result, carry = integers.carrying(how, modifiers, type)(np.array([bool(before)]), *operands)
            assert (int(result[0]), bool(carry[0])) == (exact % whole, not 0 <= exact < whole), (how, modifiers)
