"""Softmax of each row and its k largest entries, in one launch: a mixture of experts' gate, a sampler's shortlist.

    unfused   softmax: read x, write y | topk: read y (several times), write values and indices
    fused     read x once, write y once, values and indices beside it          4 B/element in 16 bits

The k largest of a row are found without sorting it. Its columns lie in groups; the k groups with the largest maxima
hold all k winners, for each of those groups has one entry at least as large as anything outside them. So k rounds over
the groups' maxima, which the softmax has at hand, choose k groups; their columns, still in the cache, are read again;
k rounds over those give the winners. Ties go to the lower column: maxima are compared as integers that hold the value
above and the column's complement below, so that no two are equal.

A row of more than WIDEST_BLOCK columns is read twice, as in softmax.py; there a group is all that one lane sees.

Source: torch.topk(torch.softmax(x, -1), k); Milakov and Gimelshein, arXiv:1805.02867, section 4.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, check_alike, check_columns
from kernels.fused_op import FusedOp, Work
from kernels.online_softmax import LOG2_E, absorb, combine
from kernels.sizes import cdiv, next_power_of_2

WIDEST_BLOCK = 4096  # elements of a row that one program holds in registers
MOST = 16  # entries of a row


@triton.jit
def sort_key(x, index, KEY: tl.constexpr):
    """Integers, half of whose bits are x's and half the index's, that order as x does, the lower index first.

    NaN counts as inf, so that its row, all NaN, still has an order.
    """
    HALF: tl.constexpr = KEY.primitive_bitwidth // 2
    x = tl.where(x != x, float("inf"), x)
    x = tl.where(x == 0.0, 0.0, x)  # -0 equals 0
    bits = (x.to(tl.int16, bitcast=True) if HALF == 16 else x.to(tl.float32).to(tl.int32, bitcast=True)).to(KEY)
    bits ^= (bits >> (HALF - 1)) & ((1 << (HALF - 1)) - 1)  # the more negative a float, the larger its other bits
    return (bits << HALF) | (((1 << HALF) - 1) - index.to(KEY))


@triton.jit
def index_of(key):
    HALF: tl.constexpr = key.dtype.primitive_bitwidth // 2
    return (((1 << HALF) - 1) - (key & ((1 << HALF) - 1))).to(tl.int32)


@triton.jit
def largest(keys, K: tl.constexpr, SLOTS: tl.constexpr):
    """The K largest keys, in order, in SLOTS; the least integer where there are no more."""
    LEAST: tl.constexpr = -(1 << (keys.dtype.primitive_bitwidth - 1))
    slot = tl.arange(0, SLOTS)
    winners = tl.full((SLOTS,), LEAST, keys.dtype)
    for place in range(K):
        winner = tl.max(keys)
        winners = tl.where(slot == place, winner, winners)
        keys = tl.where(keys == winner, LEAST, keys)
    return winners


@triton.jit
def store_winners(
    x_ptr, values_ptr, indices_ptr, cols, groups, top, scale,
    K: tl.constexpr, SLOTS: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Look into the groups (SLOTS keys) for a row's winners, and store their probabilities and columns.

    A key's index counts cells of EACH columns; the cells of one group are LANES apart.
    """
    LEAST: tl.constexpr = -(1 << (groups.dtype.primitive_bitwidth - 1))
    member = tl.arange(0, CHUNKS * EACH)[None, :]
    col = member // EACH * (LANES * EACH) + index_of(groups)[:, None] % LANES * EACH + member % EACH
    inside = (groups != LEAST)[:, None] & (col < cols)
    x = tl.load(x_ptr + col, mask=inside, other=-float("inf"))
    winners = largest(tl.where(inside, sort_key(x, col, groups.dtype), LEAST), K, SLOTS)
    slot = tl.arange(0, SLOTS)
    col = index_of(winners)
    x = tl.load(x_ptr + col, mask=slot < K).to(top.dtype)
    value = tl.exp2((x - top) * LOG2_E) * scale
    tl.store(values_ptr + slot, value.to(values_ptr.dtype.element_ty), mask=slot < K)
    tl.store(indices_ptr + slot, col.to(tl.int64), mask=slot < K)


