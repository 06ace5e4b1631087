"""Integer and bit instructions of PTX, as functions of NumPy arrays (see arithmetic.py)."""

import numpy as np

from helpers.instruments.cuda.operation import DTYPES, Operation, unknown

_BITS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def _operation(compute, result: str, *operands: str) -> Operation:
    return Operation(compute, result, operands)


def _wider(type: str) -> str:
    return type[0] + str(2 * int(type[1:]))


def two(ufunc, modifiers, type):
    """add, sub and mul of integers."""
    dtype = DTYPES[type]
    if ufunc is np.multiply:
        how = modifiers[0] if len(modifiers) == 1 else unknown()
        return _operation(_multiply(how, type), _wider(type) if how == "wide" else type, type, type)
    if modifiers == ["sat"] and type == "s32":
        return _operation(lambda a, b: _saturated(ufunc(np.asarray(a).astype(np.int64), b), dtype), type, type, type)
    return _operation(ufunc, type, type, type) if not modifiers else unknown()


def _saturated(value, dtype):
    limits = np.iinfo(dtype)
    return np.clip(value, limits.min, limits.max).astype(dtype)


def _multiply(how: str, type: str):
    dtype = DTYPES[type]
    bits = 8 * dtype.itemsize
    if how == "lo":
        return np.multiply
    if how == "wide" and bits < 64:
        return lambda a, b: np.multiply(a, b, dtype=DTYPES[_wider(type)])
    if how == "hi" and bits < 64:
        return lambda a, b: (np.multiply(a, b, dtype=DTYPES[_wider(type)]) >> bits).astype(dtype)
    if how == "hi":
        return _high64 if dtype.kind == "u" else _signed_high64
    return unknown()


def _high64(a, b):
    a, b = np.asarray(a, np.uint64), np.asarray(b, np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    cross1, cross2 = (a >> half) * (b & low), (a & low) * (b >> half)
    carry = (((a & low) * (b & low)) >> half) + (cross1 & low) + (cross2 & low)
    return (a >> half) * (b >> half) + (cross1 >> half) + (cross2 >> half) + (carry >> half)


def _signed_high64(a, b):
    a, b = np.asarray(a), np.asarray(b)
    high = _high64(a.view(np.uint64), b.view(np.uint64)).view(np.int64)
    return high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)


def multiply_add(modifiers, type):
    """mad of integers."""
    how = modifiers[0] if len(modifiers) == 1 else unknown()
    multiply, result = _multiply(how, type), _wider(type) if how == "wide" else type
    return _operation(lambda a, b, c: multiply(a, b) + c, result, type, type, result)


def carrying(how: str, modifiers, type: str):
    """Return compute(carry in, operands...) -> (result, carry out) for add, sub and mad; for sub, a borrow."""
    unsigned = np.dtype(f"u{int(type[1:]) // 8}").type
    if how not in ("add", "sub", "mad") or bool(modifiers) != (how == "mad") or int(type[1:]) < 32:
        unknown()
    multiply = _multiply(modifiers[0], type) if how == "mad" else None

    def compute(before, a, b, c=None):
        if how == "mad":
            a, b = multiply(a, b), c
        a, b = np.asarray(a).astype(unsigned), np.asarray(b).astype(unsigned)
        before = np.asarray(before).astype(unsigned)
        if how == "sub":
            first = a - b
            return first - before, (a < b) | (first < before)
        first = a + b
        result = first + before
        return result, (first < a) | (result < before)

    return compute


def _quotient(a, b):
    """Divide, rounding toward zero; all ones if b is 0, as on the hardware."""
    a, b = np.asarray(a), np.asarray(b)
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    floor = a // safe
    if a.dtype.kind == "i":
        floor = floor + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(zero, ~b.dtype.type(0), floor).astype(a.dtype)


def divide(modifiers, type):
    return _operation(_quotient, type, type, type) if not modifiers else unknown()


def remainder(modifiers, type):
    def rest(a, b):
        return (a - _quotient(a, b) * b).astype(DTYPES[type])

    return _operation(rest, type, type, type) if not modifiers and type[0] in "us" else unknown()


def extreme(largest: bool, modifiers, type):
    ufunc = np.maximum if largest else np.minimum
    if modifiers == ["relu"] and type == "s32":
        return _operation(lambda a, b: np.maximum(ufunc(a, b), np.int32(0)), type, type, type)
    return _operation(ufunc, type, type, type) if not modifiers else unknown()


def convert(source: np.dtype, to: np.dtype, saturating: bool):
    """Convert integer to integer: the low bits, or clamped."""
    if not saturating:
        return lambda a: np.asarray(a).astype(to)
    limits, own = np.iinfo(to), np.iinfo(source)
    low, high = max(limits.min, own.min), min(limits.max, own.max)
    return lambda a: np.clip(np.asarray(a), source.type(low), source.type(high)).astype(to)


