"""Attention's probabilities, softmax(q k^T scale + mask), in one kernel that writes nothing else.

    unfused   product: write s | scale: read s, write s | mask: read s, write s | softmax: read s, write p
                                                                    14 N^2 B per head in 16 bits, at least four launches
    fused     read q and k, write p                                  2 N^2 B, or 4 N^2 B for p in fp32, one launch

A program owns BLOCK_M queries and loops over the keys twice: once for each row's maximum and sum, with online softmax,
and once to write p. Scores are recomputed, not saved: a dot product takes d operations per score, and tensor cores do
these faster than memory could write the scores and read them back. k is read from L2. A mask is also read twice, the
second time usually from L2.

If you need p itself, use this kernel. If you only need p v, kernels/tiled/flash_attention.py never writes N^2 elements.

Source: Milakov and Gimelshein, arXiv:1805.02867.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_autocast_says, cdiv
from kernels.attention import LOG2_E, check_heads, check_mask, tile_settings, visible_keys
from kernels.descriptors import describable, described
from kernels.op import FusedOp, Work, planned, register

LOWEST = tl.constexpr(-(2.0**120))  # finite in fp32 even times a scale of 2**7, and absorbs any score added to it


@triton.jit
def unscaled(given, SCALE: tl.constexpr, COMPUTE: tl.constexpr):
    """Return the floating-point mask `given`, divided by SCALE because it is added to scores before scaling.

    A finite value below LOWEST, such as the dtype's minimum, becomes LOWEST: divided by SCALE it would be -inf,
    but a row that masks all keys this way should be their mean, not empty.
    """
    given = given.to(COMPUTE)
    over = given * (1 / SCALE)
    return tl.where((given > -float("inf")) & (over < LOWEST), LOWEST, over)


@triton.jit
def scores(
    q,  # (BLOCK_M, BLOCK_D), the tile of batch b and head h
    k_desc,
    mask_ptr,
    mask_strides,
    b,
    h,
    group,
    n,
    row,  # (BLOCK_M,), int64
    last,  # (BLOCK_M,), the last key that each row sees
    by_all,  # this many keys are visible to all rows
    queries,
    keys,
    SCALE: tl.constexpr,
    MASKED: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Return q k^T + mask / SCALE for BLOCK_N keys starting at n, -inf where a row must not see a key."""
    BLOCK_N: tl.constexpr = k_desc.block_shape[2]
    k = k_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, q.shape[1])
    s = tl.dot(q, k.T, input_precision="ieee", out_dtype=COMPUTE)
    key = n + tl.arange(0, BLOCK_N)
    if mask_ptr is not None:
        stride_b, stride_h, stride_q, stride_k = mask_strides
        # int64 before the multiplications: offsets pass 2**31 on large tensors.
        of_head = mask_ptr + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h
        at = row[:, None] * stride_q + key.to(tl.int64)[None, :] * stride_k
        given = tl.load(of_head + at, mask=(row < queries)[:, None] & (key < keys)[None, :], other=0)
        s = tl.where(given, s, -float("inf")) if given.dtype == tl.int1 else s + unscaled(given, SCALE, COMPUTE)
    if MASKED and n + BLOCK_N > by_all:
        s = tl.where(key[None, :] <= last[:, None], s, -float("inf"))
    return s


