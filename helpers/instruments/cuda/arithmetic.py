"""PTX arithmetic instructions as functions of NumPy arrays.

`operation(instruction)` returns the function, the type of the result and the types of the operands. Semantics are those
of NVIDIA's "Parallel Thread Execution ISA"; approximate instructions (.approx, .full) are computed in fp64 and rounded
once, which is within the error that the ISA allows.
"""

import numpy as np

from helpers.instruments.cuda import floats, integers
from helpers.instruments.cuda.operation import DTYPES, FLOATS, Operation, UnknownInstructionError, unknown
from helpers.instruments.cuda.ptx import PtxInstruction

ROUNDINGS = ("rn", "rz", "rm", "rp")


def operation(instruction: PtxInstruction) -> Operation:
    """Return the function that computes an arithmetic instruction.

    Raises:
        UnknownInstructionError: this executor does not support it.
    """
    build = BUILDERS.get(instruction.opcode)
    if build is None or not instruction.modifiers:
        raise UnknownInstructionError
    *modifiers, type = instruction.modifiers
    if type not in DTYPES:
        raise UnknownInstructionError
    return build(modifiers, type)


def _only(modifiers, *allowed) -> set[str]:
    if set(modifiers) - set(allowed):
        raise UnknownInstructionError
    return set(modifiers)


def _float(compute, modifiers, type, operands: int) -> Operation:
    """Wrap `compute` with the effects of .ftz, .sat and .relu."""
    flushing = "ftz" in modifiers and type in ("f32", "f16", "f16x2")
    final = [floats.flush] if flushing else []
    final += [floats.saturate] if "sat" in modifiers else []
    final += [floats.relu] if "relu" in modifiers else []
    if not final:
        return Operation(compute, type, (type,) * operands)

    def whole(*values):
        result = compute(*(map(floats.flush, values) if flushing else values))
        for step in final:
            result = step(result)
        return result

    return Operation(whole, type, (type,) * operands)


def _two(ufunc):
    """add, sub or mul."""

    def build(modifiers, type):
        if type not in FLOATS:
            return integers.two(ufunc, modifiers, type)
        modifiers = _only(modifiers, *ROUNDINGS, "ftz", "sat")
        mode = next((mode for mode in ROUNDINGS if mode in modifiers), "rn")
        if mode != "rn" and type == "f64":
            return _float(floats.directed64(ufunc.__name__, mode), modifiers, type, 2)
        if mode != "rn" and type != "f32":
            raise UnknownInstructionError
        return _float(ufunc if mode == "rn" else floats.directed(ufunc, mode), modifiers, type, 2)

    return build


def _fma(modifiers, type):
    if type not in FLOATS:
        return integers.multiply_add(modifiers, type)
    modifiers = _only(modifiers, *ROUNDINGS, "ftz", "sat", "relu")
    mode = next((mode for mode in ROUNDINGS if mode in modifiers), "rn")
    if type == "f64" and mode == "rn":
        compute = floats.fma64
    elif type == "f32" and mode == "rn":
        compute = floats.fma32
    elif type != "f64" and (mode == "rn" or type == "f32"):
        compute = floats.fma_narrow(DTYPES[type], mode)
    elif type == "f64":
        compute = floats.directed64("fma", mode)
    else:
        raise UnknownInstructionError
    return _float(compute, modifiers, type, 3)


def _divide(modifiers, type):
    if type not in ("f32", "f64"):
        return integers.divide(modifiers, type)
    if type == "f64" and modifiers[0] in ROUNDINGS[1:]:
        return Operation(floats.directed64("divide", modifiers[0]), type, (type, type))
    modifiers = _only(modifiers, "rn", "full", "approx", "ftz")
    return _float(np.divide, modifiers, type, 2)


def _approximate(compute, *allowed):
    """Apply `compute` to one operand in fp64, rounded once."""

    def build(modifiers, type):
        modifiers = _only(modifiers, "approx", "ftz", *allowed)
        if type not in FLOATS or (type == "f64" and "rn" not in modifiers):
            raise UnknownInstructionError

        def rounded(value):
            return floats.narrow(compute(np.asarray(value).astype(np.float64)), DTYPES[type])

        return _float(rounded, modifiers, type, 1)

    return build


