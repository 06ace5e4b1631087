"""Sizes of blocks and grids, as launchers compute them.

triton.cdiv and triton.next_power_of_2 serve kernels as well and cost a caller about a microsecond each, of which a
launch at a microsecond's work has few to spare.
"""


def cdiv(size: int, block: int) -> int:
    """How many blocks cover `size`: size / block, rounded up."""
    return -(-size // block)


def next_power_of_2(size: int) -> int:
    """The least power of two that is at least `size`, itself at least 1."""
    return 1 << (size - 1).bit_length()


def largest_power_of_2(size: int) -> int:
    """The largest power of two that is at most `size`, or 1."""
    return 1 << (max(1, size).bit_length() - 1)
