"""Attention without the N x N matrix:  out = softmax(q k^T scale) v; if causal, a query sees no later keys.

Unfused, N x N elements per head go through memory six times:

    unfused   product: write s | scale: read s, write s | softmax: read s, write p | product: read p, write out
                                                                 12 N^2 + 8 N d B per head in 16 bits, four launches
    fused     read q, k and v, write out; s and p live in registers, a tile at a time      8 N d B, one launch

At 4096 tokens and head dim 128 that is 206 MB per head against 4 MB, which grows only linearly with N. A program owns
BLOCK_M queries and loops over the keys with an online softmax: it keeps a running maximum and sum per row, and rescales
the output so far whenever the maximum grows. Each program rereads k and v from L2, shared with other programs of the
same head.

Training saves one value per row, lse = log2(sum exp2(s scale log2 e)). From it the backward pass recomputes tiles of p
instead of reading N x N values. With delta = sum(grad out) per row and p = exp(s scale - lse):

    grad_v = p^T grad,   grad_s = p (grad v^T - delta),   grad_q = grad_s k scale,   grad_k = grad_s^T q scale

One kernel loops over keys for grad_q, another over queries for grad_k and grad_v. That takes seven matmuls where five
would do, but no atomics, so gradients are bitwise identical in every run.

Source: Dao et al., arXiv:2205.14135; Dao, arXiv:2307.08691, algorithms 1 and 2; online softmax: arXiv:1805.02867.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import costs
from kernels.arguments import as_autocast_says, cdiv, check_option, shared_memory
from kernels.attention import LOG2_E, check_heads, longest_first, tile_settings, value_per_row, visible_keys
from kernels.descriptors import LARGE_TILES, describable, described, padded_empty
from kernels.op import FusedOp, Work, like, planned, register

TILES = {  # by head dim: rows that a program owns, rows that it loops over, warps
    "forward": {64: (64, 128, 4), 128: (128, 64, 8), 256: (128, 64, 8)},
    "grad_q": {64: (64, 64, 4), 128: (128, 64, 8), 256: (128, 32, 8)},
    "grad_kv": {64: (64, 64, 4), 128: (128, 32, 8), 256: (64, 32, 8)},  # two accumulators: fewer queries at a time
}


@triton.jit
def flash_attention_kernel(
    q_desc,  # (batch, heads, queries, dim) in tiles of (1, 1, BLOCK_M, BLOCK_D)
    k_desc,  # (batch, heads // group, keys, dim) in tiles of (1, 1, BLOCK_N, BLOCK_D)
    v_desc,  # as k
    out_desc,  # as q
    lse_desc,  # (batch, heads, queries) of COMPUTE in tiles of (1, 1, BLOCK_M); None where no backward pass follows
    heads,
    group,  # query heads per key head
    queries,
    keys,
    SCALE: tl.constexpr,  # of the scores
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,  # whether a tile may hold keys that some row must not see
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SUMS: tl.constexpr,  # partial sums per row; 8 of them each stay in one thread
):
    blocks = tl.cdiv(queries, BLOCK_M)
    head, block = longest_first(blocks, CAUSAL)
    start = (blocks - 1 - block) * BLOCK_M  # programs near the end see the most keys
    b, h = head // heads, head % heads
    q = q_desc.load([b, h, start, 0]).reshape(BLOCK_M, BLOCK_D)
    end, last, by_all = visible_keys(start, queries, keys, CAUSAL, BLOCK_M)
    peak = tl.full((BLOCK_M,), -float("inf"), COMPUTE)
    total = tl.zeros((BLOCK_M, SUMS), COMPUTE)
    acc = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    for n in tl.range(0, end, BLOCK_N):
        k = k_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        s = tl.dot(q, k.T, input_precision="ieee", out_dtype=COMPUTE)
        if MASKED and n + BLOCK_N > by_all:
            # Not `arange <= last - n`: Triton 3.6 and 3.7 would keep each column's number in a register throughout
            # the loop (test_the_compiler_keeps_the_columns_numbers_where_it_can).
            s = tl.where((n + tl.arange(0, BLOCK_N))[None, :] <= last[:, None], s, -float("inf"))
        v = v_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        higher = tl.maximum(peak, tl.max(s, axis=1) * (SCALE * LOG2_E))
        # A row that has seen no key yet, or scores of -inf alone, would compute -inf - -inf.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        # The scale is folded into the exponent's one multiply-add; exponentials are powers of two, as the GPU's are.
        p = tl.exp2(s * (SCALE * LOG2_E) - base[:, None])
        shrink = tl.exp2(peak - base)
        total = total * shrink[:, None] + tl.sum(p.reshape(BLOCK_M, BLOCK_N // SUMS, SUMS), axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee", out_dtype=COMPUTE)
        peak = higher
    total = tl.sum(total, axis=1)
    out = acc * (1.0 / tl.where(total == 0, 1.0, total))[:, None]  # a row that sees no key is 0
    out_desc.store([b, h, start, 0], out.to(out_desc.dtype).reshape(1, 1, BLOCK_M, BLOCK_D))
    if lse_desc is not None:
        # A row that sees no key has inf, which makes every p of the backward pass 0.
        lse = tl.where(total == 0, float("inf"), peak + tl.log2(total))
        lse_desc.store([b, h, start], lse.reshape(1, 1, BLOCK_M))


def settings(launch: str, dim: int, dtype: torch.dtype, large: bool = True) -> dict:
    """Return launch settings of the kernel for "forward", "grad_q" or "grad_kv"; `large` as in tile_settings."""
    chosen = tile_settings(TILES[launch], dim, dtype, large)
    if launch == "forward":  # larger heads and wider types leave no registers for eight sums
        chosen["SUMS"] = 8 if chosen["BLOCK_D"] <= 64 and dtype.itemsize == 2 else 1
    return chosen


def _arguments(q, k, v, out, lse, causal: bool, scale: float | None, chosen: dict) -> tuple[tuple, dict]:
    """Return the forward kernel's arguments and options, for tensors that descriptors can describe."""
    owned, passing = ([1, 1, chosen[rows], chosen["BLOCK_D"]] for rows in ("BLOCK_M", "BLOCK_N"))
    tensors = described(q, owned), described(k, passing), described(v, passing), described(out, owned)
    sizes = q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    masked = causal or k.shape[2] % chosen["BLOCK_N"] > 0
    options = {"SCALE": q.shape[3] ** -0.5 if scale is None else scale, "CAUSAL": causal, "MASKED": masked, **chosen}
    return (*tensors, None if lse is None else described(lse, owned[:3]), *sizes), options