def _reciprocal_root(modifiers, type):
    if type != "f64":
        return _approximate(lambda x: 1 / np.sqrt(x))(modifiers, type)
    if "ftz" in _only(modifiers, "approx", "ftz"):
        return Operation(lambda value: _upper(1 / np.sqrt(_upper(value))), type, (type,))
    return Operation(lambda value: (1 / np.sqrt(np.asarray(value, np.longdouble))).astype(np.float64), type, (type,))


def _root(modifiers, type):
    if type == "f64" and modifiers[0] in ROUNDINGS[1:]:
        return Operation(floats.directed64("sqrt", modifiers[0]), type, (type,))
    modifiers = _only(modifiers, "rn", "approx", "ftz")
    if type not in ("f32", "f64"):
        raise UnknownInstructionError
    return _float(np.sqrt, modifiers, type, 1)


def _reciprocal(modifiers, type):
    if type == "f64" and modifiers[0] in ROUNDINGS[1:]:
        divide = floats.directed64("divide", modifiers[0])
        return Operation(lambda value: divide(1.0, value), type, (type,))
    modifiers = _only(modifiers, "rn", "approx", "ftz")
    if type not in ("f32", "f64"):
        raise UnknownInstructionError
    if type == "f64" and "approx" in modifiers:
        return Operation(lambda value: _upper(1 / _upper(value)), type, (type,))
    one = DTYPES[type].type(1)
    return _float(lambda value: np.divide(one, value), modifiers, type, 1)


def _upper(value):
    """Keep an fp64 number's upper 32 bits, as the approximate reciprocal does to input and result; subnormals: 0."""
    kept = (np.asarray(value).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    return floats.flush(kept)


def _sign(float_compute, integer_compute):
    def build(modifiers, type):
        if type in FLOATS:
            return _float(float_compute, _only(modifiers, "ftz"), type, 1)
        _only(modifiers)
        return Operation(integer_compute, type, (type,))

    return build


def _extreme(largest: bool):
    def build(modifiers, type):
        if type not in FLOATS:
            return integers.extreme(largest, modifiers, type)
        modifiers = _only(modifiers, "ftz", "NaN", "xorsign", "abs")
        compute = floats.extreme(largest, "NaN" in modifiers, "xorsign" in modifiers)
        return _float(compute, modifiers, type, 2)

    return build


_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def _comparison(name: str, type: str):
    if type not in FLOATS:
        return _COMPARE.get(name) or unknown()
    if name in ("num", "nan"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (name == "nan")
    if name == "ne":
        return lambda a, b: (a < b) | (a > b)
    if name in ("eq", "lt", "le", "gt", "ge"):
        return _COMPARE[name]
    if name in ("equ", "neu", "ltu", "leu", "gtu", "geu"):
        base = _COMPARE[name[:2]]
        return lambda a, b: base(a, b) | np.isnan(a) | np.isnan(b)
    raise UnknownInstructionError


_BOOLEAN = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _set_predicate(modifiers, type):
    compare = _comparison(modifiers[0], type)
    rest = [modifier for modifier in modifiers[1:] if modifier != "ftz"]
    if "ftz" in modifiers:
        bare = compare
        compare = lambda a, b: bare(floats.flush(a), floats.flush(b))  # noqa: E731
    if not rest:
        return Operation(compare, "pred", (type, type))
    combine = _BOOLEAN.get(rest[0]) or unknown()
    return Operation(lambda a, b, c: combine(compare(a, b), c), "pred", (type, type, "pred"))


def _set(modifiers, type):
    """set: 1.0 or all ones if the comparison holds; the result's type precedes the operands'."""
    modifiers = [modifier for modifier in modifiers if modifier != "ftz"]
    if len(modifiers) != 2 or modifiers[1] not in DTYPES:
        raise UnknownInstructionError
    name, result = modifiers
    compare = _comparison(name, type)
    dtype = DTYPES[result]
    one = dtype.type(1) if result in FLOATS else dtype.type(-1 if dtype.kind == "i" else np.iinfo(dtype).max)
    zero = dtype.type(0)
    if type.endswith("x2") != result.endswith("x2"):
        raise UnknownInstructionError
    return Operation(lambda a, b: np.where(compare(a, b), one, zero), result, (type, type))


def _select(modifiers, type):
    _only(modifiers)
    return Operation(lambda a, b, c: np.where(c, a, b), type, (type, type, "pred"))


def _move(modifiers, type):
    _only(modifiers)
    return Operation(lambda a: a, type, (type,))


def _copy_sign(modifiers, type):
    _only(modifiers)
    return Operation(lambda a, b: np.copysign(b, a), type, (type, type))


def _test(modifiers, type):
    tests = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= floats.TINY[DTYPES[type]]) | (a == 0)),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < floats.TINY[DTYPES[type]]),
    }
    return Operation(tests[modifiers[0]], "pred", (type,))


