# Rows as tiles of height 1, sums by tl.reduce with a function of one's own, and strides in place of copies.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def plus(one, other):
    return one + other


@triton.jit
def residual_rms_norm_kernel(
    x_ptr, x_step, r_ptr, r_step, w_ptr, outs_ptr, sums_ptr, n, epsilon, LANES: tl.constexpr
):
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, LANES)
    real = lanes < n
    both = tl.load(x_ptr + row * x_step + lanes, real, other=0.0).to(tl.float32)
    both += tl.load(r_ptr + row * r_step + lanes, real, other=0.0).to(tl.float32)
    power = tl.reduce(both * both, 0, plus) / n
    tl.store(sums_ptr + row * n + lanes, both, real)
    weight = tl.load(w_ptr + lanes, real, other=0.0).to(tl.float32)
    tl.store(outs_ptr + row * n + lanes, weight * (both / tl.sqrt_rn(power + epsilon)), real)


# %% grade_id="launcher"
def residual_rms_norm(x, residual, weight, eps):
    n = x.shape[-1]
    outs, sums = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))

    def as_rows(t):
        t = t.reshape(x.numel() // n, n)
        return t if t.stride(1) == 1 else t.contiguous()

    x, residual = map(as_rows, (x, residual))
    if x.shape[0] > 0:
        lanes = triton.next_power_of_2(n)
        residual_rms_norm_kernel[(x.shape[0], 1, 1)](
            x, x.stride(0), residual, residual.stride(0), weight, outs, sums, n, eps, LANES=lanes,
            num_warps=max(4, min(lanes // 512, 32)),
        )  # fmt: skip
    return (outs, sums)