@triton.jit
def softmax_topk_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    values_ptr,  # (rows, K), contiguous
    indices_ptr,  # (rows, K) int64, contiguous
    cols,
    x_row_stride,
    K: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two, at least K
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane, which are a group; LANES * EACH is at least cols
    KEY: tl.constexpr,  # int32 or int64: half for a value, half for a column
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row_stride
    col = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    x = tl.load(x_ptr + col, mask=col < cols, other=-float("inf")).to(tl.float32)
    peak = tl.max(tl.where(x != x, float("inf"), x), axis=1)  # of each group; tl.max would pass NaN over
    top = tl.max(peak, axis=0)
    e = tl.exp2((x - top) * LOG2_E)
    scale = 1.0 / tl.sum(tl.sum(e, axis=1), axis=0)
    tl.store(y_ptr + row * cols + col, (e * scale).to(y_ptr.dtype.element_ty), mask=col < cols)

    LEAST: tl.constexpr = -(1 << (KEY.primitive_bitwidth - 1))
    group = tl.arange(0, LANES)
    keys = tl.where(group * EACH < cols, sort_key(peak.to(x_ptr.dtype.element_ty), group, KEY), LEAST)
    groups = largest(keys, K, SLOTS)
    store_winners(
        x_ptr, values_ptr + row * K, indices_ptr + row * K, cols, groups, top, scale, K, SLOTS, LANES, EACH, CHUNKS=1
    )