def _convert(modifiers, source):
    """cvt: the result's type is the second to last modifier."""
    *modifiers, result = modifiers
    modifiers = _only(modifiers, *ROUNDINGS, "rni", "rzi", "rmi", "rpi", "rna", "ftz", "sat", "relu", "satfinite")
    if result == "tf32" and source == "f32" and modifiers <= {"rna", "rn"}:
        return Operation(_tf32(next(iter(modifiers))), "b32", ("f32",))
    if result not in DTYPES or modifiers & {"rna", "satfinite"}:
        raise UnknownInstructionError
    mode = next((modifier for modifier in modifiers if modifier[0] == "r" and modifier != "relu"), "rn")
    to = DTYPES[result]
    final = [floats.saturate] if "sat" in modifiers and result in FLOATS else []
    final += [floats.relu] if "relu" in modifiers else []
    if source not in FLOATS and result not in FLOATS:
        compute = integers.convert(DTYPES[source], to, "sat" in modifiers)
    elif source not in FLOATS:
        compute = floats.from_integer(to, mode)
    elif result not in FLOATS:
        compute = floats.to_integer(to, mode if mode.endswith("i") else unknown(), DTYPES[source])
    elif mode.endswith("i"):
        compute = lambda a: floats.to_whole(mode)(a).astype(to)  # noqa: E731
    else:
        compute = lambda a: floats.narrow(np.asarray(a).astype(np.float64), to, mode)  # noqa: E731
    if "ftz" in modifiers:
        final += [floats.flush] if result == "f32" else []
        bare = compute
        compute = (lambda a: bare(floats.flush(a))) if source == "f32" else bare

    def whole(value):
        value = compute(value)
        for step in final:
            value = step(value)
        return value

    if result.endswith("x2"):  # the first operand is the upper half
        return Operation(lambda a, b: _pack(whole(np.asarray(a)), whole(np.asarray(b))), "b32", (source, source))
    return Operation(whole, result, (source,))


def _pack(upper, lower):
    upper, lower = np.broadcast_arrays(upper, lower)
    halves = (np.ascontiguousarray(half).view(np.uint16).astype(np.uint32) for half in (upper, lower))
    return (next(halves) << np.uint32(16)) | next(halves)


def _tf32(mode):
    """Round to 10 bits of mantissa: to nearest, ties away from zero (rna) or to even (rn)."""

    def convert(value):
        bits = np.asarray(value).view(np.uint32)
        up = np.uint32(0x1000) if mode == "rna" else np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        return np.where(np.isfinite(value), (bits + up) & np.uint32(0xFFFFE000), bits)

    return convert


BUILDERS = {
    "add": _two(np.add), "sub": _two(np.subtract), "mul": _two(np.multiply),
    "fma": _fma, "mad": _fma, "div": _divide, "rem": integers.remainder,
    "rcp": _reciprocal, "sqrt": _root,
    "rsqrt": _reciprocal_root,
    "ex2": _approximate(np.exp2), "lg2": _approximate(np.log2),
    "sin": _approximate(np.sin), "cos": _approximate(np.cos), "tanh": _approximate(np.tanh),
    "neg": _sign(np.negative, np.negative), "abs": _sign(np.abs, np.abs),
    "max": _extreme(True), "min": _extreme(False),
    "setp": _set_predicate, "set": _set, "selp": _select, "mov": _move, "cvt": _convert,
    "copysign": _copy_sign, "testp": _test,
    **integers.BUILDERS,
}  # fmt: skip
