"""flash_attention's forward for 16-bit heads of 33 to 256 columns on compute capability 9.0, its warps' roles by hand.

The same tiles, sums and online softmax as in flash_attention.py, in Gluon, Triton's lower level, where layouts, copies
and barriers are written out. A program has nine warps: one asks the copy engine (TMA) for queries, keys and values, and
two groups of four own 64 queries each. What the compiler's own roles cannot do:

    a group's product of scores for the next keys runs on the tensor cores together with the product of its last
        probabilities and values, so that exponentials are waited for once, not twice, in a step
    keys from the last on: those that some query must not see come first, and all other steps need no mask
    a program takes tile after tile: the next one's loads and, up to heads of 128, its first scores are under way while
        the last one's output is stored

In us on an H200, bf16 (batch x heads x tokens x dim), cuDNN's of the same run beside it:

                                          flash_attention.py    here    cuDNN
    4 x 16 x 4096 x 128, causal                   573            439      479
    16 x 16 x 1024 x 128, causal                  232            152      165
    8 x 10 x 4096 x 64, 77 keys                    55             42       47
    64 x 16 x 256 x 64, causal                     59             52       48

Source: Shah et al., arXiv:2407.08608.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from kernels.arguments import cdiv, multiprocessors
from kernels.hopper import (
    free,
    heads_together,
    nth_tile,
    of_product,
    place,
    room,
    scores,
    softmax_step,
    swizzled,
    synchronise,
    tile_count,
    up_to,
    values,
)
from kernels.interpreter import runtime
from kernels.tiled.flash_attention_hopper_tiles import load, seen_until, steps_of


@gluon.jit
def walk(steps, masked, at, there, q, of_k, of_v, acc, p, peak, total, last, SCALE: gl.constexpr):
    """All steps but the first. acc lags behind: it lacks the last step's p v, and is shrunk to that step's peak."""
    k_smem, _, k_empty = of_k
    STAGES: gl.constexpr = k_smem.shape[0]
    of_s: gl.constexpr = peak.type.layout.parent
    of_acc: gl.constexpr = acc.type.layout
    of_p: gl.constexpr = p.type.layout
    for step in range(1, steps):
        s = scores(q, of_k, at, of_s)
        acc = values(p, acc, of_v, at - 1)
        s = hopper.warpgroup_mma_wait(1, deps=[s])
        free(k_empty.index(at % STAGES))
        if step < masked:
            s = up_to(s, (steps - 1 - step) * k_smem.shape[3], last)
        fresh, peak, total, shrink = softmax_step(s, peak, total, SCALE)
        fresh = gl.convert_layout(fresh.to(k_smem.dtype), of_p)
        # The queries are there already: ptxas moves no exponential past such a wait, all of them past the next one.
        mbarrier.wait(there[0], there[1])
        acc, _used, p = hopper.warpgroup_mma_wait(0, deps=[acc, p, fresh])
        free(of_v[2].index((at - 1) % STAGES))
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, of_acc))[:, None]
        at += 1
    return at, acc, p, peak, total


@gluon.jit
def first_scores(of_q, of_k, i, at, count, HALF: gl.constexpr, layout: gl.constexpr):
    """Of the i-th of `count` tiles, under way as soon as it is there. After the last: of whatever the room holds."""
    q_smem, q_full, _ = of_q
    SLOTS: gl.constexpr = q_smem.shape[0] // 2
    mbarrier.wait(q_full.index(i % SLOTS), (i // SLOTS) & 1, pred=i < count)
    q = q_smem.index(2 * (i % SLOTS) + HALF).reshape([64, q_smem.shape[4]])
    return scores(q, of_k, at, layout, i < count)


@gluon.jit
def store(tile, out, out_desc, at):
    """A tile's output to memory, under way, once the last one's has left the room that both take."""
    tma.store_wait(pendings=0)
    synchronise()
    out.reshape([64, out.shape[3]]).store(tile.to(out.dtype))
    hopper.fence_async_shared()
    synchronise()
    tma.async_copy_shared_to_global(out_desc, at, out)


@gluon.jit
def attend(
    of_q, of_k, of_v, o_smem, out_desc, lse, sizes, HALF: gl.constexpr, SCALE: gl.constexpr, CAUSAL: gl.constexpr
):
    """A group of four warps: the first or the second 64 queries of each tile."""
    q_smem, q_full, q_empty = of_q
    lse_ptr, lse_row = lse
    heads, _group, queries, keys, tiles, blocks, side = sizes
    SLOTS: gl.constexpr = q_smem.shape[0] // 2
    STAGES: gl.constexpr = of_k[0].shape[0]
    BLOCK_N: gl.constexpr = of_k[0].shape[3]
    D: gl.constexpr = q_smem.shape[4]
    OVER_Q: gl.constexpr = D > 128  # the output takes the place of the queries: there is no room for both
    of_s: gl.constexpr = of_product(BLOCK_N)
    of_acc: gl.constexpr = of_product(D)
    of_p: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=of_acc, k_width=2)
    of_rows: gl.constexpr = gl.SliceLayout(1, of_s)
    out = o_smem.index(HALF)
    at = 0
    count = tile_count(tiles)
    s = first_scores(of_q, of_k, 0, 0, count, HALF, of_s)
    s = hopper.warpgroup_mma_wait(0, deps=[s])
    for i in range(count):
        b, h, block = place(nth_tile(i), heads, tiles, blocks, side)
        steps = steps_of(block, queries, keys, CAUSAL, BLOCK_N)
        row = block * 128 + HALF * 64 + gl.arange(0, 64, layout=of_rows)
        last, by_all = seen_until(row, block, queries, keys, CAUSAL)
        masked = gl.maximum(steps - gl.maximum(by_all, 0) // BLOCK_N, 1)
        free(of_k[2].index(at % STAGES))
        peak = gl.full([64], -float("inf"), gl.float32, layout=of_rows)
        total = gl.full([64], 0.0, gl.float32, layout=of_rows)
        if steps * BLOCK_N > by_all:
            s = up_to(s, (steps - 1) * BLOCK_N, last)
        fresh, peak, total, _none = softmax_step(s, peak, total, SCALE)
        p = gl.convert_layout(fresh.to(q_smem.dtype), of_p)
        acc = gl.zeros((64, D), gl.float32, of_acc)
        q = q_smem.index(2 * (i % SLOTS) + HALF).reshape([64, D])
        there = q_full.index(i % SLOTS), (i // SLOTS) & 1
        at, acc, p, peak, total = walk(steps, masked, at + 1, there, q, of_k, of_v, acc, p, peak, total, last, SCALE)
        acc = values(p, acc, of_v, at - 1)
        if not OVER_Q:  # the next tile's first product, under the end of this one
            free(q_empty.index(i % SLOTS))
            s = first_scores(of_q, of_k, i + 1, at, count, HALF, of_s)
        acc, p = hopper.warpgroup_mma_wait(0 if OVER_Q else 1, deps=[acc, p])
        free(of_v[2].index((at - 1) % STAGES))
        over = gl.convert_layout(1.0 / gl.where(total == 0, 1.0, total), gl.SliceLayout(1, of_acc))
        store(acc * over[:, None], out, out_desc, [b, h, block * 128 + HALF * 64, 0])
        if OVER_Q:
            tma.store_wait(pendings=0)
            free(q_empty.index(0))
            s = first_scores(of_q, of_k, i + 1, at, count, HALF, of_s)
        if lse_ptr is not None:
            value = gl.where(total == 0, float("inf"), peak + gl.log2(total))
            gl.store(lse_ptr + (b * heads + h).to(gl.int64) * lse_row + row, value, mask=row < queries)
        s = hopper.warpgroup_mma_wait(0, deps=[s])
    tma.store_wait(pendings=0)


@gluon.jit
def flash_attention_hopper_kernel(
    q_desc,  # (batch, heads, queries, dim) in tiles of (1, 1, 64, D)
    k_desc,  # (batch, heads // group, keys, dim) in tiles of (1, 1, BLOCK_N, D)
    v_desc,  # the same
    out_desc,  # as q
    lse_ptr,  # fp32 (batch, heads, queries), or None where no backward pass will ask for it
    lse_row,  # elements from one head's to the next one's
    heads,
    group,  # query heads a key head
    queries,
    keys,
    tiles,  # of 128 queries, of all heads
    blocks,  # of one head
    side,  # as place takes it
    SCALE: gl.constexpr,  # of the scores
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
):
    of_k, of_v = room(k_desc, STAGES, STAGES), room(v_desc, STAGES, STAGES)
    D: gl.constexpr = q_desc.block_type.shape[3]
    of_q = room(q_desc, 4 if D <= 128 else 2, 2 if D <= 128 else 1)
    o_smem = of_q[0]
    if D <= 128:
        o_smem = gl.allocate_shared_memory(q_desc.dtype, [2, 1, 1, 64, D], q_desc.layout)
    hopper.fence_async_shared()
    synchronise()
    sizes = heads, group, queries, keys, tiles, blocks, side
    gl.warp_specialize(
        [
            (attend, (of_q, of_k, of_v, o_smem, out_desc, (lse_ptr, lse_row), sizes, 0, SCALE, CAUSAL)),
            (attend, (of_q, of_k, of_v, o_smem, out_desc, (lse_ptr, lse_row), sizes, 1, SCALE, CAUSAL)),
            (load, (q_desc, k_desc, v_desc, of_q, of_k, of_v, sizes, CAUSAL)),
        ],
        [4, 1],  # warps of the second and the third
        [240, 24],  # registers a thread of theirs
    )


def on_hopper(q: Tensor) -> bool:
    """Whether q is in 16 bits and on a GPU that runs what is written for compute capability 9.0, never interpreted."""
    if runtime.interprets() or not q.is_cuda or torch.cuda.get_device_capability(q.device) != (9, 0):
        return False
    return q.dtype in (torch.bfloat16, torch.float16)


def takes(q: Tensor, k: Tensor) -> bool:
    """Whether this kernel takes such heads, on q's GPU: those up to 64 where keys are few and tiles are many."""
    (batch, heads, queries, dim), keys = q.shape, k.shape[2]
    if not on_hopper(q):
        return False
    many = cdiv(queries, 128) * batch * heads >= 8 * multiprocessors(q)
    return 64 < dim <= 256 or (32 < dim <= 64 and keys <= 256 and many)