@triton.jit
def softmax_topk_wide_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    values_ptr,  # (rows, K), contiguous
    indices_ptr,  # (rows, K) int64, contiguous
    cols,
    x_row_stride,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    CHUNKS: tl.constexpr,  # a power of two; LANES * EACH * CHUNKS is at least cols
    KEY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row_stride
    CHUNK: tl.constexpr = LANES * EACH
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    peak = tl.full((LANES,), -float("inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    first = tl.zeros((LANES,), tl.int32)  # the chunk that held a lane's peak first, for the order of ties
    for start in tl.range(0, cols, CHUNK, loop_unroll_factor=2):
        col = start + place
        x = tl.load(x_ptr + col, mask=col < cols, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        before = peak
        peak, total = absorb(peak, total, tl.where(x != x, float("inf"), x))
        first = tl.where(peak > before, start // CHUNK, first)
    top, total = combine(peak, total)
    scale = 1.0 / total
    last = (tl.cdiv(cols, CHUNK) - 1) * CHUNK
    for back in tl.range(0, cols, CHUNK, loop_unroll_factor=2):
        col = last - back + place
        x = tl.load(x_ptr + col, mask=col < cols, eviction_policy="evict_first").to(tl.float32)
        y = tl.exp2((x - top) * LOG2_E) * scale
        tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)

    cell = first * LANES + tl.arange(0, LANES)
    groups = largest(sort_key(peak.to(x_ptr.dtype.element_ty), cell, KEY), K, SLOTS)
    store_winners(
        x_ptr, values_ptr + row * K, indices_ptr + row * K, cols, groups, top, scale, K, SLOTS, LANES, EACH, CHUNKS
    )


def settings(cols: int, k: int, dtype: torch.dtype) -> dict:
    """Launch settings for rows of `cols` elements of which k are wanted.

    On an H200 (bf16, k = 8, per cent of copy bandwidth): 1024 columns 83 with one warp, which needs no barrier in its
    2 k rounds, and 49 with two; 4096 columns 73 with 4 warps and groups of 32, 58 with groups of 8. Two reads, with a
    group a lane, win from 8192 columns on, where holding the row leaves too few rows in flight: 77 (against 58), 82
    (50) at 16384, 72 at 65536, 62 at 131072.
    """
    fits = dtype.itemsize == 2 and cols <= 2**16
    key = {"K": k, "SLOTS": next_power_of_2(k), "KEY": tl.int32 if fits else tl.int64}
    if cols > WIDEST_BLOCK:
        warps = min(32, next_power_of_2(cols) // 2048)
        chunks = next_power_of_2(cdiv(cols, 256 * warps))
        return {**key, "LANES": 32 * warps, "EACH": 8, "CHUNKS": chunks, "num_warps": warps}
    each = 16 if cols <= 2048 or dtype.itemsize == 4 else 32
    lanes = max(1, next_power_of_2(cols) // each)
    return {**key, "LANES": lanes, "EACH": each, "num_warps": max(1, lanes // 64 if each == 16 else lanes // 32)}


def _forward(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    values = torch.empty((*x.shape[:-1], k), dtype=x.dtype, device=x.device)
    indices = torch.empty(values.shape, dtype=torch.int64, device=x.device)
    if y.numel() == 0:
        return y, values, indices
    x = as_rows(x)
    rows, cols = x.shape
    kernel = softmax_topk_kernel if cols <= WIDEST_BLOCK else softmax_topk_wide_kernel
    with torch.cuda.device_of(x):
        kernel[(rows,)](x, y, values, indices, cols, x.stride(0), **settings(cols, k, x.dtype))
    return y, values, indices


# For torch.compile, which does not look inside it, and for a clear error where a gradient is asked for.
softmax_topk_op = torch.library.custom_op("kernel_fusion::softmax_topk", _forward, mutates_args=())


@softmax_topk_op.register_fake
def _(x, k):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    values = x.new_empty((*x.shape[:-1], k))
    return y, values, torch.empty_like(values, dtype=torch.int64)


def softmax_topk(x: torch.Tensor, k: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The softmax over the last dimension, its k largest entries and their indices, in one launch. Not differentiable.

    Args:
        x: tensor of shape (..., cols) in fp32, fp16 or bf16, any strides; columns not side by side are copied first.
        k: how many, 1 to 16 and at most cols.

    Returns:
        Probabilities of x's shape, values (..., k) in descending order, both of x's dtype, whatever autocast says, and
        indices (..., k) in int64. The order is that of x: of equal entries the lower index is first, and entries that
        differ only before the softmax rounds them stay apart. A row of nothing but -inf, with NaN or with inf in it is
        NaN, as in PyTorch; its indices are x's order, with NaN as inf.

    Raises:
        TypeError: x is not a tensor of these dtypes, k not an integer.
        ValueError: x has no dimension, k is not of 1 to 16 or over cols, or x is on the CPU where kernels run on a GPU.
    """
    check_alike("softmax_topk", dtypes=OP.dtypes, x=x)
    check_columns("softmax_topk", x)
    if not isinstance(k, int) or isinstance(k, bool):
        raise TypeError(f"softmax_topk takes an integer k, got {k!r} of type {type(k).__name__}: 8 is usual")
    if not 1 <= k <= min(MOST, x.shape[-1]):
        raise ValueError(
            f"softmax_topk takes k of 1 to {MOST} and at most the {x.shape[-1]} columns of x, got {k}: ask for fewer"
        )
    if (torch.is_grad_enabled() and x.requires_grad) or torch.compiler.is_compiling():
        return softmax_topk_op(x, k)
    return _forward(x, k)


def softmax_topk_reference(x: torch.Tensor, k: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same, as one writes it in PyTorch before thinking of memory; the order of ties is left open."""
    y = torch.nn.functional.softmax(x, dim=-1)
    values, indices = y.topk(k, dim=-1)
    return y, values, indices


def softmax_topk_oracle(x: torch.Tensor, k: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same, ties in order, by sorting every row."""
    y = torch.nn.functional.softmax(x, dim=-1)
    ranked = torch.where(x.isnan(), torch.inf, x)
    indices = ranked.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    if indices.shape[-1] < k:
        raise RuntimeError(f"{k} of {x.shape[-1]} columns")
    return y, y.gather(-1, indices), indices


def softmax_topk_work(shape: tuple[int, ...], dtype: torch.dtype, k: int = 8) -> Work:
    """FLOPs and least bytes: softmax's 5 operations and a comparison an element; x in once; y, k values and k int64
    indices a row out once."""
    elements = torch.Size(shape).numel()
    winners = elements // shape[-1] * k if elements else 0
    return Work(
        flops=6 * elements,
        bytes_read=elements * dtype.itemsize,
        bytes_written=elements * dtype.itemsize + winners * (dtype.itemsize + 8),
    )


def _inputs(*shape: int, **options) -> tuple[torch.Tensor]:
    return (torch.randn(shape, **options),)


def _compile_arguments(*shape: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    cols = shape[-1]
    x = torch.empty(shape, dtype=dtype, device="meta")
    indices = torch.empty((shape[0], 8), dtype=torch.int64, device="meta")
    return (x, x, x, indices, cols, cols), settings(cols, 8, dtype)


OP = FusedOp(
    name="softmax_topk",
    fused=softmax_topk,
    reference=softmax_topk_reference,
    work=softmax_topk_work,
    kernel=softmax_topk_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 8), (5, 127), (1, 9000), (2, 1025), (2, 2, 4096)),
    gpu_shapes=(
        (128, 8192),
        (32768, 1024),
        (32768, 4096),
        (16384, 16384),
        (8192, 65536),
        (4096, 131072),
    ),
    oracle=softmax_topk_oracle,
    kernel_for=lambda *shape: softmax_topk_kernel if shape[-1] <= WIDEST_BLOCK else softmax_topk_wide_kernel,
)
