"""Attention without its matrix:  out = softmax(q k^T scale) v, a query seeing all keys or none after its own.

Written out in PyTorch, N x N numbers a head go through memory, six times:

    unfused   product: write s | scale: read s, write s | softmax: read s, write p | product: read p, write out
                                                                    12 N^2 + 8 N d B a head in 16 bits, four launches
    fused     read q, k and v, write out; s and p live in registers, a tile at a time         8 N d B, one launch

At 4096 tokens and heads of 128 that is 206 MB a head against 4 MB, and linear in N. A program owns BLOCK_M queries and
walks over the keys, with the softmax as kernels/online_softmax.py has it: a running maximum and sum, and the output so
far shrunk whenever the maximum grows. Each program reads k and v again; it does so from L2, where its neighbours of the
same head have them too.

The backward pass computes the tiles of p again from q, k and the log-sum-exp of each row, which is all the forward
keeps. With delta = sum(grad out, a row) and p = exp(s scale - lse):

    grad_v = p^T grad,   grad_s = p (grad v^T - delta),   grad_q = grad_s k scale,   grad_k = grad_s^T q scale

One kernel walks over keys for grad_q and one over queries for grad_k and grad_v: seven products instead of the five
that are least, and in return no atomics, so that gradients are the same bits in every run.

For heads of 65 to 128 on a GPU of compute capability 9.0 the warps take roles (`warp_specialize`; USETMAXREG in the
SASS): four only fetch tiles, two groups of four hold 64 rows each, and while one group computes exponentials the other
has the tensor cores. For smaller heads several programs on a multiprocessor do the same for one another.

Peak memory beyond the inputs on an H200, causal, 16 heads of 128, 16384 tokens: 68 MB, where the unfused takes 26 GB;
in training 0.34 GB and 35 GB (benchmarks/attention_memory.py).

Source: Dao et al., arXiv:2205.14135; Dao, arXiv:2307.08691; the warps' roles: Shah et al., arXiv:2407.08608.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from kernels.arguments import as_autocast_says, check_heads
from kernels.descriptors import (
    describable,
    described,
    lend_scratch,
    load_rows,
    load_values,
    of_rows,
    padded_empty,
    store_rows,
    store_values,
)
from kernels.fused_op import FusedOp, Work
from kernels.online_softmax import LOG2_E
from kernels.sizes import cdiv, next_power_of_2
from kernels.tiled.attention_scores import keys_for_all, last_keys


@triton.jit
def hide(s, n, last, seen, ROLES: tl.constexpr):
    """The scores s of BLOCK_N keys from n on, -inf for those after a row's last; keys before `seen` all rows see."""
    # Not `arange <= last - n`: the compiler would keep every column's number in a register throughout the loop.
    visible = (n + tl.arange(0, s.shape[1]))[None, :] <= last[:, None]
    if ROLES:  # which a branch would keep warps from
        return tl.where(visible, s, -float("inf"))
    if n + s.shape[1] > seen:
        s = tl.where(visible, s, -float("inf"))
    return s


