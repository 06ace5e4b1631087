"""Elements of 16 bits that wait for their next use in registers, inside kernels: two to each, as they were loaded.

In fp32, as arithmetic has them, a row takes twice the room. A compiler that sees one conversion twice makes it once and
keeps the result, so that a row stays packed only where the second conversion is another to it: see widen.
"""

import triton
import triton.language as tl


@triton.jit
def load_words(
    ptr, whole, other: tl.constexpr,
    VECTOR: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr, HELD: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """The first HELD chunks of a row, packed; FULL of these are full in every row. Past its end stands `other`.

    Without an eviction policy: on an H200 loads marked evict_first take softmax of 16384 columns 146 us for 136.
    """
    DTYPE: tl.constexpr = ptr.dtype.element_ty
    PACK: tl.constexpr = 2 if DTYPE.primitive_bitwidth == 16 and VECTOR > 1 else 1
    CHUNK: tl.constexpr = LANES * EACH // PACK
    nothing = tl.full((LANES, EACH), other, DTYPE)
    if PACK == 2:
        ptr = ptr.to(tl.pointer_type(tl.int32))
        nothing = narrow(nothing, DTYPE)
    place = tl.arange(0, LANES)[:, None] * (EACH // PACK) + tl.arange(0, EACH // PACK)[None, :]
    words = ()
    for i in tl.static_range(HELD):
        at = ptr + i * CHUNK + place
        if i < FULL:
            words = words + (tl.load(at),)
        else:
            inside = i * CHUNK + place < whole // VECTOR * (VECTOR // PACK)
            words = words + (tl.load(at, mask=inside, other=nothing),)
    return words


@triton.jit
def halves(words, zero, DTYPE: tl.constexpr):
    """The two elements of each word, in fp32. For `zero` see widen."""
    words = words ^ zero
    low, high = words.to(tl.int16), (words >> 16).to(tl.int16)
    return low.to(DTYPE, bitcast=True).to(tl.float32), high.to(DTYPE, bitcast=True).to(tl.float32)


@triton.jit
def joined(low, high, DTYPE: tl.constexpr):
    """The opposite of halves: rounded to DTYPE."""
    low, high = low.to(DTYPE).to(tl.int16, bitcast=True), high.to(DTYPE).to(tl.int16, bitcast=True)
    return (high.to(tl.int32) << 16) | (low.to(tl.int32) & 0xFFFF)


@triton.jit
def widen(words, zero, DTYPE: tl.constexpr, COMPUTE: tl.constexpr):
    """The elements in words, side by side, for arithmetic.

    Where `zero` is a constant, the compiler (Triton 3.6 and 3.7) widens once and keeps the result in twice as many
    registers: zero_after makes one that it does not know before a reduction is done.
    """
    x = words
    if DTYPE.primitive_bitwidth == 16 and words.dtype == tl.int32:
        low, high = halves(words, zero, DTYPE)
        x = tl.interleave(low, high)
    return x.to(COMPUTE)


@triton.jit
def zero_after(number, cols):
    return number.to(tl.float32).to(tl.int32, bitcast=True) & -(cols < 0).to(tl.int32)


@triton.jit
def narrow(x, DTYPE: tl.constexpr):
    """The opposite of widen, (A, B): rounded to DTYPE, two of 16 bits to a word."""
    if DTYPE.primitive_bitwidth != 16:
        return x.to(DTYPE)
    low, high = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
    return joined(low, high, DTYPE)
