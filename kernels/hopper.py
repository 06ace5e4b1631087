"""What attention in Gluon for compute capability 9.0 is made of: room in shared memory, products, a softmax."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

LOG2_E = gl.constexpr(1.4426950408889634)
synchronise = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # as Triton 3.7 calls it, and 3.6


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
def scores(q, of_k, at, layout: gl.constexpr):
    """q k^T, under way as soon as k is there."""
    k_smem, k_full, _ = of_k
    STAGES: gl.constexpr = k_smem.shape[0]
    BLOCK_N: gl.constexpr = k_smem.shape[3]
    k = k_smem.index(at % STAGES).reshape([BLOCK_N, k_smem.shape[4]])
    mbarrier.wait(k_full.index(at % STAGES), (at // STAGES) & 1)
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
def softmax_step(s, peak, total, n, last, SCALE: gl.constexpr, MASKED: gl.constexpr):
    """Of the scores of the keys from n on: probabilities, the new peak and total, what the sums so far shrink by."""
    if MASKED:
        of_cols: gl.constexpr = gl.SliceLayout(0, s.type.layout)
        col = n + gl.arange(0, s.shape[1], layout=of_cols)
        s = gl.where(col[None, :] <= last[:, None], s, -float("inf"))
    higher = gl.maximum(peak, gl.max(s, 1) * (SCALE * LOG2_E))
    # A row that has seen no key yet, or scores of -inf alone, would compute -inf - -inf.
    base = gl.where(higher == -float("inf"), 0.0, higher)
    p = gl.exp2(s * (SCALE * LOG2_E) - base[:, None])
    shrink = gl.exp2(peak - base)
    return p, higher, total * shrink + gl.sum(p, 1), shrink
