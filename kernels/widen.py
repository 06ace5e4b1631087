"""16-bit values made wide, in the fewest instructions and registers."""

import triton
import triton.language as tl


@triton.jit
def widen(x, dtype: tl.constexpr):
    """x in `dtype`, that of the arithmetic.

    A bfloat16 is the upper half of a float32. Said so, each of two neighbours in a register takes one instruction (a
    shift, a mask); of a conversion the compiler makes three for the two.
    """
    if x.dtype == tl.bfloat16 and dtype == tl.float32:
        wide = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = x.to(dtype)
    return wide
