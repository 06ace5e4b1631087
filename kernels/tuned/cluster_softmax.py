"""Tuned softmax and its gradient for rows of 32769 to 327680 columns, with a cluster of programs per row.

A cluster is up to 16 programs (CTAs) that the hardware starts together on neighbouring SMs. Each CTA keeps a part of
the row in registers and reduces it: forward to a maximum and a sum of exponentials, in the gradient to one sum. It
writes the result to `parts`, waits at the cluster's barrier, and reads the results of all CTAs. So a row larger than an
SM's registers is read only once, and a few rows keep all SMs busy.

Times on an H200 in bf16, in us, with one program per row in brackets, measured when one thread per CTA fenced before
the barrier: the gradient of 2048 x 262144 takes 931 (1167), of 2048 x 131072 440 (507), of 16 x 131072 7.4 (14.4). With
many rows of a single tensor the wait costs more than it saves: softmax of 2048 x 131072 takes 360 (305). So clusters
take up to 32 rows, and gradients of more than 65536 columns.

    HEAD   a power of two of each part's words, and
    TAIL   the rest, in a smaller power of two, where that is at most half of HEAD

A word is two neighbouring 16-bit elements, as loaded. To Triton, a cluster is one program whose (CTAS, words) blocks
are distributed over the CTAs along the first axis. Triton's reductions stay within a CTA, and the barrier is inline
assembly. These kernels need compute capability 9 or 10, and contiguous rows that consist of whole 16-byte vectors;
wide_softmax.py serves all others.

Source: CUDA C++ Programming Guide, "Thread Block Clusters"; PTX ISA, "barrier.cluster".
"""

from functools import cache

import torch
import triton
import triton.language as tl

from kernels.arguments import cdiv, next_power_of_2
from kernels.interpreter.runtime import interprets
from kernels.online_softmax import LOG2_E
from kernels.op import like
from kernels.tuned.packed import halves, join_halves, opaque_zero
from kernels.tuned.segments import VECTOR_BYTES
from kernels.variants import tuned

FEW_ROWS = 32  # at one program per row, most SMs would be idle
MIN_COLUMNS, MAX_COLUMNS = 32769, 327680  # 16 parts of 20480


@triton.jit
def cluster_sync():
    """Wait for the cluster's other CTAs: earlier stores by any of their threads are visible afterwards."""
    tl.inline_asm_elementwise(
        """{ barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.u32 $0, 0; }""",
        *("=r,~{memory}", [], tl.int32),
        is_pure=False,
        pack=1,
    )


@triton.jit
def publish(parts_ptr, x):
    """Store what each CTA found, x (CTAS,), for the others to read after cluster_sync."""
    tl.store(parts_ptr + tl.arange(0, x.shape[0]), x)


@triton.jit
def gather(parts_ptr, CTAS: tl.constexpr):
    """Load what each CTA found: CTAS numbers."""
    x = ()
    for i in tl.static_range(CTAS):
        x = x + (tl.load(parts_ptr + i),)
    return x


@triton.jit
def total_of_all(parts_ptr, x):
    """Return the sum of x, (CTAS,), over the cluster."""
    publish(parts_ptr, x)
    cluster_sync()
    total = 0.0
    parts = gather(parts_ptr, x.shape[0])
    for i in tl.static_range(len(parts)):
        total += parts[i]
    return total


@triton.jit
def words_of(ptr, row, stride):
    """Return a pointer to the first word of a row; `stride` in elements, a multiple of 8."""
    return ptr.to(tl.pointer_type(tl.int32)) + row * stride // 8 * 4


@triton.jit
def place(i, SHAPE: tl.constexpr):
    """Return which words of a row are in its HEAD (i = 0) or TAIL."""
    START: tl.constexpr = 0 if i == 0 else SHAPE[0] * SHAPE[1]
    WIDTH: tl.constexpr = SHAPE[1] if i == 0 else SHAPE[2]
    return START + tl.arange(0, SHAPE[0])[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]


