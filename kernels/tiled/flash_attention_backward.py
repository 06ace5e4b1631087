"""The gradients of flash_attention, in a file of its own since they take three launches of three kernels.

The tiles of p are computed again from q, k and the log-sum-exp of each row, so that no N x N numbers are kept. With
delta = sum(grad out, a row) and p = exp(s scale - lse):

    grad_v = p^T grad,   grad_s = p (grad v^T - delta),   grad_q = grad_s k scale,   grad_k = grad_s^T q scale

One kernel walks over keys for grad_q and one over queries for grad_k and grad_v: seven products instead of the five
that are least, and in return no atomics, so that gradients are the same bits in every run. Where key heads
make few programs, since one serves many query heads, several programs share a block of keys: each sums a part of its
steps, in fp32, and the parts are added after. Heads of 33 to 128 on compute capability 9.0 go to
flash_attention_backward_hopper.py, with its five products, unless PyTorch is asked for deterministic algorithms.

Source: Dao, arXiv:2307.08691, algorithm 2.
"""

import torch
import triton
import triton.language as tl

from kernels.arguments import cdiv, multiprocessors
from kernels.attention import (
    delta_kernel,
    head_settings,
    hide,
    is_hopper,
    longest_first,
    parts_of,
    seen_keys,
    store_part,
    value_per_row,
)
from kernels.descriptors import (
    describable,
    described,
    lend_scratch,
    load_rows,
    load_values,
    of_rows,
    padded_empty,
    store_rows,
)
from kernels.online_softmax import LOG2_E
from kernels.op import Work
from kernels.tiled import flash_attention_backward_hopper

