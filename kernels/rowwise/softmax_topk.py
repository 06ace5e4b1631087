"""Softmax of each row and its k largest entries in one launch, as in a mixture of experts' gate or a sampler.

    unfused   softmax: read x, write y | topk: read y (several times), write values and indices
    fused     read x once, write y, values and indices once          4 B/element in 16 bits

The kernel finds a row's k largest entries without sorting: k times it takes the largest and removes it. Values are
compared as integers that also encode the column, so the lower column wins a tie. A row of up to 4096 columns stays in
registers. If it is wider, its first 4096 columns stay; the rest is read twice, chunk by chunk as in online softmax, and
each chunk is merged with the k largest so far.

Source: torch.topk(torch.softmax(x, -1), k); Milakov and Gimelshein, arXiv:1805.02867, section 4.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, check_alike, check_columns, next_power_of_2
from kernels.online_softmax import absorb
from kernels.op import FusedOp, Work, like, planned, register

BLOCK = 4096  # widest row that one program keeps in registers
MAX_K = 16  # entries of a row


@triton.jit
def sort_key(x, index, KEY: tl.constexpr):
    """Return integers that order as x does, of equal values the lower index first.

    The upper half of an integer's bits is the value, the lower half the index's complement, so that no two are equal.
    NaN counts as inf, so that its row, all NaN, still has an order.
    """
    HALF: tl.constexpr = KEY.primitive_bitwidth // 2
    x = tl.where(x != x, float("inf"), x)
    x = tl.where(x == 0.0, 0.0, x)  # -0 equals 0
    bits = (x.to(tl.int16, bitcast=True) if HALF == 16 else x.to(tl.float32).to(tl.int32, bitcast=True)).to(KEY)
    bits ^= (bits >> (HALF - 1)) & ((1 << (HALF - 1)) - 1)  # the more negative a float, the larger its other bits
    return (bits << HALF) | (((1 << HALF) - 1) - index.to(KEY))


@triton.jit
def largest(keys, K: tl.constexpr, SLOTS: tl.constexpr, others=None):
    """Return the K largest of keys and others (or None), in order, in SLOTS; the least integer where none is left."""
    MIN_KEY: tl.constexpr = -(1 << (keys.dtype.primitive_bitwidth - 1))
    slot = tl.arange(0, SLOTS)
    winners = tl.full((SLOTS,), MIN_KEY, keys.dtype)
    for place in range(K):
        winner = tl.max(keys)
        if others is not None:
            winner = tl.maximum(winner, tl.max(others))
            others = tl.where(others == winner, MIN_KEY, others)
        winners = tl.where(slot == place, winner, winners)
        keys = tl.where(keys == winner, MIN_KEY, keys)
    return winners


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
    BLOCK: tl.constexpr,  # a power of two
    WHOLE: tl.constexpr,  # BLOCK holds the row
    KEY: tl.constexpr,  # int32 or int64: half for a value, half for a column
):
    HALF: tl.constexpr = KEY.primitive_bitwidth // 2
    MIN_KEY: tl.constexpr = -(1 << (KEY.primitive_bitwidth - 1))
    row = tl.program_id(0).to(tl.int64)  # int64: row * stride passes 2**31 on large tensors
    x_ptr += row * x_row_stride
    y_ptr += row * cols
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + col, mask=col < cols, other=-float("inf"))
    winners = largest(tl.where(col < cols, sort_key(x, col, KEY), MIN_KEY), K, SLOTS)
    peak, total = tl.full((1,), -float("inf"), tl.float32), tl.zeros((1,), tl.float32)
    peak, total = absorb(peak, total, x.to(tl.float32)[None, :])
    if not WHOLE:
        for start in range(BLOCK, cols, BLOCK):
            inside = start + col < cols
            more = tl.load(x_ptr + start + col, mask=inside, other=-float("inf"))
            winners = largest(tl.where(inside, sort_key(more, start + col, KEY), MIN_KEY), K, SLOTS, winners)
            peak, total = absorb(peak, total, more.to(tl.float32)[None, :])
    scale = 1.0 / total
    y = tl.exp(x.to(tl.float32) - peak) * scale
    tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)
    if not WHOLE:
        for start in range(BLOCK, cols, BLOCK):
            inside = start + col < cols
            more = tl.load(x_ptr + start + col, mask=inside).to(tl.float32)
            tl.store(y_ptr + start + col, (tl.exp(more - peak) * scale).to(y_ptr.dtype.element_ty), mask=inside)
    slot = tl.arange(0, SLOTS)
    index = ((1 << HALF) - 1 - (winners & ((1 << HALF) - 1))).to(tl.int64)
    value = tl.exp(tl.load(x_ptr + index, mask=slot < K).to(tl.float32) - peak) * scale
    tl.store(values_ptr + row * K + slot, value.to(values_ptr.dtype.element_ty), mask=slot < K)
    tl.store(indices_ptr + row * K + slot, index, mask=slot < K)


def settings(cols: int, k: int, dtype: torch.dtype) -> dict:
    """Return constexprs and num_warps for the k largest of `cols` elements per row: 16 elements per thread.

    Keys have 32 bits if a value and a column's index both fit in 16.
    """
    block = min(BLOCK, next_power_of_2(cols))
    return {
        "K": k,
        "SLOTS": next_power_of_2(k),
        "BLOCK": block,
        "WHOLE": block >= cols,
        "KEY": tl.int32 if dtype.itemsize == 2 and cols <= 2**16 else tl.int64,
        "num_warps": max(1, block // 512),
    }


def softmax_topk_results(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Allocate probabilities, values and indices."""
    values = x.new_empty((*x.shape[:-1], k))
    return like(x), values, torch.empty_like(values, dtype=torch.int64)


