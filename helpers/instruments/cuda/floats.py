"""Floating-point operations rounded as on a GPU, where NumPy alone would round twice or differently."""

import ctypes
import math
from fractions import Fraction

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TINY = {np.dtype(np.float32): 2.0**-126, np.dtype(np.float16): 2.0**-14, np.dtype(np.float64): 2.0**-1022}
_NEAREST = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_libm = ctypes.CDLL("libm.so.6")
_libm.fma.restype = ctypes.c_double
_libm.fma.argtypes = [ctypes.c_double] * 3


def odd_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a + b of fp64, rounded to odd: rounding that again to fewer bits equals rounding once.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
    IEEE Transactions on Computers 57 (2008).
    """
    total = np.asarray(a + b)
    back = total - a
    error = (a - (total - back)) + (b - back)
    bits = total.view(np.int64)
    even = (error != 0) & np.isfinite(error) & (bits & 1 == 0)
    return np.where(even, bits + np.where((error > 0) == (total > 0), 1, -1), bits).view(np.float64)


def narrow(value: np.ndarray, dtype: np.dtype, mode: str = "rn") -> np.ndarray:
    """Round fp64 numbers, exact or rounded to odd, to dtype: "rn" (nearest even), "rz", "rm", "rp" (0, -inf, inf)."""
    if dtype == BFLOAT16:
        # ml_dtypes converts through fp32: round to odd there too.
        single = value.astype(np.float32)
        toward_zero = np.where(np.abs(single.astype(np.float64)) > np.abs(value), _step(single, -1), single)
        inexact = (toward_zero.astype(np.float64) != value) & np.isfinite(value)
        odd = np.where(np.isnan(value), single, (toward_zero.view(np.uint32) | inexact).view(np.float32))
        if mode == "rn":
            return odd.astype(BFLOAT16)
        result = (odd.view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)
        return np.where(np.isnan(value), value.astype(BFLOAT16), result) if mode == "rz" else _refuse(mode)
    result = value.astype(dtype)
    if mode == "rn":
        return result
    wide = result.astype(np.float64)
    beyond = {
        "rz": np.abs(wide) > np.abs(value),
        "rm": wide > value,
        "rp": wide < value,
    }[mode]
    toward = {"rz": 0.0, "rm": -np.inf, "rp": np.inf}[mode]
    return np.where(beyond, np.nextafter(result, dtype.type(toward)), result)


def _refuse(mode):
    raise NotImplementedError(f"rounding bfloat16 with .{mode} is not supported here")


def _step(value: np.ndarray, by: int) -> np.ndarray:
    """Return the neighbour in magnitude of finite or infinite fp32."""
    return (value.view(np.int32) + np.int32(by)).view(np.float32)


def fma32(a, b, c) -> np.ndarray:
    """Return a * b + c of fp32, rounded once."""
    product = np.multiply(a, b, dtype=np.float64)  # exact
    total = np.asarray(product + c)
    result = np.array(total, np.float32)
    # A second rounding matters only if the first ended halfway between two fp32 numbers, or among subnormals.
    doubtful = (total.view(np.uint64) & np.uint64(0x1FFFFFFF)) == np.uint64(0x10000000)
    doubtful |= np.abs(total) < TINY[result.dtype]
    if doubtful.any():
        product, c = (np.broadcast_to(each, total.shape) for each in (product, c))
        result[doubtful] = odd_sum(product[doubtful], c[doubtful].astype(np.float64)).astype(np.float32)
    return result


def fma_narrow(dtype: np.dtype, mode: str = "rn"):
    """Return a function for a * b + c rounded once: fp32 in any mode, fp16 or bf16 to nearest."""

    def fma(a, b, c):
        product = np.asarray(a).astype(np.float64) * np.asarray(b).astype(np.float64)
        return narrow(odd_sum(product, np.asarray(c).astype(np.float64)), dtype, mode)

    return fma


def _split(a):
    big = a * 134217729.0  # Veltkamp: 2**27 + 1
    high = big - (big - a)
    return high, a - high


def _two_sum(a, b):
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def fma64(a, b, c) -> np.ndarray:
    """Return a * b + c of fp64, rounded once."""
    a, b, c = np.broadcast_arrays(*map(np.asarray, (a, b, c)))
    product = a * b
    (ah, al), (bh, bl) = _split(a), _split(b)
    rest = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    upper, lower = _two_sum(c, rest)
    high, low = _two_sum(product, upper)
    result = np.asarray(high + odd_sum(lower, low))
    # Splitting overflows or loses bits at the ends of the range; the C library rounds those, one by one.
    sizes = np.abs(np.stack([a, b, product]))
    regular = ((sizes > 1e-120) & (sizes < 1e120)).all(0) & (np.abs(c) < 1e200)
    regular &= np.abs(result) > 1e-200
    for place in np.flatnonzero(~regular):
        result.flat[place] = _libm.fma(a.flat[place], b.flat[place], c.flat[place])
    return result


def directed64(name: str, mode: str):
    """Return an fp64 operation ("add", "subtract", "multiply", "divide", "sqrt", "fma") rounded "rz", "rm" or "rp"."""
    nearest = fma64 if name == "fma" else getattr(np, name)
    exact = {
        "add": lambda a, b: a + b,
        "subtract": lambda a, b: a - b,
        "multiply": lambda a, b: a * b,
        "fma": lambda a, b, c: a * b + c,
    }

    def above(result: float, values) -> int:
        """Return 1 if the exact result is above the rounded one, -1 if it is below, 0 if they are equal."""
        if not all(map(math.isfinite, values)) or math.isnan(result):
            return 0
        if math.isinf(result):
            return 0 if name == "divide" and values[1] == 0 else -1 if result > 0 else 1
        values, result = [Fraction(value) for value in values], Fraction(result)
        if name == "sqrt":
            difference = values[0] - result * result
        elif name == "divide":
            difference = (values[0] - result * values[1]) * values[1]
        else:
            difference = exact[name](*values) - result
        return (difference > 0) - (difference < 0)

    def operate(*values):
        values = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in values))
        result = np.array(nearest(*values))
        if name in ("add", "subtract") and np.isfinite(result).all():
            a, b = values[0], values[1] if name == "add" else -values[1]
            direction = np.sign(_two_sum(a, b)[1])
            cancelled = (result == 0) & (a != 0)
            result = np.where(cancelled, -0.0 if mode == "rm" else 0.0, result)
        else:
            rows = zip(result.ravel().tolist(), *(each.ravel().tolist() for each in values), strict=True)
            direction = np.array([above(first, rest) for first, *rest in rows]).reshape(result.shape)
        if mode == "rz":
            return np.where(direction * np.sign(result) < 0, np.nextafter(result, 0.0), result)
        wrong = direction < 0 if mode == "rm" else direction > 0
        return np.where(wrong, np.nextafter(result, -np.inf if mode == "rm" else np.inf), result)

    return operate


def directed(ufunc, mode: str):
    """Return ufunc (add, subtract, multiply) of fp32, rounded in `mode`."""

    def operate(a, b):
        a, b = np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64)
        if ufunc is np.multiply:
            return narrow(a * b, np.dtype(np.float32), mode)
        return narrow(odd_sum(a, -b if ufunc is np.subtract else b), np.dtype(np.float32), mode)

    return operate


def flush(value):
    """Replace subnormal numbers with zeros of their sign (.ftz)."""
    value = np.asarray(value)
    return np.where(np.abs(value) < TINY[value.dtype], np.copysign(value.dtype.type(0), value), value)


def saturate(value):
    """Clamp to [0, 1]; NaN becomes 0 (.sat)."""
    dtype = value.dtype
    clean = np.where(np.isnan(value), dtype.type(0), value)
    return np.minimum(np.maximum(clean, dtype.type(0)), dtype.type(1)) + dtype.type(0)


def relu(value):
    """Return max(value, 0); NaN stays (.relu)."""
    return np.where(value > 0, value, np.where(np.isnan(value), value, value.dtype.type(0)))


def extreme(largest: bool, nan: bool, xorsign: bool):
    """Return PTX's max or min: a number wins over NaN unless `nan`; +0 is above -0."""
    choose = np.maximum if largest else np.minimum

    def of(a, b):
        a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
        sign = np.signbit(a) ^ np.signbit(b)
        if xorsign:
            a, b = np.abs(a), np.abs(b)
        missing = np.isnan(a), np.isnan(b)
        result = choose(a, b)
        zeros = (a == 0) & (b == 0)
        if zeros.any():
            negative = (np.signbit(a) & np.signbit(b)) if largest else (np.signbit(a) | np.signbit(b))
            zero = a.dtype.type(0)
            result = np.where(zeros, np.where(negative, -zero, zero), result)
        if not nan and (missing[0].any() or missing[1].any()):
            result = np.where(missing[0], b, np.where(missing[1], a, result))
        if xorsign:
            result = np.where(sign, -result, result)
        return result

    return of


