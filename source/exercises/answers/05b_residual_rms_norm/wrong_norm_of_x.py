# The norm is of x alone.
# rejected by: values
# told: result 1 of 2

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def residual_rms_norm_kernel(x_ptr, residual_ptr, weight_ptr, y_ptr, sum_ptr, cols, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    exists = col < cols
    x = tl.load(x_ptr + start + col, mask=exists, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + start + col, mask=exists, other=0.0).to(tl.float32)
    s = x + residual
    tl.store(sum_ptr + start + col, s, mask=exists)
    mean_square = tl.sum(x * x, axis=0) / cols
    weight = tl.load(weight_ptr + col, mask=exists).to(tl.float32)
    tl.store(y_ptr + start + col, s * tl.rsqrt(mean_square + eps) * weight, mask=exists)


# %% grade_id="launcher"
def residual_rms_norm(x, residual, weight, eps):
    """(y, s): RMSNorm of x + residual over the last dimension, and the sum itself, in one launch."""
    cols = x.shape[-1]
    x, residual = x.contiguous(), residual.contiguous()
    y, s = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(cols)
    warps = min(32, max(4, block // 512))
    residual_rms_norm_kernel[(x.numel() // cols,)](x, residual, weight, y, s, cols, eps, BLOCK=block, num_warps=warps)
    return y, s
