"""The k largest of a row inside kernels, without sorting it: from the groups with the largest maxima.

The k groups with the largest maxima hold all k winners, for each of those groups has one entry at least as large as
anything outside them. Ties go to the lower column: maxima are compared as integers that hold the value above and the
column's complement below, so that no two are equal.
"""

import triton
import triton.language as tl

from kernels.online_softmax import LOG2_E
from kernels.vectors import at_vector, inside_rim, rim


@triton.jit
def sort_key(x, index, KEY: tl.constexpr):
    """Integers, half of whose bits are x's and half the index's, that order as x does, the lower index first.

    NaN counts as inf, so that its row, all NaN, still has an order.
    """
    HALF: tl.constexpr = KEY.primitive_bitwidth // 2
    x = tl.where(x != x, float("inf"), x)
    x = tl.where(x == 0.0, 0.0, x)  # -0 equals 0
    bits = (x.to(tl.int16, bitcast=True) if HALF == 16 else x.to(tl.float32).to(tl.int32, bitcast=True)).to(KEY)
    bits ^= (bits >> (HALF - 1)) & ((1 << (HALF - 1)) - 1)  # the more negative a float, the larger its other bits
    return (bits << HALF) | (((1 << HALF) - 1) - index.to(KEY))


@triton.jit
def index_of(key):
    HALF: tl.constexpr = key.dtype.primitive_bitwidth // 2
    return (((1 << HALF) - 1) - (key & ((1 << HALF) - 1))).to(tl.int32)


@triton.jit
def largest(keys, K: tl.constexpr, SLOTS: tl.constexpr, others=None):
    """The K largest of keys and others, which may be None, in order, in SLOTS; the least integer where none is left."""
    LEAST: tl.constexpr = -(1 << (keys.dtype.primitive_bitwidth - 1))
    slot = tl.arange(0, SLOTS)
    winners = tl.full((SLOTS,), LEAST, keys.dtype)
    for place in range(K):
        winner = tl.max(keys)
        if others is not None:
            winner = tl.maximum(winner, tl.max(others))
            others = tl.where(others == winner, LEAST, others)
        winners = tl.where(slot == place, winner, winners)
        keys = tl.where(keys == winner, LEAST, keys)
    return winners


@triton.jit
def store_winners(
    x_ptr, values_ptr, indices_ptr, start, lead, cols, groups, top, scale,
    VECTOR: tl.constexpr, RAGGED: tl.constexpr,
    K: tl.constexpr, SLOTS: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Look into the groups (SLOTS keys) and the rim for a row's winners, and store their probabilities and columns.

    The row begins at element `start` of x; a key's index counts cells of EACH columns from its first whole vector on,
    after `lead` columns; the cells of one group are LANES apart.
    """
    KEY: tl.constexpr = groups.dtype
    LEAST: tl.constexpr = -(1 << (KEY.primitive_bitwidth - 1))
    member = tl.arange(0, CHUNKS * EACH)[None, :]
    place = member // EACH * (LANES * EACH) + index_of(groups)[:, None] % LANES * EACH + member % EACH
    whole = at_vector(cols - lead, VECTOR)
    inside = (groups != LEAST)[:, None] & (place < whole)
    x = tl.load(x_ptr + at_vector(start + lead, VECTOR) + place, mask=inside, other=-float("inf"))
    keys, others = tl.where(inside, sort_key(x, lead + place, KEY), LEAST), None
    if RAGGED:
        col, inside = rim(lead, cols, VECTOR), inside_rim(lead, whole, cols, VECTOR)
        x = tl.load(x_ptr + start + col, mask=inside, other=-float("inf"))
        others = tl.where(inside, sort_key(x, col, KEY), LEAST)
    winners = largest(keys, K, SLOTS, others)
    slot = tl.arange(0, SLOTS)
    col = index_of(winners)
    x = tl.load(x_ptr + start + col, mask=slot < K).to(top.dtype)
    value = tl.exp2((x - top) * LOG2_E) * scale
    tl.store(values_ptr + slot, value.to(values_ptr.dtype.element_ty), mask=slot < K)
    tl.store(indices_ptr + slot, col.to(tl.int64), mask=slot < K)
