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

from kernels.arguments import as_autocast_says, check_heads
from kernels.descriptors import describable, described, load_rows
from kernels.fused_op import FusedOp, Work
from kernels.online_softmax import LOG2_E
from kernels.sizes import cdiv, next_power_of_2


@triton.jit
def last_keys(start, queries, keys, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr):
    """The last key that each of the BLOCK_M queries from `start` sees; negative for one that sees none."""
    if CAUSAL:
        # One sum before the splat. Where warps take roles, Triton 3.6 and 3.7 halve the rows by adding to the place of
        # a load, `start`; whatever is made of that very value alone gets the addition a second time.
        return tl.minimum((start + keys - queries) + tl.arange(0, BLOCK_M), keys - 1)
    return tl.full((BLOCK_M,), 0, tl.int32) + (keys - 1)


@triton.jit
def keys_for_all(start, queries, keys, CAUSAL: tl.constexpr):
    """How many of the first keys the query `start` sees, and so all after it."""
    return tl.minimum(start + 1 + keys - queries, keys) if CAUSAL else keys


@triton.jit
def scores(
    q,
    k_desc,
    mask,
    b,
    h,
    group,
    n,
    row,
    queries,
    keys,
    last,
    seen,
    MASKED: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """q k^T + mask / scale for BLOCK_N keys from n on; -inf for keys that a row does not see."""
    BLOCK_N: tl.constexpr = k_desc.block_shape[2]
    k = k_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, q.shape[1])
    s = tl.dot(q, k.T, input_precision=PRECISION, out_dtype=COMPUTE)
    col = tl.arange(0, BLOCK_N)[None, :]
    if mask is not None:
        # int64 before the multiplications: offsets pass 2**31 on large tensors.
        of_head = mask[0] + b.to(tl.int64) * mask[1] + h.to(tl.int64) * mask[2]
        at = row.to(tl.int64)[:, None] * mask[3] + (n + col).to(tl.int64) * mask[4]
        given = tl.load(of_head + at, mask=(row < queries)[:, None] & (col < keys - n), other=0)
        s = tl.where(given, s, -float("inf")) if given.dtype == tl.int1 else s + given.to(COMPUTE) * (1 / SCALE)
    if MASKED and n + BLOCK_N > seen:  # tiles before that are seen whole
        s = tl.where(n + col <= last[:, None], s, -float("inf"))
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
    PRECISION: tl.constexpr,
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
    last = last_keys(start, queries, keys, CAUSAL, BLOCK_M)
    end = tl.maximum(tl.minimum(keys, start + BLOCK_M + keys - queries), 0) if CAUSAL else keys
    # Eight peaks and totals a row, each in one thread: only at the end do threads put a row's together.
    peak = tl.full((BLOCK_M, 8), -float("inf"), COMPUTE)
    total = tl.zeros((BLOCK_M, 8), COMPUTE)
    seen = keys_for_all(start, queries, keys, CAUSAL)
    for n in tl.range(0, end, BLOCK_N):
        s = scores(q, k_desc, mask, b, h, group, n, row, queries, keys, last, seen, MASKED, SCALE, PRECISION, COMPUTE)
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
        s = scores(q, k_desc, mask, b, h, group, n, row, queries, keys, last, seen, MASKED, SCALE, PRECISION, COMPUTE)
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
    """Tiles of attention_scores_kernel.

    On an H200 (bf16 in, fp32 out, (4, 16, 2048, 64), GB/s written, all keys / causal; a fill writes 4660): 64 x 64
    tiles, four programs a multiprocessor, 2963 / 3133, and 3127 / 3357 with streaming stores (.cs); without them
    64 x 128 2604 / 3216, 128 x 64 with 8 warps 2701 / 3061, two stages of loads 2541 / 3058, tiles stored through a
    descriptor 2777 / 3019, a first pass by 128 keys 2967 / 3216.

    Side by side since: 3130 / 3400, and with eight peaks and totals a row 3240 / 3430. What holds it is the second
    pass: alone it writes 3580, the first alone takes a third of the whole's time and hides behind it, but for what no
    program has to write in the beginning and few have in the end (16 batches: 3560, the second pass alone 3680). And
    64 x 64 tiles of ones, written by programs that do nothing else, come to 3460 to 3960, whole rows of them to 4360.
    Without gain: one block's second pass and the next one's first in one loop over the keys, which reads k once for
    both (2890 with two blocks a program, 2750 with four), five programs a multiprocessor (2840), 128 x 64 with 8 warps
    (2960), every program beginning at another key (3140).
    """
    block_d = max(16, next_power_of_2(dim))
    side = 64 if dtype.itemsize == 2 and block_d <= 128 else 32 if dtype.itemsize == 2 or block_d <= 64 else 16
    return {
        "PRECISION": "ieee",
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "D": dim,
        "BLOCK_D": block_d,
        "BLOCK_M": side,
        "BLOCK_N": side,
        "num_warps": 8 if block_d > 128 else 4,
        "num_stages": 3 if side == 64 else 2,
    }


