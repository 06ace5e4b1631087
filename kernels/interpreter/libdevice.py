"""NVIDIA's libdevice in NumPy: the functions of `tl.extra.cuda.libdevice`, by symbol name.

fp32 functions are computed in fp64 and rounded once. The errors of fp64 functions are within those that CUDA documents
(CUDA C++ Programming Guide, "Mathematical Functions"). Special values are CUDA's. The fast_ functions are exact to the
last bit here and approximate on a GPU. Outside the exact function's domain (fast_powf of a negative base, fast_dividef
by 2**126 or more), they return the GPU's value.
"""

import ctypes
import math
import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np

_libm = ctypes.CDLL("libm.so.6")


def _from_libm(name: str, arity: int = 1) -> Callable:
    function = getattr(_libm, name)
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double] * arity
    return np.vectorize(function, otypes=[np.float64])


_erf, _erfc, _tgamma, _lgamma = map(_from_libm, ("erf", "erfc", "tgamma", "lgamma"))
_remainder = _from_libm("remainder", 2)
_fma64 = _from_libm("fma", 3)
_fma32 = np.vectorize(_libm.fmaf, otypes=[np.float32])
_libm.fmaf.restype, _libm.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3


def _exp10(x: np.ndarray) -> np.ndarray:
    return np.power(10.0, x)


def _squared(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x * x as an unevaluated sum of two fp64 numbers."""
    high = x * x
    return high, np.where(np.isfinite(high), _fma64(x, x, -high), 0.0)


def _inverse(of: Callable, derivative_sign: float, y: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Solve of(y) = target for erf (sign 1) or erfc (sign -1) with Halley's method, starting from y."""
    for _ in range(4):
        slope = derivative_sign * 2 / math.sqrt(math.pi) * np.exp(-y * y)
        step = (of(y) - target) / slope
        y = y - np.where(np.isfinite(step), step / (1 + y * step), 0.0)
    return y


def _erfcinv(x: np.ndarray) -> np.ndarray:
    inside = (x > 0) & (x < 2)
    small = np.where(inside, np.minimum(x, 2 - x), 0.5)  # exact, because 2 - x is exact above 1
    # Winitzki's approximation of erfinv(1 - small), within 1 %.
    log = np.log(small * (2 - small))
    half = 2 / (math.pi * 0.147) + log / 2
    guess = np.sqrt(np.maximum(np.sqrt(half * half - log / 0.147) - half, 0))
    # In the central half, erf's target 1 - small is exact, and small itself has fewer digits.
    central = small >= 0.5
    found = np.where(
        central,
        _inverse(_erf, 1, np.where(central, guess, 0.1), np.where(central, 1 - small, 0.1)),
        _inverse(_erfc, -1, np.where(central, 1.0, guess), np.where(central, float(_erfc(1.0)), small)),
    )
    found = np.where(x > 1, -found, found)
    ends = np.where(x == 0, np.inf, np.where(x == 2, -np.inf, np.nan))
    return np.where(inside, found, ends)


def _erfinv(x: np.ndarray) -> np.ndarray:
    far = np.abs(x) > 0.5
    near = np.where(far | np.isnan(x), 0.0, x)
    by_erf = _inverse(_erf, 1, near * math.sqrt(math.pi) / 2, near)
    by_erf = np.where(near == 0, near, by_erf)
    return np.where(far | np.isnan(x), np.copysign(_erfcinv(np.where(far, 1 - np.abs(x), np.nan)), x), by_erf)


def _normcdf(x: np.ndarray) -> np.ndarray:
    # The argument -x / sqrt(2) is rounded: add its error times erfc's slope back.
    high, low = 0.7071067811865476, -4.833646656726457e-17
    z = np.clip(-x, -40.0, 40.0) * high
    rest = _fma64(np.clip(-x, -40.0, 40.0), high, -z) + np.clip(-x, -40.0, 40.0) * low
    square, more = _squared(z)
    found = 0.5 * (_erfc(z) - 2 / math.sqrt(math.pi) * np.exp(-square) * (1 - more) * rest)
    return np.where(np.isnan(x), np.nan, found)


def _normcdfinv(x: np.ndarray) -> np.ndarray:
    central = (x > 0.25) & (x < 0.75)
    middle = _erfinv(np.where(central, 2 * x - 1, 0.0))
    return math.sqrt(2) * np.where(central, middle, -_erfcinv(2 * x))


def _erfcx(x: np.ndarray) -> np.ndarray:
    near = np.clip(x, -27.0, 25.0)
    square, more = _squared(near)
    found = np.exp(square) * (1 + more) * _erfc(near)
    far = np.where(x > 25, x, 25.0)
    series, term = np.ones_like(far), np.ones_like(far)
    for k in range(1, 9):
        term = term * -(2 * k - 1) / (2 * far * far)
        series = series + term
    return np.where(x > 25, series / far / math.sqrt(math.pi), found)


def _gamma(x: np.ndarray) -> np.ndarray:
    return np.where((x < 0) & (np.floor(x) == x), np.nan, _tgamma(x))


def _of_turns(x: np.ndarray, shift: float) -> np.ndarray:
    """Return sin(pi * (x + shift)), for shift 0 or 1/2, exact at multiples of 1/2."""
    turns = np.fmod(x, 2.0)
    quarter = np.rint(2 * turns)
    left = math.pi * (turns - quarter / 2)
    place = (quarter + 2 * shift).astype(np.int64) % 4
    value = np.where(place % 2 == 0, np.sin(left), np.cos(left))
    value = np.where(place >= 2, -value, value)
    if shift:
        return np.where(value == 0, 0.0, value)
    return np.where(value == 0, np.copysign(0.0, x), value)


def _sinpi(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), _of_turns(np.where(np.isfinite(x), x, 0), 0.0), np.nan)


