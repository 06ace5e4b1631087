"""A Gluon kernel that copies a tile by TMA and reads it with or without waiting; for benchmarks/consan.py."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.tuned.hopper_attention import synchronise


@gluon.jit
def tile_kernel(
    desc,  # fp16 (64, 64), one tile
    out_ptr,  # the same, contiguous
    WAITS: gl.constexpr,  # for the tile before reading it
):
    arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    smem = gl.allocate_shared_memory(gl.float16, [64, 64], desc.layout)
    mbarrier.init(arrived, count=1)
    synchronise()
    mbarrier.expect(arrived, desc.block_type.nbytes)
    tma.async_copy_global_to_shared(desc, [0, 0], arrived, smem)
    if WAITS:
        mbarrier.wait(arrived, 0)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    x = smem.load(layout)
    if not WAITS:
        mbarrier.wait(arrived, 0)
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    col = gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
    gl.store(out_ptr + row[:, None] * 64 + col[None, :], x)
    mbarrier.invalidate(arrived)


def operands(x: torch.Tensor) -> tuple:
    layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
    return TensorDescriptor.from_tensor(x, [64, 64], layout), torch.empty_like(x)


def copied(x: torch.Tensor, waits: bool) -> torch.Tensor:
    desc, out = operands(x)
    tile_kernel[(1,)](desc, out, waits, num_warps=4)
    return out
