"""The probabilities of attention, softmax(q k^T scale + mask), in one kernel that writes them and nothing else.

    unfused   product: write s | scale: read s, write s | mask: read s, write s | softmax: read s, write p
                                                                    14 N^2 B a head in 16 bits, four launches and more
    fused     read q and k, write p                                  2 N^2 B, or 4 N^2 B for p in fp32, one launch

A program owns BLOCK_M queries and walks over the keys twice: once for each row's maximum and sum (kernels/
online_softmax.py), once to write p. The scores are computed again rather than kept: a product of q and k takes d
operations an element, which tensor cores do faster than memory could write the scores and read them back. k is read
from L2. A mask that is given is read twice too, the second time from L2 as a rule.

What needs p itself needs this kernel; what needs p v only is kernels/tiled/flash_attention.py, which writes no N^2.

Source: Milakov and Gimelshein, arXiv:1805.02867.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import as_autocast_says, cdiv, next_power_of_2
from kernels.attention import check_heads, check_mask, hide, seen_keys, unscaled
from kernels.descriptors import describable, described, load_rows
from kernels.online_softmax import LOG2_E
from kernels.op import FusedOp, Work, planned, register


@triton.jit
def scores(q, k_desc, mask, b, h, group, n, row, queries, keys, SCALE: tl.constexpr, COMPUTE: tl.constexpr):
    """q k^T + mask / scale for BLOCK_N keys from n on."""
    BLOCK_N: tl.constexpr = k_desc.block_shape[2]
    k = k_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, q.shape[1])
    s = tl.dot(q, k.T, input_precision="ieee", out_dtype=COMPUTE)
    col = tl.arange(0, BLOCK_N)[None, :]
    if mask is not None:
        # int64 before the multiplications: offsets pass 2**31 on large tensors.
        of_head = mask[0] + b.to(tl.int64) * mask[1] + h.to(tl.int64) * mask[2]
        at = row.to(tl.int64)[:, None] * mask[3] + (n + col).to(tl.int64) * mask[4]
        given = tl.load(of_head + at, mask=(row < queries)[:, None] & (col < keys - n), other=0)
        s = tl.where(given, s, -float("inf")) if given.dtype == tl.int1 else s + unscaled(given, SCALE, COMPUTE)
    return s


@triton.jit
def attention_scores_kernel(
    q_desc,  # (batch, heads, queries, D) in tiles of (1, 1, BLOCK_M, BLOCK_D)
    k_desc,  # (batch, heads // group, keys, D) in tiles of (1, 1, BLOCK_N, BLOCK_D)
    mask,  # (batch, heads, queries, keys), bool or floating-point: its pointer and strides; or None
    p_ptr,  # (batch, heads, queries, keys), contiguous
    heads,
    group,  # query heads a key head
    queries,
    keys,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,  # whether a tile may hold keys that some row must not see
    COMPUTE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    FACTOR: tl.constexpr = SCALE * LOG2_E  # folded into the exponent's one multiply-add
    blocks = tl.cdiv(queries, BLOCK_M)
    start = tl.program_id(0) % blocks * BLOCK_M
    head = tl.program_id(0) // blocks
    b, h = head // heads, head % heads
    q = load_rows(q_desc, b, h, start, queries, D, BLOCK_M, BLOCK_D, False)
    row = start + tl.arange(0, BLOCK_M)
    end, last, by_all = seen_keys(start, queries, keys, CAUSAL, BLOCK_M)
    end = tl.maximum(end, 0) if CAUSAL else end
    # Eight peaks and totals a row, each in one thread: only at the end do threads put a row's together.
    peak = tl.full((BLOCK_M, 8), -float("inf"), COMPUTE)
    total = tl.zeros((BLOCK_M, 8), COMPUTE)
    for n in tl.range(0, end, BLOCK_N):
        s = scores(q, k_desc, mask, b, h, group, n, row, queries, keys, SCALE, COMPUTE)
        if MASKED:
            s = hide(s, n, last, by_all, False)
        s = s.reshape(BLOCK_M, BLOCK_N // 8, 8)
        higher = tl.maximum(peak, tl.max(s, axis=1) * FACTOR)
        # What has seen no key yet would compute -inf - -inf.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp2(peak - base) + tl.sum(tl.exp2(s * FACTOR - base[:, None, :]), axis=1)
        peak = higher
    # peak + log2(total) would lose the logarithm where the peak is large. A row that sees no key is 0.
    top = tl.max(peak, axis=1)
    base = tl.where(top == -float("inf"), 0.0, top)
    total = tl.sum(total * tl.exp2(peak - base[:, None]), axis=1)
    inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
    p_ptr += head.to(tl.int64) * queries * keys
    at = row.to(tl.int64)[:, None] * keys + tl.arange(0, BLOCK_N)[None, :]
    for n in tl.range(0, end, BLOCK_N):
        s = scores(q, k_desc, mask, b, h, group, n, row, queries, keys, SCALE, COMPUTE)
        if MASKED:
            s = hide(s, n, last, by_all, False)
        p = tl.exp2(s * FACTOR - base[:, None]) * inverse[:, None]
        inside = (row < queries)[:, None] & (tl.arange(0, BLOCK_N) < keys - n)[None, :]
        # Streaming: p is not read again here, and should not drive k out of L2.
        tl.store(p_ptr + at + n, p.to(p_ptr.dtype.element_ty), mask=inside, cache_modifier=".cs")
    # 0 for keys that no row here sees, but in a row with NaN all of it is NaN, as in PyTorch.
    unseen = tl.broadcast_to((total * 0.0)[:, None], (BLOCK_M, BLOCK_N)).to(p_ptr.dtype.element_ty)
    for n in tl.range(tl.cdiv(end, BLOCK_N) * BLOCK_N, keys, BLOCK_N):
        inside = (row < queries)[:, None] & (tl.arange(0, BLOCK_N) < keys - n)[None, :]
        tl.store(p_ptr + at + n, unseen, mask=inside, cache_modifier=".cs")


def settings(dim: int, dtype: torch.dtype) -> dict:
    """Launch settings of attention_scores_kernel: four programs of 64 x 64 share a multiprocessor, so that some store
    while others compute; wider types and heads take what fits in registers."""
    block_d = max(16, next_power_of_2(dim))
    side = 64 if dtype.itemsize == 2 and block_d <= 128 else 32 if dtype.itemsize == 2 or block_d <= 64 else 16
    return {
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "D": dim,
        "BLOCK_D": block_d,
        "BLOCK_M": side,
        "BLOCK_N": side,
        "num_warps": 8 if block_d > 128 else 4,
        "num_stages": 3 if side == 64 else 2,
    }


def _launch(q, k, mask, p, causal: bool, scale: float | None) -> tuple[tuple, dict]:
    """The kernel's arguments and options, for q and k that descriptors can tell of."""
    chosen = settings(q.shape[3], q.dtype)
    of_q, of_k = (described(x, [1, 1, chosen[side], chosen["BLOCK_D"]]) for x, side in ((q, "BLOCK_M"), (k, "BLOCK_N")))
    mask = None if mask is None else (mask, *mask.expand(p.shape).stride())
    sizes = q.shape[1], q.shape[1] // k.shape[1], *p.shape[2:]
    masked = causal or k.shape[2] % chosen["BLOCK_N"] > 0
    options = {"SCALE": q.shape[3] ** -0.5 if scale is None else scale, "CAUSAL": causal, "MASKED": masked, **chosen}
    return (of_q, of_k, mask, p, *sizes), options