@triton.jit
def load(ptr, words, other, SHAPE: tl.constexpr, POLICY: tl.constexpr):
    """Load a row's `words` in blocks of (CTAS, HEAD) and (CTAS, TAIL); `other` past its end.

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
    """Round to DTYPE and store the words of a row's HEAD (i = 0) or TAIL."""
    at = place(i, SHAPE)
    mask = None if i < SHAPE[3] else at < words // 4 * 4
    tl.store(ptr + at, join_halves(low, high, DTYPE), mask=mask, eviction_policy="evict_first")


@triton.jit
def softmax_cluster_kernel(
    x_ptr,  # (rows, cols), rows and their stride whole vectors of 16 bytes, unit column stride, 16-bit elements
    y_ptr,  # (rows, cols), contiguous, x's dtype
    parts_ptr,  # (rows, 2, CTAS), fp32
    words,  # of a row
    x_row_stride,  # in elements
    SHAPE: tl.constexpr,  # CTAS, HEAD, TAIL, full blocks: see load
):
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    CTAS: tl.constexpr = SHAPE[0]
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    parts_ptr += row * (2 * CTAS)
    lowest = tl.full((1, 1), -float("inf"), tl.float32)
    x = load(words_of(x_ptr, row, x_row_stride), words, join_halves(lowest, lowest, DTYPE), SHAPE, "evict_first")
    top = tl.full((CTAS,), -float("inf"), tl.float32)
    for i in tl.static_range(len(x)):
        low, high = halves(x[i], 0, DTYPE)
        top = tl.maximum(top, tl.max(tl.maximum(low, high), axis=1))
    base = tl.where(top == -float("inf"), 0.0, top)  # a part of only -inf would compute -inf - -inf
    zero = opaque_zero(base, words)[:, None]
    total = tl.zeros((CTAS,), tl.float32)
    for i in tl.static_range(len(x)):
        low, high = halves(x[i], zero, DTYPE)
        low, high = tl.exp2((low - base[:, None]) * LOG2_E), tl.exp2((high - base[:, None]) * LOG2_E)
        total += tl.sum(low + high, axis=1)
    publish(parts_ptr, top)
    publish(parts_ptr + CTAS, total)
    cluster_sync()
    tops, totals = gather(parts_ptr, CTAS), gather(parts_ptr + CTAS, CTAS)
    top = tops[0]
    for i in tl.static_range(1, CTAS):
        top = tl.maximum(top, tops[i])
    total = 0.0
    for i in tl.static_range(CTAS):
        total += totals[i] * tl.exp2((tops[i] - top) * LOG2_E)
    shift = tl.log2(total)
    zero = opaque_zero(shift, words)
    for i in tl.static_range(len(x)):
        low, high = halves(x[i], zero, DTYPE)
        low, high = tl.exp2((low - top) * LOG2_E - shift), tl.exp2((high - top) * LOG2_E - shift)
        store(words_of(y_ptr, row, 2 * words), words, i, low, high, DTYPE, SHAPE)


@triton.jit
def softmax_backward_cluster_kernel(
    grad_y_ptr,  # (rows, cols), rows and their stride whole vectors of 16 bytes, unit column stride, 16-bit elements
    y_ptr,  # (rows, cols), contiguous
    grad_x_ptr,  # (rows, cols), contiguous
    parts_ptr,  # (rows, CTAS), fp32
    words,
    grad_y_row_stride,
    SHAPE: tl.constexpr,
):
    DTYPE: tl.constexpr = y_ptr.dtype.element_ty
    CTAS: tl.constexpr = SHAPE[0]
    row = tl.program_id(0).to(tl.int64)
    parts_ptr += row * CTAS
    grad_y = load(words_of(grad_y_ptr, row, grad_y_row_stride), words, 0, SHAPE, "evict_first")
    y = load(words_of(y_ptr, row, 2 * words), words, 0, SHAPE, "evict_first")
    mean = tl.zeros((CTAS,), tl.float32)
    for i in tl.static_range(len(y)):
        low, high = halves(y[i], 0, DTYPE)
        grad_low, grad_high = halves(grad_y[i], 0, DTYPE)
        mean += tl.sum(low * grad_low + high * grad_high, axis=1)
    mean = total_of_all(parts_ptr, mean)
    zero = opaque_zero(mean, words)
    for i in tl.static_range(len(y)):
        low, high = halves(y[i], zero, DTYPE)
        grad_low, grad_high = halves(grad_y[i], zero, DTYPE)
        low, high = low * (grad_low - mean), high * (grad_high - mean)
        store(words_of(grad_x_ptr, row, 2 * words), words, i, low, high, DTYPE, SHAPE)


