"""Tuned flash_attention gradients for 16-bit head dims of 33 to 128 on compute capability 9.0, in five matmuls.

Not used if PyTorch is set to deterministic algorithms. Written in Gluon, like hopper_attention.py. A program owns 128
keys at a time, 64 for each of two groups of four warps. It loops over the queries of all heads that share its key head,
64 at a time, or 128 up to head dim 64. Scores and their gradients are computed once, with keys as rows and queries as
columns. The gradients of keys and values stay in registers. The subtracted terms, lse and delta, initialise the
accumulators. For grad_q, the groups exchange their score gradients through shared memory. Each group then multiplies
both groups' gradients by half of the keys' columns, or half of the queries' gradients by all columns. It does so a step
late, when the other group's are long there, so that one group's exponentials run under the other's matmuls. grad_q is
summed over blocks of keys in one of two ways:

    TMA adds to fp32 values in memory, in the order in which programs get there, so the last bits may differ from run to
        run; one kernel zeroes these values before, and one rounds them after
    with at most two blocks and many heads, a program takes a head's blocks one after the other; between them each
        thread keeps its part of the sum in private memory: 17 MB for 256 queries per head, which fit in L2, and more
        for longer ones

Times in us on an H100 in bf16 (batch x heads x tokens x dim), without the step's lag and the order of queries, with
them, and cuDNN's: 4 x 16 x 4096 x 64 1548, 1334, 1538; 2 x 32 (8 of keys) x 4096 x 128, causal 1661, 1612, 1537; 64 x
16 x 256 x 128, causal 356, 422, 461.

Source: Shah et al., arXiv:2407.08608.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from kernels.arguments import cdiv, multiprocessors
from kernels.attention import value_per_row
from kernels.descriptors import describable, described, padded_empty
from kernels.tuned.hopper_attention import (
    LOG2_E,
    free,
    heads_together,
    nth_tile,
    of_product,
    on_hopper,
    place,
    put,
    put_rows,
    room,
    swizzled,
    synchronise,
    tile_count,
)
from kernels.variants import tuned

MIN_STEPS = 10  # per split: starting it, storing it in fp32 and adding it to the others costs this many steps


@gluon.jit
def count_of(sizes, WHOLE: gl.constexpr):
    """Return how many blocks of keys this program takes; WHOLE: all of a head, one after another."""
    run = sizes[6] if WHOLE else 1
    return tile_count(sizes[5] // run) * run


@gluon.jit
def tile_of(i, sizes, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, QUERIES: gl.constexpr):
    """Return batch, key head and split of this program's i-th block of keys, and its first key; the first query of a
    tile that sees it; the split's first query head and query, and its number of query tiles.

    The last query tiles come first: then all programs of a head, which see different first ones, read the same
    queries at the same time."""
    kv_heads, group, queries, keys, parts, tiles, blocks, side = sizes
    run = blocks if WHOLE else 1
    b, head, block = place(nth_tile(i // run) * run + i % run, kv_heads * parts, tiles, blocks, side)
    block = blocks - 1 - block  # the first keys are seen by the most queries
    h, part = head // parts, head % parts
    first = gl.maximum(block * 128 + queries - keys, 0) // QUERIES * QUERIES if CAUSAL else 0
    steps = gl.maximum(gl.cdiv(queries - first, QUERIES), 0)
    begin, end = group * steps * part // parts, group * steps * (part + 1) // parts
    some = gl.maximum(steps, 1)
    n = first + (steps - 1 - begin % some) * QUERIES
    return b, h, part, block * 128, first, h * group + begin // some, n, end - begin


@gluon.jit
def following(qh, n, first, queries, QUERIES: gl.constexpr):
    """The query head and the first query of the next tile."""
    over = n <= first
    return gl.where(over, qh + 1, qh), gl.where(over, (queries - 1) // QUERIES * QUERIES, n - QUERIES)


@gluon.jit
def seen_since(row, start, queries, keys, CAUSAL: gl.constexpr):
    """Return, for the keys `row`, the first query that sees each; for the block starting at `start`, the first that
    sees all."""
    # No query sees a key past the last: its score, 0, may be far too high.
    since, by_all = gl.where(row < keys, 0, queries + 128), 0
    if CAUSAL:
        since, by_all = gl.maximum(since, row + (queries - keys)), start + 127 + queries - keys
    return since, gl.where(start + 128 > keys, queries, by_all)


@gluon.jit
def less(smem, factor, layout: gl.constexpr):
    """Return the initial accumulator for 64 keys: minus factor times one value per query."""
    QUERIES: gl.constexpr = smem.shape[2]
    number = smem.reshape([QUERIES]).load(gl.SliceLayout(0, layout))
    off = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, layout)) - factor
    # Not pure: the two rows of a thread would share registers, and copies between products would wait for the first.
    each = [number[None, :], off[:, None]]
    return gl.inline_asm_elementwise("mul.f32 $0, $1, $2;", "=f,f,f", each, gl.float32, is_pure=False, pack=1)


@gluon.jit
def probabilities(s, n, since, by_all, SCALE: gl.constexpr):
    """Return the probabilities from the scores of queries starting at n."""
    of_cols: gl.constexpr = gl.SliceLayout(0, s.type.layout)
    if n < by_all:
        s = gl.where((n + gl.arange(0, s.shape[1], layout=of_cols))[None, :] >= since[:, None], s, -float("inf"))
    return gl.exp2(s * (SCALE * LOG2_E))


@gluon.jit
def give(
    into, grad_q, mine, at, sizes, QUERIES: gl.constexpr, HALF: gl.constexpr, SCALE: gl.constexpr, CAUSAL: gl.constexpr
):
    """Put the grad_q so far of the tile `at` batch, head and query: keep it at `mine`, or store it if this is the last
    block of keys that it sees; add it to memory, in fp32, if it is not kept."""
    desc, out = into
    b, qh, n, start = at
    _, _, queries, keys, _, _, _, _ = sizes
    place = [b, qh, n, HALF * 64] if QUERIES == 64 else [b, qh, n + HALF * 64, 0]
    if desc.dtype == gl.float32:
        put(desc, grad_q, out, place, True)
    elif start + 128 >= (gl.minimum(n + QUERIES + keys - queries, keys) if CAUSAL else keys):
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
    for i in range(count_of(sizes, WHOLE)):
        b, h, _part, start, first, qh, n, steps = tile_of(i, sizes, CAUSAL, WHOLE, QUERIES)
        mbarrier.wait(kv_empty.index(0), (i & 1) ^ 1)
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


OF_HALF = gl.constexpr(of_product(64))


@gluon.jit
def across(rows, cols, start):
    """Start the matmul start + rows cols^T."""
    return hopper.warpgroup_mma(rows, cols.permute((1, 0)), start, is_async=True)


@gluon.jit
def of_queries(d_smem, side, k_smem, scratch_ptr, at, sizes, HALF: gl.constexpr):
    """Start half of the matmul of both groups' score gradients with the keys: half of the columns if there are 128,
    half of the queries if there are 128. If grad_q is kept, add that of the key blocks before.

    Return where each thread keeps its part, or 0, and the sum."""
    QUERIES: gl.constexpr = d_smem.shape[2]
    D: gl.constexpr = k_smem.shape[4]
    KEPT: gl.constexpr = scratch_ptr is not None
    mine, grad_q = 0, gl.zeros((64, 64), gl.float32, OF_HALF)
    if KEPT:
        _, qh, n, start = at
        _, group, queries, _, _, _, _, _ = sizes
        tile = (gl.program_id(0) * group + qh % group) * gl.cdiv(queries, QUERIES) + n // QUERIES
        row = gl.arange(0, 64, layout=gl.SliceLayout(1, OF_HALF))
        inside = row[:, None] * 64 + gl.arange(0, 64, layout=gl.SliceLayout(0, OF_HALF))[None, :]
        mine = scratch_ptr + tile.to(gl.int64) * 8192 + (HALF * 4096 + inside)
        grad_q = gl.load(mine, mask=start + 0 * inside > 0, other=0.0)
    for i in gl.static_range(2):
        d, k = d_smem.index(2 * side + i), k_smem.index(i).reshape([64, D])
        if D == 128:
            k = k.slice(HALF * 64, 64, dim=1)
        else:
            d = d.slice(HALF * 64, 64, dim=1)
        grad_q = hopper.warpgroup_mma(d.permute((1, 0)), k, grad_q, use_acc=KEPT or i > 0, is_async=True)
    return mine, grad_q


@gluon.jit
def walk(
    room_of, rows, of_d, out, grads, scratch_ptr, sizes, HALF: gl.constexpr, SCALE: gl.constexpr, CAUSAL: gl.constexpr
):
    """A group of four warps: the first or the second 64 of the program's keys."""
    k_smem, kv_full, kv_empty, v_smem, of_q, of_g = room_of
    q_smem, q_full, q_empty = of_q
    g_smem, g_full, g_empty = of_g
    grad_q_desc, grad_k_desc, grad_v_desc = grads
    lse_smem, delta_smem = rows
    d_smem, d_full = of_d
    WHOLE: gl.constexpr = scratch_ptr is not None
    _, _, queries, keys, parts, _, _, _ = sizes
    STAGES: gl.constexpr = q_smem.shape[0]
    QUERIES: gl.constexpr = q_smem.shape[3]
    D: gl.constexpr = q_smem.shape[4]
    of_s: gl.constexpr = of_product(QUERIES)
    of_sums: gl.constexpr = of_product(D)
    of_left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=of_sums, k_width=2)
    into = grad_q_desc, out.index(HALF)
    at = 0
    for i in range(count_of(sizes, WHOLE)):
        b, h, part, start, first, qh, n, steps = tile_of(i, sizes, CAUSAL, WHOLE, QUERIES)
        row = start + HALF * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, of_s))
        since, by_all = seen_since(row, start, queries, keys, CAUSAL)
        k, v = k_smem.index(HALF).reshape([64, D]), v_smem.index(HALF).reshape([64, D])
        sum_k, sum_v = gl.zeros((64, D), gl.float32, of_sums), gl.zeros((64, D), gl.float32, of_sums)
        mbarrier.wait(kv_full.index(0), i & 1)
        # Where the last step's grad_q goes. It must not start as qh and n, or the loop takes it for a constant.
        was_qh, was_n = 0, 0
        for step in range(steps):
            stage, phase = at % STAGES, (at // STAGES) & 1
            q, grad = q_smem.index(stage).reshape([QUERIES, D]), g_smem.index(stage).reshape([QUERIES, D])
            mbarrier.wait(q_full.index(stage), phase)
            mbarrier.wait(g_full.index(stage), phase)
            # Both first values before either product.
            s = less(lse_smem.index(stage), 1 / (SCALE * LOG2_E), of_s)
            grad_p = less(delta_smem.index(stage), 1.0, of_s)
            s, grad_p = across(k, q, s), across(v, grad, grad_p)
            s = hopper.warpgroup_mma_wait(1, deps=[s])
            p = probabilities(s, n, since, by_all, SCALE)
            mbarrier.wait(q_full.index(stage), phase)  # again: ptxas moves exponentials past the next wait, not past it
            grad_p, p = hopper.warpgroup_mma_wait(0, deps=[grad_p, p])
            sum_v = hopper.warpgroup_mma(gl.convert_layout(p.to(q.dtype), of_left), grad, sum_v, is_async=True)
            grad_s = (p * grad_p).to(q.dtype)
            side = at % 2
            mbarrier.wait(d_full.index(1 - side), ((at - 1) // 2) & 1, pred=step > 0)
            d_smem.index(2 * side + HALF).store(grad_s)
            hopper.fence_async_shared()
            was = b, was_qh, was_n, start
            mine, grad_q = of_queries(d_smem, 1 - side, k_smem, scratch_ptr, was, sizes, HALF)  # of no use in step 0
            sum_k = hopper.warpgroup_mma(gl.convert_layout(grad_s, of_left), q, sum_k, is_async=True)
            grad_q, sum_v = hopper.warpgroup_mma_wait(1, deps=[grad_q, sum_v])
            free(g_empty.index(stage))
            mbarrier.arrive(d_full.index(side), count=1)
            if step > 0:
                give(into, grad_q, mine, was, sizes, QUERIES, HALF, SCALE, CAUSAL)
            sum_k = hopper.warpgroup_mma_wait(0, deps=[sum_k])
            free(q_empty.index(stage))
            at += 1
            was_qh, was_n = qh, n
            qh, n = following(qh, n, first, queries, QUERIES)
        if steps > 0:
            side = (at - 1) % 2
            mbarrier.wait(d_full.index(side), ((at - 1) // 2) & 1)
            was = b, was_qh, was_n, start
            mine, grad_q = of_queries(d_smem, side, k_smem, scratch_ptr, was, sizes, HALF)
            grad_q = hopper.warpgroup_mma_wait(0, deps=[grad_q])
            give(into, grad_q, mine, was, sizes, QUERIES, HALF, SCALE, CAUSAL)
        free(kv_empty.index(0))
        put_rows(grad_v_desc, sum_v, out.index(HALF), b, h * parts + part, start + HALF * 64)
        put_rows(grad_k_desc, sum_k * SCALE, out.index(HALF), b, h * parts + part, start + HALF * 64)
    tma.store_wait(pendings=0)


@gluon.jit
def grads_kernel(
    k_desc,  # (batch, kv_heads, keys, dim) in tiles of (1, 1, 64, D)
    v_desc,  # the same
    q_desc,  # (batch, kv_heads * group, queries, dim) in tiles of (1, 1, QUERIES, D)
    grad_desc,  # as q
    lse_desc,  # fp32 (batch, kv_heads * group, queries) in tiles of (1, 1, QUERIES)
    delta_desc,  # the same
    grad_q_desc,  # as q in tiles of (1, 1, 64, 64); fp32 and not yet scaled where blocks of keys add to it
    grad_k_desc,  # as k, or fp32 (batch, kv_heads * parts, keys, dim) in tiles of (1, 1, 64, 64)
    grad_v_desc,  # the same
    scratch_ptr,  # fp32 (programs, group, tiles of queries, their 8192 numbers), or None where blocks add
    kv_heads,
    group,
    queries,
    keys,
    parts,  # programs that share a block of keys
    tiles,  # blocks of 128 keys, of all heads and parts
    blocks,  # of one head
    side,  # as place takes it
    SCALE: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
):
    of_k, of_v = room(k_desc, 2, 1), room(v_desc, 2, 1)
    of_q, of_g = room(q_desc, STAGES, STAGES), room(grad_desc, STAGES, STAGES)
    QUERIES: gl.constexpr = q_desc.block_type.shape[2]
    lse_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 1, QUERIES], lse_desc.layout)
    delta_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 1, QUERIES], lse_desc.layout)
    d_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, QUERIES], q_desc.dtype)
    d_smem = gl.allocate_shared_memory(q_desc.dtype, [4, 64, QUERIES], d_layout)
    d_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(d_full.index(i), count=2)
    out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, 64, 64], gl.float32)
    out = gl.allocate_shared_memory(gl.float32, [2, 1, 1, 64, 64], out_layout)
    hopper.fence_async_shared()
    synchronise()
    room_of, rows, of_d = (of_k[0], of_k[1], of_k[2], of_v[0], of_q, of_g), (lse_smem, delta_smem), (d_smem, d_full)
    descs, grads = (k_desc, v_desc, q_desc, grad_desc, lse_desc, delta_desc), (grad_q_desc, grad_k_desc, grad_v_desc)
    sizes = kv_heads, group, queries, keys, parts, tiles, blocks, side
    gl.warp_specialize(
        [
            (walk, (room_of, rows, of_d, out, grads, scratch_ptr, sizes, 0, SCALE, CAUSAL)),
            (walk, (room_of, rows, of_d, out, grads, scratch_ptr, sizes, 1, SCALE, CAUSAL)),
            (load, (descs, room_of, rows, sizes, CAUSAL, scratch_ptr is not None)),
        ],
        [4, 1],  # warps of the second and the third
        [240, 24],  # registers a thread of theirs
    )


