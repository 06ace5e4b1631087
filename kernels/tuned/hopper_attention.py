"""Tuned flash_attention forward for 16-bit heads on compute capability 9.0, with hand-written warp specialisation.

It takes head dims of 65 to 256, and of 33 to 64 if there are many tiles. Tiles, accumulators and online softmax are the
plain kernel's, written in Gluon, Triton's lower level, where layouts, copies and barriers are explicit. In a program,
one warp loads queries, keys and values with TMA, and one to three groups of four warps own 64 queries each. Why it is
faster than the plain kernel:

    a group's score matmul for the next keys runs on the tensor cores together with the matmul of its last probabilities
        and values, so a step waits for exponentials once, not twice
    keys are read from last to first: masked keys come first, and all other steps need no mask
    programs are persistent: the next tile's loads and, up to head dim 128, its first scores are in flight while the
        last tile's output is stored

Times in us on an H100 in bf16 (batch x heads x tokens x dim), with two groups and a sum per row, now, and cuDNN's:

    128 x 16 x 128 x 128       102  93   95           32 x 16 x 512 x 128        144  132  138
    16 x 16 x 1024 x 64        178  166  169          1 x 16 x 16384 x 64       2254  2053  2311 (before: plain)

hopper_attention_backward.py computes the gradients and shares the helpers below.

Source: Shah et al., arXiv:2407.08608.
"""

from functools import cache

import torch
from torch import Tensor
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.arguments import cdiv, multiprocessors
from kernels.attention import value_per_row
from kernels.descriptors import describable, padded_empty, row_strides
from kernels.interpreter import runtime
from kernels.variants import tuned

# Over its predecessor, with descriptors and warp roles left to the compiler. The plain kernel's time is not recorded.
GAIN = "1.6x at 2 x 32 heads (8 of keys) x 4096 x 128, causal, 2x at 4 x 16 x 1000 x 128 (H100, bf16)"
LOG2_E = gl.constexpr(1.4426950408889634)
synchronise = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # its names in Triton 3.7 and 3.6
KINDS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}


@cache  # creating one in Gluon takes tens of microseconds
def _layout(tile: tuple[int, ...], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    if len(tile) == 3:  # one value per row
        return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=3)
    return gl.NVMMASharedLayout.get_default_for(list(tile), KINDS[dtype])


def swizzled(x: torch.Tensor, tile: list[int]) -> TensorDescriptor:
    """Return Gluon's descriptor of x, with tiles of this shape; x must be describable (kernels/descriptors.py)."""
    return TensorDescriptor(x, list(x.shape), [*row_strides(x), 1], tile, _layout(tuple(tile), x.dtype))


