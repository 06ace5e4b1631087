# The sum is kept in float16.
# rejected by: values
# told: the accumulator|the edges

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def linear_act_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    M,
    N,
    K,
    x_stride_m,
    x_stride_k,
    weight_stride_n,
    weight_stride_k,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float16)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_ptr + row[:, None] * x_stride_m + k[None, :] * x_stride_k,
            mask=(row < M)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        weight = tl.load(
            weight_ptr + k[:, None] * weight_stride_k + col[None, :] * weight_stride_n,
            mask=(k < K)[:, None] & (col < N)[None, :],
            other=0.0,
        )
        acc = tl.dot(x, weight, acc, out_dtype=tl.float16)
    s = acc + tl.load(bias_ptr + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION == "relu":
        y = tl.where(s < 0, 0.0, s)
    elif ACTIVATION == "gelu":
        y = 0.5 * s * (1 + tl.erf(s * 0.7071067811865476))
    else:
        y = s * tl.sigmoid(s)
    tl.store(y_ptr + row[:, None] * N + col[None, :], y.to(tl.float16), mask=(row < M)[:, None] & (col < N)[None, :])


# %% grade_id="launcher"
def linear_act(x, weight, bias, activation):
    """act(x weight^T + bias): x (M, K), weight (N, K), bias (N,) in float16; activation "relu", "gelu" or "silu"."""
    (m, k), n = x.shape, weight.shape[0]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    block_m = block_n = 64
    grid = (triton.cdiv(m, block_m), triton.cdiv(n, block_n))
    linear_act_kernel[grid](
        x,
        weight,
        bias,
        y,
        m,
        n,
        k,
        *x.stride(),
        *weight.stride(),
        ACTIVATION=activation,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=32,
        num_warps=4,
    )
    return y
