# Walks over the row in chunks: once for the sums, once more for the result.
# rejected by: traffic
# told: x is read twice

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * cols
    mean, squares = 0.0, 0.0
    for first in range(0, cols, BLOCK):
        col = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + col, mask=col < cols, other=0.0).to(tl.float32)
        count = tl.minimum(cols - first, BLOCK)
        chunk = tl.sum(x, axis=0) / count
        centred = tl.where(col < cols, x - chunk, 0.0)
        apart = chunk - mean
        squares += tl.sum(centred * centred, axis=0) + apart * apart * first * count / (first + count)
        mean += apart * count / (first + count)
    for first in range(0, cols, BLOCK):
        col = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + col, mask=col < cols, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + col, mask=col < cols).to(tl.float32)
        bias = tl.load(bias_ptr + col, mask=col < cols).to(tl.float32)
        y = (x - mean) * tl.rsqrt(squares / cols + eps) * weight + bias
        tl.store(y_ptr + start + col, y, mask=col < cols)


# %% grade_id="launcher"
def layer_norm(x, weight, bias, eps):
    cols = x.shape[-1]
    x = x.contiguous()
    y = torch.empty_like(x)
    layer_norm_kernel[(x.numel() // cols,)](x, weight, bias, y, cols, eps, BLOCK=512)
    return y
