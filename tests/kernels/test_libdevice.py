"""libdevice in the interpreter, however imported: against mpmath, within the errors that CUDA documents."""

import math
import re
import types
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language import log as imported_log
from triton.language.extra import libdevice as generic
from triton.language.extra.cuda import libdevice as of_cuda
from triton.language.extra.cuda.libdevice import erf as erf_of_cuda
from triton.language.extra.libdevice import rsqrt
from triton.language.extra.libdevice import tanh as imported_tanh
from triton.runtime.errors import InterpreterError

from helpers.instruments import compile_for, measure
from kernels.interpreter import libdevice, runtime

interpreted = pytest.mark.skipif(runtime.has_gpu(), reason="kernels are compiled here")
mpmath.mp.dps = 60
mp = mpmath.mp


def normal(scale):
    return lambda random, size: random.standard_normal(size) * scale


def between(low, high):
    return lambda random, size: random.uniform(low, high, size)


def powers(low, high):
    """Positive, of every magnitude."""
    return lambda random, size: 2.0 ** random.uniform(low, high, size)


def _normcdfinv(p):
    start = mp.mpf(float(libdevice.call("__nv_normcdfinv", [np.array([float(p)])])[0]))
    return mp.findroot(lambda x: mp.ncdf(x) - p if p > mp.mpf("1e-5") else mp.log(mp.ncdf(x)) - mp.log(p), start)


def _erfcinv(x):
    start = mp.mpf(float(libdevice.call("__nv_erfcinv", [np.array([float(x)])])[0]))
    return mp.findroot(lambda y: mp.log(mp.erfc(y)) - mp.log(x), start)


# Name, samples of each argument, the exact function, and the largest errors in ulp of fp64 that CUDA documents (CUDA
# C++ Programming Guide, "Mathematical Functions"; round to nearest is 0.5). fp32 must be rounded once: 0.501 ulp.
EXACT = {
    "rsqrt": ([powers(-100, 100)], lambda x: 1 / mp.sqrt(x), 1),
    "cbrt": ([normal(100)], lambda x: mp.sign(x) * mp.cbrt(abs(x)), 1),
    "rcbrt": ([normal(100)], lambda x: mp.sign(x) / mp.cbrt(abs(x)), 1.5),
    "exp": ([normal(20)], mp.exp, 1),
    "exp2": ([normal(20)], lambda x: mp.mpf(2) ** x, 1),
    "exp10": ([normal(8)], lambda x: mp.mpf(10) ** x, 1),
    "expm1": ([normal(0.5)], mp.expm1, 1),
    "log": ([powers(-100, 100)], mp.log, 1),
    "log2": ([powers(-100, 100)], lambda x: mp.log(x, 2), 1),
    "log10": ([powers(-100, 100)], mp.log10, 1),
    "log1p": ([between(-0.9, 3)], mp.log1p, 1),
    "sin": ([normal(50)], mp.sin, 2),
    "cos": ([normal(50)], mp.cos, 2),
    "tan": ([normal(50)], mp.tan, 2),
    "sinpi": ([normal(50)], mp.sinpi, 2),
    "cospi": ([normal(50)], mp.cospi, 2),
    "asin": ([between(-1, 1)], mp.asin, 2),
    "acos": ([between(-1, 1)], mp.acos, 2),
    "atan": ([normal(5)], mp.atan, 2),
    "atan2": ([normal(5), normal(5)], mp.atan2, 2),
    "sinh": ([normal(3)], mp.sinh, 2),
    "cosh": ([normal(3)], mp.cosh, 1),
    "tanh": ([normal(1)], mp.tanh, 1),
    "asinh": ([normal(3)], mp.asinh, 3),
    "acosh": ([between(1, 50)], mp.acosh, 3),
    "atanh": ([between(-1, 1)], mp.atanh, 2),
    "hypot": ([normal(5), normal(5)], mp.hypot, 2),
    "rhypot": ([normal(5), normal(5)], lambda x, y: 1 / mp.hypot(x, y), 2),
    "norm3d": ([normal(5)] * 3, lambda *x: mp.sqrt(sum(v * v for v in x)), 2),
    "rnorm3d": ([normal(5)] * 3, lambda *x: 1 / mp.sqrt(sum(v * v for v in x)), 2),
    "norm4d": ([normal(5)] * 4, lambda *x: mp.sqrt(sum(v * v for v in x)), 2),
    "rnorm4d": ([normal(5)] * 4, lambda *x: 1 / mp.sqrt(sum(v * v for v in x)), 2),
    "erf": ([normal(1)], mp.erf, 2),
    "erfc": ([normal(2)], mp.erfc, 5),
    "erfinv": ([between(-1, 1)], mp.erfinv, 5),
    "erfcinv": ([powers(-60, 0.99)], _erfcinv, 6),
    "erfcx": ([between(-5, 60)], lambda x: mp.exp(x * x) * mp.erfc(x), 4),
    "normcdf": ([normal(4)], mp.ncdf, 5),
    "normcdfinv": ([powers(-60, 0)], _normcdfinv, 8),
    "lgamma": ([between(0.1, 30)], mp.loggamma, 4),
    "tgamma": ([between(0.1, 20)], mp.gamma, 10),
    "pow": ([powers(-10, 10), normal(2)], lambda x, y: x**y, 2),
    "fma": ([normal(1)] * 3, lambda x, y, z: x * y + z, 0.5),
    "fmod": ([normal(50), normal(5)], lambda x, y: mp.sign(x) * mp.fmod(abs(x), abs(y)), 0),
    "logb": ([powers(-100, 100)], lambda x: mp.floor(mp.log(x, 2)), 0),
    "fdim": ([normal(1), normal(1)], lambda x, y: max(x - y, mp.mpf(0)), 0.5),
    "rint": ([normal(50)], mp.nint, 0),
    "round": ([normal(50)], lambda x: mp.sign(x) * mp.floor(abs(x) + mp.mpf(0.5)), 0),
}
ARITHMETIC = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
}
DIRECTIONS = {"rn": 0.5, "rz": 1, "rd": 1, "ru": 1}


