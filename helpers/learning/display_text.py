"""Lines of text, and numbers in them, as lessons show them."""


class Unquoted(str):
    """Text that a notebook shows without quotes."""

    __repr__ = str.__str__


def number(value: float) -> str:
    """Four digits; whole numbers that have more in full."""
    return f"{value:,.0f}" if abs(value) >= 9999.5 else f"{value:,.4g}"
