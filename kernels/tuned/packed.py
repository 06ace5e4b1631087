"""Keep 16-bit elements packed in registers as loaded, two per register, until their next use.

The arithmetic is in fp32, where a row takes twice as many registers. If the source converts a row twice, the compiler
(Triton 3.6 and 3.7) converts it once and keeps the fp32 result in registers. The row stays packed only if the second
conversion differs from the first. See unpack.
"""

import triton
import triton.language as tl


@triton.jit
def load_words(
    ptr, whole, other: tl.constexpr,
    VECTOR: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr,
    NUM_CACHED: tl.constexpr, NUM_UNMASKED: tl.constexpr,
):  # fmt: skip
    """Load the first NUM_CACHED chunks of a row, packed; NUM_UNMASKED of these are full in every row.

    Past the row's end is `other`.

    Without an eviction policy: on an H200 loads marked evict_first take softmax of 16384 columns 146 us for 136.
    """
    DTYPE: tl.constexpr = ptr.dtype.element_ty
    PACK: tl.constexpr = 2 if DTYPE.primitive_bitwidth == 16 and VECTOR > 1 else 1
    CHUNK: tl.constexpr = LANES * EACH // PACK
    nothing = tl.full((LANES, EACH), other, DTYPE)
    if PACK == 2:
        ptr = ptr.to(tl.pointer_type(tl.int32))
        nothing = pack(nothing, DTYPE)
    place = tl.arange(0, LANES)[:, None] * (EACH // PACK) + tl.arange(0, EACH // PACK)[None, :]
    words = ()
    for i in tl.static_range(NUM_CACHED):
        at = ptr + i * CHUNK + place
        if i < NUM_UNMASKED:
            words = words + (tl.load(at),)
        else:
            inside = i * CHUNK + place < whole // VECTOR * (VECTOR // PACK)
            words = words + (tl.load(at, mask=inside, other=nothing),)
    return words


@triton.jit
def halves(words, zero, DTYPE: tl.constexpr):
    """Return the two elements of each word, in fp32. For `zero` see unpack."""
    words = words ^ zero
    low, high = words.to(tl.int16), (words >> 16).to(tl.int16)
    return low.to(DTYPE, bitcast=True).to(tl.float32), high.to(DTYPE, bitcast=True).to(tl.float32)


@triton.jit
def join_halves(low, high, DTYPE: tl.constexpr):
    """Round low and high to DTYPE and pack them into words: the inverse of halves."""
    low, high = low.to(DTYPE).to(tl.int16, bitcast=True), high.to(DTYPE).to(tl.int16, bitcast=True)
    return (high.to(tl.int32) << 16) | (low.to(tl.int32) & 0xFFFF)


@triton.jit
def unpack(words, zero, DTYPE: tl.constexpr, COMPUTE: tl.constexpr):
    """Return the elements of words, side by side, in COMPUTE.

    If `zero` is a constant, the compiler converts once and keeps the result in twice as many registers; opaque_zero
    makes a zero that it does not know before a reduction is done.
    """
    x = words
    if DTYPE.primitive_bitwidth == 16 and words.dtype == tl.int32:
        low, high = halves(words, zero, DTYPE)
        x = tl.interleave(low, high)
    return x.to(COMPUTE)


@triton.jit
def opaque_zero(number, cols):
    """Return 0, which the compiler cannot know before `number` is computed."""
    return number.to(tl.float32).to(tl.int32, bitcast=True) & -(cols < 0).to(tl.int32)


@triton.jit
def pack(x, DTYPE: tl.constexpr):
    """Round x, (A, B), to DTYPE and pack two 16-bit elements into each word: the inverse of unpack."""
    if DTYPE.primitive_bitwidth != 16:
        return x.to(DTYPE)
    low, high = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
    return join_halves(low, high, DTYPE)