def _run(q, k, v, causal: bool, scale: float | None, lse: Tensor | None) -> Tensor:
    batch, heads, queries, dim = q.shape
    if q.numel() == 0 or k.shape[2] == 0:
        return torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    q, k, v, out = describable(q), describable(k), describable(v), padded_empty(q.shape, q)
    chosen = settings("forward", dim, q.dtype, shared_memory(q) >= LARGE_TILES)
    arguments, options = _arguments(q, k, v, out, lse, causal, scale, chosen)
    with torch.cuda.device_of(q):
        flash_attention_kernel[(cdiv(queries, options["BLOCK_M"]) * batch * heads,)](*arguments, **options)
    return out.contiguous()


def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    return _run(q, k, v, causal, scale, None)


def _training(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    lse = value_per_row(q)
    return _run(q, k, v, causal, scale, lse), lse


@triton.jit
def grad_q_kernel(
    q_desc,  # (batch, heads, queries, dim) in tiles of (1, 1, BLOCK_M, BLOCK_D)
    grad_desc,  # as q
    out_desc,  # as q
    k_desc,  # (batch, heads // group, keys, dim) in tiles of (1, 1, BLOCK_N, BLOCK_D)
    v_desc,  # as k
    lse_desc,  # (batch, heads, queries) of COMPUTE in tiles of (1, 1, BLOCK_M)
    delta_desc,  # as lse; written, for grad_kv_kernel
    grad_q_desc,  # as q
    heads,
    group,
    queries,
    keys,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    blocks = tl.cdiv(queries, BLOCK_M)
    head, block = longest_first(blocks, CAUSAL)
    start = (blocks - 1 - block) * BLOCK_M
    b, h = head // heads, head % heads
    q = q_desc.load([b, h, start, 0]).reshape(BLOCK_M, BLOCK_D)
    grad = grad_desc.load([b, h, start, 0]).reshape(BLOCK_M, BLOCK_D)
    out = out_desc.load([b, h, start, 0]).reshape(BLOCK_M, BLOCK_D)
    delta = tl.sum(out.to(COMPUTE) * grad.to(COMPUTE), axis=1)
    delta_desc.store([b, h, start], delta.reshape(1, 1, BLOCK_M))
    lse = lse_desc.load([b, h, start]).reshape(BLOCK_M)
    end, last, by_all = visible_keys(start, queries, keys, CAUSAL, BLOCK_M)
    acc = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    for n in tl.range(0, end, BLOCK_N):
        k = k_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        s = tl.dot(q, k.T, input_precision="ieee", out_dtype=COMPUTE)
        v = v_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        grad_p = tl.dot(grad, v.T, input_precision="ieee", out_dtype=COMPUTE)
        if MASKED and n + BLOCK_N > by_all:
            s = tl.where((n + tl.arange(0, BLOCK_N))[None, :] <= last[:, None], s, -float("inf"))
        p = tl.exp2(s * (SCALE * LOG2_E) - lse[:, None])
        grad_s = p * (grad_p - delta[:, None])
        acc = tl.dot(grad_s.to(k.dtype), k, acc, input_precision="ieee", out_dtype=COMPUTE)
    grad_q_desc.store([b, h, start, 0], (acc * SCALE).to(grad_q_desc.dtype).reshape(1, 1, BLOCK_M, BLOCK_D))


@triton.jit
def grad_kv_kernel(
    k_desc,  # (batch, kv_heads, keys, dim) in tiles of (1, 1, BLOCK_M, BLOCK_D)
    v_desc,  # as k
    q_desc,  # (batch, kv_heads * group, queries, dim) in tiles of (1, 1, BLOCK_N, BLOCK_D)
    grad_desc,  # as q
    lse_desc,  # (batch, kv_heads * group, queries) of COMPUTE in tiles of (1, 1, BLOCK_N)
    delta_desc,  # as lse
    grad_k_desc,  # as k
    grad_v_desc,  # as k
    kv_heads,
    group,
    queries,
    keys,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,  # keys
    BLOCK_N: tl.constexpr,  # queries
):
    head, block = longest_first(tl.cdiv(keys, BLOCK_M), CAUSAL)
    start = block * BLOCK_M  # the first keys are seen by the most queries
    b, h = head // kv_heads, head % kv_heads
    k = k_desc.load([b, h, start, 0]).reshape(BLOCK_M, BLOCK_D)
    v = v_desc.load([b, h, start, 0]).reshape(BLOCK_M, BLOCK_D)
    # The first query that sees each key; tiles of queries before all of them are left out.
    row = (start + queries - keys) + tl.arange(0, BLOCK_M)
    first = tl.maximum(start + queries - keys, 0) // BLOCK_N if CAUSAL else 0
    steps = tl.maximum(tl.cdiv(queries, BLOCK_N) - first, 0)
    sum_k = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    sum_v = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    for step in tl.range(0, group * steps):  # over the tiles of every query head that the key head serves
        qh = h * group + step // steps
        n = (first + step % steps) * BLOCK_N
        # Transposed, keys down and queries across: the second products take p and grad_s from registers as they are.
        q = q_desc.load([b, qh, n, 0]).reshape(BLOCK_N, BLOCK_D)
        s = tl.dot(k, q.T, input_precision="ieee", out_dtype=COMPUTE)
        lse = lse_desc.load([b, qh, n]).reshape(BLOCK_N)  # 0 past the last query, where grad is 0 too: adds nothing
        if CAUSAL:
            s = tl.where((n + tl.arange(0, BLOCK_N))[None, :] >= row[:, None], s, -float("inf"))
        p = tl.exp2(s * (SCALE * LOG2_E) - lse[None, :])
        grad = grad_desc.load([b, qh, n, 0]).reshape(BLOCK_N, BLOCK_D)
        sum_v = tl.dot(p.to(grad.dtype), grad, sum_v, input_precision="ieee", out_dtype=COMPUTE)
        grad_p = tl.dot(v, grad.T, input_precision="ieee", out_dtype=COMPUTE)
        delta = delta_desc.load([b, qh, n]).reshape(BLOCK_N)
        grad_s = p * (grad_p - delta[None, :])
        sum_k = tl.dot(grad_s.to(q.dtype), q, sum_k, input_precision="ieee", out_dtype=COMPUTE)
    grad_k_desc.store([b, h, start, 0], (sum_k * SCALE).to(grad_k_desc.dtype).reshape(1, 1, BLOCK_M, BLOCK_D))
    grad_v_desc.store([b, h, start, 0], sum_v.to(grad_v_desc.dtype).reshape(1, 1, BLOCK_M, BLOCK_D))


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1:3]
    if q.numel() == 0 or keys == 0:
        return tuple(torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    grad, q, k, v, out, lse = map(describable, (grad, q, k, v, out, lse))
    delta = value_per_row(q)
    grad_q, grad_k, grad_v = padded_empty(q.shape, q), padded_empty(k.shape, k), padded_empty(v.shape, v)
    sizes, large = (heads // kv_heads, queries, keys), shared_memory(q) >= LARGE_TILES
    fixed = {"SCALE": dim**-0.5 if scale is None else scale, "CAUSAL": causal}
    with torch.cuda.device_of(q):
        chosen = settings("grad_q", dim, q.dtype, large)
        owned, passing = ([1, 1, chosen[rows], chosen["BLOCK_D"]] for rows in ("BLOCK_M", "BLOCK_N"))
        grad_q_kernel[(cdiv(queries, chosen["BLOCK_M"]) * batch * heads,)](
            *(described(x, owned) for x in (q, grad, out)),
            *(described(x, passing) for x in (k, v)),
            *(described(x, owned[:3]) for x in (lse, delta)),
            described(grad_q, owned),
            heads,
            *sizes,
            MASKED=causal or keys % chosen["BLOCK_N"] > 0,
            **fixed,
            **chosen,
        )
        chosen = settings("grad_kv", dim, q.dtype, large)
        owned, passing = ([1, 1, chosen[rows], chosen["BLOCK_D"]] for rows in ("BLOCK_M", "BLOCK_N"))
        grad_kv_kernel[(cdiv(keys, chosen["BLOCK_M"]) * batch * kv_heads,)](
            *(described(x, owned) for x in (k, v)),
            *(described(x, passing) for x in (q, grad)),
            *(described(x, passing[:3]) for x in (lse, delta)),
            *(described(x, owned) for x in (grad_k, grad_v)),
            kv_heads,
            *sizes,
            **fixed,
            **chosen,
        )
    return grad_q.contiguous(), grad_k.contiguous(), grad_v.contiguous()


flash_attention_op = register(
    "flash_attention",
    _forward,
    lambda q, *_: like(q),
    training=_training,
    training_fake=lambda q, *_: (like(q), value_per_row(q)),
    keep=lambda arguments, result: (*arguments[:3], *result, *arguments[3:]),
    backward=_backward,
    backward_fake=lambda grad, q, k, v, *_: (like(q), like(k), like(v)),
)


@planned
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, enable_gqa: bool = True, **more
) -> Tensor:
    """Compute softmax(q k^T scale) v in one launch, without the N x N matrix; differentiable once.

    Args:
        q: floating-point tensor of shape (batch, heads, queries, dim), dim up to 256. Any strides; rows that are not
            contiguous, or do not start at multiples of 16 bytes, are copied first.
        k, v: (batch, key heads, keys, dim), of q's dtype and on its device. heads is a multiple of key heads; each key
            head serves that many neighbouring query heads.
        causal: query i sees key j if j - keys <= i - queries: the last query sees every key, and each earlier one a key
            less.
        scale: positive multiplier for the scores; 1 / sqrt(dim) by default. Each value compiles a new kernel.
        enable_gqa: whether k may have fewer heads than q, as in PyTorch; it costs nothing.

    Returns:
        A contiguous tensor of q's shape and dtype (under autocast, autocast's). Products are summed in fp32 (fp64 for
        fp64 inputs; fp32 inputs are not rounded to tf32). The probabilities are rounded to q's dtype before the second
        matmul. A query that sees no key gets 0. On compute capability 9.0, the gradients of q for 16-bit head dims of
        33 to 128 may differ in their last bits from run to run, as PyTorch's own do. Under
        torch.use_deterministic_algorithms(True) they are bitwise identical in every run, and the backward pass takes
        longer: 1.2x to 2.2x at head dim 128, 0.9x to 1.25x at 64, 5x if 32 heads share one key head (H100, recorded as
        plain and ours in the sweep).

    Raises:
        TypeError: q, k or v is not a floating-point tensor, the dtypes differ, or `more` is given (arguments.INSTEAD).
        ValueError: shapes do not match, scale is not a positive normal fp32 number, devices differ, or tensors are on
            the CPU where kernels run on a GPU.
    """
    q, k, v = as_autocast_says(q, k, v)
    check_heads("flash_attention", causal, scale, enable_gqa, more, q=q, k=k, v=v)
    return flash_attention_op(q, k, v, causal, scale)


class FlashAttention(torch.nn.Module):
    """flash_attention as a module that stores `causal` and `scale`."""

    def __init__(self, causal: bool = False, scale: float | None = None):
        super().__init__()
        check_option("FlashAttention", "causal", causal, bool)
        check_option("FlashAttention", "scale", scale, float, optional=True)
        self.causal, self.scale = causal, scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attention(q, k, v, self.causal, self.scale)

    def extra_repr(self) -> str:
        return f"causal={self.causal}, scale={self.scale}"


def flash_attention_reference(q, k, v, causal: bool = False, scale: float | None = None) -> Tensor:
    """Compute the same as one writes it in PyTorch before thinking of memory."""
    if k.shape[1] not in (0, q.shape[1]):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    s = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if not causal:
        return torch.softmax(s, dim=-1) @ v
    queries, keys = s.shape[-2:]
    seen = torch.ones(queries, keys, dtype=torch.bool, device=s.device).tril(keys - queries)
    p = torch.softmax(s.masked_fill(~seen, -torch.inf), dim=-1)
    return torch.where(seen.any(dim=-1, keepdim=True), p, 0.0) @ v


def flash_attention_work(shape: tuple[int, int, int, int, bool], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic for (batch, heads, tokens, dim, causal): two matmuls, 4 dim operations per pair
    of a query and a visible key; q, k and v in once, the output out once."""
    batch, heads, tokens, dim, causal = shape
    pairs, size = tokens * (tokens + 1) // 2 if causal else tokens**2, batch * heads * tokens * dim * dtype.itemsize
    return Work(flops=costs.attention(batch * heads * pairs, dim), bytes_read=3 * size, bytes_written=size)


def flash_attention_backward_work(shape: tuple[int, int, int, int, bool], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic for (batch, heads, tokens, dim, causal): five matmuls, including the recomputed
    scores; q, k, v, the output and its gradient in once, three gradients out once."""
    batch, heads, tokens, dim, causal = shape
    pairs = tokens * (tokens + 1) // 2 if causal else tokens**2
    size = batch * heads * tokens * dim * dtype.itemsize
    return Work(flops=10 * batch * heads * pairs * dim, bytes_read=5 * size, bytes_written=3 * size)


def _inputs(batch: int, heads: int, tokens: int, dim: int, causal: bool, **options) -> tuple:
    return *(torch.randn(batch, heads, tokens, dim, **options) for _ in range(3)), bool(causal)


def _compile_arguments(*shape, dtype: torch.dtype) -> tuple[tuple, dict]:
    x = torch.empty(shape[:4], dtype=dtype, device="meta")
    return _arguments(x, x, x, x, None, shape[4], None, settings("forward", shape[3], dtype))


OP = FusedOp(
    name="flash_attention",
    fused=flash_attention,
    reference=flash_attention_reference,
    work=flash_attention_work,
    kernel=flash_attention_kernel,
    settings=partial(settings, "forward"),
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1, 1, 1, 1, False), (1, 2, 5, 36, True), (2, 1, 129, 16, False), (1, 1, 40, 4, True)),
    gpu_shapes=tuple(
        (*shape, causal)
        for shape in ((4, 16, 4096, 128), (2, 16, 8192, 128), (4, 32, 4096, 64), (1, 16, 16384, 128))
        for causal in (False, True)
    ),
    backward_work=flash_attention_backward_work,
)