def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    causal: bool,
    mask: torch.Tensor | None,
    scale: float | None,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    batch, heads, queries, dim = q.shape
    keys = k.shape[2]
    p = torch.empty(batch, heads, queries, keys, dtype=dtype or q.dtype, device=q.device)
    if p.numel() == 0:
        return p
    chosen = settings(dim, q.dtype)
    q, k = describable(q), describable(k)
    if mask is not None:
        mask = mask.expand(p.shape)
    with torch.cuda.device_of(q):
        attention_scores_kernel[(cdiv(queries, chosen["BLOCK_M"]) * batch * heads,)](
            described(q, [1, 1, chosen["BLOCK_M"], chosen["BLOCK_D"]]),
            described(k, [1, 1, chosen["BLOCK_N"], chosen["BLOCK_D"]]),
            None if mask is None else (mask, *mask.stride()),
            p,
            heads,
            heads // k.shape[1],
            queries,
            keys,
            SCALE=dim**-0.5 if scale is None else scale,
            CAUSAL=causal,
            MASKED=causal or keys % chosen["BLOCK_N"] > 0,
            **chosen,
        )
    return p


# For autograd, which finds no gradient here and says so, and for torch.compile.
attention_scores_op = torch.library.custom_op("kernel_fusion::attention_scores", _forward, mutates_args=())
attention_scores_op.register_fake(
    lambda q, k, causal, mask, scale, dtype: q.new_empty(*q.shape[:3], k.shape[2], dtype=dtype or q.dtype)
)


def attention_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    causal: bool = False,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """softmax(q k^T scale + mask) in one launch, without a gradient: kernels.flash_attention has one.

    Args:
        q: floating-point tensor of shape (batch, heads, queries, dim), dim up to 256. Any strides; rows that do not
            start at multiples of 16 bytes, or whose elements are not side by side, are copied first.
        k: (batch, key heads, keys, dim), of q's dtype and on its device. heads is a multiple of key heads; each key
            head serves that many neighbouring query heads.
        causal: the last query sees every key, each one before it one key less: query i sees key j if
            j - keys <= i - queries.
        mask: of a shape that broadcasts to (batch, heads, queries, keys), any strides: bool, True where a query sees a
            key, or floating-point, added to the scaled scores.
        scale: of the scores, positive; 1 / sqrt(dim) where not given. The kernel is compiled for each.
        dtype: of the result: q's or torch.float32; q's where not given.

    Returns:
        A contiguous tensor of shape (batch, heads, queries, keys). The arithmetic is fp32 (fp64 for fp64 inputs; fp32
        inputs are not rounded to tf32), rounded once. A row of a query that sees no key is 0.

    Raises:
        TypeError: q or k is not a floating-point tensor, the dtypes differ, or mask is neither bool nor floating-point.
        ValueError: shapes that do not fit, a scale that is not positive, another result dtype, two devices, or tensors
            on the CPU where kernels run on a GPU.
    """
    q, k = as_autocast_says(q, k)
    check_heads("attention_scores", scale, q=q, k=k)
    if mask is not None:
        _check_mask(q, k, mask)
    if dtype not in (None, q.dtype, torch.float32):
        raise ValueError(
            f"attention_scores gives q's dtype or float32, not {dtype}: convert its result with .to(dtype)"
        )
    tracked = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, mask))
    if tracked or torch.compiler.is_compiling():
        return attention_scores_op(q, k, causal, mask, scale, dtype)
    return _forward(q, k, causal, mask, scale, dtype)


def _check_mask(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> None:
    if not isinstance(mask, torch.Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        kind = mask.dtype if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise TypeError(f"attention_scores takes mask as a bool or floating-point tensor, got {kind}: convert it")
    shape = (*q.shape[:3], k.shape[2])
    fits = mask.dim() <= 4 and all(
        size in (1, full) for size, full in zip(reversed(mask.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"attention_scores takes mask of a shape that broadcasts to {tuple(shape)}, got {tuple(mask.shape)}: "
            f"reshape it"
        )
    if mask.device != q.device:
        raise ValueError(
            f"attention_scores takes tensors on one device, got q on {q.device} and mask on {mask.device}: "
            f"move one with .to(device)"
        )


def attention_scores_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    causal: bool = False,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
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
    return Work(
        flops=(2 * dim + 5) * pairs,
        bytes_read=2 * batch * heads * tokens * dim * dtype.itemsize,
        bytes_written=batch * heads * tokens**2 * 4,
    )


def _inputs(batch: int, heads: int, tokens: int, dim: int, causal: bool, **options) -> tuple:
    q, k = (torch.randn(batch, heads, tokens, dim, **options) for _ in range(2))
    return q, k, bool(causal), None, None, torch.float32


def _compile_arguments(*shape, dtype: torch.dtype) -> tuple[tuple, dict]:
    batch, heads, tokens, dim, causal = shape
    chosen = settings(dim, dtype)
    x = torch.empty(batch, heads, tokens, dim, dtype=dtype, device="meta")
    of_q, of_k = (described(x, [1, 1, chosen[side], chosen["BLOCK_D"]]) for side in ("BLOCK_M", "BLOCK_N"))
    p = torch.empty(batch, heads, tokens, tokens, device="meta")
    arguments = of_q, of_k, None, p, heads, 1, tokens, tokens
    masked = causal or tokens % chosen["BLOCK_N"] > 0
    return arguments, {"SCALE": dim**-0.5, "CAUSAL": causal, "MASKED": masked, **chosen}


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
