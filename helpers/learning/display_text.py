"""Format text and numbers as the lessons show them."""


class Unquoted(str):
    """Text that a notebook displays without quotes."""

    __repr__ = str.__str__


def number(value: float) -> str:
    """Format with four digits, or all the digits of a larger whole number."""
    return f"{value:,.0f}" if abs(value) >= 9999.5 else f"{value:,.4g}"