def _forward(
    q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float | None, dtype: torch.dtype | None
) -> Tensor:
    p = _like(q, k, causal, mask, scale, dtype)
    if p.numel() == 0:
        return p
    arguments, options = _launch(describable(q), describable(k), mask, p, causal, scale)
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
    """softmax(q k^T scale + mask) in one launch, without a gradient: kernels.flash_attention has one.

    Args:
        q: floating-point tensor of shape (batch, heads, queries, dim), dim up to 256. Any strides; rows that do not
            start at multiples of 16 bytes, or whose elements are not side by side, are copied first.
        k: (batch, key heads, keys, dim), of q's dtype and on its device. heads is a multiple of key heads; each key
            head serves that many neighbouring query heads.
        causal: query i sees key j if j - keys <= i - queries: the last sees every key, each before it one less.
        mask: of a shape that broadcasts to (batch, heads, queries, keys), any strides: bool, True where a query sees a
            key, or floating-point, added to the scaled scores.
        scale: of the scores, positive; 1 / sqrt(dim) where not given. The kernel is compiled for each.
        dtype: of the result: q's or torch.float32; q's where not given.
        enable_gqa, more: as in flash_attention.

    Returns:
        A contiguous tensor of shape (batch, heads, queries, keys). The arithmetic is fp32 (fp64 for fp64 inputs; fp32
        inputs are not rounded to tf32), rounded once. A row of a query that sees no key is 0.

    Raises:
        TypeError: q or k is not a floating-point tensor, the dtypes differ, or mask is neither bool nor floating-point.
        ValueError: shapes that do not fit, a scale that is not positive, another result dtype, two devices, or tensors
            on the CPU where kernels run on a GPU.
    """
    q, k = as_autocast_says(q, k)
    check_heads("attention_scores", scale, enable_gqa, more, q=q, k=k)
    check_mask("attention_scores", mask, q, k)
    if dtype not in (None, q.dtype, torch.float32):
        raise ValueError(f"attention_scores gives q's dtype or float32, not {dtype}: use .to(dtype) on its result")
    return attention_scores_op(q, k, causal, mask, scale, dtype)


def attention_scores_reference(q, k, causal: bool = False, mask=None, scale: float | None = None, dtype=None) -> Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
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
    """FLOPs and least bytes for (batch, heads, tokens, dim, causal) with p in fp32: a product, 2 dim operations, and 5
    for the softmax, for each pair of a query and a key that it sees; q and k in once, p out once."""
    batch, heads, tokens, dim, causal = shape
    pairs = batch * heads * (tokens * (tokens + 1) // 2 if causal else tokens**2)
    return Work((2 * dim + 5) * pairs, 2 * batch * heads * tokens * dim * dtype.itemsize, 4 * batch * heads * tokens**2)


def _inputs(batch: int, heads: int, tokens: int, dim: int, causal: bool, **options) -> tuple:
    q, k = (torch.randn(batch, heads, tokens, dim, **options) for _ in range(2))
    return q, k, bool(causal), None, None, torch.float32


def _compile_arguments(*shape, dtype: torch.dtype) -> tuple[tuple, dict]:
    batch, heads, tokens, _, causal = shape
    x = torch.empty(shape[:4], dtype=dtype, device="meta")
    return _launch(x, x, None, torch.empty(batch, heads, tokens, tokens, device="meta"), causal, None)


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