def _cospi(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), _of_turns(np.where(np.isfinite(x), x, 0), 0.5), np.nan)


def _norm(*parts: np.ndarray) -> np.ndarray:
    infinite = np.any([np.isinf(part) for part in parts], axis=0)
    largest = np.max([np.abs(part) for part in parts], axis=0)
    # Scale by a power of two: nothing overflows, and scaling rounds nothing.
    _, exponent = np.frexp(np.where(np.isfinite(largest), largest, 1.0))
    total = sum(np.square(np.ldexp(part, -exponent)) for part in parts)
    found = np.where(largest == 0, 0.0, np.ldexp(np.sqrt(total), exponent))
    return np.where(infinite, np.inf, found)


def _rsqrt64(x: np.ndarray) -> np.ndarray:
    y = 1 / np.sqrt(x)
    regular = np.isfinite(y) & (y > 1e-150) & (y < 1e150)
    s = np.where(regular, y, 1.0)
    square, more = _squared(s)
    error = _fma64(-np.where(regular, x, 1.0), square, np.ones_like(s)) - np.where(regular, x, 1.0) * more
    return np.where(regular, s + 0.5 * s * error, y)


def _ldexp(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    return np.ldexp(x, np.clip(n, -5000, 5000))


def _round(x: np.ndarray) -> np.ndarray:
    """Round halves away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1.0, x), whole)


def _logb(x: np.ndarray) -> np.ndarray:
    _, exponent = np.frexp(x)
    found = exponent.astype(np.float64) - 1
    return np.where(x == 0, -np.inf, np.where(np.isinf(x), np.inf, np.where(np.isnan(x), x, found)))


def _ilogb(x: np.ndarray) -> np.ndarray:
    _, exponent = np.frexp(x)
    found = np.where(np.isinf(x), 2**31 - 1, exponent.astype(np.int64) - 1)
    return np.where((x == 0) | np.isnan(x), -(2**31), found)


def _fdim(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x > y, x - y, 0.0))


def _fast_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    huge = (np.abs(y) > 2.0**126) & (np.abs(y) < 2.0**128)
    return np.where(huge, np.where(np.isinf(x), np.nan, np.copysign(0.0, x) * np.copysign(1.0, y)), x / y)


# Functions that exist in fp32 and fp64, by the name of the fp64 symbol; computed in fp64.
_NUMPYS = "floor ceil trunc rint sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh fmod copysign"
_FLOATS = {
    **{name: getattr(np, name) for name in _NUMPYS.split()},
    **{f"a{name}": getattr(np, f"arc{name}") for name in "sin cos tan sinh cosh tanh".split()},
    "nearbyint": np.rint,
    "round": _round,
    "fabs": np.abs,
    "rsqrt": _rsqrt64,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "exp10": _exp10,
    "logb": _logb,
    "sinpi": _sinpi,
    "cospi": _cospi,
    "atan2": np.arctan2,
    "hypot": _norm,
    "rhypot": lambda x, y: 1 / _norm(x, y),
    "norm3d": _norm,
    "rnorm3d": lambda *parts: 1 / _norm(*parts),
    "norm4d": _norm,
    "rnorm4d": lambda *parts: 1 / _norm(*parts),
    "erf": _erf,
    "erfc": _erfc,
    "erfinv": _erfinv,
    "erfcinv": _erfcinv,
    "erfcx": _erfcx,
    "normcdf": _normcdf,
    "normcdfinv": _normcdfinv,
    "lgamma": _lgamma,
    "tgamma": _gamma,
    "pow": np.power,
    "powi": lambda x, n: np.power(x, n.astype(np.float64)),
    "ldexp": _ldexp,
    "scalbn": _ldexp,
    "remainder": _remainder,
    "fdim": _fdim,
}
FAST = {
    **{name: getattr(np, name) for name in "sin cos tan exp log log2 log10".split()},
    "exp10": _exp10,
    "pow": lambda x, y: np.exp2(y * np.log2(x)),
    "fdivide": _fast_divide,
}


def _in_fp64(function: Callable, dtype) -> Callable:
    def compute(*arguments):
        wide = (x.astype(np.float64) if x.dtype.kind == "f" else x for x in arguments)
        return np.asarray(function(*wide)).astype(dtype)

    return compute


# Directed rounding: take the nearest result, and move it by one ulp if it is on the wrong side of the exact one.


def _exact_sqrt_side(root, x) -> int:
    square, exact = Fraction(float(root)) ** 2, Fraction(float(x))
    return (exact > square) - (exact < square)


def _directed(nearest: np.ndarray, side: np.ndarray, mode: str) -> np.ndarray:
    """Round in a direction. `side` is 1 if the exact result is above `nearest`, -1 if below, 0 if equal."""
    zero = nearest.dtype.type(0)
    up = nearest.dtype.type(np.inf)
    if mode == "rn":
        return nearest
    if mode == "ru":
        return np.where(side > 0, np.nextafter(nearest, up), nearest)
    if mode == "rd":
        return np.where(side < 0, np.nextafter(nearest, -up), nearest)
    beyond = ((nearest > 0) & (side < 0)) | ((nearest < 0) & (side > 0))
    return np.where(beyond, np.nextafter(nearest, zero), nearest)


def _rounded(compute: Callable, exact: Callable, dtype, mode: str) -> Callable:
    """Return a function with directed rounding from `compute`, the nearest result, and `exact`, the result in
    Fractions."""

    def side(nearest, *arguments) -> int:
        values = [float(x) if isinstance(x, float | np.floating) else int(x) for x in arguments]
        if not all(math.isfinite(x) for x in values):
            return 0
        try:
            truth = exact(*map(Fraction, values))
        except ZeroDivisionError:
            return 0
        if not math.isfinite(nearest):
            return -1 if nearest > 0 else 1
        found = Fraction(float(nearest))
        return (truth > found) - (truth < found)

    def of(*arguments):
        nearest = np.asarray(compute(*arguments)).astype(dtype)
        if mode == "rn":
            return nearest
        return _directed(nearest, np.vectorize(side, otypes=[np.int8])(nearest, *arguments), mode)

    return of


def _root(dtype, mode: str) -> Callable:
    def of(x):
        nearest = np.sqrt(x).astype(dtype)
        regular = (nearest > 0) & np.isfinite(nearest)
        sides = np.vectorize(_exact_sqrt_side, otypes=[np.int8])
        side = np.where(regular, sides(np.where(regular, nearest, 1), np.where(regular, x, 1)), 0)
        return _directed(nearest, side, mode)

    return of


_WHOLE = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}


def _to_integer(mode: str, name: str, source: str) -> Callable:
    """Convert with saturation. NaN becomes 0; from fp64 or to 64 bits, the integer with only the top bit set (PTX's
    cvt)."""
    dtype = np.dtype({"int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64}[name])
    limits = np.iinfo(dtype)
    nan = 0 if source == "float" and dtype.itemsize < 8 else 1 << (8 * dtype.itemsize - 1)

    def convert(x):
        whole = _WHOLE[mode](x.astype(np.float64))
        below = float(limits.max if dtype.itemsize < 8 else limits.max + 1)
        inside = (whole >= limits.min) & (whole < below)
        result = np.where(inside, np.where(inside, whole, 0).astype(dtype), dtype.type(limits.max))
        result = np.where(whole < limits.min, dtype.type(limits.min), result)
        result = np.where(np.isnan(x), np.array(nan, f"u{dtype.itemsize}").astype(dtype), result)
        return result.view(f"i{dtype.itemsize}")

    return convert


def _unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def _to_float(mode: str, name: str, dtype) -> Callable:
    rounded = _rounded(lambda x: x, lambda x: x, dtype, mode)
    return (lambda x: rounded(_unsigned(x))) if name.startswith("u") else rounded


def _by_int(function: Callable, dtype=None) -> Callable:
    """Return an integer function from one of Python integers; results wrap around."""

    def compute(*arguments):
        kept = np.dtype(dtype) if dtype else arguments[0].dtype
        bits = 8 * kept.itemsize
        places = np.frompyfunc(lambda *values: function(*map(int, values)) & ((1 << bits) - 1), len(arguments), 1)
        found = np.asarray(places(*arguments), dtype=object)
        return found.astype(f"u{kept.itemsize}").view(kept)

    return compute


def _bits(count: int, function: Callable) -> Callable:
    return lambda *values: function(*(value & ((1 << count) - 1) for value in values))


def _byte_perm(x: int, y: int, selector: int) -> int:
    eight = (x & 0xFFFFFFFF) | (y & 0xFFFFFFFF) << 32
    return sum((eight >> 8 * (selector >> 4 * place & 7) & 0xFF) << 8 * place for place in range(4))


def _low_24(x: int, *, signed: bool) -> int:
    low = x & 0xFFFFFF
    return low - (1 << 24) if signed and low >> 23 else low


_INTEGERS = {
    "clz": _by_int(_bits(32, lambda x: 32 - x.bit_length())),
    "clzll": _by_int(_bits(64, lambda x: 64 - x.bit_length()), np.int32),
    "popc": _by_int(_bits(32, int.bit_count)),
    "popcll": _by_int(_bits(64, int.bit_count), np.int32),
    "ffs": _by_int(_bits(32, lambda x: (x & -x).bit_length())),
    "ffsll": _by_int(_bits(64, lambda x: (x & -x).bit_length()), np.int32),
    "brev": _by_int(_bits(32, lambda x: int(f"{x:032b}"[::-1], 2))),
    "brevll": _by_int(_bits(64, lambda x: int(f"{x:064b}"[::-1], 2))),
    "byte_perm": _by_int(_byte_perm),
    "mulhi": _by_int(lambda x, y: x * y >> 32),
    "umulhi": _by_int(lambda x, y: x * y >> 32),
    "mul64hi": _by_int(lambda x, y: x * y >> 64),
    "umul64hi": _by_int(lambda x, y: x * y >> 64),
    "mul24": _by_int(lambda x, y: _low_24(x, signed=True) * _low_24(y, signed=True)),
    "umul24": _by_int(lambda x, y: _low_24(x, signed=False) * _low_24(y, signed=False)),
    "sad": _by_int(lambda x, y, z: abs(x - y) + z),
    "usad": _by_int(lambda x, y, z: abs(x - y) + z),
    "abs": _by_int(abs),
    "llabs": _by_int(abs),
    "hadd": _by_int(lambda x, y: x + y >> 1),
    "uhadd": _by_int(lambda x, y: x + y >> 1),
    "rhadd": _by_int(lambda x, y: x + y + 1 >> 1),
    "urhadd": _by_int(lambda x, y: x + y + 1 >> 1),
}


def _seen_as(dtype) -> Callable:
    return lambda x: np.ascontiguousarray(x).view(dtype)


def _hiloint2double(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    return ((_unsigned(high).astype(np.uint64) << np.uint64(32)) | _unsigned(low)).view(np.float64)


def _whether(function: Callable) -> Callable:
    return lambda x: function(x).astype(np.int32)


def _functions() -> dict[str, Callable]:
    found = {}
    for name, function in _FLOATS.items():
        found[name] = _in_fp64(function, np.float64)
        found[f"{name}f"] = _in_fp64(function, np.float32)
    found |= {f"fast_{name}f": _in_fp64(function, np.float32) for name, function in FAST.items()}
    found |= _INTEGERS
    for mode in ("rn", "rz", "rd", "ru"):
        for letter, dtype in (("f", np.float32), ("d", np.float64)):
            for name in ("add", "subtract", "multiply", "divide"):
                exact = getattr(operator, {"subtract": "sub", "multiply": "mul", "divide": "truediv"}.get(name, name))
                found[f"{letter}{name[:3]}_{mode}"] = _rounded(getattr(np, name), exact, dtype, mode)
            found[f"{letter}rcp_{mode}"] = _rounded(np.reciprocal, lambda x: 1 / x, dtype, mode)
            found[f"{letter}sqrt_{mode}"] = _root(dtype, mode)
        found[f"fmaf_{mode}"] = _rounded(_fma32, lambda x, y, z: x * y + z, np.float32, mode)
        found[f"fma_{mode}"] = _rounded(_fma64, lambda x, y, z: x * y + z, np.float64, mode)
        found[f"double2float_{mode}"] = _rounded(lambda x: x, lambda x: x, np.float32, mode)
        for name in ("int", "uint", "ll", "ull"):
            for other, dtype in (("float", np.float32), ("double", np.float64)):
                found[f"{other}2{name}_{mode}"] = _to_integer(mode, name, other)
                found[f"{name}2{other}_{mode}"] = _to_float(mode, name, dtype)
    found |= {
        "fmaf": found["fmaf_rn"],
        "fma": found["fma_rn"],
        "frsqrt_rn": _in_fp64(lambda x: 1 / np.sqrt(x), np.float32),
        "saturatef": _in_fp64(lambda x: np.fmin(np.fmax(x, 0.0), 1.0), np.float32),
        **dict.fromkeys(("nextafterf", "nextafter"), np.nextafter),
        "finitef": _whether(np.isfinite),
        **{f"{test}d": _whether(getattr(np, test)) for test in ("isnan", "isinf", "isfinite", "signbit")},
        **{f"{test}f": _whether(getattr(np, test)) for test in ("isnan", "isinf", "signbit")},
        **dict.fromkeys(("ilogbf", "ilogb"), lambda x: _ilogb(x).astype(np.int32)),
        "llrintf": _to_integer("rn", "ll", "float"),
        "llrint": _to_integer("rn", "ll", "double"),
        "llroundf": lambda x: _to_integer("rz", "ll", "float")(_round(x.astype(np.float64))),
        "llround": lambda x: _to_integer("rz", "ll", "double")(_round(x)),
        **dict.fromkeys(("int_as_float", "uint_as_float"), _seen_as(np.float32)),
        **dict.fromkeys(("float_as_int", "float_as_uint"), _seen_as(np.int32)),
        "longlong_as_double": _seen_as(np.float64),
        "double_as_longlong": _seen_as(np.int64),
        "hiloint2double": _hiloint2double,
        "double2loint": lambda x: np.ascontiguousarray(x).view(np.int64).astype(np.int32),
        "double2hiint": lambda x: (np.ascontiguousarray(x).view(np.int64) >> 32).astype(np.int32),
    }
    return found


FUNCTIONS = _functions()  # by symbol, without "__nv_"


def call(symbol: str, arguments: list[np.ndarray]) -> np.ndarray:
    """Return the result of a libdevice function, element by element.

    Args:
        symbol: the function's symbol, such as "__nv_tanhf".
        arguments: arrays of one shape, in the symbol's dtypes.

    Raises:
        NotImplementedError: the function is not implemented.
    """
    function = FUNCTIONS.get(symbol.removeprefix("__nv_"))
    if function is None:
        name = symbol.removeprefix("__nv_")
        raise NotImplementedError(f"libdevice's {name} needs a GPU: without one, write it with tl's functions")
    return np.asarray(function(*np.broadcast_arrays(*arguments)))
