"""Softmax of each row and its k largest entries, in one launch: a mixture of experts' gate, a sampler's shortlist.

    unfused   softmax: read x, write y | topk: read y (several times), write values and indices
    fused     read x once, write y once, values and indices beside it          4 B/element in 16 bits

The k largest of a row are found without sorting it (kernels/top_k.py). Its columns lie in groups; k rounds over the
groups' maxima, which the softmax has at hand, choose k groups; their columns, still in the cache, are read again; k
rounds over those give the winners. Rows of more than 4096 columns are in softmax_topk_wide.py.

Source: torch.topk(torch.softmax(x, -1), k); Milakov and Gimelshein, arXiv:1805.02867, section 4.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import as_rows, check_alike, check_columns, next_power_of_2
from kernels.online_softmax import LOG2_E
from kernels.op import FusedOp, Work, like, planned, register
from kernels.rowwise import softmax_topk_wide
from kernels.top_k import largest, sort_key, store_winners
from kernels.vectors import at_vector, elements_before, inside_rim, rim, vectors_of_rows

WIDEST_BLOCK = 4096  # elements of a row that one program holds in registers
MOST = 16  # entries of a row


@triton.jit
def softmax_topk_kernel(
    x_ptr,  # (rows, cols), any row stride, unit column stride
    y_ptr,  # (rows, cols), contiguous
    values_ptr,  # (rows, K), contiguous
    indices_ptr,  # (rows, K) int64, contiguous
    cols,
    x_row_stride,
    VECTOR: tl.constexpr,  # elements of a vector of 16 bytes, and whether rows begin or end within one:
    RAGGED: tl.constexpr,  # kernels/vectors.py
    K: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two, at least K
    LANES: tl.constexpr,
    EACH: tl.constexpr,  # neighbouring columns of a lane, which are a group; LANES * EACH is at least cols
    KEY: tl.constexpr,  # int32 or int64: half for a value, half for a column
):
    # int64 before the multiplication: row * stride passes 2**31 on large tensors.
    row = tl.program_id(0).to(tl.int64)
    start = row * x_row_stride
    lead = elements_before(start, VECTOR, RAGGED)
    whole = at_vector(cols - lead, VECTOR)
    place = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    x = tl.load(x_ptr + at_vector(start + lead, VECTOR) + place, mask=place < whole, other=-float("inf")).to(tl.float32)
    peak = tl.max(tl.where(x != x, float("inf"), x), axis=1)  # of each group; tl.max would pass NaN over
    top = tl.max(peak, axis=0)
    if RAGGED:
        col, in_rim = rim(lead, cols, VECTOR), inside_rim(lead, whole, cols, VECTOR)
        x_rim = tl.load(x_ptr + start + col, mask=in_rim, other=-float("inf")).to(tl.float32)
        top = tl.maximum(top, tl.max(tl.where(x_rim != x_rim, float("inf"), x_rim)))
    e = tl.exp2((x - top) * LOG2_E)
    total = tl.sum(tl.sum(e, axis=1), axis=0)
    if RAGGED:
        e_rim = tl.exp2((x_rim - top) * LOG2_E)
        total += tl.sum(e_rim)
    scale = 1.0 / total
    y_at = y_ptr + at_vector(row * cols + lead, VECTOR) + place
    tl.store(y_at, (e * scale).to(y_ptr.dtype.element_ty), mask=place < whole)
    if RAGGED:
        tl.store(y_ptr + row * cols + col, (e_rim * scale).to(y_ptr.dtype.element_ty), mask=in_rim)

    LEAST: tl.constexpr = -(1 << (KEY.primitive_bitwidth - 1))
    group = tl.arange(0, LANES)
    keys = tl.where(group * EACH < whole, sort_key(peak.to(x_ptr.dtype.element_ty), group, KEY), LEAST)
    groups = largest(keys, K, SLOTS)
    store_winners(
        x_ptr, values_ptr + row * K, indices_ptr + row * K, start, lead, cols, groups, top, scale,
        VECTOR, RAGGED, K, SLOTS, LANES, EACH, CHUNKS=1,
    )  # fmt: skip


def settings(cols: int, k: int, dtype: torch.dtype, vector: int = 1) -> dict:
    """Launch settings for rows of `cols` elements, in vectors of `vector`, of which k are wanted.

    One warp needs no barrier in its 2 k rounds: rows of up to 1024 columns have one each. In 16 bits groups of 32 leave
    rows of 4096 fewer maxima to go through; keys of half the width do where the columns' numbers fit beside a value.
    """
    fits = dtype.itemsize == 2 and cols <= 2**16
    key = {"K": k, "SLOTS": next_power_of_2(k), "KEY": tl.int32 if fits else tl.int64}
    if cols > WIDEST_BLOCK:
        return {**key, **softmax_topk_wide.settings(cols)}
    each = 16 if cols <= 2048 or dtype.itemsize == 4 else 32
    lanes = max(1, next_power_of_2(cols // vector * vector) // each)
    return {**key, "LANES": lanes, "EACH": each, "num_warps": max(1, lanes // 64 if each == 16 else lanes // 32)}


def _kernel(cols: int):
    return softmax_topk_kernel if cols <= WIDEST_BLOCK else softmax_topk_wide.softmax_topk_wide_kernel


def _forward(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    values = torch.empty((*x.shape[:-1], k), dtype=x.dtype, device=x.device)
    indices = torch.empty(values.shape, dtype=torch.int64, device=x.device)
    if y.numel() == 0:
        return y, values, indices
    x = as_rows(x)
    rows, cols = x.shape
    with torch.cuda.device_of(x):
        vectors = vectors_of_rows(x, as_rows(y))
        chosen = settings(cols, k, x.dtype, vectors[0])
        _kernel(cols)[(rows,)](x, y, values, indices, cols, x.stride(0), *vectors, **chosen)
    return y, values, indices


def _fake(x, k):
    values = x.new_empty((*x.shape[:-1], k))
    return like(x), values, torch.empty_like(values, dtype=torch.int64)


softmax_topk_op = register("softmax_topk", _forward, _fake)


@planned
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
    return softmax_topk_op(x, k)


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
    vectors = vectors_of_rows(x)
    return (x, x, x, indices, cols, cols, *vectors), settings(cols, 8, dtype, vectors[0])


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
    kernel_for=lambda *shape: _kernel(shape[-1]),
)