@triton.jit
def longest_first(blocks, CAUSAL: tl.constexpr):
    """Which head this program serves, and which of its `blocks` blocks of rows, the longest being 0.

    Causal: the longest of several heads first, so that the last programs to finish are short. Of several only: those
    heads' k and v are to stay in L2.
    """
    pid = tl.program_id(0)
    if CAUSAL:
        side = tl.maximum(512 // blocks, 1)
        first = pid // (side * blocks) * side
        side = tl.minimum(side, tl.num_programs(0) // blocks - first)
        at = pid - first * blocks
        head, block = first + at % side, at // side
    else:
        head, block = pid // blocks, pid % blocks
    return head, block


@triton.jit
def flash_attention_kernel(
    q,  # (batch, heads, queries, D) in tiles of (BLOCK_M, BLOCK_D), as load_rows takes it
    k_desc,  # (batch, heads // group, keys, D) in tiles of (1, 1, BLOCK_N, BLOCK_D)
    v_desc,  # the same
    out,  # as q
    lse,  # (batch, heads, queries) of COMPUTE, in tiles of (BLOCK_M,), or None where no backward pass will ask for it
    heads,
    group,  # query heads a key head
    queries,
    keys,
    SCALE: tl.constexpr,  # of the scores
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,  # whether a tile may hold keys that some row must not see
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROLES: tl.constexpr,  # whether some warps only load, and the others halve the rows
):
    blocks = tl.cdiv(queries, BLOCK_M)
    head, block = longest_first(blocks, CAUSAL)
    start = (blocks - 1 - block) * BLOCK_M  # programs near the end see the most keys
    b, h = head // heads, head % heads
    q = load_rows(q, b, h, start, queries, D, BLOCK_M, BLOCK_D, ROLES)
    end = tl.minimum(keys, start + BLOCK_M + keys - queries) if CAUSAL else keys
    last = last_keys(start, queries, keys, CAUSAL, BLOCK_M)
    seen = keys_for_all(start, queries, keys, CAUSAL)
    peak = tl.full((BLOCK_M,), -float("inf"), COMPUTE)
    # Eight sums a row, each in one thread: only at the end do threads add up a row's together. Larger heads and wider
    # types leave no registers for that, and where warps take roles, the compiler could not halve such sums.
    APART: tl.constexpr = BLOCK_D <= 64 and v_desc.dtype.primitive_bitwidth == 16
    total = tl.zeros((BLOCK_M, 8) if APART else (BLOCK_M,), COMPUTE)
    acc = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    for n in tl.range(0, end, BLOCK_N, warp_specialize=ROLES):
        k = k_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        s = tl.dot(q, k.T, input_precision=PRECISION, out_dtype=COMPUTE)
        if MASKED:
            s = hide(s, n, last, seen, ROLES)
        if APART:  # v is waited for here, not amid the arithmetic
            v = v_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        higher = tl.maximum(peak, tl.max(s, axis=1) * (SCALE * LOG2_E))
        # A row that has seen no key yet would compute -inf - -inf.
        base = tl.where(higher == -float("inf"), 0.0, higher) if MASKED else higher
        # The scale is folded into the exponent's one multiply-add; exponentials are powers of two, as the GPU's are.
        p = tl.exp2(s * (SCALE * LOG2_E) - base[:, None])
        shrink = tl.exp2(peak - base)
        if APART:
            total = total * shrink[:, None] + tl.sum(p.reshape(BLOCK_M, BLOCK_N // 8, 8), axis=1)
        else:
            total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None]
        if not APART:
            v = v_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION, out_dtype=COMPUTE)
        peak = higher
    if APART:
        total = tl.sum(total, axis=1)
    store_rows(out, acc * (1.0 / tl.where(total == 0, 1.0, total))[:, None], b, h, start, queries, D, ROLES)
    if lse is not None:
        # In base 2. A row that sees no key has inf, which makes every p of the backward pass 0.
        store_values(lse, tl.where(total == 0, float("inf"), peak + tl.log2(total)), b, h, start, queries, ROLES)


@triton.jit
def delta_kernel(
    out_desc,  # (batch, heads, queries, D) in tiles of (1, 1, BLOCK_M, BLOCK_D)
    grad_desc,  # the same
    delta_desc,  # (batch, heads, queries) of COMPUTE in tiles of (1, 1, BLOCK_M)
    heads,
    queries,
    COMPUTE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """sum(grad out) of each row."""
    blocks = tl.cdiv(queries, BLOCK_M)
    start = tl.program_id(0) % blocks * BLOCK_M
    b, h = tl.program_id(0) // blocks // heads, tl.program_id(0) // blocks % heads
    out = load_rows(out_desc, b, h, start, queries, D, BLOCK_M, BLOCK_D, False).to(COMPUTE)
    grad = load_rows(grad_desc, b, h, start, queries, D, BLOCK_M, BLOCK_D, False).to(COMPUTE)
    store_values(delta_desc, tl.sum(out * grad, axis=1), b, h, start, queries, False)


@triton.jit
def grad_q_kernel(
    q,  # (batch, heads, queries, D) in tiles of (BLOCK_M, BLOCK_D), as load_rows takes it
    grad,  # the same
    k_desc,  # (batch, heads // group, keys, D) in tiles of (1, 1, BLOCK_N, BLOCK_D)
    v_desc,  # the same
    lse,  # (batch, heads, queries) of COMPUTE, in tiles of (BLOCK_M,)
    delta,  # the same
    grad_q,  # as q
    heads,
    group,
    queries,
    keys,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROLES: tl.constexpr,
):
    blocks = tl.cdiv(queries, BLOCK_M)
    head, block = longest_first(blocks, CAUSAL)
    start = (blocks - 1 - block) * BLOCK_M
    b, h = head // heads, head % heads
    q = load_rows(q, b, h, start, queries, D, BLOCK_M, BLOCK_D, ROLES)
    grad = load_rows(grad, b, h, start, queries, D, BLOCK_M, BLOCK_D, ROLES)
    lse = load_values(lse, b, h, start, queries, BLOCK_M, ROLES)
    delta = load_values(delta, b, h, start, queries, BLOCK_M, ROLES)
    end = tl.minimum(keys, start + BLOCK_M + keys - queries) if CAUSAL else keys
    last = last_keys(start, queries, keys, CAUSAL, BLOCK_M)
    seen = keys_for_all(start, queries, keys, CAUSAL)
    acc = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    for n in tl.range(0, end, BLOCK_N, warp_specialize=ROLES):
        k = k_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        s = tl.dot(q, k.T, input_precision=PRECISION, out_dtype=COMPUTE)
        v = v_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        grad_p = tl.dot(grad, v.T, input_precision=PRECISION, out_dtype=COMPUTE)
        if MASKED:
            s = hide(s, n, last, seen, ROLES)
        p = tl.exp2(s * (SCALE * LOG2_E) - lse[:, None])
        grad_s = p * (grad_p - delta[:, None])
        acc = tl.dot(grad_s.to(k.dtype), k, acc, input_precision=PRECISION, out_dtype=COMPUTE)
    store_rows(grad_q, acc * SCALE, b, h, start, queries, D, ROLES)


@triton.jit
def grad_kv_kernel(
    k,  # (batch, kv_heads, keys, D) in tiles of (BLOCK_M, BLOCK_D), as load_rows takes it
    v,  # the same
    q_desc,  # (batch, kv_heads * group, queries, D) in tiles of (1, 1, BLOCK_N, BLOCK_D)
    grad_desc,  # the same
    lse_desc,  # (batch, kv_heads * group, queries) of COMPUTE in tiles of (1, 1, BLOCK_N)
    delta_desc,  # the same
    grad_k,  # as k
    grad_v,  # as k
    kv_heads,
    group,
    queries,
    keys,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,  # keys
    BLOCK_N: tl.constexpr,  # queries
    ROLES: tl.constexpr,
):
    blocks = tl.cdiv(keys, BLOCK_M)
    head, block = longest_first(blocks, CAUSAL)
    start = block * BLOCK_M  # the first keys are seen by the most queries
    b, h = head // kv_heads, head % kv_heads
    k = load_rows(k, b, h, start, keys, D, BLOCK_M, BLOCK_D, ROLES)
    v = load_rows(v, b, h, start, keys, D, BLOCK_M, BLOCK_D, ROLES)
    # The first query that sees each key; tiles of queries before all of them are left out.
    row = (start + queries - keys) + tl.arange(0, BLOCK_M)
    first = tl.maximum(start + queries - keys, 0) // BLOCK_N if CAUSAL else 0
    steps = tl.maximum(tl.cdiv(queries, BLOCK_N) - first, 0)
    sum_k = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    sum_v = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    for step in tl.range(0, group * steps, warp_specialize=ROLES):  # every query head that the key head serves
        qh = h * group + step // steps
        n = (first + step % steps) * BLOCK_N
        # Transposed, keys down and queries across: the second products take p and grad_s from registers as they are.
        q = q_desc.load([b, qh, n, 0]).reshape(BLOCK_N, BLOCK_D)
        s = tl.dot(k, q.T, input_precision=PRECISION, out_dtype=COMPUTE)
        lse = lse_desc.load([b, qh, n]).reshape(BLOCK_N)  # 0 past the last query, where grad is 0 too: adds nothing
        if CAUSAL:
            s = tl.where((n + tl.arange(0, BLOCK_N))[None, :] >= row[:, None], s, -float("inf"))
        p = tl.exp2(s * (SCALE * LOG2_E) - lse[None, :])
        grad = grad_desc.load([b, qh, n, 0]).reshape(BLOCK_N, BLOCK_D)
        sum_v = tl.dot(p.to(grad.dtype), grad, sum_v, input_precision=PRECISION, out_dtype=COMPUTE)
        grad_p = tl.dot(v, grad.T, input_precision=PRECISION, out_dtype=COMPUTE)
        delta = delta_desc.load([b, qh, n]).reshape(BLOCK_N)
        grad_s = p * (grad_p - delta[None, :])
        sum_k = tl.dot(grad_s.to(q.dtype), q, sum_k, input_precision=PRECISION, out_dtype=COMPUTE)
    store_rows(grad_k, sum_k * SCALE, b, h, start, keys, D, ROLES)
    store_rows(grad_v, sum_v, b, h, start, keys, D, ROLES)


def settings(launch: str, dim: int, dtype: torch.dtype, hopper: bool = True) -> dict:
    """Tiles of one of the launches "forward", "grad_q" and "grad_kv": BLOCK_M rows stay, BLOCK_N pass by.

    On an H200 (bf16, 4096 tokens, TFLOP/s, full / causal), heads of 128: a program of 128 rows fills a multiprocessor
    and its warps take roles, 128 keys at a time 579 / 462, 64 keys 506 / 408; without roles, 8 warps, 488 / 417; 64
    rows 453 / 384. With roles every causal tile is masked, since a branch rules roles out. Heads of 64: three programs
    of 64 rows hide one another's exponentials, 474 / 409; 64 keys at a time 439 / 392; 128 rows 417 / 372; roles with
    128 keys 403 / 287.

    Side by side since, heads of 64: 484 / 431; with eight sums a row and v loaded before the exponentials 492 / 439
    (either alone: nothing); the longest of several heads first 445 causal, and 483 instead of 463 for heads of 128.
    Nothing came of a loop of its own for tiles seen whole (481 / 429; with roles it does not compile), a quarter of
    the exponentials by polynomial (481 / 434), the next tile's scores before this one's exponentials (376 / 338).
    With roles, programs that stay and take rows in turn gain at 4096 tokens, 591 / 512, and lose at 16384 causal, 545
    instead of 564, where they share the rows less evenly than programs that come as others end.

    Backward, both launches, heads of 128: 477 / 383; grad_q without roles 412 / 330, grad_kv without 366 / 321. Heads
    of 64: 375 / 316 with 64 rows, 336 / 280 with roles. The longest of several heads first: causal 399 instead of 384.
    grad_kv takes 64 queries at a time: two sums of 64 registers a thread leave no room for more. Heads of 256 and GPUs
    before 9.0 take what spills little; fp32 and fp64 are there to be exact, not fast.
    """
    block_d = max(16, next_power_of_2(dim))
    roles, warps = False, 8 if block_d > 128 else 4
    if dtype.itemsize > 2:
        block_m = block_n = 32 if dtype.itemsize == 4 and block_d <= 64 else 16
    elif not hopper:
        block_m, block_n, warps = 32 if block_d > 128 else 64, 32, 8 if block_d > 64 else 4
    elif block_d <= 64:
        block_m, block_n = 64, 128 if launch == "forward" else 64
    elif block_d <= 128:
        block_m, block_n, roles = 128, 64 if launch == "grad_kv" else 128, True
    else:
        block_m, block_n = {"forward": (128, 64), "grad_q": (128, 32), "grad_kv": (64, 32)}[launch]
    return {
        "PRECISION": "ieee",
        "COMPUTE": tl.float64 if dtype == torch.float64 else tl.float32,
        "D": dim,
        "BLOCK_D": block_d,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "ROLES": roles,
        "num_warps": warps,
        "num_stages": 2,
    }


def _chosen(launch: str, x: torch.Tensor) -> dict:
    hopper = not x.is_cuda or torch.cuda.get_device_capability(x.device)[0] == 9
    return settings(launch, x.shape[-1], x.dtype, hopper)


def _lse_like(q: torch.Tensor) -> torch.Tensor:
    """Uninitialised, one value a query."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return padded_empty(q.shape[:3], q.new_empty(0, dtype=dtype))


def _run(q, k, v, causal: bool, scale: float | None, lse: torch.Tensor | None) -> torch.Tensor:
    batch, heads, queries, dim = q.shape
    keys = k.shape[2]
    if q.numel() == 0 or keys == 0:
        return torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    chosen = _chosen("forward", q)
    q, k, v, out = describable(q), describable(k), describable(v), padded_empty(q.shape, q)
    rows, wide, roles = chosen["BLOCK_M"], chosen["BLOCK_D"], chosen["ROLES"]
    tile = [1, 1, chosen["BLOCK_N"], wide]
    with torch.cuda.device_of(q):
        lend_scratch()
        flash_attention_kernel[(cdiv(queries, rows) * batch * heads,)](
            of_rows(q, [rows, wide], roles),
            described(k, tile),
            described(v, tile),
            of_rows(out, [rows, wide], roles),
            None if lse is None else of_rows(lse, [rows], roles),
            heads,
            heads // k.shape[1],
            queries,
            keys,
            SCALE=dim**-0.5 if scale is None else scale,
            CAUSAL=causal,
            MASKED=causal or keys % chosen["BLOCK_N"] > 0,
            **chosen,
        )
    return out.contiguous()


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    lse = _lse_like(q)
    return _run(q, k, v, causal, scale, lse), lse


def _backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1:3]
    if q.numel() == 0 or keys == 0:
        return tuple(torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    grad, q, k, v, out = map(describable, (grad, q, k, v, out))
    grad_q, grad_k, grad_v = (padded_empty(x.shape, x) for x in (q, k, v))
    lse, delta = describable(lse), _lse_like(q)
    sizes = heads // kv_heads, queries, keys
    fixed = {"SCALE": dim**-0.5 if scale is None else scale, "CAUSAL": causal}
    with torch.cuda.device_of(q):
        lend_scratch()
        chosen = _chosen("grad_q", q)
        rows, others, wide, roles = (chosen[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_D", "ROLES"))
        programs = (cdiv(queries, rows) * batch * heads,)
        whole = [1, 1, rows, wide]
        delta_kernel[programs](
            described(out, whole),
            described(grad, whole),
            described(delta, whole[:3]),
            heads,
            queries,
            **{name: chosen[name] for name in ("COMPUTE", "D", "BLOCK_D", "BLOCK_M")},
        )
        grad_q_kernel[programs](
            *(of_rows(x, [rows, wide], roles) for x in (q, grad)),
            *(described(x, [1, 1, others, wide]) for x in (k, v)),
            *(of_rows(x, [rows], roles) for x in (lse, delta)),
            of_rows(grad_q, [rows, wide], roles),
            heads,
            *sizes,
            MASKED=causal or keys % others > 0,
            **fixed,
            **chosen,
        )
        chosen = _chosen("grad_kv", q)
        rows, others, wide, roles = (chosen[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_D", "ROLES"))
        grad_kv_kernel[(cdiv(keys, rows) * batch * kv_heads,)](
            *(of_rows(x, [rows, wide], roles) for x in (k, v)),
            *(described(x, [1, 1, others, wide]) for x in (q, grad)),
            *(described(x, [1, 1, others]) for x in (lse, delta)),
            *(of_rows(x, [rows, wide], roles) for x in (grad_k, grad_v)),
            kv_heads,
            *sizes,
            **fixed,
            **chosen,
        )
    return grad_q.contiguous(), grad_k.contiguous(), grad_v.contiguous()


def _keep(ctx, inputs, output):
    *tensors, ctx.causal, ctx.scale = inputs
    ctx.set_materialize_grads(False)  # no tensor of zeros for the log-sum-exp, which nobody differentiates
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx, grad: torch.Tensor | None, of_lse=None, backward=_backward):
    if grad is None:
        return (None,) * 5
    return *backward(grad, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None


class FlashAttentionFunction(torch.autograd.Function):
    """The output and each row's log-sum-exp, for autograd. Calling it costs Python less than the operator does."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_keep)
    backward = staticmethod(once_differentiable(_gradients))


# The same for torch.compile, which does not look inside registered operators.
flash_attention_op = torch.library.custom_op("kernel_fusion::flash_attention", _forward, mutates_args=())
flash_attention_backward_op = torch.library.custom_op(
    "kernel_fusion::flash_attention_backward", _backward, mutates_args=()
)


def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


flash_attention_op.register_fake(lambda q, k, v, causal, scale: (_like(q), _lse_like(q)))
flash_attention_backward_op.register_fake(lambda grad, q, k, v, *rest: (_like(q), _like(k), _like(v)))
flash_attention_op.register_autograd(partial(_gradients, backward=flash_attention_backward_op), setup_context=_keep)


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """softmax(q k^T scale) v in one launch and without its matrix, differentiable once.

    Args:
        q: floating-point tensor of shape (batch, heads, queries, dim), dim up to 256. Any strides; rows that do not
            start at multiples of 16 bytes, or whose elements are not side by side, are copied first.
        k, v: (batch, key heads, keys, dim), of q's dtype and on its device. heads is a multiple of key heads; each key
            head serves that many neighbouring query heads.
        causal: the last query sees every key, each one before it one key less: query i sees key j if
            j - keys <= i - queries.
        scale: of the scores, positive; 1 / sqrt(dim) where not given. The kernel is compiled for each.

    Returns:
        A contiguous tensor of q's shape and dtype, the autocast dtype under autocast. Products are summed in fp32 (fp64
        for fp64 inputs; fp32 inputs are not rounded to tf32), the probabilities rounded to q's dtype before the second
        one. A query that sees no key gets 0.

    Raises:
        TypeError: q, k or v is not a floating-point tensor, or the dtypes differ.
        ValueError: shapes that do not fit, a scale that is not positive, two devices, or tensors on the CPU where
            kernels run on a GPU.
    """
    q, k, v = as_autocast_says(q, k, v)
    check_heads("flash_attention", scale, q=q, k=k, v=v)
    if torch.compiler.is_compiling():
        return flash_attention_op(q, k, v, causal, scale)[0]
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return FlashAttentionFunction.apply(q, k, v, causal, scale)[0]
    return _run(q, k, v, causal, scale, None)


class FlashAttention(torch.nn.Module):
    """flash_attention as a module: `causal` and `scale` are kept, q, k and v are given."""

    def __init__(self, causal: bool = False, scale: float | None = None):
        super().__init__()
        self.causal, self.scale = causal, scale

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flash_attention(q, k, v, self.causal, self.scale)


def flash_attention_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """The same, as one writes it in PyTorch before thinking of memory."""
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
    """FLOPs and least bytes for (batch, heads, tokens, dim, causal): two products, 4 dim operations for each pair of a
    query and a key that it sees; q, k and v in once, the output out once."""
    batch, heads, tokens, dim, causal = shape
    pairs = tokens * (tokens + 1) // 2 if causal else tokens**2
    size = batch * heads * tokens * dim * dtype.itemsize
    return Work(flops=4 * batch * heads * pairs * dim, bytes_read=3 * size, bytes_written=size)


def flash_attention_backward_work(shape: tuple[int, int, int, int, bool], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes of the gradients: five products, one of which is the scores over again; q, k, v, the output
    and its gradient in once, three gradients out once."""
    forward = flash_attention_work(shape, dtype)
    size = forward.bytes_written
    return Work(flops=5 * forward.flops / 2, bytes_read=5 * size, bytes_written=3 * size)


def _inputs(batch: int, heads: int, tokens: int, dim: int, causal: bool, **options) -> tuple:
    return *(torch.randn(batch, heads, tokens, dim, **options) for _ in range(3)), bool(causal)


def _compile_arguments(*shape, dtype: torch.dtype) -> tuple[tuple, dict]:
    batch, heads, tokens, dim, causal = shape
    chosen = settings("forward", dim, dtype)
    x = torch.empty(batch, heads, tokens, dim, dtype=dtype, device="meta")
    rows = of_rows(x, [chosen["BLOCK_M"], chosen["BLOCK_D"]], chosen["ROLES"])
    passing = described(x, [1, 1, chosen["BLOCK_N"], chosen["BLOCK_D"]])
    masked = causal or tokens % chosen["BLOCK_N"] > 0
    arguments = rows, passing, passing, rows, None, heads, 1, tokens, tokens
    return arguments, {"SCALE": dim**-0.5, "CAUSAL": causal, "MASKED": masked, **chosen}


OP = FusedOp(
    name="flash_attention",
    fused=flash_attention,
    reference=flash_attention_reference,
    work=flash_attention_work,
    kernel=flash_attention_kernel,
    settings=settings,
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