@triton.jit
def attention_scores_kernel(
    q_desc,  # (batch, heads, queries, dim) in tiles of (1, 1, BLOCK_M, BLOCK_D)
    k_desc,  # (batch, heads // group, keys, dim) in tiles of (1, 1, BLOCK_N, BLOCK_D)
    mask_ptr,  # (batch, heads, queries, keys), bool or floating-point, with these strides; or None
    mask_strides,
    p_ptr,  # (batch, heads, queries, keys), contiguous
    heads,
    group,  # query heads per key head
    queries,
    keys,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,  # whether a tile may hold keys that some row must not see
    COMPUTE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    FACTOR: tl.constexpr = SCALE * LOG2_E  # folded into the exponent's one multiply-add
    blocks = tl.cdiv(queries, BLOCK_M)
    start = tl.program_id(0) % blocks * BLOCK_M
    head = tl.program_id(0) // blocks
    b, h = head // heads, head % heads
    q = q_desc.load([b, h, start, 0]).reshape(BLOCK_M, BLOCK_D)
    row = (start + tl.arange(0, BLOCK_M)).to(tl.int64)
    end, last, by_all = visible_keys(start, queries, keys, CAUSAL, BLOCK_M)
    end = tl.maximum(end, 0) if CAUSAL else end
    # Eight peaks and totals per row, each in one thread; threads combine a row's only at the end.
    peak = tl.full((BLOCK_M, 8), -float("inf"), COMPUTE)
    total = tl.zeros((BLOCK_M, 8), COMPUTE)
    for n in tl.range(0, end, BLOCK_N):
        s = scores(
            q, k_desc, mask_ptr, mask_strides, b, h, group, n, row, last, by_all, queries, keys, SCALE, MASKED, COMPUTE
        )  # fmt: skip
        s = s.reshape(BLOCK_M, BLOCK_N // 8, 8)
        higher = tl.maximum(peak, tl.max(s, axis=1) * FACTOR)
        # Before the first visible key, this would compute -inf - -inf.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp2(peak - base) + tl.sum(tl.exp2(s * FACTOR - base[:, None, :]), axis=1)
        peak = higher
    # peak + log2(total) would lose the logarithm's digits if the peak is large. A row that sees no key is 0.
    top = tl.max(peak, axis=1)
    base = tl.where(top == -float("inf"), 0.0, top)
    total = tl.sum(total * tl.exp2(peak - base[:, None]), axis=1)
    inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
    p_ptr += head.to(tl.int64) * queries * keys
    at = row[:, None] * keys + tl.arange(0, BLOCK_N)[None, :]
    for n in tl.range(0, end, BLOCK_N):
        s = scores(
            q, k_desc, mask_ptr, mask_strides, b, h, group, n, row, last, by_all, queries, keys, SCALE, MASKED, COMPUTE
        )  # fmt: skip
        p = tl.exp2(s * FACTOR - base[:, None]) * inverse[:, None]
        inside = (row < queries)[:, None] & (tl.arange(0, BLOCK_N) < keys - n)[None, :]
        # Streaming: p is not read again here, and should not drive k out of L2.
        tl.store(p_ptr + at + n, p.to(p_ptr.dtype.element_ty), mask=inside, cache_modifier=".cs")
    # 0 for keys that no row here sees, but a row with a NaN is all NaN, as in PyTorch.
    unseen = tl.broadcast_to((total * 0.0)[:, None], (BLOCK_M, BLOCK_N)).to(p_ptr.dtype.element_ty)
    for n in tl.range(tl.cdiv(end, BLOCK_N) * BLOCK_N, keys, BLOCK_N):
        inside = (row < queries)[:, None] & (tl.arange(0, BLOCK_N) < keys - n)[None, :]
        tl.store(p_ptr + at + n, unseen, mask=inside, cache_modifier=".cs")


TILES = {64: (64, 64, 4), 128: (64, 64, 4), 256: (32, 32, 8)}  # as in flash_attention.py


def settings(dim: int, dtype: torch.dtype) -> dict:
    """Return launch settings. Four programs of 64 x 64 share an SM, so some store while others compute; wider types and
    heads get tiles that fit in registers."""
    chosen = tile_settings(TILES, dim, dtype, large=True)
    return chosen | {"num_stages": 3 if chosen["BLOCK_M"] == 64 else 2}


def _arguments(q, k, mask, p, causal: bool, scale: float | None) -> tuple[tuple, dict]:
    """Return the kernel's arguments and options, for q and k that descriptors can describe."""
    chosen = settings(q.shape[3], q.dtype)
    tensors = [described(x, [1, 1, chosen[rows], chosen["BLOCK_D"]]) for x, rows in ((q, "BLOCK_M"), (k, "BLOCK_N"))]
    strides = (0, 0, 0, 0) if mask is None else mask.expand(p.shape).stride()
    sizes = q.shape[1], q.shape[1] // k.shape[1], *p.shape[2:]
    masked = causal or k.shape[2] % chosen["BLOCK_N"] > 0
    options = {"SCALE": q.shape[3] ** -0.5 if scale is None else scale, "CAUSAL": causal, "MASKED": masked, **chosen}
    return (*tensors, mask, strides, p, *sizes), options


def _forward(
    q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float | None, dtype: torch.dtype | None
) -> Tensor:
    p = _like(q, k, causal, mask, scale, dtype)
    if p.numel() == 0:
        return p
    arguments, options = _arguments(describable(q), describable(k), mask, p, causal, scale)
    with torch.cuda.device_of(q):
        attention_scores_kernel[cdiv(q.shape[2], options["BLOCK_M"]) * q.shape[0] * q.shape[1],](*arguments, **options)
    return p


def _like(q, k, causal, mask, scale, dtype) -> Tensor:
    return torch.empty(*q.shape[:3], k.shape[2], dtype=dtype or q.dtype, device=q.device)


attention_scores_op = register("attention_scores", _forward, _like)


@planned
def attention_scores(
    q: Tensor,
    k: Tensor,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
    enable_gqa: bool = True,
    **more,
) -> Tensor:
    """Compute softmax(q k^T scale + mask) in one launch. Not differentiable; kernels.flash_attention is.

    Args:
        q: floating-point tensor of shape (batch, heads, queries, dim), dim up to 256. Any strides; rows that are not
            contiguous, or do not start at multiples of 16 bytes, are copied first.
        k: (batch, key heads, keys, dim), of q's dtype and on its device. heads is a multiple of key heads; each key
            head serves that many neighbouring query heads.
        causal: query i sees key j if j - keys <= i - queries: the last query sees every key, each earlier query one key
            fewer.
        mask: broadcasts to (batch, heads, queries, keys), any strides: either bool, True where a query sees a key, or
            floating-point, added to the scaled scores.
        scale: positive multiplier for the scores; 1 / sqrt(dim) by default. Each value compiles a new kernel.
        dtype: the result's dtype: q's (default) or torch.float32.
        enable_gqa, more: as in flash_attention.

    Returns:
        A contiguous tensor of shape (batch, heads, queries, keys). The arithmetic is fp32 (fp64 for fp64 inputs; fp32
        inputs are not rounded to tf32), rounded once. The row of a query that sees no key is 0.

    Raises:
        TypeError: q or k is not a floating-point tensor, the dtypes differ, or mask is neither bool nor floating-point.
        ValueError: shapes do not match, scale is not a positive normal fp32 number, the result dtype is another one,
            devices differ, or tensors are on the CPU while kernels run on a GPU.
    """
    q, k = as_autocast_says(q, k)
    check_heads("attention_scores", causal, scale, enable_gqa, more, q=q, k=k)
    check_mask("attention_scores", mask, q, k)
    if dtype not in (None, q.dtype, torch.float32):
        raise ValueError(f"attention_scores returns q's dtype or float32, got {dtype}: use .to(dtype) on its result")
    return attention_scores_op(q, k, causal, mask, scale, dtype)


def attention_scores_reference(q, k, causal: bool = False, mask=None, scale: float | None = None, dtype=None) -> Tensor:
    """Compute the same in plain PyTorch, one operation at a time."""
    if k.shape[1] not in (0, q.shape[1]):
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    s = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        queries, keys = s.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=s.device).tril(keys - queries)
        s = s.masked_fill(~seen, -torch.inf)
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else s + mask
    p = torch.softmax(s, dim=-1, dtype=dtype)
    return p if not causal and mask is None else p.masked_fill((s == -torch.inf).all(dim=-1, keepdim=True), 0.0)


def attention_scores_work(shape: tuple[int, int, int, int, bool], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic for (batch, heads, tokens, dim, causal) with p in fp32: a matmul, 2 dim
    operations, and 5 for the softmax, per pair of a query and a visible key; q and k read once, p written once."""
    batch, heads, tokens, dim, causal = shape
    pairs = batch * heads * (tokens * (tokens + 1) // 2 if causal else tokens**2)
    return Work((2 * dim + 5) * pairs, 2 * batch * heads * tokens * dim * dtype.itemsize, 4 * batch * heads * tokens**2)


def _inputs(batch: int, heads: int, tokens: int, dim: int, causal: bool, **options) -> tuple:
    q, k = (torch.randn(batch, heads, tokens, dim, **options) for _ in range(2))
    return q, k, bool(causal), None, None, torch.float32


def _compile_arguments(*shape, dtype: torch.dtype) -> tuple[tuple, dict]:
    batch, heads, tokens, _, causal = shape
    x = torch.empty(shape[:4], dtype=dtype, device="meta")
    return _arguments(x, x, None, torch.empty(batch, heads, tokens, tokens, device="meta"), causal, None)


OP = FusedOp(
    name="attention_scores",
    fused=attention_scores,
    reference=attention_scores_reference,
    work=attention_scores_work,
    kernel=attention_scores_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1, 1, 1, False), (1, 2, 5, 36, True), (2, 1, 129, 16, False), (1, 1, 40, 4, True)),
    gpu_shapes=((4, 16, 2048, 64, False), (4, 16, 2048, 64, True)),
)
