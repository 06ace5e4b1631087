# Programs in groups of tile rows, a grid from a lambda, addresses that wrap around in place of masks, and a helper.
# ruff: noqa: PIE808

# %%
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def activated(value, WHICH: tl.constexpr):
    if WHICH == 0:
        result = tl.where(value > 0, value, value * 0.0)
    elif WHICH == 1:
        result = value * (0.5 + 0.5 * tl.erf(value / 1.4142135623730951))
    else:
        result = value / (1.0 + tl.exp(-value))
    return result


@triton.jit
def linear_act_kernel(
    a, b, c, y, M, N, K, am, ak, bn, bk,
    WHICH: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, TM), tl.cdiv(N, TN)
    group = tl.program_id(0) // (GROUP * tiles_n)
    height = min(tiles_m - group * GROUP, GROUP)
    within = tl.program_id(0) % (GROUP * tiles_n)
    m = (group * GROUP + within % height).to(tl.int64) * TM + tl.arange(0, TM)
    n = (within // height).to(tl.int64) * TN + tl.arange(0, TN)
    # Rows and columns past the end read others again: they are not stored.
    a += (m % M)[:, None] * am
    b += (n % N)[None, :] * bn
    total = tl.zeros([TM, TN], tl.float32)
    for step in range(0, tl.cdiv(K, TK)):
        k = step * TK + tl.arange(0, TK)
        left = tl.load(a + k[None, :] * ak, mask=k[None, :] < K, other=0.0)
        right = tl.load(b + k[:, None] * bk, mask=k[:, None] < K, other=0.0)
        total += tl.dot(left, right)
    total = total + tl.load(c + n % N).to(tl.float32)
    where = y + m[:, None] * N + n
    tl.store(where, activated(total, WHICH).to(tl.float16), mask=(m < M)[:, None] & (n < N))


# %% grade_id="launcher"
def linear_act(x, weight, bias, activation):
    which = ("relu", "gelu", "silu").index(activation)
    rows, columns = x.size(0), weight.size(0)
    y = x.new_empty((rows, columns))
    if 0 in (rows, columns):
        return y
    linear_act_kernel[lambda of: (triton.cdiv(rows, of["TM"]) * triton.cdiv(columns, of["TN"]),)](
        x, weight, bias, y, rows, columns, x.size(1), *x.stride(), *weight.stride(),
        WHICH=which, TM=64, TN=64, TK=64, GROUP=4,
    )  # fmt: skip
    return y