def samples(draws, dtype, size=200):
    random = np.random.default_rng(1)
    return [draw(random, size).astype(dtype) for draw in draws]


def errors(found, arguments, exact):
    """Signed, in ulp of the exact result."""
    told = []
    for y, *given in zip(found, *arguments, strict=True):
        truth = exact(*(mp.mpf(float(x)) for x in given))
        ulp = np.spacing(np.abs(found.dtype.type(float(truth))))
        told.append(float((mp.mpf(float(y)) - truth) / mp.mpf(float(ulp))))
    return np.array(told)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_within_the_error_that_cuda_documents(name, dtype):
    draws, exact, bound = EXACT[name]
    arguments = samples(draws, dtype)
    found = libdevice.call(f"__nv_{name}{'f' if dtype == np.float32 else ''}", arguments)
    assert found.dtype == dtype
    assert np.abs(errors(found, arguments, exact)).max() <= (min(bound, 0.501) if dtype == np.float32 else bound)


@pytest.mark.parametrize("name", libdevice.FAST)
def test_fast_functions_are_exact_where_the_gpus_are_near(name):
    draws, exact, _ = EXACT.get(name, ([normal(5), normal(5)], lambda x, y: x / y, 0))
    arguments = samples(draws, np.float32)
    found = libdevice.call(f"__nv_fast_{name}f", arguments)
    assert found.dtype == np.float32
    assert np.abs(errors(found, arguments, exact)).max() <= 0.501