def _logic(ufunc):
    def build(modifiers, type):
        if modifiers or type[0] not in "bp":
            unknown()
        return _operation(ufunc, type, type, type)

    return build


def _not(modifiers, type):
    return _operation(np.invert, type, type) if not modifiers else unknown()


def _logical_not(modifiers, type):
    return _operation(lambda a: (a == 0).astype(DTYPES[type]), type, type)


def _shift(left: bool):
    def build(modifiers, type):
        if modifiers:
            unknown()
        dtype = DTYPES[type]
        bits = 8 * dtype.itemsize

        def shifted(a, amount):
            most = np.minimum(np.asarray(amount), np.uint32(bits - 1)).astype(dtype)
            if left:
                return np.where(amount < bits, a << most, dtype.type(0))
            if dtype.kind == "i":
                return a >> most
            return np.where(amount < bits, a >> most, dtype.type(0))

        return _operation(shifted, type, type, "u32")

    return build


def _funnel(modifiers, type):
    direction, how = modifiers if len(modifiers) == 2 and type == "b32" else unknown()

    def shifted(low, high, amount):
        both = (np.asarray(high).astype(np.uint64) << np.uint64(32)) | low
        amount = np.asarray(amount).astype(np.uint64)
        amount = amount & np.uint64(31) if how == "wrap" else np.minimum(amount, np.uint64(32))
        if direction == "r":
            return (both >> amount).astype(np.uint32)
        return ((both << amount) >> np.uint64(32)).astype(np.uint32)

    return _operation(shifted, "b32", "b32", "b32", "u32")


def _extract(modifiers, type):
    """bfe"""
    dtype = DTYPES[type]
    bits = 8 * dtype.itemsize
    unsigned = _BITS[bits]

    def extracted(a, position, length):
        position = (np.asarray(position) & np.uint32(0xFF)).astype(np.int64)
        length = (np.asarray(length) & np.uint32(0xFF)).astype(np.int64)
        end = np.minimum(position + length, bits)
        raw = np.asarray(a).view(unsigned)
        shifted = np.where(position < bits, raw >> np.minimum(position, bits - 1).astype(unsigned), unsigned(0))
        kept = np.clip(end - position, 0, bits)
        mask = np.where(
            kept >= bits, ~unsigned(0), (unsigned(1) << np.minimum(kept, bits - 1).astype(unsigned)) - unsigned(1)
        )
        result = np.where(kept > 0, shifted & mask, unsigned(0))
        if dtype.kind == "u":
            return result
        # The sign is the field's highest bit, or the number's own if the field extends past its end.
        at = np.clip(np.minimum(position + length - 1, bits - 1), 0, bits - 1).astype(unsigned)
        sign = ((raw >> at) & unsigned(1)).astype(bool) & (length > 0)
        wide = np.where(length > 0, np.minimum(length, bits), 0)
        fill = np.where(wide >= bits, unsigned(0), ~unsigned(0) << np.minimum(wide, bits - 1).astype(unsigned))
        missing = np.where(kept >= bits, unsigned(0), ~unsigned(0) << np.clip(kept, 0, bits - 1).astype(unsigned))
        return np.where(sign, result | fill | missing, result).view(dtype)

    return _operation(extracted, type, type, "u32", "u32") if not modifiers and type[0] in "us" else unknown()


def _insert(modifiers, type):
    """bfi"""
    bits = int(type[1:])
    unsigned = _BITS[bits]

    def inserted(a, b, position, length):
        position = (np.asarray(position) & np.uint32(0xFF)).astype(np.int64)
        length = (np.asarray(length) & np.uint32(0xFF)).astype(np.int64)
        kept = np.clip(np.minimum(position + length, bits) - position, 0, bits)
        ones = np.where(
            kept >= bits, ~unsigned(0), (unsigned(1) << np.minimum(kept, bits - 1).astype(unsigned)) - unsigned(1)
        )
        at = np.clip(position, 0, bits - 1).astype(unsigned)
        mask = np.where(position < bits, ones << at, unsigned(0))
        return (b & ~mask) | ((a << at) & mask)

    return _operation(inserted, type, type, type, "u32", "u32") if not modifiers and type[0] == "b" else unknown()


