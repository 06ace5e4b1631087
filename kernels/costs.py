"""The arithmetic of the course's operations, counted once: for each kernel's `work`, and for the instruments.

Each of +, -, *, /, max, exp, tanh, erf and rsqrt counts one FLOP, a multiply-add two. Work done once per row is not
counted, nor is integer arithmetic.
"""

# FLOPs per element.
RELU = 1
GELU_TANH = 9
SOFTMAX = 5  # max, subtraction, exp, sum, quotient
LAYER_NORM = 7  # sum, subtraction, square, sum, product with rsqrt, weight, bias
BATCH_NORM = 4  # as it is written: subtraction, two scales, bias
FOLDED_BATCH_NORM = 2  # one scale and one shift a channel, worked out before


def product(rows: int, inner: int, columns: int) -> int:
    """FLOPs of (rows, inner) @ (inner, columns)."""
    return 2 * rows * inner * columns


def attention(pairs: int, dim: int) -> int:
    """FLOPs of q k^T and p v for that many pairs of a query and a key; softmax is left out, by convention.

    Source: Dao, "FlashAttention-2" (2023), section 4.1.
    """
    return 2 * product(pairs, dim, 1)