# As in flash_attention.py: rows that stay, rows that pass by, whether warps take roles, warps.
TILES = {
    "grad_q": {64: (64, 64, False, 4), 128: (128, 128, True, 4), 256: (128, 32, False, 8)},
    # Two sums leave registers for fewer queries at a time.
    "grad_kv": {64: (64, 64, False, 4), 128: (128, 64, True, 4), 256: (64, 32, False, 8)},
}


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
    end, last, by_all = seen_keys(start, queries, keys, CAUSAL, BLOCK_M)
    acc = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    for n in tl.range(0, end, BLOCK_N, warp_specialize=ROLES):
        k = k_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        s = tl.dot(q, k.T, input_precision="ieee", out_dtype=COMPUTE)
        v = v_desc.load([b, h // group, n, 0]).reshape(BLOCK_N, BLOCK_D)
        grad_p = tl.dot(grad, v.T, input_precision="ieee", out_dtype=COMPUTE)
        if MASKED:
            s = hide(s, n, last, by_all, ROLES)
        p = tl.exp2(s * (SCALE * LOG2_E) - lse[:, None])
        grad_s = p * (grad_p - delta[:, None])
        acc = tl.dot(grad_s.to(k.dtype), k, acc, input_precision="ieee", out_dtype=COMPUTE)
    store_rows(grad_q, acc * SCALE, b, h, start, queries, D, ROLES)


@triton.jit
def grad_kv_kernel(
    k,  # (batch, kv_heads, keys, D) in tiles of (BLOCK_M, BLOCK_D), as load_rows takes it
    v,  # the same
    q_desc,  # (batch, kv_heads * group, queries, D) in tiles of (1, 1, BLOCK_N, BLOCK_D)
    grad_desc,  # the same
    lse_desc,  # (batch, kv_heads * group, queries) of COMPUTE in tiles of (1, 1, BLOCK_N)
    delta_desc,  # the same
    grad_k,  # as k, or a pointer to (batch, kv_heads, parts, keys, D) of COMPUTE
    grad_v,  # the same
    kv_heads,
    group,
    queries,
    keys,
    parts,  # programs that share a block of keys
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
    SHARED: tl.constexpr,  # whether there is more than one part
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
    b, h, part = head // parts // kv_heads, head // parts % kv_heads, head % parts
    k = load_rows(k, b, h, start, keys, D, BLOCK_M, BLOCK_D, ROLES)
    v = load_rows(v, b, h, start, keys, D, BLOCK_M, BLOCK_D, ROLES)
    # The first query that sees each key; tiles of queries before all of them are left out.
    row = (start + queries - keys) + tl.arange(0, BLOCK_M)
    first = tl.maximum(start + queries - keys, 0) // BLOCK_N if CAUSAL else 0
    steps = tl.maximum(tl.cdiv(queries, BLOCK_N) - first, 0)
    sum_k = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    sum_v = tl.zeros((BLOCK_M, BLOCK_D), COMPUTE)
    begin, end = group * steps * part // parts, group * steps * (part + 1) // parts
    for step in tl.range(begin, end, warp_specialize=ROLES):  # of every query head that the key head serves
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
    if SHARED:
        store_part(grad_k, sum_k * SCALE, head, start, keys, D)
        store_part(grad_v, sum_v, head, start, keys, D)
    else:
        store_rows(grad_k, sum_k * SCALE, b, h, start, keys, D, ROLES)
        store_rows(grad_v, sum_v, b, h, start, keys, D, ROLES)


def settings(launch: str, dim: int, dtype: torch.dtype, hopper: bool = True) -> dict:
    """Launch settings of grad_q_kernel and grad_kv_kernel, by TILES. delta_kernel takes grad_q's blocks."""
    return head_settings(TILES[launch], dim, dtype, hopper)


def backward(
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
    grad_q = padded_empty(q.shape, q)
    lse, delta = describable(lse), value_per_row(q)
    sizes, hopper = (heads // kv_heads, queries, keys), is_hopper(q)
    fixed = {"SCALE": dim**-0.5 if scale is None else scale, "CAUSAL": causal}
    with torch.cuda.device_of(q):
        lend_scratch()
        chosen = settings("grad_q", dim, q.dtype, hopper)
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
        if flash_attention_backward_hopper.takes(q):
            grads = flash_attention_backward_hopper.launch(grad, q, k, v, lse, delta, causal, fixed["SCALE"])
            return tuple(x.contiguous() for x in grads)
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
        chosen = settings("grad_kv", dim, q.dtype, hopper)
        rows, others, wide, roles = (chosen[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_D", "ROLES"))
        programs = cdiv(keys, rows) * batch * kv_heads
        at_once = multiprocessors(q) * (1 if roles else 2)
        parts = parts_of(programs, heads // kv_heads * cdiv(queries, others), at_once, causal)
        if parts > 1:
            sums = torch.empty((2, batch, kv_heads, parts, keys, dim), dtype=delta.dtype, device=k.device)
            grad_k, grad_v = sums
        else:
            sums = padded_empty(k.shape, k), padded_empty(v.shape, v)
            grad_k, grad_v = (of_rows(x, [rows, wide], roles) for x in sums)
        grad_kv_kernel[(programs * parts,)](
            *(of_rows(x, [rows, wide], roles) for x in (k, v)),
            *(described(x, [1, 1, others, wide]) for x in (q, grad)),
            *(described(x, [1, 1, others]) for x in (lse, delta)),
            grad_k,
            grad_v,
            kv_heads,
            *sizes,
            parts,
            SHARED=parts > 1,
            **fixed,
            **chosen,
        )
        grad_k, grad_v = sums if parts == 1 else sums.sum(3).to(k.dtype)
    return grad_q.contiguous(), grad_k.contiguous(), grad_v.contiguous()


def backward_work(shape: tuple[int, int, int, int, bool], dtype: torch.dtype) -> Work:
    """FLOPs and least bytes for (batch, heads, tokens, dim, causal): five products, one of which is the scores over
    again; q, k, v, the output and its gradient in once, three gradients out once."""
    batch, heads, tokens, dim, causal = shape
    pairs = tokens * (tokens + 1) // 2 if causal else tokens**2
    size = batch * heads * tokens * dim * dtype.itemsize
    return Work(flops=10 * batch * heads * pairs * dim, bytes_read=5 * size, bytes_written=3 * size)
