# Winners are marked with -inf among the inputs, where -inf may stand already.
# rejected by: values
# told: each can win once

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def softmax_topk_kernel(x_ptr, p_ptr, values_ptr, indices_ptr, cols, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    exists = col < cols
    x = tl.load(x_ptr + row * cols + col, mask=exists, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    p = e / tl.sum(e, axis=0)
    tl.store(p_ptr + row * cols + col, p, mask=exists)
    left = x
    for place in tl.static_range(K):
        winner = tl.argmax(left, axis=0)
        tl.store(values_ptr + row * K + place, tl.exp(tl.max(left, axis=0) - tl.max(x, axis=0)) / tl.sum(e, axis=0))
        tl.store(indices_ptr + row * K + place, winner)
        left = tl.where(col == winner, -float("inf"), left)


# %% grade_id="launcher"
def softmax_topk(x, k):
    """(probabilities, values, indices) of the softmax over the last dimension, in one launch."""
    cols = x.shape[-1]
    x = x.contiguous()
    p = torch.empty_like(x)
    values = torch.empty((*x.shape[:-1], k), dtype=x.dtype, device=x.device)
    indices = torch.empty(values.shape, dtype=torch.int64, device=x.device)
    block = triton.next_power_of_2(cols)
    warps = min(32, max(4, block // 512))
    softmax_topk_kernel[(x.numel() // cols,)](x, p, values, indices, cols, K=k, BLOCK=block, num_warps=warps)
    return p, values, indices
