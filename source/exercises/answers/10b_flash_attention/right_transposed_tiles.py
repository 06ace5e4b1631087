# Keys as rows and queries as columns, from the last tile of keys to the first.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def flash_attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, heads, seq, scale,
    qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    query = tl.program_id(2).to(tl.int64) * QUERIES + tl.arange(0, QUERIES)[None, :]
    d = tl.arange(0, DIM)
    q = tl.load(q_ptr + batch * qb + head * qh + query * qn + d[:, None] * qd, query < seq, 0.0)
    end = seq
    if CAUSAL:
        end = min(seq, (tl.program_id(2) + 1) * QUERIES)
    peak = tl.full([1, QUERIES], float("-inf"), tl.float32)
    mass = tl.zeros([1, QUERIES], tl.float32)
    turned = tl.zeros([DIM, QUERIES], tl.float32)
    tiles = tl.cdiv(end, KEYS)
    for back in range(tiles):
        key = (tiles - 1 - back) * KEYS + tl.arange(0, KEYS)[:, None]
        k = tl.load(k_ptr + batch * kb + head * kh + key * kn + d[None, :] * kd, key < seq, 0.0)
        s = tl.dot(k, q) * scale
        if CAUSAL:
            s = tl.where(key > query, float("-inf"), s)
        s = tl.where(key < seq, s, float("-inf"))
        higher = tl.maximum(peak, tl.max(s, 0, keep_dims=True))
        # From the last tile on, an early query has seen no key yet.
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp(s - level)
        shrink = tl.exp(peak - level)
        mass = mass * shrink + tl.sum(weight, 0, keep_dims=True)
        v = tl.load(
            v_ptr + batch * vb + head * vh + tl.trans(key) * vn + d[:, None] * vd,
            tl.trans(key) < seq,
            0.0,
        )
        turned = turned * shrink + tl.dot(v, weight.to(v.dtype))
        peak = higher
    at = ((batch * heads + head) * seq + query) * DIM + d[:, None]
    tl.store(o_ptr + at, (turned / mass).to(tl.float16), mask=query < seq)


# %% grade_id="launcher"
def flash_attention(q, k, v, causal):
    batch, heads, seq, dim = q.shape
    o = torch.empty(q.shape, dtype=torch.float16, device=q.device)
    if o.numel():
        strides = [step for tensor in (q, k, v) for step in tensor.stride()]
        flash_attention_kernel[(batch, heads, triton.cdiv(seq, 64))](
            q,
            k,
            v,
            o,
            heads,
            seq,
            1 / dim**0.5,
            *strides,
            CAUSAL=bool(causal),
            DIM=dim,
            QUERIES=64,
            KEYS=32,
        )
    return o
