"""Which tiles flash_attention_hopper.py walks over, and the warp that loads them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from kernels.hopper import nth_tile, place, tile_count


@gluon.jit
def steps_of(block, queries, keys, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr):
    """Steps over the keys that some query of the block sees; at least one, which hides them all where none does."""
    end = keys
    if CAUSAL:
        end = gl.minimum(keys, (block + 1) * 128 + keys - queries)
    return gl.maximum(gl.cdiv(end, BLOCK_N), 1)


@gluon.jit
def seen_until(row, block, queries, keys, CAUSAL: gl.constexpr):
    """The last key that each query of `row`, all of this block, sees; how many keys all of the block's see."""
    last = gl.full([64], 0, gl.int32, layout=row.type.layout) + (keys - 1)
    by_all = keys
    if CAUSAL:
        last = gl.minimum(row + (keys - queries), last)
        by_all = gl.minimum(block * 128 + 1 + keys - queries, keys)
    return last, by_all


@gluon.jit
def load(q_desc, k_desc, v_desc, of_q, of_k, of_v, sizes, CAUSAL: gl.constexpr):
    """The loading warp: each tile's queries, then its keys and values from the last on, as far ahead as there is room.

    of_q, of_k, of_v: room in shared memory, and the barriers that say that it is full, and empty.
    """
    q_smem, q_full, q_empty = of_q
    k_smem, k_full, k_empty = of_k
    v_smem, v_full, v_empty = of_v
    heads, group, queries, keys, tiles, blocks, side = sizes
    SLOTS: gl.constexpr = q_smem.shape[0] // 2
    STAGES: gl.constexpr = k_smem.shape[0]
    BLOCK_N: gl.constexpr = k_smem.shape[3]
    at = 0
    for i in range(tile_count(tiles)):
        b, h, block = place(nth_tile(i), heads, tiles, blocks, side)
        steps = steps_of(block, queries, keys, CAUSAL, BLOCK_N)
        slot = i % SLOTS
        mbarrier.wait(q_empty.index(slot), ((i // SLOTS) & 1) ^ 1)
        mbarrier.expect(q_full.index(slot), 2 * q_desc.block_type.nbytes)
        for half in gl.static_range(2):
            row, smem = block * 128 + half * 64, q_smem.index(2 * slot + half)
            tma.async_copy_global_to_shared(q_desc, [b, h, row, 0], q_full.index(slot), smem)
        for step in range(steps):
            n = (steps - 1 - step) * BLOCK_N
            stage = at % STAGES
            phase = ((at // STAGES) & 1) ^ 1
            mbarrier.wait(k_empty.index(stage), phase)
            mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(k_desc, [b, h // group, n, 0], k_full.index(stage), k_smem.index(stage))
            mbarrier.wait(v_empty.index(stage), phase)
            mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(v_desc, [b, h // group, n, 0], v_full.index(stage), v_smem.index(stage))
            at += 1
