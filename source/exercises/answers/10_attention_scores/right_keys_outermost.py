# Tiles of (keys, queries), a helper that both passes share, base 2, and a grid of three axes.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def scores_of(
    q, k_ptr, valid_ptr, query, start, seq, kn, kd, factor, DIM: tl.constexpr, KEYS: tl.constexpr
):
    key = start + tl.arange(0, KEYS)
    real = (key < seq)[:, None]
    k = tl.load(k_ptr + key[:, None] * kn + tl.arange(0, DIM)[None, :] * kd, real, other=0.0)
    valid = tl.load(valid_ptr + key[:, None], real, other=0) != 0
    hidden = (key[:, None] > query[None, :]) | (valid == 0)
    # (keys, queries): the transpose of the usual tile.
    return tl.where(hidden, float("-inf"), tl.dot(k, q) * factor)


@triton.jit
def attention_scores_kernel(
    q_ptr, k_ptr, valid_ptr, p_ptr, heads, seq, qb, qh, qn, qd, kb, kh, kn, kd,
    DIM: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    query = tl.program_id(0).to(tl.int64) * QUERIES + tl.arange(0, QUERIES)
    factor = 1.4426950408889634 / tl.sqrt(tl.cast(DIM, tl.float32))
    q_ptr += batch * qb + head * qh
    k_ptr += batch * kb + head * kh
    valid_ptr += batch * seq
    d = tl.arange(0, DIM)[:, None]
    q = tl.load(q_ptr + query[None, :] * qn + d * qd, mask=(query < seq)[None, :], other=0.0)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros_like(top)
    for start in range(0, tl.minimum(seq, (tl.program_id(0) + 1) * QUERIES), KEYS):
        s = scores_of(q, k_ptr, valid_ptr, query, start, seq, kn, kd, factor, DIM, KEYS)
        largest = tl.maximum(top, tl.max(s, 0))
        level = tl.where(largest == float("-inf"), 0.0, largest)
        total = total * tl.exp2(top - level) + tl.sum(tl.exp2(s - level[None, :]), 0)
        top = largest
    empty = top == float("-inf")
    level, total = tl.where(empty, 0.0, top), tl.where(empty, 1.0, total)
    row = (batch * heads + head) * seq + query
    for start in range(0, seq, KEYS):
        s = scores_of(q, k_ptr, valid_ptr, query, start, seq, kn, kd, factor, DIM, KEYS)
        p = tl.exp2(s - level[None, :]) / total[None, :]
        key = start + tl.arange(0, KEYS)[:, None]
        tl.store(p_ptr + row[None, :] * seq + key, p, mask=(key < seq) & (query < seq)[None, :])


# %% grade_id="launcher"
def attention_scores(q, k, valid):
    batch, heads, seq, dim = q.size()
    p = q.new_empty((batch, heads, seq, seq), dtype=torch.float)
    if p.numel():
        attention_scores_kernel[lambda of: (triton.cdiv(seq, of["QUERIES"]), heads, batch)](
            q, k, valid, p, heads, seq, *q.stride(), *k.stride(), DIM=dim, QUERIES=64, KEYS=32
        )
    return p
