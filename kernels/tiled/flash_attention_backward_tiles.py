"""Which tiles a program of flash_attention_backward_hopper.py takes, sees and keeps, and the warp that loads them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from kernels.hopper import LOG2_E, nth_tile, place, put, tile_count


@gluon.jit
def count_of(sizes, WHOLE: gl.constexpr):
    """How many blocks of keys this program takes; WHOLE: all of a head, one after another."""
    run = sizes[6] if WHOLE else 1
    return tile_count(sizes[5] // run) * run


@gluon.jit
def tile_of(i, sizes, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, QUERIES: gl.constexpr):
    """Batch, key head and part of this program's i-th block of keys, and its first key; the first query of a tile that
    sees it; with which query head and query the part begins, and how many tiles of queries it has."""
    kv_heads, group, queries, keys, parts, tiles, blocks, side = sizes
    run = blocks if WHOLE else 1
    b, head, block = place(nth_tile(i // run) * run + i % run, kv_heads * parts, tiles, blocks, side)
    block = blocks - 1 - block  # the first keys are seen by the most queries
    h, part = head // parts, head % parts
    first = 0
    if CAUSAL:
        first = gl.maximum(block * 128 + queries - keys, 0) // QUERIES * QUERIES
    steps = gl.maximum(gl.cdiv(queries - first, QUERIES), 0)
    begin, end = group * steps * part // parts, group * steps * (part + 1) // parts
    some = gl.maximum(steps, 1)
    return b, h, part, block * 128, first, h * group + begin // some, first + begin % some * QUERIES, end - begin


@gluon.jit
def following(qh, n, first, queries, QUERIES: gl.constexpr):
    """The query head and the first query of the next tile."""
    over = n + QUERIES >= queries
    return gl.where(over, qh + 1, qh), gl.where(over, first, n + QUERIES)


@gluon.jit
def seen_since(row, start, queries, keys, CAUSAL: gl.constexpr):
    """Of the keys `row` the first query that sees each; of the block from `start` on, the first that sees all."""
    # No query sees a key past the last: its score, 0, may be far too high.
    since, by_all = gl.where(row < keys, 0, queries + 128), 0
    if CAUSAL:
        since, by_all = gl.maximum(since, row + (queries - keys)), start + 127 + queries - keys
    return since, gl.where(start + 128 > keys, queries, by_all)


@gluon.jit
def less(smem, factor, layout: gl.constexpr):
    """What a sum of 64 keys' products starts from: factor times a number of each query, taken off."""
    QUERIES: gl.constexpr = smem.shape[2]
    number = smem.reshape([QUERIES]).load(gl.SliceLayout(0, layout))
    off = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, layout)) - factor
    # Not pure: the two rows of a thread would share registers, and copies between products would wait for the first.
    each = [number[None, :], off[:, None]]
    return gl.inline_asm_elementwise("mul.f32 $0, $1, $2;", "=f,f,f", each, gl.float32, is_pure=False, pack=1)


@gluon.jit
def starts(rows, stage, SCALE: gl.constexpr, layout: gl.constexpr):
    """What the products of scores and of their probabilities' gradients start from: both before either is under way."""
    lse_smem, delta_smem = rows
    return less(lse_smem.index(stage), 1 / (SCALE * LOG2_E), layout), less(delta_smem.index(stage), 1.0, layout)


@gluon.jit
def probabilities(s, n, since, by_all, SCALE: gl.constexpr):
    """Of the scores of queries from n on."""
    of_cols: gl.constexpr = gl.SliceLayout(0, s.type.layout)
    if n < by_all:
        s = gl.where((n + gl.arange(0, s.shape[1], layout=of_cols))[None, :] >= since[:, None], s, -float("inf"))
    return gl.exp2(s * (SCALE * LOG2_E))


@gluon.jit
def keys_seen(until, queries, keys, CAUSAL: gl.constexpr):
    """How many of the keys some query before `until` sees."""
    return gl.minimum(until + keys - queries, keys) if CAUSAL else keys


@gluon.jit
def kept(scratch_ptr, tile, start, HALF: gl.constexpr, layout: gl.constexpr):
    """Where each thread keeps its part of a tile's grad_q, and what the blocks of keys before `start` gave to it."""
    row, col = gl.arange(0, 64, layout=gl.SliceLayout(1, layout)), gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
    inside = row[:, None] * 64 + col[None, :]
    mine = scratch_ptr + tile.to(gl.int64) * 8192 + (HALF * 4096 + inside)
    return mine, gl.load(mine, mask=start + 0 * inside > 0, other=0.0)


@gluon.jit
def give(desc, grad_q, mine, out, place, last, SCALE: gl.constexpr):
    """A tile's grad_q so far: kept where `mine` says, or stored where this is the `last` block of keys that it sees;
    added to what stands in memory where it is kept nowhere."""
    if mine is None:
        put(desc, grad_q, out, place, True)
    elif last:
        half = out._reinterpret(desc.dtype, [1, 1, 64, 64], desc.layout)
        put(desc, grad_q * SCALE, half, place, False)
    else:
        gl.store(mine, grad_q)


@gluon.jit
def load(descs, room_of, rows, sizes, CAUSAL: gl.constexpr, WHOLE: gl.constexpr):
    """The loading warp: a block's keys and values, then queries and gradients as far ahead as there is room."""
    k_desc, v_desc, q_desc, grad_desc, lse_desc, delta_desc = descs
    k_smem, kv_full, kv_empty, v_smem, of_q, of_g = room_of
    q_smem, q_full, q_empty = of_q
    g_smem, g_full, g_empty = of_g
    lse_smem, delta_smem = rows
    STAGES: gl.constexpr = q_smem.shape[0]
    QUERIES: gl.constexpr = q_smem.shape[3]
    queries = sizes[2]
    at = 0
    turn = 0
    for i in range(count_of(sizes, WHOLE)):
        b, h, _part, start, first, qh, n, steps = tile_of(i, sizes, CAUSAL, WHOLE, QUERIES)
        mbarrier.wait(kv_empty.index(0), turn ^ 1)
        turn ^= 1
        mbarrier.expect(kv_full.index(0), 4 * k_desc.block_type.nbytes)
        for half in gl.static_range(2):
            tma.async_copy_global_to_shared(k_desc, [b, h, start + half * 64, 0], kv_full.index(0), k_smem.index(half))
            tma.async_copy_global_to_shared(v_desc, [b, h, start + half * 64, 0], kv_full.index(0), v_smem.index(half))
        for _ in range(steps):
            stage = at % STAGES
            phase = ((at // STAGES) & 1) ^ 1
            mbarrier.wait(q_empty.index(stage), phase)
            mbarrier.expect(q_full.index(stage), q_desc.block_type.nbytes + 4 * QUERIES)
            tma.async_copy_global_to_shared(q_desc, [b, qh, n, 0], q_full.index(stage), q_smem.index(stage))
            tma.async_copy_global_to_shared(lse_desc, [b, qh, n], q_full.index(stage), lse_smem.index(stage))
            mbarrier.wait(g_empty.index(stage), phase)
            mbarrier.expect(g_full.index(stage), grad_desc.block_type.nbytes + 4 * QUERIES)
            tma.async_copy_global_to_shared(grad_desc, [b, qh, n, 0], g_full.index(stage), g_smem.index(stage))
            tma.async_copy_global_to_shared(delta_desc, [b, qh, n], g_full.index(stage), delta_smem.index(stage))
            at += 1
            qh, n = following(qh, n, first, queries, QUERIES)