def _mask(modifiers, type):
    """bmsk: a run of ones that starts at a given bit."""

    def masked(position, length):
        position, length = np.asarray(position).astype(np.uint64), np.asarray(length).astype(np.uint64)
        most = (lambda v: v & np.uint64(31)) if modifiers == ["wrap"] else (lambda v: np.minimum(v, np.uint64(32)))
        ones = (np.uint64(1) << most(length)) - np.uint64(1)
        return ((ones << most(position)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    known = modifiers in (["clamp"], ["wrap"]) and type == "b32"
    return _operation(masked, "b32", "u32", "u32") if known else unknown()


def _permute(modifiers, type):
    """prmt without a mode: four bytes chosen from eight."""

    def permuted(a, b, selector):
        both = (np.asarray(b).astype(np.uint64) << np.uint64(32)) | a
        result = np.uint32(0)
        for byte in range(4):
            choice = (np.asarray(selector) >> np.uint32(4 * byte)) & np.uint32(0xF)
            value = (both >> ((choice & np.uint32(7)).astype(np.uint64) * np.uint64(8))) & np.uint64(0xFF)
            sign = np.where(value & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
            value = np.where(choice & np.uint32(8), sign, value)
            result = result | (value.astype(np.uint32) << np.uint32(8 * byte))
        return result

    return _operation(permuted, "b32", "b32", "b32", "b32") if not modifiers and type == "b32" else unknown()


def _lop3(modifiers, type):
    def looked_up(a, b, c, table):
        table = int(np.asarray(table).flat[0])  # an immediate
        a, b, c = np.broadcast_arrays(a, b, c)
        result = np.zeros_like(a)
        for place in range(8):
            if table >> place & 1:
                terms = (x if place >> bit & 1 else ~x for x, bit in ((a, 2), (b, 1), (c, 0)))
                result |= next(terms) & next(terms) & next(terms)
        return result

    return _operation(looked_up, "b32", "b32", "b32", "b32", "u32") if not modifiers else unknown()


def _population(modifiers, type):
    return _operation(lambda a: np.bitwise_count(a).astype(np.uint32), "u32", type)


def _leading_zeros(modifiers, type):
    bits = int(type[1:])
    return _operation(lambda a: (bits - 1 - _highest(a, bits)).astype(np.uint32), "u32", type)


def _highest(a, bits: int):
    """Return the position of the highest one; -1 if there is none."""
    place = np.full(np.shape(a), -1, np.int64)
    rest = np.asarray(a).astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        if step < bits:
            more = rest >> np.uint64(step) != 0
            place += np.where(more, step, 0)
            rest = np.where(more, rest >> np.uint64(step), rest)
    return place + (rest != 0)


def _find(modifiers, type):
    """bfind: the highest bit that is not the sign."""
    dtype = DTYPES[type]
    bits = 8 * dtype.itemsize

    def found(a):
        a = np.asarray(a)
        place = _highest((np.where(a < 0, ~a, a) if dtype.kind == "i" else a).view(_BITS[bits]), bits)
        if modifiers:
            place = np.where(place >= 0, bits - 1 - place, -1)
        return place.astype(np.int32).view(np.uint32)

    return _operation(found, "u32", type) if modifiers in ([], ["shiftamt"]) else unknown()


def _reverse(modifiers, type):
    bits = int(type[1:])
    unsigned = _BITS[bits]

    def reversed_(a):
        result, a = unsigned(0), np.asarray(a)
        for bit in range(bits):
            result = result | (((a >> unsigned(bit)) & unsigned(1)) << unsigned(bits - 1 - bit))
        return result

    return _operation(reversed_, type, type)


def _absolute_difference(modifiers, type):
    return _operation(lambda a, b, c: np.where(a < b, b - a, a - b) + c, type, type, type, type)


def _dot4(modifiers, type):
    """dp4a: four products of bytes, added to c."""
    first, second = modifiers[0], type

    def dot(a, b, c):
        a, b = (
            np.asarray(x).astype(np.uint32)[..., None].view(np.int8 if of == "s32" else np.uint8).astype(np.int64)
            for x, of in ((a, first), (b, second))
        )
        return (np.asarray(c).astype(np.int64) + (a * b).sum(-1)).astype(
            np.int32 if "s32" in (first, second) else np.uint32
        )

    result = "s32" if "s32" in (first, second) else "u32"
    return _operation(dot, result, "b32", "b32", result)


BUILDERS = {
    "and": _logic(np.bitwise_and), "or": _logic(np.bitwise_or), "xor": _logic(np.bitwise_xor),
    "not": _not, "cnot": _logical_not, "shl": _shift(True), "shr": _shift(False), "shf": _funnel,
    "bfe": _extract, "bfi": _insert, "bmsk": _mask, "prmt": _permute, "lop3": _lop3,
    "popc": _population, "clz": _leading_zeros, "bfind": _find, "brev": _reverse, "sad": _absolute_difference,
    "dp4a": _dot4,
}  # fmt: skip
