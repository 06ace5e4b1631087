# Each program has a run of neighbouring rows, two tensors of sums; derivatives by the chain rule.
# ruff: noqa: F821

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def mean_of(values, n):
    return tl.sum(values, axis=0) / n


@triton.jit
def backward_kernel(
    dy, x, gamma, beta, dx, dgamma, dbeta, rows, n, eps, KIND: tl.constexpr, BLOCK: tl.constexpr
):
    lane = tl.arange(0, BLOCK)
    real = lane < n
    weight = tl.load(gamma + lane, real, other=0.0).to(KIND)
    bias = tl.load(beta + lane, real, other=0.0).to(KIND)
    by_weight = tl.zeros([BLOCK], KIND)
    by_bias = tl.zeros([BLOCK], KIND)
    run = tl.cdiv(rows, tl.num_programs(0))
    first = tl.program_id(0) * run
    for number in range(first, tl.minimum(first + run, rows)):
        row = tl.cast(number, tl.int64)
        value = tl.load(x + row * n + lane, real, other=0.0).to(KIND)
        up = tl.load(dy + row * n + lane, real, other=0.0).to(KIND)
        value = tl.where(real, value - mean_of(value, n), 0.0)
        scale = 1.0 / tl.sqrt(mean_of(value * value, n) + eps)
        unit = value * scale
        z = unit * weight + bias
        s = tl.sigmoid(1.702 * z)
        to_z = up * s * (1.0 + 1.702 * z * (1.0 - s))
        by_weight += to_z * unit
        by_bias += to_z
        to_unit = to_z * weight
        to_x = to_unit - mean_of(to_unit, n) - unit * mean_of(to_unit * unit, n)
        tl.store(dx + row * n + lane, scale * to_x, real)
    mine = tl.program_id(0) * n + lane
    tl.store(dgamma + mine, by_weight, real)
    tl.store(dbeta + mine, by_bias, real)


# %% grade_id="backward"
def backward(grad_y, x, weight, bias, eps):
    n = x.shape[-1]
    rows = x.numel() // n
    programs = min(rows, PROGRAMS) or 1
    kind = {torch.float64: (torch.float64, tl.float64)}.get(x.dtype, (torch.float32, tl.float32))
    sums = torch.empty((2, programs, n), dtype=kind[0], device=x.device)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(n)
    backward_kernel[programs,](
        grad_y.contiguous(), x.contiguous(), weight, bias, dx, sums[0], sums[1], rows, n, eps,
        KIND=kind[1], BLOCK=block, num_warps=max(4, min(block // 256, 32)),
    )  # fmt: skip
    dgamma, dbeta = sums.sum(dim=1).to(x.dtype).unbind()
    return dx, dgamma, dbeta