def operands(q, k, v, out, lse, causal: bool, scale: float | None, side: int = 1) -> tuple[tuple, dict]:
    """The kernel's arguments and options, for tensors that descriptors can tell of; lse may be None."""
    (batch, heads, queries, dim), (key_heads, keys) = q.shape, k.shape[1:3]
    blocks, wide = cdiv(queries, 128), 64 if dim <= 64 else 128 if dim <= 128 else 256
    passing = 64 if wide == 256 else 128
    stay, pass_by = [1, 1, 64, wide], [1, 1, passing, wide]
    tensors = swizzled(q, stay), swizzled(k, pass_by), swizzled(v, pass_by), swizzled(out, stay), lse
    row, tiles = 0 if lse is None else lse.stride(1), blocks * batch * heads
    sizes = row, heads, heads // key_heads, queries, keys, tiles, blocks, side
    options = {"SCALE": dim**-0.5 if scale is None else scale, "CAUSAL": causal, "STAGES": 2, "num_warps": 4}
    return (*tensors, *sizes), options


def launch(q, k, v, out, lse, causal: bool, scale: float | None) -> None:
    """Write out, and lse where it is not None. A program a multiprocessor walks over tiles."""
    blocks, of_heads = cdiv(q.shape[2], 128), q.shape[0] * q.shape[1]
    programs = min(blocks * of_heads, multiprocessors(q))
    side = heads_together(blocks, of_heads, programs) if causal else 1
    arguments, options = operands(q, k, v, out, lse, causal, scale, side)
    flash_attention_hopper_kernel[(programs,)](*arguments, **options)
