"""What attention in Gluon for compute capability 9.0 is made of: the order of tiles, room in shared memory, products, a
softmax, stores."""

from functools import cache

import torch
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.descriptors import row_strides

LOG2_E = gl.constexpr(1.4426950408889634)
synchronise = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # as Triton 3.7 calls it, and 3.6
KINDS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}


@cache  # Gluon takes tens of microseconds for one
def _layout(tile: tuple[int, ...], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    if len(tile) == 3:  # one value a row
        return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=3)
    return gl.NVMMASharedLayout.get_default_for(list(tile), KINDS[dtype])


def swizzled(x: torch.Tensor, tile: list[int]) -> TensorDescriptor:
    """Gluon's descriptor of x, which is describable (kernels/descriptors.py), in tiles of this shape."""
    return TensorDescriptor(x, list(x.shape), [*row_strides(x), 1], tile, _layout(tuple(tile), x.dtype))


@cache
def heads_together(blocks: int, heads: int, programs: int) -> int:
    """Of how many heads the longest of a causal kernel's tiles come first, as place takes it: of those that programs
    have at a time, or of one, so that keys are in L2; of all where programs would get uneven shares so."""

    def even(side: int) -> bool:
        shares = [0] * programs
        for tile in range(min(blocks * heads, 64 * programs)):  # more rounds only even out
            (turn, at), first = divmod(tile, programs), tile // (side * blocks) * side
            length = blocks - (tile - first * blocks) // min(side, heads - first)
            shares[programs - 1 - at if turn % 2 else at] += length + 2  # what a tile takes besides steps
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
    """How many tiles this program takes."""
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
    """The layout of a product's 64 rows in a group's registers."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.jit
def room(desc, COUNT: gl.constexpr, BARRIERS: gl.constexpr):
    """COUNT tiles of desc in shared memory, BARRIERS that each say that it is full, and as many, empty."""
    ROWS: gl.constexpr = desc.block_type.shape[2]
    COLS: gl.constexpr = desc.block_type.shape[3]
    smem = gl.allocate_shared_memory(desc.dtype, [COUNT, 1, 1, ROWS, COLS], desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [BARRIERS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [BARRIERS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BARRIERS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)  # both groups are done
    return smem, full, empty


@gluon.jit
def free(barrier):
    """Every warp of this group is done with what the barrier guards."""
    synchronise()
    mbarrier.arrive(barrier, count=1)


@gluon.jit
def scores(q, of_k, at, layout: gl.constexpr, there=True):
    """q k^T, under way as soon as k is there, or at once where nothing is to be `there`."""
    k_smem, k_full, _ = of_k
    STAGES: gl.constexpr = k_smem.shape[0]
    BLOCK_N: gl.constexpr = k_smem.shape[3]
    k = k_smem.index(at % STAGES).reshape([BLOCK_N, k_smem.shape[4]])
    mbarrier.wait(k_full.index(at % STAGES), (at // STAGES) & 1, pred=there)
    s = gl.zeros((64, BLOCK_N), gl.float32, layout)
    return hopper.warpgroup_mma(q, k.permute((1, 0)), s, use_acc=False, is_async=True)


@gluon.jit
def values(p, acc, of_v, at):
    """acc + p v, under way as soon as v is there."""
    v_smem, v_full, _ = of_v
    STAGES: gl.constexpr = v_smem.shape[0]
    v = v_smem.index(at % STAGES).reshape([v_smem.shape[3], v_smem.shape[4]])
    mbarrier.wait(v_full.index(at % STAGES), (at // STAGES) & 1)
    return hopper.warpgroup_mma(p, v, acc, is_async=True)


@gluon.jit
def up_to(s, n, last):
    """The scores s of the keys from n on, -inf for those after a row's last."""
    col = n + gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, s.type.layout))
    # Of `where`, LLVM makes bits of one integer: five instructions, not two.
    code: gl.constexpr = "{ .reg .pred p; setp.le.s32 p, $2, $3; selp.f32 $0, $1, 0fFF800000, p; }"
    each = [s, col[None, :], last[:, None]]
    return gl.inline_asm_elementwise(code, "=f,f,r,r", each, gl.float32, is_pure=True, pack=1)


@gluon.jit
def softmax_step(s, peak, total, SCALE: gl.constexpr):
    """Of scores: probabilities, the new peak and total, what the sums so far shrink by."""
    higher = gl.maximum(peak, gl.max(s, 1) * (SCALE * LOG2_E))
    # A row that has seen no key yet, or scores of -inf alone, would compute -inf - -inf.
    base = gl.where(higher == -float("inf"), 0.0, higher)
    p = gl.exp2(s * (SCALE * LOG2_E) - base[:, None])
    shrink = gl.exp2(peak - base)
    return p, higher, total * shrink + gl.sum(p, 1), shrink


@builtin
def add_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """As tma.async_copy_shared_to_global, but adds: Triton 3.6 and 3.7 can, their Gluon has no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@gluon.jit
def put(desc, value, smem, at, ADD: gl.constexpr):
    """Store a tile by way of smem, or add it to what is there, once the copy engine is done with the last one."""
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
