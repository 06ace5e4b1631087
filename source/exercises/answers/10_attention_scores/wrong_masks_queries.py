# valid is taken for the queries' mask.
# rejected by: masked_rows
# told: which mask is whose

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
    heads,
    seq,
    scale,
    q_stride_b,
    q_stride_h,
    q_stride_n,
    q_stride_d,
    k_stride_b,
    k_stride_h,
    k_stride_n,
    k_stride_d,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64) // heads
    head = tl.program_id(1).to(tl.int64) % heads
    query = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, DIM)
    q_ptr += batch * q_stride_b + head * q_stride_h
    k_ptr += batch * k_stride_b + head * k_stride_h
    p_ptr += tl.program_id(1).to(tl.int64) * seq * seq
    q = tl.load(q_ptr + query[:, None] * q_stride_n + d[None, :] * q_stride_d, mask=(query < seq)[:, None], other=0.0)

    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M), BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + key[None, :] * k_stride_n + d[:, None] * k_stride_d, mask=(key < seq)[None, :], other=0.0)
        valid = tl.load(valid_ptr + batch * seq + query, mask=query < seq, other=0) != 0
        seen = valid[:, None] & (key[None, :] < seq) & (key[None, :] <= query[:, None])
        s = tl.where(seen, tl.dot(q, k) * scale, -float("inf"))
        grown = tl.maximum(top, tl.max(s, axis=1))
        safe = tl.where(grown == -float("inf"), 0.0, grown)
        total = total * tl.exp(top - safe) + tl.sum(tl.exp(s - safe[:, None]), axis=1)
        top = grown
    safe = tl.where(top == -float("inf"), 0.0, top)
    share = tl.where(total > 0, 1.0 / total, 0.0)

    for start in range(0, seq, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + key[None, :] * k_stride_n + d[:, None] * k_stride_d, mask=(key < seq)[None, :], other=0.0)
        valid = tl.load(valid_ptr + batch * seq + query, mask=query < seq, other=0) != 0
        seen = valid[:, None] & (key[None, :] < seq) & (key[None, :] <= query[:, None])
        s = tl.where(seen, tl.dot(q, k) * scale, -float("inf"))
        p = tl.exp(s - safe[:, None]) * share[:, None]
        tl.store(p_ptr + query[:, None] * seq + key[None, :], p, mask=(query < seq)[:, None] & (key < seq)[None, :])


# %% grade_id="launcher"
def attention_scores(q, k, valid):
    """softmax(q k^T / sqrt(dim) + mask) as (batch, heads, seq, seq) in float32, in one launch."""
    batch, heads, seq, dim = q.shape
    p = torch.empty((batch, heads, seq, seq), dtype=torch.float32, device=q.device)
    block_m, block_n = 32, 64
    grid = (triton.cdiv(seq, block_m), batch * heads)
    attention_scores_kernel[grid](
        q, k, valid, p, heads, seq, dim**-0.5, *q.stride(), *k.stride(), DIM=dim, BLOCK_M=block_m, BLOCK_N=block_n
    )
    return p
