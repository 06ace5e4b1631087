# 16 queries a program and whole rows in registers: one pass. The grid has three dimensions.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def attention_scores_kernel(
    q_ptr,
    k_ptr,
    valid_ptr,
    p_ptr,
    seq,
    qb,
    qh,
    qn,
    qd,
    kb,
    kh,
    kn,
    kd,
    DIM: tl.constexpr,
    ROW: tl.constexpr,
):
    query = tl.program_id(0) * 16 + tl.arange(0, 16)[:, None]
    key = tl.arange(0, ROW)[None, :]
    head, batch = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d = tl.arange(0, DIM)
    q = tl.load(
        q_ptr + batch * qb + head * qh + query * qn + d[None, :] * qd, mask=query < seq, other=0.0
    )
    k = tl.load(
        k_ptr + batch * kb + head * kh + key * kn + d[:, None] * kd, mask=key < seq, other=0.0
    )
    valid = tl.load(valid_ptr + batch * seq + key, mask=key < seq, other=False)
    seen = valid & (key <= query)
    # The exponential to base 2, for which a GPU has an instruction.
    s = tl.where(seen, tl.dot(q, k) * (1.4426950408889634 / tl.sqrt(DIM * 1.0)), float("-inf"))
    top = tl.max(s, axis=1, keep_dims=True)
    e = tl.where(seen, tl.exp2(s - top), 0.0)
    total = tl.sum(e, axis=1, keep_dims=True)
    p = e / tl.where(total == 0, 1.0, total)
    row = (batch * tl.num_programs(1) + head) * seq + query
    tl.store(p_ptr + row * seq + key, p, mask=(query < seq) & (key < seq))


# %% grade_id="launcher"
def attention_scores(q, k, valid):
    batch, heads, seq, dim = q.shape
    p = torch.empty(batch, heads, seq, seq, device=q.device)
    if p.numel():
        attention_scores_kernel[(triton.cdiv(seq, 16), heads, batch)](
            q,
            k,
            valid,
            p,
            seq,
            *q.stride(),
            *k.stride(),
            DIM=dim,
            ROW=max(16, triton.next_power_of_2(seq)),
            num_warps=8,
        )
    return p
