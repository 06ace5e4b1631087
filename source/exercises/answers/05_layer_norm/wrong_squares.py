# The variance as E[x^2] - E[x]^2.
# rejected by: mean
# told: take the mean off first

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    exists = col < cols
    x = tl.load(x_ptr + start + col, mask=exists, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / cols
    variance = tl.sum(x * x, axis=0) / cols - mean * mean
    weight = tl.load(weight_ptr + col, mask=exists).to(tl.float32)
    bias = tl.load(bias_ptr + col, mask=exists).to(tl.float32)
    y = (x - mean) * tl.rsqrt(variance + eps) * weight + bias
    tl.store(y_ptr + start + col, y, mask=exists)


# %% grade_id="launcher"
def layer_norm(x, weight, bias, eps):
    cols = x.shape[-1]
    x = x.contiguous()
    y = torch.empty_like(x)
    block = triton.next_power_of_2(cols)
    layer_norm_kernel[(x.numel() // cols,)](x, weight, bias, y, cols, eps, BLOCK=block)
    return y
