# The scores of a tile as a function of its own; large tiles; -1e30 for -inf.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def scores(
    q, k_ptr, valid_ptr, query, first, seq, scale, kn, kd, DIM: tl.constexpr, KEYS: tl.constexpr
):
    key = first + tl.arange(0, KEYS)
    k = tl.load(
        k_ptr + key[:, None] * kn + tl.arange(0, DIM)[None, :] * kd,
        mask=key[:, None] < seq,
        other=0.0,
    )
    valid = tl.load(valid_ptr + key, mask=key < seq, other=0).to(tl.int1)
    seen = valid[None, :] & (key[None, :] <= query[:, None])
    return tl.where(seen, scale * tl.dot(q, tl.trans(k)), -1e30)


@triton.jit
def attention_scores_kernel(
    q_ptr,
    k_ptr,
    valid_ptr,
    p_ptr,
    heads,
    seq,
    scale,
    qb,
    qh,
    qn,
    qd,
    kb,
    kh,
    kn,
    kd,
    DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    tiles = tl.cdiv(seq, QUERIES)
    head = (tl.program_id(0) // tiles).to(tl.int64)
    query = tl.program_id(0) % tiles * QUERIES + tl.arange(0, QUERIES)
    inside = query[:, None] < seq
    q = tl.load(
        q_ptr
        + head // heads * qb
        + head % heads * qh
        + query[:, None] * qn
        + tl.arange(0, DIM)[None, :] * qd,
        mask=inside,
        other=0.0,
    )
    k_ptr += head // heads * kb + head % heads * kh
    valid_ptr += head // heads * seq
    top = tl.zeros([QUERIES], tl.float32) - 1e30
    total = tl.zeros([QUERIES], tl.float32)
    for first in range(0, seq, KEYS):
        s = scores(q, k_ptr, valid_ptr, query, first, seq, scale, kn, kd, DIM, KEYS)
        before = top
        top = tl.maximum(top, tl.max(s, 1))
        total = total * tl.exp(before - top) + tl.sum(
            tl.where(s == -1e30, 0.0, tl.exp(s - top[:, None])), 1
        )
    for first in range(0, seq, KEYS):
        s = scores(q, k_ptr, valid_ptr, query, first, seq, scale, kn, kd, DIM, KEYS)
        p = tl.where(s == -1e30, 0.0, tl.exp(s - top[:, None]) / total[:, None])
        key = first + tl.arange(0, KEYS)
        tl.store(
            p_ptr + (head * seq + query[:, None]) * seq + key[None, :],
            p,
            mask=inside & (key[None, :] < seq),
        )


# %% grade_id="launcher"
def attention_scores(q, k, valid):
    batch, heads, seq, dim = q.shape
    p = torch.empty((batch, heads, seq, seq), dtype=torch.float32, device=q.device)
    attention_scores_kernel[(triton.cdiv(seq, 64) * batch * heads,)](
        q,
        k,
        valid,
        p,
        heads,
        seq,
        dim**-0.5,
        *q.stride(),
        *k.stride(),
        DIM=dim,
        QUERIES=64,
        KEYS=128,
    )
    return p