@cache
def blocks_of(words: int) -> tuple[int, int]:
    """Return HEAD and TAIL for parts of `words` words: one block if it is more than three quarters full, else two."""
    block = next_power_of_2(words)
    head = block // 2
    tail = max(next_power_of_2(words - head), head // 8) if block > 512 else block
    return (head, tail) if tail < head else (block, 0)


def shape_of(cols: int, ctas: int) -> tuple[int, int, int, int]:
    """Return SHAPE for rows of `cols` columns."""
    words = cols // 2
    head, tail = blocks_of(cdiv(words, ctas))
    return ctas, head, tail, int(head * ctas <= words) + int(tail > 0 and (head + tail) * ctas <= words)


@cache
def settings(cols: int) -> dict:
    """Return SHAPE and launch options, found by trial on an H200. A thread has 32 or 40 elements; two tensors of them
    fit in 64 registers."""
    ctas, warps = (8, 16) if cols <= 131072 else (16, 8 if cols <= 163840 else 16)
    return {"SHAPE": shape_of(cols, ctas), "num_ctas": ctas, "num_warps": warps, "maxnreg": 64}


@cache
def _shared(capability: tuple[int, int], itemsize: int, rows: int, cols: int, tensors: int) -> bool:
    if capability[0] not in (9, 10) or itemsize != 2 or cols * itemsize % VECTOR_BYTES:
        return False
    ctas, head, tail, _ = settings(cols)["SHAPE"]
    filled = 8 * (cols // 2) >= 7 * ctas * (head + tail)  # 1280 x 100000, blocks a quarter empty: 250 us, not 238
    return rows <= FEW_ROWS or (tensors > 1 and cols > 65536 and filled)


def takes(*tensors: torch.Tensor) -> bool:
    """Return whether the cluster kernel takes these tensors, its inputs."""
    x = tensors[0]
    if not MIN_COLUMNS <= x.shape[-1] <= MAX_COLUMNS or x.numel() == 0 or interprets():
        return False
    for each in tensors:
        if not each.is_contiguous() or each.data_ptr() % VECTOR_BYTES:
            return False
    rows = x.numel() // x.shape[-1]
    return _shared(torch.cuda.get_device_capability(x.device), x.itemsize, rows, x.shape[-1], len(tensors))


def _parts(rows: int, chosen: dict, numbers: int, device: torch.device) -> torch.Tensor:
    return torch.empty(rows, numbers, chosen["num_ctas"], dtype=torch.float32, device=device)


@tuned("softmax", "forward", takes=takes, gain="2.6x over one program per row at 1 x 128256 (H200, bf16)")
def forward(x: torch.Tensor) -> torch.Tensor:
    """Return softmax(x)."""
    y, cols, chosen = like(x), x.shape[-1], settings(x.shape[-1])
    rows = x.numel() // cols
    parts = _parts(rows, chosen, 2, x.device)
    with torch.cuda.device_of(x):
        softmax_cluster_kernel[(rows,)](x, y, parts, cols // 2, cols, **chosen)
    return y


@tuned(
    "softmax",
    "backward",
    takes=takes,
    gain="1.25x over one program per row at 2048 x 262144 (H200, bf16); 1.5x at 883 x 151936 (H100)",
)
def backward(grad_y: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the gradient of softmax's argument."""
    grad_x, cols, chosen = torch.empty_like(y), y.shape[-1], settings(y.shape[-1])
    rows = y.numel() // cols
    parts = _parts(rows, chosen, 1, y.device)
    with torch.cuda.device_of(y):
        softmax_backward_cluster_kernel[(rows,)](grad_y, y, grad_x, parts, cols // 2, cols, **chosen)
    return grad_x