def to_integer(dtype: np.dtype, mode: str, source: np.dtype):
    """Convert float to integer: rounded in `mode` ("rni", ...), saturating; NaN as in the PTX ISA's cvt."""
    limits = np.iinfo(dtype)
    half = 1 << (8 * dtype.itemsize - 1)
    nan = 0 if source != np.float64 and dtype.itemsize < 8 else -half if dtype.kind == "i" else half
    below = float(2 ** (8 * dtype.itemsize - (dtype.kind == "i")))  # one past the largest

    def convert(value):
        whole = _NEAREST[mode](np.asarray(value).astype(np.float64))
        inside = (whole >= limits.min) & (whole < below)
        result = np.where(whole < 0, np.array(limits.min, dtype), np.array(limits.max, dtype))
        result = np.where(inside, np.where(inside, whole, 0).astype(dtype), result)
        return np.where(np.isnan(whole), dtype.type(nan), result)

    return convert


def to_whole(mode: str):
    """Round a float to an integral value of its own type."""
    return _NEAREST[mode]


def from_integer(dtype: np.dtype, mode: str):
    """Convert integer to float, rounded once."""

    def convert(value):
        value = np.asarray(value)
        if value.dtype.itemsize < 8:
            return narrow(value.astype(np.float64), dtype, mode)
        if mode == "rn" and dtype != BFLOAT16 and dtype != np.float16:
            return value.astype(dtype)
        high = np.floor_divide(value, 1 << 32).astype(np.float64) * 2.0**32
        low = (value & value.dtype.type(0xFFFFFFFF)).astype(np.float64)
        if dtype == np.float64:
            raise NotImplementedError(f"rounding a 64-bit integer to fp64 with .{mode} is not supported here")
        return narrow(odd_sum(high, low), dtype, mode)

    return convert