@cache
def heads_together(blocks: int, heads: int, programs: int) -> int:
    """Return how many heads start with their longest causal tiles, as `place` takes it: the number of heads in flight,
    or one, so that keys stay in L2; all heads if the work would be uneven otherwise."""

    def even(side: int) -> bool:
        shares = [0] * programs
        for tile in range(min(blocks * heads, 64 * programs)):  # further rounds only even out
            (turn, at), first = divmod(tile, programs), tile // (side * blocks) * side
            length = blocks - (tile - first * blocks) // min(side, heads - first)
            shares[programs - 1 - at if turn % 2 else at] += length + 2  # a tile's fixed cost, in steps
        return max(shares) * programs < 1.06 * sum(shares)

    return next((side for side in (programs // blocks, 1) if side and even(side)), heads)


@gluon.jit
def nth_tile(i):
    """The i-th tile of this program. Each second round of programs is dealt from the last to the first, so that all get
    long and short tiles."""
    programs = gl.num_programs(0)
    return i * programs + gl.where(i % 2 == 1, programs - 1 - gl.program_id(0), gl.program_id(0))


@gluon.jit
def tile_count(tiles):
    """Return how many tiles this program takes."""
    rounds = tiles // gl.num_programs(0)
    return gl.where(nth_tile(rounds) < tiles, rounds + 1, rounds)


@gluon.jit
def place(tile, heads, tiles, blocks, side):
    """Batch, head and block of the tile-th tile: of `side` heads the last blocks first, then those before them."""
    first = tile // (side * blocks) * side
    side = gl.minimum(side, tiles // blocks - first)
    at = tile - first * blocks
    head = first + at % side
    return head // heads, head % heads, blocks - 1 - at // side


@gluon.constexpr_function
def of_product(columns):
    """Return the register layout of a group's 64 rows of a matmul's result."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.jit
def room(desc, COUNT: gl.constexpr, BARRIERS: gl.constexpr, GROUPS: gl.constexpr = 2):
    """Allocate COUNT tiles of desc in shared memory, with BARRIERS barriers for "full" and as many for "empty"."""
    ROWS: gl.constexpr = desc.block_type.shape[2]
    COLS: gl.constexpr = desc.block_type.shape[3]
    smem = gl.allocate_shared_memory(desc.dtype, [COUNT, 1, 1, ROWS, COLS], desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [BARRIERS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [BARRIERS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BARRIERS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)  # each group is done
    return smem, full, empty


@gluon.jit
def free(barrier):
    """Signal that every warp of this group is done with the barrier's data."""
    synchronise()
    mbarrier.arrive(barrier, count=1)


@gluon.jit
def scores(q, of_k, at, layout: gl.constexpr, there=True):
    """Start q k^T as soon as k arrives, or at once if `there` is false."""
    k_smem, k_full, _ = of_k
    STAGES: gl.constexpr = k_smem.shape[0]
    BLOCK_N: gl.constexpr = k_smem.shape[3]
    k = k_smem.index(at % STAGES).reshape([BLOCK_N, k_smem.shape[4]])
    mbarrier.wait(k_full.index(at % STAGES), (at // STAGES) & 1, pred=there)
    s = gl.zeros((64, BLOCK_N), gl.float32, layout)
    return hopper.warpgroup_mma(q, k.permute((1, 0)), s, use_acc=False, is_async=True)


@gluon.jit
def values(p, acc, of_v, at):
    """Start acc + p v as soon as v arrives."""
    v_smem, v_full, _ = of_v
    STAGES: gl.constexpr = v_smem.shape[0]
    v = v_smem.index(at % STAGES).reshape([v_smem.shape[3], v_smem.shape[4]])
    mbarrier.wait(v_full.index(at % STAGES), (at // STAGES) & 1)
    return hopper.warpgroup_mma(p, v, acc, is_async=True)


@gluon.jit
def up_to(s, n, last):
    """Return the scores s of the keys starting at n, -inf for those after a row's last."""
    col = n + gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, s.type.layout))
    # LLVM turns `where` into bits of one integer: five instructions, not two.
    code: gl.constexpr = "{ .reg .pred p; setp.le.s32 p, $2, $3; selp.f32 $0, $1, 0fFF800000, p; }"
    each = [s, col[None, :], last[:, None]]
    return gl.inline_asm_elementwise(code, "=f,f,r,r", each, gl.float32, is_pure=True, pack=1)


@gluon.jit
def softmax_step(s, peak, total, SCALE: gl.constexpr):
    """Return, from scores: probabilities, the new running max and sums, and the factor that rescales earlier sums.

    Eight sums per row each stay in one thread, so that only the maximum crosses threads; None before the first step."""
    higher = gl.maximum(peak, gl.max(s, 1) * (SCALE * LOG2_E))
    # A row that has seen no key yet, or scores of -inf alone, would compute -inf - -inf.
    base = gl.where(higher == -float("inf"), 0.0, higher)
    p = gl.exp2(s * (SCALE * LOG2_E) - base[:, None])
    shrink = gl.exp2(peak - base)
    sums = gl.sum(p.reshape([64, p.shape[1] // 8, 8]), 1)
    if total is not None:
        sums += shrunk(total, shrink)
    return p, higher, sums, shrink


@gluon.jit
def shrunk(sums, shrink):
    """Return sums with each row multiplied by its value of shrink."""
    return sums * gl.convert_layout(shrink, gl.SliceLayout(1, sums.type.layout))[:, None]


@builtin
def add_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """Copy like tma.async_copy_shared_to_global, but add. Triton 3.6 and 3.7 support this; their Gluon does not expose
    it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@gluon.jit
def put(desc, value, smem, at, ADD: gl.constexpr):
    """Store a tile through smem, or add it to memory, once TMA is done with the last one."""
    tma.store_wait(pendings=0)
    synchronise()
    smem.reshape(value.shape).store(value.to(desc.dtype))
    hopper.fence_async_shared()
    synchronise()
    if ADD:
        add_shared_to_global(desc, at, smem)
    else:
        tma.async_copy_shared_to_global(desc, at, smem)


@gluon.jit
def put_rows(desc, value, smem, b, h, row):
    """Store (64, D) by way of smem, fp32 of (64, 64): fp32 by half of the columns at a time."""
    D: gl.constexpr = value.shape[1]
    if desc.block_type.shape[3] == D:
        put(desc, value, smem._reinterpret(desc.dtype, desc.block_type.shape, desc.layout), [b, h, row, 0], False)
    else:
        left, right = value.reshape([64, 2, D // 2]).permute((0, 2, 1)).split()
        put(desc, left, smem, [b, h, row, 0], False)
        put(desc, right, smem, [b, h, row, D // 2], False)


# The forward alone: the order of tiles, the warp that loads them, the groups that compute.


@gluon.jit
def steps_of(block, queries, keys, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr, ROWS: gl.constexpr):
    """Steps over the keys that some query of the block sees; at least one, which hides them all where none does."""
    end = gl.minimum(keys, (block + 1) * ROWS + keys - queries) if CAUSAL else keys
    return gl.maximum(gl.cdiv(end, BLOCK_N), 1)


@gluon.jit
def load(loads, CAUSAL: gl.constexpr):
    """Run the loading warp: each tile's queries, then its keys and values from last to first, as far ahead as buffers
    allow.

    of_q, of_k, of_v: buffers in shared memory, and their "full" and "empty" barriers.
    """
    q_desc, k_desc, v_desc, of_q, of_k, of_v, sizes = loads
    GROUPS: gl.constexpr = of_q[0].shape[0] // of_q[1].shape[0]
    q_smem, q_full, q_empty = of_q
    k_smem, k_full, k_empty = of_k
    v_smem, v_full, v_empty = of_v
    heads, group, queries, keys, tiles, blocks, side = sizes
    SLOTS: gl.constexpr = q_full.shape[0]
    STAGES: gl.constexpr = k_smem.shape[0]
    BLOCK_N: gl.constexpr = k_smem.shape[3]
    at = 0
    for i in range(tile_count(tiles)):
        b, h, block = place(nth_tile(i), heads, tiles, blocks, side)
        steps = steps_of(block, queries, keys, CAUSAL, BLOCK_N, 64 * GROUPS)
        slot = i % SLOTS
        mbarrier.wait(q_empty.index(slot), ((i // SLOTS) & 1) ^ 1)
        mbarrier.expect(q_full.index(slot), GROUPS * q_desc.block_type.nbytes)
        for part in gl.static_range(GROUPS):
            row, smem = (block * GROUPS + part) * 64, q_smem.index(GROUPS * slot + part)
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


@gluon.jit
def walk(steps, masked, at, q, of_k, of_v, acc, p, peak, total, shrink, last, SCALE: gl.constexpr):
    """All steps but the first. acc lags behind: it lacks the last step's p v, and up to head dim 64, where a step's
    matmuls are short, it shrinks for it only while the next scores are computed."""
    k_smem, _, k_empty = of_k
    STAGES: gl.constexpr = k_smem.shape[0]
    of_s: gl.constexpr = peak.type.layout.parent
    of_p: gl.constexpr = p.type.layout
    LATE: gl.constexpr = acc.shape[1] <= 64
    for step in range(1, steps):
        s = scores(q, of_k, at, of_s)
        if LATE:
            acc = shrunk(acc, shrink)
        acc = values(p, acc, of_v, at - 1)
        s = hopper.warpgroup_mma_wait(1, deps=[s])
        if step < masked:
            s = up_to(s, (steps - 1 - step) * k_smem.shape[3], last)
        fresh, peak, total, shrink = softmax_step(s, peak, total, SCALE)
        fresh = gl.convert_layout(fresh.to(k_smem.dtype), of_p)
        acc, _used, p = hopper.warpgroup_mma_wait(0, deps=[acc, p, fresh])
        free(of_v[2].index((at - 1) % STAGES))
        mbarrier.arrive(k_empty.index(at % STAGES), count=1)
        if not LATE:
            acc = shrunk(acc, shrink)
        at += 1
    if LATE:
        acc = shrunk(acc, shrink)
    return at, acc, p, peak, total


@gluon.jit
def first_scores(of_q, of_k, i, at, count, PART: gl.constexpr, GROUPS: gl.constexpr, layout: gl.constexpr):
    """Start the first scores of the i-th of `count` tiles as soon as it arrives. After the last: of whatever is in the
    buffer."""
    q_smem, q_full, _ = of_q
    SLOTS: gl.constexpr = q_full.shape[0]
    mbarrier.wait(q_full.index(i % SLOTS), (i // SLOTS) & 1, pred=i < count)
    q = q_smem.index(GROUPS * (i % SLOTS) + PART).reshape([64, q_smem.shape[4]])
    return scores(q, of_k, at, layout, i < count)


@gluon.jit
def attend(work, PART: gl.constexpr, SCALE: gl.constexpr, CAUSAL: gl.constexpr):
    """A group of four warps: its 64 queries of each tile."""
    of_q, of_k, of_v, o_smem, out_desc, lse_ptr, lse_row, sizes = work
    GROUPS: gl.constexpr = o_smem.shape[0]
    q_smem, q_full, q_empty = of_q
    heads, _group, queries, keys, tiles, blocks, side = sizes
    SLOTS: gl.constexpr = q_full.shape[0]
    STAGES: gl.constexpr = of_k[0].shape[0]
    BLOCK_N: gl.constexpr = of_k[0].shape[3]
    D: gl.constexpr = q_smem.shape[4]
    OVER_Q: gl.constexpr = D > 128  # the output takes the place of the queries: there is no room for both
    of_s: gl.constexpr = of_product(BLOCK_N)
    of_acc: gl.constexpr = of_product(D)
    of_p: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=of_acc, k_width=2)
    of_rows: gl.constexpr = gl.SliceLayout(1, of_s)
    out = o_smem.index(PART)
    at = 0
    count = tile_count(tiles)
    s = first_scores(of_q, of_k, 0, 0, count, PART, GROUPS, of_s)
    s = hopper.warpgroup_mma_wait(0, deps=[s])
    for i in range(count):
        b, h, block = place(nth_tile(i), heads, tiles, blocks, side)
        steps = steps_of(block, queries, keys, CAUSAL, BLOCK_N, 64 * GROUPS)
        first = (block * GROUPS + PART) * 64
        row = first + gl.arange(0, 64, layout=of_rows)
        # The last key that each query sees, and how many all of them see.
        last, by_all = gl.full([64], 0, gl.int32, layout=of_rows) + (keys - 1), keys
        if CAUSAL:
            last = gl.minimum(row + (keys - queries), last)
            by_all = gl.minimum(first + 1 + keys - queries, keys)
        masked = gl.maximum(steps - gl.maximum(by_all, 0) // BLOCK_N, 1)
        free(of_k[2].index(at % STAGES))
        peak = gl.full([64], -float("inf"), gl.float32, layout=of_rows)
        if steps * BLOCK_N > by_all:
            s = up_to(s, (steps - 1) * BLOCK_N, last)
        fresh, peak, total, shrink = softmax_step(s, peak, None, SCALE)
        p = gl.convert_layout(fresh.to(q_smem.dtype), of_p)
        acc = gl.zeros((64, D), gl.float32, of_acc)
        q = q_smem.index(GROUPS * (i % SLOTS) + PART).reshape([64, D])
        at, acc, p, peak, total = walk(steps, masked, at + 1, q, of_k, of_v, acc, p, peak, total, shrink, last, SCALE)
        acc = values(p, acc, of_v, at - 1)
        if not OVER_Q:  # the next tile's first product, under the end of this one
            free(q_empty.index(i % SLOTS))
            s = first_scores(of_q, of_k, i + 1, at, count, PART, GROUPS, of_s)
        acc, p = hopper.warpgroup_mma_wait(0 if OVER_Q else 1, deps=[acc, p])
        free(of_v[2].index((at - 1) % STAGES))
        total = gl.convert_layout(gl.sum(total, 1), of_rows)
        over = gl.convert_layout(1.0 / gl.where(total == 0, 1.0, total), gl.SliceLayout(1, of_acc))
        put(out_desc, acc * over[:, None], out, [b, h, first, 0], False)
        if OVER_Q:
            tma.store_wait(pendings=0)
            free(q_empty.index(0))
            s = first_scores(of_q, of_k, i + 1, at, count, PART, GROUPS, of_s)
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
    group,  # query heads per key head
    queries,
    keys,
    tiles,  # of GROUPS x 64 queries, of all heads
    blocks,  # of one head
    side,  # as place takes it
    SCALE: gl.constexpr,  # of the scores
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,  # of four warps, each with 64 queries of a tile
):
    of_k, of_v = room(k_desc, STAGES, STAGES, GROUPS), room(v_desc, STAGES, STAGES, GROUPS)
    D: gl.constexpr = q_desc.block_type.shape[3]
    SLOTS: gl.constexpr = 2 if D <= 128 else 1
    of_q = room(q_desc, SLOTS * GROUPS, SLOTS, GROUPS)
    o_smem = of_q[0]
    if D <= 128:
        o_smem = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 1, 1, 64, D], q_desc.layout)
    hopper.fence_async_shared()
    synchronise()
    sizes = heads, group, queries, keys, tiles, blocks, side
    work = of_q, of_k, of_v, o_smem, out_desc, lse_ptr, lse_row, sizes
    loads = q_desc, k_desc, v_desc, of_q, of_k, of_v, sizes
    skip: gl.constexpr = 3 - GROUPS
    gl.warp_specialize(
        [
            (attend, (work, 0 - skip, SCALE, CAUSAL)),
            (attend, (work, 1 - skip, SCALE, CAUSAL)),
            (attend, (work, 2 - skip, SCALE, CAUSAL)),
            (load, (loads, CAUSAL)),
        ][skip:],
        [4, 4, 1][skip:],  # warps of all but the first
        [160, 240 if skip else 160, 24][skip:],  # registers a thread of theirs
    )


def on_hopper(q: Tensor) -> bool:
    """Return whether q is in 16 bits and on a GPU that runs code for compute capability 9.0."""
    if runtime.interprets() or not q.is_cuda or torch.cuda.get_device_capability(q.device) != (9, 0):
        return False
    return q.dtype in (torch.bfloat16, torch.float16)


def _serves(q: Tensor, k: Tensor) -> bool:
    (batch, heads, queries, dim), keys = q.shape, k.shape[2]
    many = cdiv(queries, 128) * batch * heads >= 8 * multiprocessors(q)
    return (64 < dim <= 256 or (32 < dim <= 64 and many)) and q.numel() * keys > 0


def groups_of(q: Tensor, k: Tensor, causal: bool, keeps_lse: bool) -> int:
    """Return how many groups of four warps share a tile."""
    (batch, heads, queries, dim), keys = q.shape, k.shape[2]
    if dim <= 64:  # three hide exponentials better, and waste more at either end of the keys
        spills = keeps_lse and not causal  # with three
        return 3 if min(queries, keys) >= (8192 if causal else 4096) and not spills else 2
    # One where that gives all multiprocessors work, or where tiles are loaded and stored longer than computed.
    few = cdiv(queries, 64) * batch * heads <= multiprocessors(q)
    return 1 if dim <= 128 and (few or (keys <= 128 and not causal)) else 2


def takes(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> bool:
    """Return whether this kernel takes these heads on q's GPU."""
    return on_hopper(q) and _serves(q, k)


def operands(q, k, v, out, lse, causal: bool, scale: float | None, side: int = 1) -> tuple[tuple, dict]:
    """Return the kernel's arguments and options, for tensors that descriptors can describe; lse may be None."""
    (batch, heads, queries, dim), (key_heads, keys) = q.shape, k.shape[1:3]
    groups, wide = groups_of(q, k, causal, lse is not None), 64 if dim <= 64 else 128 if dim <= 128 else 256
    blocks = cdiv(queries, 64 * groups)
    passing = 64 if wide == 256 else 128
    stay, pass_by = [1, 1, 64, wide], [1, 1, passing, wide]
    tensors = swizzled(q, stay), swizzled(k, pass_by), swizzled(v, pass_by), swizzled(out, stay), lse
    row, tiles = 0 if lse is None else lse.stride(1), blocks * batch * heads
    sizes = row, heads, heads // key_heads, queries, keys, tiles, blocks, side
    options = {"SCALE": dim**-0.5 if scale is None else scale, "CAUSAL": causal, "num_warps": 4}
    return (*tensors, *sizes), options | {"STAGES": max(groups, 2), "GROUPS": groups}


def _compile_arguments(*shape, dtype: torch.dtype):
    x = torch.empty(shape[:4], dtype=dtype, device="meta")
    if dtype.itemsize != 2 or not _serves(x, x):
        return None
    return flash_attention_hopper_kernel, *operands(x, x, x, x, None, shape[4], None)


def launch(q, k, v, out, lse, causal: bool, scale: float | None) -> None:
    """Write out, and lse if it is not None. Launches one program per SM; each loops over tiles."""
    blocks, of_heads = cdiv(q.shape[2], 64 * groups_of(q, k, causal, lse is not None)), q.shape[0] * q.shape[1]
    programs = min(blocks * of_heads, multiprocessors(q))
    side = heads_together(blocks, of_heads, programs) if causal else 1
    arguments, options = operands(q, k, v, out, lse, causal, scale, side)
    flash_attention_hopper_kernel[(programs,)](*arguments, **options)


def _run(q, k, v, causal: bool, scale: float | None, lse: Tensor | None) -> Tensor:
    out = padded_empty(q.shape, q)
    with torch.cuda.device_of(q):
        launch(describable(q), describable(k), describable(v), out, lse, causal, scale)
    return out.contiguous()


@tuned("flash_attention", "forward", takes=takes, gain=GAIN, compile_arguments=_compile_arguments)
def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    return _run(q, k, v, causal, scale, None)


@tuned("flash_attention", "training", takes=takes, gain=GAIN)
def _training(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    lse = value_per_row(q)
    return _run(q, k, v, causal, scale, lse), lse