@pytest.mark.parametrize("mode", DIRECTIONS)
@pytest.mark.parametrize("name", [*ARITHMETIC, "fma", "rcp", "sqrt"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_in_a_direction(name, mode, dtype):
    letter = "f" if dtype == np.float32 else "d"
    symbol = f"__nv_fma{'f' * (letter == 'f')}_{mode}" if name == "fma" else f"__nv_{letter}{name}_{mode}"
    exact = ARITHMETIC | {"fma": lambda x, y, z: x * y + z, "rcp": lambda x: 1 / x, "sqrt": mp.sqrt}
    count = {"fma": 3, "rcp": 1, "sqrt": 1}.get(name, 2)
    arguments = samples([powers(-30, 30) if name == "sqrt" else normal(3)] * count, dtype)
    found = libdevice.call(symbol, arguments)
    error = errors(found, arguments, exact[name])
    side = np.sign(found) * error
    assert np.abs(error).max() <= DIRECTIONS[mode]
    assert {"rn": True, "rz": side.max() <= 0, "rd": error.max() <= 0, "ru": error.min() >= 0}[mode]
    assert mode == "rn" or np.abs(error).max() > 0.5  # it is not all rounded to nearest


NAN, INF = math.nan, math.inf
SPECIAL = [  # from the CUDA Math API's reference
    ("rsqrtf", [0.0, -0.0, INF, -1.0, NAN], [INF, -INF, 0.0, NAN, NAN]),
    ("tanhf", [0.0, -0.0, INF, -INF, NAN], [0.0, -0.0, 1.0, -1.0, NAN]),
    ("expf", [-INF, INF, 200.0, -200.0], [0.0, INF, INF, 0.0]),
    ("log1pf", [-1.0, -2.0, INF, -0.0], [-INF, NAN, INF, -0.0]),
    ("erff", [INF, -INF, -0.0], [1.0, -1.0, -0.0]),
    ("erfinv", [1.0, -1.0, 0.0, 1.5], [INF, -INF, 0.0, NAN]),
    ("erfcinv", [0.0, 2.0, 1.0, -1.0], [INF, -INF, 0.0, NAN]),
    ("normcdfinv", [0.0, 1.0, 0.5, -1.0], [-INF, INF, 0.0, NAN]),
    ("normcdf", [INF, -INF, 0.0], [1.0, 0.0, 0.5]),
    ("erfcx", [INF, -INF, 0.0], [0.0, INF, 1.0]),
    ("tgamma", [0.0, -0.0, -1.0, INF, -INF], [INF, -INF, NAN, INF, NAN]),
    ("sinpif", [1.0, 2.5, -0.0, INF], [0.0, 1.0, -0.0, NAN]),
    ("cospif", [0.5, 1.0, 1e8], [0.0, -1.0, 1.0]),
    ("logbf", [0.0, INF, 0.3], [-INF, INF, -2.0]),
    ("roundf", [0.5, -0.5, 2.5, 0.49999997], [1.0, -1.0, 3.0, 0.0]),
    ("rintf", [0.5, 1.5, 2.5], [0.0, 2.0, 2.0]),
    ("fast_powf", [(-2.0, 2.0), (2.0, 3.0)], [NAN, 8.0]),
    ("fast_fdividef", [(1.0, 2.0**127), (INF, 2.0**127), (6.0, 3.0)], [0.0, NAN, 2.0]),
    ("powf", [(-2.0, 3.0), (-2.0, 0.5), (0.0, 0.0), (1.0, NAN)], [-8.0, NAN, 1.0, 1.0]),
    ("hypotf", [(INF, NAN), (3.0, 4.0), (0.0, 0.0)], [INF, 5.0, 0.0]),
    ("saturatef", [NAN, 2.0, -1.0, 0.25], [0.0, 1.0, 0.0, 0.25]),
    ("fdimf", [(1.0, 2.0), (2.0, 1.0), (NAN, 1.0)], [0.0, 1.0, NAN]),
    ("copysignf", [(1.0, -0.0)], [-1.0]),
    ("nextafterf", [(1.0, 2.0)], [1 + 2.0**-23]),
    ("fadd_rd", [(3e38, 3e38), (INF, 1.0)], [float(np.finfo(np.float32).max), INF]),
]


@pytest.mark.parametrize(("name", "given", "expected"), SPECIAL, ids=[each[0] for each in SPECIAL])
def test_special_values_are_cudas(name, given, expected):
    dtype = np.float64 if name in {"erfinv", "erfcinv", "normcdfinv", "normcdf", "erfcx", "tgamma"} else np.float32
    columns = zip(*given, strict=True) if isinstance(given[0], tuple) else [given]
    with np.errstate(all="ignore"):
        found = libdevice.call(f"__nv_{name}", [np.array(column, dtype) for column in columns])
    np.testing.assert_array_equal(found, np.array(expected, dtype))
    for y, truth in zip(found.tolist(), expected, strict=True):
        assert math.isnan(truth) or math.copysign(1, y) == math.copysign(1, truth)


I32, U32, I64 = np.int32, np.uint32, np.int64
INTEGERS = [
    ("clz", [[1, 0, -1]], I32, [31, 32, 0]),
    ("clzll", [[1, 0, -1]], I64, [63, 64, 0]),
    ("popc", [[-1, 5]], I32, [32, 2]),
    ("popcll", [[-1, 5]], I64, [64, 2]),
    ("ffs", [[0, 1, 8]], I32, [0, 1, 4]),
    ("brev", [[1, 2]], I32, [-(2**31), 2**30]),
    ("byte_perm", [[0x03020100], [0x07060504], [0x7531]], I32, [0x07050301]),
    ("mulhi", [[2**30, -1], [4, 1]], I32, [1, -1]),
    ("umulhi", [[2**32 - 1], [2**32 - 1]], U32, [2**32 - 2]),
    ("mul64hi", [[2**62], [4]], I64, [1]),
    ("mul24", [[3, -3], [5, 5]], I32, [15, -15]),
    ("sad", [[1, 7], [5, 2], [3, 3]], I32, [7, 8]),
    ("abs", [[-3]], I32, [3]),
    ("hadd", [[3, -3], [4, -4]], I32, [3, -4]),
    ("rhadd", [[3, -3], [4, -4]], I32, [4, -3]),
    ("float_as_int", [[1.0, -0.0]], np.float32, [0x3F800000, -(2**31)]),
    ("int_as_float", [[0x3F800000]], I32, [1.0]),
    ("double2hiint", [[1.0]], np.float64, [0x3FF00000]),
    ("float2int_rn", [[2.5, -2.5, 3e9, -3e9, math.nan]], np.float32, [2, -2, 2**31 - 1, -(2**31), 0]),
    ("float2int_ru", [[2.1, -2.1]], np.float32, [3, -2]),
    ("float2uint_rz", [[-1.0, 3e9]], np.float32, [0, 3_000_000_000 - 2**32]),
    ("double2int_rz", [[math.nan, 7.9]], np.float64, [-(2**31), 7]),
    ("float2ll_rd", [[-0.5, 1e19, math.nan]], np.float32, [-1, 2**63 - 1, -(2**63)]),
    ("int2float_rn", [[2**24 + 1]], I32, [2.0**24]),
    ("int2float_ru", [[2**24 + 1]], I32, [2.0**24 + 2]),
    ("ll2double_rz", [[2**53 + 1, -(2**53) - 1]], I64, [2.0**53, -(2.0**53)]),
    ("uint2float_rd", [[-1]], I32, [2.0**32 - 256]),
    ("double2float_rz", [[0.1]], np.float64, [float(np.nextafter(np.float32(0.1), np.float32(0)))]),
    ("llroundf", [[2.5, -2.5]], np.float32, [3, -3]),
    ("ilogbf", [[8.0, 0.0, math.inf]], np.float32, [3, -(2**31), 2**31 - 1]),
    ("isnanf", [[math.nan, 1.0]], np.float32, [1, 0]),
    ("powif", [[2.0]], np.float32, [8.0]),
    ("ldexpf", [[0.75]], np.float32, [6.0]),
]


@pytest.mark.parametrize(("name", "given", "dtype", "expected"), INTEGERS, ids=[each[0] for each in INTEGERS])
def test_integers_and_conversions(name, given, dtype, expected):
    arguments = [np.array(column).astype(dtype) for column in given]
    if name in ("powif", "ldexpf"):
        arguments.append(np.array([3], np.int32))
    assert libdevice.call(f"__nv_{name}", arguments).tolist() == expected


def test_what_is_in_tritons_libdevice_is_here_but_for_bessel_functions():
    source = Path(of_cuda.__file__).read_text()
    missing = set(re.findall(r'"__nv_(\w+)"', source)) - set(libdevice.FUNCTIONS)
    bessel = {f"{name}{f}" for name in ("j0", "j1", "jn", "y0", "y1", "yn") for f in ("", "f")}
    bessel |= {f"cyl_bessel_i{n}{f}" for n in "01" for f in ("", "f")}
    assert missing == bessel | {"rcp64h"}


of_somebody = types.ModuleType("of_somebody")
of_somebody.tanh, of_somebody.exp = imported_tanh, tl.exp


@triton.jit
def however_kernel(x_ptr, y_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, rsqrt(x))
    tl.store(y_ptr + N + i, imported_tanh(x))
    tl.store(y_ptr + 2 * N + i, of_cuda.erf(x))
    tl.store(y_ptr + 3 * N + i, erf_of_cuda(x))
    tl.store(y_ptr + 4 * N + i, generic.log1p(x))
    tl.store(y_ptr + 5 * N + i, imported_log(x))
    tl.store(y_ptr + 6 * N + i, tl.extra.libdevice.pow(x, x))
    tl.store(y_ptr + 7 * N + i, tl.extra.cuda.libdevice.expm1(x))
    tl.store(y_ptr + 8 * N + i, of_somebody.exp(x))
    tl.store(y_ptr + 9 * N + i, tl.where(generic.isnan(x), 1.0, 2.0))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_however_it_is_imported(dtype):
    x = torch.rand(64, dtype=dtype) + 0.1
    y = torch.full((10, 64), torch.nan, dtype=dtype)
    traffic = measure(lambda: however_kernel[(1,)](x, y, N=64))
    assert (traffic.bytes_read, traffic.bytes_written) == (x.nbytes, y.nbytes)
    expected = [x.rsqrt(), x.tanh(), x.erf(), x.erf(), x.log1p(), x.log()]
    expected += [x**x, x.expm1(), x.exp(), torch.full_like(x, 2)]
    torch.testing.assert_close(y, torch.stack(expected), rtol=8 * torch.finfo(dtype).eps, atol=0)
    assert rsqrt is generic.rsqrt  # as it was


def test_it_compiles_as_it_is_imported():
    assert compile_for(however_kernel, torch.float32, torch.float32, N=64).registers


@triton.jit
def refused_kernel(x_ptr, WHICH: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 16))
    if WHICH == 0:
        x = generic.fast_tanhf(x)
    elif WHICH == 1:
        x = of_cuda.j0(x)
    elif WHICH == 2:
        x = of_cuda.tanh(x.to(tl.float16))
    elif WHICH == 3:
        x = tl.extra.hip.libdevice.tanh(x)
    elif WHICH == 4:
        x = of_cuda.atan2(x, 2)
    elif WHICH == 5:
        x = of_somebody.tanh(x)
    tl.store(x_ptr + tl.arange(0, 16), x)


@interpreted
@pytest.mark.parametrize(
    ("which", "line", "said"),
    [
        (0, "x = generic.fast_tanhf(x)", "NVIDIA's libdevice has no fast_tanhf: write it out"),
        (1, "x = of_cuda.j0(x)", "libdevice's j0f needs a GPU: without one, write it with tl's functions"),
        (2, "x = of_cuda.tanh(x.to(tl.float16))", "no such function of float16: write x.to(tl.float32) first"),
        (3, "x = tl.extra.hip.libdevice.tanh(x)", "is AMD's: import it from triton.language.extra.libdevice"),
        (4, "x = of_cuda.atan2(x, 2)", "no such function of float32 int32: write x.to(tl.float32) first"),
        (5, "x = of_somebody.tanh(x)", "write from triton.language.extra.libdevice import tanh"),
    ],
)
def test_refused_by_name(which, line, said):
    with pytest.raises(InterpreterError) as raised:
        refused_kernel[(1,)](torch.ones(16), WHICH=which)
    assert re.fullmatch(rf"refused_kernel, line \d+, `{re.escape(line)}`: .*{re.escape(said)}", str(raised.value))
    if which == 1:
        assert compile_for(refused_kernel, torch.float32, WHICH=which).registers
    else:
        with pytest.raises(ValueError, match="does not compile for H100"):
            compile_for(refused_kernel, torch.float32, WHICH=which)
