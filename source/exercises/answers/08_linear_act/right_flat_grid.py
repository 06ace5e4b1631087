# A flat grid, tiles of 128 x 64, W loaded along its rows and transposed in registers, a function for each activation.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def activate(s, NUMBER: tl.constexpr):
    if NUMBER == 0:
        y = tl.where(s > 0, s, s * 0)
    elif NUMBER == 1:
        y = s * (1 + tl.erf(s / 1.4142135623730951)) / 2
    else:
        y = s / (1 + tl.exp(-s))
    return y


@triton.jit
def linear_act_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    M,
    N,
    K,
    xm,
    xk,
    wn,
    wk,
    NUMBER: tl.constexpr,
    TM: tl.constexpr,
    TN: tl.constexpr,
):
    tile = tl.program_id(0)
    across = tl.cdiv(N, TN)
    m = (tile // across).to(tl.int64) * TM + tl.arange(0, TM)
    n = (tile % across).to(tl.int64) * TN + tl.arange(0, TN)
    k = tl.arange(0, 32)
    x_ptr += m[:, None] * xm + k * xk
    w_ptr += n[:, None] * wn + k * wk
    # The sum starts at the bias: nothing is left to add at the end.
    acc = tl.zeros([TM, TN], tl.float32) + tl.load(b_ptr + n, mask=n < N, other=0.0)
    for first in range(0, K, 32):
        x = tl.load(x_ptr, mask=(m[:, None] < M) & (first + k < K), other=0.0)
        w = tl.load(w_ptr, mask=(n[:, None] < N) & (first + k < K), other=0.0)
        acc += tl.dot(x, tl.trans(w))
        x_ptr += 32 * xk
        w_ptr += 32 * wk
    y = activate(acc, NUMBER).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + m[:, None] * N + n, y, mask=(m[:, None] < M) & (n < N))


# %% grade_id="launcher"
NUMBERS = {"relu": 0, "gelu": 1, "silu": 2}


def linear_act(x, weight, bias, activation):
    m, n, k = x.shape[0], weight.shape[0], x.shape[1]
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)
    grid = lambda tiles: (triton.cdiv(m, tiles["TM"]) * triton.cdiv(n, tiles["TN"]),)  # noqa: E731
    linear_act_kernel[grid](
        x,
        weight,
        bias,
        y,
        m,
        n,
        k,
        x.stride(0),
        x.stride(1),
        weight.stride(0),
        weight.stride(1),
        NUMBER=NUMBERS[activation],
        TM=128,
        TN=64,
        num_warps=8,
        num_stages=2,
    )
    return y