def tile_shape(dim: int) -> tuple[int, int]:
    """Return the shape of a query tile: queries and columns."""
    return (128, 64) if dim <= 64 else (64, 128)


@triton.jit
def delta_kernel(
    out_desc,  # (batch, heads, queries, dim) in tiles of (1, 1, BLOCK_M, BLOCK_D)
    grad_desc,  # the same
    delta_desc,  # fp32 (batch, heads, queries) in tiles of (1, 1, BLOCK_M)
    heads,
    queries,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """sum(grad out) of each row."""
    blocks = tl.cdiv(queries, BLOCK_M)
    start = tl.program_id(0) % blocks * BLOCK_M
    b, h = tl.program_id(0) // blocks // heads, tl.program_id(0) // blocks % heads
    out = out_desc.load([b, h, start, 0]).reshape(BLOCK_M, BLOCK_D).to(tl.float32)
    grad = grad_desc.load([b, h, start, 0]).reshape(BLOCK_M, BLOCK_D).to(tl.float32)
    delta_desc.store([b, h, start], tl.sum(out * grad, axis=1).reshape(1, 1, BLOCK_M))


@triton.jit
def scale_kernel(
    x_desc,  # (batch, heads, rows, D) in tiles of (1, 1, BLOCK_M, BLOCK_D), fp32
    y_desc,  # the same, of any dtype
    heads,
    rows,
    SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """y = x SCALE"""
    blocks = tl.cdiv(rows, BLOCK_M)
    start = tl.program_id(0) % blocks * BLOCK_M
    b, h = tl.program_id(0) // blocks // heads, tl.program_id(0) // blocks % heads
    y_desc.store([b, h, start, 0], (x_desc.load([b, h, start, 0]) * SCALE).to(y_desc.dtype))


def takes(grad: Tensor, q: Tensor, k: Tensor, *_) -> bool:
    """Return whether this kernel takes the call: 16-bit head dims of 33 to 128, where the last bits may differ."""
    if not on_hopper(q) or torch.are_deterministic_algorithms_enabled():
        return False
    return 32 < q.shape[3] <= 128 and q.numel() * k.shape[2] > 0


@cache
def num_splits(programs: int, steps: int, at_once: int, causal: bool) -> int:
    """Return how many programs share a block of keys. Without sharing there are `programs`, `at_once` at a time, with
    loops of at most `steps`: if `causal`, evenly between 0 and that, and the longest start first."""
    if programs >= 2 * at_once:
        return 1

    def time(splits: int) -> float:
        count, longest = programs * splits, steps / splits
        if causal:
            mean = longest / 2 + MIN_STEPS
            return max(longest, mean * (count / at_once + 0.5))
        return (longest + MIN_STEPS) * cdiv(count, at_once)

    return min(range(1, max(1, steps // MIN_STEPS) + 1), key=time)


def operands(grad, q, k, v, lse, delta, grad_q, grad_k, grad_v, scratch, causal, scale, side=1) -> tuple[tuple, dict]:
    """Return the kernel's arguments and options, for tensors that descriptors can describe."""
    (batch, kv_heads, keys), (heads, queries, dim) = k.shape[:3], q.shape[1:]
    blocks, parts, (rows, wide) = cdiv(keys, 128), grad_k.shape[1] // kv_heads, tile_shape(dim)
    tensors = [swizzled(x, [1, 1, 64, wide]) for x in (k, v)]
    tensors += [swizzled(x, [1, 1, rows, wide]) for x in (q, grad)] + [swizzled(x, [1, 1, rows]) for x in (lse, delta)]
    tensors += [swizzled(grad_q, [1, 1, 64, 64])]
    tensors += [swizzled(x, [1, 1, 64, min(256 // x.element_size(), wide)]) for x in (grad_k, grad_v)]
    sizes = kv_heads, heads // kv_heads, queries, keys, parts, blocks * batch * kv_heads * parts, blocks, side
    return (*tensors, scratch, *sizes), {"SCALE": scale, "CAUSAL": causal, "STAGES": 2, "num_warps": 4}


def launch(grad, q, k, v, lse, delta, causal: bool, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v. delta is sum(grad out) per row, in fp32, like lse."""
    (batch, kv_heads, keys, dim), (heads, queries) = k.shape, q.shape[1:3]
    blocks, group, (rows, wide) = cdiv(keys, 128), heads // kv_heads, tile_shape(dim)
    steps = cdiv(queries, rows)
    at_once, programs = multiprocessors(q), blocks * batch * kv_heads
    parts = num_splits(programs, group * steps, at_once, causal)
    grad_q = sums = padded_empty(q.shape, q)
    grad_k, grad_v = (padded_empty((batch, kv_heads * parts, keys, dim), k if parts == 1 else delta) for _ in range(2))
    whole = blocks == 1 or (blocks == 2 and batch * kv_heads >= at_once)
    whole = whole and parts == 1 and not (causal and queries > keys)  # every query sees the first block
    scratch, side = None, 1
    if whole:
        programs = min(batch * kv_heads, at_once)
        scratch = delta.new_empty((programs, group, steps, 64, 128))
    else:
        sums = padded_empty(q.shape, delta).zero_()
        of_heads, programs = batch * kv_heads * parts, min(programs * parts, at_once)
        side = heads_together(blocks, of_heads, programs) if causal else 1
    arguments, options = operands(grad, q, k, v, lse, delta, sums, grad_k, grad_v, scratch, causal, scale, side)
    grads_kernel[(programs,)](*arguments, **options)
    if not whole:
        tiles = (described(x, [1, 1, rows, wide]) for x in (sums, grad_q))
        scale_kernel[(steps * batch * heads,)](*tiles, heads, queries, SCALE=scale, BLOCK_M=rows)
    if parts > 1:
        grad_k, grad_v = (x.unflatten(1, (kv_heads, parts)).sum(2).to(k.dtype) for x in (grad_k, grad_v))
    return grad_q, grad_k, grad_v


@tuned(
    "flash_attention",
    "backward",
    takes=takes,
    gain="1.5x at 2 x 32 heads (8 of keys) x 4096 x 128, 0.98x at 64 x 16 x 256 x 64, causal (H100, bf16)",
)
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, queries, dim = q.shape
    grad, q, k, v, out, lse = map(describable, (grad, q, k, v, out, lse))
    delta, wide = value_per_row(q), 64 if dim <= 64 else 128
    tile = [1, 1, wide, wide]
    with torch.cuda.device_of(q):
        delta_kernel[(cdiv(queries, wide) * batch * heads,)](
            described(out, tile), described(grad, tile), described(delta, tile[:3]), heads, queries, wide, wide
        )
        grads = launch(grad, q, k, v, lse, delta, causal, dim**-0.5 if scale is None else scale)
    return tuple(x.contiguous() for x in grads)
