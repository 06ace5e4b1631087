# Query i does not see key i: the first query sees none.
# rejected by: values
# told: the causal mask

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def flash_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
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
    v_stride_b,
    v_stride_h,
    v_stride_n,
    v_stride_d,
    CAUSAL: tl.constexpr,
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
    v_ptr += batch * v_stride_b + head * v_stride_h
    q = tl.load(q_ptr + query[:, None] * q_stride_n + d[None, :] * q_stride_d, mask=(query < seq)[:, None], other=0.0)

    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, DIM), tl.float32)
    last = tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M) if CAUSAL else seq
    for start in range(0, last, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + key[None, :] * k_stride_n + d[:, None] * k_stride_d, mask=(key < seq)[None, :], other=0.0)
        seen = (key < seq)[None, :]
        if CAUSAL:
            seen = seen & (key[None, :] < query[:, None])
        s = tl.where(seen, tl.dot(q, k) * scale, -float("inf"))
        grown = tl.maximum(top, tl.max(s, axis=1))
        e = tl.exp(s - grown[:, None])
        shrink = tl.exp(top - grown)
        total = total * shrink + tl.sum(e, axis=1)
        v = tl.load(v_ptr + key[:, None] * v_stride_n + d[None, :] * v_stride_d, mask=(key < seq)[:, None], other=0.0)
        acc = tl.dot(e.to(tl.float16), v, acc * shrink[:, None])
        top = grown
    o = acc / total[:, None]
    row = tl.program_id(1).to(tl.int64) * seq + query
    tl.store(o_ptr + row[:, None] * DIM + d[None, :], o.to(tl.float16), mask=(query < seq)[:, None])


# %% grade_id="launcher"
def flash_attention(q, k, v, causal):
    """softmax(q k^T / sqrt(dim)) v as a contiguous (batch, heads, seq, dim) in float16, in one launch."""
    batch, heads, seq, dim = q.shape
    o = torch.empty((batch, heads, seq, dim), dtype=q.dtype, device=q.device)
    block_m, block_n = 64, 64
    grid = (triton.cdiv(seq, block_m), batch * heads)
    flash_attention_kernel[grid](
        q,
        k,
        v,
        o,
        heads,
        seq,
        dim**-0.5,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        CAUSAL=causal,
        DIM=dim,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=4,
    )
    return o