def _forward(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, values, indices = softmax_topk_results(x, k)
    if y.numel() == 0:
        return y, values, indices
    x = as_rows(x)
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        softmax_topk_kernel[(rows,)](x, y, values, indices, cols, x.stride(0), **settings(cols, k, x.dtype))
    return y, values, indices


softmax_topk_op = register("softmax_topk", _forward, softmax_topk_results)


@planned
def softmax_topk(x: torch.Tensor, k: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the softmax over the last dimension, its k largest entries and their indices in one launch. Not
    differentiable.

    Args:
        x: tensor of shape (..., cols) in fp32, fp16 or bf16, any strides; non-adjacent columns are copied first.
        k: number of entries, 1 to 16 and at most cols.

    Returns:
        Probabilities of x's shape, values (..., k) in descending order, both of x's dtype, even under autocast, and
        indices (..., k) in int64. Entries are ordered by x, the lower index first on a tie; so entries that only become
        equal when the softmax is rounded keep their order. A row of only -inf, or one that contains NaN or inf, becomes
        NaN, as in PyTorch; its indices follow x, with NaN as inf.

    Raises:
        TypeError: x is not a tensor of these dtypes, or k is not an integer.
        ValueError: x has no dimension, k is not within 1 to 16 or exceeds cols, or x is on the CPU where kernels run on
            a GPU.
    """
    check_alike("softmax_topk", dtypes=OP.dtypes, x=x)
    check_columns("softmax_topk", x)
    if not isinstance(k, int) or isinstance(k, bool):
        raise TypeError(f"softmax_topk takes an integer k, got {k!r} of type {type(k).__name__}: 8 is usual")
    if not 1 <= k <= min(MAX_K, x.shape[-1]):
        raise ValueError(
            f"softmax_topk takes k of 1 to {MAX_K} and at most the {x.shape[-1]} columns of x, got {k}: ask for fewer"
        )
    return softmax_topk_op(x, k)


def softmax_topk_reference(x: torch.Tensor, k: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the same as one writes it in PyTorch before thinking of memory; ties come in any order."""
    y = torch.nn.functional.softmax(x, dim=-1)
    values, indices = y.topk(k, dim=-1)
    return y, values, indices


def softmax_topk_oracle(x: torch.Tensor, k: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the same with ties in order, by sorting every row."""
    y = torch.nn.functional.softmax(x, dim=-1)
    ranked = torch.where(x.isnan(), torch.inf, x)
    indices = ranked.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    if indices.shape[-1] < k:
        raise RuntimeError(f"{k} of {x.shape[-1]} columns")
    return y, y.gather(-1, indices), indices


def softmax_topk_work(shape: tuple[int, ...], dtype: torch.dtype, k: int = 8) -> Work:
    """Return FLOPs and minimum traffic: softmax's 5 operations and a comparison per element; x in once; y, k values and
    k int64 indices per row out once."""
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
    gpu_shapes=((128, 8192), (32768, 1024), (32768, 4096), (16384, 16384), (8192, 65536), (4096, 131072)),
    oracle=softmax_topk_oracle,
)
