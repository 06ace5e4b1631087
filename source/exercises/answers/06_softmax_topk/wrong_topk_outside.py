# The kernel computes the softmax, PyTorch finds the largest.
# rejected by: traffic
# told: launches

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def softmax_kernel(x_ptr, p_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    exists = col < cols
    x = tl.load(x_ptr + row * cols + col, mask=exists, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(p_ptr + row * cols + col, e / tl.sum(e, axis=0), mask=exists)


# %% grade_id="launcher"
def softmax_topk(x, k):
    x = x.contiguous()
    cols = x.shape[-1]
    p = torch.empty_like(x)
    softmax_kernel[(x.numel() // cols,)](x, p, cols, BLOCK=triton.next_power_of_2(cols))
    values, indices = p.sort(dim=-1, descending=True, stable=True)
    return p, values[..., :k], indices[..., :k]
