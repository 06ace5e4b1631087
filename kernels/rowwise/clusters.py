"""Rows beyond 32768 columns, each shared by the programs of a cluster, so that memory is read once: what
softmax_clusters.py and rms_norm_clusters.py have in common.

A cluster is up to 16 programs (CTAs) that the hardware starts together, on neighbouring SMs: each holds a part of the
row in registers, writes what it found there, one number or two, to `parts`, waits at the cluster's barrier, and reads
what all have found. So a row that no SM has room for is not read again, and a few rows keep all SMs busy. On an H200,
bf16, us (one program a row): softmax's gradient 2048 x 262144 931 (1167), 2048 x 131072 440 (507), 16 x 131072 7.4
(14.4); RMSNorm of x + residual 1188 (1447), 570 (653), 9.1 (18.7). Many rows of one tensor pay for the wait: softmax
2048 x 131072 360 (305), RMSNorm 322 (279).

    HEAD   a power of two of each part's words, and
    TAIL   the rest, in a smaller power of two, as in kernels/rowwise/pieces.py

A word is two neighbouring elements of 16 bits, as they were loaded. To Triton a cluster is one program whose blocks,
(CTAS, words), lie on the CTAs by their first axis; its reductions do not leave a CTA, and the barrier is an instruction
by hand. So these kernels need a GPU; without one, and for other rows, softmax_wide.py and norm_wide.py do the same.

Source: CUDA C++ Programming Guide, "Thread Block Clusters"; PTX ISA, "barrier.cluster" and "fence".
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import cdiv
from kernels.interpreter.runtime import interprets
from kernels.rowwise.packed import joined
from kernels.rowwise.pieces import blocks
from kernels.vectors import VECTOR_BYTES

FEW = 32  # rows, of which one a program would leave most SMs idle
NARROWEST, WIDEST = 32768, 327680  # columns: more than the one, at most the other, 16 parts of 20480


@triton.jit
def meet():
    """Wait for the cluster's other CTAs; what they told before is told after."""
    # Of a CTA's threads the first alone has told something, one number a tensor: no other has to wait for its writes.
    tl.inline_asm_elementwise(
        """{ .reg .pred first; .reg .u32 thread; mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0;
        @first fence.acq_rel.cluster; barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;
        mov.u32 $0, 0; }""",
        *("=r,~{memory}", [], tl.int32),
        is_pure=False,
        pack=1,
    )


@triton.jit
def tell(parts_ptr, x):
    """What each CTA found, x (CTAS,), for the others to read after they met."""
    tl.store(parts_ptr + tl.arange(0, x.shape[0]), x)


@triton.jit
def told(parts_ptr, CTAS: tl.constexpr):
    """What each CTA found: CTAS numbers."""
    x = ()
    for i in tl.static_range(CTAS):
        x = x + (tl.load(parts_ptr + i),)
    return x


@triton.jit
def total_of_all(parts_ptr, x):
    """The sum of x, (CTAS,), over the cluster."""
    tell(parts_ptr, x)
    meet()
    total = 0.0
    parts = told(parts_ptr, x.shape[0])
    for i in tl.static_range(len(parts)):
        total += parts[i]
    return total


@triton.jit
def words_of(ptr, row, stride):
    """Pointer to the first word of a row; `stride` in elements, a multiple of 8."""
    return ptr.to(tl.pointer_type(tl.int32)) + row * stride // 8 * 4


@triton.jit
def place(i, SHAPE: tl.constexpr):
    """Which words of a row are in its HEAD (i = 0) or TAIL."""
    START: tl.constexpr = 0 if i == 0 else SHAPE[0] * SHAPE[1]
    WIDTH: tl.constexpr = SHAPE[1] if i == 0 else SHAPE[2]
    return START + tl.arange(0, SHAPE[0])[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]


@triton.jit
def load(ptr, words, other, SHAPE: tl.constexpr, POLICY: tl.constexpr):
    """A row's `words` in blocks of (CTAS, HEAD) and (CTAS, TAIL); `other` past its end.

    SHAPE: CTAS, HEAD, TAIL, and how many of these two blocks every row fills.
    """
    x = ()
    for i in tl.static_range(1 if SHAPE[2] == 0 else 2):
        at = place(i, SHAPE)
        if i < SHAPE[3]:
            x = x + (tl.load(ptr + at, eviction_policy=POLICY),)
        else:
            x = x + (tl.load(ptr + at, mask=at < words // 4 * 4, other=other, eviction_policy=POLICY),)
    return x


@triton.jit
def store(ptr, words, i: tl.constexpr, low, high, DTYPE: tl.constexpr, SHAPE: tl.constexpr):
    at = place(i, SHAPE)
    mask = None if i < SHAPE[3] else at < words // 4 * 4
    tl.store(ptr + at, joined(low, high, DTYPE), mask=mask, eviction_policy="evict_first")


def _take(capability: tuple[int, int], itemsize: int, rows: int, cols: int, tensors: int) -> bool:
    if capability[0] not in (9, 10) or itemsize != 2 or not NARROWEST < cols <= WIDEST:
        return False
    ctas, head, tail, _ = launch_of(cols)["SHAPE"]
    filled = 8 * (cols // 2) >= 7 * ctas * (head + tail)  # 1280 x 100000, blocks a quarter empty, took 250 us for 238
    return rows <= FEW or (tensors > 1 and cols > 65536 and filled)


def take(x: torch.Tensor, vector: int, ragged: bool, tensors: int = 1) -> bool:
    """Whether clusters share rows of x, (rows, cols): whole vectors of 16-bit elements, where kernels are compiled for
    a GPU that has clusters of 16, if rows are few, or fill their blocks and are read of so many `tensors` that one SM
    has no room for them.

    vector, ragged: what vectors_of_rows said of x and the others that a kernel goes through with it.
    """
    if ragged or vector != VECTOR_BYTES // 2 or interprets():
        return False
    return _take(torch.cuda.get_device_capability(x.device), x.itemsize, *x.shape, tensors)


def shape_of(cols: int, ctas: int) -> tuple[int, int, int, int]:
    """SHAPE for rows of `cols` columns."""
    words = cols // 2
    head, tail = blocks(cdiv(words, ctas))
    return ctas, head, tail, int(head * ctas <= words) + int(tail > 0 and (head + tail) * ctas <= words)


@cache
def launch_of(cols: int, sums: bool = False) -> dict:
    """SHAPE and launch options, by trial on an H200: a thread has 32 or 40 elements, of which 64 registers have room
    for two tensors, or for their `sums` in fp32."""
    ctas, warps = 16, 16
    if cols <= (163840 if sums else 131072):
        ctas = 8
    elif cols <= 163840:
        warps = 8
    return {"SHAPE": shape_of(cols, ctas), "num_ctas": ctas, "num_warps": warps, "maxnreg": 64}


def parts_of(rows: int, chosen: dict, numbers: int, device: torch.device) -> torch.Tensor:
    return torch.empty(rows, numbers, chosen["num_ctas"], dtype=torch.float32, device=device)
