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


@triton.jit
def widen_pairs(pairs, sixteen):
    """The bfloat16 of pairs, two in an int32, as float32 side by side: twice as many elements along the last axis.

    A kernel that needs a row several times keeps it so, in half the registers, and widens it at each use. Where
    `sixteen` is a constant, the compiler widens once and keeps the result: a sum that is 16 only in the end, another
    one for each use, such as 16 + (rows < 0).to(tl.int32), keeps it from that.
    """
    low = (pairs << sixteen).to(tl.float32, bitcast=True)
    high = (pairs & (-1 << sixteen)).to(tl.float32, bitcast=True)
    return tl.interleave(low, high)
