"""Online softmax inside kernels, for rows too wide for registers: keep the maximum and sum of the columns read so far.

    peak' = max(peak, max x),   total' = total exp(peak - peak') + sum exp(x - peak')

Each lane keeps its own peak and total, so lanes don't wait for each other before the end of the row. A lane's EACH
neighbouring columns share one correction of the total. Exponentials use base 2, the only base in a GPU's hardware.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def absorb(peak, total, x):
    """Return peak and total, (..., LANES), after x, (..., LANES, EACH); from -inf and 0. Past the end x is -inf."""
    higher = tl.maximum(peak, tl.max(x, axis=-1))
    # A lane that has seen only -inf would compute -inf - -inf.
    base = tl.where(higher == -float("inf"), 0.0, higher)
    total *= tl.exp2((peak - base) * LOG2_E)
    return higher, total + tl.sum(tl.exp2((x - tl.expand_dims(base, -1)) * LOG2_E), axis=-1)


@triton.jit
def combine(peak, total):
    """Return each row's maximum, and its sum of exp(x - maximum): 0 for a row of only -inf, NaN for one with NaN."""
    top = tl.max(peak, axis=-1)
    base = tl.where(top == -float("inf"), 0.0, top)
    return top, tl.sum(total * tl.exp2((peak - tl.expand_dims(base, -1)) * LOG2_E), axis=-1)
