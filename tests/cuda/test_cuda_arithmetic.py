"""Each rounding against exact rational numbers, each integer instruction against Python's own integers."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16

from helpers.instruments.cuda import floats
from helpers.instruments.cuda.arithmetic import operation
from helpers.instruments.cuda.operation import DTYPES, UnknownInstructionError
from helpers.instruments.cuda.ptx import PtxInstruction

# Bits of the mantissa (the hidden one too), least exponent of a normal number, greatest.
FORMATS = {"f64": (53, -1022, 1023), "f32": (24, -126, 127), "f16": (11, -14, 15), "bf16": (8, -126, 127)}


def rounded(exact: Fraction, format: str, mode: str = "rn") -> float:
    """The number of the format that IEEE 754 asks for; from the definition."""
    digits, least, most = FORMATS[format]
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** (max(exponent, least) - digits + 1)
    below, rest = divmod(exact, unit)  # toward -infinity
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and below % 2 == 1),
        "rz": rest > 0 and exact < 0,
        "rm": False,
        "rp": rest > 0,
    }[mode]
    result = (below + up) * unit
    largest = (2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** most
    if abs(result) > largest:
        stays = mode == "rz" or (mode == "rm" and exact > 0) or (mode == "rp" and exact < 0)
        result = float(largest) if stays else float("inf")
        return result if exact > 0 else -result
    return float(result)


def of_bits(width: int):
    code = {64: "d", 32: "f", 16: "e"}[width]
    raw = st.integers(0, 2**width - 1).map(
        lambda bits: struct.unpack(f"<{code}", bits.to_bytes(width // 8, "little"))[0]
    )
    return raw.filter(lambda value: value == value and abs(value) != float("inf"))


def near(dtype, low, high):
    """Numbers of ordinary size, so that results are not all out of range."""
    return st.floats(low, high, width={"f64": 64, "f32": 32, "f16": 16}[dtype])


SINGLES = st.one_of(of_bits(32), near("f32", -4, 4))
DOUBLES = st.one_of(of_bits(64), near("f64", -4, 4))
HALVES = st.one_of(of_bits(16), near("f16", -4, 4))


def compute(name: str, *values):
    """One instruction, such as "fma.rn.f32", on single values."""
    opcode, *modifiers = name.split(".")
    found = operation(PtxInstruction(opcode, tuple(modifiers), (), None, 0, name))
    given_ = [np.array([value]).astype(DTYPES[type]) for value, type in zip(values, found.operands, strict=True)]
    with np.errstate(all="ignore"):
        return np.asarray(found.compute(*given_)).astype(DTYPES[found.result])[0]


def same(result, expected: float) -> bool:
    return float(result) == expected


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@settings(max_examples=300)
@given(a=SINGLES, b=SINGLES, c=SINGLES)
@example(a=1 + 2**-23, b=1 + 2**-23, c=2**-80)  # the product ends halfway, but for c
@example(a=2**-100, b=2**-49, c=2**-149)  # among subnormals
def test_fp32_is_rounded_once(mode, a, b, c):
    a, b, c = map(Fraction, (a, b, c))
    assert same(compute(f"fma.{mode}.f32", float(a), float(b), float(c)), rounded(a * b + c, "f32", mode))
    assert same(compute(f"add.{mode}.f32", float(a), float(b)), rounded(a + b, "f32", mode))
    assert same(compute(f"mul.{mode}.f32", float(a), float(b)), rounded(a * b, "f32", mode))
    assert same(compute(f"sub.{mode}.f32", float(a), float(b)), rounded(a - b, "f32", mode))


def test_a_product_of_constants_is_added_to_an_array():
    sums = np.array([1e-42, 0, 1, np.inf, -3e38], np.float32)
    one, tiny = np.float32(3e9), np.float32(1e-45)
    assert floats.fma32(one, np.float32(0), sums).tobytes() == sums.tobytes()
    assert floats.fma32(one, tiny, sums).tolist() == [floats.fma32(np.full(5, one), tiny, sums)[at] for at in range(5)]
    assert floats.fma32(tiny, tiny, tiny) == tiny


def test_rounding_twice_is_seen():
    """The wrong answer that the test above is there for: a sum rounded to fp64, then to fp32."""
    product = Fraction(1 + 2**-12) ** 2 + Fraction(2**-80)  # 1 + 2^-11 + 2^-24 + a little: just past halfway
    assert rounded(product, "f32") == 1 + 2**-11 + 2**-23
    assert float(np.float32(np.float64(1 + 2**-12) ** 2 + 2**-80)) == 1 + 2**-11
    assert same(compute("fma.rn.f32", 1 + 2**-12, 1 + 2**-12, 2**-80), 1 + 2**-11 + 2**-23)


@settings(max_examples=500)
@given(a=DOUBLES, b=DOUBLES, c=DOUBLES)
@example(a=2.0**-600, b=2.0**-500, c=2.0**-1074)
@example(a=1.7e308, b=1.5, c=-1.7e308)
def test_fp64_fma_is_rounded_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert same(compute("fma.rn.f64", a, b, c), rounded(exact, "f64"))


@settings(max_examples=300)
@given(a=HALVES, b=HALVES, c=HALVES)
def test_fp16_is_rounded_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert same(compute("fma.rn.f16", a, b, c), rounded(exact, "f16"))
    assert same(compute("add.f16", a, b), rounded(Fraction(a) + Fraction(b), "f16"))
    assert same(compute("mul.f16", a, b), rounded(Fraction(a) * Fraction(b), "f16"))


@settings(max_examples=300)
@given(a=SINGLES, b=SINGLES, c=SINGLES)
def test_bf16_is_rounded_once(a, b, c):
    a, b, c = (float((np.float32(each).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)) for each in (a, b, c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert same(compute("fma.rn.bf16", a, b, c), rounded(exact, "bf16"))
    assert same(compute("add.bf16", a, b), rounded(Fraction(a) + Fraction(b), "bf16"))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@settings(max_examples=300)
@given(value=DOUBLES)
def test_narrowing_is_rounded_once(mode, value):
    assert same(compute(f"cvt.{mode}.f32.f64", value), rounded(Fraction(value), "f32", mode))


@settings(max_examples=500)
@given(value=SINGLES)
@example(value=1.00390625)  # halfway between two of bf16
def test_fp32_to_sixteen_bits(value):
    for mode in ("rn", "rz"):
        assert same(compute(f"cvt.{mode}.bf16.f32", value), rounded(Fraction(value), "bf16", mode))
        assert same(compute(f"cvt.{mode}.f16.f32", value), rounded(Fraction(value), "f16", mode))


@settings(max_examples=300)
@given(value=st.integers(-(2**63), 2**63 - 1))
@example(value=2**53 + 1)
@example(value=(1 << 62) + (1 << 38) + 1)  # fp64 ends halfway between two of fp32
def test_integers_to_floats(value):
    assert same(compute("cvt.rn.f64.s64", value), rounded(Fraction(value), "f64"))
    for mode in ("rn", "rz", "rm", "rp"):
        assert same(compute(f"cvt.{mode}.f32.s64", value), rounded(Fraction(value), "f32", mode))
        assert same(compute(f"cvt.{mode}.f32.s32", value >> 32), rounded(Fraction(value >> 32), "f32", mode))
    assert same(compute("cvt.rn.f16.s32", value >> 32), rounded(Fraction(value >> 32), "f16"))
    assert same(compute("cvt.rn.bf16.s32", value >> 32), rounded(Fraction(value >> 32), "bf16"))


@settings(max_examples=300)
@given(value=st.one_of(DOUBLES, st.floats(-1e10, 1e10)))
def test_floats_to_integers_saturate(value):
    ways = {"rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil, "rni": round}
    for mode, whole in ways.items():
        for type, low, high in (("s32", -(2**31), 2**31 - 1), ("u32", 0, 2**32 - 1), ("s64", -(2**63), 2**63 - 1)):
            assert int(compute(f"cvt.{mode}.{type}.f64", value)) == min(max(whole(value), low), high)


@pytest.mark.parametrize(
    ("name", "nan"),
    [
        ("s32.f32", 0),
        ("u32.f32", 0),
        ("s64.f32", -(2**63)),
        ("u64.f32", 2**63),
        ("s32.f64", -(2**31)),
        ("u32.f64", 2**31),
    ],
)
def test_nan_to_integer_as_the_isa_says(name, nan):
    assert int(compute(f"cvt.rzi.{name}", np.nan)) == nan


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("max.f32", (np.nan, 1), 1),
        ("min.f32", (2, np.nan), 2),
        ("max.NaN.f32", (np.nan, 1), np.nan),
        ("max.f32", (-0.0, 0.0), 0.0),
        ("min.f32", (0.0, -0.0), -0.0),
        ("min.xorsign.abs.f32", (-3, 2), -2),
        ("add.sat.f32", (2, 3), 1),
        ("mul.sat.f32", (np.nan, 1), 0),
        ("fma.rn.relu.f16", (-1, 1, 0), 0),
        ("add.ftz.f32", (2**-127, 2**-127), 0),
        ("neg.f32", (0.0,), -0.0),
        ("copysign.f32", (-1, 5), -5),
        ("cvt.sat.f32.f32", (-2,), 0),
        ("cvt.rni.f32.f32", (2.5,), 2),
    ],
)
def test_special_values(name, values, expected):
    result = float(compute(name, *values))
    assert struct.pack("d", result) == struct.pack("d", expected) or (result != result and expected != expected)


@pytest.mark.parametrize("comparison", "eq ne lt le gt ge equ neu ltu leu gtu geu num nan".split())
@pytest.mark.parametrize(("a", "b"), [(1, 2), (2, 1), (1, 1), (np.nan, 1), (1, np.nan), (np.inf, -np.inf)])
def test_comparisons_ordered_and_not(comparison, a, b):
    either = np.isnan(a) or np.isnan(b)
    plain = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    expected = {"num": not either, "nan": either}.get(comparison)
    if expected is None:
        ordered = plain[comparison[:2]] and not either
        expected = ordered or either if comparison.endswith("u") else ordered
    assert bool(compute(f"setp.{comparison}.f32", a, b)) == expected


WORDS = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 31, 32, 33, 2**31, 2**32 - 1]))
LONGS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 63, 64, 2**63, 2**64 - 1]))


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


@settings(max_examples=300)
@given(a=WORDS, b=WORDS, c=WORDS)
def test_integers_of_32_bits(a, b, c):
    mask = 2**32 - 1
    sa, sb = signed(a, 32), signed(b, 32)

    def unsigned(name, *values):
        return int(compute(name, *(np.uint32(value) for value in values))) & mask

    def as_signed(name, *values):
        return int(compute(name, *(np.uint32(value).view(np.int32) for value in values))) & mask

    assert unsigned("add.u32", a, b) == (a + b) & mask
    assert as_signed("mul.hi.s32", a, b) == (sa * sb >> 32) & mask
    assert unsigned("mul.hi.u32", a, b) == a * b >> 32
    assert as_signed("mad.lo.s32", a, b, c) == (sa * sb + c) & mask
    assert as_signed("add.sat.s32", a, b) == min(max(sa + sb, -(2**31)), 2**31 - 1) & mask
    assert int(compute("mul.wide.s32", np.int32(sa), np.int32(sb))) == sa * sb
    assert unsigned("shl.b32", a, b % 64) == (a << b % 64) & mask
    assert unsigned("shr.u32", a, b % 64) == a >> b % 64
    assert int(compute("shr.s32", np.int32(sa), np.uint32(b % 64))) == sa >> min(b % 64, 31)
    assert unsigned("shf.l.wrap.b32", a, b, c) == (((b << 32 | a) << (c & 31)) >> 32) & mask
    assert unsigned("shf.r.clamp.b32", a, b, c) == ((b << 32 | a) >> min(c, 32)) & mask
    assert unsigned("popc.b32", a) == a.bit_count()
    assert unsigned("clz.b32", a) == 32 - a.bit_length()
    assert unsigned("brev.b32", a) == int(f"{a:032b}"[::-1], 2)
    assert unsigned("bfind.u32", a) == (a.bit_length() - 1) & mask
    assert unsigned("sad.u32", a, b, c) == (abs(a - b) + c) & mask
    if b:
        quotient = abs(sa) // abs(sb) * (-1 if (sa < 0) != (sb < 0) else 1)
        assert as_signed("div.s32", a, b) == quotient & mask
        assert as_signed("rem.s32", a, b) == (sa - quotient * sb) & mask
        assert unsigned("div.u32", a, b) == a // b


@settings(max_examples=300)
@given(a=LONGS, b=LONGS)
def test_integers_of_64_bits(a, b):
    mask = 2**64 - 1
    sa, sb = signed(a, 64), signed(b, 64)
    assert int(compute("mul.hi.u64", np.uint64(a), np.uint64(b))) == a * b >> 64
    assert int(compute("mul.hi.s64", np.int64(sa), np.int64(sb))) == sa * sb >> 64
    assert int(compute("mul.lo.u64", np.uint64(a), np.uint64(b))) == a * b & mask
    assert int(compute("clz.b64", np.uint64(a))) == 64 - a.bit_length()
    assert int(compute("shl.b64", np.uint64(a), np.uint32(b % 80))) == (a << b % 80) & mask


@settings(max_examples=300)
@given(a=WORDS, b=WORDS, position=st.integers(0, 40), length=st.integers(0, 40))
def test_fields_of_bits(a, b, position, length):
    field = (a >> position) & ((1 << length) - 1)
    assert int(compute("bfe.u32", np.uint32(a), np.uint32(position), np.uint32(length))) == field
    sign = a >> min(position + length - 1, 31) & 1 if length else 0
    # Bits past the end of the number are its sign, too.
    extended = (signed(a, 32) if sign else a) >> position & ((1 << length) - 1) if length else 0
    expected = extended - (1 << length) if sign and length and extended >> (length - 1) & 1 else extended
    expected = -1 if sign and position >= 32 else expected
    assert int(compute("bfe.s32", np.uint32(a).view(np.int32), np.uint32(position), np.uint32(length))) == signed(
        expected & 0xFFFFFFFF, 32
    )
    mask = ((1 << length) - 1) << position & 0xFFFFFFFF
    inserted = (b & ~mask) | (a << position & mask)
    assert int(compute("bfi.b32", np.uint32(a), np.uint32(b), np.uint32(position), np.uint32(length))) == inserted


@settings(max_examples=200)
@given(a=WORDS, b=WORDS, c=WORDS, table=st.integers(0, 255))
def test_bytes_chosen_and_bits_looked_up(a, b, c, table):
    pool = (b << 32 | a).to_bytes(8, "little")
    expected = 0
    for place in range(4):
        choice = c >> 4 * place & 15
        byte = pool[choice & 7]
        expected |= (0xFF if choice & 8 and byte & 0x80 else 0 if choice & 8 else byte) << 8 * place
    assert int(compute("prmt.b32", np.uint32(a), np.uint32(b), np.uint32(c))) == expected
    bits = [table >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1 for k in range(32)]
    looked_up = sum(bit << k for k, bit in enumerate(bits))
    assert int(compute("lop3.b32", np.uint32(a), np.uint32(b), np.uint32(c), np.uint32(table))) == looked_up


@pytest.mark.parametrize(
    ("name", "function", "values"),
    [
        ("ex2.approx.f32", np.exp2, np.linspace(-30, 30, 301)),
        ("lg2.approx.f32", np.log2, np.geomspace(1e-30, 1e30, 301)),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x), np.geomspace(1e-30, 1e30, 301)),
        ("tanh.approx.f32", np.tanh, np.linspace(-6, 6, 301)),
        ("sin.approx.f32", np.sin, np.linspace(-3, 3, 301)),
    ],
)
def test_approximations_are_the_functions(name, function, values):
    values = values.astype(np.float32)
    results = np.array([compute(name, value) for value in values])
    np.testing.assert_allclose(results, function(values.astype(np.float64)), rtol=2**-23)


def test_other_modifiers_are_unknown():
    for name in (
        "add.rn.f64x",
        "mul.wide.u64",
        "fma.rz.f16",
        "add.cc.u32",
        "cvt.rn.satfinite.e4m3x2.f32",
        "set.lt.f32",
    ):
        with pytest.raises(UnknownInstructionError):
            compute(name, 1, 1)


def test_odd_rounding_keeps_what_a_second_rounding_needs():
    total = floats.odd_sum(np.array([1.0]), np.array([2.0**-80]))
    assert total[0] == 1 + 2.0**-52
    assert floats.narrow(np.array([1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-40]), np.dtype(bfloat16)).tolist() == [1, 1 + 2**-7]


@given(position=st.integers(0, 70), length=st.integers(0, 70))
def test_masks_of_bits(position, length):
    ones = (1 << min(length, 32)) - 1
    assert int(compute("bmsk.clamp.b32", position, length)) == ones << min(position, 32) & 0xFFFFFFFF
    ones = (1 << length % 32) - 1
    assert int(compute("bmsk.wrap.b32", position, length)) == ones << position % 32 & 0xFFFFFFFF
