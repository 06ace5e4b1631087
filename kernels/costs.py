"""FLOP counts of the course's operations, for each kernel's `work` and for the instruments.

Each +, -, *, /, max, exp, tanh, erf and rsqrt counts as one FLOP, a multiply-add as two. Work done once per row and
integer arithmetic are not counted.
"""

# FLOPs per element.
RELU = 1
GELU_TANH = 9
SOFTMAX = 5  # max, subtraction, exp, sum, quotient
LAYER_NORM = 7  # sum, subtraction, square, sum, product with rsqrt, weight, bias
BATCH_NORM = 4  # unfolded: subtraction, two scales, bias
FOLDED_BATCH_NORM = 2  # one scale and one shift per channel, computed beforehand


def product(rows: int, inner: int, columns: int) -> int:
    """Return the FLOPs of (rows, inner) @ (inner, columns)."""
    return 2 * rows * inner * columns


def attention(pairs: int, dim: int) -> int:
    """Return the FLOPs of q k^T and p v for `pairs` pairs of a query and a key. By convention, softmax is not counted.

    Source: Dao, "FlashAttention-2" (2023), section 4.1.
    """
    return 2 * product(pairs, dim, 1)
