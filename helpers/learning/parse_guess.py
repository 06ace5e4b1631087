"""Parse numbers as people type them: 312/2.039, 3.9M, 20 MB, 20 000. If one is ambiguous, ask."""

import ast
import math
import operator
import re

PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BYTES = re.compile(r"([kKMGT]?)B")
NUMBER = re.compile(
    r"(?<![\w.,])"
    r"(?P<digits>\d{1,3}(?:[ ,]\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)"
    r"(?: ?(?P<prefix>[kKMGT])(?!\w))?"
)
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
LARGEST_POWER = 400  # 2^1024 and 10^309 don't fit in a float


def number_in(text: str, unit: str = "") -> float | None:
    """Return the number in `text`, converted to `unit`; it may be a sum or quotient, and may end with a unit.

    Returns:
        None if the text is empty.

    Raises:
        ValueError: it's not a number, or it's ambiguous; one line with a suggestion.
    """
    shown = " ".join(text.split())
    plain = shown.translate({0x2212: "-", 0xD7: "*", 0xF7: "/"}).removeprefix("~").removeprefix("≈").strip()
    if not plain:
        return None
    plain, factor = _without_unit(plain, unit)
    if found := re.search(r"(?<![\d,])\d+,\d+(?![\d,])", plain):
        whole, part = found[0].split(",")
        if len(part) != 3 or len(whole) > 3 or whole == "0":
            raise ValueError(f"{shown}: is it {whole}.{part} or {whole}{part}? Type it without the comma")
    if factor == 1 and unit[:1] in PREFIXES and len(unit) > 1 and re.search(rf"\d ?{unit[0]}$", plain):
        short = plain.removesuffix(unit[0]).strip()
        raise ValueError(f"{shown}: is it {short} {unit}? Then type {short}")
    expression = NUMBER.sub(_digits, plain).replace("^", "**")
    if not re.fullmatch(r"[\d.eE()+*/ -]+", expression):
        raise ValueError(_no_number(shown, unit))
    try:
        value = _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError(_no_number(shown, unit)) from None
    except ArithmeticError:
        raise ValueError(f"{shown} has no value: type a number such as 12 or 0.5") from None
    if not math.isfinite(value):
        raise ValueError(f"{shown} has no value: type a number such as 12 or 0.5")
    return value * factor


def _as_typed(unit: str) -> str:
    """Return a unit in small letters; "µs" is also typed "us"."""
    return unit.casefold().replace("\u03bc", "u")  # what a micro sign folds to


def _without_unit(text: str, unit: str) -> tuple[str, float]:
    """Return the text before its unit, and the factor from that unit to the requested one."""
    if found := re.search(r"(?<=[\d)\s.])\s*(%|[^\W\d_][^\d()*+^]*)$", text):
        typed = found[1].strip()
        before = text[: found.start()].strip()
        if unit and _as_typed(typed) in {_as_typed(unit), _as_typed(unit).removesuffix("s")}:
            return before, 1
        if unit == "times" and typed in ("x", "X"):
            return before, 1
        asked, given = BYTES.fullmatch(unit), BYTES.fullmatch(typed)
        if asked and given:
            return before, PREFIXES.get(given[1], 1) / PREFIXES.get(asked[1], 1)
        if typed not in PREFIXES and typed.casefold() != "e":
            raise ValueError(_no_number(text, unit))
    return text, 1


def _no_number(text: str, unit: str) -> str:
    return f"{text} is not a number{f' of {unit}' if unit else ''}: type one such as 12, 0.5, 3.9M or 312/2"


def _digits(found: re.Match) -> str:
    # Python doesn't accept leading zeros.
    number = re.sub(r"^0+(?=\d)", "", found["digits"].replace(" ", "").replace(",", ""))
    return f"({number}*{PREFIXES[found['prefix']]!r})" if found["prefix"] else number


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.UnaryOp(op=operation, operand=operand) if type(operation) in OPERATIONS:
            return OPERATIONS[type(operation)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = _value(left), _value(right)
            if abs(power) > LARGEST_POWER:
                raise OverflowError
            value = base**power
            if isinstance(value, complex):
                raise ZeroDivisionError
            return value
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in OPERATIONS:
            return OPERATIONS[type(operation)](_value(left), _value(right))
    raise TypeError
